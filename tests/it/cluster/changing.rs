//! Changes to a cluster while locks are held: it grows and shrinks, a server's password is wrong, its bus is cut.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Credentials, Error, LossReason, NodeState, Owner, Server as Named};
use support::{Cluster, HANGS, Proxy, Server, Wire, eventually, eventually_async, within};
use tokio::task::JoinSet;

use super::{TAKEN_OVER, acquire, connect};
use crate::common::{COMMAND, Confirmed as _, LONG};

/// Some slots move to three new primaries and back, key by key. Holders keep their leases, and others take turns
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f109_a_cluster_grows_to_six_primaries_and_shrinks_again() {
    const HELD: usize = 200;
    const MOVED: usize = 12;
    let cluster = Cluster::start(6, 0);
    for from in 3..6 {
        // Otherwise it would become a replica.
        cluster.servers()[from].wire().cmd(&["CONFIG", "SET", "cluster-allow-replica-migration", "no"]);
        cluster.give_all_slots(from, from - 3);
    }
    let leases = connect(&cluster.url()).await.unwrap();
    eventually_async(HANGS, "three have slots", || leases.nodes().len() == 3).await;
    let mut held = Vec::new();
    for job in 0..HELD {
        held.push(acquire(&leases, &format!("job {job}"), Duration::from_secs(3)).await);
    }
    let is_over = Arc::<AtomicBool>::default();
    let [inside, turns] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let last = Arc::<AtomicU64>::default();
    let mut crowd = JoinSet::new();
    let slot = usize::from(cluster.slot_of("job 0"));
    let wanted = cluster.names_in(&(slot..slot + 1), "wanted", 1).remove(0);
    for _ in 0..4 {
        let (leases, wanted, is_over) = (leases.clone(), wanted.clone(), is_over.clone());
        let (inside, turns, last) = (inside.clone(), turns.clone(), last.clone());
        crowd.spawn(async move {
            while !is_over.load(Ordering::SeqCst) {
                let lease = leases.lock(&wanted).ttl(LONG).owner(Owner::anonymous()).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                let fence = u64::from(lease.fence());
                assert!(last.swap(fence, Ordering::SeqCst) < fence, "fences grow");
                inside.fetch_sub(1, Ordering::SeqCst);
                // A server that loses its last slot is left once its requests are done; the release then continues in
                // the background.
                lease.release().await.unwrap();
                turns.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let cluster = Arc::new(cluster);
    let moving = cluster.clone();
    let moves = tokio::task::spawn_blocking(move || {
        let homes: Vec<(u16, usize)> = (0..MOVED)
            .map(|job| {
                let name = format!("job {job}");
                (moving.slot_of(&name), moving.home_of(&name) % 3)
            })
            .collect();
        for (slot, home) in &homes {
            moving.move_slot(*slot, *home, home + 3);
        }
        for (slot, home) in &homes {
            moving.move_slot(*slot, home + 3, *home);
        }
    });
    eventually_async(HANGS, "new ones have slots", || leases.nodes().len() > 3).await;
    within(HANGS * 4, "all have moved", moves).await.unwrap();
    eventually_async(HANGS, "the new ones have none", || leases.nodes().len() == 3).await;
    let before = turns.load(Ordering::SeqCst);
    eventually_async(HANGS, "turns go on", || turns.load(Ordering::SeqCst) > before).await;
    is_over.store(true, Ordering::SeqCst);
    while let Some(one) = within(HANGS, "the crowd ends", crowd.join_next()).await {
        one.unwrap();
    }
    for lease in held {
        lease.check().unwrap_or_else(|lost| panic!("{}: {lost}", lease.name()));
        lease.release().await.unwrap().confirmed();
    }
}

/// Only the holders on that server are notified, by their deadline. It is used again once the password is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f110_a_password_that_is_wrong_on_one_server_of_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let user = |server: &Server, password: &str| {
        let mut wire = server.wire();
        wire.must(&["ACL", "SETUSER", "worker", "on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"]);
        wire.cmd(&["CLIENT", "KILL", "USER", "worker"]);
    };
    cluster.servers().iter().for_each(|server| user(server, "sesame"));
    let server: Named = cluster.url().parse().unwrap();
    let server = server.credentials(|| async { Ok::<_, Error>(Credentials::new("worker", "sesame")) });
    let leases = Client::builder().server(server).command_timeout(COMMAND).build().await.unwrap();
    let names = [0, 1, 2].map(|primary| cluster.name_at(primary, "job"));
    let [one, two, three] = [&names[0], &names[1], &names[2]];
    let ttl = Duration::from_secs(2);
    let (first, second, third) =
        (acquire(&leases, one, ttl).await, acquire(&leases, two, ttl).await, acquire(&leases, three, ttl).await);
    user(&cluster.primaries()[1], "another");
    let until = second.remaining();
    let lost = within(until + HANGS, "the signal", second.lost()).await;
    assert_eq!(lost.reason(), LossReason::Expired);
    let error = leases.lock(cluster.name_at(1, "other")).try_acquire().await.unwrap_err().to_string();
    assert!(error.contains("WRONGPASS") && error.contains(&cluster.primaries()[1].port().to_string()), "{error}");
    for lease in [&first, &third] {
        lease.renew().await.unwrap();
    }
    let states: Vec<_> = leases.nodes().iter().map(|node| *node.state() == NodeState::Up).collect();
    assert_eq!(states, [true, false, true]);
    user(&cluster.primaries()[1], "sesame");
    let again = within(HANGS, "it serves again", leases.lock(two).ttl(LONG).acquire()).await.unwrap();
    for lease in [first, again, third] {
        lease.release().await.unwrap().confirmed();
    }
}

/// A primary and the others no longer reach each other, but clients reach both. It continues as if alone. A replica
/// takes over, and the lease continues there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f111_a_cluster_bus_that_is_cut() {
    let cluster = Cluster::start(3, 1);
    let (primary, replica) = (&cluster.primaries()[0], cluster.replica_of(0));
    let bus = Proxy::to_port(primary.port() + 10_000);
    primary.wire().must(&["CONFIG", "SET", "cluster-announce-bus-port", &bus.port().to_string()]);
    let announced = format!("@{}", bus.port());
    let others = || cluster.servers().iter().filter(|server| server.port() != primary.port());
    let knows = |server: &Server| server.wire().must(&["CLUSTER", "NODES"]).text().contains(&announced);
    eventually(HANGS, "all go by the proxy", || others().all(knows) && bus.connections() >= others().count());
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(0, "job");
    let lease = acquire(&leases, &name, Duration::from_secs(60)).await;
    let mut at_the_replica = replica.wire();
    at_the_replica.must(&["READONLY"]);
    eventually(HANGS, "it is replicated", || at_the_replica.exists(&name));
    let fence = lease.fence();
    let ids: Vec<String> = others().map(|server| server.wire().must(&["CLUSTER", "MYID"]).text()).collect();
    bus.refuse(true);
    bus.cut();
    let mut alone = primary.wire();
    // It forgets the others for a minute, in which they cannot reach it.
    for id in &ids {
        alone.must(&["CLUSTER", "FORGET", id]);
    }
    let role = |wire: &mut Wire| wire.info_field("replication", "role");
    let mut promoted = replica.wire();
    eventually_async(TAKEN_OVER, "the replica takes over", || role(&mut promoted).as_deref() == Some("master")).await;
    let is_there = || leases.nodes().iter().any(|node| node.address().ends_with(&replica.port().to_string()));
    eventually_async(HANGS, "the program is there", is_there).await;
    assert_eq!(role(&mut alone).as_deref(), Some("master"), "it knows nothing of that");
    lease.check().unwrap();
    assert!(leases.lock(&name).try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap().confirmed();
    let next = acquire(&leases, &name, LONG).await;
    assert!(next.fence() > fence && promoted.exists(&name));
    next.release().await.unwrap().confirmed();
}
