//! A server named without a url, the names of its connections, and invalid settings.

use leasehold::{Client, Credentials, Error, Server, Tls};
use support::{HANGS, Proxy, Server as RealServer, eventually_async, within};

use crate::common::{Confirmed as _, told};

/// The secret that no text may contain.
const SECRET: &str = "p@ss/w:rd#1%";

#[tokio::test]
async fn a_server_without_a_url_is_that_server() {
    let real = RealServer::builder().arg("--requirepass", SECRET).start();
    let url = format!("redis://127.0.0.1:{}", real.port());
    let by_url: Server = url.parse().unwrap();
    let servers = [
        Server::at("127.0.0.1", real.port()).user("default").password(SECRET).database(1),
        Server::at("LOCALHOST", real.port()).password(SECRET).database(1),
        by_url.password(SECRET).database(1),
    ];
    let mut wire = real.wire();
    wire.must(&["AUTH", SECRET]);
    wire.must(&["SELECT", "1"]);
    for server in servers {
        let shown = format!("{server} {server:?}");
        assert!(shown.contains(&real.port().to_string()) && !shown.contains(SECRET), "{shown}");
        let leases = Client::builder().server(server).build().await.unwrap();
        let lease = leases.lock("job").acquire().await.unwrap();
        assert_eq!(wire.must(&["EXISTS", "job"]).int(), 1, "it is in that database");
        lease.release().await.unwrap().confirmed();
    }
}

#[test]
fn what_is_wrong_in_the_settings_names_the_setting() {
    let at = || Server::at("127.0.0.1", 6379);
    let url = |url: &str| url.parse::<Server>().unwrap();
    let asked = || async { Ok::<_, Error>(Credentials::new("worker", SECRET)) };
    for (server, says) in [
        (Server::at("", 6379), "host is \"\""),
        (Server::at("two words", 6379), "host is \"two words\""),
        (Server::at("127.0.0.1:6379", 6379), "without a port"),
        (Server::at("redis://127.0.0.1", 6379), "host is"),
        (Server::at("127.0.0.1", 0), "port is 0"),
        (Server::at(format!("redis://:{SECRET}@h"), 6379), "host is what was given"),
        (at().user(""), "user is empty"),
        (at().user("worker"), "user is set, and no password"),
        (at().password(""), "password is empty"),
        (url("redis://worker@h").user("other"), "user is set, and the url has a user too"),
        (url("redis://:one@h").password("two"), "password is set, and the url has a password too"),
        (url("redis://:one@h").password_file("/run/secret"), "password_file is set, and the url has"),
        (url("redis://:one@h").credentials(asked), "credentials is set, and the url has a password"),
        (url("redis://h/0").database(1), "database is set, and the url has a database too"),
        (url("redis://worker@h").credentials(asked), "user is set, and credentials gives one too"),
        (at().user("worker").credentials(asked), "user is set, and credentials gives one too"),
        (at().tls(Tls::new().server_name("two words")), "server_name is"),
        (url("memory://").user("worker"), "memory:// is in this process"),
        (url("memory://").tls(Tls::new()), "memory:// is in this process"),
        (url("redis://h").tls(Tls::new()), "write rediss://"),
        (url("rediss://h").tls(Tls::new().server_name("")), "server_name is \"\""),
        (at().tls(Tls::new().ca_file("ca.pem").danger_accept_any_certificate()), "ca_file is set, and danger"),
        #[cfg(unix)]
        (url("unix:///run/redis.sock").tls(Tls::new()), "a Unix socket has none"),
    ] {
        let shown = format!("{server:?}");
        let error = Client::builder().server(server).build_lazy().expect_err(says);
        let text = format!("{error} {error:?} {shown}");
        assert!(matches!(error, Error::Config(_)) && text.contains(says), "{says}: {text}");
        assert!(!text.contains(SECRET), "{text}");
    }
    for host in ["::1", "[::1]"] {
        assert_eq!(Server::at(host, 6379).to_string(), "[::1]:6379");
    }
    // A server in a list is checked too.
    let error = Client::builder().quorum([at(), at().user(""), at()]).build_lazy().unwrap_err();
    assert!(error.to_string().contains("quorum[1]: user is empty"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_connection_says_whose_it_is() {
    let real = RealServer::start();
    let leases = Client::builder().url(real.url()).label("Büro 7").build().await.unwrap();
    told(&leases).await;
    let mut wire = real.wire();
    let mut clients = || wire.must(&["CLIENT", "LIST"]).text();
    let role = |role: &str| format!("name=leasehold:B_ro_7:{role} ");
    for part in ["main", "keeper", "notifications"] {
        assert_eq!(clients().matches(&role(part)).count(), 1, "{part}: {}", clients());
    }
    if RealServer::version().at_least(7, 2) {
        assert_eq!(clients().matches("lib-name=leasehold lib-ver=").count(), 3, "{}", clients());
    }
    // Connections made later are named as well.
    let mut killer = real.wire();
    killer.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let again = || real.wire().must(&["CLIENT", "LIST"]).text().matches(&role("keeper")).count() == 1;
    eventually_async(HANGS, "the next one is named", again).await;
}

/// Like a proxy that knows `CLIENT ID` and no other subcommand of that kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_ends_connections_on_their_names_is_passed_without() {
    use support::{Action, Match};
    let real = RealServer::start();
    let proxy = Proxy::to(&real);
    proxy.on_each(Match::command("CLIENT").and(Match::containing("SETNAME")), Action::CutBefore);
    let leases = within(HANGS, "build", Client::connect(proxy.url())).await.unwrap();
    let lease = within(HANGS, "the lock", leases.lock("job").acquire()).await.unwrap();
    lease.renew().await.unwrap();
    lease.release().await.unwrap().confirmed();
}
