//! Waiting for a lock over a quorum: which event wakes which waiter, the cost to the nodes, and which waiter acquires.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Lease, doctor::survey};
use support::{
    Child, Lag, Match, Part, SIGNAL, Server, Wire, eventually_async,
    scripts::{RENEW, REPAIR},
    seen, start_anew, timed, waiter_is_tracked, within,
};
use tokio::{sync::Semaphore, task::JoinHandle};

use super::scene::{HANGS, Scene, builder, built, renewals};
use crate::common::{COMMAND, Calm, Confirmed as _, FENCE, LONG, MEDIUM, NAME, in_vain};

/// Lets the waiter wait for the lock, and releases it. Returns how long the hand-off took, and the new lease.
async fn handed_over(scene: &Scene, holder: &Client, waiter: &Client, watching: usize) -> (Duration, Lease) {
    let mut wires = scene.wires();
    start_anew(&mut wires).await;
    let lease = holder.lock(NAME).ttl(LONG).acquire().await.expect("it is free");
    let waiter = timed(waiter.lock(NAME).ttl(LONG).acquire());
    waiter_is_tracked(&mut wires, watching).await;
    let released = Instant::now();
    lease.release().await.expect("it was ours to the end").confirmed();
    let (next, at) = within(HANGS, "the waiter has it", waiter).await.expect("it does not panic");
    (at.saturating_duration_since(released), next.expect("it was released"))
}

async fn has_it(waiter: JoinHandle<Result<Lease, Error>>) {
    let lease = within(HANGS, "the waiter has it", waiter).await.expect("it does not panic");
    lease.expect("it was released").release().await.expect("it was ours to the end").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_another_process_is_notified() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let holder = scene.other().await;
        for round in 0..20 {
            let (took, next) = handed_over(&scene, &holder, &scene.leases, nodes).await;
            // By then a polling waiter pauses for up to a second, and a tracked one for the TTL.
            let limit = SIGNAL + scene.lag.of(3);
            assert!(took <= limit, "round {round} of {nodes} nodes: {took:?}, not within {limit:?}");
            next.release().await.expect("it was ours to the end").confirmed();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_without_notifications_delays_nothing() {
    let scene = Scene::of(3).await;
    let holder = scene.other().await;
    let [first, second, third] = &scene.nodes[..] else { panic!("three") };
    let partly = built(builder(vec![first.proxy.url(), second.url_without_push(), third.proxy.url()])).await;
    for round in 0..10 {
        let (took, next) = handed_over(&scene, &holder, &partly, 2).await;
        let limit = SIGNAL + scene.lag.of(3);
        assert!(took <= limit, "round {round}: {took:?}, not within {limit:?}");
        next.release().await.expect("it was ours to the end").confirmed();
    }

    third.proxy.black_hole(true);
    for round in 0..10 {
        let (took, next) = handed_over(&scene, &holder, &scene.leases, 2).await;
        // It may be in the middle of a check that waits for the silent node.
        let limit = scene.allowed(SIGNAL + if round == 0 { COMMAND } else { Duration::ZERO });
        assert!(took <= limit, "round {round}: {took:?}, not within {limit:?}");
        next.release().await.expect("it was ours to the end").confirmed();
    }
}

/// If tries gave up on split votes, each would report that another holder has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_simultaneous_tries_acquires() {
    let scene = Scene::of(3).await;
    let mut programs = Vec::new();
    for _ in 0..5 {
        programs.push(built(builder(scene.urls()).command_timeout(Duration::from_secs(3))).await);
    }
    for round in 0..20 {
        let name = format!("job-{round}");
        let tries: Vec<_> =
            programs.iter().map(|program| tokio::spawn(program.lock(&name).ttl(LONG).try_acquire())).collect();
        let mut leases = Vec::new();
        for one in tries {
            leases.extend(
                within(HANGS, "a try ends", one).await.expect("it does not panic").expect("the nodes are well"),
            );
        }
        assert_eq!(leases.len(), 1, "round {round}");
    }
}

/// Attempts that split the votes undo their grants, so a key that stays belongs to a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_does_not_wait_for_votes_that_stay_split() {
    let scene = Scene::with(3, |builder| builder.command_timeout(HANGS)).await;
    let (other, mut leases, mut ours) = (scene.other().await, Vec::new(), Vec::new());
    for name in ["one", "two"] {
        leases.push(other.lock(name).ttl(LONG).acquire().await.expect("it is free"));
        ours.push(scene.wires()[0].get(name).expect("it is held"));
    }
    for values in [["another library's", "a third one's"], [&ours[0], &ours[1]]] {
        for (mut wire, value) in scene.wires().into_iter().zip(values) {
            wire.must(&["SET", NAME, value, "PX", "60000"]);
        }
        let began = Instant::now();
        let tried = within(HANGS, "the try ends", scene.leases.lock(NAME).ttl(LONG).try_acquire()).await;
        let (took, limit) = (began.elapsed(), scene.allowed(HANGS / 8));
        assert!(tried.expect("the nodes are well").is_none() && took < limit, "{values:?}: {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_after_split_votes_is_shorter_than_the_wait_for_a_silent_node() {
    for _ in 0..3 {
        let scene = Scene::of(3).await;
        let [first, second, third] = &scene.nodes[..] else { panic!("three") };
        first.server.wire().must(&["SET", NAME, "somebody", "PX", "60000"]);
        third.proxy.black_hole(true);
        let waiter = timed(scene.leases.lock(NAME).ttl(LONG).acquire());
        // Each side has one vote: the third node would decide, but does not answer.
        eventually_async(HANGS, "the waiter has the second", || second.server.wire().get(NAME).is_some()).await;
        let freed = Instant::now();
        first.server.wire().del(NAME);
        let (lease, at) = within(HANGS, "it has the lock", waiter).await.expect("it does not panic");
        // The wait for the third, and a pause. A pause as long as that wait would exceed 600 ms.
        let (took, limit) = (at.saturating_duration_since(freed), scene.allowed(COMMAND * 3 / 2));
        assert!(took <= limit, "{took:?}, not within {limit:?}");
        lease.expect("it is free").release().await.expect("it was ours to the end").confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_polls_where_a_majority_sends_no_notifications() {
    let scene = Scene::of(3).await;
    let holder = scene.other().await;
    let [first, second, third] = &scene.nodes[..] else { panic!("three") };
    let polls = built(builder(vec![first.proxy.url(), second.url_without_push(), third.url_without_push()])).await;
    for _ in 0..3 {
        let (took, next) = handed_over(&scene, &holder, &polls, 1).await;
        // The longest pause of the backoff.
        assert!(took <= scene.allowed(Duration::from_secs(1) + SIGNAL), "{took:?}");
        next.release().await.expect("it was ours to the end").confirmed();
    }
}

/// The number of scripts that each node has run.
fn scripts_run(wires: &mut [Wire]) -> Vec<usize> {
    wires.iter_mut().map(Wire::scripts).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_do_not_make_a_waiter_thrash() {
    const RENEWALS: usize = 6;
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let (lease, other) = (scene.acquire_everywhere(MEDIUM).await, scene.other().await);
        let calm = Calm::of(&lease);
        let mut wires = scene.wires();
        let waiter = tokio::spawn(other.lock(NAME).acquire());
        waiter_is_tracked(&mut wires, nodes).await;
        scene.is_renewed(&lease, MEDIUM).await;
        // The machine may add renewals by answering one late.
        let renewed = || scene.nodes.iter().map(|node| renewals(node, &lease).len());
        let (first, before) = (renewed().collect::<Vec<_>>(), scripts_run(&mut wires));
        for _ in 0..RENEWALS {
            scene.is_renewed(&lease, MEDIUM).await;
        }
        let ran: Vec<usize> =
            scripts_run(&mut wires).iter().zip(before).map(|(after, before)| after - before).collect();
        for ((ran, last), first) in ran.into_iter().zip(renewed()).zip(first) {
            let ours = last - first + 1;
            // A renewal touches the key on every node. Once enough nodes have notified, the waiter checks, and again if
            // the others notify during that check.
            let theirs = ran.saturating_sub(ours);
            let each = if Server::echoes_own_changes() { 3 } else { 2 };
            assert!(theirs <= each * ours, "{theirs} checks at {ours} renewals");
        }
        assert!(!waiter.is_finished());
        calm.lasted(&scene.lag);
        lease.release().await.expect("it was ours to the end").confirmed();
        has_it(waiter).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_release_gives_one_of_ten_waiters_the_lock() {
    // In a round each waiter asks once, and its grant is raised or undone. They spread further with each round, and one
    // has the lock within five (F42).
    let most = WAITERS * 3 * 5;
    // Then the winner's renewal has its keys tracked, and puts its key on the node that it lacks. That may wake each
    // waiter twice: it asks, and undoes that node's grant.
    let most_later = WAITERS * 2 * 2 + WAITERS;
    let (lag, mut ran, mut ran_later) = (Lag::start(), Vec::new(), Vec::new());
    for _ in 0..5 {
        let (until_won, later) = scripts_of_one_release().await;
        ran.push(until_won);
        ran_later.push(later);
    }
    println!("scripts run on the busiest node: {ran:?}, and {ran_later:?} until all were at rest");
    assert!(ran.iter().all(|ran| *ran <= most), "{ran:?}, not {most}; the machine lagged {:?}", lag.worst());
    let is_quiet = ran_later.iter().all(|ran| *ran <= most_later);
    assert!(is_quiet, "{ran_later:?}, not {most_later}; the machine lagged {:?}", lag.worst());
}

/// A renewal wakes all waiters. If each waiter's short-lived grant on the node that the holder lacks caused a renewal,
/// that would wake them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_on_a_node_that_the_holder_lacks_are_a_repair_there_and_renew_nowhere() {
    const CHANGES: usize = 10;
    let scene = Scene::of(3).await;
    let [first, _, lacked] = &scene.nodes[..] else { panic!("three") };
    let mut wire = lacked.server.wire();
    wire.must(&["SET", NAME, "somebody", "PX", "60000"]);
    // This enables notifications. If they were enabled later, all leases would be renewed in case they missed one.
    let _told = survey(&scene.leases).await;
    let mut wires = scene.wires();
    let are_on = || wires.iter_mut().all(|wire| wire.trackers().len() == 1);
    eventually_async(HANGS, "notifications are on", are_on).await;
    let lease = scene.acquire(LONG).await;
    // Its first renewal, which has the key tracked on every node. The next one is due in ten seconds.
    scene.are_watched(1).await;
    let asked = || lacked.proxy.count(Match::script(RENEW)) + lacked.proxy.count(Match::script(REPAIR));
    let before = renewals(first, &lease).len();
    for change in 0..CHANGES {
        let (before, value) = (asked(), format!("somebody, {change}"));
        wire.must(&["SET", NAME, &value, "PX", "60000"]);
        eventually_async(HANGS, "the holder asks that node", || asked() > before).await;
    }
    wire.del(NAME);
    scene.is_everywhere(&lease, HANGS).await;
    assert_eq!(renewals(first, &lease).len(), before, "{CHANGES} changes on another node");
    lease.release().await.expect("it was ours to the end");
    scene.is_taken_away(NAME).await;
}

const WAITERS: usize = 10;

/// How many scripts the busiest node runs after a release with ten waiters, until one of them has the lock; and from
/// then on until the others stop asking.
async fn scripts_of_one_release() -> (usize, usize) {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(LONG).await;
    let (inside, may_go) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
    let mut waiters = Vec::new();
    for _ in 0..WAITERS {
        // No node counts as silent here, so a slow answer does not lose a vote.
        let leases = built(builder(scene.urls()).command_timeout(LONG)).await;
        let (inside, may_go) = (inside.clone(), may_go.clone());
        waiters.push(tokio::spawn(async move {
            let lease = leases.lock(NAME).ttl(LONG).acquire().await.expect("the nodes are well");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
            may_go.acquire().await.expect("it stays open").forget();
            inside.fetch_sub(1, Ordering::SeqCst);
            lease.check().expect("it was not taken");
            lease.release().await.expect("it was ours to the end").confirmed();
        }));
    }
    let mut wires = scene.wires();
    // Each waiter tracks the lock and its fence on each node. But if the holder has renewed since a waiter's check,
    // that node no longer tracks the lock, and one node is too few to check again.
    let items = |wires: &mut [Wire]| wires.iter_mut().map(Wire::tracked_items).sum::<usize>();
    eventually_async(HANGS, "all waiters are tracked", || items(&mut wires) >= (2 * 3 - 1) * WAITERS).await;
    let before = scripts_run(&mut wires);
    lease.release().await.expect("it was ours to the end").confirmed();
    eventually_async(HANGS, "one waiter has it", || inside.load(Ordering::SeqCst) == 1).await;
    let after = scripts_run(&mut wires);
    // The winner may lack a node, which the others then ask for. They stop once it has that node too.
    let (mut last, mut since) = (after.clone(), Instant::now());
    eventually_async(HANGS, "the others are at rest", || {
        let now = scripts_run(&mut wires);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() >= Duration::from_millis(500)
    })
    .await;
    assert_eq!(inside.load(Ordering::SeqCst), 1);
    let busiest = |from: &[usize], to: &[usize]| to.iter().zip(from).map(|(to, from)| to - from).max().unwrap_or(0);
    let ran = (busiest(&before, &after), busiest(&after, &last));
    may_go.add_permits(WAITERS);
    for waiter in waiters {
        within(HANGS * 2, "each has its turn", waiter).await.expect("one at a time");
    }
    scene.is_taken_away(NAME).await;
    ran
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_minority_is_not_acquired_and_undone_without_end() {
    const OTHERS: usize = 3;
    let scene = Scene::of(3).await;
    // The holder uses another library, which repairs nothing.
    let mut wires = scene.wires();
    for wire in &mut wires[..2] {
        wire.must(&["SET", NAME, "somebody", "PX", "60000"]);
    }
    let mut waiters = Vec::new();
    for _ in 0..OTHERS {
        let acquire = scene.other().await.lock(NAME).ttl(LONG).acquire();
        waiters.push(tokio::spawn(async move {
            acquire.await.expect("the nodes are well").release().await.expect("it was ours to the end").confirmed();
        }));
    }
    let items = |wire: &mut Wire| wire.tracked_items() >= 2 * OTHERS;
    eventually_async(HANGS, "all waiters are tracked", || wires[..2].iter_mut().all(items)).await;
    let before = scripts_run(&mut wires);
    // The time over which checks are counted.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ran: Vec<usize> = scripts_run(&mut wires).iter().zip(before).map(|(after, before)| after - before).collect();
    // One check and its undo for each waiter may have been under way.
    println!("scripts run on each node: {ran:?}");
    assert!(ran.iter().all(|&ran| ran <= 4 * 3), "{ran:?} scripts in a second in which nothing happened");
    for wire in &mut wires[..2] {
        wire.del(NAME);
    }
    for waiter in waiters {
        within(HANGS, "each has it", waiter).await.expect("it does not panic");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_deleted_on_one_node_lets_nobody_in_and_is_repaired() {
    // Long enough to survive a stall, because its repair takes a good part of it.
    const TTL: Duration = MEDIUM.saturating_mul(2);
    let scene = Scene::of(3).await;
    let (lease, other) = (scene.acquire_everywhere(TTL).await, scene.other().await);
    let token = scene.is_everywhere(&lease, HANGS).await;
    let calm = Calm::of(&lease);
    let mut wires = scene.wires();
    let waiter = tokio::spawn(other.lock(NAME).ttl(TTL).acquire());
    waiter_is_tracked(&mut wires, 3).await;
    for round in 0..9 {
        let deleted = Instant::now();
        wires[round % 3].del(NAME);
        // The waiter may have been granted it there for a moment; then a renewal finds it missing.
        assert_eq!(scene.is_everywhere(&lease, HANGS).await, token, "it is the holder's");
        let (took, limit) = (deleted.elapsed(), scene.allowed(TTL * 2 / 3 + SIGNAL));
        assert!(took <= limit, "round {round}: repaired after {took:?}, not within {limit:?}");
        assert!(!waiter.is_finished());
        lease.check().expect("a majority has its key");
    }
    calm.lasted(&scene.lag);
    lease.release().await.expect("it was ours to the end").confirmed();
    has_it(waiter).await;
}

#[test]
fn f1_holder_killed() {
    const TTL: Duration = Duration::from_secs(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    if let Some(part) = Part::mine() {
        return runtime.block_on(async {
            let leases = built(builder(part.url.split(',').map(ToOwned::to_owned).collect())).await;
            let lease = leases.lock(NAME).ttl(TTL).acquire().await.expect("it is free");
            part.say(lease.fence());
            part.hear();
        });
    }
    runtime.block_on(async {
        let scene = Scene::of(3).await;
        let mut holder = Child::start(f1_holder_killed, "hold", &scene.urls().join(","));
        let fence: u64 = holder.says("").parse().expect("a fence");
        let waiter = timed(scene.leases.lock(NAME).ttl(TTL).acquire());
        waiter_is_tracked(&mut scene.wires(), 3).await;
        // By then it has renewed a few times.
        tokio::time::sleep(TTL).await;
        holder.kill();
        let killed = Instant::now();
        let (lease, at) = within(HANGS, "the waiter has it", waiter).await.expect("it does not panic");
        let (took, lease) = (at.saturating_duration_since(killed), lease.expect("the keys run out"));
        let bound = TTL + Duration::from_millis(250);
        seen::took("quorum: next holder after the kill", took, bound, &scene.lag);
        assert!(took <= scene.allowed(bound), "{took:?}");
        assert!(u64::from(lease.fence()) > fence);
        lease.release().await.expect("it was ours to the end").confirmed();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_over_two_hundred_hand_offs_among_four() {
    const CONTENDERS: usize = 4;
    const TURNS: usize = 50;
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        // One after the other: these are only touched by the holder of the lock.
        let (inside, fences) = (Arc::new(AtomicU64::new(0)), Arc::new(std::sync::Mutex::new(Vec::new())));
        let mut contenders = Vec::new();
        for _ in 0..CONTENDERS {
            let (leases, inside, fences) = (scene.other().await, inside.clone(), fences.clone());
            contenders.push(tokio::spawn(async move {
                for _ in 0..TURNS {
                    let lease = leases.lock(NAME).ttl(LONG).acquire().await.expect("the nodes are well");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                    fences.try_lock().expect("one at a time").push(lease.fence());
                    tokio::task::yield_now().await;
                    lease.check().expect("it was not taken");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    lease.release().await.expect("it was ours to the end").confirmed();
                }
            }));
        }
        for contender in contenders {
            within(HANGS * 4, "its turns", contender).await.expect("one at a time");
        }
        let fences = fences.lock().expect("it is not poisoned");
        assert_eq!(fences.len(), CONTENDERS * TURNS);
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_times_out_names_the_holder() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let holder = built(builder(scene.urls()).label("the-holder:7")).await;
        let lease = holder.lock(NAME).ttl(LONG).acquire().await.expect("it is free");
        // The last nodes to grant it are raised a moment later.
        eventually_async(HANGS, "every node has its floor", || {
            let floors = scene.tokens(FENCE).into_iter().flatten().filter_map(|floor| floor.parse::<u64>().ok());
            scene.tokens(NAME).iter().all(Option::is_some) && floors.min() >= Some(u64::from(lease.fence()))
        })
        .await;
        for limit in [Duration::ZERO, Duration::from_millis(120)] {
            let error = in_vain(&scene.leases.lock(NAME), limit).await;
            assert!(error.to_string().contains("the-holder:7"), "{error}");
            let Error::TimedOut { name, waited, holder, .. } = error else { panic!("{error}") };
            assert_eq!((&*name, holder.label()), (NAME, Some("the-holder:7")));
            assert_eq!(holder.fence(), Some(lease.fence()));
            assert!(holder.remaining().is_some_and(|left| left <= LONG && left > LONG / 2), "{holder:?}");
            assert!(waited >= limit, "{waited:?}");
        }
        lease.release().await.expect("it was ours to the end").confirmed();
    }
}
