//! The metrics of leases and their faults, as an exporter sees them (feature `metrics`).

use std::{net::TcpListener, time::Duration};

use leasehold::{Client, Error, LossReason, Owner, Status};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use support::{Cluster, HANGS, Replicated, Server, alone, eventually_async, two_workers, within};

const TTL: Duration = Duration::from_secs(4);

/// The metrics as they are scraped.
struct Exporter(PrometheusHandle);

impl Exporter {
    /// The value of this series: a name, with its labels if it has any.
    fn value(&self, series: &str) -> Option<f64> {
        let text = self.0.render();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// The keeper's metrics arrive a little later.
    async fn tells(&self, series: &str, expected: impl Fn(f64) -> bool) {
        let is_told = || self.value(series).is_some_and(&expected);
        eventually_async(HANGS, &format!("{series} is {:?}", self.value(series)), is_told).await;
    }

    async fn counts(&self, series: &str, expected: u32) {
        self.tells(series, |value| (value - f64::from(expected)).abs() < 0.5).await;
    }

    fn gauges(&self) -> [Option<f64>; 3] {
        ["leasehold_held{mode=\"exclusive\"}", "leasehold_waiting", "leasehold_at_risk"].map(|name| self.value(name))
    }
}

/// One test for all metrics, because a recorder belongs to the whole process.
#[test]
fn leases_and_their_faults_are_counted() {
    alone(|| {
        two_workers().block_on(async {
            let recorder = PrometheusBuilder::new().build_recorder();
            let exporter = Exporter(recorder.handle());
            metrics::set_global_recorder(recorder).expect("it is the first");
            a_life_of_a_lease(&exporter).await;
            an_adoption_that_comes_too_late_is_busy(&exporter).await;
            shares_are_told_from_locks_that_are_held_alone(&exporter).await;
            a_group_has_series_of_its_own(&exporter).await;
            nodes_are_told_by_their_addresses(&exporter).await;
            a_cluster_tells_which_primary_is_away_and_what_was_redirected(&exporter).await;
            too_few_replicas_are_counted(&exporter).await;
            assert!(exporter.0.render().contains("# HELP leasehold_held "), "an exporter gets its description");
        });
    });
}

async fn a_life_of_a_lease(exporter: &Exporter) {
    let server = Server::start();
    let leases = Client::builder().url(server.url()).ttl(TTL).build().await.expect("it is there");
    for series in [
        "acquires_total{outcome=\"busy\",mode=\"exclusive\"}",
        "losses_total{reason=\"expired\"}",
        "undos_unconfirmed_total",
    ] {
        exporter.counts(&format!("leasehold_{series}"), 0).await;
    }
    let lock = leases.lock("job").owner(Owner::anonymous());

    let lease = lock.acquire().await.expect("it is free");
    assert_eq!(exporter.gauges(), [Some(1.0), Some(0.0), Some(0.0)]);
    let waiter = tokio::spawn(lock.acquire());
    eventually_async(HANGS, "one waits", || exporter.gauges() == [Some(1.0), Some(1.0), Some(0.0)]).await;
    waiter.abort();
    eventually_async(HANGS, "nobody waits", || exporter.gauges() == [Some(1.0), Some(0.0), Some(0.0)]).await;
    assert_eq!(exporter.value("leasehold_acquires_total{outcome=\"abandoned\",mode=\"exclusive\"}"), Some(1.0));
    assert!(lock.try_acquire().await.expect("the server is well").is_none());
    assert!(lock.acquire_within(Duration::ZERO).await.is_err());
    assert_eq!(
        exporter.value("leasehold_acquires_total{outcome=\"busy\",mode=\"exclusive\"}"),
        Some(2.0),
        "neither has waited"
    );
    assert_eq!(exporter.value("leasehold_acquires_total{outcome=\"timed_out\",mode=\"exclusive\"}"), Some(0.0));
    assert!(lock.acquire_within(Duration::from_secs(1)).await.is_err());
    assert_eq!(exporter.value("leasehold_acquires_total{outcome=\"timed_out\",mode=\"exclusive\"}"), Some(1.0));

    server.wire().must(&["RPUSH", "data", "value"]);
    let data = leases.lock("data");
    assert!(data.try_acquire().await.expect("the server is well").is_none());
    assert!(data.acquire_within(Duration::from_secs(1)).await.is_err());
    assert_eq!(
        exporter.value("leasehold_acquires_total{outcome=\"misplaced\",mode=\"exclusive\"}"),
        Some(2.0),
        "it will not be free"
    );
    assert_eq!(exporter.value("leasehold_acquires_total{outcome=\"busy\",mode=\"exclusive\"}"), Some(2.0));

    lease.renew().await.expect("the server is well");
    assert!(exporter.value("leasehold_renewals_total{outcome=\"ok\"}").is_some_and(|renewals| renewals >= 1.0));
    assert_eq!(exporter.value("leasehold_renewals_total{outcome=\"failed\"}"), Some(0.0));
    for sum in ["leasehold_renewal_remaining_ratio_sum", "leasehold_renewal_seconds_count"] {
        assert!(exporter.value(sum).is_some_and(|sum| sum > 0.0), "{sum}");
    }
    exporter.tells("leasehold_least_remaining_ratio", |least| least > 0.4 && least < 1.0).await;

    server.stop();
    let mut changes = lease.status_changes();
    assert_eq!(within(HANGS, "it is at risk", changes.next()).await, Some(Status::AtRisk));
    eventually_async(HANGS, "it is told", || exporter.gauges() == [Some(1.0), Some(0.0), Some(1.0)]).await;
    exporter.counts("leasehold_renewals_total{outcome=\"failed\"}", 1).await;
    // The least decreases with every try.
    exporter.tells("leasehold_least_remaining_ratio", |least| least < 0.38).await;
    server.cont();
    assert_eq!(within(HANGS, "it is well", changes.next()).await, Some(Status::Held));
    eventually_async(HANGS, "it is told", || exporter.gauges() == [Some(1.0), Some(0.0), Some(0.0)]).await;
    exporter.tells("leasehold_renewals_total{outcome=\"late\"}", |late| late >= 1.0).await;

    server.wire().del("job");
    assert_eq!(within(HANGS, "it is lost", lease.lost()).await.reason(), LossReason::Deleted);
    eventually_async(HANGS, "it is told", || exporter.gauges() == [Some(0.0), Some(0.0), Some(0.0)]).await;
    assert_eq!(exporter.value("leasehold_losses_total{reason=\"deleted\"}"), Some(1.0));
    drop(lease);

    let next = lock.acquire().await.expect("it is free");
    assert_eq!(next.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
    assert_eq!(exporter.gauges(), [Some(0.0), Some(0.0), Some(0.0)]);
    exporter.counts("leasehold_hold_seconds_count", 2).await;
    assert_eq!(exporter.value("leasehold_wait_seconds_count"), Some(2.0), "of the acquires that won");

    // A key that cannot be taken back while it lives is left to expire.
    let short = leases.lock("short").ttl(Duration::from_millis(200)).acquire().await.expect("it is free");
    server.stop();
    drop(short);
    exporter.counts("leasehold_undos_unconfirmed_total", 1).await;
    server.cont();
}

async fn an_adoption_that_comes_too_late_is_busy(exporter: &Exporter) {
    let count =
        |outcome| exporter.value(&format!("leasehold_acquires_total{{outcome=\"{outcome}\",mode=\"exclusive\"}}"));
    let lock = Client::in_memory().lock("job");
    let ticket = lock.acquire().await.expect("it is free").into_ticket().expect("it is ours alone");
    let [acquired, busy] = ["acquired", "busy"].map(|outcome| count(outcome).map(|before| before + 1.0));
    let heir = lock.adopt(ticket.clone()).await.expect("it is the first");
    let late = lock.adopt(ticket).await.expect_err("the heir has it");
    assert!(matches!(&late, Error::Lost(lost) if lost.reason() == LossReason::Taken), "{late:?}");
    assert!(acquired.is_some() && count("acquired") == acquired && busy.is_some() && count("busy") == busy);
    assert_eq!(exporter.value("leasehold_held{mode=\"exclusive\"}"), Some(1.0), "the giver has let go");
    drop(heir);
}

async fn shares_are_told_from_locks_that_are_held_alone(exporter: &Exporter) {
    let leases = Client::in_memory();
    let of = |mode: &str| {
        let acquires = |outcome| format!("leasehold_acquires_total{{outcome=\"{outcome}\",mode=\"{mode}\"}}");
        let held = format!("leasehold_held{{mode=\"{mode}\"}}");
        [held, acquires("acquired"), acquires("busy")]
            .map(|series| exporter.value(&series).expect("it is told").to_string())
    };
    let alone = of("exclusive");
    assert_eq!(of("shared"), ["0", "0", "0"], "nothing was shared so far");
    let pool = leases.semaphore("pool", 2);
    let shares = [pool.acquire().await, pool.acquire().await].map(|share| share.expect("there is a place"));
    assert!(pool.try_acquire().await.expect("it is well").is_none());
    assert_eq!(of("exclusive"), alone);
    assert_eq!(of("shared"), ["2", "2", "1"]);
    drop(shares);
    assert_eq!(of("shared"), ["0", "2", "1"]);
    // A lease whose end the keeper notices.
    let reading = leases.rw_lock("config").read().ttl(TTL / 10).max_hold(TTL / 10);
    let short = reading.acquire().await.expect("it is free");
    assert_eq!(of("shared"), ["1", "3", "1"]);
    within(HANGS, "its end", short.lost()).await;
    exporter.counts("leasehold_held{mode=\"shared\"}", 0).await;
    assert_eq!(of("exclusive"), alone);
}

async fn a_group_has_series_of_its_own(exporter: &Exporter) {
    let server = Server::start();
    let builder = Client::builder().url(server.url()).ttl(TTL).metrics_group("nightly");
    let leases = builder.build().await.expect("it is there");
    let others = exporter.value("leasehold_acquires_total{outcome=\"acquired\",mode=\"exclusive\"}");
    let nightly = leases.lock("report:1").acquire().await.expect("it is free");
    assert_eq!(exporter.value("leasehold_held{mode=\"exclusive\",lock=\"nightly\"}"), Some(1.0));
    assert_eq!(
        exporter.value("leasehold_acquires_total{outcome=\"acquired\",mode=\"exclusive\",lock=\"nightly\"}"),
        Some(1.0)
    );
    assert_eq!(exporter.value("leasehold_wait_seconds_count{lock=\"nightly\"}"), Some(1.0));
    let hourly = leases.lock("report:2").metrics_group("hourly");
    assert_eq!(
        exporter.value("leasehold_acquires_total{outcome=\"busy\",mode=\"exclusive\",lock=\"hourly\"}"),
        Some(0.0)
    );
    let lease = hourly.acquire().await.expect("it is free");
    assert_eq!(exporter.value("leasehold_held{mode=\"exclusive\",lock=\"nightly\"}"), Some(1.0));
    assert_eq!(exporter.value("leasehold_held{mode=\"exclusive\",lock=\"hourly\"}"), Some(1.0));
    exporter.tells("leasehold_renewals_total{outcome=\"ok\",lock=\"hourly\"}", |renewals| renewals >= 1.0).await;
    exporter.tells("leasehold_renewal_seconds_count{lock=\"hourly\"}", |renewals| renewals >= 1.0).await;
    exporter.tells("leasehold_least_remaining_ratio{lock=\"hourly\"}", |least| least < 1.0).await;

    server.wire().del("report:2");
    within(HANGS, "it is lost", lease.lost()).await;
    exporter.counts("leasehold_losses_total{reason=\"deleted\",lock=\"hourly\"}", 1).await;
    exporter.counts("leasehold_held{mode=\"exclusive\",lock=\"hourly\"}", 0).await;
    assert_eq!(exporter.value("leasehold_losses_total{reason=\"deleted\",lock=\"nightly\"}"), Some(0.0));

    let none = leases.lock("report:3").metrics_group("").acquire().await.expect("it is free");
    assert_eq!(exporter.gauges().first(), Some(&Some(1.0)));
    let now = exporter.value("leasehold_acquires_total{outcome=\"acquired\",mode=\"exclusive\"}");
    assert_eq!(now, others.map(|others| others + 1.0), "a lock in a group counts there only");
    drop((nightly, none));
}

async fn nodes_are_told_by_their_addresses(exporter: &Exporter) {
    let server = Server::builder().arg("--requirepass", "swordfish").start();
    let url = server.url().replace("redis://", "redis://:swordfish@");
    let leases = Client::builder().url(&url).ttl(TTL).build().await.expect("it is there");
    let address = leases.nodes().first().expect("there is one").address().to_owned();
    let of_node = |name: &str| format!("leasehold_{name}{{node=\"{address}\"}}");
    let lease = leases.lock("job").acquire().await.expect("it is free");
    exporter.counts(&of_node("node_up"), 1).await;
    exporter.counts(&of_node("notifications_active"), 1).await;
    exporter.counts(&of_node("reconnects_total"), 0).await;
    // A program without requests notices the outage by its connection.
    assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
    server.kill();
    exporter.counts(&of_node("node_up"), 0).await;
    exporter.counts(&of_node("notifications_active"), 0).await;
    server.restart();
    exporter.counts(&of_node("node_up"), 1).await;
    exporter.tells(&of_node("reconnects_total"), |reconnects| reconnects >= 1.0).await;
    assert!(!exporter.0.render().contains("swordfish"), "the address is public, the user is not");
    // A server that is down and unused is not reported as down.
    server.kill();
    exporter.counts(&of_node("node_up"), 0).await;
    leases.close().await;
    drop(leases);
    exporter.counts(&of_node("node_up"), 1).await;

    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("there is a port");
    let builder = Client::builder().url(format!("redis://{nobody}")).connect_timeout(TTL / 40);
    assert!(builder.build().await.is_err(), "nobody is there");

    let urls = ["memory://one", "memory://two", "memory://three"];
    let quorum = Client::builder().quorum(urls).ttl(TTL).build().await.expect("it is here");
    let _lease = quorum.lock("job").acquire().await.expect("it is free");
    for node in urls {
        exporter.counts(&format!("leasehold_node_up{{node=\"{node}\"}}"), 1).await;
        let offset = format!("leasehold_node_clock_offset_seconds{{node=\"{node}\"}}");
        exporter.tells(&offset, |seconds| seconds.abs() < 1.0).await;
    }
    // A node that has never answered is not reported as up, if it is reported at all.
    let never = exporter.value(&format!("leasehold_node_up{{node=\"{nobody}\"}}"));
    assert!(never.is_none_or(|up| up < 0.5), "{never:?}");
}

async fn too_few_replicas_are_counted(exporter: &Exporter) {
    let servers = Replicated::start(1);
    let url = servers.primary().url();
    let leases = Client::builder().url(&url).min_replicas(1).ttl(TTL).build().await.expect("it is there");
    let unreplicated = format!("leasehold_unreplicated_total{{node=\"{}\"}}", url.replace("redis://", ""));
    exporter.counts(&unreplicated, 0).await;
    let lease = leases.lock("job").acquire().await.expect("it is free");
    exporter.counts("leasehold_replication_seconds_count", 1).await;
    lease.renew().await.expect("the replica is there");
    exporter.tells("leasehold_replication_seconds_count", |confirmed| confirmed >= 2.0).await;
    assert_eq!(exporter.value(&unreplicated), Some(0.0), "it was there all the time");
    for replica in servers.replicas() {
        replica.stop();
    }
    assert!(leases.lock("other").try_acquire().await.is_err(), "no replica has it");
    exporter.tells(&unreplicated, |requests| requests >= 1.0).await;
}

async fn a_cluster_tells_which_primary_is_away_and_what_was_redirected(exporter: &Exporter) {
    let cluster = Cluster::start(3, 1);
    let leases = Client::builder().url(cluster.url()).ttl(TTL).build().await.expect("it is there");
    let hosts = cluster.url().replace("redis-cluster://", "");
    let up = |node: &str| format!("leasehold_node_up{{node=\"{node}\"}}");
    let primary = |at: usize| cluster.primaries().get(at).expect("there are three");
    let of_primary = |at: usize| up(&format!("127.0.0.1:{}", primary(at).port()));
    let redirections = |kind| format!("leasehold_redirections_total{{node=\"{hosts}\",kind=\"{kind}\"}}");
    let failovers = format!("leasehold_failovers_total{{node=\"{hosts}\"}}");
    exporter.counts(&up(&hosts), 1).await;
    for kind in ["moved", "ask", "tryagain", "down"] {
        exporter.counts(&redirections(kind), 0).await;
    }
    exporter.counts(&failovers, 0).await;
    for at in 0..3 {
        exporter.counts(&of_primary(at), 1).await;
        let lease = leases.lock(cluster.name_at(at, "job")).acquire().await.expect("it is free");
        assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
    }
    // First its keys are being moved (`ASK`), then the move is complete (`MOVED`).
    let name = cluster.name_at(0, "moving");
    let slot = cluster.slot_of(&name);
    cluster.begin_to_move(slot, 0, 1);
    let lease = leases.lock(&name).acquire().await.expect("it is free");
    exporter.tells(&redirections("ask"), |asked| asked >= 1.0).await;
    cluster.finish_moving(slot, 0, 1);
    assert_eq!(exporter.value(&failovers), Some(0.0), "no replica has taken over");
    lease.renew().await.expect("it has arrived");
    exporter.tells(&redirections("moved"), |moved| moved >= 1.0).await;
    drop(lease);

    // A lease on that server keeps the program sending requests.
    let name = cluster.name_at(2, "job");
    let lease = leases.lock(&name).ttl(TTL * 10).acquire().await.expect("it is free");
    primary(2).kill();
    exporter.counts(&of_primary(2), 0).await;
    for node in [&up(&hosts), &of_primary(0), &of_primary(1)] {
        assert_eq!(exporter.value(node), Some(1.0), "{node}: the others are there");
    }
    let promoted = up(&format!("127.0.0.1:{}", cluster.replica_of(2).port()));
    eventually_async(TTL * 10, "the replica has taken over", || exporter.value(&promoted) == Some(1.0)).await;
    exporter.counts(&failovers, 1).await;
    exporter.counts(&of_primary(2), 1).await;
    assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");

    // One of three nodes down is no reason for an alert. Two are.
    let fails = async |name: &str| assert!(leases.lock(name).try_acquire().await.is_err(), "{name}");
    cluster.replica_of(2).kill();
    fails(&name).await;
    primary(1).kill();
    exporter.counts(&of_primary(1), 0).await;
    assert_eq!(exporter.value(&up(&hosts)), Some(1.0), "earlier reports include the first failure");
    fails(&cluster.name_at(1, "job")).await;
    exporter.counts(&up(&hosts), 0).await;
}
