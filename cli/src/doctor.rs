//! `leasehold doctor`: what could go wrong with the servers, and what to do about it.

use std::{process::ExitCode, time::Duration};

use leasehold::{
    Capabilities, ClusterFacts, Deployment, Error, Leases, NodeAnswer, Notifications, Released, SentinelFacts,
    SystemClock, Vote, Votes,
};
use serde_json::{Value, json};

use crate::{
    args::Doctor,
    connect::block_on,
    exit::{Ended, Exit},
    say::{print, shown},
    servers::Servers,
};

/// The oldest server that has what the scripts need.
const OLDEST: (u32, u32) = (6, 2);

/// The share of the memory, in percent, from which floors of fences are worth a note.
const MUCH: u8 = 50;

/// By how much the clocks of a quorum may differ, in microseconds: what a lease of the usual TTL of 30 s allows for.
const CLOCKS_DIFFER: u64 = 302_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    /// A weaker promise, which may be enough: one holder at a time is not certain.
    Note,
    /// Something has to be done.
    Problem,
}

/// The result of one check, and the advice for it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// The subject of the check: a stable word for programs.
    check: &'static str,
    level: Level,
    what: String,
    advice: &'static str,
}

fn ok(check: &'static str, what: impl Into<String>) -> Finding {
    Finding { check, level: Level::Ok, what: what.into(), advice: "" }
}

fn note(check: &'static str, what: impl Into<String>, advice: &'static str) -> Finding {
    Finding { check, level: Level::Note, what: what.into(), advice }
}

fn problem(check: &'static str, what: impl Into<String>, advice: &'static str) -> Finding {
    Finding { check, level: Level::Problem, what: what.into(), advice }
}

/// The findings about one server, or about a lock.
struct Section {
    place: String,
    findings: Vec<Finding>,
}

/// Words of an error's text that name its cause, and the advice for it. One cause has one advice everywhere.
const CAUSES: [(&str, &str); 14] = [
    ("is a replica", "name its primary in the URL"),
    ("READONLY", "name its primary in the URL"),
    ("MASTERDOWN", "name its primary in the URL"),
    ("is a Sentinel", "write redis-sentinel://HOST/SERVICE: SENTINEL MASTERS lists the services"),
    ("is no Sentinel", "write redis://, or redis-cluster:// for a part of a cluster"),
    ("does not watch", "name one of the services that it watches"),
    ("not part of a cluster", "write redis://"),
    ("part of a cluster", "name a stand-alone server, or write redis-cluster://"),
    ("CLUSTERDOWN", "see to the servers that the cluster lacks"),
    ("OOM", "raise the server's maxmemory, or free some of its memory"),
    ("LOADING", "ask again when it has loaded its data"),
    ("MISCONF", "see to the server's disk: it cannot save its data"),
    ("NOREPLICAS", "see to the server's replicas, or to its min-replicas-to-write"),
    ("SSL_CERT_FILE", "name a PEM file with the certificate of the server's authority in SSL_CERT_FILE"),
];

/// The advice for the text of an error, unless its cause is none of these.
fn advice_for(text: &str) -> Option<&'static str> {
    CAUSES.iter().find(|(words, _)| text.contains(words)).map(|(_, advice)| *advice)
}

pub(crate) fn doctor(options: &Doctor) -> Result<ExitCode, Ended> {
    options.servers.tell_a_guess();
    let (sections, all_there) = block_on(examine(options))?;
    let levels = || sections.iter().flat_map(|section| &section.findings).map(|finding| finding.level);
    if options.json {
        print(&Value::from(sections.iter().flat_map(as_json).collect::<Vec<_>>()).to_string())?;
    } else {
        for section in &sections {
            print(&section.place)?;
            for finding in &section.findings {
                print(&format!("  {:<8} {}", word(finding.level), shown(&finding.what)))?;
                if !finding.advice.is_empty() {
                    print(&format!("  {:<8} {}", "", finding.advice))?;
                }
            }
        }
    }
    Ok(if !all_there {
        Exit::Unreachable.into()
    } else if levels().any(|level| level == Level::Problem || options.strict && level == Level::Note) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Problem => "problem",
    }
}

fn as_json(section: &Section) -> Vec<Value> {
    let finding = |finding: &Finding| {
        let advice = Some(finding.advice).filter(|advice| !advice.is_empty());
        json!({ "place": section.place, "check": finding.check, "level": word(finding.level), "what": finding.what, "advice": advice })
    };
    section.findings.iter().map(finding).collect()
}

/// Examines each server by itself, then a lock on all of them. Also returns whether all were reachable.
async fn examine(options: &Doctor) -> Result<(Vec<Section>, bool), Ended> {
    let servers = &options.servers;
    let is_quorum = !servers.quorum.is_empty();
    let waits_after_restart = servers.delay().is_some_and(|delay| !delay.is_zero());
    // Report wrong settings as such, before any server is asked.
    drop(servers.builder().build_lazy()?);
    let urls = if is_quorum { servers.quorum.clone() } else { vec![servers.url().to_owned()] };
    let (mut sections, mut all_there) = (Vec::new(), true);
    for (at, url) in urls.into_iter().enumerate() {
        let alone = Servers { url: Some(url), quorum: Vec::new(), restart_delay: servers.delay(), ..servers.clone() };
        let mut place = if is_quorum { format!("server {}", at + 1) } else { "the server".to_owned() };
        // In a quorum, the other servers would hide one that grants nothing, and then none is to spare.
        let findings = match look(&alone, is_quorum.then_some(&*options.name)).await {
            Ok((address, capabilities, vote)) => {
                place = address;
                let mut findings = judge(&capabilities, is_quorum, waits_after_restart);
                findings.extend(vote);
                findings
            }
            Err(error) => {
                all_there = false;
                let usual = if error.is_transient() { "start it, or correct its URL" } else { "correct its URL" };
                vec![problem("server", error.to_string(), advice_for(&error.to_string()).unwrap_or(usual))]
            }
        };
        sections.push(Section { place, findings });
    }
    if !is_quorum && !all_there {
        return Ok((sections, false));
    }
    let findings = match servers.builder().build().await {
        Ok(leases) => {
            let findings = try_out(&leases, &options.name, is_quorum).await;
            leases.close().await;
            findings?
        }
        Err(error) => {
            all_there = false;
            let usual = match error {
                Error::Config(_) => "correct the URLs",
                _ if is_quorum => "a majority of the servers must be there",
                _ => "ask again",
            };
            vec![problem("lock", error.to_string(), advice_for(&error.to_string()).unwrap_or(usual))]
        }
    };
    sections.push(Section { place: "a lock".into(), findings });
    Ok((sections, all_there))
}

/// A server's address and capabilities. Given a name, also the reason if it grants no lock for that name.
async fn look(
    servers: &Servers,
    name: Option<&str>,
) -> Result<(String, Capabilities, Option<Finding>), leasehold::Error> {
    let leases = servers.builder().build().await?;
    let address = leases.nodes().first().map(|node| node.address().to_owned()).unwrap_or_default();
    let capabilities = leases.capabilities().await;
    let vote = match name {
        Some(name) => vote(&leases, name).await,
        None => None,
    };
    leases.close().await;
    Ok((address, capabilities?, vote))
}

async fn vote(leases: &Leases, name: &str) -> Option<Finding> {
    let why = match leases.lock(format!("{name}:doctor")).try_acquire().await {
        Ok(Some(lease)) => match lease.release().await {
            Ok(Released::Unconfirmed(why)) => why.to_string(),
            Ok(_) => return None,
            Err(error) => error.to_string(),
        },
        Ok(None) => return None,
        Err(error) => error.to_string(),
    };
    let advice = advice_for(&why).unwrap_or("a quorum goes on without it, with one less to spare");
    Some(problem("vote", format!("it grants no lock: {why}"), advice))
}

/// Judges a server by its capabilities. A wait after each restart makes up for locks that it may have forgotten.
fn judge(server: &Capabilities, is_quorum: bool, waits_after_restart: bool) -> Vec<Finding> {
    let mut findings = vec![
        version(server.server()),
        match server.eviction() {
            None => note("eviction", "it does not tell its maxmemory-policy", "see to it that it is noeviction"),
            Some(policy) => eviction(policy, is_quorum),
        },
        persistence(server.append_only(), server.append_fsync(), is_quorum, waits_after_restart),
    ];
    findings.extend(match server.deployment() {
        Deployment::Cluster(cluster) => judge_cluster(cluster),
        Deployment::Sentinel(sentinel) => judge_sentinels(sentinel),
        _ => Vec::new(),
    });
    if let Some(share @ MUCH..) = server.floors_percent() {
        findings.push(note(
            "floors",
            format!("about {share} % of its memory are floors of fences, one for each name of the last 24 hours"),
            "run --fence-memory 1h, or less: leasehold run --help",
        ));
    }
    match (server.role(), server.replicas()) {
        (Some("slave"), _) => {
            findings.push(problem("replicas", "it is a replica, and takes no writes", "name its primary"));
        }
        (_, Some(replicas @ 1..)) => findings.push(note(
            "replicas",
            format!("{replicas} replicating: one that takes over may not have heard of a lock"),
            "where that matters, let the resource check the fence, or use --quorum",
        )),
        _ => {}
    }
    findings.push(match server.notifications() {
        Notifications::On => {
            ok("notifications", "the server notifies of changes: waiters and holders hear of them at once")
        }
        Notifications::Refused(reason) => note(
            "notifications",
            format!(
                "the server does not notify of changes ({reason}): waiters poll, and holders hear by the next renewal"
            ),
            "allow our user client and subscribe",
        ),
        _ => note("notifications", "the server has not said in time whether it notifies of changes", ""),
    });
    if !server.notifies_waiters() {
        findings.push(note(
            "notifications",
            "the server cannot notify fair waiters: they poll",
            "allow our user subscribe, and all channels",
        ));
    }
    findings
}

/// The slots of a cluster.
const SLOTS: u16 = 16_384;

/// After a failover of so long a lease of the usual TTL of 30 s has been renewed once more, at a third of it: the node
/// time-out, and some seconds for the election.
const SLOW_FAILOVER: Duration = Duration::from_secs(15);

fn judge_cluster(cluster: &ClusterFacts) -> Vec<Finding> {
    let ClusterFacts { primaries, slots, moving, requires_all_slots, node_timeout, .. } = cluster;
    let mut findings = vec![if *slots == SLOTS {
        ok("cluster", format!("{primaries} primaries serve all slots"))
    } else {
        let without = SLOTS - slots;
        problem(
            "cluster",
            format!("{without} slots have no primary: their locks cannot be acquired"),
            "give them to one: redis-cli --cluster fix",
        )
    }];
    if *requires_all_slots == Some(true) {
        findings.push(note(
            "coverage",
            "one slot without a primary stops all the others (cluster-require-full-coverage yes)",
            "CONFIG SET cluster-require-full-coverage no on each server, then CONFIG REWRITE",
        ));
    }
    if let Some([slot, ..]) = moving.first_chunk::<1>() {
        findings.push(note(
            "moving",
            format!("{} slots are being moved, such as {slot}: fair locks there wait", moving.len()),
            "finish that, or redis-cli --cluster fix; a move that is given up forgets the keys that have gone",
        ));
    }
    if let Some(timeout) = node_timeout.filter(|timeout| *timeout >= SLOW_FAILOVER) {
        findings.push(note(
            "failover",
            format!("a dead primary is noticed after {timeout:?} (cluster-node-timeout): leases of the usual TTL may not last"),
            "a longer TTL, or a shorter cluster-node-timeout on each server",
        ));
    }
    findings
}

fn judge_sentinels(SentinelFacts { service, names, .. }: &SentinelFacts) -> Vec<Finding> {
    let silent: Vec<&str> = names.iter().filter(|(_, named)| named.is_none()).map(|(at, _)| &**at).collect();
    let mut named: Vec<&str> = names.iter().filter_map(|(_, named)| named.as_deref()).collect();
    named.sort_unstable();
    named.dedup();
    let mut findings = Vec::new();
    if named.len() > 1 {
        findings.push(problem(
            "sentinels",
            format!("they name different primaries of {service:?}: {}", named.join(", ")),
            "ask again in some seconds; then see to the one that is behind: SENTINEL RESET",
        ));
    }
    if !silent.is_empty() {
        findings.push(note(
            "sentinels",
            format!("{} of {} do not answer: {}", silent.len(), names.len(), silent.join(", ")),
            "start them: a failover needs more than half of them",
        ));
    }
    if findings.is_empty() {
        findings.push(ok("sentinels", format!("{} Sentinels name one primary of {service:?}", names.len())));
    }
    findings
}

/// Judges what the server does with locks when its memory is full.
fn eviction(policy: &str, is_quorum: bool) -> Finding {
    const ADVICE: &str = "CONFIG SET maxmemory-policy noeviction, then CONFIG REWRITE";
    match policy {
        "noeviction" => ok("eviction", "maxmemory-policy noeviction"),
        "allkeys-lru" | "volatile-lru" | "allkeys-lfu" | "volatile-lfu" if !is_quorum => note(
            "eviction",
            format!("maxmemory-policy {policy}: floors of fences go first, and a lock that is held may go too"),
            ADVICE,
        ),
        _ => problem(
            "eviction",
            format!("maxmemory-policy {policy}: when memory is full it evicts locks that are held"),
            ADVICE,
        ),
    }
}

/// Judges what a crash may make the server forget.
fn persistence(
    append_only: Option<bool>,
    append_fsync: Option<&str>,
    is_quorum: bool,
    waits_after_restart: bool,
) -> Finding {
    match (append_only, append_fsync) {
        (None, _) => note(
            "persistence",
            "it does not tell whether it keeps an append-only file",
            "a server that forgets its locks in a restart needs --restart-delay 31s, a second more than the longest TTL",
        ),
        (Some(true), Some("always")) => {
            ok("persistence", "every write is on disk before it is answered (appendfsync always)")
        }
        (Some(true), _) if waits_after_restart => ok("persistence", "append-only file, and a delay after each restart"),
        (Some(false), _) if waits_after_restart => {
            ok("persistence", "no append-only file, but a delay after each restart")
        }
        (Some(_), _) if is_quorum => problem(
            "persistence",
            "a crash may forget locks, and --restart-delay 0 has it vote at once",
            "CONFIG SET appendonly yes and CONFIG SET appendfsync always, then CONFIG REWRITE (a restart with the settings \
             alone starts empty); or leave --restart-delay out",
        ),
        (Some(true), fsync) => note(
            "persistence",
            format!("appendfsync {}: a crash may forget the locks of the last moment", fsync.unwrap_or("not told")),
            "CONFIG SET appendfsync always, then CONFIG REWRITE, makes up for that; or --restart-delay 31s in every \
             program: a second more than the longest TTL",
        ),
        // The default of a server, and enough for a lock that only saves work.
        (Some(false), _) => note(
            "persistence",
            "no append-only file: a restart forgets who holds what",
            "CONFIG SET appendonly yes, then CONFIG REWRITE (a restart with the setting alone starts empty); or \
             --restart-delay 31s in every program: a second more than the longest TTL",
        ),
    }
}

fn version(server: Option<&str>) -> Finding {
    let Some(server) = server else {
        return note("version", "it does not tell its version", "it must be Redis 6.2 or later");
    };
    let mut numbers = server.rsplit(' ').next().unwrap_or_default().split('.').map(|number| number.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST => {
            problem("version", format!("{server} is too old"), "use Redis 6.2 or later, or Valkey")
        }
        _ => ok("version", server),
    }
}

/// Acquires, renews and releases a lock, as `run` would.
async fn try_out(leases: &Leases, name: &str, is_quorum: bool) -> Result<Vec<Finding>, Ended> {
    const RIGHTS: &str = "give our user the right that is named there, for these keys";
    const SLOW: &str = "find out why the servers, or the way to them, are slow or away, and ask again";
    let advice = |passes: bool| if passes { SLOW } else { RIGHTS };
    let lock = leases.lock(format!("{name}:doctor"));
    let mut misplaced = Vec::new();
    for name in [name, lock.name()] {
        // The lock below reports any error.
        if let Ok(Some(holder)) = leases.lock(name).holder().await {
            misplaced.extend(judge_key(name, holder.not_a_lock()));
        }
    }
    let began = SystemClock.now();
    let lease = match lock.try_acquire().await {
        Ok(Some(lease)) => lease,
        Ok(None) => {
            if misplaced.is_empty() {
                let held = format!("{:?} is held: another doctor is at work", lock.name());
                misplaced.push(note("lock", held, "ask again"));
            }
            return Ok(misplaced);
        }
        Err(error @ Error::Config(_)) => return Err(error.into()),
        Err(error) => {
            let usual = if is_too_early(&error) { "wait for that long" } else { advice(error.is_transient()) };
            let advice = advice_for(&error.to_string()).unwrap_or(usual);
            return Ok(vec![problem("lock", format!("it cannot be acquired: {error}"), advice)]);
        }
    };
    let listed = leases.list(lock.name()).await;
    let renewed = lease.renew().await.map_err(|error| {
        problem("lock", format!("it cannot be renewed: {error}"), advice(matches!(error, Error::Lost(_))))
    });
    let unreleased = match lease.release().await {
        Ok(Released::Unconfirmed(why)) => Some((why.to_string(), advice(false))),
        Ok(_) => None,
        Err(error) => Some((error.to_string(), advice(matches!(error, Error::Lost(_))))),
    };
    let unreleased = unreleased.map(|(why, advice)| problem("lock", format!("it cannot be released: {why}"), advice));
    let mut findings: Vec<_> = renewed.err().into_iter().chain(unreleased).collect();
    let works = findings.is_empty();
    findings.extend(misplaced);
    if works {
        findings.push(ok(
            "lock",
            format!("acquired, renewed and released within {:.1?}", SystemClock.now().saturating_sub(began)),
        ));
    }
    if let Err(error) = lock.holder().await {
        findings.push(problem(
            "lock",
            format!("its holder cannot be asked for: {error}"),
            advice(error.is_transient()),
        ));
    }
    match listed {
        Ok(locks) if locks.is_empty() => {
            findings.push(note(
                "lock",
                "ls and top will not see all locks",
                "allow our user to read all keys: getrange",
            ));
        }
        Ok(_) => {}
        Err(error) => findings.push(note("lock", format!("ls and top will not work: {error}"), RIGHTS)),
    }
    if !is_quorum {
        match lock.clone().fair(true).try_acquire().await {
            Ok(Some(lease)) => drop(lease.release().await),
            Ok(None) => {}
            Err(error) => {
                findings.push(note("lock", format!("it cannot be fair: {error}"), advice(error.is_transient())));
            }
        }
    }
    findings.extend(clocks(leases));
    Ok(findings)
}

/// A problem if the key under a lock's name is no lock.
fn judge_key(name: &str, not_a_lock: Option<&str>) -> Option<Finding> {
    let what = format!("{name:?} holds a {}, which is no lock: nobody releases it", not_a_lock?);
    Some(problem("name", what, "give the lock another name or a --prefix, or delete the key"))
}

/// Whether servers grant nothing because they have just started.
fn is_too_early(error: &Error) -> bool {
    let mut answers = error.votes().into_iter().flat_map(Votes::nodes).map(Vote::answer);
    answers.any(|answer| matches!(answer, NodeAnswer::Recovering { .. }))
}

/// Whether the clocks of the servers agree, as far as the clocks are known.
fn clocks(leases: &Leases) -> Option<Finding> {
    let nodes = leases.nodes();
    let offsets: Vec<i64> = nodes.iter().filter_map(leasehold::NodeStatus::clock_offset_micros).collect();
    let (least, most) = (offsets.iter().min()?, offsets.iter().max()?);
    (offsets.len() > 1).then(|| judge_clocks(offsets.len(), most.abs_diff(*least)))
}

fn judge_clocks(clocks: usize, micros: u64) -> Finding {
    let apart = format!("{:.1} ms", Duration::from_micros(micros).as_secs_f64() * 1e3);
    if micros > CLOCKS_DIFFER {
        return problem(
            "clocks",
            format!("the clocks of {clocks} servers are {apart} apart, more than leases allow for"),
            "have them synchronised (NTP)",
        );
    }
    ok("clocks", format!("the clocks of {clocks} servers are within {apart}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_version(text in "(redis |valkey )?[0-9.]{0,30}|.*") {
            let _level = version(Some(&text)).level;
        }
    }

    fn level(finding: &Finding) -> Level {
        finding.level
    }

    #[test]
    fn an_old_server_is_a_problem_and_an_unknown_one_is_not() {
        for (server, expected) in [
            (Some("redis 6.0.16"), Level::Problem),
            (Some("redis 5.0.7"), Level::Problem),
            (Some("redis 6.2.0"), Level::Ok),
            (Some("redis 7.0.15"), Level::Ok),
            (Some("valkey 9.1.2"), Level::Ok),
            (Some("another"), Level::Ok),
            (None, Level::Note),
        ] {
            assert_eq!(level(&version(server)), expected, "{server:?}");
        }
    }

    #[test]
    fn what_tells_nothing_is_no_problem() {
        let findings = judge(&Capabilities::default(), false, false);
        assert!(findings.len() >= 5 && findings.iter().all(|finding| finding.level == Level::Note), "{findings:?}");
    }

    #[test]
    fn a_delay_after_restarts_makes_up_for_what_a_crash_forgets() {
        use Level::{Note, Ok, Problem};
        let levels = |append_only, fsync| {
            [(false, false), (false, true), (true, false), (true, true)]
                .map(|(is_quorum, waits)| level(&persistence(append_only, fsync, is_quorum, waits)))
        };
        assert_eq!(levels(Some(false), Some("everysec")), [Note, Ok, Problem, Ok]);
        assert_eq!(levels(Some(false), Some("always")), [Note, Ok, Problem, Ok]);
        assert_eq!(levels(Some(true), Some("everysec")), [Note, Ok, Problem, Ok]);
        assert_eq!(levels(Some(true), None), [Note, Ok, Problem, Ok]);
        assert_eq!(levels(Some(true), Some("always")), [Ok; 4]);
        assert_eq!(levels(None, None), [Note; 4]);
    }

    #[test]
    fn clocks_may_differ_by_what_leases_allow_for() {
        assert_eq!(level(&judge_clocks(3, 302_000)), Level::Ok);
        assert_eq!(level(&judge_clocks(3, 302_001)), Level::Problem);
    }
}
