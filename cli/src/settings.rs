//! Settings beside the command line: the environment, and a file for all programs of a machine.

use std::{
    collections::BTreeMap,
    env,
    error::Error as _,
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command, Error, builder::Resettable, error::ErrorKind};

/// The configuration file that is read, if it exists, unless another is named.
pub(crate) const FILE: &str = "/etc/leasehold.conf";

/// The tool, made to ignore empty environment variables.
pub(crate) fn without_empty_variables(tool: Command) -> Command {
    let is_empty = |option: &Arg| option.get_env().and_then(env::var_os).is_some_and(|value| value.is_empty());
    for_each_option(tool, |option| if is_empty(&option) { option.env(Resettable::Reset) } else { option })
}

/// The tool with the configuration file's values as defaults; `None` without a file. The command line may name the
/// file.
pub(crate) fn with_file(tool: impl FnOnce() -> Command, said: &ArgMatches) -> Result<Option<Command>, Error> {
    let Some(named) = said.subcommand().and_then(|(_, said)| said.try_get_one::<PathBuf>("config").ok()) else {
        return Ok(None);
    };
    let file = named.map_or(Path::new(FILE), PathBuf::as_path);
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(format_args!("cannot read {}: {error}", file.display()))),
    };
    let tool = tool();
    let settings =
        read(&tool, &text).map_err(|(line, why)| refused(format_args!("{}, line {line}: {why}", file.display())))?;
    Ok(Some(for_each_option(tool, |option| match option.get_long().and_then(|name| settings.get(name)) {
        Some(value) => option.default_value(value.clone()),
        None => option,
    })))
}

fn for_each_option(tool: Command, change: impl Fn(Arg) -> Arg) -> Command {
    tool.mut_subcommands(|task| task.mut_args(&change))
}

/// Parses lines `name = value`. The error is the first wrong line, and why. A name is that of an option with a
/// variable.
fn read(tool: &Command, text: &str) -> Result<BTreeMap<String, String>, (usize, String)> {
    let options = || tool.get_subcommands().flat_map(Command::get_arguments).filter(|option| is_setting(option));
    let mut settings = BTreeMap::new();
    // Some editors begin a file with a byte-order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (name, value) =
            text.split_once('=').ok_or_else(|| (line, "write a setting as `name = value`".to_owned()))?;
        let (name, value) = (name.trim(), unquoted(value.trim()));
        let option = options().find(|option| option.get_long() == Some(name)).ok_or_else(|| {
            let mut names: Vec<_> = options().filter_map(Arg::get_long).collect();
            names.sort_unstable();
            names.dedup();
            // A line that is only a URL may have its password before an `=`, and cron mails what we print.
            let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
            let unknown = if is_word { format!("there is no setting {name:?}") } else { "this is no setting".into() };
            (line, format!("{unknown}: the settings are {}", names.join(", ")))
        })?;
        accepts(option, value).map_err(|why| (line, format!("{name}: {why}")))?;
        if settings.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err((line, format!("{name} is set twice")));
        }
    }
    Ok(settings)
}

fn is_setting(option: &Arg) -> bool {
    option.get_env().is_some() && option.get_long() != Some("config")
}

/// The text between quotation marks; else the text before a comment.
fn unquoted(value: &str) -> &str {
    for mark in ['"', '\''] {
        if let Some((quoted, _comment)) = value.strip_prefix(mark).and_then(|value| value.split_once(mark)) {
            return quoted;
        }
    }
    let comment = [" #", "\t#"].into_iter().filter_map(|mark| value.find(mark)).min();
    comment.and_then(|at| value.get(..at)).unwrap_or(value).trim_end()
}

/// Whether the option takes this value, as it does on the command line.
fn accepts(option: &Arg, value: &str) -> Result<(), String> {
    let line = Command::new("leasehold").no_binary_name(true).arg(option.clone().env(Resettable::Reset));
    let option = option.get_long().unwrap_or_default();
    let parsed = line.try_get_matches_from([format!("--{option}={value}")]);
    parsed.map(drop).map_err(|error| error.source().map_or_else(|| error.kind().to_string(), ToString::to_string))
}

/// An error about options that do not go together, or a value that is not allowed.
pub(crate) fn refused(why: impl std::fmt::Display) -> Error {
    Error::raw(ErrorKind::ValueValidation, format!("{why}\n"))
}
