//! The help and the manual pages of the commands, beyond their options.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use clap::Command;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

/// The width of help, in columns.
pub(crate) const WIDTH: usize = 80;

/// A section with a heading.
struct Section {
    title: &'static str,
    body: Body,
}

enum Body {
    Text(&'static str),
    /// Words, each with its meaning.
    Terms(&'static [(&'static str, &'static str)]),
    /// Lines to type.
    Lines(&'static [&'static str]),
}

use Body::{Lines, Terms, Text};

const fn section(title: &'static str, body: Body) -> Section {
    Section { title, body }
}

const DURATIONS: Section =
    section("Durations", Text("Seconds, or numbers with units: 30, 2.5s, 500ms, 10m, 1h30m, 1day, 1w."));

const TOOL: &[Section] = &[
    section(
        "Environment",
        Terms(&[
            ("LEASEHOLD_URL", "The server (--url)."),
            ("LEASEHOLD_URL_FILE", "A file with the server's URL (--url-file)."),
            ("LEASEHOLD_QUORUM", "Three or more servers (--quorum)."),
            ("LEASEHOLD_MAP", "Where announced servers are reached (--map)."),
            ("LEASEHOLD_MIN_REPLICAS", "How many replicas confirm a lock (--min-replicas)."),
            ("LEASEHOLD_PASSWORD_FILE", "A file with the server's password (--password-file)."),
            ("LEASEHOLD_CACERT", "A file with the server's authorities (--cacert)."),
            ("LEASEHOLD_CERT", "A file with our certificate (--cert)."),
            ("LEASEHOLD_KEY", "A file with its key (--key)."),
            ("LEASEHOLD_SNI", "The name in the server's certificate (--sni)."),
            ("LEASEHOLD_PREFIX", "Prefix of all lock names (--prefix)."),
            ("LEASEHOLD_CONNECT_TIMEOUT", "Longest time to connect (--connect-timeout)."),
            ("LEASEHOLD_RESTART_DELAY", "How long a restarted server is ignored (--restart-delay)."),
            ("LEASEHOLD_TTL", "Lock expiry (--ttl)."),
            ("LEASEHOLD_CONFIG", "The configuration file (--config)."),
            ("REDIS_URL", "The server, if neither an option, LEASEHOLD_* nor the file names one."),
            ("NO_COLOR", "Print nothing in bold."),
        ]),
    ),
    section(
        "Files",
        Terms(&[(
            "/etc/leasehold.conf",
            "Lines such as `url = redis://10.0.0.5`: every option that has an environment variable, by its long name. \
             An option overrides the environment, and the environment overrides the file.",
        )]),
    ),
    section(
        "Examples",
        Lines(&["leasehold run nightly-report ./report.sh", "leasehold ls", "leasehold doctor --url redis://10.0.0.5"]),
    ),
];

const RUN: &[Section] = &[
    DURATIONS,
    section(
        "Exit status",
        Terms(&[
            ("1", "The lock is held (-n), or was held for all of --wait. See -E."),
            ("64", "The command line or the configuration is wrong. Nothing was done."),
            ("69", "The server is away, or refuses us."),
            ("74", "A process could not be started."),
            (
                "75",
                "The lock was lost, --max-hold was over, or the command stalled. The command was stopped, or was never started, or had just ended.",
            ),
            ("126", "The command cannot be executed."),
            ("127", "The command was not found."),
            ("128+N", "Signal N ended the command."),
            ("other", "The command's own."),
        ]),
    ),
    section(
        "Environment of the command",
        Terms(&[
            ("LEASEHOLD_NAME", "The lock's name. Not set if there are several."),
            (
                "LEASEHOLD_FENCE",
                "The fencing token, the same for all who share the lock. Not set if there are several locks.",
            ),
            ("LEASEHOLD_FENCES", "A line `FENCE NAME` for each lock."),
            ("LEASEHOLD_LABEL", "The holder name."),
            (
                "LEASEHOLD_JOB",
                "Marks by which the job is found if this program, or a `leasehold run` around it, is killed.",
            ),
        ]),
    ),
    section(
        "Examples",
        Lines(&[
            "leasehold run nightly-report ./report.sh",
            "leasehold run -n backup pg_dump app           # skip if it runs elsewhere",
            "leasehold run -n --keep-for 50s hourly ./job  # each cron turn on one machine",
            "leasehold run --wait 10m migrate -- ./migrate up",
            "leasehold run -l db:users -l db:orders -- ./copy     # both, or neither",
            "leasehold run --shared index ./search         # beside others that read",
            "leasehold run --fair index ./rebuild          # beside nobody, in its turn",
            "leasehold run --permits 4 gpu ./infer         # at most four at a time",
        ]),
    ),
];

const HOLD: &[Section] = &[
    section(
        "Notes",
        Text(
            "When the lock is held, one line, `held FENCE`, is printed; with --lock, when all locks are held, a line `held \
             FENCE NAME` for each of them. It is released when standard input is closed, or by a \
             signal. Nobody stops the script when the lock is lost: it sees that `leasehold hold` has ended.",
        ),
    ),
    DURATIONS,
    section(
        "Exit status",
        Terms(&[
            ("0", "Standard input was closed, and the lock was released."),
            ("1", "The lock is held (-n), or was held for all of --wait. See -E."),
            ("64", "The command line or the configuration is wrong."),
            ("69", "The server is away, or refuses us."),
            ("74", "Standard input was closed before the lock was acquired, or output could not be written."),
            ("75", "The lock was lost, or --max-hold was over."),
            ("128+N", "Signal N ended it, and the lock was released."),
        ]),
    ),
    section(
        "Examples",
        Lines(&[
            "leasehold hold nightly              # until Ctrl-D",
            "leasehold hold -l users -l orders   # both, or neither",
            "",
            "# In a script of bash:",
            "coproc LOCK { exec leasehold hold -n nightly; }",
            "lock=$LOCK_PID release=${LOCK[1]}",
            "read -r held fence <&\"${LOCK[0]}\" || exit 0   # somebody else has it",
            "./step-one && kill -0 \"$lock\" && ./step-two   # only while it is held",
            "exec {release}>&-                             # releases it",
            "wait \"$lock\"                                  # 75 if it was lost",
        ]),
    ),
];

/// The exit codes of commands that only ask the servers.
const ASKS: Section = section(
    "Exit status",
    Terms(&[
        ("0", "Done."),
        ("64", "The command line or the configuration is wrong."),
        ("69", "The server is away, or refuses us."),
    ]),
);

const SHOW: &[Section] = &[
    section(
        "Exit status",
        Terms(&[
            ("0", "The lock is held."),
            ("1", "The lock is free."),
            ("64", "The command line or the configuration is wrong."),
            ("69", "The server is away, or refuses us."),
        ]),
    ),
    section(
        "Examples",
        Lines(&[
            "leasehold show nightly-report",
            "leasehold show --json nightly-report | jq .holder.label",
            "leasehold show --all gpu                      # each that shares it, not the first 20",
        ]),
    ),
];

const LS: &[Section] = &[
    section(
        "Columns",
        Terms(&[
            ("HELD", "How long the holder has held the lock: since the time of its fence, by this machine's clock."),
            ("HOLDER", "The holder's name, or how many share the lock."),
            (
                "TTL",
                "How long the key lives unless the holder renews it. For a shared lock: how long the last share lives.",
            ),
            ("WAITING", "Waiters in the fair queue. Unknown over a quorum."),
        ]),
    ),
    section("Notes", Text("A key that another library wrote is not listed: see `leasehold show`.")),
    ASKS,
    section("Examples", Lines(&["leasehold ls", "leasehold ls 'reports:*'", "leasehold ls --json | jq -r '.[].name'"])),
];

const TOP: &[Section] =
    &[ASKS, section("Examples", Lines(&["leasehold top", "leasehold top --interval 5s 'reports:*'"]))];

const OBSERVE: &[Section] = &[
    ASKS,
    section(
        "Output",
        Terms(&[
            ("led LABEL fence N", "LABEL holds the lock."),
            ("shared by COUNT fence N, the last for TIME", "COUNT holders share it; the last share lives for TIME."),
            ("vacant", "Nobody does."),
            ("unknown", "What was known has run out, and no server has answered since."),
        ]),
    ),
    section(
        "Environment of --exec",
        Terms(&[
            ("LEASEHOLD_STATE", "led, shared, vacant or unknown."),
            ("LEASEHOLD_LEADER", "The label of the holder."),
            ("LEASEHOLD_FENCE", "Its fencing token."),
        ]),
    ),
    section(
        "Exit status",
        Terms(&[
            ("0", "With --once: somebody holds it."),
            ("1", "With --once: nobody does."),
            ("2", "With --once: it is not known."),
            ("64", "The command line or the configuration is wrong."),
            ("69", "The server is away, or refuses us: at the start, or with --once."),
        ]),
    ),
    section(
        "Examples",
        Lines(&["leasehold observe scheduler", "leasehold observe --exec 'route-to \"$LEASEHOLD_LEADER\"' scheduler"]),
    ),
];

const DOCTOR: &[Section] = &[
    section(
        "Notes",
        Text(
            "A problem has to be solved. A note reports that the servers promise less: that is enough where a lock only saves work, and matters where \
             two holders at a time would do harm. The doctor reports each primary of a cluster by its address, and groups those \
             that are alike. It acquires and releases a lock of its own, NAME:doctor, to try \
             the rights of the user.",
        ),
    ),
    section(
        "Exit status",
        Terms(&[
            ("0", "No problem was found."),
            ("1", "There is a problem or, with --strict, a note."),
            ("69", "A server is away."),
        ]),
    ),
    section("Examples", Lines(&["leasehold doctor", "leasehold doctor --json --quorum redis://a,redis://b,redis://c"])),
];

const ACL: &[Section] = &[
    section(
        "Notes",
        Text(
            "It prints a command for an administrator. The servers' kind and version are taken into account: Redis 7.0 \
             refuses a whole rule with a subcommand that it does not know. The user of --url needs INFO and, for --check, \
             the right to ACL DRYRUN, which Redis has had since 7.0.",
        ),
    ),
    section(
        "Exit status",
        Terms(&[
            ("0", "The rule was printed; with --check, the user lacks nothing."),
            ("1", "With --check: the user lacks what is printed."),
            ("64", "The command line or the configuration is wrong."),
            ("69", "A server is away, or does not tell."),
        ]),
    ),
    section(
        "Examples",
        Lines(&[
            "leasehold acl --prefix jobs: --user worker",
            "leasehold acl --prefix jobs: --features locks,fair,shared",
            "leasehold acl --prefix jobs: --check worker",
        ]),
    ),
];

const RELEASE: &[Section] = &[
    section(
        "Notes",
        Text(
            "The holder is notified and must stop. Until it has stopped, two may run: see `leasehold show` first. \
             A lock that is shared is taken from all who share it. It asks first, unless you pass --yes.",
        ),
    ),
    section(
        "Exit status",
        Terms(&[
            ("0", "It was taken away, or was free."),
            ("1", "You said no."),
            ("64", "The command line or the configuration is wrong."),
            ("69", "The server is away, or refuses us."),
        ]),
    ),
    section(
        "Examples",
        Lines(&[
            "leasehold release --force nightly-report",
            "leasehold release --force --yes --reason 'its host is gone' nightly-report",
        ]),
    ),
];

const COMPLETIONS: &[Section] =
    &[section("Examples", Lines(&["leasehold completions bash >/etc/bash_completion.d/leasehold"]))];

const MAN: &[Section] = &[section(
    "Examples",
    Lines(&["leasehold man run | man -l -", "leasehold man --out-dir /usr/local/share/man/man1"]),
)];

/// The sections of the command of this name, or of the tool.
fn sections(command: &str) -> &'static [Section] {
    match command {
        "leasehold" => TOOL,
        "run" => RUN,
        "hold" => HOLD,
        "show" => SHOW,
        "ls" => LS,
        "top" => TOP,
        "observe" => OBSERVE,
        "doctor" => DOCTOR,
        "acl" => ACL,
        "release" => RELEASE,
        "completions" => COMPLETIONS,
        "man" => MAN,
        _ => &[],
    }
}

/// The help below a command's options.
pub(crate) fn help(command: &str) -> String {
    rendered(sections(command).iter())
}

/// The help below the options of `-h`: the examples.
pub(crate) fn short(command: &str) -> String {
    let examples = rendered(sections(command).iter().filter(|section| section.title == "Examples"));
    format!("{examples}\n\n--help shows the rest: further options, exit codes, formats.")
}

fn rendered(sections: impl Iterator<Item = &'static Section>) -> String {
    let section = |section: &Section| {
        let lines = match section.body {
            Text(text) => wrapped("", text),
            Terms(terms) => {
                let width = terms.iter().map(|(term, _)| term.len()).max().unwrap_or(0);
                terms.iter().flat_map(|(term, meaning)| wrapped(&format!("{term:width$}  "), meaning)).collect()
            }
            Lines(lines) => lines.iter().map(|line| (*line).to_owned()).collect(),
        };
        format!("{}:\n  {}", section.title, lines.join("\n  "))
    };
    sections.map(section).collect::<Vec<_>>().join("\n\n")
}

/// Wraps the text in lines that leave room for an indent of two. Each line begins behind the term.
fn wrapped(term: &str, text: &str) -> Vec<String> {
    let mut lines = vec![term.to_owned()];
    let mut begins = true;
    for word in text.split(' ') {
        let line = lines.last().map_or(0, String::len);
        if !begins && line + 1 + word.len() > WIDTH - 2 {
            lines.push(" ".repeat(term.len()));
            begins = true;
        }
        if let Some(line) = lines.last_mut() {
            if !begins {
                line.push(' ');
            }
            line.push_str(word);
        }
        begins = false;
    }
    lines
}

/// The page of a command of the built tool, or of the tool itself.
pub(crate) fn page(tool: &Command, command: &Command, to: &mut dyn Write) -> io::Result<()> {
    // The sections are rendered one by one, because ours have headings of their own.
    let man = Man::new(command.clone()).manual("leasehold").source(format!("leasehold {}", env!("CARGO_PKG_VERSION")));
    man.render_title(to)?;
    man.render_name_section(to)?;
    man.render_synopsis_section(to)?;
    man.render_description_section(to)?;
    man.render_options_section(to)?;
    let is_tool = command.get_name() == tool.get_name();
    if is_tool {
        man.render_subcommands_section(to)?;
    }
    let own = sections(command.get_name());
    for section in own {
        render(section, to)?;
    }
    if command.get_arguments().any(|option| option.get_long() == Some("config")) {
        for section in TOOL.iter().filter(|section| ["Environment", "Files"].contains(&section.title)) {
            render(section, to)?;
        }
    }
    let others = tool.get_subcommands().map(Command::get_name).filter(|&name| name != command.get_name());
    let mut pages: Vec<_> = others.filter(|&name| name != "help").map(|name| format!("leasehold-{name}(1)")).collect();
    if !is_tool {
        pages.insert(0, "leasehold(1)".to_owned());
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
    roff.to_writer(to)
}

fn render(section: &Section, to: &mut dyn Write) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [section.title.to_uppercase().as_str()]);
    match section.body {
        Text(text) => {
            roff.text([roman(text)]);
        }
        Terms(terms) => {
            for (term, meaning) in terms {
                roff.control("TP", []);
                roff.text([bold(*term)]);
                roff.text([roman(*meaning)]);
            }
        }
        Lines(lines) => {
            roff.control("nf", []);
            for line in lines {
                roff.text([roman(*line)]);
            }
            roff.control("fi", []);
        }
    }
    roff.to_writer(to)
}

/// Writes a page for each command of the built tool, and one for the tool itself.
pub(crate) fn write_all(tool: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let commands = tool.get_subcommands().filter(|command| command.get_name() != "help");
    for command in std::iter::once(tool).chain(commands) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let mut text = Vec::new();
        page(tool, command, &mut text)?;
        fs::write(directory.join(format!("{name}.1")), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_behind_its_term() {
        let lines = wrapped("term  ", &"word ".repeat(40));
        assert!(lines.len() > 2 && lines.iter().all(|line| line.len() <= WIDTH - 2), "{lines:?}");
        assert!(lines[0].starts_with("term  word") && lines[1].starts_with("      word"), "{lines:?}");
        assert_eq!(wrapped("", "a word"), ["a word"]);
    }
}
