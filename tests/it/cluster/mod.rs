//! A cluster: its urls, its servers, and the errors about it.

mod announced;
mod changing;
mod failing;
mod lying;
mod moving;
mod together;

use std::time::Duration;

use leasehold::{Client, Error, Lease, NodeState, Server as Named, Status};
use support::{Cluster, HANGS, Server, eventually, eventually_async, within};

use crate::common::{COMMAND, Confirmed as _, LONG};

/// By then a replica has taken over: the others may deny it their votes at first, and are asked again after four
/// seconds.
const TAKEN_OVER: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Result<Client, Error> {
    within(HANGS, "build", Client::builder().url(url).command_timeout(COMMAND).build()).await
}

async fn acquire(leases: &Client, name: &str, ttl: Duration) -> Lease {
    within(HANGS, "the lock", leases.lock(name).ttl(ttl).acquire()).await.unwrap()
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
    let leases = within(HANGS, "build", Client::builder().url(cluster.url()).label("program").build()).await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_lacks_a_primary_is_an_error_which_names_it_and_the_others_can_be_listed() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let names: Vec<String> = (0..3).map(|primary| cluster.name_at(primary, "job")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(acquire(&leases, name, Duration::from_secs(60)).await);
    }
    let reachable = async || within(HANGS, "a list", leases.list_reachable("job*")).await;
    assert!(matches!(reachable().await, Ok(leasehold::Listing { locks, missing: None, .. }) if locks.len() == 3));
    let [first, second, third] = cluster.primaries() else { panic!("there are three") };
    first.kill();
    let error = within(HANGS, "a list", leases.list("job*")).await.unwrap_err();
    let text = error.to_string();
    let names_it = format!("the locks of 1 of 3 primaries are missing: 127.0.0.1:{}: ", first.port());
    assert!(matches!(error, Error::Unavailable(_)) && text.contains(&names_it), "{text}");
    let leasehold::Listing { locks, missing, .. } = reachable().await.unwrap();
    let mut rest = names[1..].to_vec();
    rest.sort();
    assert_eq!(locks.iter().map(leasehold::Lock::name).collect::<Vec<_>>(), rest);
    // Its link may have ended between the two lists; then another error gives the reason.
    let text = missing.map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains(&names_it), "{text}");
    second.kill();
    third.kill();
    let text = reachable().await.unwrap_err().to_string();
    let all = cluster.primaries().iter().all(|primary| text.contains(&format!("127.0.0.1:{}: ", primary.port())));
    assert!(all && text.contains("of 3 of 3 primaries"), "{text}");
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
    let builder = || Client::builder().url(cluster.url());
    let error = builder().restart_delay(Duration::from_secs(31)).build().await.unwrap_err().to_string();
    assert!(error.contains("restart_delay") && error.contains("quorum"), "{error}");
    let quorum = Client::builder().quorum([alone.url(), cluster.url(), sentinel.url()]).build().await;
    let error = quorum.unwrap_err().to_string();
    assert!(error.contains("quorum[1]") && error.contains("replicas"), "{error}");
    let server: Named = cluster.url().parse().unwrap();
    let error = Client::builder().server(server.database(3)).build().await.unwrap_err().to_string();
    assert!(error.contains("database") && error.contains("cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_whose_keys_would_be_in_two_slots_is_refused_before_anything_is_sent() {
    let cluster = Cluster::start(1, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let braces = "{}".repeat(400);
    for name in ["a}b", "{}", "}", "{}{a}", "x{}{a}", &braces] {
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

/// Servers announce addresses that cannot be reached from here; the map translates them.
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
    // Any of them may be asked for the others.
    let knows_all = |server: &Server| {
        let nodes = server.wire().must(&["CLUSTER", "NODES"]).text();
        map.iter().all(|(from, ..)| nodes.contains(from.as_str()))
    };
    eventually_async(HANGS, "all announce another port", || cluster.servers().iter().all(knows_all)).await;
    let one = cluster.url_of(&cluster.servers()[..1]);
    let name = cluster.name_at(1, "job");
    let out_of_reach = connect(&one).await.unwrap();
    let says = |error: Error, slot: &str| {
        let text = error.to_string();
        let names = format!("the cluster names {}{slot}, which cannot be reached (Connection refused", map[1].0);
        assert!(matches!(error, Error::Unavailable(_)) && text.contains(&names), "{text}");
        assert!(text.contains("see Builder::address_map"), "{text}");
    };
    let slot = format!(" for slot {}", cluster.slot_of(&name));
    let lock = out_of_reach.lock(&name);
    says(within(HANGS, "one try", lock.try_acquire()).await.unwrap_err(), &slot);
    says(within(HANGS, "a wait", lock.acquire_within(Duration::from_secs(1))).await.unwrap_err(), &slot);
    assert!(out_of_reach.health().await.unwrap_err().to_string().contains("see Builder::address_map"));
    let mapped = Client::builder().url(&one).address_map(map.iter().map(|(from, to, _)| (from, to))).build();
    let leases = within(HANGS, "build", mapped).await.unwrap();
    for primary in 0..3 {
        let lease = acquire(&leases, &cluster.name_at(primary, "job"), LONG).await;
        lease.release().await.unwrap().confirmed();
    }
    // It was reachable, so its address is right.
    cluster.primaries()[1].kill();
    let error = leases.lock(&name).acquire_within(Duration::from_secs(1)).await.unwrap_err().to_string();
    assert!(error.contains("localhost") && !error.contains("address_map"), "{error}");
    for (map, says) in [(("a:x", "b"), "neither host:port nor host"), (("a", "b:1"), "would be one")] {
        let error = Client::builder().url(&one).address_map([map]).build().await.unwrap_err().to_string();
        assert!(error.contains("address_map") && error.contains(says), "{error}");
    }
    let alone = Client::builder().url("redis://127.0.0.1").address_map([("a", "b")]).build().await;
    let error = alone.unwrap_err().to_string();
    assert!(error.contains("address_map") && error.contains("redis-sentinel"), "{error}");
}

/// Connecting needs the first two rights, and a migrating slot the last; the error names the missing one.
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
