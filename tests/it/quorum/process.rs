//! Leases over a quorum when the process, its runtime or its clock misbehaves: rows F2, F25, F27, F31, F32 and F34.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use leasehold::{Error, Lease, LossReason, Owner, Status};
use support::{
    Child, ClockShim, Dropped, Lag, Part, Polls, SIGNAL, Server, Wire, eventually_async, fenced_write, one_thread,
    seen, two_workers, within,
};
use tokio::sync::Notify;

use super::scene::{HANGS, Scene, builder, built};
use crate::common::{COMMAND, Calm, Confirmed as _, LONG, NAME, ending};

/// Far more than a child needs for its task.
const TTL: Duration = Duration::from_secs(2);

fn urls_of(part: &Part) -> Vec<String> {
    part.url.split(',').map(ToOwned::to_owned).collect()
}

#[test]
fn f2_holder_stopped_and_continued() {
    const TTL: Duration = Duration::from_millis(500);
    if let Some(part) = Part::mine() {
        return one_thread().block_on(look_when_continued(&part, TTL));
    }
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url);
    let mut holder = Child::start(f2_holder_stopped_and_continued, "hold", &urls.join(","));
    let old: u64 = holder.says("held").parse().expect("a fence");
    holder.stop();
    let stopped = Instant::now();
    two_workers().block_on(async {
        let (leases, mut resource) = (built(builder(urls.to_vec()).ttl(TTL)).await, servers[2].wire());
        let next = within(HANGS, "the next holder", leases.lock(NAME).acquire()).await.expect("the nodes are well");
        assert!(u64::from(next.fence()) > old);
        fenced_write(&mut resource, "result", "from the next holder", next.fence()).expect("it is the latest");
        // The length of the stop is the fault itself.
        tokio::time::sleep((2 * TTL).saturating_sub(stopped.elapsed())).await;
        holder.tell("look");
        holder.cont();
        holder.says("refused");
        holder.ends();
        assert_eq!(resource.must(&["HGET", "result", "value"]).text(), "from the next holder");
    });
}

async fn look_when_continued(part: &Part, ttl: Duration) {
    // The resource that holders write to, and that checks their fences, is on the last node.
    let mut resource = Wire::to_port(part.port());
    let leases = built(builder(urls_of(part)).ttl(ttl)).await;
    let lease = leases.lock(NAME).acquire().await.expect("it is free");
    part.say(format!("held {}", lease.fence()));
    // Blocks the thread, so the check below is the first thing after it.
    part.hear();
    let first_look = lease.check();
    let lost = ending(first_look);
    // The reason depends on whether a renewal was under way at the stop.
    assert!(matches!(lost.reason(), LossReason::Expired | LossReason::NoQuorum), "{lost:?}");
    assert_eq!(within(HANGS, "the signal", lease.lost()).await, lost);
    fenced_write(&mut resource, "result", "from the past", lease.fence()).expect_err("a later holder has written");
    part.say("refused");
}

#[test]
fn f25_job_blocks_the_only_thread() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let tokens = || servers.each_ref().map(|server| server.wire().token(NAME));
    one_thread().block_on(async {
        let leases = built(builder(servers.each_ref().map(Server::url).to_vec()).ttl(TTL)).await;
        let lease = leases.lock(NAME).acquire().await.expect("it is free");
        eventually_async(HANGS, "every node has it", || tokens().iter().all(Option::is_some)).await;
        let held = tokens();
        std::thread::sleep(3 * TTL);
        assert_eq!((lease.check(), lease.status()), (Ok(()), Status::Held));
        assert_eq!(tokens(), held, "there was no other holder");
        lease.release().await.expect("it was ours to the end").confirmed();
    });
}

#[test]
fn f27_wall_clock_steps() {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    if let Some(part) = Part::mine() {
        return two_workers().block_on(hold_while_the_clock_steps(&part));
    }
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url).join(",");
    let tokens = || servers.each_ref().map(|server| server.wire().token(NAME));
    let clock = ClockShim::new();
    let mut holder = Child::start_by_clock(f27_wall_clock_steps, "hold", &urls, &clock);
    holder.says("ready");
    let held = tokens();
    assert!(held[0].is_some() && held.iter().all(|token| *token == held[0]));
    clock.forward(HOUR);
    holder.tell("stepped 3600");
    holder.says("ready");
    assert_eq!(tokens(), held);
    clock.back(2 * HOUR);
    holder.tell("stepped -3600");
    holder.says("ready");
    assert_eq!(tokens(), held);
    holder.tell("end");
    holder.ends();
}

async fn hold_while_the_clock_steps(part: &Part) {
    let lag = Lag::start();
    let leases = built(builder(urls_of(part)).ttl(TTL)).await;
    let (boot, wall) = (Instant::now(), SystemTime::now());
    let lease = leases.lock(NAME).acquire().await.expect("it is free");
    let calm = Calm::of(&lease);
    // By then a renewal has reached every node.
    tokio::time::sleep(TTL / 2).await;
    loop {
        part.say("ready");
        let command = part.hear();
        let Some(expected) = command.strip_prefix("stepped ") else { break };
        let expected: f64 = expected.parse().expect("seconds");
        // Without this, a shim that does not reach this process would make the test pass.
        let shown = match SystemTime::now().duration_since(wall) {
            Ok(forward) => forward.as_secs_f64(),
            Err(back) => -back.duration().as_secs_f64(),
        };
        let moved = shown - boot.elapsed().as_secs_f64();
        assert!((moved - expected).abs() < 10.0, "the wall clock moved by {moved} s, not {expected} s");
        // Longer than a lease lasts without renewals, so any effect of the step has happened by then.
        tokio::time::sleep(TTL * 3 / 2).await;
        // Acquires, waits that time out, and releases use the same clocks.
        let others = leases.lock(NAME).owner(Owner::anonymous()).acquire_within(TTL / 10).await;
        assert!(others.as_ref().is_err_and(Error::is_transient), "{others:?}");
        let other = leases.lock("another job").acquire().await.expect("it is free");
        other.release().await.expect("it was ours").confirmed();
    }
    calm.lasted(&lag);
    let old = lease.fence();
    lease.release().await.expect("it was ours to the end").confirmed();
    assert!(leases.lock(NAME).acquire().await.expect("it is free").fence() > old);
}

/// Drops an acquire after its first poll, then one after its second and so on, until one is ready before that. Returns
/// the names used.
async fn drop_after_each_poll(scene: &Scene, other: &leasehold::Client, held: bool) -> Vec<String> {
    const MOST_POLLS: usize = 200;
    let mut names = Vec::new();
    for polls in 1..=MOST_POLLS {
        // A new name each time, because a dropped acquire may reach a node after the next has begun.
        let name = format!("held={held} polls={polls}");
        names.push(name.clone());
        let waits = Arc::new(Notify::new());
        let (mut lock, mut holder) = (scene.leases.lock(&name), None);
        if held {
            let lease = other.lock(&name).acquire().await.expect("it is free");
            let (is_seen, seen) = (waits.clone(), waits.clone());
            lock = lock.on_wait(move |_| is_seen.notify_one());
            // In a task of its own, so that it causes no polls of the acquire.
            holder = Some(tokio::spawn(async move {
                seen.notified().await;
                lease.release().await.expect("the holder kept it").confirmed();
            }));
        }
        let acquire = Polls::of(lock.acquire(), polls, Dropped::AtOnce);
        let outcome = within(HANGS, &name, acquire).await;
        waits.notify_one();
        if let Some(holder) = holder {
            holder.await.expect("it does not panic");
        }
        if let Some(lease) = outcome {
            lease.expect("the nodes are well").release().await.expect("it was ours to the end").confirmed();
            return names;
        }
    }
    panic!("it was not ready after {MOST_POLLS} polls");
}

#[test]
fn f31_acquire_dropped_after_any_poll() {
    /// A command time-out never reached on a healthy server.
    const UNDO: Duration = Duration::from_secs(4);
    two_workers().block_on(async {
        for nodes in [3, 5] {
            let scene = Scene::with(nodes, |builder| builder.command_timeout(UNDO)).await;
            let other = scene.other().await;
            let mut names = drop_after_each_poll(&scene, &other, false).await;
            names.extend(drop_after_each_poll(&scene, &other, true).await);
            seen::counted("quorum: acquires dropped at some poll", names.len());
            assert!(names.len() >= 4, "every acquire was ready at once: {names:?}");
            // `close` waits for work under way. If that never ends, it waits for the whole time-out.
            let start = Instant::now();
            scene.leases.close().await;
            assert!(start.elapsed() < UNDO / 2, "close took {:?}: it found something to wait for", start.elapsed());
            other.close().await;
            for name in names {
                assert_eq!(scene.tokens(&name), vec![None; nodes], "{name}");
            }
        }
    });
}

#[test]
fn f31_acquire_dropped_after_any_poll_while_a_node_does_not_answer() {
    two_workers().block_on(async {
        let scene = Scene::of(3).await;
        let other = scene.other().await;
        let silent = &scene.nodes[2].server;
        silent.stop();
        let names = drop_after_each_poll(&scene, &other, false).await;
        silent.cont();
        for name in names {
            // The node now executes what was in its socket, and the undos that follow.
            scene.is_taken_away(&name).await;
        }
    });
}

/// Drops the lease with `drop_it`, and waits until no node has the key.
fn is_released_everywhere(drop_it: impl FnOnce(Lease)) {
    let runtime = two_workers();
    let scene = runtime.block_on(Scene::of(3));
    let lease = runtime.block_on(scene.acquire_everywhere(LONG));
    // A drop that waited for an answer would take the whole time-out.
    scene.nodes.iter().for_each(|node| node.server.stop());
    let start = Instant::now();
    drop_it(lease);
    let took = start.elapsed();
    scene.nodes.iter().for_each(|node| node.server.cont());
    seen::took("quorum: a drop", took, SIGNAL, &scene.lag);
    assert!(took <= scene.allowed(SIGNAL), "the drop took {took:?}");
    runtime.block_on(scene.is_taken_away(NAME));
}

#[test]
fn f32_dropped_inside_a_runtime() {
    let inside = two_workers();
    is_released_everywhere(|lease| inside.block_on(async { drop(lease) }));
}

#[test]
fn f32_dropped_outside_a_runtime() {
    is_released_everywhere(drop);
}

#[test]
fn f32_dropped_during_a_panic() {
    is_released_everywhere(|lease| {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _lease = lease;
            std::panic::resume_unwind(Box::new("a panic of the job"));
        }));
        assert!(panicked.is_err());
    });
}

#[test]
fn f32_dropped_after_the_runtime_that_acquired_it_has_ended() {
    let (scene, lease) = {
        let first = two_workers();
        first.block_on(async {
            let scene = Scene::of(3).await;
            let lease = scene.acquire_everywhere(LONG).await;
            (scene, lease)
        })
    };
    drop(lease);
    two_workers().block_on(scene.is_taken_away(NAME));
}

#[test]
fn f34_close_with_holders_and_waiters() {
    two_workers().block_on(async {
        let scene = Scene::with(3, |builder| builder.command_timeout(COMMAND * 3)).await;
        let other = scene.other().await;
        close_ends_everything(&scene, &other, COMMAND * 3).await;
        for name in ["ours", "alone"] {
            assert_eq!(scene.tokens(name), [None, None, None], "{name} is free on every node when close returns");
        }
    });
}

#[test]
fn f34_close_with_holders_and_waiters_while_a_node_is_black_holed() {
    two_workers().block_on(async {
        let scene = Scene::with(3, |builder| builder.command_timeout(COMMAND * 3)).await;
        let other = scene.other().await;
        scene.nodes[2].proxy.black_hole(true);
        // It waits for that node's answer until the command time-out, and must then return.
        close_ends_everything(&scene, &other, COMMAND * 3 + SIGNAL).await;
        for name in ["ours", "alone"] {
            assert_eq!(other.lock(name).holder().await.expect("the nodes are well"), None, "{name} is free");
        }
    });
}

async fn close_ends_everything(scene: &Scene, other: &leasehold::Client, bound: Duration) {
    let leases = &scene.leases;
    let ours = leases.lock("ours").ttl(LONG).reentrant(true);
    let held = [ours.acquire().await, ours.acquire().await, leases.lock("alone").ttl(LONG).acquire().await];
    let held = held.map(|lease| lease.expect("it is free"));
    let theirs = other.lock("theirs").acquire().await.expect("it is free");
    let signals: Vec<_> = held.iter().map(|lease| tokio::spawn(lease.lost())).collect();

    let (mut waiters, waiting) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
    for name in ["ours", "theirs", "ours", "theirs"] {
        let waiting = waiting.clone();
        let lock = leases.lock(name).owner(Owner::unique()).on_wait(move |_| {
            waiting.fetch_add(1, Ordering::SeqCst);
        });
        waiters.push(tokio::spawn(lock.acquire()));
        waiters.push(tokio::spawn(lock.owner(Owner::unique()).acquire_within(LONG)));
    }
    eventually_async(HANGS, "everybody waits", || waiting.load(Ordering::SeqCst) >= waiters.len()).await;

    let start = Instant::now();
    within(HANGS, "close", leases.close()).await;
    let (took, limit) = (start.elapsed(), scene.allowed(bound));
    seen::took("quorum: close", took, bound, &scene.lag);
    assert!(took <= limit, "close took {took:?}, not {limit:?}");
    for waiter in waiters {
        let outcome = within(HANGS, "a waiter ends", waiter).await.expect("it does not panic");
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    for signal in signals {
        let lost = within(HANGS, "a lease is signalled", signal).await.expect("it does not panic");
        assert_eq!(lost.reason(), LossReason::Closed);
    }
    theirs.check().expect("another client's lease is not closed");
    assert!(matches!(leases.lock("new").try_acquire().await, Err(Error::Closed)));
    for lease in held {
        assert_eq!(ending(lease.check()).reason(), LossReason::Closed);
    }
    theirs.release().await.expect("it was theirs to the end").confirmed();
}
