//! Clusters whose servers announce themselves in unusual ways, or lack some slots.

use super::*;

/// Asserts that all locks are granted, by servers whose addresses begin with `announced`.
async fn find(cluster: &Cluster, announced: &str) {
    let builder = Client::builder().url(cluster.url()).command_timeout(COMMAND).address_map([("::1", "127.0.0.1")]);
    let leases = within(HANGS, "build", builder.build()).await.unwrap_or_else(|error| panic!("{announced}: {error}"));
    for primary in 0..cluster.primaries().len() {
        acquire(&leases, &cluster.name_at(primary, "job"), LONG).await.release().await.unwrap().confirmed();
    }
    let nodes = leases.nodes();
    assert!(nodes.iter().all(|node| node.address().starts_with(announced)), "{announced}: {nodes:?}");
    leases.close().await;
}

/// Servers announce an empty host, which means the host of the server that was asked, and a name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_found_where_it_was_asked_or_by_its_name() {
    if !Server::version().at_least(7, 0) {
        return;
    }
    let cluster = Cluster::start(2, 0);
    let set = |name: &str, value: &str| {
        for server in cluster.servers() {
            server.wire().must(&["CONFIG", "SET", name, value]);
        }
    };
    set("cluster-preferred-endpoint-type", "unknown-endpoint");
    find(&cluster, "127.0.0.1:").await;
    set("cluster-preferred-endpoint-type", "hostname");
    let error = connect(&cluster.url()).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable(_)) && text.contains("cluster-announce-hostname"), "{text}");
    set("cluster-announce-hostname", "localhost");
    let knows = |server: &Server| server.wire().must(&["CLUSTER", "NODES"]).text().matches(",localhost").count() >= 2;
    eventually_async(HANGS, "both names are known", || cluster.servers().iter().all(knows)).await;
    find(&cluster, "localhost:").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_found_by_an_address_with_colons() {
    let cluster = Cluster::with(1, 0, |server| server.arg("--cluster-announce-ip", "::1"));
    let mut wire = cluster.servers()[0].wire();
    eventually_async(HANGS, "it says so", || wire.must(&["CLUSTER", "NODES"]).text().contains(" ::1:")).await;
    find(&cluster, "[::1]:").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_serves_10_000_slots_grants_the_locks_of_these() {
    let cluster = Cluster::start(1, 0);
    let slots: Vec<String> = (10_000..16_384).map(|slot| slot.to_string()).collect();
    let all: Vec<&str> = ["CLUSTER", "DELSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
    cluster.servers()[0].wire().must(&all);
    let leases = connect(&cluster.url()).await.unwrap();
    assert_eq!(leases.nodes()[0].slots(), Some(10_000));
    leases.health().await.unwrap();
    let name = |slots| cluster.names_in(&slots, "job", 1).remove(0);
    let (served, lost) = (name(0..10_000), name(10_000..16_384));
    acquire(&leases, &served, LONG).await.release().await.unwrap().confirmed();
    let error = within(HANGS, "one try", leases.lock(&lost).try_acquire()).await.unwrap_err();
    let (text, slot) = (error.to_string(), cluster.slot_of(&lost));
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(text.contains(&format!("slot {slot} of the cluster")) && text.contains("has no primary"), "{text}");
}

/// The replica reports where the others are, and that its primary has failed or seems to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_dead_primary_is_enough_of_a_seed() {
    let cluster = Cluster::start(3, 1);
    let replica = cluster.replica_of(1);
    let names = [0, 1, 2].map(|primary| cluster.name_at(primary, "job"));
    cluster.primaries()[1].kill();
    let leases = connect(&format!("redis-cluster://127.0.0.1:{}", replica.port())).await.unwrap();
    for name in [&names[0], &names[2]] {
        acquire(&leases, name, LONG).await.release().await.unwrap().confirmed();
    }
    // The replica has taken over by then.
    within(TAKEN_OVER, "the lock", leases.lock(&names[1]).acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap()
        .confirmed();
    assert!(leases.nodes().iter().any(|node| node.address().ends_with(&format!(":{}", replica.port()))));
}
