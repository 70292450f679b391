//! A silent shard does not delay the others: a node of two shards, one of which can be frozen.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a scene that cannot be made fails its test")]
#![allow(clippy::disallowed_methods, reason = "these are a program's own tasks")]

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{
    failure::Failure,
    key::Key,
    loss::LossReason,
    message::{Reply, Request, Route, Shard},
    slot::{self, Keys},
};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet, time::timeout};

use crate::{
    clock::{Clock, SystemClock},
    engine::{Engine, Options},
    keeper::{Host, Stop},
    lease::Lease,
    lock::Lock,
    node::{Answer, Links, Node, NodeListener, ShardInfo, Sharded, memory::Memory},
    options::LockOptions,
    quorum::Quorum,
    scope::Scope,
    survey::{Inquiry, ServerSaid},
};

const WARM: Shard = Shard(1);
const COLD: Shard = Shard(2);

/// The time limit of each call here, except one that waits for the cold shard.
const SOON: Duration = Duration::from_secs(5);

/// A node whose keys are in the cold shard if their name contains "cold".
struct Halves {
    warm: Arc<Memory>,
    cold: Arc<Memory>,
    host: Host,
    is_frozen: watch::Sender<bool>,
    warm_requests: AtomicUsize,
    cold_requests: AtomicUsize,
    reconnected: Mutex<Vec<Shard>>,
    listeners: Mutex<Vec<Weak<dyn NodeListener>>>,
}

impl Halves {
    fn freeze(&self, is_frozen: bool) {
        self.is_frozen.send_replace(is_frozen);
    }

    fn cold_requests(&self) -> usize {
        self.cold_requests.load(Ordering::SeqCst)
    }

    /// Completes when the cold shard has had no request for a while.
    async fn rest(&self) {
        let mut asked = usize::MAX;
        while asked != self.cold_requests() {
            asked = self.cold_requests();
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
    }

    fn missed(&self, keys: &Keys) {
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        assert!(!listeners.is_empty(), "a client listens");
        for listener in listeners {
            listener.missed(keys);
        }
    }
}

impl fmt::Debug for Halves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Halves")
    }
}

impl Node for Halves {
    fn route(&self) -> Route {
        Route::Keeper
    }

    fn listen(&self, listener: Weak<dyn NodeListener>) {
        self.warm.listen(listener.clone());
        self.cold.listen(listener.clone());
        self.listeners.lock().push(listener);
    }

    fn tracking_capacity(&self) -> usize {
        0
    }

    fn sharded(&self) -> Option<&dyn Sharded> {
        Some(self)
    }

    fn links(&self) -> Option<&dyn Links> {
        Some(self)
    }

    fn send(&self, route: Route, request: Request, limit: Duration) -> Answer<Reply> {
        let is_cold = match &request {
            Request::Renew(claims) => claims.iter().any(|claim| self.shard(&claim.key) == COLD),
            request => request.shard(|key| self.shard(key)) == COLD,
        };
        if !is_cold {
            self.warm_requests.fetch_add(1, Ordering::SeqCst);
            return self.warm.send(route, request, limit);
        }
        self.cold_requests.fetch_add(1, Ordering::SeqCst);
        let (cold, mut frozen, too_late) = (self.cold.clone(), self.is_frozen.subscribe(), self.host.sleep(limit));
        Box::pin(async move {
            tokio::select! {
                biased;
                _ = frozen.wait_for(|is_frozen| !is_frozen) => {}
                () = too_late => return Err(Failure::unknown("the shard is frozen")),
            }
            cold.send(route, request, limit).await
        })
    }

    fn survey(&self, _: Shard, inquiry: Inquiry) -> Answer<ServerSaid> {
        self.warm.survey(Shard::FIRST, inquiry)
    }

    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.warm.close(limit)
    }
}

impl Sharded for Halves {
    fn shard(&self, key: &Key) -> Shard {
        if key.lock().contains("cold") { COLD } else { WARM }
    }

    fn shards(&self) -> Vec<ShardInfo> {
        [WARM, COLD].map(|shard| ShardInfo { shard, ..ShardInfo::only("halves") }).into()
    }

    fn address_of(&self, _: Shard) -> String {
        "halves".into()
    }
}

impl Links for Halves {
    fn reconnect(&self, _: Route, shard: Shard) {
        self.reconnected.lock().push(shard);
    }
}

struct Scene {
    engine: Arc<Engine>,
    halves: Arc<Halves>,
}

impl Scene {
    fn new(ttl: Duration, command_timeout: Duration) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (host, stop) = Host::start(&clock).unwrap();
        let halves = Arc::new(Halves {
            warm: Memory::private(&clock),
            cold: Memory::private(&clock),
            host: host.clone(),
            is_frozen: watch::Sender::new(false),
            warm_requests: AtomicUsize::new(0),
            cold_requests: AtomicUsize::new(0),
            reconnected: Mutex::default(),
            listeners: Mutex::default(),
        });
        Self::of(halves, ttl, command_timeout, (host, stop))
    }

    /// Another program on the same node.
    fn other(&self) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = &self.engine.options;
        let host = Host::start(&clock).unwrap();
        Self::of(self.halves.clone(), options.lock.ttl, options.command_timeout, host)
    }

    fn of(halves: Arc<Halves>, ttl: Duration, command_timeout: Duration, (host, stop): (Host, Stop)) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = Options {
            lock: LockOptions { ttl, ..LockOptions::default() },
            prefix: "".into(),
            label: "host:7".into(),
            command_timeout,
            grant_timeout: Duration::from_millis(900),
            in_slots: false,
        };
        let quorum = Quorum::of_one("halves", halves.clone(), &clock, &host, command_timeout);
        Self { engine: Engine::new(options, clock, host, stop, quorum, None), halves }
    }

    fn lock(&self, name: &str) -> Lock {
        Lock::new(Scope::new(self.engine.clone()), name).owner(crate::Owner::anonymous())
    }

    async fn acquire(&self, name: &str) -> Lease {
        self.lock(name).acquire_within(SOON).await.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Completes when this many names have waiters.
    async fn waits(&self, names: usize) {
        while self.engine.lines.len() < names {
            tokio::task::yield_now().await;
        }
    }

    /// Acquires this many leases on the cold shard.
    async fn cold_leases(&self, many: usize) -> Vec<Lease> {
        let mut leases = Vec::new();
        for at in 0..many {
            leases.push(self.acquire(&format!("cold-{at}")).await);
        }
        leases
    }
}

#[tokio::test]
async fn renewals_of_a_shard_do_not_wait_for_another() {
    let scene = Scene::new(Duration::from_millis(600), Duration::from_secs(10));
    let (warm, cold) = (scene.acquire("warm").await, scene.acquire("cold").await);
    scene.halves.freeze(true);
    let lost = timeout(SOON, cold.lost()).await.expect("it is lost by its deadline");
    assert_eq!(lost.reason(), LossReason::Expired);
    // Both leases were last renewed at about the same time.
    assert!(warm.check().is_ok() && warm.remaining() > Duration::from_millis(200), "{:?}", warm.remaining());
    warm.release().await.unwrap();
}

#[tokio::test]
async fn a_links_end_is_asked_for_where_the_key_is() {
    let scene = Scene::new(Duration::from_millis(600), Duration::from_secs(10));
    let (warm, cold) = (scene.acquire("warm").await, scene.acquire("cold").await);
    scene.halves.freeze(true);
    timeout(SOON, cold.lost()).await.expect("it is lost by its deadline");
    let reconnected = scene.halves.reconnected.lock().clone();
    assert!(!reconnected.is_empty() && reconnected.iter().all(|shard| *shard == COLD), "{reconnected:?}");
    warm.release().await.unwrap();
}

#[tokio::test]
async fn releases_of_a_shard_do_not_wait_for_another() {
    let scene = Scene::new(Duration::from_secs(60), Duration::from_secs(60));
    let (warm, cold) = (scene.acquire("warm").await, scene.cold_leases(300).await);
    scene.halves.freeze(true);
    drop(cold);
    drop(warm);
    scene.acquire("warm").await.release().await.unwrap();
}

#[tokio::test]
async fn waiters_of_a_shard_do_not_stand_behind_the_checks_of_another() {
    let holders = Scene::new(Duration::from_secs(60), Duration::from_secs(60));
    let (warm, cold) = (holders.acquire("warm").await, holders.cold_leases(200).await);
    // A waiter for a lock of its own program sends no requests.
    let scene = holders.other();
    let mut waiters = JoinSet::new();
    for at in 0..cold.len() {
        let lock = scene.lock(&format!("cold-{at}"));
        waiters.spawn(async move { drop(lock.acquire().await) });
    }
    timeout(SOON, scene.waits(200)).await.expect("all of them wait");
    // A first request, before the wait, takes no slot.
    timeout(SOON, scene.halves.rest()).await.expect("they have asked");
    scene.halves.freeze(true);
    scene.engine.lines.notify_all(&Keys::All, scene.engine.now());
    let asked = scene.halves.cold_requests();
    let all_slots = async {
        while scene.halves.cold_requests() < asked + 128 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, all_slots).await.expect("all slots are taken");
    let next = {
        let lock = scene.lock("warm");
        // A check that times out waiting for a slot is sent without one.
        tokio::spawn(async move { lock.acquire().await })
    };
    timeout(SOON, scene.waits(201)).await.expect("it waits");
    warm.release().await.unwrap();
    let next = timeout(SOON, next).await.expect("the warm shard answers");
    next.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn only_those_who_may_have_missed_something_ask() {
    let scene = Scene::new(Duration::from_secs(60), Duration::from_secs(60));
    let _warm = scene.acquire("warm").await;
    // With another TTL, so that it does not join the renewal of the first.
    let _cold = scene.lock("cold").ttl(Duration::from_secs(90)).acquire_within(SOON).await.unwrap();
    let asked = scene.halves.cold_requests();
    let warm_asked = scene.halves.warm_requests.load(Ordering::SeqCst);
    scene.halves.missed(&Keys::Of([slot::of("warm")].into_iter().collect()));
    let is_renewed = async {
        while scene.halves.warm_requests.load(Ordering::SeqCst) == warm_asked {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, is_renewed).await.expect("it is renewed at once");
    assert_eq!(scene.halves.cold_requests(), asked);
    scene.halves.missed(&Keys::All);
    let is_asked = async {
        while scene.halves.cold_requests() == asked {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, is_asked).await.expect("so is the other one");
}

/// An undo that has timed out is sent again when its own shard answers, but not because of another shard's answers.
#[tokio::test]
async fn an_answer_of_one_shard_wakes_no_undo_of_another() {
    let scene = Scene::new(Duration::from_millis(300), Duration::from_millis(100));
    scene.halves.freeze(true);
    scene.lock("cold").try_acquire().await.expect_err("the shard is frozen");
    // The undo retries until a TTL has passed.
    timeout(SOON, scene.halves.rest()).await.expect("it comes to rest");
    let asked = scene.halves.cold_requests();
    for _ in 0..50 {
        scene.acquire("warm").await.release().await.unwrap();
    }
    assert_eq!(scene.halves.cold_requests(), asked);
    scene.halves.freeze(false);
    scene.acquire("cold-2").await.release().await.unwrap();
    let is_asked = async {
        while scene.halves.cold_requests() < asked + 3 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, is_asked).await.expect("the undo asks once more");
}

#[tokio::test]
async fn what_is_asked_of_a_node_is_asked_of_every_shard() {
    let scene = Scene::new(Duration::from_secs(60), SOON);
    let (_warm, _cold) = (scene.acquire("warm").await, scene.acquire("cold").await);
    let held = scene.engine.quorum.held("*", SOON).await.unwrap();
    assert_eq!(held.locks.into_iter().collect::<Vec<_>>(), ["cold", "warm"]);
    assert_eq!(scene.engine.quorum.status().len(), 2);
    let said = scene.engine.quorum.survey(&Inquiry { limit: SOON, rights: None }).await;
    assert!(said.len() == 2 && said.iter().all(|(_, said)| said.is_ok()), "{said:?}");
    scene.engine.quorum.health("", SOON).await.unwrap();
}
