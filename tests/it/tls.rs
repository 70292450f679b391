//! TLS to servers that are announced: those of a cluster, and those watched by Sentinels. Covers the names in their
//! certificates, and TLS on one side only.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, Server as Named, Tls};
use support::{Authority, Cluster, HANGS, Lag, Sentinels, Server, within};

use crate::common::{COMMAND, Confirmed as _, LONG};

const CONNECT: Duration = Duration::from_secs(1);

fn builder(url: &str, ca: PathBuf) -> Builder {
    let named: Named = url.parse().unwrap();
    // A server without TLS rejects TLS settings.
    let named =
        if url.contains("rediss") || url.contains("sentinel_tls") { named.tls(Tls::new().ca_file(ca)) } else { named };
    Client::builder().server(named).connect_timeout(CONNECT).command_timeout(COMMAND)
}

async fn cycle(leases: &Client, name: &str) {
    let lease = within(HANGS, "the lock", leases.lock(name).ttl(LONG).acquire()).await.unwrap();
    within(HANGS, "the renewal", lease.renew()).await.unwrap();
    lease.release().await.unwrap().confirmed();
}

/// Asserts that all of our connections to this server are on its TLS port.
fn come_by_tls(server: &Server) {
    let clients = server.wire().must(&["CLIENT", "LIST"]).text();
    let ours: Vec<&str> = clients.lines().filter(|client| client.contains("name=leasehold")).collect();
    let port = format!(":{} ", server.tls_port());
    assert!(
        !ours.is_empty() && ours.iter().all(|client| client.split("laddr=").any(|rest| rest.contains(&port))),
        "{clients}"
    );
}

/// The error of the build, or of one try to acquire, which must arrive in time.
async fn turned_down(url: &str, ca: PathBuf) -> Error {
    let (lag, start) = (Lag::start(), Instant::now());
    let error = match within(HANGS, "build", builder(url, ca).build()).await {
        Err(error) => error,
        Ok(leases) => within(HANGS, "one try", leases.lock("job").try_acquire()).await.map(|_| ()).expect_err(url),
    };
    let (took, bound) = (start.elapsed(), CONNECT + COMMAND + Duration::from_millis(100) + lag.worst());
    assert!(took <= bound, "{url}: took {took:?}, the bound is {bound:?}: {error}");
    error
}

fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text} lacks one of {parts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_reached_over_tls() {
    let authority = Authority::new(&["localhost", "127.0.0.1"]);
    let cluster = Cluster::start_with_tls(3, 1, &authority);
    for host in ["127.0.0.1", "localhost"] {
        let leases = builder(&cluster.tls_url(host), authority.ca_pem_path()).build().await.unwrap();
        for (at, primary) in cluster.primaries().iter().enumerate() {
            cycle(&leases, &cluster.name_at(at, "job")).await;
            come_by_tls(primary);
        }
        leases.health().await.unwrap();
        leases.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_behind_sentinels_is_reached_over_tls() {
    let authority = Authority::new(&["localhost", "127.0.0.1"]);
    let all = Sentinels::start_with_tls(&authority);
    let plain = all.url().replace("redis-sentinel", "rediss-sentinel") + "?sentinel_tls=no";
    for url in [all.tls_url(), plain] {
        let leases =
            builder(&url, authority.ca_pem_path()).build().await.unwrap_or_else(|error| panic!("{url}: {error}"));
        cycle(&leases, "job").await;
        come_by_tls(all.primary());
        leases.close().await;
    }
}

/// Certificates contain a name, while servers announce their addresses, or another name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_given_is_that_of_every_certificate() {
    const NAME: &str = "cache.example";
    let authority = Authority::new(&[NAME]);
    let (cluster, sentinels) = (Cluster::start_with_tls(1, 0, &authority), Sentinels::start_with_tls(&authority));
    let ca = || authority.ca_pem_path();
    let url = cluster.tls_url("127.0.0.1");
    says(&turned_down(&url, ca()).await, &["for another name", "tls_name"]);
    let given = format!("{url}?tls_name={NAME}");
    let of_sentinels = format!("{}?tls_name={NAME}", sentinels.tls_url());
    for url in [&given, &of_sentinels] {
        let mapped = builder(url, ca()).address_map([("127.0.0.1", "localhost")]);
        for builder in [builder(url, ca()), mapped] {
            let leases = within(HANGS, "build", builder.build()).await.unwrap_or_else(|error| panic!("{url}: {error}"));
            cycle(&leases, "job").await;
            leases.close().await;
        }
    }
}

/// The seed's address is in the certificate too, and the address map points to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_name_that_a_server_announces_is_that_of_its_certificate_unless_one_is_given() {
    const NAME: &str = "cache.example";
    if !Server::version().at_least(7, 0) {
        return;
    }
    let authority = Authority::new(&[NAME, "127.0.0.1"]);
    let (cluster, ca) = (Cluster::start_with_tls(1, 0, &authority), || authority.ca_pem_path());
    let (url, mut wire) = (cluster.tls_url("127.0.0.1"), cluster.servers()[0].wire());
    wire.must(&["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]);
    for (announced, given, is_trusted) in
        [(NAME, "", true), ("other.example", "", false), ("other.example", "?tls_name=cache.example", true)]
    {
        wire.must(&["CONFIG", "SET", "cluster-announce-hostname", announced]);
        let builder = builder(&format!("{url}{given}"), ca()).address_map([(announced, "127.0.0.1")]);
        let leases = within(HANGS, "build", builder.build()).await.unwrap();
        if is_trusted {
            cycle(&leases, "job").await;
        } else {
            says(&leases.lock("job").try_acquire().await.unwrap_err(), &["for another name"]);
        }
        leases.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_is_an_error_in_time() {
    let authority = Authority::new(&["localhost", "127.0.0.1"]);
    let ca = || authority.ca_pem_path();
    let (plain, with_tls) = (Cluster::start(1, 0), Cluster::start_with_tls(1, 0, &authority));
    // The server accepts TLS from clients, but announces its plain port to them; newer servers do so only if
    // configured.
    let half = Cluster::with(1, 0, |server| server.tls_by(&authority));
    let [server] = half.primaries() else { panic!("it is one server") };
    server.wire().must(&["CONFIG", "SET", "cluster-announce-tls-port", &server.port().to_string()]);
    let (sentinels, with_tls_too) = (Sentinels::start(), Sentinels::start_with_tls(&authority));
    let not_tls = ["cannot reach redis at", "does it speak TLS there"];
    for (url, parts) in [
        (plain.url().replace("redis", "rediss"), &not_tls[..]),
        (with_tls.tls_url("127.0.0.1").replace("rediss", "redis"), &["TLS"]),
        (half.tls_url("127.0.0.1"), &["the cluster names", "which cannot be reached", "Does it speak TLS there?"]),
        (sentinels.url().replace("redis", "rediss"), &not_tls),
        (with_tls_too.tls_url().replace("rediss", "redis"), &["TLS"]),
        (
            sentinels.url().replace("redis", "rediss") + "?sentinel_tls=no",
            &["as the primary of", "which cannot be reached", "Does it speak TLS there?"],
        ),
        (
            with_tls_too.tls_url().replace("rediss", "redis") + "?sentinel_tls=yes",
            &["as the primary of", "which cannot be reached", "TLS"],
        ),
    ] {
        let error = turned_down(&url, ca()).await;
        assert!(matches!(error, Error::Unavailable(_)), "{url}: {error:?}");
        says(&error, parts);
    }
}
