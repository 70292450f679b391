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

/// Ends a test that would hang.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// What the fault table allows a hand-over.
pub(crate) const PROMPT: Duration = Duration::from_millis(50);
/// How often each program polls for those of its waiters who share a name.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// A waiter with a place; what became of it, and when.
pub(crate) type Waiter = JoinHandle<(Result<Lease, Error>, Instant)>;

/// Several programs on one server.
pub(crate) async fn programs<const N: usize>(server: &Server) -> [Client; N] {
    let mut all = Vec::new();
    for n in 0..N {
        all.push(Client::builder().url(server.url()).label(format!("program {n}")).build().await.unwrap());
    }
    all.try_into().unwrap()
}

/// Waits in the queue, and is in it when this returns.
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

/// What a waiter got, and when.
pub(crate) async fn had(waiter: Waiter) -> (Lease, Instant) {
    let (lease, at) = within(SOON, "the lock", waiter).await.unwrap();
    (lease.unwrap(), at)
}

/// The holders of a lock, in their order. It checks that there is one at a time, and that fences grow.
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

    /// Waiter `n` takes a place; when its turn comes, it holds the lock for a moment.
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

/// The tokens in the queue, the first one first.
pub(crate) fn tokens(wire: &mut Wire, name: &str) -> Vec<String> {
    wire.must(&["ZRANGE", &queue_key(name), "0", "-1"]).array().iter().map(Value::text).collect()
}

/// How many of those in the queue can be called.
pub(crate) fn callable(wire: &mut Wire, name: &str) -> usize {
    let entries = wire.must(&["HVALS", &wait_key(name)]);
    // Before its process an entry has the limit of one that shares.
    let process =
        |entry: &Value| entry.text().split('|').nth(4).and_then(|it| it.rsplit('*').next().map(str::to_owned));
    entries.array().iter().filter_map(process).filter(|process| !process.starts_with('~')).count()
}

/// So many have a place and can be called: it is quiet then.
pub(crate) async fn all_can_be_called(wire: &mut Wire, name: &str, count: usize) {
    eventually_async(SOON, "all can be called", || {
        tokens(wire, name).len() == count && callable(wire, name) == count //
    })
    .await;
}

/// Nothing is on the server but the fences.
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
