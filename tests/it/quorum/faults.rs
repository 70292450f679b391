//! Faults of a quorum's nodes and of their links: F38, a minority is unavailable, and F39, a majority is.
//!
//! The deadline is computed from outside, as in `faults/network.rs`: on a quorum it counts from the majority-th latest
//! request that could be confirmed. An unavailable node may cost its own time-out once.

use std::{
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Lease, LeaseHandle, LossReason, NodeState, Status, StatusChanges};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType, bind, socket},
};
use support::{
    HANGS, Lag, Nodes, Proxy, SIGNAL, Server, Stamped, eventually_async, eventually_but_for,
    scripts::{ACQUIRE, RAISE, RELEASE, RENEW, REPAIR},
    seen, stamped, urls, within,
};
use tokio::task::spawn_blocking;

use crate::common::{COMMAND, Calm, Confirmed as _, MEDIUM, NAME, requests};

const TTL: Duration = Duration::from_secs(1);
/// A restart delay long enough for [`MEDIUM`], in whole seconds.
const DELAY: Duration = Duration::from_secs(3);
/// The longest call that does not wait for an unavailable node: a third of one that does.
const AT_ONCE: Duration = Duration::from_millis(100);
/// The longest time until a returned node is noticed: an unanswered probe, the longest pause before the next, and the
/// longest before a new connection is tried. Each counts twice, because the link may return on one connection and not
/// on the other.
const NOTICED: Duration = Duration::from_millis(2 * (300 + 250 + 500));

/// Servers, a proxy in front of each, and a client that goes through the proxies.
struct Rig {
    leases: Client,
    proxies: Vec<Proxy>,
    nodes: Nodes,
    lag: Lag,
}

impl Rig {
    async fn start(count: usize) -> Self {
        let lag = Lag::start();
        let nodes = Nodes::seasoned(count);
        nodes.know(&[ACQUIRE, RAISE, REPAIR, RENEW, RELEASE]);
        let proxies = nodes.proxies();
        let leases = client(urls(&proxies)).await;
        Self { leases, proxies, nodes, lag }
    }

    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    async fn acquire(&self, name: &str, ttl: Duration) -> Lease {
        let acquire = self.leases.lock(name).ttl(ttl).acquire();
        within(HANGS, "the lock is free", acquire).await.expect("a majority is well")
    }

    /// Waits until the lease has just been renewed on every node. Returns its deadline.
    async fn renewed(&self, lease: &Lease, ttl: Duration) -> Instant {
        let renewals = |proxy: &Proxy| proxy.count(requests(RENEW, lease));
        let before: Vec<usize> = self.proxies.iter().map(renewals).collect();
        eventually_async(HANGS, "a renewal is confirmed", || {
            let everywhere = self.proxies.iter().zip(&before).all(|(proxy, before)| renewals(proxy) > *before);
            everywhere && lease.remaining() > ttl * 4 / 5
        })
        .await;
        self.deadline(lease, ttl, 0..self.nodes.len(), Instant::now())
    }

    /// The latest deadline that the lease can have if these nodes have confirmed nothing since. The others may
    /// continue, or may still answer requests that these have answered already.
    fn deadline(&self, lease: &Lease, ttl: Duration, silent: Range<usize>, since: Instant) -> Instant {
        let wanted = requests(RENEW, lease);
        let newest = |proxy: &Proxy| {
            let seen = proxy.seen();
            seen.iter().rev().find(|seen| seen.at <= since && wanted.matches(&seen.args)).map(|seen| seen.at)
        };
        let others = self.nodes.len() - silent.len();
        let mut sent: Vec<Instant> = self.proxies[silent].iter().filter_map(newest).collect();
        sent.sort_by(|one, other| other.cmp(one));
        let counts = sent.get(self.majority() - 1 - others).expect("there was a renewal");
        *counts + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
    }

    fn allowed(&self, bound: Duration) -> Duration {
        bound + self.lag.worst()
    }
}

async fn client(urls: Vec<String>) -> Client {
    let builder = Client::builder().quorum(urls).restart_delay(DELAY).ttl(TTL).command_timeout(COMMAND);
    builder.build().await.expect("the servers are there")
}

/// How a node is unavailable.
#[derive(Debug, Clone, Copy)]
enum Away {
    Killed,
    Stopped,
    BlackHoled,
}

impl Away {
    fn begin(self, rig: &Rig, at: usize) {
        match self {
            Self::Killed => rig.nodes[at].kill(),
            Self::Stopped => rig.nodes[at].stop(),
            Self::BlackHoled => rig.proxies[at].black_hole(true),
        }
    }

    fn end(self, rig: &Rig, at: usize) {
        match self {
            Self::Killed => rig.nodes[at].restart(),
            Self::Stopped => rig.nodes[at].cont(),
            Self::BlackHoled => rig.proxies[at].black_hole(false),
        }
    }

    /// How long after its return a node may give no vote, and so is not repaired: its uptime is in whole seconds, and
    /// the next renewal repairs it.
    fn recovers_in(self) -> Duration {
        match self {
            Self::Killed => DELAY + Duration::from_secs(1) + TTL / 3,
            Self::Stopped | Self::BlackHoled => Duration::ZERO,
        }
    }
}

async fn next(changes: &mut StatusChanges, what: &str) -> Option<Status> {
    within(HANGS, what, changes.next()).await
}

/// Acquires and releases. Returns the longer of the two times.
async fn cycle(rig: &Rig, name: &str) -> Duration {
    let started = Instant::now();
    let lease = rig.acquire(name, TTL).await;
    let acquired = Instant::now();
    lease.release().await.expect("it was ours").confirmed();
    acquired.duration_since(started).max(acquired.elapsed())
}

/// Tries a lock that is held on one node: the other available nodes are too few, so the unavailable ones matter.
async fn contest(rig: &Rig) -> Duration {
    let started = Instant::now();
    let outcome = rig.leases.lock("contested").ttl(TTL).try_acquire().await;
    // On a busy machine a node may answer too late, which counts as a wait.
    let is_denied = matches!(outcome, Ok(None) | Err(Error::Unavailable(_)));
    assert!(is_denied, "there is no majority: {outcome:?}");
    started.elapsed()
}

/// The requirement of F38: no status change, and no call that waits.
async fn a_minority_is_invisible(count: usize, away: Away) {
    let rig = Rig::start(count).await;
    let (minority, there) = (0..count - rig.majority(), count - rig.majority()..count);
    let lease = rig.acquire(NAME, TTL).await;
    rig.renewed(&lease, TTL).await;
    // Not before the renewal, because an acquire needs only a majority, which may be the others.
    let token = rig.nodes[there.start].wire().token(NAME);
    assert!(token.is_some(), "every node has the lease");
    let calm = Calm::of(&lease);
    rig.nodes[there.start].wire().set("contested", "somebody else's");

    minority.clone().for_each(|at| away.begin(&rig, at));
    let (began, mut waited, mut slowest) = (Instant::now(), Vec::new(), Duration::ZERO);
    while began.elapsed() < 4 * TTL {
        let took = contest(&rig).await.max(cycle(&rig, "other").await);
        slowest = slowest.max(took);
        if took > rig.allowed(AT_ONCE) {
            waited.push((took, began.elapsed(), rig.leases.nodes()));
        }
    }
    // The first unanswered call informs all others. A broken link says nothing about the node behind it.
    assert!(waited.len() <= 1, "calls waited for nodes that are {away:?}: {waited:?}");
    let most = rig.allowed(COMMAND + AT_ONCE);
    seen::took("slowest acquire or release", slowest, COMMAND + AT_ONCE, &rig.lag);
    seen::at_most("calls that waited for a dead node", waited.len(), 1);
    assert!(waited.iter().all(|(took, ..)| *took <= most), "a call waited for nodes that are {away:?}: {waited:?}");
    calm.lasted(&rig.lag);

    let calm = Calm::of(&lease);
    minority.clone().for_each(|at| away.end(&rig, at));
    let back = Instant::now();
    eventually_async(HANGS, "the lease is repaired", || {
        minority.clone().all(|at| rig.nodes[at].wire().token(NAME) == token)
    })
    .await;
    let bound = rig.allowed(NOTICED + away.recovers_in());
    seen::took("lease repaired after their return", back.elapsed(), NOTICED + away.recovers_in(), &rig.lag);
    assert!(back.elapsed() <= bound, "it was repaired {:?} after they came back, not within {bound:?}", back.elapsed());
    // So as many of the others may now become unavailable.
    rig.renewed(&lease, TTL).await;
    there.clone().skip(1).for_each(|at| rig.nodes[at].stop());
    let until = Instant::now() + 2 * TTL;
    while Instant::now() < until {
        cycle(&rig, "other").await;
    }
    calm.lasted(&rig.lag);
    there.clone().skip(1).for_each(|at| rig.nodes[at].cont());
    lease.release().await.expect("it was held to the end").confirmed();
    eventually_but_for(&rig.lag, TTL + SIGNAL, "no key is left", || rig.nodes.with_key(NAME).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f38_a_minority_is_black_holed() {
    a_minority_is_invisible(3, Away::BlackHoled).await;
}

/// A killed server's port stays reserved. Otherwise a parallel test's server on it would be taken for the killed one,
/// and calls would wait for it when that test ends.
#[test]
fn a_killed_server_keeps_its_port() {
    let server = Server::start();
    server.kill();
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, server.port());
    assert!(TcpStream::connect(address).is_err(), "it is dead");
    let other = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    assert_eq!(bind(&other, &address), Err(Errno::ADDRINUSE), "its port is reserved");
    server.restart();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f38_a_minority_is_killed() {
    a_minority_is_invisible(3, Away::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f38_a_minority_is_stopped() {
    a_minority_is_invisible(3, Away::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f38_two_of_five_are_black_holed() {
    a_minority_is_invisible(5, Away::BlackHoled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f38_a_node_that_was_black_holed_while_nothing_was_held_is_used_again() {
    let rig = Rig::start(3).await;
    cycle(&rig, NAME).await;
    rig.proxies[0].black_hole(true);
    let is_up = || *rig.leases.nodes()[0].state() == NodeState::Up;
    let began = Instant::now();
    while is_up() {
        assert!(began.elapsed() < rig.allowed(3 * COMMAND), "its silence is not noticed");
        cycle(&rig, NAME).await;
    }
    cycle(&rig, NAME).await;
    rig.proxies[0].black_hole(false);
    let back = Instant::now();
    loop {
        assert!(back.elapsed() < rig.allowed(NOTICED), "it is not used again: {:?}", rig.leases.nodes());
        let lease = rig.acquire(NAME, TTL).await;
        let everywhere = tokio::time::timeout(Duration::from_millis(20), async {
            while rig.nodes.with_key(NAME).len() < 3 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        let everywhere = everywhere.await.is_ok();
        lease.release().await.expect("it was ours").confirmed();
        if everywhere {
            return;
        }
    }
}

/// The requirement of F39 if the majority comes back: at risk, then held again, and never lost.
async fn stays_held(away: Away) {
    let rig = Rig::start(3).await;
    let lease = rig.acquire(NAME, MEDIUM).await;
    let (fence, mut changes) = (lease.fence(), lease.status_changes());
    let deadline = rig.renewed(&lease, MEDIUM).await;
    (0..2).for_each(|at| away.begin(&rig, at));
    assert_eq!(next(&mut changes, "a missing majority is reported").await, Some(Status::AtRisk));
    lease.check().expect("at risk is not lost");
    (0..2).for_each(|at| away.end(&rig, at));
    assert_eq!(next(&mut changes, "a majority confirms").await, Some(Status::Held));

    // Waits until the lease would have ended without that renewal.
    let calm = Calm::of(&lease);
    tokio::time::sleep_until(deadline.into()).await;
    calm.lasted(&rig.lag);
    assert_eq!(lease.fence(), fence);
    lease.release().await.expect("it was held to the end").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_a_majority_is_stopped_and_back_before_the_deadline() {
    stays_held(Away::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_a_majority_is_black_holed_and_back_before_the_deadline() {
    stays_held(Away::BlackHoled).await;
}

/// The last time that `check()` returned `Ok`. Fails if it is `Ok` at the deadline or later.
fn last_ok(lease: &LeaseHandle, deadline: Instant) -> Instant {
    let mut last_ok = Instant::now();
    loop {
        let asked = Instant::now();
        if lease.check().is_err() {
            return last_ok;
        }
        last_ok = asked;
        assert!(asked < deadline, "check() is Ok {:?} after the deadline", asked - deadline);
        thread::sleep(Duration::from_millis(1));
    }
}

/// The requirement of F39 if the majority stays away: no report before the deadline, all reports by then, and no other
/// holder sooner.
async fn is_told_by_the_deadline(away: Away) {
    let rig = Rig::start(3).await;
    // A `check()` at the deadline would complete `lost()` too, so one lease is only checked, and another only awaited.
    let lease = rig.acquire(NAME, TTL).await;
    let quiet = rig.acquire("quiet", TTL).await;
    let rival = client(rig.nodes.urls()).await;
    let rival = tokio::spawn(async move { (rival.lock(NAME).acquire().await, Instant::now()) });
    rig.renewed(&lease, TTL).await;
    rig.renewed(&quiet, TTL).await;
    (0..2).for_each(|at| away.begin(&rig, at));
    let gone = Instant::now();

    let [latest, quiet_latest] = [&lease, &quiet].map(|lease| rig.deadline(lease, TTL, 0..2, gone));
    let quiet_promised = Instant::now() + quiet.remaining();
    let (handle, lost) = (lease.handle(), stamped(quiet.lost()));
    let last_ok = spawn_blocking(move || last_ok(&handle, latest)).await.expect("check() is Err from the deadline on");
    let Stamped { output: lost, woken, returned } =
        within(HANGS, "lost() completes", lost).await.expect("it does not panic");
    assert!(returned >= quiet_promised, "lost() came {:?} before the deadline", quiet_promised - returned);
    seen::took("signal after the deadline", woken.saturating_duration_since(quiet_latest), SIGNAL, &rig.lag);
    assert!(woken <= quiet_latest + rig.allowed(SIGNAL), "lost() came {:?} after the deadline", woken - quiet_latest);
    assert_eq!(lost.reason(), LossReason::NoQuorum);
    match lease.status() {
        Status::Lost(lost) => assert_eq!(lost.reason(), LossReason::NoQuorum),
        other => panic!("a lost lease is {other:?}"),
    }
    match rig.leases.lock("else").try_acquire().await {
        Err(Error::Unavailable(error)) => {
            let votes = error.votes().expect("it says what each node said");
            assert_eq!((votes.granted(), votes.needed()), (1, 2), "{error}");
        }
        other => panic!("a majority is away: {other:?}"),
    }

    (0..2).for_each(|at| away.end(&rig, at));
    let (successor, acquired) = within(HANGS, "the rival gets the lock", rival).await.expect("it does not panic");
    let successor = successor.expect("an outage ends no acquire");
    assert!(acquired > last_ok, "two held the lock at the same time");
    assert!(successor.fence() > lease.fence());
    match lease.release().await {
        Err(Error::Lost(lost)) => assert_eq!(lost.reason(), LossReason::NoQuorum),
        other => panic!("the release of a lost lease returned {other:?}"),
    }
    successor.renew().await.expect("the successor holds the lock");
    successor.release().await.expect("it did to the end").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_a_majority_is_black_holed_for_longer_than_the_lease() {
    is_told_by_the_deadline(Away::BlackHoled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_a_majority_is_killed() {
    is_told_by_the_deadline(Away::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_a_majority_is_stopped_for_longer_than_the_lease() {
    is_told_by_the_deadline(Away::Stopped).await;
}
