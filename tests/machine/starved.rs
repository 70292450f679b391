//! The keeper's thread is starved, because many others want the processor: row F26 of the fault table.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Lease, LeaseHandle, LossReason, Lost};
use support::{
    Action, Lag, Match, Proxy, SIGNAL, Server, Stamped,
    scripts::{ACQUIRE, COMBINED, RENEW},
    seen, stamped, within,
};

/// The shortest TTL, so that a thread that waits for its turn comes too late.
const TTL: Duration = Duration::from_millis(100);
const HANGS: Duration = Duration::from_secs(20);
/// The number of runs, of 2 TTL each. The row requires a hundred, if figures are wanted.
fn runs() -> usize {
    if seen::is_wanted() { 100 } else { 20 }
}

/// How many threads want each core. With the fewest a lease survives; with the most a turn comes once in a TTL.
const GREEDY: [usize; 4] = [1, 4, 12, 24];

/// Threads that want all the processors, until dropped.
struct Load {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn begin(run: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().unwrap().get();
        let spin = |_| {
            let over = over.clone();
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..cores * GREEDY[run % GREEDY.len()]).map(spin).collect();
        Self { over, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Records when `check()` was called and returned `Ok`, until it returns an error or the watch ends.
struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Instant>>,
}

impl Watch {
    fn of(lease: LeaseHandle) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let thread = thread::spawn(move || {
            let mut good = Vec::new();
            while let (asked, Ok(()), false) = (Instant::now(), lease.check(), is_over.load(Ordering::Relaxed)) {
                good.push(asked);
                thread::sleep(Duration::from_millis(1));
            }
            good
        });
        Self { over, thread }
    }

    fn end(self) -> Vec<Instant> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// How long a lease may be believed after each of its requests. The proxy reads a request after it was sent.
fn valid() -> Duration {
    TTL.saturating_sub(TTL / 100 + Duration::from_millis(2))
}

/// When the proxy saw runs of these scripts for the lease.
fn requests(proxy: &Proxy, scripts: &[&str], name: &str) -> Vec<Instant> {
    let scripts: Vec<Match> = scripts.iter().map(|script| Match::script(script)).collect();
    let of_this = |args: &[Vec<u8>]| {
        scripts.iter().any(|script| script.matches(args)) && args.iter().any(|arg| arg == name.as_bytes())
    };
    proxy.seen().iter().filter(|seen| of_this(&seen.args)).map(|seen| seen.at).collect()
}

/// Panics if the lease was believed when no request can account for it: a belief follows an answer, and that a request
/// which the proxy had read. (A request answered just before `check()` still found the lease valid.)
fn assert_never_beyond(good: &[Instant], requests: &[Instant]) {
    for asked in good {
        let read = requests.partition_point(|at| at <= asked);
        let until = requests[read - 1] + valid();
        assert!(*asked < until, "check() is Ok {:?} after the deadline", *asked - until);
    }
}

async fn end(lease: Lease) -> Option<LossReason> {
    match lease.release().await {
        Err(Error::Lost(lost)) => Some(lost.reason()),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::await_holding_lock, reason = "tests take turns")]
async fn f26_the_keeper_is_starved() {
    let _turn = super::turn();
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).ttl(TTL).build().await.unwrap();
    let (mut held, mut late) = (0, Duration::ZERO);
    for run in 0..runs() {
        let (name, lag) = (format!("job:{run}"), Lag::start());
        let lease = within(HANGS, "the lock", leases.lock(&name).acquire()).await.unwrap();
        let watch = Watch::of(lease.handle());
        let load = Load::begin(run);
        thread::sleep(2 * TTL);
        drop(load);
        let good = watch.end();
        assert_never_beyond(&good, &requests(&proxy, &[ACQUIRE, RENEW], &name));
        match lease.check() {
            Ok(()) => held += 1,
            Err(error) => assert_eq!(error.lost().map(Lost::reason), Some(LossReason::Expired)),
        }
        let end = end(lease).await;
        assert!(matches!(end, None | Some(LossReason::Expired)), "{end:?}");
        proxy.forget();
        late = late.max(lag.worst());
    }
    seen::counted("still held, of 100", held);
    seen::counted("ms that a control timer came late", usize::try_from(late.as_millis()).unwrap());
}

/// The same for leases acquired at once, most of them in a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::await_holding_lock, reason = "tests take turns")]
async fn f26_the_keeper_is_starved_after_a_batch() {
    const TOGETHER: usize = 12;
    let _turn = super::turn();
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).ttl(TTL).build().await.unwrap();
    let mut batches = 0;
    for run in 0..runs() {
        let name = |number: usize| format!("job:{run}:{number}");
        let asked: Vec<_> = (0..TOGETHER).map(|number| tokio::spawn(leases.lock(name(number)).acquire())).collect();
        let mut held = Vec::new();
        for acquire in asked {
            held.push(within(HANGS, "the lock", acquire).await.unwrap().unwrap());
        }
        let watches: Vec<_> = held.iter().map(|lease| Watch::of(lease.handle())).collect();
        let load = Load::begin(run);
        thread::sleep(2 * TTL);
        drop(load);
        for (number, watch) in watches.into_iter().enumerate() {
            let requests = requests(&proxy, &[ACQUIRE, COMBINED, RENEW], &name(number));
            assert_never_beyond(&watch.end(), &requests);
        }
        for lease in held {
            let end = end(lease).await;
            assert!(matches!(end, None | Some(LossReason::Expired)), "{end:?}");
        }
        batches += proxy.count(Match::script(COMBINED));
        proxy.forget();
    }
    assert!(batches > 0, "nothing was batched: the premise");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::await_holding_lock, reason = "tests take turns")]
async fn f26_the_keeper_is_starved_and_no_renewal_is_confirmed() {
    let _turn = super::turn();
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).ttl(TTL).build().await.unwrap();
    proxy.on_each(Match::script(RENEW), Action::DropRequest);
    for run in 0..runs() {
        let (names, lag) = ([format!("checked:{run}"), format!("awaited:{run}")], Lag::start());
        // A `check()` at the deadline would complete `lost()` too.
        let [checked, awaited] = names.each_ref().map(|name| leases.lock(name).acquire());
        let (checked, awaited) = tokio::join!(checked, awaited);
        let (checked, awaited) = (checked.unwrap(), awaited.unwrap());
        let watch = Watch::of(checked.handle());
        let signal = stamped(awaited.lost());
        let load = Load::begin(run);
        thread::sleep(2 * TTL);
        drop(load);
        let over = Instant::now();
        let Stamped { output: lost, woken, .. } = within(HANGS, "lost() completes", signal).await.unwrap();
        assert_eq!(lost.reason(), LossReason::Expired);
        // The last acquire is the successful one.
        let deadline = |name: &String| *requests(&proxy, &[ACQUIRE, COMBINED], name).last().unwrap() + valid();
        let [first, second] = names.each_ref().map(deadline);
        for asked in watch.end() {
            assert!(asked < first, "check() is Ok {:?} after the deadline", asked - first);
        }
        // Under a heavy load, chance decides if the control or the keeper gets its turn in time, so the signal may also
        // be as late as the load's end.
        let due = if run % GREEDY.len() == 0 { second } else { second.max(over) };
        let late = woken.saturating_duration_since(due);
        let what = if due == second {
            "signal after the deadline"
        } else {
            "signal after the end of a load past the deadline"
        };
        seen::took(what, late, SIGNAL, &lag);
        assert!(late <= SIGNAL + lag.worst(), "lost() came {late:?} late");
        assert_eq!((end(checked).await, end(awaited).await), (Some(LossReason::Expired), Some(LossReason::Expired)));
        proxy.forget();
    }
}
