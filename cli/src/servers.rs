//! Which servers the tool locks on.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgMatches, Args as Part, Error, parser::ValueSource};

use crate::{
    duration,
    settings::{FILE, refused},
};

/// Where the locks are. An option with a variable may also stand in the configuration file.
#[derive(Debug, Clone, Part)]
#[command(next_help_heading = "Server")]
pub(crate) struct Servers {
    /// The server: redis://, rediss://, redis-cluster://, redis-sentinel:// or unix://.
    #[arg(long, env = "LEASEHOLD_URL", hide_env_values = true, value_parser = url)]
    pub(crate) url: Option<String>,
    /// Read the URL from the first line of this file.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_URL_FILE", hide_env_values = true, hide_short_help = true)]
    pub(crate) url_file: Option<PathBuf>,
    /// Hold the lock on a majority of three or more independent servers.
    #[arg(
        long,
        value_name = "URL,...",
        value_delimiter = ',',
        value_parser = url,
        env = "LEASEHOLD_QUORUM",
        hide_env_values = true
    )]
    pub(crate) quorum: Vec<String>,
    /// Reach a server of a cluster, or one that Sentinels name, at another address than is announced.
    #[arg(long, value_name = "FROM=TO,...", value_delimiter = ',', value_parser = mapped, env = "LEASEHOLD_MAP", hide_env_values = true, hide_short_help = true)]
    pub(crate) map: Vec<(String, String)>,
    /// Have this many replicas confirm a lock before it counts, 0 to 9.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        env = "LEASEHOLD_MIN_REPLICAS",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub(crate) min_replicas: u8,
    /// Read the password from this file, for each connection anew.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_PASSWORD_FILE", hide_env_values = true, hide_short_help = true)]
    pub(crate) password_file: Option<PathBuf>,
    /// Trust the certificate authorities in this PEM file, and no others (rediss://).
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CACERT", hide_env_values = true, hide_short_help = true)]
    pub(crate) cacert: Option<PathBuf>,
    /// Client certificate in a PEM file (rediss://).
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CERT", hide_env_values = true, hide_short_help = true)]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key in a PEM file.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_KEY", hide_env_values = true, hide_short_help = true)]
    pub(crate) key: Option<PathBuf>,
    /// Name that the server's certificate has [default: the host].
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_SNI", hide_env_values = true, hide_short_help = true)]
    pub(crate) sni: Option<String>,
    /// Prefix of all lock names.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        env = "LEASEHOLD_PREFIX",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub(crate) prefix: String,
    /// Longest time to connect.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration::parse,
        default_value = "5s",
        env = "LEASEHOLD_CONNECT_TIMEOUT",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub(crate) connect_timeout: Duration,
    /// Ignore a server until it has been up this long. Use the same value, above every TTL, in all programs [default:
    /// 31s with --quorum].
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration::parse,
        env = "LEASEHOLD_RESTART_DELAY",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub(crate) restart_delay: Option<Duration>,
    /// The configuration file [default: /etc/leasehold.conf, if it exists].
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CONFIG", hide_env_values = true, hide_short_help = true)]
    pub(crate) config: Option<PathBuf>,
}

fn mapped(text: &str) -> Result<(String, String), String> {
    let (from, to) = text.split_once('=').ok_or("write it as FROM=TO, each host:port or host")?;
    Ok((from.into(), to.into()))
}

/// Accepts a URL of a server that other processes see.
pub(crate) fn url(text: &str) -> Result<String, String> {
    if text.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("memory:")) {
        return Err("such a lock is there for one process only: name a server, redis://, rediss://, redis-cluster://, redis-sentinel:// or unix://".into());
    }
    Ok(text.into())
}

/// Whether a URL names several servers. In a list for a quorum, such a URL was cut at the commas between them.
fn names_several(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    ["cluster", "sentinel"].iter().any(|kind| scheme.ends_with(kind))
}

/// The origin of a value. A later variant has precedence over an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    File,
    Environment,
    Line,
}

impl Servers {
    /// Decides which servers are meant: the command line has precedence over the environment, and that over the file.
    pub(crate) fn settle(&mut self, said: &ArgMatches, needs_server: bool) -> Result<(), Error> {
        match (&self.cert, &self.key) {
            (Some(_), None) => return Err(refused("--cert has no --key: name the file with its private key")),
            (None, Some(_)) => return Err(refused("--key has no --cert: name the file with its certificate")),
            _ => {}
        }
        let origin = |option| match said.value_source(option) {
            Some(ValueSource::CommandLine) => Some(Origin::Line),
            Some(ValueSource::EnvVariable) => Some(Origin::Environment),
            Some(_) => Some(Origin::File),
            None => None,
        };
        let origins = ["url", "url_file", "quorum"].map(origin);
        let highest = origins.into_iter().max().flatten();
        let [by_url, by_file, by_quorum] = origins.map(|origin| origin.is_some() && origin == highest);
        if [by_url, by_file, by_quorum].into_iter().filter(|&is_meant| is_meant).count() > 1 {
            return Err(refused("--url, --url-file and --quorum name different servers: give one of them"));
        }
        if !by_url {
            self.url = None;
        }
        if !by_quorum {
            self.quorum.clear();
        }
        // The message shows no URL, which may have a password.
        if self.quorum.iter().any(|url| names_several(url)) {
            return Err(refused(
                "--quorum names a cluster or Sentinels, whose replicas take over and may have forgotten a lock: a quorum is of \
                 stand-alone servers, redis://, rediss:// or unix://. Give a cluster or Sentinels to --url",
            ));
        }
        if let Some(file) = self.url_file.take().filter(|_| by_file) {
            self.url =
                Some(first_line(&file).map_err(|why| refused(format_args!("--url-file {}: {why}", file.display())))?);
        }
        if highest.is_none() {
            self.url = fallback()?;
        }
        if needs_server && !self.is_named() {
            return Err(refused(format_args!(
                "no server is named: give --url, or set LEASEHOLD_URL, or write `url = redis://HOST` to the file of --config, {FILE} by default"
            )));
        }
        Ok(())
    }

    /// Whether the servers were named.
    pub(crate) fn is_named(&self) -> bool {
        self.url.is_some() || !self.quorum.is_empty()
    }
}

fn first_line(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let line = text.lines().next().unwrap_or_default().trim();
    if line.is_empty() { Err("its first line is empty".into()) } else { url(line) }
}

/// The server of other programs, used if no server is named for this tool.
fn fallback() -> Result<Option<String>, Error> {
    let Some(value) = env::var_os("REDIS_URL").filter(|value| !value.is_empty()) else { return Ok(None) };
    let value = value.into_string().map_err(|_| refused("REDIS_URL is not UTF-8"))?;
    url(&value).map(Some).map_err(|why| refused(format_args!("REDIS_URL is {value:?}: {why}")))
}
