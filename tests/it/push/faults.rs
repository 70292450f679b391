//! Notifications lost, late or duplicated, and connections that end. A waiter still wakes up, at the latest when the
//! holder's key expires; the next renewal reports a loss.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, LossReason, Owner};
use support::{
    Action, Lag, Match, Messages, Proxy, SIGNAL, Server, Wire, eventually_async, seen, start_anew, timed,
    waiter_is_tracked, within,
};

use crate::common::{COMMAND, Confirmed as _, program_with, told};

/// The limit after which a hanging test ends.
const SOON: Duration = Duration::from_secs(20);
/// The longest pause between two checks of a waiter without notifications.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

const TTL: Duration = Duration::from_millis(1_200);

/// Gives the lock to another holder for a minute.
fn take(wire: &mut Wire, name: &str) {
    wire.must(&["SET", name, "somebody", "PX", "60000"]);
}

fn kill_all(wire: &mut Wire) {
    for kind in ["pubsub", "normal"] {
        wire.must(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_client_kill_of_every_connection_repeatedly() {
    const NAMES: [&str; 3] = ["one", "two", "three"];
    let server = Server::start();
    let (holder, waiter) = (program_with(server.url(), TTL).await, program_with(server.url(), TTL).await);
    let (lag, mut wire) = (Lag::start(), server.wire());
    let mut held = Vec::new();
    for name in NAMES {
        held.push(holder.lock(name).acquire().await.unwrap());
    }
    let mut waiters: Vec<_> = NAMES.iter().map(|name| timed(waiter.lock(*name).acquire())).collect();
    let started = Instant::now();
    // Two TTLs: without renewals between the kills every lease would have expired. And nine kills, however slow the
    // machine: pushes that end repeatedly take longer and longer to come back.
    let mut kills = 0;
    while started.elapsed() < Duration::from_millis(2_400) || kills < 9 {
        // Both processes have reconnected, with pushes on or being switched on: killed in every state.
        let pushes = kills % 3;
        eventually_async(SOON, "connections", || wire.trackers().len() >= pushes.min(2)).await;
        kill_all(&mut wire);
        kills += 1;
        tokio::time::sleep(Duration::from_millis(7 * (kills as u64 % 5))).await;
    }
    for lease in &held {
        lease.check().unwrap();
    }
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));

    // The first lease is released at once, the last two when all is well again.
    for (round, lease) in held.into_iter().enumerate() {
        if round > 0 {
            eventually_async(SOON, "pushes are on again", || wire.trackers().len() == 2).await;
        }
        let released = Instant::now();
        lease.release().await.unwrap().confirmed();
        let (next, at) = within(SOON, "the waiter", waiters.remove(0)).await.unwrap();
        let took = at.duration_since(released);
        // Reconnecting takes a few pauses.
        let limit = if round > 0 { SIGNAL } else { 5 * SIGNAL };
        seen::took(if round > 0 { "hand-off afterwards" } else { "hand-off at once" }, took, limit, &lag);
        assert!(took <= limit + lag.worst(), "{round}: {took:?}");
        next.unwrap().release().await.unwrap().confirmed();
    }
}

/// Which connections a test ends.
#[derive(Debug, Clone, Copy)]
enum Ends {
    Receiver,
    Keeper,
    Both,
}

impl Ends {
    const ALL: [Self; 3] = [Self::Receiver, Self::Keeper, Self::Both];

    /// Ends the connections, and runs one more command right behind. Returns when it began.
    fn now(self, wire: &mut Wire, and: &[&str]) -> Instant {
        let trackers = wire.trackers();
        assert_eq!(trackers.len(), 1, "{trackers:?}");
        let mut kills = Vec::new();
        if !matches!(self, Self::Keeper) {
            kills.push(&*trackers[0].told);
        }
        if !matches!(self, Self::Receiver) {
            kills.push(&*trackers[0].reads);
        }
        let began = Instant::now();
        for id in &kills {
            wire.send(&["CLIENT", "KILL", "ID", id]).unwrap();
        }
        wire.send(and).unwrap();
        for _ in 0..=kills.len() {
            wire.reply().unwrap();
        }
        began
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_in_any_state_costs_no_wake_up() {
    let server = Server::start();
    let (lag, mut wire) = (Lag::start(), server.wire());
    for ends in Ends::ALL {
        let leases = program_with(server.url(), TTL).await;
        let mut worst = [Duration::ZERO; 3];
        for round in 0..5 {
            for (state, worst) in worst.iter_mut().enumerate() {
                start_anew([&mut wire]).await;
                if round + state > 0 {
                    // Connections that ended while unused come back for the next request.
                    told(&leases).await;
                    eventually_async(SOON, "pushes are on", || wire.trackers().len() == 1).await;
                }
                take(&mut wire, "job");
                if state == 0 && round > 0 {
                    // No waiter.
                    ends.now(&mut wire, &["PING"]);
                }
                let waiter = timed(leases.lock("job").acquire());
                waiter_is_tracked([&mut wire], 1).await;
                eventually_async(SOON, "pushes are on", || wire.trackers().len() == 1).await;
                if state == 1 {
                    // A waiter is registered. The lock is released once it is registered again.
                    ends.now(&mut wire, &["PING"]);
                    eventually_async(SOON, "pushes are on again", || wire.trackers().len() == 1).await;
                }
                let mut freed = Instant::now();
                let mut limit = SIGNAL;
                if state == 2 {
                    // Between registration and release; the release follows at once.
                    freed = ends.now(&mut wire, &["DEL", "job"]);
                    if !matches!(ends, Ends::Receiver) {
                        // Reconnecting takes a few pauses.
                        limit *= 5;
                    }
                } else {
                    wire.del("job");
                }
                let (lease, at) = within(SOON, "the waiter", waiter).await.unwrap();
                let took = at.duration_since(freed);
                *worst = took.max(*worst);
                assert!(took <= limit + lag.worst(), "{ends:?} in state {state}: {took:?}");
                lease.unwrap().release().await.unwrap().confirmed();
            }
        }
        println!("{ends:?}: {worst:?}");
        leases.close().await;
    }
}

/// The steps by which pushes are switched on.
fn steps() -> Vec<(&'static str, usize, Match)> {
    let named = |name: &'static str, first: Option<&'static str>| {
        Match::with(move |args| {
            let is = |at: usize, word: &str| args.get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
            is(0, name) && first.is_none_or(|first| is(1, first))
        })
    };
    vec![
        // The client library sends this command too.
        ("CLIENT ID of its own", 1, named("CLIENT", Some("ID"))),
        ("CLIENT ID", 2, named("CLIENT", Some("ID"))),
        ("SUBSCRIBE", 1, named("SUBSCRIBE", None)),
        ("PING", 1, named("PING", None)),
        ("CLIENT TRACKING", 1, named("CLIENT", Some("TRACKING"))),
        ("CONFIG GET", 1, named("CONFIG", None)),
        ("CLIENT CACHING", 1, named("CLIENT", Some("CACHING"))),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_missed_while_notifications_are_switched_on() {
    const ACTIONS: [Action; 6] = [
        Action::CutBefore,
        Action::CutAfter,
        Action::DropRequest,
        Action::SwallowReply,
        Action::Hold,
        Action::HoldReply,
    ];
    let server = Arc::new(Server::start());
    let lag = Arc::new(Lag::start());
    // Seven programs at a time: forty-two would compete for the machine.
    for action in ACTIONS {
        let mut cases = Vec::new();
        for (step, nth, wanted) in steps() {
            let (server, lag, wanted) = (server.clone(), lag.clone(), wanted.clone());
            let name = format!("{step} {action:?}");
            cases.push(tokio::spawn(async move {
                let proxy = Proxy::to(&server);
                let leases = Client::builder().url(proxy.url()).command_timeout(COMMAND).build().await.unwrap();
                let mut wire = server.wire();
                // In the first round the waiter is there when the first try is interrupted, in the second after the
                // recovery.
                let fault = proxy.on(wanted, nth, action);
                for recovered in [false, true] {
                    take(&mut wire, &name);
                    let waiter = timed(leases.lock(&name).acquire());
                    within(SOON, &name, fault.hit()).await;
                    if recovered {
                        let watched = Match::command("CLIENT").and(Match::containing("CACHING"));
                        let before = proxy.count(watched.clone());
                        fault.release();
                        eventually_async(SOON, &name, || proxy.count(watched.clone()) > before).await;
                    }
                    let freed = Instant::now();
                    wire.del(&name);
                    let (lease, at) = within(SOON, &name, waiter).await.unwrap();
                    let took = at.saturating_duration_since(freed);
                    // At worst it polls, and its poll times out without an answer.
                    let limit = LONGEST_PAUSE + 2 * COMMAND + SIGNAL + lag.worst();
                    assert!(took <= limit, "{name}, recovered: {recovered}: {took:?}");
                    lease.unwrap().release().await.unwrap().confirmed();
                }
            }));
        }
        for case in cases {
            case.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_poll_from_the_moment_when_notifications_cannot_come_back() {
    let server = Server::start();
    let leases = program_with(server.url(), TTL).await;
    let (lag, mut wire) = (Lag::start(), server.wire());
    take(&mut wire, "job");
    let waiter = timed(leases.lock("job").acquire());
    waiter_is_tracked([&mut wire], 1).await;
    // The next connection lacks the rights that this one had.
    wire.must(&["ACL", "SETUSER", "default", "-client", "+client|id", "+client|kill", "+client|list"]);
    let keeper = wire.trackers().remove(0).reads;
    wire.kill_client(&keeper);
    eventually_async(SOON, "the receiver is given up", || wire.receivers() == 0).await;
    let freed = Instant::now();
    wire.del("job");
    let (lease, at) = within(SOON, "the waiter", waiter).await.unwrap();
    let took = at.duration_since(freed);
    assert!(took <= LONGEST_PAUSE + SIGNAL + lag.worst(), "{took:?}");
    lease.unwrap().release().await.unwrap().confirmed();
}

/// Describes what happened to the messages.
fn fate(messages: Messages) -> &'static str {
    match messages {
        Messages::Lose => "message lost",
        Messages::Late(_) => "message late",
        Messages::Twice => "message twice",
        Messages::Pass => "message passed",
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_a_lost_message_delays_a_waiter_by_the_holders_remaining_ttl_at_most() {
    let server = Server::start();
    let holder = program_with(server.url(), TTL).await;
    let (lag, mut wire) = (Lag::start(), server.wire());
    for messages in [Messages::Lose, Messages::Late(Duration::from_millis(700)), Messages::Twice] {
        // A proxy of its own, because late messages would delay the next round's.
        let proxy = Proxy::to(&server);
        let leases = program_with(proxy.url(), TTL).await;
        start_anew([&mut wire]).await;
        let lease = holder.lock("job").acquire().await.unwrap();
        let waiter = timed(leases.lock("job").acquire());
        waiter_is_tracked([&mut wire], 1).await;
        let seen = proxy.messages_seen();
        proxy.messages(messages);
        // The holder's renewal is the first message that goes wrong; the waiter polls by its own timer.
        eventually_async(SOON, "a message", || proxy.messages_seen() > seen).await;
        lease.check().unwrap();
        let remaining = Duration::from_millis(u64::try_from(wire.pttl("job")).unwrap());
        let freed = Instant::now();
        lease.release().await.unwrap().confirmed();
        let (next, at) = within(SOON, "the waiter", waiter).await.unwrap();
        let took = at.duration_since(freed);
        let limit = match messages {
            Messages::Twice => Duration::ZERO,
            Messages::Late(by) => by.min(remaining),
            _ => remaining,
        };
        assert!(took <= limit + SIGNAL + lag.worst(), "{messages:?}: {took:?} of {limit:?}");
        println!("{messages:?}: {took:?} of {limit:?}");
        seen::took(&format!("waiter's delay, {}", fate(messages)), took, limit + SIGNAL, &lag);
        next.unwrap().release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_a_lost_message_delays_a_loss_to_the_next_renewal_at_most() {
    let server = Server::start();
    let (lag, mut wire) = (Lag::start(), server.wire());
    for messages in [Messages::Lose, Messages::Late(Duration::from_millis(150)), Messages::Twice] {
        let proxy = Proxy::to(&server);
        let leases = program_with(proxy.url(), TTL).await;
        start_anew([&mut wire]).await;
        let lease = leases.lock("job").acquire().await.unwrap();
        eventually_async(SOON, "the key is watched", || wire.tracked_keys() > 0).await;
        proxy.messages(messages);
        let deleted = Instant::now();
        wire.del("job");
        let lost = within(SOON, "the loss", lease.lost()).await;
        let took = deleted.elapsed();
        let limit = match messages {
            Messages::Twice => Duration::ZERO,
            Messages::Late(by) => by.min(TTL / 3),
            _ => TTL / 3,
        };
        assert_eq!(lost.reason(), LossReason::Deleted);
        seen::took(&format!("signal's delay, {}", fate(messages)), took, limit + SIGNAL, &lag);
        assert!(took <= limit + SIGNAL + lag.worst(), "{messages:?}: {took:?} of {limit:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_there_are_never_two_holders() {
    const FATES: [Messages; 4] =
        [Messages::Pass, Messages::Lose, Messages::Twice, Messages::Late(Duration::from_millis(20))];
    const TURNS: usize = 50;
    let server = Server::start();
    let mut proxies = Vec::new();
    let mut tasks = Vec::new();
    let (inside, last, taken) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
    // Long enough that lost messages delay waiters a few times; longer on a machine where turns take long.
    let until = Instant::now() + Duration::from_secs(6);
    for fate in FATES {
        let proxy = Proxy::to(&server);
        proxy.messages(fate);
        // The TTL is as long as a lost message may delay a waiter, and far longer than a turn.
        let leases = program_with(proxy.url(), TTL).await;
        proxies.push(proxy);
        for _ in 0..3 {
            let lock = leases.lock("job").owner(Owner::anonymous());
            let (inside, last, taken) = (inside.clone(), last.clone(), taken.clone());
            tasks.push(tokio::spawn(async move {
                while Instant::now() < until || taken.load(Ordering::SeqCst) < TURNS {
                    let lease = lock.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    let fence = u64::from(lease.fence());
                    assert!(last.fetch_max(fence, Ordering::SeqCst) < fence, "the fence has fallen");
                    tokio::time::sleep(Duration::from_millis(fence % 4)).await;
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    lease.release().await.unwrap().confirmed();
                    taken.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            }));
        }
    }
    for task in tasks {
        within(SOON, "everybody's end", task).await.unwrap();
    }
    let taken = taken.load(Ordering::SeqCst);
    println!("{taken} acquisitions");
    seen::at_least("turns, one at a time", taken, TURNS);
    assert!(taken >= TURNS, "{taken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiving_connection_that_was_being_made_ends_with_its_leases() {
    let server = Server::start();
    let (proxy, mut wire) = (Proxy::to(&server), server.wire());
    let ours = |wire: &mut Wire| wire.must(&["CLIENT", "LIST"]).text().lines().count() - 1;
    let leases = Client::builder().url(proxy.url()).build().await.unwrap();
    take(&mut wire, "job");
    // The handshake begins with this command.
    let handshake = proxy.on(Match::command("PING"), 1, Action::Hold);
    let lock = leases.lock("job");
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    within(SOON, "pushes are asked for", handshake.hit()).await;

    waiter.abort();
    assert!(waiter.await.is_err_and(|error| error.is_cancelled()));
    leases.close().await;
    drop(leases);
    handshake.release();
    eventually_async(SOON, "every connection is closed", || ours(&mut wire) == 0).await;
}
