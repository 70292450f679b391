//! A cluster: its urls, its servers, and its slots as they move.

use std::time::{Duration, Instant};

use leasehold::{Error, Lease, Leases, LossReason, NodeState, Server as Named, Status};
use support::{Cluster, HANGS, Lag, Server, eventually, eventually_async, eventually_but_for, within};

use crate::common::{COMMAND, Confirmed as _, LONG};

/// By then a replica has taken over: the others may deny it their votes at first, and are asked again after four seconds.
const TAKEN_OVER: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Result<Leases, Error> {
    within(HANGS, "build", Leases::builder().url(url).command_timeout(COMMAND).build()).await
}

async fn acquire(leases: &Leases, name: &str, ttl: Duration) -> Lease {
    within(HANGS, "the lock", leases.lock(name).ttl(ttl).acquire()).await.unwrap()
}

/// A primary is killed, or stands still.
fn end(primary: &Server, killed: bool) {
    if killed { primary.kill() } else { primary.stop() }
}

/// Completes when a replica has become a primary: since this moment, or a look before.
async fn takes_over(replica: &Server) -> Instant {
    let mut looked = Instant::now();
    eventually_async(TAKEN_OVER, "the replica takes over", || {
        looked = Instant::now();
        replica.wire().info_field("replication", "role").as_deref() == Some("master")
    })
    .await;
    looked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_seed_is_enough_also_a_replica_or_one_beside_the_dead() {
    let cluster = Cluster::start(3, 1);
    let dead = Server::start();
    dead.kill();
    let replica = cluster.replica_of(2);
    for url in [
        cluster.url_of(&cluster.servers()[..1]),
        format!("redis-cluster://127.0.0.1:{}", replica.port()),
        format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", dead.port(), cluster.servers()[1].port()),
        format!("redis-cluster://localhost:{}", cluster.servers()[0].port()),
    ] {
        let leases = connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        for primary in 0..3 {
            let name = cluster.name_at(primary, "job");
            let lease = acquire(&leases, &name, LONG).await;
            assert!(cluster.primaries()[primary].wire().exists(&name), "{name} is where it belongs");
            assert!(leases.lock(&name).try_acquire().await.unwrap().is_none());
            lease.release().await.unwrap().confirmed();
        }
        let nodes = leases.nodes();
        assert_eq!(nodes.len(), 3, "{nodes:?}");
        for (node, primary) in nodes.iter().zip(cluster.primaries()) {
            assert_eq!(node.address(), format!("127.0.0.1:{}", primary.port()), "in the order of their slots");
            assert_eq!((node.state(), node.replicas()), (&NodeState::Up, Some(1)));
            assert!(node.slots().is_some_and(|slots| (5_461..=5_462).contains(&slots)), "{node:?}");
        }
        leases.health().await.unwrap();
        leases.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_has_two_connections_to_each_primary_and_a_third_where_something_is_held() {
    let cluster = Cluster::start(3, 0);
    let leases = within(HANGS, "build", Leases::builder().url(cluster.url()).label("program").build()).await.unwrap();
    let roles = |primary: &Server| {
        let all = primary.wire().must(&["CLIENT", "LIST"]).text();
        let names = all.split_whitespace().filter_map(|field| field.strip_prefix("name=leasehold:program:"));
        let mut roles: Vec<String> = names.map(ToOwned::to_owned).collect();
        roles.sort();
        roles
    };
    let have_all = |wanted: &[&str]| cluster.primaries().iter().all(|primary| roles(primary) == wanted);
    let two = ["keeper", "main"];
    eventually_async(HANGS, "two to each", || have_all(&two)).await;
    let lease = acquire(&leases, &cluster.name_at(0, "job"), LONG).await;
    let [home, others @ ..] = cluster.primaries() else { panic!("there are three") };
    eventually_async(HANGS, "a third", || roles(home) == ["keeper", "main", "notifications"]).await;
    assert!(others.iter().all(|other| roles(other) == two));
    lease.release().await.unwrap().confirmed();
    leases.close().await;
    eventually_async(HANGS, "none is left", || have_all(&[])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_all_shards_are_kept_and_listed() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let (mut held, mut names) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let name = format!("job:{number:02}");
        held.push(acquire(&leases, &name, Duration::from_millis(600)).await);
        names.push(name);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    for lease in &held {
        assert_eq!((lease.status(), lease.check().is_ok()), (Status::Held, true), "{}", lease.name());
    }
    let listed = leases.list("job:*").await.unwrap();
    assert_eq!(listed.iter().map(leasehold::Lock::name).collect::<Vec<_>>(), names);
    drop(held);
    for server in cluster.primaries() {
        eventually(HANGS, "they are released", || server.wire().keys("job:??").is_empty());
    }
}

/// A waiter that watches a slot hears that it leaves, and asks its new owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44a_a_slot_that_moves_takes_its_holder_and_its_waiters_along() {
    for fair in [false, true] {
        let cluster = Cluster::start(3, 0);
        let leases = connect(&cluster.url()).await.unwrap();
        let other = connect(&cluster.url()).await.unwrap();
        let name = cluster.name_at(0, "job");
        let lock = leases.lock(&name).ttl(Duration::from_secs(2)).fair(fair);
        let lease = within(HANGS, "the lock", lock.acquire()).await.unwrap();
        let waiter = tokio::spawn(other.lock(&name).ttl(LONG).fair(fair).acquire());
        cluster.move_slot(cluster.slot_of(&name), 0, 2);
        // Longer than its TTL: it was renewed where it is now.
        tokio::time::sleep(Duration::from_secs(3)).await;
        lease.check().unwrap();
        assert!(cluster.primaries()[2].wire().exists(&name));
        let fence = lease.fence();
        lease.release().await.unwrap().confirmed();
        let next = within(HANGS, "the next lease", waiter).await.unwrap().unwrap();
        assert!(next.fence() > fence);
        next.release().await.unwrap().confirmed();
        let slots: Vec<_> = leases.nodes().iter().map(leasehold::NodeStatus::slots).collect();
        assert_eq!(slots, [Some(5_460), Some(5_463), Some(5_461)], "in the order of the lowest slot");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44c_a_shard_that_stands_still_holds_up_no_other() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let names = [0, 1, 2].map(|primary| cluster.name_at(primary, "job"));
    let ttl = Duration::from_secs(1);
    let [frozen, one, two] = [
        acquire(&leases, &names[0], ttl).await,
        acquire(&leases, &names[1], ttl).await,
        acquire(&leases, &names[2], ttl).await,
    ];
    // Renewed together with the first.
    let another = acquire(&leases, &cluster.name_at(0, "another"), ttl).await;
    cluster.primaries()[0].stop();
    for frozen in [&frozen, &another] {
        let lost = within(HANGS, "the signal", frozen.lost()).await;
        assert_eq!(lost.reason(), LossReason::Expired);
    }
    let states = || leases.nodes().iter().map(|node| *node.state() == NodeState::Up).collect::<Vec<_>>();
    eventually_async(HANGS, "renewals in vain are told", || states() == [false, true, true]).await;
    for lease in [&one, &two] {
        lease.check().unwrap();
        // It is renewed as ever.
        assert!(lease.remaining() > ttl / 3, "{:?}", lease.remaining());
    }
    within(COMMAND * 2, "health", leases.health()).await.expect("two of three are there");
    assert_eq!(states(), [false, true, true]);
    let error = leases.list("*").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    cluster.primaries()[0].cont();
    one.release().await.unwrap().confirmed();
    two.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_cluster_is_named() {
    let (cluster, alone) = (Cluster::start(3, 0), Server::start());
    let sentinel = Server::builder().sentinel(true).start();
    let closed = Cluster::start(1, 0);
    closed.servers()[0].wire().must(&["CONFIG", "SET", "requirepass", "sesame"]);
    let in_cluster = |server: &Server| format!("redis-cluster://127.0.0.1:{}", server.port());
    let port = |server: &Server| server.port().to_string();
    for (url, parts) in [
        (in_cluster(&alone), vec![port(&alone), "not part of a cluster".into(), "redis://".into()]),
        (in_cluster(&sentinel), vec![port(&sentinel), "is a Sentinel".into()]),
        (cluster.primaries()[0].url(), vec!["part of a cluster".into(), "redis-cluster://".into()]),
        (in_cluster(&closed.servers()[0]), vec!["NOAUTH".into()]),
        (in_cluster(&closed.servers()[0]).replace("://", "://:wrong@"), vec!["WRONGPASS".into()]),
    ] {
        let error = connect(&url).await.map(|_| ()).expect_err(&url);
        assert!(matches!(error, Error::Config(_) | Error::Refused(_)), "{error:?}");
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(&part), "{url}: {text}");
        }
        assert!(!text.contains("wrong"), "{text}");
    }
    let builder = || Leases::builder().url(cluster.url());
    let error = builder().restart_delay(Duration::from_secs(31)).build().await.unwrap_err().to_string();
    assert!(error.contains("restart_delay") && error.contains("quorum"), "{error}");
    let quorum = Leases::builder().quorum([alone.url(), cluster.url(), sentinel.url()]).build().await;
    let error = quorum.unwrap_err().to_string();
    assert!(error.contains("quorum[1]") && error.contains("replicas"), "{error}");
    let server: Named = cluster.url().parse().unwrap();
    let error = Leases::builder().server(server.database(3)).build().await.unwrap_err().to_string();
    assert!(error.contains("database") && error.contains("cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_whose_keys_would_be_in_two_slots_is_refused_before_anything_is_sent() {
    let cluster = Cluster::start(1, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    for name in ["a}b", "{}", "}", "{}{a}"] {
        let error = leases.lock(name).try_acquire().await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Config(_)) && text.contains("hash tag") && text.contains(name), "{text}");
    }
    for name in ["a{b}c", "{a}}", "{", "a{b"] {
        acquire(&leases, name, LONG).await.release().await.unwrap().confirmed();
    }
    let alone = Server::start();
    let leases = connect(&alone.url()).await.unwrap();
    acquire(&leases, "a}b", LONG).await.release().await.unwrap().confirmed();
}

/// A replica takes over, and the lease that it had goes on: it is renewed there as soon as anybody names the new primary,
/// long before its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44b_a_lease_that_was_replicated_outlives_its_primary() {
    for killed in [true, false] {
        let (cluster, lag) = (Cluster::start(3, 1), Lag::start());
        let leases = connect(&cluster.url()).await.unwrap();
        let name = cluster.name_at(1, "job");
        let lease = acquire(&leases, &name, Duration::from_secs(60)).await;
        let (primary, replica) = (&cluster.primaries()[1], cluster.replica_of(1));
        let mut at_the_replica = replica.wire();
        at_the_replica.must(&["READONLY"]);
        eventually(HANGS, "it is replicated", || at_the_replica.exists(&name));
        let until = Instant::now() + lease.remaining();
        end(primary, killed);
        takes_over(replica).await;
        // Nothing is asked of the old one meanwhile, so the next look may be five seconds away.
        let limit = Duration::from_secs(6);
        let is_renewed = || Instant::now() + lease.remaining() > until + Duration::from_secs(1);
        eventually_but_for(&lag, limit, "it is renewed there", is_renewed).await;
        lease.check().unwrap();
        let fence = lease.fence();
        lease.release().await.unwrap().confirmed();
        let next = acquire(&leases, &name, LONG).await;
        assert!(next.fence() > fence);
        assert!(replica.wire().exists(&name));
        if !killed {
            primary.cont();
        }
        next.release().await.unwrap().confirmed();
    }
}

/// While it is asked for locks: the first that is granted by the new primary comes soon after the promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44b_locks_of_a_dead_primary_are_granted_again_soon_after_its_replica_took_over() {
    for killed in [true, false] {
        let (cluster, lag) = (Cluster::start(3, 1), Lag::start());
        let leases = connect(&cluster.url()).await.unwrap();
        let name = cluster.name_at(1, "job");
        acquire(&leases, &name, LONG).await.release().await.unwrap().confirmed();
        let (primary, replica) = (&cluster.primaries()[1], cluster.replica_of(1));
        end(primary, killed);
        let lock = leases.lock(&name).ttl(LONG);
        let granted = tokio::spawn(async move { lock.acquire().await.map(|lease| (lease, Instant::now())) });
        let promoted = takes_over(replica).await;
        let (lease, at) = within(HANGS, "the lock", granted).await.unwrap().unwrap();
        // An attempt at the old one may have to be given up first.
        let (took, bound) =
            (at.saturating_duration_since(promoted), COMMAND + Duration::from_millis(500) + lag.worst());
        assert!(took <= bound, "killed: {killed}; {took:?} after the promotion, the bound is {bound:?}");
        if !killed {
            primary.cont();
        }
        lease.release().await.unwrap().confirmed();
    }
}

/// Each answer that counts is followed by a question at another server, and none where nothing is held (rule 11).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_is_asked_who_has_the_key_while_there_is_a_reason() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(1, "job");
    // It is refused there: MOVED.
    let asked = || [0, 2].map(|other| cluster.primaries()[other].wire().refused("get")).iter().sum::<usize>();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked(), 0, "nobody has asked for anything");
    let lease = acquire(&leases, &name, LONG).await;
    eventually_async(Duration::from_secs(2), "it is asked after the first answer", || asked() >= 1).await;
    let before = asked();
    eventually_async(Duration::from_secs(7), "and while something is held", || asked() > before).await;
    lease.release().await.unwrap().confirmed();
    // The release's own answer is followed by one.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = asked();
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    assert_eq!(asked(), before, "nothing is held any more");
}

/// A primary that stood still while another took over goes on: nobody believes what it says (rule 11). Its lease, which
/// was never replicated, is told as lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f49_a_replaced_primary_that_goes_on_grants_nothing() {
    let (cluster, lag) = (Cluster::start(3, 1), Lag::start());
    let [one, two] = [connect(&cluster.url()).await.unwrap(), connect(&cluster.url()).await.unwrap()];
    let name = cluster.name_at(1, "job");
    let (primary, replica) = (&cluster.primaries()[1], cluster.replica_of(1));
    replica.stop();
    // Or it would find the write in its socket when it goes on.
    primary.wire().must(&["CLIENT", "KILL", "TYPE", "replica"]);
    let held = acquire(&one, &name, Duration::from_secs(60)).await;
    primary.stop();
    replica.cont();
    let waiting = tokio::spawn(two.lock(&name).ttl(LONG).acquire());
    let promoted = takes_over(replica).await;
    let lost = within(HANGS, "the signal", held.lost()).await;
    assert!(matches!(lost.reason(), LossReason::Deleted | LossReason::Taken), "{lost}");
    let (took, bound) = (promoted.elapsed(), Duration::from_secs(6) + lag.worst());
    assert!(took <= bound, "told {took:?} after the promotion, the bound is {bound:?}");
    let next = within(HANGS, "the next lease", waiting).await.unwrap().unwrap();
    assert!(next.fence() > held.fence());
    // It has the key still, and would grant another one when that has gone.
    primary.cont();
    for _ in 0..200 {
        let lock = one.lock(&name).owner(leasehold::Owner::anonymous());
        assert!(lock.try_acquire().await.unwrap().is_none());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    next.check().unwrap();
    next.release().await.unwrap().confirmed();
}
