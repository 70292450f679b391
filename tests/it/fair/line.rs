//! Fair waiters, for the tests of the queue.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Lease, Lock, Owner};
use tokio::{sync::Notify, task::JoinHandle};

use support::{Server, Value, Wire, eventually_async, within};

use crate::common::Confirmed as _;

/// The limit after which a hanging test ends.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// The time that the fault table allows for a hand-over.
pub(crate) const PROMPT: Duration = Duration::from_millis(50);
/// How often each program polls for its waiters that share a name.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// A waiter with a place: its outcome, and when it had it.
pub(crate) type Waiter = JoinHandle<(Result<Lease, Error>, Instant)>;

/// Several programs on one server.
pub(crate) async fn programs<const N: usize>(server: &Server) -> [Client; N] {
    let mut all = Vec::new();
    for n in 0..N {
        all.push(Client::builder().url(server.url()).label(format!("program {n}")).build().await.unwrap());
    }
    all.try_into().unwrap()
}

/// Takes a place in the queue, and returns once it is there.
pub(crate) async fn place(lock: &Lock) -> Waiter {
    let entered = Arc::new(Notify::new());
    let tell = entered.clone();
    let lock = lock.clone().fair(true).owner(Owner::anonymous()).on_wait(move |_| tell.notify_one());
    let acquire = lock.acquire();
    drop(lock);
    let waiter = tokio::spawn(async move { (acquire.await, Instant::now()) });
    within(SOON, "a place in the queue", entered.notified()).await;
    waiter
}

/// The waiter's lease, and when it was acquired.
pub(crate) async fn had(waiter: Waiter) -> (Lease, Instant) {
    let (lease, at) = within(SOON, "the lock", waiter).await.unwrap();
    (lease.unwrap(), at)
}

/// The holders of a lock, in order. Checks that there is one at a time, and that fences grow.
#[derive(Debug, Default)]
pub(crate) struct History {
    inside: AtomicBool,
    fence: AtomicU64,
    had: Mutex<Vec<usize>>,
    count: AtomicUsize,
}

impl History {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waiter `n` takes a place. At its turn, it holds the lock for a moment.
    pub(crate) async fn enter(self: &Arc<Self>, lock: &Lock, n: usize) -> JoinHandle<()> {
        let (waiter, history) = (place(lock).await, self.clone());
        tokio::spawn(async move { history.pass(had(waiter).await.0, n).await })
    }

    pub(crate) async fn pass(&self, lease: Lease, n: usize) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two holders");
        let fence = u64::from(lease.fence());
        assert!(self.fence.fetch_max(fence, Ordering::SeqCst) < fence, "the fence has not grown");
        self.had.lock().unwrap().push(n);
        self.count.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        lease.check().unwrap();
        self.inside.store(false, Ordering::SeqCst);
        lease.release().await.unwrap().confirmed();
    }

    pub(crate) fn had(&self) -> Vec<usize> {
        self.had.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

pub(crate) fn queue_key(name: &str) -> String {
    format!("{{{name}}}:lh:queue")
}

pub(crate) fn wait_key(name: &str) -> String {
    format!("{{{name}}}:lh:wait")
}

/// The tokens in the queue, in order.
pub(crate) fn tokens(wire: &mut Wire, name: &str) -> Vec<String> {
    wire.must(&["ZRANGE", &queue_key(name), "0", "-1"]).array().iter().map(Value::text).collect()
}

/// How many waiters in the queue can be called.
pub(crate) fn callable(wire: &mut Wire, name: &str) -> usize {
    let entries = wire.must(&["HVALS", &wait_key(name)]);
    // In an entry, a sharer's limit precedes its process.
    let process =
        |entry: &Value| entry.text().split('|').nth(4).and_then(|it| it.rsplit('*').next().map(str::to_owned));
    entries.array().iter().filter_map(process).filter(|process| !process.starts_with('~')).count()
}

/// Waits until `count` waiters have a place and can be called. After that, it is quiet.
pub(crate) async fn all_can_be_called(wire: &mut Wire, name: &str, count: usize) {
    eventually_async(SOON, "all can be called", || {
        tokens(wire, name).len() == count && callable(wire, name) == count //
    })
    .await;
}

/// Waits until the server has no keys but the fences.
pub(crate) async fn nothing_is_left(wire: &mut Wire) {
    let mut left = Vec::new();
    for _ in 0..2_500 {
        left = wire.keys("*");
        left.retain(|key| !key.ends_with(":lh:fence"));
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("left behind: {left:?}");
}
