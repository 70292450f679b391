//! `leasehold acl`: the rights that a user of the servers needs, as an ACL rule, and which of them a user lacks.

use std::process::ExitCode;

use clap::ValueEnum;
use leasehold::{
    Client,
    doctor::{RightsQuestion, ServerSaid, survey, survey_rights},
};

use crate::{
    args::Acl,
    connect::with,
    doctor::field,
    exit::{Ended, Exit},
    say::{print, tell},
};

/// A use of the servers that needs rights of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Feature {
    /// Plain locks, also over a quorum, with all that makes them fast.
    Locks,
    /// Fair locks, elections.
    Fair,
    /// Readers and a writer, permits.
    Shared,
    /// `leasehold ls` and `top`, `Client::list`.
    List,
    /// `leasehold doctor`.
    Doctor,
    /// A database number in the URL [added where it is needed].
    Database,
    /// A cluster [added where it is needed].
    Cluster,
    /// Replicas that confirm [added with --min-replicas].
    Replicas,
    /// A primary behind Sentinels [added where it is needed].
    Sentinel,
}

use Feature::{Cluster, Database, Doctor, Fair, List, Locks, Replicas, Sentinel, Shared};

/// The calls of an acquire, its renewals and its release.
const LOCK: &[&str] = &[
    "EVAL 0 0",
    "EVALSHA 0 0",
    "GET KEY",
    "GETRANGE KEY 0 0",
    "MGET KEY",
    "EXISTS OWN",
    "SET KEY 0",
    "DEL KEY",
    "PEXPIRE KEY 1",
    "PTTL KEY",
    "TIME",
];

/// Without these, waiters poll, connections have no name, and each refusal is a line in the `ACL LOG`.
const OPTIONAL: &[&str] = &[
    "CLIENT|ID",
    "CLIENT|CACHING YES",
    "CLIENT|TRACKING OFF",
    "SUBSCRIBE __redis__:invalidate",
    "PING",
    "PUBLISH leasehold:0 0",
    "CONFIG|GET maxmemory",
    "INFO",
    "CLIENT|SETNAME 0",
    NEW,
    "TYPE KEY",
    "ZCARD OWN",
];

/// The calls of the fair queue.
const QUEUE: &[&str] = &[
    "HGET OWN 0",
    "HSET OWN 0 0",
    "ZCARD OWN",
    "ZADD OWN 0 0",
    "ZRANGE OWN 0 0",
    "ZRANK OWN 0",
    "ZSCORE OWN 0",
    "ZREM OWN 0",
    "HLEN OWN",
    "HDEL OWN 0",
    "HRANDFIELD OWN",
];

const SHARERS: &[&str] = &["ZCOUNT OWN 0 0", "ZRANGEBYSCORE OWN 0 0", "PUBSUB|NUMSUB"];

/// The rights of a Sentinel's own user.
const OF_SENTINELS: &str = "+sentinel|master +sentinel|masters +sentinel|replicas +sentinel|sentinels +sentinel|myid \
                            +sentinel|get-master-addr-by-name +sentinel|ckquorum";

/// The channels of notifications: of the server's, and of this library's.
const CHANNELS: [&str; 2] = ["__redis__:invalidate", "leasehold:*"];

/// A subcommand that Redis 7.0 does not know. It refuses a whole rule that names it.
const NEW: &str = "CLIENT|SETINFO LIB-NAME 0";

impl Feature {
    /// A call of each command that the feature needs. KEY is the key of a lock, and OWN one that is beside it.
    fn calls(self) -> Vec<&'static str> {
        match self {
            Locks => [LOCK, OPTIONAL].concat(),
            Fair => QUEUE.into(),
            Shared => [QUEUE, SHARERS].concat(),
            List => [QUEUE, &["SCAN 0", "ZCOUNT OWN 0 0", "ZRANGEBYSCORE OWN 0 0"]].concat(),
            Doctor => vec!["SCAN 0", "DBSIZE", "MEMORY|USAGE OWN"],
            Database => vec!["SELECT 0"],
            Cluster => vec!["CLUSTER|SLOTS", "CLUSTER|NODES", "CLUSTER|INFO", "ASKING"],
            Replicas => vec!["WAIT 0 0"],
            Sentinel => vec!["ROLE"],
        }
    }
}

/// The name of a call's command in a rule, `get` or `client|id`.
fn command(call: &str) -> String {
    call.split(' ').next().unwrap_or(call).to_ascii_lowercase()
}

pub(crate) fn acl(options: &Acl) -> Result<ExitCode, Ended> {
    with(&options.servers, |client| async move {
        match &options.check {
            Some(user) => check(options, user, &client).await,
            None => print_rules(options, &client).await,
        }
    })
}

/// Prints the rule for the servers: one, unless they are of different versions.
async fn print_rules(options: &Acl, client: &Client) -> Result<ExitCode, Ended> {
    let (mut rules, mut exit) = (Vec::new(), ExitCode::SUCCESS);
    for (node, said) in survey(client).await? {
        match said {
            Ok(said) => {
                let rule = options.rule(&options.calls(&said));
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
            Err(error) => {
                tell(format_args!("{}: {error}", node.address()));
                exit = Exit::Unreachable.into();
            }
        }
    }
    if let [_, _, ..] = &*rules {
        tell("the servers are of different versions: each takes one of these lines");
    }
    for rule in &rules {
        print(rule)?;
    }
    if options.has_sentinels() {
        tell("on each Sentinel, if its own users have rights:");
        print(&format!("ACL SETUSER {} on >PASSWORD resetchannels -@all +ping {OF_SENTINELS}", options.user))?;
    }
    if !rules.is_empty() {
        tell("replace PASSWORD, and set it on every server, also on replicas: they do not copy users");
    }
    Ok(exit)
}

/// Tells what a user lacks, on each server.
async fn check(options: &Acl, user: &str, client: &Client) -> Result<ExitCode, Ended> {
    let mut each = Vec::new();
    for (node, said) in survey(client).await? {
        match said {
            Ok(said) => each.push(options.calls(&said)),
            Err(error) => tell(format_args!("{}: {error}", node.address())),
        }
    }
    // Only calls that all of them know can be tried.
    let [first, others @ ..] = &*each else { return Ok(Exit::Unreachable.into()) };
    let calls: Vec<&str> =
        first.iter().filter(|call| others.iter().all(|other| other.contains(call))).copied().collect();
    let question = RightsQuestion { user: user.into(), calls: calls.iter().map(|call| options.words(call)).collect() };
    let mut exit = ExitCode::SUCCESS;
    for (node, said) in survey_rights(client, question).await? {
        let refusals = said.map_err(|error| error.to_string()).and_then(|said| {
            said.refusals.unwrap_or_else(|| Err("it has no users".into())).map_err(|why| {
                format!("the rights of {user:?} cannot be read with ACL DRYRUN, which Redis has since 7.0: {why}")
            })
        });
        match refusals {
            Err(why) => {
                tell(format_args!("{}: {why}", node.address()));
                exit = Exit::Unreachable.into();
            }
            Ok(refusals) => {
                let lacks = options.lacking(&calls, &refusals);
                if lacks.is_empty() {
                    print(&format!("{}: {user} has every right", node.address()))?;
                } else {
                    print(&format!("{}: ACL SETUSER {} {}", node.address(), user, lacks.join(" ")))?;
                    if exit == ExitCode::SUCCESS {
                        exit = ExitCode::FAILURE;
                    }
                }
            }
        }
    }
    Ok(exit)
}

impl Acl {
    fn urls(&self) -> &[String] {
        let servers = &self.servers;
        if servers.quorum.is_empty() { servers.url.as_slice() } else { &servers.quorum }
    }

    fn has_sentinels(&self) -> bool {
        self.features.contains(&Sentinel) || self.urls().iter().any(|url| scheme(url).contains("sentinel"))
    }

    /// The calls of a lock, and of all features that were named or that this server needs.
    fn calls(&self, said: &ServerSaid) -> Vec<&'static str> {
        let info = &*said.info.text;
        let mut features = [&[Locks][..], &self.features].concat();
        let needed = [
            (Cluster, field(info, "cluster_enabled") == Some("1")),
            (Replicas, self.servers.min_replicas > 0),
            (Sentinel, self.has_sentinels()),
            (Database, self.urls().iter().any(|url| names_a_database(url))),
        ];
        features.extend(needed.into_iter().filter_map(|(feature, is_needed)| is_needed.then_some(feature)));
        let knows_new = field(info, "redis_version")
            .is_some_and(|version| !["7.0.", "7.1."].iter().any(|old| version.starts_with(old)));
        let mut calls: Vec<&str> = Vec::new();
        for call in features.into_iter().flat_map(Feature::calls) {
            if !calls.contains(&call) && (call != NEW || knows_new) {
                calls.push(call);
            }
        }
        calls
    }

    /// The patterns of a lock's key, and of those beside it. A rule has no quotes, and no sign of its own for spaces.
    fn patterns(&self) -> [String; 2] {
        let prefix = &self.servers.prefix;
        if prefix.is_empty() {
            return ["~*".into(), "~*".into()];
        }
        let escape = |sign: char| match sign {
            '*' | '?' | '[' | ']' | '\\' => vec!['\\', sign],
            '"' | '\'' => vec!['?'],
            sign if sign.is_whitespace() || sign.is_control() => vec!['?'],
            sign => vec![sign],
        };
        let prefix: String = prefix.chars().flat_map(escape).collect();
        [format!("~{prefix}*"), format!("~{{{prefix}*")]
    }

    fn rule(&self, calls: &[&str]) -> String {
        let [key, own] = self.patterns();
        let keys = if key == own { key } else { format!("{key} {own}") };
        let channels = CHANNELS.map(|channel| format!("&{channel}")).join(" ");
        let commands: Vec<_> = calls.iter().map(|call| format!("+{}", command(call))).collect();
        // The user may exist already.
        let begin = format!("ACL SETUSER {} on >PASSWORD resetkeys resetchannels", self.user);
        format!("{begin} {keys} {channels} -@all {}", commands.join(" "))
    }

    /// A call, with the keys of a lock under this prefix.
    fn words(&self, call: &str) -> Vec<String> {
        let prefix = &self.servers.prefix;
        let word = |word: &str| match word {
            "KEY" => format!("{prefix}job"),
            "OWN" => format!("{{{prefix}job}}:lh:fence"),
            word => word.into(),
        };
        call.split([' ', '|']).map(word).collect()
    }

    /// The words of a rule that a user lacks, whose calls are refused for these reasons. A server names the command
    /// first, so keys and channels of which it allows no command may be lacking too.
    fn lacking(&self, calls: &[&str], refusals: &[Option<String>]) -> Vec<String> {
        let [key, own] = self.patterns();
        let kinds = [
            (" KEY", key),
            (" OWN", own),
            (" __redis__", format!("&{}", CHANNELS[0])),
            (" leasehold:", format!("&{}", CHANNELS[1])),
        ];
        let is_command = |why: &Option<String>| why.as_ref().is_some_and(|why| why.contains("to run the"));
        let all: Vec<_> = calls.iter().zip(refusals).collect();
        let mut lacks: Vec<String> = Vec::new();
        for (sign, word) in kinds {
            let mut of_kind = all.iter().filter(|(call, _)| call.contains(sign)).map(|(_, why)| *why);
            let is_refused = of_kind.clone().any(|why| why.is_some() && !is_command(why));
            if (is_refused || of_kind.all(is_command)) && !lacks.contains(&word) {
                lacks.push(word);
            }
        }
        lacks.extend(all.iter().filter(|(_, why)| is_command(why)).map(|(call, _)| format!("+{}", command(call))));
        lacks
    }
}

fn scheme(url: &str) -> String {
    url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase()
}

/// Whether a URL ends with the number of a database other than 0.
fn names_a_database(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = rest.split(['?', '#']).next().unwrap_or(rest).rsplit_once('/').map(|(_, last)| last);
    path.is_some_and(|path| path.parse::<u32>().is_ok_and(|number| number > 0)) || url.contains("db=")
}
