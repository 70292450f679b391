//! Leases when the process, its runtime or its clock misbehaves: rows F1, F2, F25, F27 and F30 to F34 of the fault
//! table, and that nothing is left behind.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Wake, Waker},
    time::{Duration, Instant, SystemTime},
};

use leasehold::{Client, Error, Fence, Lease, Lock, LossReason, Owner, Status, SystemClock, testing::Clock};
use support::{
    Child, ClockShim, Dropped, HANGS, Lag, Nodes, Part, Polls, Server, Wire, eventually, eventually_async,
    fenced_write, one_thread, seen, two_workers, within,
};
use tokio::{runtime::Runtime, sync::Notify};

use crate::common::{COMMAND, Calm, Confirmed as _, block_both_workers, ending, program_with};

/// A TTL so long that no key here expires: a key that disappears was released.
const LONG: Duration = Duration::from_secs(60);
/// How late a signal or a return may be after its cause, not counting the machine's lag.
const PROMPT: Duration = Duration::from_millis(50);
/// The time beyond the TTL in which waiters notice that a holder has died (F1). The table allows 250 ms.
const HAND_OFF: Duration = PROMPT;

fn fence(text: &str) -> Fence {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no fence"))
}

/// The lock keys on the server: none of them may stay.
fn lock_keys(wire: &mut Wire) -> Vec<String> {
    let mut keys = wire.keys("*");
    keys.retain(|key| !key.ends_with(":lh:fence"));
    keys
}

/// The number of the server's clients, without this one.
fn other_clients(wire: &mut Wire) -> usize {
    wire.must(&["CLIENT", "LIST"]).text().lines().count() - 1
}

/// The number of keepers in this process. The kernel truncates a thread's name to 15 bytes.
fn keepers() -> usize {
    let names = std::fs::read_dir("/proc/self/task").expect("this process has threads").filter_map(|thread| {
        // A thread may end between the listing and the read.
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    });
    names.filter(|name| name.trim_end() == "leasehold-keepe").count()
}

#[test]
fn f1_holder_killed() {
    const TTL: Duration = Duration::from_millis(400);
    // Waiters' pauses are random: among this many, one that sleeps past the holder's expiry would show.
    const LOCKS: usize = 12;
    if let Some(part) = Part::mine() {
        return one_thread().block_on(async {
            let leases = program_with(&*part.url, TTL).await;
            let mut held = Vec::new();
            for n in 0..LOCKS {
                held.push(leases.lock(format!("job:{n}")).acquire().await.unwrap());
            }
            let fences: Vec<_> = held.iter().map(|lease| lease.fence().to_string()).collect();
            part.say(format!("held {}", fences.join(" ")));
            part.hear();
        });
    }
    let server = Server::start();
    let mut holder = Child::start(f1_holder_killed, "hold", &server.url());
    let fences: Vec<Fence> = holder.says("held").split(' ').map(fence).collect();
    two_workers().block_on(async {
        let leases = program_with(server.url(), TTL).await;
        let lag = Lag::start();
        let waiters: Vec<_> = (0..LOCKS)
            .map(|n| {
                let acquire = leases.lock(format!("job:{n}")).acquire();
                tokio::spawn(async move { (acquire.await, Instant::now()) })
            })
            .collect();
        // By then the waiters' pauses are at their longest, and the holder has renewed several times.
        tokio::time::sleep(3 * TTL).await;
        holder.kill();
        let killed = Instant::now();
        for (waiter, old) in waiters.into_iter().zip(fences) {
            let (lease, acquired) = within(HANGS, "a waiter gets the lock", waiter).await.unwrap();
            let took = acquired.saturating_duration_since(killed);
            let limit = TTL + HAND_OFF + lag.worst();
            seen::took("next holder after the kill", took, TTL + HAND_OFF, &lag);
            assert!(took <= limit, "the waiter had the lock {took:?} after the kill, not within {limit:?}");
            assert!(lease.unwrap().fence() > old);
        }
    });
}

#[test]
fn f2_holder_stopped_and_continued() {
    const TTL: Duration = Duration::from_millis(500);
    if let Some(part) = Part::mine() {
        return one_thread().block_on(async {
            let leases = program_with(&*part.url, TTL).await;
            let held = leases.lock("job").acquire().await.unwrap();
            part.say(format!("held {}", held.fence()));
            // Blocks the thread, so the check below is the first thing after it.
            part.hear();
            assert_eq!(ending(held.check()).reason(), LossReason::Expired);
            let lost = within(HANGS, "the signal", held.lost()).await;
            assert_eq!(lost.reason(), LossReason::Expired);
            let late = fenced_write(&mut Wire::to_port(part.port()), "result", "from the past", held.fence());
            late.expect_err("a later holder has written");
            part.say("refused");
        });
    }
    let server = Server::start();
    let mut holder = Child::start(f2_holder_stopped_and_continued, "hold", &server.url());
    let old = fence(&holder.says("held"));
    holder.stop();
    let stopped = Instant::now();
    two_workers().block_on(async {
        let leases = program_with(server.url(), TTL).await;
        let next = within(HANGS, "the next holder", leases.lock("job").acquire()).await.unwrap();
        assert!(next.fence() > old);
        let mut wire = server.wire();
        fenced_write(&mut wire, "result", "from the next holder", next.fence()).unwrap();
        // The length of the stop is the fault itself.
        tokio::time::sleep((2 * TTL).saturating_sub(stopped.elapsed())).await;
        holder.tell("look");
        holder.cont();
        holder.says("refused");
        holder.ends();
        assert_eq!(wire.must(&["HGET", "result", "value"]).text(), "from the next holder");
    });
}

#[test]
fn f25_job_blocks_all_workers() {
    stays_held_while_blocked(&two_workers(), block_both_workers);
}

#[test]
fn f25_job_blocks_the_only_thread() {
    stays_held_while_blocked(&one_thread(), std::thread::sleep);
}

/// Asserts that the lease stays held while `block` blocks every thread of `runtime` for the given time.
fn stays_held_while_blocked(runtime: &Runtime, block: impl FnOnce(Duration)) {
    const TTL: Duration = Duration::from_secs(2);
    let server = Server::start();
    let mut wire = server.wire();
    runtime.block_on(async {
        let leases = program_with(server.url(), TTL).await;
        let lease = leases.lock("job").acquire().await.unwrap();
        let token = wire.get("job");
        block(3 * TTL);
        assert!(lease.check().is_ok(), "{:?}", lease.check());
        assert_eq!(lease.status(), Status::Held);
        assert_eq!(wire.get("job"), token, "there was no other holder");
        lease.release().await.expect("it was ours to the end").confirmed();
    });
}

#[test]
fn f27_wall_clock_steps() {
    const TTL: Duration = Duration::from_secs(2);
    const HOUR: Duration = Duration::from_secs(60 * 60);
    const SECONDS: f64 = 10.0;
    if let Some(part) = Part::mine() {
        return one_thread().block_on(async {
            let (server, memory) = (program_with(&*part.url, TTL).await, program_with("memory://", TTL).await);
            let (boot, wall) = (Instant::now(), SystemTime::now());
            let leases = [
                (&server, server.lock("job").acquire().await.unwrap()),
                (&memory, memory.lock("job").acquire().await.unwrap()), //
            ];
            loop {
                part.say("ready");
                let command = part.hear();
                let Some(expected) = command.strip_prefix("stepped ") else { break };
                let expected: f64 = expected.parse().unwrap();
                // Without this, a shim that does not reach this process would make the test pass.
                let shown = match SystemTime::now().duration_since(wall) {
                    Ok(forward) => forward.as_secs_f64(),
                    Err(back) => -back.duration().as_secs_f64(),
                };
                let moved = shown - boot.elapsed().as_secs_f64();
                assert!((moved - expected).abs() < SECONDS, "the wall clock moved by {moved} s, not {expected} s");
                // Longer than a lease lasts without renewals, so any effect of the step has happened by then.
                let (lag, calm) = (Lag::start(), leases.each_ref().map(|(_, lease)| Calm::of(lease)));
                tokio::time::sleep(2 * TTL).await;
                for calm in calm {
                    calm.lasted(&lag);
                }
                for (store, lease) in &leases {
                    assert!(lease.check().is_ok(), "{:?}", lease.check());
                    // Acquires, waits that time out, and releases use the same clocks.
                    let waited = Instant::now();
                    let others = store.lock("job").owner(Owner::anonymous()).acquire_within(TTL / 10).await;
                    // `Unavailable` if a loaded machine leaves the last check unanswered.
                    assert!(others.as_ref().is_err_and(Error::is_transient), "{others:?}");
                    assert!((TTL / 10..HANGS).contains(&waited.elapsed()), "{:?}", waited.elapsed());
                    store.lock("another job").acquire().await.unwrap().release().await.unwrap().confirmed();
                }
            }
            for (store, lease) in leases {
                let old = lease.fence();
                lease.release().await.expect("it was ours to the end").confirmed();
                assert!(store.lock("job").acquire().await.unwrap().fence() > old);
            }
        });
    }
    let server = Server::start();
    let mut wire = server.wire();
    let clock = ClockShim::new();
    let mut holder = Child::start_by_clock(f27_wall_clock_steps, "hold", &server.url(), &clock);
    holder.says("ready");
    let token = wire.get("job").expect("the child holds the lock");
    let lag = Lag::start();
    clock.forward(HOUR);
    holder.tell("stepped 3600");
    holder.says("ready");
    assert_eq!(wire.get("job"), Some(token.clone()), "the machine lagged {:?}", lag.worst());
    clock.back(2 * HOUR);
    holder.tell("stepped -3600");
    holder.says("ready");
    assert_eq!(wire.get("job"), Some(token), "the machine lagged {:?}", lag.worst());
    holder.tell("end");
    holder.ends();
}

/// The machine's clock plus the time that the machine has slept.
#[derive(Debug, Clone, Default)]
struct Sleeper(Arc<AtomicU64>);

impl Sleeper {
    fn sleep(&self, span: Duration) {
        let millis = u64::try_from(span.as_millis()).expect("a short sleep");
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for Sleeper {
    fn now(&self) -> Duration {
        SystemClock.now() + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// Records when a waker was called, on the calling thread, so that no other thread's delay is included.
#[derive(Debug, Default)]
struct Woken(OnceLock<Instant>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.get_or_init(Instant::now);
    }
}

#[test]
fn f30_machine_suspends() {
    // Before the distant first renewal there is only a check, at least every 250 ms.
    const TTL: Duration = Duration::from_secs(30);
    const LOOK: Duration = Duration::from_millis(250);
    let (server, nodes) = (Server::start(), Nodes::start(3));
    let over = |servers: &[Server]| -> Vec<Wire> { servers.iter().map(Server::wire).collect() };
    two_workers().block_on(async {
        for (builder, mut wires) in [
            (Client::builder().url(server.url()), over(std::slice::from_ref(&server))),
            (Client::builder().quorum(nodes.urls()).restart_delay(Duration::ZERO), over(&nodes)),
            (Client::builder().url("memory://"), Vec::new()),
        ] {
            let clock = Sleeper::default();
            let leases = builder.ttl(TTL).clock(clock.clone()).build().await.unwrap();
            let looked_at = leases.lock("looked at").acquire().await.unwrap();
            let awaited = leases.lock("awaited").acquire().await.unwrap();
            let (mut signal, woken) = (Box::pin(awaited.lost()), Arc::new(Woken::default()));
            let waker = Waker::from(woken.clone());
            assert!(signal.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let lag = Lag::start();
            // By then the check planned before anything was held has been made.
            tokio::time::sleep(2 * LOOK).await;

            clock.sleep(2 * TTL);
            let (first_look, resumed) = (looked_at.check(), Instant::now());
            assert_eq!(ending(first_look).reason(), LossReason::Expired);
            assert!(!looked_at.is_held());
            assert_eq!(looked_at.remaining(), Duration::ZERO);

            eventually(HANGS, "the signal", || woken.0.get().is_some());
            let took = woken.0.get().expect("the signal came").saturating_duration_since(resumed);
            let limit = LOOK + PROMPT + lag.worst();
            seen::took("signal after resume", took, LOOK + PROMPT, &lag);
            assert!(took <= limit, "the signal took {took:?}, not {limit:?}, after resume");
            let lost = within(HANGS, "the reason", signal).await;
            assert_eq!(lost.reason(), LossReason::Expired);
            for lease in [looked_at, awaited] {
                match lease.release().await {
                    Err(Error::Lost(lost)) => assert_eq!(lost.reason(), LossReason::Expired),
                    other => panic!("the release returned {other:?}"),
                }
            }
            // A lost lease is released too.
            let is_gone = || wires.iter_mut().all(|wire| lock_keys(wire).is_empty());
            eventually_async(HANGS, "what was lost is taken off the servers", is_gone).await;
        }
    });
}

#[derive(Debug, Clone, Copy)]
enum Call {
    Acquire,
    AcquireWithin,
    TryAcquire,
}

impl Call {
    fn on(self, lock: &Lock) -> Pin<Box<dyn Future<Output = Result<Lease, Error>> + Send>> {
        match self {
            Self::Acquire => Box::pin(lock.acquire()),
            Self::AcquireWithin => Box::pin(lock.acquire_within(HANGS)),
            Self::TryAcquire => {
                let attempt = lock.try_acquire();
                Box::pin(async move { Ok(attempt.await?.expect("it is free")) })
            }
        }
    }
}

/// Drops an acquire after its first poll, then one after its second and so on, until one is ready before that. Returns
/// the names used and the fewest polls that any of the acquires took.
async fn drop_after_each_poll(ours: &Client, theirs: &Client) -> (Vec<String>, usize) {
    const MOST_POLLS: usize = 200;
    let (mut names, mut fewest) = (Vec::new(), MOST_POLLS);
    for dropped in [Dropped::AtOnce, Dropped::WhenWoken] {
        for call in [Call::Acquire, Call::AcquireWithin, Call::TryAcquire] {
            for held in [false, true] {
                if held && matches!(call, Call::TryAcquire) {
                    continue;
                }
                let mut ready = None;
                for polls in 1..=MOST_POLLS {
                    // A new name each time, because a dropped acquire may reach the server after the next has begun.
                    let name = format!("{dropped:?} {call:?} held={held} polls={polls}");
                    names.push(name.clone());
                    let seen = Arc::new(Notify::new());
                    let mut lock = ours.lock(&name);
                    let mut holder = None;
                    if held {
                        let lease = theirs.lock(&name).acquire().await.unwrap();
                        let (see, seen) = (seen.clone(), seen.clone());
                        lock = lock.on_wait(move |_| see.notify_one());
                        // In a task of its own, so that it causes no polls of the acquire.
                        holder = Some(tokio::spawn(async move {
                            seen.notified().await;
                            lease.release().await.expect("the holder kept it").confirmed();
                        }));
                    }
                    let acquire = Polls::of(call.on(&lock), polls, dropped);
                    let outcome = within(HANGS, &name, acquire).await;
                    seen.notify_one();
                    if let Some(holder) = holder {
                        holder.await.unwrap();
                    }
                    if let Some(lease) = outcome {
                        lease.unwrap_or_else(|error| panic!("{name}: {error}")).release().await.unwrap().confirmed();
                        ready = Some(polls);
                        break;
                    }
                }
                let polls = ready.unwrap_or_else(|| panic!("{call:?} was not ready after {MOST_POLLS} polls"));
                fewest = fewest.min(polls);
            }
        }
    }
    (names, fewest)
}

/// Asserts that nothing is left of the acquires that `ours` dropped: no key, place in line, owner's seat or task.
/// Closes `ours`, which must have been built with [`UNDO`] as its command time-out.
async fn nothing_is_left(ours: Client, look: &Client, names: &[String]) {
    seen::counted("acquires dropped at some poll", names.len());
    for name in names {
        // The same owner asks again: once the undo is done, its dropped attempts do not block it.
        let again = ours.lock(name).acquire_within(HANGS).await;
        again.unwrap_or_else(|error| panic!("{name}: {error}")).release().await.unwrap().confirmed();
    }
    // `close` waits for work under way. If that never ends, it waits for the whole time-out.
    let start = Instant::now();
    ours.close().await;
    let took = start.elapsed();
    assert!(took < UNDO / 2, "close took {took:?}: it found something to wait for");
    for name in names {
        assert_eq!(look.lock(name).holder().await.unwrap(), None, "{name} has a holder");
    }
}

/// A command time-out never reached on a healthy server.
const UNDO: Duration = Duration::from_secs(4);

/// The server has answered all along: answers that this process did not read in time are not failures.
#[test]
fn calls_go_on_where_their_process_stood_still() {
    if let Some(part) = Part::mine() {
        return two_workers().block_on(async {
            let leases = Client::builder().url(&part.url).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
            let ended = Arc::new(AtomicU64::new(0));
            let callers: Vec<_> = (0..300)
                .map(|number| {
                    let (lock, ended) = (leases.lock(format!("job:{number}")), ended.clone());
                    tokio::spawn(async move {
                        while ended.load(Ordering::Relaxed) == 0 {
                            lock.try_acquire().await?.expect("it is free").release().await?.confirmed();
                        }
                        Ok::<(), Error>(())
                    })
                })
                .collect();
            part.say("calls");
            tokio::task::spawn_blocking(move || part.hear()).await.unwrap();
            ended.store(1, Ordering::Relaxed);
            let part = Part::mine().unwrap();
            for caller in callers {
                if let Err(error) = within(HANGS, "a caller", caller).await.unwrap() {
                    part.say(format!("failed {error}"));
                }
            }
            part.say("done");
        });
    }
    let server = Server::start();
    let mut child = Child::start(calls_go_on_where_their_process_stood_still, "call", &server.url());
    child.says("calls");
    for _ in 0..3 {
        std::thread::sleep(COMMAND);
        child.stop();
        std::thread::sleep(4 * COMMAND);
        child.cont();
    }
    std::thread::sleep(COMMAND);
    child.tell("enough");
    child.says("done");
}

#[test]
fn f31_acquire_dropped_after_any_poll() {
    let server = Server::start();
    let mut wire = server.wire();
    // With one thread a reply never arrives during a poll, so a future always waits at the same points. With more
    // threads it may. On a runtime other than the connection's, requests take another route.
    for (built_on, used_on) in [(one_thread(), None), (two_workers(), None), (two_workers(), Some(one_thread()))] {
        let (ours, theirs) = built_on.block_on(async {
            let ours = Client::builder().url(server.url()).ttl(LONG).command_timeout(UNDO).build().await.unwrap();
            (ours, program_with(server.url(), LONG).await)
        });
        let deterministic = used_on.is_none() && built_on.metrics().num_workers() == 1;
        used_on.as_ref().unwrap_or(&built_on).block_on(async {
            let (names, fewest) = drop_after_each_poll(&ours, &theirs).await;
            assert!(!deterministic || fewest > 1, "nothing was dropped in the middle");
            nothing_is_left(ours, &theirs, &names).await;
            drop(theirs);
        });
        assert_eq!(lock_keys(&mut wire), [""; 0]);
        // A runtime's connections can only close while the runtime is polled.
        built_on.block_on(async {
            eventually_async(HANGS, "the connections are closed", || other_clients(&mut wire) == 0).await;
        });
    }
}

#[test]
fn f31_acquire_dropped_after_any_poll_in_memory() {
    one_thread().block_on(async {
        let url = "memory://f31";
        let ours = Client::builder().url(url).ttl(LONG).command_timeout(UNDO).build().await.unwrap();
        let theirs = program_with(url, LONG).await;
        let (names, _) = drop_after_each_poll(&ours, &theirs).await;
        nothing_is_left(ours, &theirs, &names).await;
    });
}

#[test]
fn f31_acquire_dropped_while_the_server_is_stopped() {
    let server = Server::start();
    let mut wire = server.wire();
    two_workers().block_on(async {
        let leases = program_with(server.url(), LONG).await;
        let lock = leases.lock("job");
        // The script is then cached, and the acquire is one command, which the stopped server finds on its socket.
        lock.acquire().await.unwrap().release().await.unwrap().confirmed();
        server.stop();
        let acquire = Polls::of(lock.acquire(), 1, Dropped::AtOnce);
        assert!(acquire.await.is_none(), "a stopped server granted a lock");
        // From here on only the undo itself keeps the connections.
        drop((lock, leases));
        server.cont();
        eventually_async(HANGS, "the undo is done and the connections are closed", || other_clients(&mut wire) == 0)
            .await;
        assert_eq!(lock_keys(&mut wire), [""; 0]);
    });
}

#[test]
fn f32_dropped_inside_a_runtime() {
    let runtime = two_workers();
    let inside = |lease: Lease| runtime.block_on(async { duration_of(|| drop(lease)) });
    drop_releases_without_blocking(&runtime, inside);
    let in_a_task =
        |lease: Lease| runtime.block_on(async { tokio::spawn(async { duration_of(|| drop(lease)) }).await.unwrap() });
    drop_releases_without_blocking(&runtime, in_a_task);
}

#[test]
fn f32_dropped_outside_a_runtime() {
    let runtime = two_workers();
    drop_releases_without_blocking(&runtime, |lease| duration_of(|| drop(lease)));
    // The runtime is not polled meanwhile, but its context is entered.
    let runtime = one_thread();
    drop_releases_without_blocking(&runtime, |lease| duration_of(|| drop(lease)));
    drop_releases_without_blocking(&runtime, |lease| {
        let _context = runtime.enter();
        duration_of(|| drop(lease))
    });
}

#[test]
fn f32_dropped_during_a_panic() {
    let runtime = two_workers();
    let unwind = |lease: Lease| {
        duration_of(|| {
            let caught = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let _held = lease;
                // Panics without printing the message.
                std::panic::resume_unwind(Box::new("the job panics"));
            }));
            let payload = caught.expect_err("the job panics");
            assert_eq!(payload.downcast_ref(), Some(&"the job panics"), "and nothing else does");
        })
    };
    drop_releases_without_blocking(&runtime, unwind);
    drop_releases_without_blocking(&runtime, |lease| runtime.block_on(async { unwind(lease) }));
    drop_releases_without_blocking(&runtime, |lease| std::thread::spawn(move || unwind(lease)).join().unwrap());
}

#[test]
fn f32_dropped_on_a_current_thread_runtime_that_ends() {
    let server = Server::start();
    let mut wire = server.wire();
    let lag = Lag::start();
    // Kept by another runtime, as in a program that outlives one of its runtimes.
    let mut kept = Vec::new();
    for dropped_inside in [true, false] {
        let runtime = one_thread();
        let (leases, lease) = runtime.block_on(async {
            let leases = program_with(server.url(), LONG).await;
            let lease = leases.lock("job").acquire().await.unwrap();
            (leases, lease)
        });
        kept.push(leases);
        assert!(wire.exists("job"));
        let took = if dropped_inside {
            let took = runtime.block_on(async { duration_of(|| drop(lease)) });
            drop(runtime);
            took
        } else {
            drop(runtime);
            duration_of(|| drop(lease))
        };
        let limit = PROMPT + lag.worst();
        seen::took("a drop", took, PROMPT, &lag);
        assert!(took <= limit, "the drop took {took:?}, not {limit:?}");
        eventually(HANGS, "it is released", || !wire.exists("job"));
    }
}

/// Runs `drop_it`, which must drop its lease and return how long that took, against a server that does not answer.
fn drop_releases_without_blocking(runtime: &Runtime, drop_it: impl FnOnce(Lease) -> Duration) {
    let server = Server::start();
    let mut wire = server.wire();
    let lag = Lag::start();
    let (leases, lease) = runtime.block_on(async {
        let leases = program_with(server.url(), LONG).await;
        let lease = leases.lock("job").acquire().await.unwrap();
        (leases, lease)
    });
    assert!(wire.exists("job"));
    // A drop that waited for an answer would take long.
    server.stop();
    let took = drop_it(lease);
    let limit = PROMPT + lag.worst();
    seen::took("a drop", took, PROMPT, &lag);
    server.cont();
    assert!(took <= limit, "the drop took {took:?}, not {limit:?}");
    eventually(HANGS, "it is released", || !wire.exists("job"));
    drop(leases);
}

fn duration_of(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}

#[test]
fn f33_runtime_shut_down_with_1000_leases() {
    const TTL: Duration = Duration::from_secs(8);
    const LEASES: usize = 1_000;
    const AT_ONCE: Duration = Duration::from_secs(1);
    if let Some(part) = Part::mine() {
        let runtime = two_workers();
        let leases = runtime.block_on(async {
            let leases = program_with(&*part.url, TTL).await;
            let acquires: Vec<_> =
                (0..LEASES).map(|n| tokio::spawn(leases.lock(format!("job:{n}")).acquire())).collect();
            for acquire in acquires {
                let lease = acquire.await.unwrap().unwrap();
                tokio::spawn(async move {
                    let lost = lease.lost().await;
                    panic!("{lost}");
                });
            }
            leases
        });
        part.say("held");
        part.hear();
        match &*part.name {
            "shut down" => drop(runtime),
            "shut down in the background" => runtime.shutdown_background(),
            "exit" => std::process::exit(0),
            "live on" => {
                drop(runtime);
                part.say("shut down");
                part.hear();
            }
            other => panic!("what is {other:?}?"),
        }
        drop(leases);
        return;
    }
    let mut ended = Vec::new();
    let lag = Lag::start();
    for end in ["shut down", "shut down in the background", "exit", "live on"] {
        let server = Server::start();
        let mut wire = server.wire();
        let mut holder = Child::start(f33_runtime_shut_down_with_1000_leases, end, &server.url());
        holder.says("held");
        assert_eq!(lock_keys(&mut wire).len(), LEASES);
        holder.tell("end");
        let mut told = Instant::now();
        if end == "live on" {
            // The process continues, and so does its keeper, which must not continue renewing.
            holder.says("shut down");
            let down = Instant::now();
            eventually(TTL + HANGS, "all is released or expired", || lock_keys(&mut wire).is_empty());
            let (took, limit) = (down.elapsed(), TTL + PROMPT + lag.worst());
            assert!(took <= limit, "all was released or expired after {took:?}, not {limit:?}");
            holder.tell("end");
            told = Instant::now();
        }
        holder.ends();
        let (took, limit) = (told.elapsed(), AT_ONCE + lag.worst());
        seen::took("exit of the process", took, AT_ONCE, &lag);
        assert!(took <= limit, "{end}: the process took {took:?}, not {limit:?}, to exit");
        ended.push((end, Instant::now(), server, wire));
    }
    for (end, at, _server, mut wire) in ended {
        // The row's own bound. A single check follows, which a slow answer cannot outdate.
        std::thread::sleep((TTL + PROMPT + lag.worst()).saturating_sub(at.elapsed()));
        assert_eq!(lock_keys(&mut wire), [""; 0], "{end}: neither released nor expired");
    }
}

#[test]
fn f34_close_with_holders_and_waiters() {
    let server = Server::start();
    let mut wire = server.wire();
    two_workers().block_on(async {
        close_ends_everything(&server.url()).await;
        eventually_async(HANGS, "the connections are closed", || other_clients(&mut wire) == 0).await;
        assert_eq!(lock_keys(&mut wire), [""; 0]);
    });
}

/// Run many times: an attempt about to begin when `close` is called must not begin.
#[test]
fn f34_close_with_holders_and_waiters_in_memory() {
    for round in 0..100 {
        one_thread().block_on(close_ends_everything(&format!("memory://f34-{round}")));
    }
}

async fn close_ends_everything(url: &str) {
    const COMMAND: Duration = Duration::from_secs(1);
    let lag = Lag::start();
    let leases = Client::builder().url(url).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
    let others = program_with(url, LONG).await;
    let (ours, again) = (leases.lock("ours").reentrant(true), leases.lock("alone"));
    let held = [
        ours.acquire().await.unwrap(),
        ours.acquire().await.unwrap(),
        again.acquire().await.unwrap(), //
    ];
    let theirs = others.lock("theirs").acquire().await.unwrap();
    let signals: Vec<_> = held.iter().map(|lease| tokio::spawn(lease.lost())).collect();
    let tokens: Vec<_> = held.iter().map(Lease::cancellation_token).collect();

    let mut waiters = Vec::new();
    let all_wait = Arc::new(AtomicU64::new(0));
    for name in ["ours", "theirs"] {
        for limit in [None, None, Some(LONG), Some(LONG)] {
            let count = all_wait.clone();
            let lock = leases.lock(name).owner(Owner::unique()).on_wait(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
            });
            waiters.push(match limit {
                None => tokio::spawn(lock.acquire()),
                Some(limit) => tokio::spawn(lock.acquire_within(limit)),
            });
        }
    }
    let waiting = u64::try_from(waiters.len()).unwrap();
    eventually_async(HANGS, "everybody waits", || all_wait.load(Ordering::SeqCst) == waiting).await;

    let start = Instant::now();
    within(HANGS, "close", leases.close()).await;
    let (took, limit) = (start.elapsed(), COMMAND + lag.worst());
    seen::took("close", took, COMMAND, &lag);
    assert!(took <= limit, "close took {took:?}, not {limit:?}, with a healthy server");
    for name in ["ours", "alone"] {
        assert_eq!(others.lock(name).holder().await.unwrap(), None, "{name} is free when close returns");
    }
    for waiter in waiters {
        let outcome = within(HANGS, "a waiter ends", waiter).await.unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    for signal in signals {
        let lost = within(HANGS, "a lease is signalled", signal).await.unwrap();
        assert_eq!(lost.reason(), LossReason::Closed);
    }
    assert!(tokens.iter().all(leasehold::CancellationToken::is_cancelled));
    assert_eq!(theirs.check(), Ok(()), "another client's lease is not closed");

    for lock in [leases.lock("ours"), leases.lock("new"), ours] {
        assert!(matches!(lock.acquire().await, Err(Error::Closed)));
        assert!(matches!(lock.acquire_within(LONG).await, Err(Error::Closed)));
        assert!(matches!(lock.try_acquire().await, Err(Error::Closed)));
        assert!(matches!(lock.holder().await.expect_err("closed"), Error::Closed));
        assert!(matches!(lock.force_release().await.expect_err("closed"), Error::Closed));
    }
    for lease in held {
        assert_eq!(ending(lease.check()).reason(), LossReason::Closed);
        let renewed = lease.renew().await;
        assert!(matches!(&renewed, Err(Error::Lost(lost)) if lost.reason() == LossReason::Closed), "{renewed:?}");
        let released = lease.release().await;
        assert!(matches!(&released, Err(Error::Lost(lost)) if lost.reason() == LossReason::Closed), "{released:?}");
    }
    within(COMMAND + lag.worst(), "closing again", leases.close()).await;
    theirs.release().await.unwrap().confirmed();
}

#[test]
fn f34_close_while_the_server_is_stopped() {
    let server = Server::start();
    let mut wire = server.wire();
    two_workers().block_on(async {
        let lag = Lag::start();
        let leases = Client::builder().url(server.url()).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
        let others = program_with(server.url(), LONG).await;
        let held = leases.lock("ours").acquire().await.unwrap();
        let theirs = others.lock("theirs").acquire().await.unwrap();
        let seen = Arc::new(Notify::new());
        let see = seen.clone();
        let waiter = tokio::spawn(leases.lock("theirs").on_wait(move |_| see.notify_one()).acquire());
        within(HANGS, "the waiter waits", seen.notified()).await;

        server.stop();
        let start = Instant::now();
        let closed = tokio::time::timeout(HANGS, leases.close()).await;
        let (took, limit) = (start.elapsed(), COMMAND + PROMPT + lag.worst());
        seen::took("close beside a stopped server", took, COMMAND + PROMPT, &lag);
        server.cont();
        assert!(closed.is_ok() && took <= limit, "close took {took:?}, not {limit:?}, with a stopped server");
        let outcome = within(HANGS, "the waiter ends", waiter).await.unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
        let lost = within(HANGS, "the lease is signalled", held.lost()).await;
        assert_eq!(lost.reason(), LossReason::Closed);
        theirs.release().await.unwrap().confirmed();
        drop((leases, others, held));
        eventually_async(HANGS, "the connections are closed", || other_clients(&mut wire) == 0).await;
    });
}

/// In a process of its own, because its threads are counted.
#[test]
fn the_last_client_to_close_ends_connections_and_keeper() {
    const TTL: Duration = Duration::from_secs(2);
    let Some(part) = Part::mine() else {
        let server = Server::start();
        return Child::start(the_last_client_to_close_ends_connections_and_keeper, "leave", &server.url()).ends();
    };
    let mut wire = Wire::to_port(part.port());
    let mut all_is_gone = |when: &str| {
        eventually(HANGS, &format!("no connection is left {when}"), || other_clients(&mut wire) == 0);
        eventually(HANGS, &format!("no keeper is left {when}"), || keepers() == 0);
    };
    let runtime = two_workers();

    let leases = runtime.block_on(program_with(&*part.url, TTL));
    let clone = leases.clone();
    // A thread sets its name once it runs.
    eventually(HANGS, "one keeper runs", || keepers() == 1);
    drop(leases);
    runtime.block_on(async { clone.lock("job").acquire().await.unwrap().release().await.unwrap().confirmed() });
    drop(clone);
    all_is_gone("after a use");

    let leases = runtime.block_on(program_with("memory://", TTL));
    eventually(HANGS, "one keeper runs", || keepers() == 1);
    drop(leases);
    all_is_gone("of a store in memory");

    // A lease keeps alive everything it needs.
    let leases = runtime.block_on(program_with(&*part.url, TTL));
    let lease = runtime.block_on(leases.lock("job").acquire()).unwrap();
    drop(leases);
    // Longer than a lease lasts without a keeper.
    std::thread::sleep(3 * TTL);
    assert!(lease.check().is_ok(), "{:?}", lease.check());
    runtime.block_on(lease.release()).unwrap().confirmed();
    all_is_gone("after the last lease");

    // A dropped lease's release still needs them.
    let leases = runtime.block_on(program_with(&*part.url, LONG));
    let lease = runtime.block_on(leases.lock("job").acquire()).unwrap();
    drop(leases);
    drop(lease);
    all_is_gone("after the last lease was dropped");
    assert_eq!(lock_keys(&mut wire), [""; 0]);

    let leases = runtime.block_on(program_with(&*part.url, TTL));
    runtime.block_on(leases.close());
    eventually(HANGS, "no connection is left after close", || other_clients(&mut wire) == 0);
    drop(leases);
    eventually(HANGS, "no keeper is left after close", || keepers() == 0);
}
