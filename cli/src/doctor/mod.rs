//! `leasehold doctor`: what could go wrong with the servers, and what to do about it.

use std::{process::ExitCode, time::Duration};

use leasehold::{
    Client, Error, Lock, NodeAnswer, Owner, Released, SystemClock, Vote, Votes,
    doctor::{Surveyed, survey},
};
use serde_json::{Value, json};

use self::{
    facts::{Facts, ReplicaFacts},
    finding::{Finding, Level, note, ok, problem, word},
    judge::{judge, judge_absence, judge_together},
    replicas::{judge_each, judge_number},
};
use crate::{
    args::Doctor,
    connect::{block_on, build},
    exit::{Ended, Exit},
    say::{print, shown},
    servers::Servers,
};

pub(crate) use self::facts::field;

mod facts;
mod finding;
mod judge;
mod replicas;

/// By how much the clocks of a quorum may differ, in microseconds: what a lease of the usual TTL of 30 s allows for.
const CLOCKS_DIFFER: u64 = 302_000;

/// The findings about one server, about all of them together, or about a lock.
struct Section {
    place: String,
    findings: Vec<Finding>,
}

const TOO_FEW: &str = "see to the server's replicas, or to its min-replicas-to-write";

/// Words in an error's text that name its cause, each with the advice for it. A cause has the same advice everywhere.
const CAUSES: [(&str, &str); 18] = [
    ("is a replica now, see to the Sentinels", "ask again in some seconds; then see to the Sentinels: SENTINEL RESET"),
    ("is a replica now, see to its cluster", "ask again in some seconds; then redis-cli --cluster check"),
    ("is a replica", "name its primary in the URL"),
    ("READONLY", "name its primary in the URL"),
    ("MASTERDOWN", "name its primary in the URL"),
    ("is a Sentinel", "write redis-sentinel://HOST/SERVICE: SENTINEL MASTERS lists the services"),
    ("is no Sentinel", "write redis://, or redis-cluster:// for a part of a cluster"),
    ("does not watch", "name one of the services that it watches"),
    ("no server has a slot", "make the cluster: redis-cli --cluster create HOST:PORT HOST:PORT HOST:PORT"),
    ("not part of a cluster", "write redis://"),
    ("part of a cluster", "name a stand-alone server, or write redis-cluster://"),
    ("slot not served", "give the slot to a server: redis-cli --cluster fix"),
    ("CLUSTERDOWN", "see to the servers that the cluster lacks"),
    ("OOM", "raise the server's maxmemory, or free some of its memory"),
    ("LOADING", "ask again when it has loaded its data"),
    ("MISCONF", "see to the server's disk: it cannot save its data"),
    ("NOREPLICAS", TOO_FEW),
    ("SSL_CERT_FILE", "name a PEM file with the certificate of the server's authority in SSL_CERT_FILE"),
];

/// The advice for an error's text, if one of `CAUSES` is in it.
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
        for (places, findings) in grouped(&sections) {
            for place in places {
                print(place)?;
            }
            for finding in findings {
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

/// Groups the places of sections with the same findings: a cluster has many servers that are alike.
fn grouped(sections: &[Section]) -> Vec<(Vec<&str>, &[Finding])> {
    let mut groups: Vec<(Vec<&str>, &[Finding])> = Vec::new();
    for Section { place, findings } in sections {
        match groups.iter_mut().find(|(_, of_group)| of_group == findings) {
            Some((places, _)) => places.push(place),
            None => groups.push((vec![place], findings)),
        }
    }
    groups
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
    let (mut sections, mut is_any_there, mut are_all_there) = (Vec::new(), false, true);
    for (at, url) in urls.into_iter().enumerate() {
        let alone = Servers { url: Some(url), quorum: Vec::new(), restart_delay: servers.delay(), ..servers.clone() };
        // In a quorum, the others would hide a server that grants nothing, and then no server is to spare.
        match look(&alone, is_quorum.then_some(&*options.name)).await {
            Ok(Seen { servers, vote }) => {
                for server in &servers {
                    let mut findings = judge_server(server, is_quorum, waits_after_restart, alone.min_replicas);
                    findings.extend(vote.clone());
                    sections.push(Section { place: server.0.address().to_owned(), findings });
                }
                sections.extend(judge_together(&servers));
                is_any_there |= servers.iter().any(|(_, said)| said.is_ok());
                are_all_there &= servers.iter().all(|(_, said)| said.is_ok());
            }
            Err(error) => {
                are_all_there = false;
                let place = if is_quorum { format!("server {}", at + 1) } else { "the server".to_owned() };
                sections.push(Section { place, findings: vec![not_there(&error)] });
            }
        }
    }
    if !is_quorum && !is_any_there {
        return Ok((sections, false));
    }
    let findings = match build(servers.builder()).await {
        Ok(client) => {
            let findings = try_out(&client, &options.name, is_quorum).await;
            client.close().await;
            findings?
        }
        Err(error) => {
            are_all_there = false;
            let usual = match error {
                _ if error.is_mistake() => "correct the URLs",
                _ if is_quorum => "a majority of the servers must be there",
                _ => "ask again",
            };
            vec![problem("lock", error.to_string(), advice_for(&error.to_string()).unwrap_or(usual))]
        }
    };
    sections.push(Section { place: "a lock".into(), findings });
    Ok((sections, are_all_there))
}

/// The answers of the servers of one URL: of one server, or of the primaries of a cluster.
struct Seen {
    servers: Vec<Surveyed>,
    /// Why it grants no lock for a name, if it grants none.
    vote: Option<Finding>,
}

async fn look(servers: &Servers, name: Option<&str>) -> Result<Seen, Error> {
    let client = build(servers.builder()).await?;
    let said = survey(&client).await;
    let vote = match name {
        Some(name) => vote(&client, name).await,
        None => None,
    };
    client.close().await;
    Ok(Seen { servers: said?, vote })
}

/// Judges a server and its replicas, or its absence.
fn judge_server((node, said): &Surveyed, is_quorum: bool, waits_after_restart: bool, wanted: u8) -> Vec<Finding> {
    match said {
        Ok(said) => {
            let facts = Facts::of(said, node.slots().is_some());
            let of_itself = judge(&facts, is_quorum, waits_after_restart);
            [of_itself, judge_number(&facts, wanted), judge_each(&ReplicaFacts::of_each(said))].concat()
        }
        Err(error) => vec![judge_absence(node, error).unwrap_or_else(|| not_there(error))],
    }
}

/// The finding for a server that cannot be connected to.
fn not_there(error: &Error) -> Finding {
    let usual = if error.is_transient() { "start it, or correct its URL" } else { "correct its URL" };
    problem("server", error.to_string(), advice_for(&error.to_string()).unwrap_or(usual))
}

async fn vote(client: &Client, name: &str) -> Option<Finding> {
    let why = match client.lock(format!("{name}:doctor")).try_acquire().await {
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

/// The advice about a failed call, which differs if waiting may be enough.
fn advice(passes: bool) -> &'static str {
    const RIGHTS: &str = "give our user the right that is named there, for these keys";
    const SLOW: &str = "find out why the servers, or the way to them, are slow or away, and ask again";
    if passes { SLOW } else { RIGHTS }
}

/// The advice about a renewal or a release that was not confirmed.
fn advice_for_an_error(error: &Error) -> &'static str {
    let is_of_rights = matches!(error, Error::Refused(_));
    advice_for(&error.to_string()).unwrap_or_else(|| advice(!is_of_rights))
}

/// Acquires, renews and releases a lock, as `run` would.
async fn try_out(client: &Client, name: &str, is_quorum: bool) -> Result<Vec<Finding>, Ended> {
    let lock = client.lock(format!("{name}:doctor"));
    let mut misplaced = Vec::new();
    for name in [name, lock.name()] {
        // The lock below reports any error.
        if let Ok(Some(holder)) = client.lock(name).holder().await {
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
        Err(error) if error.is_mistake() => return Err(error.into()),
        Err(error) => {
            let usual = if is_too_early(&error) { "wait for that long" } else { advice(error.is_transient()) };
            let advice = advice_for(&error.to_string()).unwrap_or(usual);
            return Ok(vec![problem("lock", format!("it cannot be acquired: {error}"), advice)]);
        }
    };
    let listed = client.list(lock.name()).await;
    let renewed = lease
        .renew()
        .await
        .map_err(|error| problem("lock", format!("it cannot be renewed: {error}"), advice_for_an_error(&error)));
    let unreleased = match lease.release().await {
        Ok(Released::Unconfirmed(why)) => Some((why.to_string(), advice_for_an_error(&Error::Refused(why)))),
        Ok(_) => None,
        Err(error) => Some((error.to_string(), advice_for_an_error(&error))),
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
    findings.extend(judge_list(&listed));
    if !is_quorum {
        findings.extend(try_queue_and_share(client, &lock).await);
    }
    findings.extend(clocks(client));
    Ok(findings)
}

/// Whether `ls` and `top` see all locks.
fn judge_list<T>(listed: &Result<Vec<T>, Error>) -> Option<Finding> {
    match listed {
        Ok(locks) if locks.is_empty() => {
            let advice = "allow our user to read all keys: getrange";
            Some(note("lock", "ls and top will not see all locks", advice))
        }
        Ok(_) => None,
        Err(error) => Some(note("lock", format!("ls and top will not work: {error}"), advice(error.is_transient()))),
    }
}

/// Acquires the lock as a fair waiter, and shares it: each needs rights of its own.
async fn try_queue_and_share(client: &Client, lock: &Lock) -> Option<Finding> {
    let (what, error) = match lock.clone().fair(true).try_acquire().await {
        Ok(lease) => {
            if let Some(lease) = lease {
                drop(lease.release().await);
            }
            ("shared", share(client, lock.name()).await.err()?)
        }
        // Sharing a lock needs the same rights, and some more.
        Err(error) => ("fair or shared", error),
    };
    Some(note("lock", format!("it cannot be {what}: {error}"), advice(error.is_transient())))
}

/// Shares a lock twice, as `run --shared` and `run --permits` would.
async fn share(client: &Client, name: &str) -> Result<(), Error> {
    // Without the right to give it back, a share stays for its TTL.
    let lock = client.semaphore(name, 2).ttl(Duration::from_secs(1));
    // Another process may be using it.
    let Some(share) = lock.try_acquire().await? else { return Ok(()) };
    // A second share removes expired shares, which needs a right. A renewal does not show whether we have that right:
    // its retry finds nothing to remove.
    if let Some(beside) = lock.clone().owner(Owner::anonymous()).try_acquire().await? {
        beside.release().await?;
    }
    share.renew().await?;
    lock.holders().await?;
    match share.release().await? {
        // The library retries, and a right is still missing.
        Released::Unconfirmed(why) => Err(Error::Refused(why)),
        _ => Ok(()),
    }
}

/// A problem if the key under a lock's name is not a lock.
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
fn clocks(client: &Client) -> Option<Finding> {
    let nodes = client.nodes();
    let offsets: Vec<i64> = nodes.iter().filter_map(leasehold::NodeStatus::clock_offset_micros).collect();
    let (least, most) = (offsets.iter().min()?, offsets.iter().max()?);
    (offsets.len() > 1).then(|| judge_clocks(offsets.len(), most.abs_diff(*least)))
}

/// The difference in milliseconds, for people.
fn apart(micros: u64) -> String {
    format!("{:.1} ms", Duration::from_micros(micros).as_secs_f64() * 1e3)
}

fn judge_clocks(clocks: usize, micros: u64) -> Finding {
    let apart = apart(micros);
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
    use super::*;

    #[test]
    fn clocks_may_differ_by_what_leases_allow_for() {
        assert_eq!(judge_clocks(3, 302_000).level, Level::Ok);
        assert_eq!(judge_clocks(3, 302_001).level, Level::Problem);
    }
}
