//! The server load of many fair waiters; and one release grants the lock to one of them.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use leasehold::{Client, Owner};
use support::{
    Child, Lag, Match, Part, Proxy, Server, Wire, eventually_async,
    scripts::{POLL, RENEW},
    seen,
};
use tokio::task::{JoinHandle, JoinSet};

use super::line::{
    HEARTBEAT, PROMPT, SOON, all_can_be_called, nothing_is_left, place, programs, queue_key, tokens, wait_key,
};
use crate::common::{Confirmed as _, program};

/// The waiters that polled, and when, in order.
fn polls(proxy: &Proxy) -> Vec<(String, Instant)> {
    let poll = Match::script(POLL);
    let seen = proxy.seen().into_iter().filter(|seen| poll.matches(&seen.args));
    // After the script and its five keys.
    seen.map(|seen| (String::from_utf8_lossy(&seen.args[8]).into_owned(), seen.at)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37_a_thousand_fair_waiters_in_ten_processes_and_one_release() {
    const PROCESSES: usize = 10;
    if let Some(part) = Part::mine() {
        return waits_with_a_hundred(&part).await;
    }
    let server = Server::start();
    let (mut wire, holder) = (server.wire(), program(server.url()).await);
    let lease = holder.lock("job").acquire().await.unwrap();
    let start = |_| {
        let proxy = Proxy::to(&server);
        (Child::start(f37_a_thousand_fair_waiters_in_ten_processes_and_one_release, "wait", &proxy.url()), proxy)
    };
    let mut processes: Vec<_> = (0..PROCESSES).map(start).collect();
    for (child, _) in &mut processes {
        child.says("connected");
        child.tell("wait");
        child.says("all wait");
    }
    all_can_be_called(&mut wire, "job", 1_000).await;
    let first = tokens(&mut wire, "job").remove(0);
    let (lag, released, freed) = (Lag::start(), Instant::now(), SystemTime::now());
    lease.release().await.unwrap().confirmed();
    let winner =
        || processes.iter().position(|(child, _)| child.has_said().is_some_and(|said| said.starts_with("won")));
    let mut won = None;
    eventually_async(SOON, "the next holder", || {
        won = winner();
        won.is_some()
    })
    .await;
    assert_eq!(won, Some(0), "the first process has the first place");
    let (mut all, mut its, mut heartbeats, mut who) = (0, 0, 0, Vec::new());
    for (process, (_, proxy)) in processes.iter().enumerate() {
        let (mut polled, mut was_due) = (HashMap::new(), false);
        for (token, at) in polls(proxy) {
            let is_its = token == first;
            let before = polled.insert(token, at);
            if at >= released {
                all += 1;
                its += usize::from(is_its);
                who.push((process, is_its, at - released, before.map(|before| at - before)));
                was_due |= before.is_some_and(|before| at - before >= HEARTBEAT);
            }
        }
        // The first waiter of each process polls then, whatever happens to the lock.
        heartbeats += usize::from(was_due);
    }
    let said = processes[0].0.says("at");
    let at = UNIX_EPOCH + Duration::from_micros(said.parse().unwrap());
    let took = at.duration_since(freed).unwrap_or_default();
    println!("{took:?}, {all} polls, {its} of the new holder, {heartbeats} heartbeats");
    seen::took("next of the queue after the release", took, PROMPT, &lag);
    seen::at_most("polls of all fair waiters together", all - heartbeats, 1);
    assert!(its >= 1 && all <= 1 + heartbeats, "{all} polls, {heartbeats} heartbeats: {who:?}");
    assert!(took <= PROMPT + lag.worst(), "{took:?}");
    assert_eq!(winner(), None, "a second holder");
    assert_eq!(wire.token("job"), Some(first));
    // It remains the only one, even after the waiter behind it has polled, one grant later.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(winner(), None, "a second holder");
}

/// A process with a hundred tasks in the queue. It reports when one of them has the lock, and keeps it.
async fn waits_with_a_hundred(part: &Part) {
    let leases = program(part.url.clone()).await;
    part.say("connected");
    part.hear();
    let mut waiters = JoinSet::new();
    for _ in 0..100 {
        waiters.spawn(place(&leases.lock("job")).await);
    }
    part.say("all wait");
    let mut kept = Vec::new();
    while let Some(waiter) = waiters.join_next().await {
        let (lease, _) = waiter.unwrap().unwrap();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        part.say("won");
        part.say(format_args!("at {}", since.as_micros()));
        kept.push(lease.unwrap());
    }
}

/// How often the server has run a script.
fn scripts(wire: &mut Wire) -> usize {
    let mut calls = |command: &str| {
        let line = wire.info_field("commandstats", &format!("cmdstat_{command}"));
        line.and_then(|line| line.strip_prefix("calls=")?.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    calls("evalsha") + calls("eval")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_fair_waiters_cost_a_heartbeat_for_each_process() {
    const SPAN: Duration = Duration::from_secs(10);
    const PROCESSES: usize = 4;
    let server = Server::start();
    let (mut wire, proxy) = (server.wire(), Proxy::to(&server));
    // Renewed every 2.5 s, and never so close to its expiry that a waiter checks for it.
    let holder = Client::builder().url(proxy.url()).ttl(SPAN * 3 / 4).build().await.unwrap();
    let lease = holder.lock("job").acquire().await.unwrap();
    let (all, mut waiters) = (programs::<PROCESSES>(&server).await, Vec::new());
    for n in 0..1_000 {
        waiters.push(place(&all[n % PROCESSES].lock("job")).await);
    }
    all_can_be_called(&mut wire, "job", 1_000).await;
    let (before, renewed) = (scripts(&mut wire), proxy.count(Match::script(RENEW)));
    tokio::time::sleep(SPAN).await;
    let (scripts, renewals) = (scripts(&mut wire) - before, proxy.count(Match::script(RENEW)) - renewed);
    // One more than fits, because a heartbeat may fall at each end; and the first waiter polls when it sees a renewal.
    let heartbeats = PROCESSES * (usize::try_from(SPAN.as_secs() / HEARTBEAT.as_secs()).unwrap() + 1);
    println!("{scripts} scripts, {renewals} renewals of the holder, {heartbeats} heartbeats at most");
    assert!((3..=6).contains(&renewals), "{renewals}");
    assert!(scripts <= 2 * renewals + 1 + heartbeats, "{scripts} scripts, {renewals} renewals");
    assert!(scripts - renewals >= PROCESSES, "{scripts} scripts: a heartbeat is missing");
    lease.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_acquire_in_order_and_leave_nothing() {
    const WAITERS: usize = 10_000;
    let server = Server::start();
    // A program that a busy machine keeps from its grant for a second would be passed over.
    let patient_of_grants = async || Client::builder().url(server.url()).grant_timeout(SOON).build().await.unwrap();
    let (holder, one, two) = (program(server.url()).await, patient_of_grants().await, patient_of_grants().await);
    // The server will be busy with their heartbeats, which this test is not about.
    let patient = Client::builder().url(server.url()).command_timeout(SOON).build().await.unwrap();
    let (mut wire, lag, began) = (server.wire(), Lag::start(), Instant::now());
    let lease = holder.lock("job").acquire().await.unwrap();
    let mut waiters = Vec::new();
    // All at once.
    for n in 0..WAITERS {
        let lock = if n % 2 == 0 { one.lock("job") } else { two.lock("job") };
        waiters.push(tokio::spawn(lock.fair(true).owner(Owner::anonymous()).acquire()));
    }
    let queue = queue_key("job");
    eventually_async(SOON, "all have entered", || wire.must(&["ZCARD", &queue]).int() == 10_000).await;
    eventually_async(SOON, "all can be called", || wire.must(&["HLEN", &wait_key("job")]).int() >= 10_000).await;
    let entered = began.elapsed();
    let listed = patient.lock("job").waiters().await.unwrap();
    assert_eq!(listed.len(), WAITERS);
    assert!(listed.is_sorted_by(|a, b| a.waited() >= b.waited()));
    let line = tokens(&mut wire, "job");
    let (mut lease, mut took) = (lease, Vec::new());
    for next in &line[..20] {
        let released = Instant::now();
        lease.release().await.unwrap().confirmed();
        eventually_async(SOON, "the next one", || waiters.iter().any(JoinHandle::is_finished)).await;
        took.push(released.elapsed());
        let at = waiters.iter().position(JoinHandle::is_finished).unwrap();
        lease = waiters.swap_remove(at).await.unwrap().unwrap();
        assert_eq!(wire.token("job").as_ref(), Some(next));
    }
    took.sort_unstable();
    println!("entered in {entered:?}, handed over within {took:?}");
    // Each change of holder is announced to every waiter of these two programs, some of which may still be enqueuing.
    // That takes time on a busy machine, now and then.
    assert!(took[10] <= PROMPT + lag.worst(), "{took:?}");
    let scripts = |wire: &mut Wire| wire.calls("eval") + wire.calls("evalsha");
    let (dropped, before) = (Instant::now(), scripts(&mut wire));
    for waiter in &waiters {
        waiter.abort();
    }
    lease.release().await.unwrap().confirmed();
    eventually_async(SOON, "nobody waits", || wire.must(&["ZCARD", &queue]).int() == 0).await;
    nothing_is_left(&mut wire).await;
    let calls = scripts(&mut wire) - before;
    println!("gone after {:?}, with {calls} calls", dropped.elapsed());
    assert!(calls <= WAITERS / 10, "they leave in batches");
}
