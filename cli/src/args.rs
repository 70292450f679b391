//! The command line: its commands, their options and values.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{
    ArgMatches, Args as Part, Command, CommandFactory, Error, FromArgMatches, Parser, Subcommand, error::ErrorKind,
};

use crate::{
    acl::Feature,
    duration::{self, A_DAY, LONGEST_KEEP, brief, written},
    exit::Exit,
    pages,
    servers::Servers,
    settings::{self, refused},
};

/// Locks in Redis or Valkey for shell commands: held while they run.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, arg_required_else_help = true, max_term_width = pages::WIDTH)]
struct Line {
    #[command(subcommand)]
    task: Task,
}

/// Like `Line`, for `run` alone: building all commands and their options takes as long as the rest of the start.
#[derive(Debug, Parser)]
#[command(name = "leasehold")]
struct RunLine {
    #[command(subcommand)]
    _task: RunTask,
}

#[derive(Debug, Subcommand)]
enum RunTask {
    Run(Box<Run>),
}

/// A command line whose options go together.
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
        let is_run = words.get(1).is_some_and(|word| word == "run");
        // If `run` alone cannot parse it (an error, or a request for help), the full command line does, and reports it.
        let read = is_run.then(|| matches(RunLine::command, &words).ok()).flatten();
        let mut read = read.map_or_else(|| matches(Line::command, &words), Ok)?;
        let mut args = Self::from_arg_matches_mut(&mut read)?;
        match &mut args.task {
            Task::Run(run) => run.settle(&words)?,
            Task::Hold(hold) => hold.settle()?,
            _ => {}
        }
        Ok(args)
    }
}

impl CommandFactory for Args {
    fn command() -> Command {
        let with_pages = |task: Command| {
            let (short, long) = (pages::short(task.get_name()), pages::help(task.get_name()));
            task.after_help(short).after_long_help(long)
        };
        with_pages(Line::command()).mut_subcommands(with_pages)
    }

    fn command_for_update() -> Command {
        Self::command()
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut task = Line::from_arg_matches(matches)?.task;
        let needs_server = matches!(task, Task::Run(_) | Task::Hold(_) | Task::Release(_));
        if let (Some(servers), Some((_, said))) = (task.servers_mut(), matches.subcommand()) {
            servers.settle(said, needs_server)?;
        }
        match &task {
            Task::Run(run) => run.wanted.lease.check()?,
            Task::Hold(hold) => hold.wanted.lease.check()?,
            _ => {}
        }
        Ok(Self { task })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Reads the line, and the configuration file.
fn matches(tool: fn() -> Command, words: &[OsString]) -> Result<ArgMatches, Error> {
    let read = |tool| settings::without_empty_variables(tool).try_get_matches_from(words);
    // The help pages are built only when requested: filling them in takes as long as reading the line.
    let said = read(tool()).or_else(|error| if is_help(&error) { read(Args::command()) } else { Err(error) })?;
    // Only the line itself can name the configuration file.
    match settings::with_file(tool, &said)? {
        None => Ok(said),
        Some(tool) => read(tool),
    }
}

fn is_help(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Run a command under a lock, and stop it before the lock expires.
    Run(Box<Run>),
    /// Hold a lock for a script, until standard input is closed.
    Hold(Box<Hold>),
    /// Show who holds a lock, and who waits for it.
    Show(Show),
    /// List the held locks.
    Ls(Ls),
    /// Show the held locks, again and again.
    Top(Top),
    /// Tell who holds a lock, whenever that changes.
    Observe(Observe),
    /// Check what could go wrong with the servers, and say what to do.
    Doctor(Doctor),
    /// Print the rights that a user of the servers needs.
    Acl(Acl),
    /// Take a lock away from its holder.
    Release(Release),
    /// Print the completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print a manual page, or write all of them to files.
    Man(Man),
}

impl Task {
    fn servers_mut(&mut self) -> Option<&mut Servers> {
        match self {
            Self::Run(run) => Some(&mut run.wanted.servers),
            Self::Hold(hold) => Some(&mut hold.wanted.servers),
            Self::Show(show) => Some(&mut show.servers),
            Self::Ls(ls) => Some(&mut ls.servers),
            Self::Top(top) => Some(&mut top.servers),
            Self::Observe(observe) => Some(&mut observe.servers),
            Self::Doctor(doctor) => Some(&mut doctor.servers),
            Self::Acl(acl) => Some(&mut acl.servers),
            Self::Release(release) => Some(&mut release.servers),
            Self::Completions { .. } | Self::Man(_) => None,
        }
    }
}

/// How long to wait for a lock that is held.
#[derive(Debug, Clone, Part)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct Waiting {
    /// Do not wait for a held lock; exit silently.
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most this long [default: for ever].
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Exit code if the lock is held.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1)]
    pub(crate) conflict_exit_code: u8,
    /// First come, first served.
    #[arg(long)]
    pub(crate) fair: bool,
}

/// How a lock is held.
#[derive(Debug, Clone, Part)]
#[command(next_help_heading = "Holding")]
pub(crate) struct Held {
    /// Lock expiry if this process dies.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration::parse,
        default_value = "30s",
        env = "LEASEHOLD_TTL",
        hide_env_values = true
    )]
    pub(crate) ttl: Duration,
    /// Hold the lock at least this long, even if the work ends sooner. At most 31 days; with --quorum at most
    /// --restart-delay.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, hide_short_help = true)]
    pub(crate) keep_for: Option<Duration>,
    /// Acquire the lock at most once in this time, even if the work fails, or its machine dies. At most 31 days; with
    /// --restart-delay, at least a second less than that delay.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) once_per: Option<Duration>,
    /// Keep the lock this much longer if this process dies or loses it, at most an hour.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, hide_short_help = true)]
    pub(crate) lock_delay: Option<Duration>,
    /// End the work within this time, which is at least --ttl: `run` sends --signal earlier, by the length of --grace.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, hide_short_help = true)]
    pub(crate) max_hold: Option<Duration>,
    /// The `--stall-after` of `run`.
    #[arg(skip)]
    pub(crate) stall_after: Option<Duration>,
    /// Holder name shown to others [default: host:pid].
    #[arg(long, hide_short_help = true)]
    pub(crate) label: Option<String>,
    /// How long the server keeps the last fencing token of a released lock, at most a day [default: 1day].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, hide_short_help = true)]
    pub(crate) fence_memory: Option<Duration>,
    /// Share the lock with other commands that use --shared, to read what a command without --shared writes. First come, first
    /// served.
    #[arg(short, long, conflicts_with_all = ["permits", "take"])]
    pub(crate) shared: bool,
    /// Take one of N permits, which others share. First come, first served.
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,
    /// Take W of the N permits, all at once.
    #[arg(long, value_name = "W", requires = "permits")]
    pub(crate) take: Option<u32>,
}

impl Held {
    fn check(&self) -> Result<(), Error> {
        if let Some(memory) = self.fence_memory.filter(|memory| *memory > A_DAY) {
            return Err(refused(format_args!(
                "--fence-memory {} is too long: {} is the most",
                written(memory),
                written(A_DAY)
            )));
        }
        self.check_outliving()?;
        match self.max_hold {
            Some(max_hold) if max_hold < self.ttl => Err(refused(format_args!(
                "--max-hold {} is less than --ttl {}: give a shorter --ttl, or a longer --max-hold",
                written(max_hold),
                written(self.ttl)
            ))),
            _ => Ok(()),
        }
    }

    fn check_outliving(&self) -> Result<(), Error> {
        match (self.once_per, self.lock_delay) {
            (Some(interval), _) if interval.is_zero() => Err(refused("--once-per 0s is no time: leave it out")),
            (Some(interval), _) if interval > LONGEST_KEEP => Err(refused(format_args!(
                "--once-per {} is too long: {} is the most",
                written(interval),
                brief(LONGEST_KEEP)
            ))),
            (_, Some(delay)) if delay > AN_HOUR => Err(refused(format_args!(
                "--lock-delay {} is too long: {} is the most",
                written(delay),
                written(AN_HOUR)
            ))),
            _ => Ok(()),
        }
    }
}

/// The longest `--lock-delay`.
const AN_HOUR: Duration = Duration::from_secs(60 * 60);

/// Which lock, and how it is acquired and held.
#[derive(Debug, Clone, Part)]
pub(crate) struct LockArgs {
    /// The lock's name.
    #[arg(default_value = "", hide_default_value = true, required_unless_present = "locks")]
    pub(crate) name: String,
    /// Instead of NAME: one of several locks, all or none of which are acquired.
    #[arg(short, long = "lock", value_name = "NAME")]
    locks: Vec<String>,
    /// Report on standard error what happens.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) servers: Servers,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) lease: Held,
}

impl LockArgs {
    /// The name of each lock.
    pub(crate) fn names(&self) -> &[String] {
        if self.locks.is_empty() { std::slice::from_ref(&self.name) } else { &self.locks }
    }

    /// With `--lock`, joins the names into one for messages. Returns what was read as NAME.
    fn name_all(&mut self) -> Result<String, Error> {
        // The names are printed in lines.
        if let Some(name) = self.locks.iter().find(|name| name.contains('\n')) {
            return Err(refused(format_args!("--lock {name:?} has a line break: give it another name")));
        }
        Ok(std::mem::replace(&mut self.name, self.locks.join(",")))
    }
}

#[derive(Debug, Clone, Part)]
#[command(override_usage = "leasehold run [OPTIONS] <NAME> [--] <COMMAND> [ARGS]...\n       \
                      leasehold run [OPTIONS] --lock <NAME>... -- <COMMAND> [ARGS]...")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) wanted: LockArgs,
    #[command(flatten)]
    pub(crate) stopping: Stopping,
    /// Serve metrics for Prometheus under http://IP:PORT/metrics.
    #[arg(long, value_name = "IP:PORT", help_heading = "Metrics", hide_short_help = true)]
    pub(crate) metrics_addr: Option<std::net::SocketAddr>,
    /// Write the result to this file for the textfile collector of Prometheus.
    #[arg(long, value_name = "FILE", help_heading = "Metrics", hide_short_help = true)]
    pub(crate) metrics_file: Option<PathBuf>,
    /// The command and its arguments. Options of leasehold come before it.
    #[arg(trailing_var_arg = true, required_unless_present = "locks", value_name = "COMMAND", help_heading = None)]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// With `--lock` there is no NAME, so the word read as NAME is the first word of the command.
    fn settle(&mut self, words: &[OsString]) -> Result<(), Error> {
        self.stopping.check(&self.wanted.lease)?;
        self.wanted.lease.stall_after = self.stopping.stall_after;
        if self.wanted.locks.is_empty() {
            return Ok(());
        }
        let behind_dashes = words.iter().skip_while(|word| *word != "--").skip(1).count();
        if behind_dashes != self.command.len() + 1 {
            return Err(refused(
                "with --lock there is no NAME, and the command comes after --: leasehold run --lock a --lock b -- COMMAND",
            ));
        }
        let program = self.wanted.name_all()?;
        self.command.insert(0, program.into());
        Ok(())
    }
}

#[derive(Debug, Clone, Part)]
#[command(override_usage = "leasehold hold [OPTIONS] <NAME>\n       \
                      leasehold hold [OPTIONS] --lock <NAME>...")]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) wanted: LockArgs,
}

impl Hold {
    fn settle(&mut self) -> Result<(), Error> {
        if self.wanted.locks.is_empty() || self.wanted.name_all()?.is_empty() {
            return Ok(());
        }
        Err(refused("with --lock there is no NAME: leasehold hold --lock a --lock b"))
    }
}

/// How the command is stopped when the lease is about to end.
#[derive(Debug, Clone, Part)]
#[command(next_help_heading = "Stopping")]
pub(crate) struct Stopping {
    /// Signal sent to stop the command before the lock expires.
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = crate::signals::parse, hide_short_help = true)]
    pub(crate) signal: rustix::process::Signal,
    /// Time between --signal and SIGKILL [default: a third of --ttl, at most 10s].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// Stop a command that reports no progress for this long; it reports as services of systemd do.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) stall_after: Option<Duration>,
    /// Take a change of this file as progress instead.
    #[arg(long, value_name = "FILE", requires = "stall_after", hide_short_help = true)]
    pub(crate) progress_file: Option<PathBuf>,
    /// Exit code if the lock is lost, for a command that ends with 75 itself.
    #[arg(long, value_name = "CODE", default_value_t = Exit::Lost.code(), hide_short_help = true)]
    pub(crate) lost_exit_code: u8,
}

impl Stopping {
    fn check(&self, lease: &Held) -> Result<(), Error> {
        let Some(span) = self.stall_after else { return Ok(()) };
        if span < lease.ttl / 3 {
            return Err(refused(format_args!(
                "--stall-after {} is less than a third of --ttl {}: give a shorter --ttl, or a longer --stall-after",
                written(span),
                written(lease.ttl)
            )));
        }
        match lease.max_hold {
            Some(max_hold) if span > max_hold => Err(refused(format_args!(
                "--stall-after {} is longer than --max-hold {}, which ends the command first: leave one out",
                written(span),
                written(max_hold)
            ))),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Part)]
#[command(override_usage = "leasehold show [OPTIONS] <NAME>")]
pub(crate) struct Show {
    /// The lock's name.
    pub(crate) name: String,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show all who share it, not 20.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

#[derive(Debug, Clone, Part)]
pub(crate) struct Ls {
    /// Only names that match: *, ? and [a-z] are wildcards.
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only the names, one on each line.
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

#[derive(Debug, Clone, Part)]
pub(crate) struct Top {
    /// Only names that match: *, ? and [a-z] are wildcards.
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Time between two refreshes.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s")]
    pub(crate) interval: Duration,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

#[derive(Debug, Clone, Part)]
#[command(override_usage = "leasehold observe [OPTIONS] <NAME>")]
pub(crate) struct Observe {
    /// The lock's name.
    pub(crate) name: String,
    /// Print a JSON object for each change.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print who holds it now, and exit.
    #[arg(long)]
    pub(crate) once: bool,
    /// Run this in a shell at each change. Only one runs at a time; when it ends, the next runs for the newest state.
    #[arg(long, value_name = "COMMAND", conflicts_with = "once")]
    pub(crate) exec: Option<String>,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

#[derive(Debug, Clone, Part)]
pub(crate) struct Doctor {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit with 1 for notes too, not only for problems.
    #[arg(long)]
    pub(crate) strict: bool,
    /// A lock name that the user may use.
    #[arg(long, default_value = "leasehold")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

/// Accepts a name that a server can give to a user.
fn user(text: &str) -> Result<String, String> {
    let is_possible = !text.is_empty() && !text.chars().any(|sign| sign.is_whitespace() || "\"'\0".contains(sign));
    if is_possible { Ok(text.into()) } else { Err("a user's name has no spaces or quotes, and is not empty".into()) }
}

#[derive(Debug, Clone, Part)]
pub(crate) struct Acl {
    /// The features to use, besides plain locks.
    #[arg(long, value_enum, value_name = "FEATURE,...", value_delimiter = ',', default_value = "locks")]
    pub(crate) features: Vec<Feature>,
    /// The user's name.
    #[arg(long, default_value = "leasehold", conflicts_with = "check", value_parser = user)]
    pub(crate) user: String,
    /// Tell what this user lacks.
    #[arg(long, value_name = "USER")]
    pub(crate) check: Option<String>,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

#[derive(Debug, Clone, Part)]
#[command(override_usage = "leasehold release [OPTIONS] --force <NAME>")]
pub(crate) struct Release {
    /// The lock's name.
    pub(crate) name: String,
    /// Required: confirms that you take the lock from its holder.
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Why: the holder hears it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

#[derive(Debug, Clone, Part)]
pub(crate) struct Man {
    /// The page of this command [default: the page of leasehold itself].
    #[arg(conflicts_with = "out_dir")]
    pub(crate) command: Option<String>,
    /// Write one file for each command to this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out_dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_in_order() {
        Args::command().debug_assert();
    }

    #[test]
    fn run_alone_is_read_as_among_all_commands() {
        let lines: [&[&str]; 4] = [
            &["job", "true"],
            &["-nv", "-E", "0", "--ttl", "5s", "--max-hold=1m", "job", "--", "sh", "-c", "ls -l"],
            &["--wait", "2", "--signal", "INT", "--grace", "1s", "--keep-for", "50s", "job", "echo", "--help", "-n"],
            &["--quorum", "redis://a,redis://b,redis://c", "--metrics-file", "/tmp/file", "--fair", "job", "make"],
        ];
        for line in lines {
            let words: Vec<OsString> = ["leasehold", "run"].iter().chain(line).map(Into::into).collect();
            let task = |tool| {
                let mut read = matches(tool, &words).unwrap();
                (format!("{:?}", Line::from_arg_matches(&read).unwrap().task), read.remove_subcommand().unwrap().0)
            };
            assert_eq!(task(RunLine::command), task(Line::command), "{line:?}");
        }
    }

    #[test]
    fn every_help_has_an_example() {
        for command in Args::command().get_subcommands() {
            for help in [command.get_after_help(), command.get_after_long_help()] {
                let help = help.map(ToString::to_string).unwrap_or_default();
                assert!(
                    help.contains(&format!("\n  leasehold {} ", command.get_name())),
                    "{}: {help}",
                    command.get_name()
                );
            }
        }
    }
}
