//! Threads without async, which wait with `block_on`: row F79 of the fault table.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Election, Error, Lease, Lock, LossReason, block_on};
use support::{HANGS, Lag, Match, Proxy, SIGNAL, Server, eventually, one_thread, seen, two_workers};
use tokio::task::{block_in_place, spawn_blocking};

use crate::common::{COMMAND, Confirmed as _, LONG, NAME, SHORT, assert_says_lost, ending, wait};

/// A name that is never sent to the server.
const UNASKED: &str = "unasked";

fn program(url: String) -> Client {
    wait(Client::builder().url(url).command_timeout(COMMAND).build()).unwrap()
}

#[track_caller]
fn assert_refused<F: Future>(call: F) {
    let Err(refused) = block_on(call) else { panic!("it must not wait here") };
    assert!(matches!(refused, Error::Misuse(_)), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        "leasehold::block_on waits, and this thread runs a Tokio runtime: await the call instead"
    );
}

/// Asserts that every call that waits is refused. The lease is released by its drop.
fn each_is_refused(url: &str, leases: &Client, lease: Lease) {
    let lock = leases.lock(UNASKED);
    assert_refused(Client::connect(url));
    assert_refused(lock.acquire());
    assert_refused(lock.run(async |_| -> Result<(), Error> { panic!("no work begins") }));
    assert_refused(leases.close());
    assert_refused(lease.renew());
    assert_refused(lease.lost());
    // Calls that do not wait are allowed.
    lease.check().unwrap();
    lease.on_lost(|_| {});
    assert_refused(lease.handle().share().unwrap().release());
    assert_refused(lease.release());
}

#[test]
fn f79_a_call_on_a_runtimes_thread_is_refused_and_sends_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let other = program(server.url());
    for runtime in [one_thread(), two_workers()] {
        for in_a_task in [false, true] {
            let leases = program(proxy.url());
            let lease = wait(leases.lock(NAME).ttl(LONG).acquire()).unwrap();
            let url = proxy.url();
            proxy.forget();
            let asks = async move {
                each_is_refused(&url, &leases, lease);
                leases
            };
            let leases =
                runtime.block_on(async { if in_a_task { tokio::spawn(asks).await.unwrap() } else { asks.await } });
            // The refused release has dropped the lease.
            wait(wait(other.lock(NAME).acquire_within(HANGS)).unwrap().release()).unwrap().confirmed();
            assert_eq!(proxy.count(Match::containing(UNASKED)), 0);
            assert!(wait(leases.lock(UNASKED).try_acquire()).unwrap().is_some(), "it was not closed either");
            wait(leases.close());
        }
    }
}

#[test]
fn f79_a_thread_that_a_runtime_lets_wait_may_wait() {
    fn cycle(leases: &Client) {
        wait(wait(leases.lock(NAME).acquire()).unwrap().release()).unwrap().confirmed();
    }
    let server = Server::start();
    for runtime in [one_thread(), two_workers()] {
        let url = server.url();
        runtime.block_on(async {
            let (leases, other) = spawn_blocking(move || {
                let leases = program(url);
                cycle(&leases);
                (leases.clone(), leases)
            })
            .await
            .unwrap();
            // Its connection is on this runtime.
            let own = Client::connect(server.url()).await.unwrap();
            spawn_blocking(move || cycle(&own)).await.unwrap();
            spawn_blocking(move || cycle(&leases)).await.unwrap();
            // And the other way around.
            other.lock(NAME).acquire().await.unwrap().release().await.unwrap().confirmed();
        });
        let leases = program(server.url());
        let _entered = runtime.enter();
        cycle(&leases);
    }
    let runtime = two_workers();
    let leases = program(server.url());
    runtime.block_on(runtime.spawn(async move { block_in_place(|| cycle(&leases)) })).unwrap();
}

/// The lease is dropped in the panicking thread, which does not wait. If unreleased, the key would outlive the test.
#[test]
fn f79_a_lease_that_a_panic_drops_is_released() {
    let server = Server::start();
    let (leases, other) = (program(server.url()), program(server.url()));
    let lock = leases.lock(NAME).ttl(LONG);
    let panics = || -> Result<(), Error> { panic!("work that panics, as it is meant to") };
    for way in 0..3 {
        let (begun, has_begun) = mpsc::channel();
        let other = other.lock(NAME).on_wait(move |_| begun.send(()).unwrap());
        let mut waits = None;
        // The work: another program waits for its lock.
        let begin = || {
            waits = Some(thread::spawn(move || wait(other.acquire_within(HANGS))));
            has_begun.recv_timeout(HANGS).unwrap();
        };
        let panicked = catch_unwind(AssertUnwindSafe(|| match way {
            0 => wait(lock.run(async |_| {
                begin();
                panics()
            })),
            1 => {
                let _lease = wait(lock.acquire())?;
                begin();
                panics()
            }
            _ => {
                let mut begin = Some(begin);
                wait(Election::from(leases.lock(NAME).ttl(LONG)).lead(|_| {
                    begin.take().unwrap()();
                    async { panics().unwrap() }
                }))
            }
        }));
        assert!(panicked.is_err(), "{panicked:?}");
        wait(waits.unwrap().join().unwrap().unwrap().release()).unwrap().confirmed();
    }
}

/// The work blocks in one call for longer than its lease lives, and never checks the lease.
#[test]
fn f79_work_that_blocks_while_its_lease_is_lost_is_told_so_at_the_end() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, other, lag) = (program(proxy.url()), program(server.url()), Lag::start());
    let (tell, told) = mpsc::channel();
    let outcome = wait(leases.lock(NAME).ttl(SHORT).run(async |lease| {
        lease.on_lost(move |lost| tell.send((lost, Instant::now())).unwrap());
        proxy.black_hole(true);
        let cut = Instant::now();
        let (lost, heard) = told.recv_timeout(HANGS).unwrap();
        assert_eq!(lost.reason(), LossReason::Expired);
        seen::took("on_lost after a cut, of a thread that blocks", heard - cut, SHORT + SIGNAL, &lag);
        assert!(heard - cut <= SHORT + SIGNAL + lag.worst(), "{:?}", heard - cut);
        assert_eq!(ending(lease.check()).reason(), LossReason::Expired);
        // The work finishes while another holder is at work.
        drop(wait(other.lock(NAME).acquire_within(HANGS))?);
        Ok("42 rows")
    }));
    assert_eq!(ending(outcome).reason(), LossReason::Expired);
    proxy.black_hole(false);

    // A deleted key has the same effect on a lease held by hand.
    let (lease, mut wire) = (wait(other.lock("by hand").acquire()).unwrap(), server.wire());
    assert!(wire.del("by hand"));
    assert_eq!(wait(lease.lost()).reason(), LossReason::Deleted);
    assert_says_lost(wait(lease.release()), LossReason::Deleted);
    // The work's own error takes precedence over the loss.
    let failed = wait(other.lock("by hand").run(async |lease| {
        assert!(wire.del("by hand"));
        wait(lease.lost());
        Err::<(), _>(Box::<dyn std::error::Error>::from("the disk is full"))
    }));
    assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
}

struct Alone(AtomicBool);

impl Alone {
    /// Asserts that no other thread is in here.
    fn works(&self) {
        assert!(!self.0.swap(true, Ordering::SeqCst), "two work at a time");
        thread::yield_now();
        assert!(self.0.swap(false, Ordering::SeqCst), "two work at a time");
    }
}

fn turns_of_a_hundred_threads(lock: &Lock, what: &str) {
    const TURNS: u32 = 3;
    let (alone, all_begin, lag) = (Alone(AtomicBool::new(false)), Barrier::new(100), Lag::start());
    let longest = thread::scope(|scope| {
        let takes_turns = || {
            all_begin.wait();
            let mut longest = Duration::ZERO;
            for _ in 0..TURNS {
                let began = Instant::now();
                let lease = wait(lock.acquire_within(HANGS)).expect("its turn comes");
                longest = longest.max(began.elapsed());
                alone.works();
                wait(lease.release()).unwrap().confirmed();
            }
            longest
        };
        let threads: Vec<_> = (0..100).map(|_| scope.spawn(takes_turns)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max()
    });
    seen::took(what, longest.unwrap(), HANGS, &lag);
}

#[test]
fn f79_of_a_hundred_threads_none_starves() {
    let server = Server::start();
    let leases = program(server.url());
    turns_of_a_hundred_threads(&leases.lock(NAME), "the longest wait of 100 threads");
    turns_of_a_hundred_threads(&leases.lock(NAME).fair(true), "the longest wait of 100 threads, a fair lock");
    assert_eq!(wait(leases.lock(NAME).waiters()), Ok(vec![]));
}

#[test]
fn f79_threads_with_two_names_never_overlap_and_leave_nothing() {
    const THREADS: u32 = 20;
    const CYCLES: u32 = 50;
    let server = Server::start();
    // Two programs of ten threads each. Without fence memory, no floor key stays.
    let programs: Vec<Client> = (0..2)
        .map(|_| wait(Client::builder().url(server.url()).fence_memory(Duration::ZERO).ttl(LONG).build()).unwrap())
        .collect();
    let (names, done) = (["account:1", "account:2"], AtomicU32::new(0));
    let alone = names.map(|_| Alone(AtomicBool::new(false)));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (leases, names, alone, done) = (&programs[thread as usize % 2], &names, &alone, &done);
            scope.spawn(move || {
                for cycle in 0..CYCLES {
                    let lease = |name: usize| wait(leases.lock(names[name]).acquire_within(HANGS)).unwrap();
                    match (thread + cycle) % 6 {
                        // Both, named in either order.
                        0 => {
                            let order = if thread % 4 < 2 { [0, 1] } else { [1, 0] };
                            let both = leases.multi_lock(order.map(|name| leases.lock(names[name])));
                            let worked = wait(both.run_within(HANGS, async |held| {
                                alone.iter().for_each(Alone::works);
                                held.check()
                            }));
                            worked.unwrap();
                        }
                        // Both by hand, in the order of their names. One is dropped.
                        1 => {
                            let (first, second) = (lease(0), lease(1));
                            alone[1].works();
                            alone[0].works();
                            wait(second.release()).unwrap().confirmed();
                            drop(first);
                        }
                        2 => drop(wait(leases.lock(names[1]).run(async |_| {
                            alone[1].works();
                            Ok::<_, Error>(())
                        }))),
                        3 => drop(wait(leases.lock(names[0]).try_acquire()).unwrap().inspect(|_| alone[0].works())),
                        _ => {
                            let lease = lease(0);
                            alone[0].works();
                            wait(lease.release()).unwrap().confirmed();
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), THREADS * CYCLES);
    for leases in &programs {
        wait(leases.close());
    }
    let mut wire = server.wire();
    eventually(HANGS, "no key is left", || wire.keys("*").is_empty());
}

#[test]
fn on_lost_is_called_once_after_a_loss_and_never_after_a_release() {
    let leases = Client::in_memory();
    let (tell, told) = mpsc::channel();
    let tells = |what: &'static str| {
        let tell = tell.clone();
        move |lost: leasehold::Lost| tell.send((what, lost.reason())).unwrap()
    };
    let lock = leases.lock(NAME);
    for is_dropped in [false, true] {
        let lease = wait(lock.acquire()).unwrap();
        lease.on_lost(tells("released"));
        lease.handle().on_lost(tells("released"));
        if is_dropped {
            drop(lease);
        } else {
            wait(lease.release()).unwrap().confirmed();
        }
    }
    let lease = wait(lock.acquire()).unwrap();
    lease.on_lost(tells("handed over"));
    drop(wait(lock.adopt(lease.into_ticket().unwrap())).unwrap());
    let lease = wait(lock.acquire()).unwrap();
    lease.on_lost(|_| panic!("a callback that panics, as it is meant to"));
    lease.on_lost(tells("before"));
    wait(lock.force_release()).unwrap();
    assert_eq!(told.recv_timeout(HANGS), Ok(("before", LossReason::Forced)));
    lease.on_lost(tells("after"));
    assert_eq!(told.recv_timeout(HANGS), Ok(("after", LossReason::Forced)));
    let handle = lease.handle();
    assert_says_lost(wait(lease.release()), LossReason::Forced);
    assert_eq!(wait(handle.lost()).reason(), LossReason::Forced);

    // A shutdown asks while the lease is held; the lease's own end is then not reported.
    let lease = wait(leases.lock("another job").acquire()).unwrap();
    lease.on_lost(tells("asked"));
    let shuts_down = thread::spawn(move || wait(leases.shutdown(HANGS)));
    assert_eq!(told.recv_timeout(HANGS), Ok(("asked", LossReason::Closing)));
    lease.check().unwrap();
    wait(lease.release()).unwrap().confirmed();
    assert_eq!(shuts_down.join().unwrap(), 0);
    drop(tell);
    let late: Vec<_> = told.iter().collect();
    assert!(late.is_empty(), "{late:?}");
}

thread_local! {
    /// Runs when its thread ends, after Tokio's own value was destroyed, because it was made first.
    static LAST: AtTheEnd = const { AtTheEnd(std::cell::RefCell::new(None)) };
}

struct AtTheEnd(std::cell::RefCell<Option<Box<dyn FnOnce()>>>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        if let Some(last) = self.0.take() {
            last();
        }
    }
}

#[test]
fn a_call_in_a_destructor_of_an_ending_thread_is_refused_or_works_and_never_panics() {
    let server = Server::start();
    let leases = program(server.url());
    let (tell, told) = mpsc::channel();
    let ends = {
        let leases = leases.clone();
        thread::spawn(move || {
            LAST.with(|_| ());
            let lease = wait(leases.lock(NAME).acquire()).unwrap();
            let last = move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    let refused = block_on(leases.lock(UNASKED).try_acquire()).map(drop);
                    lease.check().unwrap();
                    drop(lease);
                    refused
                }));
                tell.send(outcome.map_err(drop)).unwrap();
            };
            LAST.with(|at_the_end| *at_the_end.0.borrow_mut() = Some(Box::new(last)));
        })
    };
    ends.join().unwrap();
    let refused = told.recv_timeout(HANGS).unwrap().expect("it does not panic");
    assert!(matches!(&refused, Err(Error::Misuse(_))), "{refused:?}");
    wait(wait(leases.lock(NAME).acquire_within(HANGS)).unwrap().release()).unwrap().confirmed();
}

/// More callbacks than there are threads for them.
#[test]
fn callbacks_that_block_keep_no_other_lease_waiting_however_many_they_are() {
    const MANY: usize = 80;
    let leases = Client::in_memory();
    let ((begins, begun), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let released = Arc::new(std::sync::Mutex::new(released));
    let all: Vec<_> = (0..MANY).map(|number| wait(leases.lock(number.to_string()).acquire()).unwrap()).collect();
    for lease in &all {
        let (begins, released) = (begins.clone(), released.clone());
        lease.on_lost(move |_| {
            begins.send(()).unwrap();
            let _over = released.lock().unwrap().recv();
        });
        assert!(wait(leases.lock(lease.name()).force_release()).unwrap());
    }
    for number in 0..MANY {
        assert_eq!(begun.recv_timeout(HANGS), Ok(()), "{number} were notified");
    }
    drop(release);
}

#[test]
fn the_first_of_several_leases_that_is_lost_is_told() {
    let leases = Client::in_memory();
    let both = leases.multi_lock(["one", "two"].map(|name| leases.lock(name)));
    let (tell, told) = mpsc::channel();
    let held = wait(both.acquire()).unwrap();
    held.handle().on_lost(move |lost| tell.send(lost).unwrap());
    wait(leases.lock("two").force_release()).unwrap();
    let lost = wait(held.lost());
    assert_eq!((lost.name(), lost.reason()), ("two", LossReason::Forced));
    assert_eq!(told.recv_timeout(HANGS), Ok(lost));
    assert_says_lost(wait(held.release()), LossReason::Forced);
}

#[test]
fn a_close_on_another_thread_ends_the_waits() {
    let leases = Client::in_memory();
    let lease = wait(leases.lock(NAME).acquire()).unwrap();
    let mut leaders = leases.election(NAME).observe().unwrap();
    let (waits, waiting) = mpsc::channel();
    let lock = leases.lock(NAME).on_wait(move |_| waits.send(()).unwrap());
    let acquires = thread::spawn(move || wait(lock.acquire()));
    waiting.recv_timeout(HANGS).unwrap();
    let loses = thread::spawn({
        let handle = lease.handle();
        move || wait(handle.lost())
    });
    wait(leases.close());
    assert_eq!(acquires.join().unwrap().unwrap_err(), Error::Closed);
    assert_eq!(loses.join().unwrap().reason(), LossReason::Closed);
    assert_says_lost(wait(lease.release()), LossReason::Closed);
    while wait(leaders.next()).is_some() {}
}

/// Work on a thread may use the whole API, its own lock included.
#[test]
fn waits_may_nest() {
    let server = Server::start();
    let leases = program(server.url());
    let (outer, inner) = (leases.lock("outer"), leases.lock("inner"));
    let woken = Arc::new(AtomicU32::new(0));
    let sum = wait(outer.run(async |first| {
        wait(first.renew())?;
        let asks = leases.lock("outer").on_wait({
            let (inner, woken) = (inner.clone(), woken.clone());
            move |_| {
                drop(wait(inner.acquire()).unwrap());
                woken.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(wait(asks.try_acquire())?.is_none());
        let second = wait(inner.run(async |second| Ok::<_, Error>(second.hold_count())))?;
        Ok::<_, Error>(first.hold_count() + second)
    }));
    assert_eq!((sum, woken.load(Ordering::Relaxed)), (Ok(2), 1));
}
