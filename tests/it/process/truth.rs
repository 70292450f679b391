//! Holders get correct answers, whatever else in the process is slow, stopped or racing.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, LossReason, Lost, Owner, Status, SystemClock, testing::Clock};
use support::{Action, HANGS, Lag, Match, Proxy, Server, alone, eventually, two_workers, within};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt as _},
};

/// A log that is slow at one event. The keeper logs on a thread of its own, so the subscriber is the process's.
struct SlowLog;

type Slow = Box<dyn Fn(&str) + Send>;

fn slowness() -> &'static Mutex<Option<Slow>> {
    static SLOWNESS: OnceLock<Mutex<Option<Slow>>> = OnceLock::new();
    SLOWNESS.get_or_init(|| {
        tracing::subscriber::set_global_default(Registry::default().with(SlowLog)).unwrap();
        Mutex::default()
    })
}

impl<S: Subscriber> Layer<S> for SlowLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "leasehold" {
            if let Some(slow) = &*slowness().lock().unwrap_or_else(PoisonError::into_inner) {
                slow(event.metadata().name());
            }
        }
    }
}

/// Makes the log of this process slow.
fn slow_log(slow: impl Fn(&str) + Send + 'static) {
    *slowness().lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(slow));
}

#[test]
fn a_slow_subscriber_delays_no_signal() {
    alone(|| {
        slow_log(|name| {
            if name == "lost" {
                thread::sleep(Duration::from_millis(400));
            }
        });
        let server = Server::start();
        let runtime = two_workers();
        let leases = runtime.block_on(Client::connect(server.url())).unwrap();
        let lock = leases.lock("job").ttl(Duration::from_millis(600));
        let lease = runtime.block_on(lock.acquire()).unwrap();
        let (tell, told) = mpsc::channel();
        let lost = lease.lost();
        runtime.spawn(async move {
            let lost = lost.await;
            tell.send((Instant::now(), lost)).unwrap();
        });

        let lag = Lag::start();
        server.stop();
        let mut last_ok = Instant::now();
        let limit = last_ok + HANGS;
        while lease.check().is_ok() {
            last_ok = Instant::now();
            assert!(last_ok < limit, "no end");
            thread::sleep(Duration::from_micros(200));
        }
        let (at, lost) = told.recv_timeout(HANGS).unwrap();
        assert_eq!(lost.reason(), LossReason::Expired);
        assert_eq!(lease.remaining(), Duration::ZERO);
        // The last successful check came before the deadline.
        let late = at.saturating_duration_since(last_ok);
        assert!(late <= Duration::from_millis(50) + lag.worst(), "{late:?}");
        server.cont();
    });
}

#[test]
fn a_slow_subscriber_cannot_leave_a_healthy_lease_at_risk() {
    alone(|| {
        let logging = Arc::new(AtomicBool::new(false));
        let seen = logging.clone();
        slow_log(move |name| {
            if name == "at_risk" && !seen.swap(true, Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(500));
            }
        });
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let runtime = two_workers();
        let leases = runtime.block_on(Client::connect(proxy.url())).unwrap();
        let lease = runtime.block_on(leases.lock("job").ttl(Duration::from_secs(5)).acquire()).unwrap();
        proxy.on(Match::script(support::scripts::RENEW), 1, Action::CutBefore);
        eventually(HANGS, "the keeper to log the risk", || logging.load(Ordering::SeqCst));
        // While the log is blocked, the holder's own renewal is confirmed.
        eventually(HANGS, "a renewal by hand", || runtime.block_on(lease.renew()).is_ok());
        eventually(HANGS, "the status to be right", || lease.status() == Status::Held);
        let changes = runtime.block_on(async {
            let mut changes = lease.status_changes();
            // Longer than the log blocks.
            tokio::time::timeout(Duration::from_millis(800), changes.next()).await.ok()
        });
        assert_eq!(changes, None, "and to stay right");
    });
}

#[test]
fn no_check_succeeds_without_time_left() {
    alone(|| {
        let runtime = two_workers();
        let leases = Client::in_memory();
        let started = Instant::now();
        let mut looks = 0_u32;
        while started.elapsed() < Duration::from_secs(2) {
            let held: Vec<_> = runtime.block_on(async {
                let mut held = Vec::new();
                for n in 0..200 {
                    held.push(leases.lock(n.to_string()).owner(Owner::anonymous()).acquire().await.unwrap());
                }
                held
            });
            let handles: Vec<_> = held.iter().map(leasehold::Lease::handle).collect();
            let released = thread::Builder::new().spawn(move || drop(held)).unwrap();
            for handle in &handles {
                while !handle.remaining().is_zero() {
                    std::hint::spin_loop();
                }
                assert!(handle.check().is_err() && !handle.is_held(), "{handle:?}");
                looks += 1;
            }
            released.join().unwrap();
        }
        assert!(looks > 1_000, "{looks}");
    });
}

/// A machine that can be suspended.
#[derive(Debug, Clone, Default)]
struct Suspending(Arc<AtomicU64>);

impl Clock for Suspending {
    fn now(&self) -> Duration {
        SystemClock.now() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

#[test]
fn after_a_suspend_the_same_task_competes_anew() {
    alone(|| {
        two_workers().block_on(async {
            let clock = Suspending::default();
            // The store uses the clock of another machine, which is not suspended.
            let url = "memory://awake";
            let _awake = Client::connect(url).await.unwrap();
            let leases = Client::builder().url(url).clock(clock.clone()).build().await.unwrap();
            for _ in 0..50 {
                let lock = leases.lock("job");
                let before = lock.acquire().await.unwrap();
                clock.0.fetch_add(3_600, Ordering::SeqCst);
                // The store was not suspended: the key is still there, but its lease has expired.
                let answer = lock.try_acquire().await;
                assert!(matches!(answer, Ok(None)), "{answer:?}");
                assert_eq!(before.check().unwrap_err().lost().map(Lost::reason), Some(LossReason::Expired));
                drop(before);
                assert_eq!(
                    within(HANGS, "the key to be undone", lock.acquire()).await.unwrap().release().await,
                    Ok(leasehold::Released::Confirmed)
                );
            }
        });
    });
}

/// The panic of a log that prints to a closed pipe.
#[test]
fn a_log_that_panics_ends_no_watch() {
    alone(|| {
        // The panic hook needs a processor for a while, to resolve the backtrace.
        const TTL: Duration = Duration::from_secs(3);
        let panics = Arc::new(AtomicU64::new(0));
        let panicked = panics.clone();
        slow_log(move |event| {
            assert!(event != "lost" || panicked.fetch_add(1, Ordering::SeqCst) > 0, "the log is closed");
        });
        let server = Server::start();
        two_workers().block_on(async {
            let leases = Client::builder().url(server.url()).ttl(TTL).build().await.unwrap();
            let short = leases.lock("short").max_hold(TTL).acquire().await.unwrap();
            let long = leases.lock("long").acquire().await.unwrap();
            assert_eq!(within(HANGS, "the signal", short.lost()).await.reason(), LossReason::MaxHold);
            // Longer than the other lease lasts without renewals.
            tokio::time::sleep(TTL * 5 / 4).await;
            assert_eq!((panics.load(Ordering::SeqCst), long.check()), (1, Ok(())));
            // Its own deadline is reported too, though the server is away for good.
            server.stop();
            assert_eq!(within(HANGS, "the signal", long.lost()).await.reason(), LossReason::Expired);
            server.cont();
        });
    });
}

/// Re-entry waits for a renewal, and the server answers that renewal with the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re_entry_at_risk_finds_the_key_gone_and_acquires_anew() {
    // At risk after half of this TTL.
    const TTL: Duration = Duration::from_secs(9);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).ttl(TTL).command_timeout(HANGS).build();
    let leases = leases.await.unwrap();
    let lock = leases.lock("job").reentrant(true).owner(Owner::unique());
    let lease = lock.acquire().await.unwrap();
    let mut changes = lease.status_changes();
    proxy.freeze(true);
    // The renewal goes unanswered, and its caller stops waiting.
    assert!(tokio::time::timeout(Duration::from_millis(20), lease.renew()).await.is_err());
    assert!(server.wire().del("job"));
    assert_eq!(within(TTL, "it is at risk", changes.next()).await, Some(Status::AtRisk));
    let entering = tokio::spawn(lock.try_acquire());
    let frozen = proxy.commands();
    eventually(HANGS, "the renewal is asked for", || proxy.commands() > frozen);
    proxy.freeze(false);
    let again = within(HANGS, "the re-entry", entering).await.unwrap().unwrap().expect("the lock is free");
    assert!(again.fence() > lease.fence());
    assert_eq!(within(HANGS, "lost()", lease.lost()).await.reason(), LossReason::Deleted);
    assert_eq!(again.release().await, Ok(leasehold::Released::Confirmed));
}
