//! Helpers shared by the tests of one server and of a quorum.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use leasehold::{
    Builder, Client, Details, Error, Holder, Lease, LeaseHandle, Lock, LossReason, Lost, Released, Status, block_on,
    doctor::{ServerSaid, survey},
};
use support::{HANGS, Lag, Match, Wire, eventually_async, seen, within};

pub(crate) const NAME: &str = "job";
pub(crate) const FENCE: &str = "{job}:lh:fence";

/// One command for each type other than string.
pub(crate) const OTHER_TYPES: [&[&str]; 5] = [
    &["HSET", "made", "field", "value"],
    &["RPUSH", "made", "value"],
    &["SADD", "made", "value"],
    &["ZADD", "made", "1", "value"],
    &["XADD", "made", "*", "field", "value"],
];

/// Replaces a key by the one that the command `make` creates, in one step, so that no renewal finds it missing.
pub(crate) fn replace(wire: &mut Wire, make: &[&str], key: &str) {
    wire.must(make);
    wire.must(&["RENAME", "made", key]);
}

/// A TTL for leases that expire during their test.
pub(crate) const SHORT: Duration = Duration::from_millis(600);
/// A TTL for leases that outlive a fault lasting for a good part of it.
pub(crate) const MEDIUM: Duration = Duration::from_millis(1_500);
/// A TTL during which servers are killed and restarted, also on a loaded machine.
pub(crate) const RESTARTS: Duration = Duration::from_secs(6);
/// A TTL longer than any test here: if such a key disappears, it was deleted and has not expired.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// The command time-out of every client, unless a test sets another.
pub(crate) const COMMAND: Duration = Duration::from_millis(300);

/// A client like a program's own, with the default options.
pub(crate) async fn program(url: impl Into<String>) -> Client {
    Client::connect(url).await.expect("the server is there")
}

/// The only server's report about itself. By then notifications are on, unless it refuses them.
pub(crate) async fn told(leases: &Client) -> ServerSaid {
    let (_, said) = survey(leases).await.expect("it is connected").pop().expect("there is one");
    said.expect("it tells")
}

/// Waits until a retained key is found under this name, for an hour.
pub(crate) async fn is_retained(client: &Client, name: &str) {
    let retained = async {
        loop {
            let there = client.lock(name).holders().await.unwrap();
            let is_it = |holder: &Holder| {
                holder.label().is_some_and(|label| label.ends_with("(released)"))
                    && holder.remaining().is_some_and(|left| left > Duration::from_secs(3_000))
            };
            if !there.is_empty() && there.iter().all(is_it) {
                return;
            }
            assert!(!there.is_empty(), "nothing was left of {name}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(HANGS, "it is retained", retained).await;
}

/// Waits for a call on a thread that may wait.
#[track_caller]
pub(crate) fn wait<F: Future>(call: F) -> F::Output {
    block_on(call).expect("this thread may wait")
}

/// A program built outside of every runtime, like one of threads: all its requests are on one connection.
pub(crate) async fn on_one_connection(builder: Builder) -> Client {
    let build = move || thread::spawn(move || wait(builder.build())).join();
    tokio::task::spawn_blocking(build).await.unwrap().unwrap().expect("the server is there")
}

/// A client like `program`'s, with leases of this TTL.
pub(crate) async fn program_with(url: impl Into<String>, ttl: Duration) -> Client {
    Client::builder().url(url).ttl(ttl).build().await.expect("the server is there")
}

/// Matches the runs of a script for a lease.
pub(crate) fn requests(script: &str, lease: &Lease) -> Match {
    let key = lease.name().as_bytes().to_owned();
    Match::script(script).and(Match::with(move |args| args.contains(&key)))
}

#[track_caller]
pub(crate) fn ending<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Lost {
    match outcome {
        Err(Error::Lost(lost)) => lost,
        outcome => panic!("the lease has not ended: {outcome:?}"),
    }
}

/// Asserts the default outcome of a release here: confirmed by the server.
pub(crate) trait Confirmed {
    fn confirmed(self);
}

impl Confirmed for Released {
    #[track_caller]
    fn confirmed(self) {
        assert_eq!(self, Released::Confirmed, "the release was ours, and is not confirmed");
    }
}

/// The text of an unconfirmed release.
#[track_caller]
pub(crate) fn unconfirmed(outcome: Result<Released, Error>) -> Details {
    match outcome {
        Ok(Released::Unconfirmed(why)) => why,
        other => panic!("the release is not unconfirmed, it says {other:?}"),
    }
}

/// Asserts that the lease was ours, whether or not the server confirmed its release in time.
#[track_caller]
pub(crate) fn assert_was_ours(outcome: &Result<Released, Error>) {
    assert!(outcome.is_ok(), "the release says {outcome:?}");
}

pub(crate) fn assert_says_lost(outcome: Result<Released, Error>, reason: LossReason) {
    match outcome {
        Err(Error::Lost(lost)) => assert_eq!(lost.reason(), reason),
        other => panic!("the release of a lost lease says {other:?}"),
    }
}

/// Renews the lease. Only a machine that stalls may need a second try.
pub(crate) async fn is_ours(lease: &Lease) {
    let renewed = async {
        loop {
            match lease.renew().await {
                Err(Error::Unconfirmed(_)) => {}
                definite => return definite,
            }
        }
    };
    within(HANGS, "a renewal by hand", renewed).await.expect("it is ours");
}

/// Waits until the server notifies of changes to these leases' keys: each is renewed once more, and its key tracked
/// from then on. The number of tracked keys is not enough, because it may include keys of earlier leases.
pub(crate) async fn are_watched<'a>(wire: &mut Wire, leases: impl IntoIterator<Item = &'a Lease>) {
    // The clock is read last here and first below, so a pause in between is not mistaken for a later deadline.
    let deadline = |lease: &'a Lease| {
        let remaining = lease.remaining();
        (lease, Instant::now() + remaining)
    };
    let before: Vec<_> = leases.into_iter().map(deadline).collect();
    eventually_async(HANGS, "the keys are watched", || {
        before.iter().all(|(lease, before)| Instant::now() + lease.remaining() > *before)
            && wire.tracked_keys() >= before.len()
    })
    .await;
}

/// Waits for the lock until the wait times out. On a busy machine the short last check may get no answer; then it waits
/// again.
pub(crate) async fn in_vain(lock: &Lock, limit: Duration) -> Error {
    let waits = async {
        loop {
            match lock.acquire_within(limit).await {
                Err(Error::Unavailable(_)) => {}
                Err(error) => return error,
                Ok(lease) => panic!("it is held, and we have {lease:?}"),
            }
        }
    };
    within(HANGS, "a wait that ends with an answer", waits).await
}

/// Blocks both workers of the current runtime, and the calling thread, for `span`.
pub(crate) fn block_both_workers(span: Duration) {
    // Only two tasks on two workers at once get past the barrier, and not before this thread reaches it.
    let all_blocked = Arc::new(Barrier::new(3));
    for _ in 0..2 {
        let all_blocked = all_blocked.clone();
        tokio::spawn(async move {
            all_blocked.wait();
            thread::sleep(span);
        });
    }
    all_blocked.wait();
    thread::sleep(span);
}

/// A machine that stalls for this long may put any lease at risk.
const STALL: Duration = Duration::from_millis(100);

/// Watches a lease whose holder must not notice anything: it stays held, and no other status is reported.
#[derive(Debug)]
pub(crate) struct Calm {
    over: Arc<AtomicBool>,
    watching: JoinHandle<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    lost: Option<Lost>,
    changed: Option<Status>,
}

impl Calm {
    pub(crate) fn of(lease: &Lease) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (handle, is_over) = (lease.handle(), over.clone());
        // On a thread of its own, because a busy runtime would check too late.
        Self { over, watching: thread::spawn(move || Self::watch(&handle, &is_over)) }
    }

    fn watch(lease: &LeaseHandle, over: &AtomicBool) -> Seen {
        let (mut seen, mut changes) = (Seen::default(), lease.status_changes());
        while !over.load(Ordering::SeqCst) && seen.lost.is_none() {
            seen.lost = lease.check().err().and_then(|error| error.lost().cloned());
            let change = pin!(changes.next()).poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(change) = change {
                seen.changed = seen.changed.or(change);
            }
            thread::sleep(Duration::from_millis(1));
        }
        seen
    }

    /// Ends the watch. Panics if the lease was lost or its status changed.
    #[track_caller]
    pub(crate) fn lasted(self, lag: &Lag) {
        self.over.store(true, Ordering::SeqCst);
        let Seen { lost, changed } = self.watching.join().expect("it does not panic");
        let worst = lag.worst();
        assert_eq!(lost, None, "the machine lagged {worst:?}");
        // Published figures are not excused by a stall.
        let is_excused = worst >= STALL && !seen::is_wanted();
        assert!(changed.is_none() || is_excused, "its status changed to {changed:?}; the machine lagged {worst:?}");
    }
}

/// Waits until the queue has this number of waiters.
pub(crate) async fn have_places(lock: &Lock, count: usize) {
    let queued = async {
        while lock.waiters().await.unwrap().len() != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(HANGS, "their places in the queue", queued).await;
}
