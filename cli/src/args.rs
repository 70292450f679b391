//! What the command line may say.

use std::{ffi::OsString, time::Duration};

use clap::{
    ArgMatches, Args as Part, Command, CommandFactory, Error, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use crate::duration::{self, A_DAY, written};

/// Locks in Redis or Valkey for commands of any length: held while they run, and gone when they are.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, arg_required_else_help = true)]
struct Line {
    #[command(subcommand)]
    task: Task,
}

/// A line whose options go together.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) task: Task,
}

impl Parser for Args {
    fn try_parse() -> Result<Self, Error> {
        Self::try_parse_from(std::env::args_os())
    }

    fn try_parse_from<I, T>(line: I) -> Result<Self, Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let words: Vec<OsString> = line.into_iter().map(Into::into).collect();
        let is_run = words.get(1).is_some_and(|task| task == "run");
        let mut matches =
            Self::command().try_get_matches_from(words).map_err(|error| if is_run { hinted(error) } else { error })?;
        Self::from_arg_matches_mut(&mut matches)
    }
}

impl CommandFactory for Args {
    fn command() -> Command {
        Line::command()
    }

    fn command_for_update() -> Command {
        Line::command_for_update()
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        if let Some((task, of_task)) = matches.subcommand() {
            // That of the environment may be another program's.
            let is_said = |option| {
                of_task.try_contains_id(option).is_ok()
                    && of_task.value_source(option) == Some(ValueSource::CommandLine)
            };
            if is_said("url") && is_said("quorum") {
                return Err(refused(task, "--url is for one server and --quorum for three or more: give one of them"));
            }
        }
        let task = Line::from_arg_matches(matches)?.task;
        if let Task::Run(run) = &task {
            run.check()?;
        }
        Ok(Self { task })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Who writes a command behind the name, as for `flock`, is told what is missing.
fn hinted(mut error: Error) -> Error {
    let is_word = matches!(
        error.get(ContextKind::InvalidArg),
        Some(ContextValue::String(word)) if !word.starts_with('-')
    );
    if error.kind() == ErrorKind::UnknownArgument && is_word {
        let tip = "put `--` before the command: leasehold run NAME -- COMMAND";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// A server that other processes see.
fn url(text: &str) -> Result<String, String> {
    if text.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("memory:")) {
        return Err("such a lock is there for one process only: name a server, redis://, rediss:// or unix://".into());
    }
    Ok(text.into())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Runs a command under a lock, and kills it before the lock can be somebody else's.
    Run(Box<Run>),
    /// Tells who holds a lock, and who waits for it.
    Show(Show),
    /// Lists the locks that are held.
    Ls(Ls),
    /// Shows the locks that are held, again and again.
    Top(Top),
    /// Looks for what could go wrong with the servers, and says what to do.
    Doctor(Doctor),
    /// Takes a lock away from whoever holds it.
    Release(Release),
    /// Prints the completions for a shell.
    #[command(after_help = "Example:\n  leasehold completions bash >/etc/bash_completion.d/leasehold")]
    Completions { shell: clap_complete::Shell },
    /// Prints the manual page.
    #[command(after_help = "Example:\n  leasehold man | man -l -")]
    Man,
}

/// What the tool calls itself for: apart from the others, so that no shell and no page offers it.
#[derive(Debug, Parser)]
#[command(name = "leasehold")]
pub(crate) enum Own {
    /// Becomes the command, once it is tied to the life of the process that started it.
    #[command(name = "__exec")]
    Exec(Exec),
    /// Dies of an interrupt.
    #[command(name = "__interrupted")]
    Interrupted,
}

/// Where the locks are.
#[derive(Debug, Clone, Part)]
pub(crate) struct Servers {
    /// The server: redis://, rediss:// or unix://.
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_parser = url, default_value = "redis://127.0.0.1:6379")]
    pub(crate) url: String,
    /// Three or more independent servers instead, with commas between them: a lock is a majority's.
    #[arg(long, value_name = "URL,…", value_delimiter = ',', value_parser = url)]
    pub(crate) quorum: Vec<String>,
    /// How long connecting may take.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    pub(crate) connect_timeout: Duration,
    /// How long a server that was restarted grants nothing, for it may have forgotten: at least a second more than the
    /// longest TTL, and the same in every program. Not given: 31s with --quorum, and none with one server.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) restart_delay: Option<Duration>,
    /// What all names are put behind.
    #[arg(long, default_value = "")]
    pub(crate) prefix: String,
}

const RUN_HELP: &str = "\
Durations are seconds, or have a unit: 500ms, 30s, 10m, 1h.

The command's own exit code is passed on; 128 and the signal if a signal ended it. Others:
  1     the lock is held (-n), or was for as long as we waited (-w); see -E
  64    wrong usage
  69    the server is not there, or refuses us
  74    a process could not be started
  75    the lease was lost, or --max-hold was over, and the command was stopped or not started; or it had
        ended by the time that we learned of the loss
  126   the command cannot be executed
  127   there is no such command

The command has LEASEHOLD_NAME, LEASEHOLD_FENCE and LEASEHOLD_LABEL in its environment, and all that we have in ours:
REDIS_URL too, unless it is run by `env -u REDIS_URL`.

Examples:
  leasehold run nightly-report -- ./report.sh
  leasehold run -n backup -- pg_dump app          # not at all if it runs elsewhere
  leasehold run -n --keep-for 50s hourly -- ./job # once, in a fleet whose clocks differ
  leasehold run --quorum redis://a,redis://b,redis://c migrate -- ./migrate up";

#[derive(Debug, Clone, Part)]
#[command(after_help = RUN_HELP, override_usage = "leasehold run [OPTIONS] <NAME> -- <COMMAND>...")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// Do not wait for a lock that is held: the exit code says so, and nothing else without --verbose.
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait for that long at most; for ever if not given.
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// The exit code for a lock that is held, or was for all of --wait.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1)]
    pub(crate) conflict_exit_code: u8,
    /// How long the lock outlives us at most if we die.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s")]
    pub(crate) ttl: Duration,
    /// The command is gone after that long, which is at least --ttl: a grace before, it is asked to stop.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock for that long from its start, though the command is quick: with -n, who comes later in that time does
    /// not run it again. Over a quorum for --restart-delay at most.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) keep_for: Option<Duration>,
    /// First come, first served.
    #[arg(long)]
    pub(crate) fair: bool,
    /// For how long the server keeps a key, beside the lock, by which fences grow though its clock is set back; 24h at most,
    /// and if not given. With 0s a lock that was released leaves nothing.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) fence_memory: Option<Duration>,
    /// How others see us, instead of host:pid.
    #[arg(long)]
    pub(crate) label: Option<String>,
    /// From --signal to SIGKILL, when the lease is about to be lost: it comes out of the lease. A third of the TTL, up to
    /// ten seconds, if not given.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// What the command is asked to stop by.
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = crate::signals::parse)]
    pub(crate) signal: rustix::process::Signal,
    /// Serve measurements there while we wait and run, as Prometheus text under /metrics.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) metrics_addr: Option<std::net::SocketAddr>,
    /// Tell what happens on standard error.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The lock's name.
    pub(crate) name: String,
    /// The command, and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    fn check(&self) -> Result<(), Error> {
        if let Some(memory) = self.fence_memory.filter(|memory| *memory > A_DAY) {
            let why = format!("--fence-memory {} is too long: {} is the most", written(memory), written(A_DAY));
            return Err(refused("run", &why));
        }
        match self.max_hold {
            Some(max_hold) if max_hold < self.ttl => Err(refused(
                "run",
                &format!(
                    "--max-hold {} is less than --ttl {}: give a shorter --ttl, or a longer --max-hold",
                    written(max_hold),
                    written(self.ttl)
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// What a task is asked for cannot be.
fn refused(task: &str, why: &str) -> Error {
    let mut tool = Line::command();
    tool.build();
    let error = tool.find_subcommand_mut(task).map(|task| task.error(ErrorKind::ValueValidation, why));
    error.unwrap_or_else(|| Error::raw(ErrorKind::ValueValidation, why))
}

#[derive(Debug, Clone, Part)]
#[command(
    after_help = "\
The exit code is 0 if it is held, and 1 if it is free.

Examples:
  leasehold show nightly-report
  leasehold show --json nightly-report | jq .holder.label",
    override_usage = "leasehold show [OPTIONS] <NAME>"
)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock's name.
    pub(crate) name: String,
}

#[derive(Debug, Clone, Part)]
#[command(after_help = "\
A key that another library holds is not listed: see `leasehold show`. TTL is how long the key lives unless it is renewed;
WAITING counts those in the fair queue, and is unknown over a quorum.

Examples:
  leasehold ls
  leasehold ls 'reports:*'
  leasehold ls --json | jq -r '.[].name'")]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Only names like this one: *, ? and [a-z] stand for others.
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Debug, Clone, Part)]
#[command(after_help = "Examples:\n  leasehold top\n  leasehold top --interval 5s 'reports:*'")]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// How often to look.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Only names like this one: *, ? and [a-z] stand for others.
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Debug, Clone, Part)]
#[command(after_help = "\
It takes and frees a lock of its own, NAME:doctor, to try the rights of our user. The exit code is 0 if there is nothing to
do, 1 if there is, and 69 if a server is not there.

Examples:
  leasehold doctor
  leasehold doctor --quorum redis://a,redis://b,redis://c --json")]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// A name like those that will be used, for users who may have some names only.
    #[arg(long, default_value = "leasehold")]
    pub(crate) name: String,
}

#[derive(Debug, Clone, Part)]
#[command(
    after_help = "\
Its holder is told, and must stop. Until it has, two may run: first look with `leasehold show` who it is.

Example:
  leasehold release --force nightly-report",
    override_usage = "leasehold release [OPTIONS] --force <NAME>"
)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// Take it away though it is somebody's: there is no other way to release from outside.
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock's name.
    pub(crate) name: String,
}

#[derive(Debug, Clone, Part)]
pub(crate) struct Exec {
    /// The process whose death is ours.
    #[arg(long)]
    pub(crate) parent: i32,
    /// Stop first, until the terminal is ours.
    #[arg(long)]
    pub(crate) stopped: bool,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_in_order() {
        Args::command().debug_assert();
        Own::command().debug_assert();
    }

    #[test]
    fn whoever_asks_for_help_sees_an_example() {
        for command in Args::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("\n  leasehold {} ", command.get_name())), "{}: {help}", command.get_name());
        }
    }
}
