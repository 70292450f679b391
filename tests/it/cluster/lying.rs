//! A server of a cluster that reports falsehoods about others: cut off, restored from a backup, or hostile.

use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use support::{Cluster, HANGS, Proxy, Server, Wire, within};

use super::{TAKEN_OVER, acquire, connect};
use crate::common::{COMMAND, Confirmed as _, LONG};

/// The third of three primaries reports that the first was replaced by its replica. That replica and all others
/// disagree.
struct Scene {
    cluster: Cluster,
    liar: Proxy,
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::start(3, 1);
        let liar = Proxy::to(&cluster.primaries()[2]);
        Self { cluster, liar }
    }

    fn begin_to_lie(&self) {
        let id = |server: &Server| server.wire().must(&["CLUSTER", "MYID"]).text();
        let (primary, replica) = (&self.cluster.primaries()[0], self.cluster.replica_of(0));
        self.liar.swap(id(primary), id(replica));
        let port = |server: &Server| server.port().to_string();
        self.liar.swap(port(primary), port(replica));
        let said = self.liar_wire().must(&["CLUSTER", "NODES"]).text();
        let line = said.lines().find(|line| line.starts_with(&id(replica))).expect("it is named");
        assert!(line.contains(&port(replica)) && line.contains("master"), "{line}");
    }

    fn liar_wire(&self) -> Wire {
        Wire::to_port(self.liar.port())
    }

    /// A client whose only seed is the liar, or whose seeds are all three.
    async fn program(&self, seeds: &str) -> Client {
        let map =
            [(format!("127.0.0.1:{}", self.cluster.primaries()[2].port()), format!("127.0.0.1:{}", self.liar.port()))];
        let builder = Client::builder().url(seeds).command_timeout(COMMAND).address_map(map);
        within(HANGS, "build", builder.build()).await.unwrap()
    }

    fn all_seeds(&self) -> String {
        let [one, two, _] = self.cluster.primaries() else { panic!("there are three") };
        format!("redis-cluster://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}", self.liar.port(), one.port(), two.port())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f108_one_server_of_a_cluster_that_says_what_is_not_so_moves_nobody() {
    let scene = Scene::start();
    let running = scene.program(&scene.all_seeds()).await;
    let ttl = Duration::from_secs(2);
    let name = scene.cluster.name_at(0, "job");
    let held = acquire(&running, &name, ttl).await;
    scene.begin_to_lie();
    let addresses = |leases: &Client| leases.nodes().iter().map(|node| node.address().to_owned()).collect::<Vec<_>>();
    let expected: Vec<_> =
        scene.cluster.primaries().iter().map(|primary| format!("127.0.0.1:{}", primary.port())).collect();
    let until = Instant::now() + ttl * 3;
    let mut rounds = 0;
    while Instant::now() < until || rounds < 10 {
        rounds += 1;
        let starting = scene.program(&scene.all_seeds()).await;
        for leases in [&running, &starting] {
            let another = scene.cluster.name_at(0, "another");
            acquire(leases, &another, LONG).await.release().await.unwrap().confirmed();
            assert!(leases.lock(&name).try_acquire().await.unwrap().is_none(), "it is held");
            assert_eq!(addresses(leases), expected);
        }
        held.check().unwrap();
        starting.close().await;
    }
    held.release().await.unwrap().confirmed();
    // This time it is true.
    let (primary, replica) = (&scene.cluster.primaries()[0], scene.cluster.replica_of(0));
    primary.kill();
    let next = within(TAKEN_OVER, "the lock", running.lock(&name).acquire()).await.unwrap();
    assert_eq!(addresses(&running)[0], format!("127.0.0.1:{}", replica.port()));
    next.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_of_two_clusters_are_named() {
    let clusters = [Cluster::start(1, 0), Cluster::start(1, 0), Cluster::start(2, 0)];
    let [one, two, three] = clusters.each_ref().map(|cluster| cluster.servers()[0].port());
    let error = connect(&format!("redis-cluster://127.0.0.1:{one},127.0.0.1:{two}")).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Config(_)) && text.contains("are of two clusters"), "{text}");
    assert!([one, two].iter().all(|port| text.contains(&port.to_string())), "{text}");
    // Two of the seeds are of the same cluster.
    let url = format!("{},127.0.0.1:{one}", clusters[2].url());
    let leases = connect(&url).await.unwrap();
    assert_eq!(leases.nodes().len(), 2);
    assert!(leases.nodes().iter().any(|node| node.address().ends_with(&three.to_string())));
}
