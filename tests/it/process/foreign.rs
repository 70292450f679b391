//! The program's own subscriber, exporter and callbacks block or panic, and its wakers panic: the row F91 of the fault
//! table.
//!
//! "For 20 s" is until the test's end, if that comes before.

mod scene;

use std::{
    collections::BTreeSet,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use self::scene::{COMMAND, Fault, Foreign, HANGS, Scene, Servers, TRAP, TTL, poll_once, subscribe};
use leasehold::{Client, Credentials, LossReason, Owner, SystemClock, testing::Clock};
use support::{
    Cluster, Lag, Match, Nodes, Proxy, SIGNAL, Server, alone, eventually_async,
    scripts::{ACQUIRE, COMBINED},
    two_workers, within,
};
use tokio::task::LocalSet;

/// The source file that emits every event of the keeper.
const EVENTS: &str = include_str!("../../../src/foreign/events.rs");

/// Emitted in a caller's own acquire, and on no other thread.
const OF_CALLERS: [&str; 1] = ["clocks"];

/// Whether the provider of the scene with credentials fails.
static PROVIDER_FAILS: AtomicBool = AtomicBool::new(false);

async fn sprung(event: &str) {
    eventually_async(HANGS, &format!("the event {event}"), || TRAP.has_sprung(event)).await;
}

/// Makes the keeper emit this event, whose subscriber goes wrong, and restores everything else.
#[allow(clippy::too_many_lines, reason = "a list")]
async fn cause(event: &str, scene: &Scene) {
    let all = scene.servers.all();
    match event {
        // For the second event, the server's tracking table is too small for the leases.
        "renew" | "crowded" => sprung(event).await,
        "lost" => {
            let victim = scene.acquire("victim").await;
            assert!(all[0].wire().del("victim"));
            sprung(event).await;
            assert_eq!(within(HANGS, "its own signal", victim.lost()).await.reason(), LossReason::Deleted);
        }
        "undo" => {
            drop(scene.acquire("victim").await);
            sprung(event).await;
        }
        "at_risk" | "reconnect" => {
            scene.servers.stop();
            sprung(event).await;
            scene.servers.cont();
        }
        "recovered" => {
            let victim = scene.acquire("victim").await;
            let mut changes = victim.status_changes();
            scene.servers.stop();
            let at_risk = within(HANGS, "it is at risk", changes.next()).await;
            scene.servers.cont();
            assert!(at_risk.is_some());
            sprung(event).await;
        }
        "connection" | "notifications" => {
            let kind = if event == "notifications" { "pubsub" } else { "normal" };
            while !TRAP.has_sprung(event) {
                all[0].wire().must(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        "observe" => {
            let _observing = scene.leases.election("observed").observe().unwrap();
            all[0].wire().must(&["ACL", "SETUSER", "default", "-getrange"]);
            sprung(event).await;
            all[0].wire().must(&["ACL", "SETUSER", "default", "+getrange"]);
        }
        "repair" => {
            let victim = scene.acquire("victim").await;
            eventually_async(HANGS, "it is everywhere", || all.iter().all(|server| server.wire().exists("victim")))
                .await;
            assert!(all[0].wire().del("victim"));
            sprung(event).await;
            assert_eq!(victim.release().await, Ok(leasehold::Released::Confirmed), "a majority has it");
        }
        "node" => {
            all[2].stop();
            sprung(event).await;
            all[2].cont();
        }
        "primary" | "topology" => {
            let Servers::Cluster(cluster) = &scene.servers else { panic!("it is a cluster") };
            let name = cluster.name_at(0, "victim");
            if event == "primary" {
                let replica = cluster.replica_of(0);
                replica.wire().must(&["CLUSTER", "FAILOVER"]);
                let has_taken_over = || replica.wire().info_field("replication", "role").as_deref() == Some("master");
                eventually_async(HANGS, "the replica has taken over", has_taken_over).await;
            } else {
                // The keeper finds the move of the second name, because the first makes it look.
                for name in [&name, &cluster.name_at(0, "unasked")] {
                    cluster.move_slot(cluster.slot_of(name), 0, 1);
                }
            }
            // The slot's old server redirects the request.
            let asking = async {
                while !TRAP.has_sprung(event) {
                    drop(scene.acquire(&name).await);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            within(HANGS, &format!("the event {event}"), asking).await;
        }
        "replicas" => {
            let Servers::Cluster(cluster) = &scene.servers else { panic!("it is a cluster") };
            let replica = cluster.replica_of(0);
            replica.stop();
            sprung(event).await;
            replica.cont();
        }
        "credentials" => {
            PROVIDER_FAILS.store(true, Ordering::SeqCst);
            while !TRAP.has_sprung(event) {
                all[0].wire().must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            PROVIDER_FAILS.store(false, Ordering::SeqCst);
        }
        // The third is the first once more.
        "same_server" => {
            let proxy = scene.proxy.as_ref().unwrap();
            proxy.turn_to(all[0].port());
            proxy.refuse(false);
            sprung(event).await;
        }
        // More events than the queue has room for, while the subscriber is stuck in one of them.
        "events_dropped" => {
            TRAP.arm("renew", Fault::Blocks);
            let mut many = Vec::new();
            for number in 0..600 {
                many.push(scene.acquire(&format!("many:{number}")).await);
            }
            for _ in 0..2 {
                let mut left: Vec<_> = many.iter().map(|lease| (lease, lease.remaining())).collect();
                eventually_async(HANGS, "a renewal of each is confirmed", || {
                    left.retain_mut(|(lease, before)| {
                        let now = lease.remaining();
                        now <= std::mem::replace(before, now)
                    });
                    left.is_empty()
                })
                .await;
            }
            TRAP.disarm("renew");
            sprung(event).await;
        }
        other => panic!("no scene has the keeper tell {other:?}"),
    }
}

async fn scene(event: &str) -> Scene {
    match event {
        "repair" | "node" => Scene::on(Servers::Quorum(Nodes::seasoned(3))).await,
        "topology" => Scene::on(Servers::Cluster(Cluster::start(3, 0))).await,
        "primary" => Scene::on(Servers::Cluster(Cluster::start(3, 1))).await,
        "replicas" => {
            let cluster = Cluster::start(1, 1);
            let builder = Client::builder().url(cluster.url()).min_replicas(1);
            Scene::with(Servers::Cluster(cluster), None, builder).await
        }
        "crowded" => {
            let server = Server::start();
            server.wire().must(&["CONFIG", "SET", "tracking-table-max-keys", "4"]);
            Scene::on(Servers::One(server)).await
        }
        "credentials" => {
            const PASSWORD: &str = "sesame";
            PROVIDER_FAILS.store(false, Ordering::SeqCst);
            let server = Server::start();
            server.wire().must(&["ACL", "SETUSER", "worker", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]);
            let place = leasehold::Server::at("127.0.0.1", server.port()).credentials(async || {
                let fails = PROVIDER_FAILS.load(Ordering::SeqCst);
                if fails { Err("it is meant to") } else { Ok(Credentials::new("worker", PASSWORD)) }
            });
            Scene::with(Servers::One(server), None, Client::builder().server(place)).await
        }
        "same_server" => {
            let nodes = Nodes::seasoned(3);
            let proxy = Proxy::to(&nodes[2]);
            proxy.refuse(true);
            let urls = [nodes[0].url(), nodes[1].url(), proxy.url()];
            let builder = Client::builder().quorum(urls).restart_delay(Duration::ZERO);
            Scene::with(Servers::Quorum(nodes), Some(proxy), builder).await
        }
        _ => Scene::of_one().await,
    }
}

async fn nobody_notices(event: &str, fault: Fault) {
    subscribe();
    let scene = scene(event).await;
    TRAP.arm(event, fault);
    cause(event, &scene).await;
    scene.others_do_not_notice().await;
    TRAP.spared_the_keeper();
}

macro_rules! events {
    ($($event:ident: $blocks:ident, $panics:ident;)*) => {
        const SCENES: &[&str] = &[$(stringify!($event)),*];

        $(
            #[test]
            fn $blocks() {
                alone(|| two_workers().block_on(nobody_notices(stringify!($event), Fault::Blocks)));
            }

            #[test]
            fn $panics() {
                alone(|| two_workers().block_on(nobody_notices(stringify!($event), Fault::Panics)));
            }
        )*
    };
}

events! {
    lost: f91_the_subscriber_blocks_at_lost, f91_the_subscriber_panics_at_lost;
    at_risk: f91_the_subscriber_blocks_at_at_risk, f91_the_subscriber_panics_at_at_risk;
    recovered: f91_the_subscriber_blocks_at_recovered, f91_the_subscriber_panics_at_recovered;
    renew: f91_the_subscriber_blocks_at_renew, f91_the_subscriber_panics_at_renew;
    reconnect: f91_the_subscriber_blocks_at_reconnect, f91_the_subscriber_panics_at_reconnect;
    crowded: f91_the_subscriber_blocks_at_crowded, f91_the_subscriber_panics_at_crowded;
    undo: f91_the_subscriber_blocks_at_undo, f91_the_subscriber_panics_at_undo;
    observe: f91_the_subscriber_blocks_at_observe, f91_the_subscriber_panics_at_observe;
    notifications: f91_the_subscriber_blocks_at_notifications, f91_the_subscriber_panics_at_notifications;
    credentials: f91_the_subscriber_blocks_at_credentials, f91_the_subscriber_panics_at_credentials;
    connection: f91_the_subscriber_blocks_at_connection, f91_the_subscriber_panics_at_connection;
    repair: f91_the_subscriber_blocks_at_repair, f91_the_subscriber_panics_at_repair;
    node: f91_the_subscriber_blocks_at_node, f91_the_subscriber_panics_at_node;
    primary: f91_the_subscriber_blocks_at_primary, f91_the_subscriber_panics_at_primary;
    replicas: f91_the_subscriber_blocks_at_replicas, f91_the_subscriber_panics_at_replicas;
    topology: f91_the_subscriber_blocks_at_topology, f91_the_subscriber_panics_at_topology;
    same_server: f91_the_subscriber_blocks_at_same_server, f91_the_subscriber_panics_at_same_server;
    events_dropped: f91_the_subscriber_blocks_at_events_dropped, f91_the_subscriber_panics_at_events_dropped;
}

#[test]
fn f91_every_keeper_event_is_tested_and_documented() {
    let lines = EVENTS.lines().map(str::split_whitespace);
    let names: BTreeSet<&str> = lines
        .filter_map(|mut words| {
            words.next().filter(|level| ["WARN", "INFO", "DEBUG"].contains(level)).and(words.next())
        })
        .map(|name| name.trim_matches('"'))
        .collect();
    let scenes: BTreeSet<&str> = SCENES.iter().copied().chain(OF_CALLERS).collect();
    assert_eq!(names, scenes);
    let page = include_str!("../../../docs/operations.md");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "docs/operations.md names {name}");
    }
}

/// The lease's own futures, polled by a foreign executor, and what each does when the lease is lost.
async fn a_waker_is_called() {
    let scene = Scene::of_one().await;
    let victim = scene.acquire("victim").await;
    let busy = scene.acquire("busy").await;
    let token = victim.cancellation_token();
    let lock = scene.leases.lock("busy").owner(Owner::anonymous());
    let mut changes = victim.status_changes();
    let (mut lost, mut changed, mut cancelled) = (pin!(victim.lost()), pin!(changes.next()), pin!(token.cancelled()));
    let mut waiting = pin!(lock.acquire());
    poll_once(lost.as_mut(), &Foreign::waker("lost"));
    poll_once(changed.as_mut(), &Foreign::waker("changed"));
    poll_once(cancelled.as_mut(), &Foreign::waker("cancelled"));
    // It waits until its first poll is answered, and its second, which is tracked.
    let wakes = Arc::new(AtomicBool::new(true));
    let waker = Waker::from(Arc::new(Flag(wakes.clone())));
    eventually_async(HANGS, "it stands in line", || {
        if wakes.swap(false, Ordering::SeqCst) {
            poll_once(waiting.as_mut(), &waker);
        }
        scene.servers.all()[0].wire().tracked_keys() > 0
    })
    .await;
    let all = ["lost", "changed", "cancelled", "turn"];
    for name in all {
        TRAP.arm(name, Fault::Panics);
    }
    // A late answer to its second poll may wake it, and it is not polled again.
    poll_once(waiting.as_mut(), &Foreign::waker("turn"));
    let mut wire = scene.servers.all()[0].wire();
    assert!(wire.del("victim") && wire.del("busy"));
    for name in all {
        sprung(name).await;
    }
    scene.others_do_not_notice().await;
    drop(busy);
}

struct Flag(Arc<AtomicBool>);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn f91_wakers_panic() {
    alone(|| two_workers().block_on(a_waker_is_called()));
}

/// Where a task of Tokio's polls with a foreign waker.
#[derive(Debug, Clone, Copy)]
enum Place {
    Task,
    BlockingTask,
    /// A task of a `LocalSet` that a foreign executor polls.
    LocalTask,
}

/// A call on the lock `victim`. Without an answer, a timer of the keeper's calls its waker.
#[derive(Debug, Clone, Copy)]
enum Call {
    Release,
    AcquireWithin,
    Renew,
}

type Calling = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn a_waker_in_a_task_is_called(call: Call, place: Place) {
    let scene = Scene::of_one().await;
    let victim = scene.acquire("victim").await;
    let other = scene.leases.lock("victim").owner(Owner::anonymous());
    let calling: Calling = match call {
        Call::Release => Box::pin(async move { drop(victim.release().await) }),
        Call::AcquireWithin => Box::pin(async move {
            drop(other.acquire_within(COMMAND).await);
            drop(victim);
        }),
        Call::Renew => Box::pin(async move { drop(victim.renew().await) }),
    };
    TRAP.arm("called", Fault::Panics);
    scene.servers.stop();
    let poll = |mut calling: Calling| {
        assert!(tokio::task::try_id().is_some(), "the premise");
        poll_once(calling.as_mut(), &Foreign::waker("called"));
        calling
    };
    let mut tasks = LocalSet::new();
    #[allow(clippy::async_yields_async, reason = "it is only kept, so that its waker is")]
    let calling = match place {
        Place::Task => tokio::spawn(async move { poll(calling) }).await,
        Place::BlockingTask => tokio::task::spawn_blocking(move || poll(calling)).await,
        Place::LocalTask => {
            tasks.spawn_local(calling);
            poll_once(Pin::new(&mut tasks), &Foreign::waker("called"));
            Ok(Box::pin(async {}) as _)
        }
    };
    let calling = calling.expect("it is pending");
    eventually_async(HANGS, "the keeper calls the waker", || TRAP.has_sprung_on_the_keeper("called")).await;
    scene.servers.cont();
    scene.others_do_not_notice().await;
    drop((calling, tasks));
}

macro_rules! in_tasks {
    ($($name:ident: $call:ident, $place:ident;)*) => {
        $(
            #[test]
            fn $name() {
                alone(|| two_workers().block_on(a_waker_in_a_task_is_called(Call::$call, Place::$place)));
            }
        )*
    };
}

in_tasks! {
    f91_a_waker_of_a_release_panics_in_a_task: Release, Task;
    f91_a_waker_of_a_release_panics_in_a_blocking_task: Release, BlockingTask;
    f91_a_waker_of_a_release_panics_in_a_local_task: Release, LocalTask;
    f91_a_waker_of_an_acquire_panics_in_a_task: AcquireWithin, Task;
    f91_a_waker_of_an_acquire_panics_in_a_blocking_task: AcquireWithin, BlockingTask;
    f91_a_waker_of_an_acquire_panics_in_a_local_task: AcquireWithin, LocalTask;
    f91_a_waker_of_a_renew_panics_in_a_task: Renew, Task;
    f91_a_waker_of_a_renew_panics_in_a_blocking_task: Renew, BlockingTask;
    f91_a_waker_of_a_renew_panics_in_a_local_task: Renew, LocalTask;
}

/// A clock that can stand still.
#[derive(Debug, Clone, Default)]
struct Standing(Arc<Mutex<Option<Duration>>>);

impl Clock for Standing {
    fn now(&self) -> Duration {
        self.0.lock().unwrap().unwrap_or_else(|| SystemClock.now())
    }
}

/// Of many batched callers some have wakers that go wrong. The others are answered in time.
async fn a_waker_of_a_batch_is_called() {
    const TOGETHER: usize = 64;
    let (server, clock) = (Server::start(), Standing::default());
    let proxy = Proxy::to(&server);
    let builder = Client::builder().url(proxy.url()).clock(clock.clone());
    let scene = Scene::with(Servers::One(server), Some(proxy), builder).await;
    let goes_wrong = |number: usize| number % 8 == 5;
    TRAP.arm("told", Fault::Panics);
    let mut asked: Vec<_> =
        (0..TOGETHER).map(|number| Box::pin(scene.leases.lock(format!("batch:{number}")).try_acquire())).collect();
    // The servers answer nothing, and no request is overdue: all but the first are one batch.
    scene.servers.stop();
    *clock.0.lock().unwrap() = Some(SystemClock.now());
    let began = std::time::Instant::now();
    for (number, request) in asked.iter_mut().enumerate() {
        let waker = if goes_wrong(number) { Foreign::waker("told") } else { Foreign::waker("well") };
        poll_once(request.as_mut(), &waker);
    }
    *clock.0.lock().unwrap() = None;
    scene.servers.cont();
    sprung("told").await;
    let mut held = Vec::new();
    for (number, request) in asked.into_iter().enumerate() {
        if !goes_wrong(number) {
            let outcome = within(HANGS, "those behind it in the batch are answered", request).await;
            held.extend(outcome.expect("the server answers in time"));
        }
    }
    // Each caller has one command timeout, and a second one if its request has to go alone.
    let (took, limit) = (began.elapsed(), 2 * COMMAND + SIGNAL);
    assert!(took <= limit + scene.lag.worst(), "{took:?}; the machine lagged {:?}", scene.lag.worst());
    let proxy = scene.proxy.as_ref().unwrap();
    let alone = proxy.count(Match::script(ACQUIRE).and(Match::containing("batch:")));
    assert_eq!(alone, 1, "all others were batched: the premise");
    assert!(proxy.count(Match::script(COMBINED)) > 0, "they were batched: the premise");
    let wanted = (0..TOGETHER).filter(|&number| !goes_wrong(number)).count();
    assert_eq!(held.len(), wanted, "{held:?}; the machine lagged {:?}", scene.lag.worst());
    drop(held);
    scene.others_do_not_notice().await;
}

#[test]
fn f91_wakers_of_a_batch_panic() {
    alone(|| two_workers().block_on(a_waker_of_a_batch_is_called()));
}

/// A won acquire leaves late answers to the keeper, which is then the first to drop the caller's waker.
async fn a_waker_is_dropped() {
    let scene = Scene::on(Servers::Quorum(Nodes::seasoned(3))).await;
    TRAP.arm("dropped", Fault::Panics);
    scene.servers.all()[2].stop();
    let lock = scene.leases.lock("victim");
    let won = thread::spawn(move || {
        let mut acquire = pin!(lock.acquire());
        loop {
            let waker = Foreign::waker_with_a_drop("dropped");
            if let Poll::Ready(won) = acquire.as_mut().poll(&mut Context::from_waker(&waker)) {
                return won;
            }
            // The last owner of the waker drops it.
            drop(waker);
            thread::park_timeout(Duration::from_millis(1));
        }
    });
    let won = tokio::task::spawn_blocking(move || won.join().unwrap()).await.unwrap().expect("two of three are there");
    scene.servers.all()[2].cont();
    assert_eq!(won.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
    scene.others_do_not_notice().await;
}

#[test]
fn f91_the_drop_of_a_waker_panics() {
    alone(|| two_workers().block_on(a_waker_is_dropped()));
}

/// Awaits something on a thread and a runtime of its own.
fn on_a_thread<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(future)
    })
}

async fn on_wait_goes_wrong(fault: Fault) {
    let scene = Scene::of_one().await;
    let busy = scene.acquire("busy").await;
    TRAP.arm("on_wait", fault);
    let lock = scene.leases.lock("busy").on_wait(|_| TRAP.meet_anywhere("on_wait"));
    let (waiter, lag) = (on_a_thread(lock.acquire_within(5 * TTL)), Lag::start());
    sprung("on_wait").await;
    let next = on_a_thread(scene.leases.lock("busy").acquire());
    assert_eq!(busy.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
    let began = std::time::Instant::now();
    let got = within(HANGS, "others have their turn", next).await.unwrap().expect("it is free");
    // The other waiters then poll by themselves.
    let (took, limit) = (began.elapsed(), Duration::from_secs(2) + 2 * COMMAND + SIGNAL);
    assert!(took <= limit + lag.worst(), "{took:?}; the machine lagged {:?}", lag.worst());
    assert_eq!(got.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
    scene.others_do_not_notice().await;
    TRAP.disarm("on_wait");
    assert_eq!(within(HANGS, "it ends", waiter).await.is_err(), fault == Fault::Panics, "it is the caller's own panic");
}

#[test]
fn f91_on_wait_blocks() {
    alone(|| two_workers().block_on(on_wait_goes_wrong(Fault::Blocks)));
}

#[test]
fn f91_on_wait_panics() {
    alone(|| two_workers().block_on(on_wait_goes_wrong(Fault::Panics)));
}

/// A clock that panics on the keeper's thread for a while.
#[derive(Debug, Clone, Default)]
struct Panicking(Arc<AtomicBool>);

impl Clock for Panicking {
    fn now(&self) -> Duration {
        let on_keeper = thread::current().name() == Some("leasehold-keeper");
        assert!(!(on_keeper && self.0.load(Ordering::SeqCst)), "a clock that panics, as it is meant to");
        SystemClock.now()
    }
}

#[test]
fn f91_a_keeper_panic_ends_every_lease_and_later_ones_are_renewed() {
    alone(|| {
        two_workers().block_on(async {
            let (server, clock) = (Server::start(), Panicking::default());
            let builder = Client::builder().url(server.url()).ttl(TTL).clock(clock.clone());
            let leases = builder.build().await.unwrap();
            let (one, two) = (leases.lock("one").acquire().await.unwrap(), leases.lock("two").acquire().await.unwrap());
            clock.0.store(true, Ordering::SeqCst);
            for lease in [&one, &two] {
                let lost = within(TTL / 2, "it is told at once", lease.lost()).await;
                assert_eq!(format!("{:?}", lost.reason()), "KeeperEnded");
                assert_eq!(lease.check(), Err(lost.into()));
            }
            clock.0.store(false, Ordering::SeqCst);
            let later = leases.lock("later").acquire().await.unwrap();
            let began = std::time::Instant::now();
            eventually_async(HANGS, "more than a TTL has passed", || {
                assert_eq!(later.check(), Ok(()));
                began.elapsed() > TTL * 5 / 4
            })
            .await;
            assert_eq!(later.release().await, Ok(leasehold::Released::Confirmed));
        });
    });
}

mod exporter {
    use std::sync::{Arc, OnceLock};

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString,
        Unit,
    };

    use super::*;

    struct Exporter;

    struct Handle(String);

    impl CounterFn for Handle {
        fn increment(&self, _: u64) {
            TRAP.meet(&self.0);
        }

        fn absolute(&self, _: u64) {}
    }

    impl GaugeFn for Handle {
        fn increment(&self, _: f64) {
            TRAP.meet(&self.0);
        }

        fn decrement(&self, _: f64) {}

        fn set(&self, _: f64) {}
    }

    impl HistogramFn for Handle {
        fn record(&self, _: f64) {
            TRAP.meet(&self.0);
        }
    }

    impl Recorder for Exporter {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Arc::new(Handle(key.name().to_owned())))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(Arc::new(Handle(key.name().to_owned())))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(Handle(key.name().to_owned())))
        }
    }

    async fn goes_wrong(fault: Fault) {
        static ONCE: OnceLock<()> = OnceLock::new();
        ONCE.get_or_init(|| metrics::set_global_recorder(Exporter).map_err(|_| ()).expect("there is no other"));
        // At the end of a lease, and at a renewal.
        for (name, event) in [("leasehold_losses_total", "lost"), ("leasehold_renewal_seconds", "renew")] {
            let scene = scene(event).await;
            TRAP.arm(name, fault);
            let victim = scene.acquire("victim").await;
            if event == "lost" {
                assert!(scene.servers.all()[0].wire().del("victim"));
            }
            sprung(name).await;
            scene.others_do_not_notice().await;
            TRAP.spared_the_keeper();
            TRAP.disarm(name);
            drop(victim);
        }
    }

    #[test]
    fn f91_the_exporter_blocks() {
        alone(|| two_workers().block_on(goes_wrong(Fault::Blocks)));
    }

    #[test]
    fn f91_the_exporter_panics() {
        alone(|| two_workers().block_on(goes_wrong(Fault::Panics)));
    }
}
