//! A cluster: its urls, its servers, and its slots as they move.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Leases, LossReason, NodeState, Server as Named, Status};
use support::{
    Action, Cluster, HANGS, Lag, Match, Proxy, Server, eventually, eventually_async, eventually_but_for,
    scripts::COMBINED_SLOTS, within,
};
use tokio::task::JoinSet;

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

/// In each state of a slot that is moved key by key, locks are renewed, acquired and released; and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44a_a_slot_that_is_being_moved_goes_on_serving() {
    let (cluster, ttl) = (Cluster::start(3, 0), Duration::from_millis(900));
    let leases = connect(&cluster.url()).await.unwrap();
    for moved in ["nothing", "the lock", "the lock and its fence"] {
        // A slot of its own: one that goes there and back may be lost between servers that hear of it late.
        let tag = cluster.name_at(0, moved);
        let (slot, name) = (cluster.slot_of(&tag), |what: &str| format!("{{{tag}}}{what}"));
        let held = acquire(&leases, &name("held"), ttl).await;
        let free = acquire(&leases, &name("free"), LONG).await;
        let mut fences = vec![free.fence()];
        free.release().await.unwrap().confirmed();
        cluster.begin_to_move(slot, 0, 2);
        if moved != "nothing" {
            cluster.move_key(&name("held"), 0, 2);
        }
        if moved == "the lock and its fence" {
            cluster.move_key(&format!("{}:lht:fence", name("held")), 0, 2);
        }
        // Longer than its TTL: it was renewed, wherever it is.
        let renewed_for = Instant::now();
        while renewed_for.elapsed() < ttl * 2 {
            held.check().unwrap();
            // One that is free, and was held before: its floor is there.
            let lease = acquire(&leases, &name("free"), LONG).await;
            assert!(leases.lock(name("free")).try_acquire().await.unwrap().is_none(), "{moved}: it is held");
            let holder = leases.lock(name("free")).holder().await.unwrap().expect("we hold it");
            assert_eq!((holder.is_ours(), holder.fence()), (true, Some(lease.fence())), "{moved}");
            fences.push(lease.fence());
            lease.release().await.unwrap().confirmed();
            assert!(leases.lock(name("free")).holder().await.unwrap().is_none(), "{moved}: it was released");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let fence = held.fence();
        held.release().await.unwrap().confirmed();
        let next = acquire(&leases, &name("held"), LONG).await;
        assert!(next.fence() > fence, "{moved}");
        next.release().await.unwrap().confirmed();
        cluster.finish_moving(slot, 0, 2);
        let locks: Vec<String> = cluster.keys_in(slot, 2).into_iter().filter(|key| !key.ends_with(":fence")).collect();
        assert!(locks.is_empty(), "{moved}: {locks:?} is left");
        let lease = acquire(&leases, &name("free"), LONG).await;
        fences.push(lease.fence());
        lease.release().await.unwrap().confirmed();
        assert!(fences.is_sorted_by(|one, next| one < next), "{moved}: {fences:?}");
    }
}

/// To a server that has no slot yet, as when a cluster grows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44d_the_first_slot_of_a_new_primary() {
    let cluster = Cluster::start(2, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    // All that the second has goes to the first, so that it is as new; and no replica, as servers from 7.0 on would make it.
    cluster.servers()[1].wire().cmd(&["CONFIG", "SET", "cluster-allow-replica-migration", "no"]);
    let mine = cluster.name_at(1, "job");
    let home = cluster.slot_of(&mine);
    let ids = [cluster.id(0), cluster.id(1)];
    for slot in 8_192..16_384_u16 {
        for at in [0, 1] {
            cluster.servers()[at].wire().must(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &ids[0]]);
        }
    }
    let lease = acquire(&leases, &mine, Duration::from_millis(900)).await;
    eventually_async(HANGS, "the second has none", || leases.nodes().len() == 1).await;
    cluster.begin_to_move(home, 0, 1);
    cluster.move_key(&mine, 0, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    lease.check().unwrap();
    assert_eq!(leases.nodes().len(), 1, "it has no slot yet");
    cluster.finish_moving(home, 0, 1);
    eventually_async(HANGS, "it has one", || leases.nodes().len() == 2).await;
    lease.check().unwrap();
    lease.release().await.unwrap().confirmed();
    leases.close().await;
}

/// An operator gives a move up after keys have gone: they are forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_a_move_that_is_given_up_after_keys_have_gone() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(0, "job");
    let slot = cluster.slot_of(&name);
    let lease = acquire(&leases, &name, Duration::from_millis(900)).await;
    cluster.begin_to_move(slot, 0, 2);
    cluster.move_key(&name, 0, 2);
    tokio::time::sleep(Duration::from_secs(2)).await;
    lease.check().unwrap();
    cluster.give_up_moving(slot, 0, 2);
    let lost = within(HANGS, "the signal", lease.lost()).await;
    assert_eq!(lost.reason(), LossReason::Deleted);
    let next = acquire(&leases, &name, LONG).await;
    assert!(next.fence() > lease.fence());
    next.release().await.unwrap().confirmed();
}

/// A fair lock waits, and says for what; its queue goes on afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_a_fair_lock_waits_until_its_slot_has_arrived() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(0, "job");
    let slot = cluster.slot_of(&name);
    let lock = leases.lock(&name).ttl(LONG).fair(true);
    let lease = within(HANGS, "the lock", lock.clone().acquire()).await.unwrap();
    cluster.begin_to_move(slot, 0, 2);
    cluster.move_key(&name, 0, 2);
    let error = lock.clone().owner(leasehold::Owner::anonymous()).try_acquire().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable(_)) && text.contains(&format!("slot {slot} is being moved")), "{text}");
    let error = leases.lock(&name).force_release().await.unwrap_err().to_string();
    assert!(error.contains("is being moved"), "{error}");
    lease.release().await.unwrap().confirmed();
    let waiting = tokio::spawn(lock.acquire());
    cluster.finish_moving(slot, 0, 2);
    within(HANGS, "the lock", waiting).await.unwrap().unwrap().release().await.unwrap().confirmed();
}

/// A cluster that is down as a whole, since one primary is dead, is not asked again and again; nor a slot that nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_a_cluster_that_is_down_is_named_and_served_again() {
    let cluster = Cluster::start(3, 0);
    for server in cluster.servers() {
        server.wire().must(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    let leases = connect(&cluster.url()).await.unwrap();
    let names = [0, 1, 2].map(|primary| cluster.name_at(primary, "job"));
    let slot = cluster.slot_of(&names[1]);
    let held = acquire(&leases, &names[1], LONG).await;
    cluster.primaries()[0].kill();
    let down = |server: &Server| server.wire().cmd(&["CLUSTER", "INFO"]).text().contains("cluster_state:fail");
    eventually_async(TAKEN_OVER, "the others are down", || cluster.primaries()[1..].iter().all(down)).await;
    let error = leases.lock(&names[2]).acquire_within(Duration::from_secs(1)).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable(_)) && text.contains("says that its cluster is down"), "{text}");
    held.check().unwrap();
    for server in &cluster.primaries()[1..] {
        server.wire().must(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let lease = acquire(&leases, &names[2], LONG).await;
    lease.release().await.unwrap().confirmed();
    held.release().await.unwrap().confirmed();
    let error = leases.lock(&names[0]).acquire_within(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    // A slot that nobody has.
    for server in &cluster.primaries()[1..] {
        server.wire().must(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
    }
    let is_named = async || {
        let error = leases.lock(&names[1]).acquire_within(Duration::from_millis(500)).await.unwrap_err();
        error.to_string().contains(&format!("slot {slot} "))
    };
    let until = Instant::now() + HANGS;
    while !is_named().await {
        assert!(Instant::now() < until, "the slot is named");
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

/// A write that the dead primary had confirmed, and no replica had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44b_a_lease_that_was_not_replicated_is_told_as_lost_in_the_failover() {
    let (cluster, lag) = (Cluster::start(3, 1), Lag::start());
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(1, "job");
    let (primary, replica) = (&cluster.primaries()[1], cluster.replica_of(1));
    replica.stop();
    primary.wire().must(&["CLIENT", "KILL", "TYPE", "replica"]);
    let held = acquire(&leases, &name, Duration::from_secs(60)).await;
    // Of the same age, and deleted by hand: that is no failover.
    let deleted = acquire(&leases, &cluster.name_at(0, "job"), Duration::from_secs(60)).await;
    cluster.primaries()[0].wire().del(deleted.name());
    assert_eq!(within(HANGS, "the signal", deleted.lost()).await.reason(), LossReason::Deleted);
    primary.kill();
    replica.cont();
    takes_over(replica).await;
    let promoted = Instant::now();
    let lost = within(HANGS, "the signal", held.lost()).await;
    assert_eq!(lost.reason(), LossReason::FailedOver, "{lost}");
    let (took, bound) = (promoted.elapsed(), Duration::from_secs(6) + lag.worst());
    assert!(took <= bound, "told {took:?} after the promotion, the bound is {bound:?}");
    let next = acquire(&leases, &name, LONG).await;
    assert!(next.fence() > held.fence());
    next.release().await.unwrap().confirmed();
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
    // In the same slot, and free at the old primary for as long as that goes on.
    let free = format!("{{{name}}}free");
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
    assert!(matches!(lost.reason(), LossReason::FailedOver | LossReason::Taken), "{lost}");
    let (took, bound) = (promoted.elapsed(), Duration::from_secs(6) + lag.worst());
    assert!(took <= bound, "told {took:?} after the promotion, the bound is {bound:?}");
    let next = within(HANGS, "the next lease", waiting).await.unwrap().unwrap();
    assert!(next.fence() > held.fence());
    let other = acquire(&two, &free, LONG).await;
    primary.cont();
    for _ in 0..200 {
        let lock = one.lock(&free).owner(leasehold::Owner::anonymous());
        assert!(lock.try_acquire().await.unwrap().is_none(), "the old one is believed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    next.check().unwrap();
    other.release().await.unwrap().confirmed();
    next.release().await.unwrap().confirmed();
}

/// Servers that forget all are in another cluster than before: what was held there is lost, and locks are granted again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f58_a_cluster_that_is_made_again_of_the_same_servers() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(1, "job");
    let held = acquire(&leases, &name, Duration::from_secs(60)).await;
    cluster.make_again();
    let lost = within(Duration::from_secs(30), "the signal", held.lost()).await;
    assert_eq!(lost.reason(), LossReason::Deleted, "nobody has taken over");
    for primary in 0..3 {
        let lease = acquire(&leases, &cluster.name_at(primary, "job"), LONG).await;
        assert!(lease.fence() > held.fence());
        lease.release().await.unwrap().confirmed();
    }
    leases.health().await.unwrap();
}

/// A replica that is taken out of the cluster is missed by nobody, though it is the one that is asked about the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f58_a_replica_that_is_reset() {
    let cluster = Cluster::start(1, 1);
    let leases = connect(&cluster.url()).await.unwrap();
    let held = acquire(&leases, "job", Duration::from_millis(900)).await;
    let replica = cluster.replica_of(0);
    replica.wire().must(&["CLUSTER", "RESET", "HARD"]);
    let asked = || replica.wire().refused("get") + replica.wire().calls("get");
    let before = asked();
    let is_asked = Instant::now() + HANGS;
    while asked() <= before {
        assert!(Instant::now() < is_asked, "it is asked");
        acquire(&leases, "other", LONG).await.release().await.unwrap().confirmed();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What it says of its own cluster comes with that, and counts for nothing.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        assert_eq!(leases.nodes().len(), 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    acquire(&leases, "other", LONG).await.release().await.unwrap().confirmed();
    held.check().unwrap();
}

/// A crowd of tasks, each of which takes and releases locks in all slots, and some that others hold. Nobody is in beside
/// another, and fences grow.
async fn crowd(leases: &Leases, tasks: usize, cycles: usize) {
    let fences = Arc::new(Mutex::new(HashMap::<String, (bool, Option<leasehold::Fence>)>::new()));
    let work = (0..tasks).map(|task| {
        let (leases, fences) = (leases.clone(), fences.clone());
        tokio::spawn(async move {
            for cycle in 0..cycles {
                let name =
                    if cycle % 4 == 0 { format!("shared:{}", task % 8) } else { format!("own:{task}:{}", cycle % 3) };
                let lease = within(HANGS, &format!("{name:?}"), leases.lock(&name).ttl(LONG).acquire()).await.unwrap();
                {
                    let mut fences = fences.lock().unwrap();
                    let (is_in, last) = fences.entry(name.clone()).or_default();
                    assert!(!*is_in, "{name}: somebody is in");
                    assert!(last.is_none_or(|last| lease.fence() > last), "{name}: {last:?}, {}", lease.fence());
                    (*is_in, *last) = (true, Some(lease.fence()));
                }
                lease.check().unwrap();
                tokio::task::yield_now().await;
                fences.lock().unwrap().get_mut(&name).unwrap().0 = false;
                lease.release().await.unwrap().confirmed();
            }
        })
    });
    for task in work.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// So many acquires that come at once, for the servers stand still until they are there.
async fn at_once(leases: &Leases, cluster: &Cluster, many: usize) -> Vec<Lease> {
    cluster.primaries().iter().for_each(Server::stop);
    let acquire = |number| tokio::spawn(leases.lock(format!("at once:{number}")).ttl(LONG).acquire());
    let acquires: Vec<_> = (0..many).map(acquire).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    cluster.primaries().iter().for_each(Server::cont);
    let mut held = Vec::new();
    for acquire in acquires {
        held.push(within(HANGS, "the lock", acquire).await.unwrap().unwrap());
    }
    held
}

/// The locks of that crowd that are left.
fn locks(cluster: &Cluster) -> Vec<String> {
    let all = cluster.primaries().iter().flat_map(|server| server.wire().keys("*"));
    all.filter(|key| !key.ends_with(":fence")).collect()
}

/// Requests travel together to each primary, though their keys are in many slots: also while slots are moved under them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_one_primary_travel_together_also_while_slots_are_moved() {
    let cluster = Cluster::start(3, 0);
    let leases = within(HANGS, "build", Leases::builder().url(cluster.url()).build()).await.unwrap();
    crowd(&leases, 2, 4).await;
    let scripts = || cluster.primaries().iter().map(|server| server.wire().scripts()).sum::<usize>();
    let before = scripts();
    let held = at_once(&leases, &cluster, 240).await;
    let sent = scripts() - before;
    // The first two to each primary go at once, and then there is one a millisecond, for as long as more come.
    assert!(sent < 160, "{sent} scripts for 240 acquires");
    let before = scripts();
    let mut releases: JoinSet<_> = held.into_iter().map(Lease::release).collect();
    while let Some(released) = within(HANGS, "the releases", releases.join_next()).await {
        released.unwrap().unwrap().confirmed();
    }
    let sent = scripts() - before;
    assert!(sent < 160, "{sent} scripts for 240 releases");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let moving = async {
        // Those of some of the names, as fast as an operator's tool.
        let slots: Vec<u16> = (0..16).map(|task| cluster.slot_of(&format!("own:{task}:1"))).collect();
        let home = |slot: u16| (0..3).find(|at| slot < u16::try_from(16_384 * (at + 1) / 3).unwrap()).unwrap();
        for slot in slots {
            let (from, to) = (home(slot), (home(slot) + 1) % 3);
            cluster.begin_to_move(slot, from, to);
            tokio::time::sleep(Duration::from_millis(20)).await;
            cluster.finish_moving(slot, from, to);
        }
        is_over.store(true, std::sync::atomic::Ordering::Release);
    };
    let working = async {
        while !is_over.load(std::sync::atomic::Ordering::Acquire) {
            crowd(&leases, 32, 8).await;
        }
    };
    tokio::join!(moving, working);
    eventually_async(HANGS, "nothing is left", || locks(&cluster).is_empty()).await;
}

/// A server that does not serve such a batch is asked for each lock alone, and not asked again at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_keys_of_many_slots_in_one_call_is_asked_for_each_alone() {
    let cluster = Cluster::start(1, 0);
    let [server] = cluster.servers() else { panic!("there is one") };
    let proxy = Proxy::to(server);
    let map = [(format!("127.0.0.1:{}", server.port()), format!("127.0.0.1:{}", proxy.port()))];
    let url = cluster.url_of(cluster.servers());
    let leases = within(HANGS, "build", Leases::builder().url(url).address_map(map).build()).await.unwrap();
    let batches = proxy.on_each(Match::script(COMBINED_SLOTS), Action::Mangle);
    drop(at_once(&leases, &cluster, 100).await);
    let refused = batches.hits();
    // Those that were under way when the first was refused.
    assert!((1..=8).contains(&refused), "{refused} batches were tried");
    eventually_async(HANGS, "all are released", || locks(&cluster).is_empty()).await;
    drop(at_once(&leases, &cluster, 100).await);
    assert_eq!(batches.hits(), refused, "not again at once");
    eventually_async(HANGS, "nothing is left", || locks(&cluster).is_empty()).await;
}

/// Servers announce addresses that lead nowhere from here; the map says where they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f57_announced_addresses_that_are_out_of_reach_are_named_and_mapped() {
    let cluster = Cluster::start(3, 0);
    let mut map = Vec::new();
    for server in cluster.servers() {
        let dead = Server::start();
        dead.kill();
        let mut wire = server.wire();
        wire.must(&["CONFIG", "SET", "cluster-announce-bus-port", &(server.port() + 10_000).to_string()]);
        wire.must(&["CONFIG", "SET", "cluster-announce-port", &dead.port().to_string()]);
        map.push((format!("127.0.0.1:{}", dead.port()), format!("localhost:{}", server.port()), dead));
    }
    let announced = || cluster.servers()[0].wire().must(&["CLUSTER", "NODES"]).text();
    let all_have = || map.iter().all(|(from, ..)| announced().contains(from.as_str()));
    eventually_async(HANGS, "all announce another port", all_have).await;
    let one = cluster.url_of(&cluster.servers()[..1]);
    let name = cluster.name_at(1, "job");
    let error = connect(&one).await.unwrap().lock(&name).acquire_within(Duration::from_secs(1)).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable(_)) && text.contains(&map[1].0), "{text}");
    let mapped = Leases::builder().url(&one).address_map(map.iter().map(|(from, to, _)| (from, to))).build();
    let leases = within(HANGS, "build", mapped).await.unwrap();
    for primary in 0..3 {
        let lease = acquire(&leases, &cluster.name_at(primary, "job"), LONG).await;
        lease.release().await.unwrap().confirmed();
    }
    for (map, says) in [(("a:x", "b"), "neither host:port nor host"), (("a", "b:1"), "would be one")] {
        let error = Leases::builder().url(&one).address_map([map]).build().await.unwrap_err().to_string();
        assert!(error.contains("address_map") && error.contains(says), "{error}");
    }
    let alone = Leases::builder().url("redis://127.0.0.1").address_map([("a", "b")]).build().await;
    let error = alone.unwrap_err().to_string();
    assert!(error.contains("address_map") && error.contains("redis-sentinel"), "{error}");
}

/// Connecting needs the first two, and a slot that is being moved the last; the error names what is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named() {
    let cluster = Cluster::start(3, 0);
    let name = cluster.name_at(0, "job");
    let url = cluster.url().replace("://", "://worker:secret@");
    for (lacks, has, word) in [("-cluster", "+cluster|nodes", "cluster"), ("-cluster", "+cluster|slots", "cluster")] {
        for server in cluster.servers() {
            let rights = ["reset", "on", ">secret", "~*", "&*", "+@all", lacks, has];
            server.wire().must(&[&["ACL", "SETUSER", "worker"], &rights[..]].concat());
        }
        let error = connect(&url).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Refused(_)) && text.contains("NOPERM") && text.contains(word), "{has}: {text}");
    }
    for server in cluster.servers() {
        let rights = ["reset", "on", ">secret", "~*", "&*", "+@all", "-asking"];
        server.wire().must(&[&["ACL", "SETUSER", "worker"], &rights[..]].concat());
    }
    let leases = connect(&url).await.unwrap();
    cluster.begin_to_move(cluster.slot_of(&name), 0, 2);
    let error = leases.lock(&name).try_acquire().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("NOPERM") && text.contains("asking"), "{text}");
}
