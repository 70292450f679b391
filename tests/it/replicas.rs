//! Locks that count once replicas confirm them: `min_replicas` (rule 12).

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold::{
    Builder, Client, Error, Lease, LossReason, Status,
    doctor::{Info, survey},
};
use support::{
    Action, Cluster, HANGS, Lag, Match, Proxy, Replicated, SERVICE, SIGNAL, Sentinels, Server, Wire, await_replicas,
    eventually, eventually_async, fenced_write, on_no_runtime, scripts, within,
};
use tokio::task::JoinSet;

use crate::common::{COMMAND, Confirmed as _, LONG};

async fn connect(url: &str, min_replicas: u8) -> Client {
    connect_by(Client::builder().url(url), min_replicas).await
}

async fn connect_by(builder: Builder, min_replicas: u8) -> Client {
    let building = builder.min_replicas(min_replicas).command_timeout(COMMAND).build();
    within(HANGS, "build", building).await.unwrap()
}

/// The error of a call, which must state how many replicas have confirmed.
async fn too_few<T>(call: impl Future<Output = Result<T, Error>>, how_many: &str) -> Error {
    let Err(error) = within(HANGS, "an answer", call).await else { panic!("it was granted") };
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(how_many) && text.contains("(min_replicas)"), "{text}");
    error
}

/// Whether a server has this lease: its name with its fence.
fn is_on(wire: &mut Wire, lease: &Lease) -> bool {
    wire.get(lease.name()).is_some_and(|value| value.contains(&format!(":{}@", lease.fence())))
}

/// Waits until no lock key is left on a server.
async fn nothing_is_left(server: &Server) {
    let locks = || server.wire().keys("*").into_iter().filter(|key| !key.ends_with(":fence")).collect::<Vec<_>>();
    eventually_async(HANGS, "what was granted is taken back", || locks().is_empty()).await;
}

#[tokio::test]
async fn settings_that_no_replica_could_keep_are_refused() {
    let config = |error: Error, part: &str| {
        assert!(matches!(&error, Error::Config(text) if text.to_string().contains(part)), "{error}");
    };
    let with = |url: &str, replicas| Client::builder().url(url).min_replicas(replicas).build_lazy();
    config(with("redis://127.0.0.1:1", 10).unwrap_err(), "min_replicas is 10: it must be at most 9");
    config(with("memory://", 1).unwrap_err(), "memory:// has no replicas");
    with("memory://", 0).unwrap();
    let servers = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"];
    config(Client::builder().quorum(servers).min_replicas(1).build_lazy().unwrap_err(), "the servers of a quorum");
}

/// Each grant and each renewal is on the replica before the holder is notified, both alone and in a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_holder_hears_of_is_on_the_replica() {
    let servers = Replicated::start(1);
    let leases = connect(&servers.primary().url(), 1).await;
    let mut crowd = JoinSet::new();
    for task in 0..32 {
        let (leases, port) = (leases.clone(), servers.replicas()[0].port());
        crowd.spawn(async move {
            let mut replica = Wire::to_port(port);
            for cycle in 0..8 {
                let name = format!("job:{task}:{cycle}");
                let lease = leases.lock(&name).ttl(LONG).acquire().await.unwrap();
                assert!(is_on(&mut replica, &lease), "{name} is not on the replica");
                lease.release().await.unwrap().confirmed();
            }
        });
    }
    while let Some(done) = within(HANGS, "the crowd", crowd.join_next()).await {
        done.unwrap();
    }
    // While the replica is stopped, the primary has the lock, but the caller gets no answer.
    servers.replicas()[0].stop();
    let told = tokio::spawn(leases.lock("renewed").ttl(LONG).acquire());
    eventually_async(HANGS, "the primary has it", || servers.primary().wire().exists("renewed")).await;
    assert!(!told.is_finished(), "no replica has it");
    servers.replicas()[0].cont();
    let lease = within(HANGS, "the lock", told).await.unwrap().unwrap();
    let mut replica = servers.replicas()[0].wire();
    replica.must(&["CONFIG", "SET", "replica-read-only", "no"]);
    // Its TTL on the replica is cut: it would stay short if the renewal were not replicated.
    replica.must(&["PEXPIRE", "renewed", "5000"]);
    within(HANGS, "the renewal", lease.renew()).await.unwrap();
    assert!(replica.pttl("renewed") > 10_000, "its renewal is not on the replica");
    nothing_is_left_after(lease, servers.primary()).await;
}

async fn nothing_is_left_after(lease: Lease, server: &Server) {
    lease.release().await.unwrap().confirmed();
    nothing_is_left(server).await;
}

/// By then the other side has elected a primary, where the lock is free.
const GRANTED: Duration = Duration::from_secs(40);

/// A primary and a client that a cut separates from the replicas, the Sentinels and all others.
struct Sides {
    all: Sentinels,
    /// All links across the cut: to the primary, and from the client to Sentinels and replicas.
    links: Vec<Proxy>,
    url: String,
    map: Vec<(String, String)>,
}

impl Sides {
    fn start() -> Self {
        let (all, to_primary) = Sentinels::start_behind_a_proxy();
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut map = vec![(at(to_primary.port()), at(all.primary().port()))];
        let mut links = vec![to_primary];
        let mut hosts = Vec::new();
        for (number, server) in all.sentinels().iter().chain(all.replicas()).enumerate() {
            let link = Proxy::to(server);
            // Sentinels name each other, and the promoted replica.
            map.push((at(server.port()), at(link.port())));
            if number < all.sentinels().len() {
                hosts.push(at(link.port()));
            }
            links.push(link);
        }
        let url = format!("redis-sentinel://{}/{SERVICE}", hosts.join(","));
        await_replicas(all.primary(), all.replicas().len());
        Self { all, links, url, map }
    }

    /// One client on the first primary's side, and one on the other side.
    async fn clients(&self, min_replicas: u8) -> [Client; 2] {
        let map = self.map.iter().map(|(from, to)| (from, to));
        let beside_it = Client::builder().url(&self.url).address_map(map);
        [connect_by(beside_it, min_replicas).await, connect(&self.all.url(), min_replicas).await]
    }

    /// Acquires a lock and waits until both replicas have it, so that either may take over.
    async fn acquire(&self, leases: &Client, ttl: Duration) -> Lease {
        let lease = within(HANGS, "the lock", leases.lock("job").ttl(ttl).acquire()).await.unwrap();
        let has_it = |replica: &Server| is_on(&mut replica.wire(), &lease);
        eventually(HANGS, "it is replicated", || self.all.replicas().iter().all(has_it));
        lease
    }

    fn cut(&self) {
        self.links.iter().for_each(|link| link.black_hole(true));
    }

    fn end_the_cut(&self) {
        for link in &self.links {
            link.black_hole(false);
            // Connections made during the cut stay silent.
            link.cut();
        }
    }
}

/// A primary and a holder are on one side of a cut, and the other side elects a primary of its own. The holder is
/// notified by its deadline, and the lock is not granted before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f50_a_holder_that_is_cut_off_with_its_primary_expires() {
    const TTL: Duration = Duration::from_secs(8);
    let (sides, lag) = (Sides::start(), Lag::start());
    let [one, two] = sides.clients(1).await;
    let held = sides.acquire(&one, TTL).await;
    // Long before the lease's first renewal, so no answer to one is under way.
    sides.cut();
    let deadline = Instant::now() + held.remaining();
    let lock = two.lock("job").ttl(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(|lease| (lease, Instant::now())) });
    too_few(one.lock("another").ttl(TTL).try_acquire(), "0 of 1 replicas").await;
    eventually(HANGS, "the lease is at risk", || held.status() == Status::AtRisk);
    let lost = within(TTL + HANGS, "the signal", held.lost()).await;
    let told = Instant::now();
    assert_eq!(lost.reason(), LossReason::Expired, "{lost}");
    let bound = SIGNAL + lag.worst();
    assert!(told <= deadline + bound, "{:?} after the deadline, the bound is {bound:?}", told - deadline);
    let (next, granted) = within(GRANTED, "the next lease", waiting).await.unwrap().unwrap();
    assert!(granted >= deadline, "granted {:?} before the deadline", deadline - granted);
    assert!(next.fence() > held.fence());
    let promoted = sides.all.named_by(0).unwrap();
    assert!(promoted.port() != sides.all.primary().port() && is_on(&mut promoted.wire(), &next));
    sides.end_the_cut();
    let fence = next.fence();
    next.release().await.unwrap().confirmed();
    let again = within(GRANTED, "the lock", one.lock("job").ttl(LONG).acquire()).await.unwrap();
    assert!(again.fence() > fence);
    again.release().await.unwrap().confirmed();
}

/// The cut of the previous test, without confirming replicas: two may believe until the cut ends, and a resource
/// refuses the one with the older fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f50_without_replicas_two_believe_until_the_cut_ends() {
    const TTL: Duration = Duration::from_secs(4);
    let (sides, resource) = (Sides::start(), Server::start());
    let [one, two] = sides.clients(0).await;
    let mut wire = resource.wire();
    let held = sides.acquire(&one, TTL).await;
    fenced_write(&mut wire, "value", "first", held.fence()).unwrap();
    sides.cut();
    let next = within(GRANTED, "the next lease", two.lock("job").ttl(LONG).acquire()).await.unwrap();
    // The lease is renewed by its own primary, which does not know of the other.
    held.check().unwrap();
    next.check().unwrap();
    assert!(next.fence() > held.fence());
    fenced_write(&mut wire, "value", "second", next.fence()).unwrap();
    assert_eq!(fenced_write(&mut wire, "value", "third", held.fence()), Err(u64::from(next.fence())));
    assert_eq!(wire.must(&["HGET", "value", "value"]).text(), "second");
    sides.end_the_cut();
    let lost = within(HANGS, "the signal", held.lost()).await;
    assert!(matches!(lost.reason(), LossReason::FailedOver | LossReason::Taken), "{lost}");
    next.check().unwrap();
    next.release().await.unwrap().confirmed();
}

/// With too few replicas, an acquire is undone and reports how many there were. A lease ends by its deadline, or
/// continues once they are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_too_few_replicas() {
    const TTL: Duration = Duration::from_secs(2);
    let (servers, lag) = (Replicated::start(2), Lag::start());
    let [first, second] = servers.replicas() else { panic!("there are two") };
    let url = servers.primary().url();
    let (leases, bold) = (connect(&url, 2).await, connect(&url, 0).await);
    let held = leases.lock("held").ttl(TTL).acquire().await.unwrap();
    first.stop();
    let began = Instant::now();
    too_few(leases.lock("job").ttl(TTL).try_acquire(), "1 of 2 replicas").await;
    // The wait is a quarter of the TTL, or half of the command time-out.
    assert!(began.elapsed() < COMMAND + lag.worst(), "{:?}", began.elapsed());
    too_few(leases.lock("job").ttl(TTL).acquire_within(Duration::from_millis(600)), "1 of 2 replicas").await;
    eventually_async(HANGS, "the undo", || !servers.primary().wire().exists("job")).await;
    eventually(HANGS, "the lease is at risk", || held.status() == Status::AtRisk);
    // A program that requires no replicas has a connection of its own, and does not wait for any.
    bold.lock("bold").ttl(LONG).try_acquire().await.unwrap().unwrap().release().await.unwrap().confirmed();
    first.cont();
    eventually(HANGS, "the lease is held again", || held.status() == Status::Held);
    assert!(held.remaining() > TTL / 2);
    second.stop();
    let lost = within(HANGS, "the signal", held.lost()).await;
    let late = lost.since().elapsed().unwrap_or_default();
    assert_eq!(lost.reason(), LossReason::Expired, "{lost}");
    assert!(late <= SIGNAL + lag.worst(), "{late:?} after the deadline");
    drop(held);
    second.cont();
    within(HANGS, "the lock", leases.lock("held").ttl(TTL).acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap()
        .confirmed();
    nothing_is_left(servers.primary()).await;
}

/// Renewals wait for a missing replica longer than the command time-out. The primary answers all the while, so the
/// connection stays, and the reason is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_a_missing_replica_costs_no_connection() {
    const TTL: Duration = Duration::from_secs(4);
    let servers = Replicated::start(1);
    let primary = servers.primary();
    let builder = Client::builder().url(primary.url()).command_timeout(Duration::from_millis(100));
    let leases = connect_by(builder, 1).await;
    let held = within(HANGS, "the lock", leases.lock("held").ttl(TTL).acquire()).await.unwrap();
    let mut wire = primary.wire();
    let mut are_all_there = || wire.must(&["CLIENT", "LIST"]).text().contains(":notifications ");
    eventually(HANGS, "every connection is there", &mut are_all_there);
    let made = wire.info_field("stats", "total_connections_received");
    servers.replicas()[0].stop();
    eventually(HANGS, "the lease is at risk", || held.status() == Status::AtRisk);
    eventually(HANGS, "most of it is over", || held.remaining() < TTL / 8);
    assert_eq!(wire.info_field("stats", "total_connections_received"), made);
    servers.replicas()[0].cont();
    eventually(HANGS, "the lease is held again", || held.status() == Status::Held);
    nothing_is_left_after(held, primary).await;
}

/// Without any replica each grant is undone, in a batch too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_no_replica_at_all() {
    let server = Server::start();
    let leases = connect(&server.url(), 1).await;
    let mut crowd: JoinSet<_> = (0..40).map(|n| leases.lock(format!("job:{n}")).ttl(LONG).try_acquire()).collect();
    while let Some(tried) = within(HANGS, "the crowd", crowd.join_next()).await {
        too_few(async { tried.unwrap() }, "0 of 1 replicas").await;
    }
    let fair = leases.lock("fair").fair(true).ttl(LONG).acquire_within(Duration::from_millis(500));
    let error = within(HANGS, "an answer", fair).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    nothing_is_left(&server).await;
}

/// The primary is killed at some moment, and the replica takes over: the lease continues there, whatever that moment
/// was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f52_a_failover_to_a_replica_that_confirmed() {
    let kills = std::env::var("LEASEHOLD_KILLS").map_or(4, |many| many.parse().expect("a number of kills"));
    for kill in 0..kills {
        let cluster = Cluster::start(1, 1);
        let (primary, replica) = (&cluster.primaries()[0], cluster.replica_of(0));
        let leases = connect(&cluster.url(), 1).await;
        drop(within(HANGS, "a first lock", leases.lock("first").ttl(LONG).acquire()).await.unwrap());
        // Others write all the time.
        let busy: JoinSet<()> = (0..8)
            .map(|task| {
                let leases = leases.clone();
                async move {
                    loop {
                        drop(leases.lock(format!("busy:{task}")).ttl(LONG).try_acquire().await);
                    }
                }
            })
            .collect();
        let mut held = JoinSet::new();
        for number in 0..20 {
            let leases = leases.clone();
            held.spawn(async move { leases.lock(format!("job:{number}")).ttl(LONG).acquire().await.unwrap() });
            if number == kill % 20 {
                let first = held.join_next().await.expect("one").unwrap();
                primary.kill();
                replica.wire().must(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
                // It restarts as a replica of its former replica, because a lease needs one to continue.
                primary.restart();
                // The replica has just taken over, and may not serve yet.
                let serves = || replica.wire().cmd(&["GET", first.name()]).error().is_none();
                eventually_async(HANGS, "the replica serves", serves).await;
                assert!(is_on(&mut replica.wire(), &first), "it is on the replica");
                within(HANGS, "the renewal at the replica", renewed(&first)).await;
                first.check().unwrap();
                drop(first);
            }
        }
        drop(busy);
        while let Some(lease) = within(HANGS, "the others", held.join_next()).await {
            let lease = lease.unwrap();
            assert!(is_on(&mut replica.wire(), &lease), "{}", lease.name());
        }
    }
}

/// Renews the lease until a renewal succeeds, which may take a few tries.
async fn renewed(lease: &Lease) {
    while lease.renew().await.is_err() {
        lease.check().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The answer to a script or to `WAIT` is lost, or the connection ends between them: neither confirms anything, and no
/// key stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f53_answers_that_are_lost_confirm_nothing() {
    let servers = Replicated::start(1);
    let proxy = Proxy::to(servers.primary());
    let leases = connect(&proxy.url(), 1).await;
    drop(within(HANGS, "a first lock", leases.lock("first").ttl(LONG).acquire()).await.unwrap());
    nothing_is_left(servers.primary()).await;
    for action in [Action::SwallowReply, Action::CutBefore, Action::CutAfter, Action::DropRequest] {
        let lost = proxy.on(Match::command("WAIT"), 1, action);
        let mut failed = false;
        // The connection of the previous fault may end in the middle of the next try, and a rule reports its hit after
        // its effect.
        while lost.hits() == 0 {
            match within(HANGS, "an answer", leases.lock("job").ttl(LONG).try_acquire()).await {
                Ok(Some(lease)) => assert!(failed, "{action:?}: {lease:?}"),
                Ok(None) => {}
                Err(error) => failed = matches!(error, Error::Unavailable(_)),
            }
        }
        assert!(failed, "{action:?}");
        nothing_is_left(servers.primary()).await;
    }
    let lost = proxy.on(Match::script(scripts::ACQUIRE), 1, Action::CutAfter);
    // Together with the undo of the last try, a try may be batched, and a batch is another script.
    let mut failed = false;
    while lost.hits() == 0 {
        let tried = within(HANGS, "an answer", leases.lock("job").ttl(LONG).try_acquire()).await;
        failed |= matches!(tried, Err(Error::Unavailable(_)));
    }
    assert!(failed);
    nothing_is_left(servers.primary()).await;
    let lease = within(HANGS, "the lock", leases.lock("job").ttl(LONG).acquire()).await.unwrap();
    nothing_is_left_after(lease, servers.primary()).await;
}

/// A user without the right to `WAIT` gets an error that names it.
#[tokio::test]
async fn a_missing_right_to_wait_is_named() {
    let servers = Replicated::start(1);
    servers.primary().wire().must(&[
        "ACL",
        "SETUSER",
        "hasty",
        "on",
        ">secret",
        "allkeys",
        "&*",
        "allcommands",
        "-wait",
    ]);
    let leases = connect(&format!("redis://hasty:secret@127.0.0.1:{}", servers.primary().port()), 1).await;
    let error = within(HANGS, "an answer", leases.lock("job").ttl(LONG).acquire()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text.to_string().contains("wait")), "{error:?}");
    nothing_is_left(servers.primary()).await;
}

/// Its only replica is made a primary of its own, halfway through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_a_replica_that_follows_no_more() {
    let servers = Replicated::start(1);
    let leases = connect(&servers.primary().url(), 1).await;
    let lease = within(HANGS, "the lock", leases.lock("job").ttl(LONG).acquire()).await.unwrap();
    servers.replicas()[0].wire().must(&["REPLICAOF", "NO", "ONE"]);
    too_few(leases.lock("other").ttl(LONG).try_acquire(), "0 of 1 replicas").await;
    servers.follow();
    within(HANGS, "the renewal", renewed(&lease)).await;
    nothing_is_left_after(lease, servers.primary()).await;
}

/// The primary is made a replica while it waits for others: this is not a refusal, because another may be the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_becomes_a_replica_while_it_waits_refuses_nobody() {
    let (servers, other) = (Replicated::start(1), Server::start());
    let leases = connect(&servers.primary().url(), 1).await;
    within(HANGS, "a first lock", leases.lock("first").ttl(LONG).acquire()).await.unwrap().release().await.unwrap();
    servers.replicas()[0].stop();
    let tried = tokio::spawn(leases.lock("job").ttl(LONG).try_acquire());
    let mut wire = servers.primary().wire();
    let is_blocked = |client: &str| client.contains(" flags=b ") && client.contains(" cmd=wait ");
    let waits = || wire.must(&["CLIENT", "LIST"]).text().lines().any(is_blocked);
    eventually_async(HANGS, "a WAIT is under way", waits).await;
    wire.must(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let error = within(HANGS, "an answer", tried).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

/// A caller without a runtime waits for replicas too.
#[test]
fn a_caller_on_no_runtime_waits_for_replicas_too() {
    let servers = Replicated::start(1);
    let leases = Client::builder().url(servers.primary().url()).min_replicas(1).build_lazy().unwrap();
    let lease = on_no_runtime("the lock", leases.lock("job").acquire()).unwrap();
    assert!(is_on(&mut servers.replicas()[0].wire(), &lease));
    on_no_runtime("the renewal", lease.renew()).unwrap();
    on_no_runtime("the release", lease.release()).unwrap().confirmed();
    servers.replicas()[0].stop();
    let error = on_no_runtime("an answer", leases.lock("job").try_acquire()).unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
}

/// While a slot is migrating, a lock is acquired step by step. Without replicas it is undone there too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_a_replica_is_missing_where_a_slot_goes() {
    let cluster = Cluster::start(2, 1);
    let leases = connect(&cluster.url(), 1).await;
    for at in 0..2 {
        // A replica first acknowledges a second after its start.
        let first = leases.lock(cluster.name_at(at, "first")).ttl(LONG).acquire();
        nothing_is_left_after(within(HANGS, "a first lock", first).await.unwrap(), &cluster.primaries()[at]).await;
    }
    let name = cluster.name_at(0, "job");
    cluster.begin_to_move(cluster.slot_of(&name), 0, 1);
    let lease = within(HANGS, "the lock", leases.lock(&name).ttl(LONG).acquire()).await.unwrap();
    assert!(cluster.replica_of(1).wire().keys("*").contains(&name), "the replica has it");
    nothing_is_left_after(lease, &cluster.primaries()[1]).await;
    cluster.replica_of(1).stop();
    too_few(leases.lock(&name).ttl(LONG).try_acquire(), "0 of 1 replicas").await;
    nothing_is_left(&cluster.primaries()[1]).await;
    cluster.replica_of(1).cont();
    let lease = within(HANGS, "the lock", leases.lock(&name).ttl(LONG).acquire()).await.unwrap();
    nothing_is_left_after(lease, &cluster.primaries()[1]).await;
}

/// While a replica is missing, other calls on the same connection are each held up only for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_replica_holds_up_others_for_a_moment() {
    const MOST: Duration = Duration::from_millis(25);
    const ROUNDS: usize = 40;
    let (servers, lag) = (Replicated::start(1), Lag::start());
    let leases = connect(&servers.primary().url(), 1).await;
    drop(within(HANGS, "a first lock", leases.lock("first").ttl(LONG).acquire()).await.unwrap());
    servers.replicas()[0].stop();
    let (mut took, mut wire) = (Vec::new(), servers.primary().wire());
    for round in 0..ROUNDS {
        let name = format!("job:{round}");
        let short = tokio::spawn(leases.lock(&name).ttl(LONG).try_acquire());
        eventually_async(HANGS, "it waits for the replica", || wire.exists(&name)).await;
        let began = Instant::now();
        within(HANGS, "an answer", leases.lock("other").holder()).await.unwrap();
        took.push(began.elapsed());
        too_few(async { short.await.unwrap() }, "0 of 1 replicas").await;
    }
    // The first is late because more time is taken for it; a busy machine may delay some more.
    let late = took.iter().filter(|took| **took > MOST + lag.worst()).count();
    assert!(late <= ROUNDS / 10, "{took:?}");
}

/// A replica that acknowledges later than a usual `WAIT` lasts: once it is seen to acknowledge, it is waited for
/// longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_far_away_confirms() {
    let (primary, replica) = (Server::builder().arg("--repl-diskless-sync-delay", "0").start(), Server::start());
    let link = Proxy::to(&primary);
    replica.wire().must(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]);
    await_replicas(&primary, 1);
    // The round trip is well below the 160 ms that a `WAIT` lasts by then. A `WAIT` that ends just before the
    // acknowledgement is followed by a rest and another one.
    link.delay(Duration::from_millis(65));
    // The command time-out is far away, so that the test's own limit decides.
    let builder = Client::builder().url(primary.url()).min_replicas(1).command_timeout(HANGS);
    let (leases, lag) = (builder.build().await.unwrap(), Lag::start());
    nothing_is_left_after(
        within(HANGS, "a first lock", leases.lock("job").ttl(LONG).acquire()).await.unwrap(),
        &primary,
    )
    .await;
    for cycle in 0..5 {
        let began = Instant::now();
        let tried = within(HANGS, "an answer", leases.lock("job").ttl(LONG).try_acquire()).await;
        // The round trip to the replica and the server's own steps, each of which may be late.
        let (took, limit) = (began.elapsed(), Duration::from_millis(500) + lag.of(6));
        assert!(took <= limit, "cycle {cycle}: {took:?} of {limit:?}");
        let lease = tried.unwrap_or_else(|error| panic!("cycle {cycle}: {error}")).expect("it is free");
        assert!(is_on(&mut replica.wire(), &lease), "cycle {cycle}");
        within(HANGS, "the renewal", lease.renew()).await.unwrap();
        nothing_is_left_after(lease, &primary).await;
    }
}

/// On a slow link, a batched grant waits for replicas no longer than its caller does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_a_batch_waits_for_replicas_within_its_limit() {
    const LIMIT: Duration = Duration::from_millis(510);
    let servers = Replicated::start(1);
    let proxy = Proxy::to(servers.primary());
    let builder = Client::builder().url(proxy.url()).min_replicas(1).command_timeout(Duration::from_secs(1));
    let leases = builder.build().await.unwrap();
    drop(within(HANGS, "a first lock", leases.lock("first").ttl(LONG).acquire()).await.unwrap());
    nothing_is_left(servers.primary()).await;
    servers.replicas()[0].stop();
    proxy.delay(Duration::from_millis(125));
    let (lag, mut calls) = (Lag::start(), JoinSet::new());
    for number in 0..6 {
        let lock = leases.lock(format!("job:{number}")).ttl(LONG);
        calls.spawn(async move {
            let began = Instant::now();
            let outcome = lock.acquire_within(LIMIT).await;
            (began.elapsed(), outcome)
        });
    }
    while let Some(call) = within(HANGS, "a call", calls.join_next()).await {
        let (took, outcome) = call.unwrap();
        assert!(outcome.is_err(), "no replica has it: {outcome:?}");
        assert!(took <= LIMIT + SIGNAL + lag.of(3), "{took:?}, the machine lagged {:?}: {outcome:?}", lag.worst());
    }
    proxy.delay(Duration::ZERO);
    nothing_is_left(servers.primary()).await;
}

/// Batched requests end in time even if the runtime of their connection is blocked and a replica is missing.
#[test]
fn a_blocked_runtime_holds_up_no_batch() {
    const WITHIN: Duration = Duration::from_millis(500);
    const BLOCKED: Duration = Duration::from_secs(5);
    let servers = Replicated::start(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let leases = runtime.block_on(connect(&servers.primary().url(), 1));
    servers.replicas()[0].stop();
    let began = Instant::now();
    let callers: Vec<_> = (0..20)
        .map(|caller| {
            let (lock, handle) = (leases.lock(format!("job:{caller}")).ttl(LONG), runtime.handle().clone());
            std::thread::spawn(move || handle.block_on(lock.acquire_within(WITHIN)).unwrap_err())
        })
        .collect();
    // The batch has arrived, and waits for the replica.
    let have_landed =
        || servers.primary().wire().keys("job:*").iter().filter(|key| !key.ends_with(":fence")).count() > 10;
    eventually(HANGS, "most are written", have_landed);
    let blocked = runtime.spawn(async { std::thread::sleep(BLOCKED) });
    for caller in callers {
        assert!(matches!(caller.join().unwrap(), Error::Unavailable(_)));
    }
    let took = began.elapsed();
    assert!(took + WITHIN < BLOCKED, "{took:?}");
    runtime.block_on(blocked).unwrap();
}

/// Missing replicas do not prolong a call, however slow the link to the server is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_replicas_ends_with_the_call() {
    const COMMAND: Duration = Duration::from_secs(2);
    let (servers, lag) = (Replicated::start(1), Lag::start());
    let proxy = Proxy::to(servers.primary());
    let leases = Client::builder().url(proxy.url()).min_replicas(1).command_timeout(COMMAND).build().await.unwrap();
    let lease = within(HANGS, "the lock", leases.lock("job").ttl(LONG).acquire()).await.unwrap();
    servers.replicas()[0].stop();
    // The round trip is less than half of the command time-out, or the connection would be given up.
    proxy.delay(COMMAND / 5);
    let began = Instant::now();
    let renewed = within(HANGS, "an answer", lease.renew()).await;
    let took = began.elapsed();
    let Err(Error::Unconfirmed(why)) = renewed else { panic!("{renewed:?}") };
    assert!(why.to_string().contains("of 1 replicas"), "{why}");
    assert!(took < COMMAND + COMMAND / 10 + lag.worst(), "{took:?}");
}

/// How far the first clock is ahead of the other, in microseconds.
fn ahead(one: &Info, other: &Info) -> i128 {
    let [one, other] = [one, other].map(|said| {
        let time = said.text.lines().find_map(|line| line.strip_prefix("server_time_usec:"));
        time.unwrap().parse::<i128>().unwrap() - i128::try_from(said.at.as_micros()).unwrap()
    });
    one - other
}

/// Each replica reports about itself: of one server, of a cluster and behind Sentinels, also without a runtime.
#[test]
fn replicas_are_told_of_one_by_one() {
    let (alone, cluster, sentinels) = (Replicated::start(2), Cluster::start(2, 1), Sentinels::start());
    let urls = [alone.primary().url(), cluster.url(), sentinels.url()];
    let replicas = [alone.replicas(), &cluster.servers()[2..4], sentinels.replicas()];
    for (url, replicas) in urls.iter().zip(replicas) {
        let leases = Client::builder().url(url).build_lazy().unwrap();
        let told = on_no_runtime("the survey", survey(&leases)).unwrap();
        let primaries: Vec<_> = leases.nodes().iter().map(|node| node.address().to_owned()).collect();
        assert_eq!(told.iter().map(|(node, _)| node.address()).collect::<Vec<_>>(), primaries, "{url}");
        let primaries: Vec<_> = told.into_iter().map(|(_, said)| said.unwrap()).collect();
        let all = primaries.iter().flat_map(|primary| &primary.replicas);
        let mut addresses: Vec<_> = all.map(|replica| &*replica.address).collect();
        let mut expected: Vec<_> = replicas.iter().map(|replica| format!("127.0.0.1:{}", replica.port())).collect();
        addresses.sort_unstable();
        expected.sort_unstable();
        assert_eq!(addresses, expected, "{url}");
        for primary in &primaries {
            assert!(primary.info.text.contains("master_repl_offset:"), "{primary:?}");
            for replica in &primary.replicas {
                assert!(replica.told.contains("state=online") && replica.told.contains("offset="), "{replica:?}");
                let info = replica.info.as_ref().unwrap();
                assert!(info.text.lines().any(|line| line == "maxmemory_policy:noeviction"), "{replica:?}");
                assert!(ahead(info, &primary.info).abs() < 200_000, "{replica:?} {primary:?}");
            }
        }
        on_no_runtime("the close", leases.close());
    }
    let in_memory = on_no_runtime("the survey", survey(&Client::in_memory())).unwrap();
    assert!(
        in_memory.iter().all(|(_, said)| said.as_ref().is_ok_and(|said| said.replicas.is_empty())),
        "{in_memory:?}"
    );
}

/// A retained key counts once a replica has it, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_key_waits_for_replicas() {
    let servers = Replicated::start(1);
    let [replica] = servers.replicas() else { panic!("there is one") };
    let leases = connect(&servers.primary().url(), 1).await;
    let kept = leases.lock("kept").ttl(LONG).keep_for(LONG);
    let lease = within(HANGS, "the lock", kept.acquire()).await.unwrap();
    replica.stop();
    let released = within(HANGS, "the release", lease.release()).await;
    assert_ne!(released, Ok(leasehold::Released::Confirmed), "no replica has confirmed that it is kept");
}

/// The primary is a replica for a moment, between its answer and the `WAIT`: the write is lost everywhere, although the
/// replicas of the new history are counted.
#[tokio::test]
async fn f112_a_primary_that_was_a_replica_before_the_wait_confirms_nothing() {
    a_primary_was_a_replica_before_the_wait(0).await;
}

/// Connections end on the query for the history; any other query would then be left out.
#[tokio::test]
async fn f112_the_question_for_the_history_is_never_left_out() {
    a_primary_was_a_replica_before_the_wait(12).await;
}

async fn a_primary_was_a_replica_before_the_wait(ended: usize) {
    let servers = Replicated::start(2);
    let proxy = Proxy::to(servers.primary());
    // Enough time for all that happens before the `WAIT`.
    let (command, ttl) = (2 * HANGS, 8 * HANGS);
    let builder = Client::builder().url(proxy.url()).min_replicas(1).command_timeout(command).ttl(ttl);
    let leases = within(HANGS, "build", builder.build()).await.unwrap();
    drop(within(HANGS, "a first lock", leases.lock("first").acquire()).await.unwrap());
    if ended > 0 {
        let question = || Match::command("INFO").and(Match::containing("replication"));
        let cuts: Vec<_> = (1..=ended).map(|nth| proxy.on(question(), nth, Action::CutBefore)).collect();
        proxy.cut();
        eventually_async(HANGS, "the connections end", || cuts.iter().all(|cut| cut.hits() == 1)).await;
    }
    nothing_is_left(servers.primary()).await;
    let [other, third] = servers.replicas() else { panic!("two replicas") };
    let port = |server: &Server| server.port().to_string();
    let follow = |server: &Server, of: &Server| server.wire().must(&["REPLICAOF", "127.0.0.1", &port(of)]);
    // The replicas leave first, so they never get the write.
    other.wire().must(&["REPLICAOF", "NO", "ONE"]);
    follow(third, other);
    let held = proxy.on(Match::command("WAIT"), 1, Action::Hold);
    let acquiring = tokio::spawn(leases.lock("job").try_acquire());
    within(HANGS, "the write is answered", held.hit()).await;
    assert!(servers.primary().wire().get("job").is_some(), "the premise");
    follow(servers.primary(), other);
    eventually_async(HANGS, "the write is lost", || servers.primary().wire().get("job").is_none()).await;
    servers.primary().wire().must(&["REPLICAOF", "NO", "ONE"]);
    follow(other, servers.primary());
    follow(third, servers.primary());
    await_replicas(servers.primary(), 2);
    held.release();
    let acquired = within(HANGS, "an answer", acquiring).await.unwrap();
    assert!(
        matches!(&acquired, Err(error) if error.to_string().contains("another replication history")),
        "{acquired:?}"
    );
    let lease = within(HANGS, "the lock", leases.lock("job").acquire()).await.unwrap();
    assert!(is_on(&mut other.wire(), &lease) || is_on(&mut third.wire(), &lease));
}
