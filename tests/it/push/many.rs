//! The server load of many waiters; and one release gives the lock to one of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use leasehold::{Client, Fence, Owner};
use support::{Child, Lag, Match, Part, Proxy, Server, eventually_async, seen, within};
use tokio::{sync::mpsc, task::JoinSet};

use support::scripts::{ACQUIRE, LOOK, RENEW};

use crate::common::Confirmed as _;

/// The limit after which a hanging test ends.
const SOON: Duration = Duration::from_secs(30);

/// Starts `count` tasks that wait for a lock, and returns once each has learned that it waits.
async fn wait(leases: &Client, name: &str, count: usize, won: &mpsc::UnboundedSender<Fence>) -> JoinSet<()> {
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let lock = leases.lock(name).owner(Owner::anonymous()).on_wait(move |_| _ = tell.send(()));
    for _ in 0..count {
        let (acquire, won) = (lock.acquire(), won.clone());
        tasks.spawn(async move {
            let lease = acquire.await.unwrap();
            won.send(lease.fence()).unwrap();
            // Held until the task is ended.
            std::future::pending::<()>().await;
            drop(lease);
        });
    }
    drop(lock);
    for _ in 0..count {
        within(SOON, "everybody waits", told.recv()).await;
    }
    tasks
}

/// A command that runs a script, has the next one tracked, or asks how full the server's tracking table is. The client
/// library's own commands are not counted.
fn ours(args: &[Vec<u8>]) -> bool {
    let is = |wanted: Match| wanted.matches(args);
    is(Match::script(ACQUIRE)) || is(Match::script(RENEW)) || is(Match::command("INFO")) || is_caching(args)
}

fn is_caching(args: &[Vec<u8>]) -> bool {
    Match::command("CLIENT").and(Match::containing("CACHING")).matches(args)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_one_process_cost_one_check_for_each_renewal() {
    const SPAN: Duration = Duration::from_secs(10);
    const TTL: Duration = Duration::from_secs(3);
    let (server, same) = (Server::start(), Server::start());
    let [ours_proxy, theirs_proxy, same_proxy] = [Proxy::to(&server), Proxy::to(&server), Proxy::to(&same)];
    // The resolution of addresses is not under test here.
    let program = async |url: String| {
        let builder = Client::builder().url(url).ttl(TTL).check_address_every(Duration::ZERO);
        builder.build().await.unwrap()
    };
    let holder = program(theirs_proxy.url()).await;
    let (waiters, both) = (program(ours_proxy.url()).await, program(same_proxy.url()).await);
    let mut wire = server.wire();
    let (won, mut winners) = mpsc::unbounded_channel();

    let lease = holder.lock("job").acquire().await.unwrap();
    let _waiting = wait(&waiters, "job", 1_000, &won).await;
    let held_here = both.lock("job").acquire().await.unwrap();
    let _waiting_here = wait(&both, "job", 1_000, &won).await;
    eventually_async(SOON, "pushes are on", || wire.trackers().len() == 2 && wire.tracked_keys() >= 2).await;
    eventually_async(SOON, "so they are where all is in one process", || same.wire().tracked_keys() >= 1).await;
    // Begins halfway between two renewals, so that none is counted on one side only.
    let before = theirs_proxy.count(Match::script(RENEW));
    eventually_async(SOON, "a renewal", || theirs_proxy.count(Match::script(RENEW)) > before).await;
    tokio::time::sleep(Duration::from_millis(200)).await;

    for proxy in [&ours_proxy, &theirs_proxy, &same_proxy] {
        proxy.forget();
    }
    let before = wire.scripts();
    // The ten seconds in which all waiters wait.
    tokio::time::sleep(SPAN).await;
    let scripts = wire.scripts() - before;
    let looks = ours_proxy.count(Match::script(ACQUIRE));
    let renewals = theirs_proxy.count(Match::script(RENEW));
    println!("{looks} looks, {renewals} renewals, {scripts} scripts in {SPAN:?}");
    assert!((8..=13).contains(&renewals), "{renewals} renewals in {SPAN:?}");
    assert!((1..=renewals).contains(&looks), "{looks} looks, {renewals} renewals");
    let each = if Server::echoes_own_changes() { 3 } else { 2 };
    assert!(scripts <= each * renewals, "{scripts} scripts, {renewals} renewals");
    // And nothing else, except the commands that have each poll tracked.
    let seen = ours_proxy.seen();
    let cachings = seen.iter().filter(|seen| is_caching(&seen.args)).count();
    assert!((looks..=looks + 1).contains(&cachings), "{cachings} for {looks} looks");
    assert!(seen.iter().all(|seen| ours(&seen.args)), "{seen:?}");
    assert!(ours_proxy.count(Match::command("INFO")) <= 3, "one in five seconds: {seen:?}");

    // The lock is held in the same process: only the holder's renewals.
    let seen = same_proxy.seen();
    let is_check_of_our_own = |args: &[Vec<u8>]| Server::echoes_own_changes() && Match::script(LOOK).matches(args);
    let others: Vec<_> = seen.iter().filter(|seen| !ours(&seen.args) && !is_check_of_our_own(&seen.args)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(same_proxy.count(Match::script(ACQUIRE)), 0, "{seen:?}");
    assert!(winners.try_recv().is_err());
    lease.check().unwrap();
    held_here.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37_a_thousand_waiters_in_ten_processes_and_one_release() {
    const PROCESSES: usize = 10;
    if let Some(part) = Part::mine() {
        return waits_with_a_hundred(&part).await;
    }
    let server = Server::start();
    let mut wire = server.wire();
    let holder = Client::connect(server.url()).await.unwrap();
    let lease = holder.lock("job").acquire().await.unwrap();
    let start = |_| {
        let proxy = Proxy::to(&server);
        (Child::start(f37_a_thousand_waiters_in_ten_processes_and_one_release, "wait", &proxy.url()), proxy)
    };
    let processes: Vec<_> = (0..PROCESSES).map(start).collect();
    for (child, _) in &processes {
        child.says("all wait");
    }
    // Each process tracks the lock and its fence; and the holder has renewed, so that no renewal falls in between.
    eventually_async(SOON, "all are watched", || wire.tracked_items() > 2 * PROCESSES).await;
    for (_, proxy) in &processes {
        proxy.forget();
    }
    let (lag, freed, fence) = (Lag::start(), micros_since_1970(), lease.fence());
    lease.release().await.unwrap().confirmed();
    let winner = || processes.iter().find_map(|(child, _)| child.has_said());
    let mut won = None;
    eventually_async(SOON, "the next holder", || {
        won = winner();
        won.is_some()
    })
    .await;
    let won = won.unwrap();
    let [next, at] = won.split_whitespace().map(|number| number.parse().unwrap()).collect::<Vec<u64>>()[..] else {
        panic!("{won}");
    };
    let took = Duration::from_micros(at.saturating_sub(freed));
    assert!(next > u64::from(fence));
    seen::took("next holder after the release", took, Duration::from_millis(50), &lag);
    assert!(took <= Duration::from_millis(50) + lag.worst(), "{took:?}");
    // All waiters have polled well before the new holder's first renewal at 250 ms, which makes the others poll again.
    eventually_async(SOON, "all are watched again", || wire.tracked_items() >= 2 * (PROCESSES - 1)).await;
    let looks: Vec<_> = processes.iter().map(|(_, proxy)| proxy.count(Match::script(ACQUIRE))).collect();
    // No renewal, unless this took until the first one was due.
    let renewals: usize = processes.iter().map(|(_, proxy)| proxy.count(Match::script(RENEW))).sum();
    println!("{took:?}, looks by process: {looks:?}");
    // The winner's process may be notified of its own change.
    let (sum, most) = (looks.iter().sum(), PROCESSES * (1 + renewals) + usize::from(Server::echoes_own_changes()));
    seen::at_most("looks of all waiters together", sum, most);
    assert!(sum <= most, "{looks:?}, {renewals} renewals");
    // Exactly one winner, also later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(winner(), None, "a second holder");
}

/// A process with a hundred waiting tasks, which reports which of them has the lock, and since when.
async fn waits_with_a_hundred(part: &Part) {
    let leases = Client::builder().url(&part.url).ttl(Duration::from_secs(30)).build().await.unwrap();
    let (won, mut winners) = mpsc::unbounded_channel();
    let _waiting = wait(&leases, "job", 100, &won).await;
    part.say("all wait");
    while let Some(fence) = winners.recv().await {
        part.say(format_args!("{fence} {}", micros_since_1970()));
    }
}

/// The time on the clock that all processes share.
fn micros_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_micros().try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_names_are_waited_for_on_one_receiving_connection() {
    const NAMES: usize = 10_000;
    let server = Server::start();
    let mut wire = server.wire();
    for name in 0..NAMES {
        wire.send(&["SET", &format!("job:{name}"), "somebody", "PX", "600000"]).unwrap();
    }
    for _ in 0..NAMES {
        assert!(wire.reply().unwrap().is_ok());
    }
    let leases = Client::connect(server.url()).await.unwrap();
    let woken = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for name in 0..NAMES {
        let (acquire, woken) = (leases.lock(format!("job:{name}")).acquire(), woken.clone());
        tasks.spawn(async move {
            let lease = acquire.await.unwrap();
            woken.fetch_add(1, Ordering::SeqCst);
            lease
        });
    }
    let watched = Instant::now();
    eventually_async(SOON, "all are watched", || wire.tracked_keys() >= 2 * NAMES).await;
    let watched = watched.elapsed();
    assert_eq!((wire.receivers(), wire.trackers().len()), (1, 1));
    assert_eq!(woken.load(Ordering::SeqCst), 0);
    let flushed = Instant::now();
    wire.must(&["FLUSHALL"]);
    eventually_async(SOON, "all have it", || woken.load(Ordering::SeqCst) == NAMES).await;
    println!("watched in {watched:?}, all woken in {:?}", flushed.elapsed());
    assert_eq!(wire.receivers(), 1);
    while let Some(lease) = tasks.join_next().await {
        lease.unwrap().check().unwrap();
    }
    server.kill();
}
