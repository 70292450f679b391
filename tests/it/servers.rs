//! Servers behind a url: those that cannot keep locks, a name that later resolves to another server, and a readiness
//! probe's report in each case.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Status};
use support::{
    Action, HANGS, Lag, Match, Proxy, Seen, Server, Value, Wire, eventually_async,
    scripts::{KEEP, RELEASE, RENEW},
    within,
};

use crate::common::{COMMAND, LONG, NAME, told};

async fn connect(url: &str) -> Result<Client, Error> {
    within(HANGS, "build", Client::builder().url(url).command_timeout(COMMAND).build()).await
}

fn cluster_member() -> Server {
    let server = Server::builder().arg("--cluster-enabled", "yes");
    // The default port of its bus may be invalid.
    if Server::version().at_least(7, 0) { server.arg("--cluster-port", "0") } else { server }.start()
}

/// A replica that has all of its primary's data.
fn replica_of(primary: &Server) -> Server {
    let replica = Server::start();
    follow(&mut replica.wire(), primary);
    replica
}

fn follow(wire: &mut Wire, primary: &Server) {
    // Otherwise the primary would wait five seconds for other replicas.
    primary.wire().must(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    wire.must(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_member_and_a_sentinel_are_named_at_once_and_end_every_call() {
    let sentinel = Server::builder().sentinel(true).start();
    for (server, says) in [(cluster_member(), "part of a cluster"), (sentinel, "is a Sentinel")] {
        let is_named = |error: Error| {
            let text = error.to_string();
            assert!(matches!(error, Error::Config(_)), "{text}");
            assert!(text.contains(says) && text.contains(&server.port().to_string()), "{text}");
            assert!(text.contains("the url must name") && !error.is_transient(), "{text}");
        };
        is_named(connect(&server.url()).await.unwrap_err());
        let others = [Server::start(), Server::start()];
        let urls = [&others[0], &others[1], &server].map(Server::url);
        let error = Client::builder().quorum(urls).build().await.unwrap_err();
        assert!(error.to_string().contains("quorum[2]"), "{error}");
        is_named(error);
        let lazy = Client::connect_lazy(server.url()).unwrap();
        is_named(within(HANGS, "health", lazy.health()).await.unwrap_err());
        is_named(within(HANGS, "a try", lazy.lock(NAME).try_acquire()).await.unwrap_err());
        is_named(within(HANGS, "an acquire", lazy.lock(NAME).acquire()).await.unwrap_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_named_at_connect_and_waited_for_until_it_is_promoted() {
    let primary = Server::start();
    let replica = replica_of(&primary);
    let error = connect(&replica.url()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(error.to_string().contains("is a replica") && error.to_string().contains("name its primary"), "{error}");
    let lazy = Client::connect_lazy(replica.url()).unwrap();
    assert!(lazy.health().await.unwrap_err().to_string().contains("is a replica"));
    let waiting = tokio::spawn(lazy.lock(NAME).acquire());
    replica.wire().must(&["REPLICAOF", "NO", "ONE"]);
    drop(within(HANGS, "the lock", waiting).await.unwrap().unwrap());
}

/// A name may resolve to a server that cannot keep locks while the client is connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_comes_to_lead_to_a_cluster_is_refused_and_asks_it_no_more() {
    let (server, member) = (Server::start(), cluster_member());
    let proxy = Proxy::to(&server);
    let leases = connect(&proxy.url()).await.unwrap();
    leases.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    proxy.turn_to(member.port());
    proxy.cut();
    let began = Instant::now();
    loop {
        match within(HANGS, "a try", leases.lock(NAME).try_acquire()).await {
            Err(Error::Refused(why)) if why.to_string().contains("part of a cluster") => break,
            // The link has just ended, and the next one is being made.
            Err(Error::Unavailable(_)) => assert!(began.elapsed() < HANGS),
            outcome => panic!("{outcome:?}"),
        }
    }
    // Requests under way may still arrive there, but have no effect. After that nothing is sent.
    for later in 0..5 {
        let outcome = within(HANGS, "a try", leases.lock(format!("later-{later}")).try_acquire()).await;
        assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
    }
    let of_later = |seen: &Seen| seen.args.iter().any(|arg| arg.starts_with(b"later-"));
    let seen = proxy.seen();
    assert!(!seen.iter().any(of_later), "{seen:?}");
}

/// Like a name server, a Kubernetes Service or an operator that directs new connections to the promoted primary. The
/// old one continues as a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_a_lease_and_all_calls_follow_the_name_to_the_promoted_primary() {
    let old = Server::start();
    let new = replica_of(&old);
    let (proxy, lag) = (Proxy::to(&old), Lag::start());
    let leases = connect(&proxy.url()).await.unwrap();
    let lease = leases.lock(NAME).ttl(LONG).acquire().await.unwrap();
    // Every connection number of ours on the old server belongs to another client on the new one.
    let _strangers: Vec<Wire> = (0..64).map(|_| new.wire()).collect();
    eventually_async(HANGS, "the lock is replicated", || new.wire().exists(NAME)).await;
    new.wire().must(&["REPLICAOF", "NO", "ONE"]);
    follow(&mut old.wire(), &new);

    // Before the name follows, every call reports the cause, and the address is resolved again once a second.
    let (before, began) = (connections(&proxy), Instant::now());
    while began.elapsed() < Duration::from_millis(2_500) {
        let error = within(HANGS, "a try", leases.lock("other").try_acquire()).await.unwrap_err();
        assert!(error.to_string().contains("name a primary"), "{error}");
        let error = leases.health().await.unwrap_err();
        assert!(error.to_string().contains("READONLY"), "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The connections are the caller's, the keeper's, and the one for notifications.
    let tried = connections(&proxy) - before;
    assert!((1..=3 * 4).contains(&tried), "{tried} connections in {:?}", began.elapsed());

    proxy.turn_to(new.port());
    let moved = Instant::now();
    while within(HANGS, "a renewal", lease.renew()).await.is_err() {
        assert!(moved.elapsed() < Duration::from_secs(2) + lag.worst(), "it does not follow");
    }
    while leases.health().await.is_err() {
        assert!(moved.elapsed() < Duration::from_secs(3) + lag.worst(), "it does not follow");
    }
    assert_eq!(lease.status(), Status::Held);
    assert!(new.wire().pttl(NAME) > 25_000, "it was renewed there");
    // Waiters are notified of changes there.
    let other = connect(&new.url()).await.unwrap();
    let held = other.lock("another's").ttl(LONG).acquire().await.unwrap();
    let (mut wire, tracked) = (new.wire(), new.wire().tracked_keys());
    let waiting = tokio::spawn(leases.lock("another's").ttl(LONG).acquire());
    eventually_async(HANGS, "the waiter is notified of changes", || wire.tracked_keys() > tracked).await;
    held.release().await.unwrap();
    drop(
        within(Duration::from_secs(5) + lag.worst(), "the lock that another program released", waiting).await.unwrap(),
    );
    let waiting = tokio::spawn(leases.lock(NAME).ttl(LONG).fair(true).acquire());
    eventually_async(HANGS, "the waiter is in the queue", || new.wire().exists("{job}:lh:queue")).await;
    lease.release().await.unwrap();
    let next = within(Duration::from_secs(5) + lag.worst(), "the hand-off", waiting).await.unwrap().unwrap();
    next.check().unwrap();
}

/// A server that has become a replica has no such key, and its answers to a read would be believed. A dropped lease's
/// release would leave its key on the primary, and a renewal would end a healthy lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_demoted_server_does_not_have_is_neither_released_nor_lost() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::to(&old);
    let leases = connect(&proxy.url()).await.unwrap();
    leases.lock("before").acquire().await.unwrap().release().await.unwrap();
    // The old server answers, but never has what is written from now on.
    old.wire().must(&["REPLICAOF", "127.0.0.1", "1"]);
    let mut wire = old.wire();
    let keys = ["{job}:lh:fence", "{job}:lh:queue", "{job}:lh:wait"];
    let token = "lh1:00000000-0000-4000-8000-000000000000@one";
    let says_so = |reply: Value| {
        let error = reply.error().map(str::to_owned);
        let text = error.unwrap_or_else(|| reply.array()[0].array()[1].text());
        assert!(text.contains("READONLY"), "{text}");
    };
    says_so(wire.cmd(&["EVAL", RENEW, "1", NAME, token, "30000"]));
    says_so(wire.cmd(&["EVAL", RELEASE, "4", NAME, keys[0], keys[1], keys[2], token]));
    says_so(wire.cmd(&["EVAL", KEEP, "1", NAME, token, "30000", token]));

    proxy.turn_to(new.port());
    let began = Instant::now();
    let held = loop {
        match leases.lock(NAME).ttl(LONG).try_acquire().await {
            Ok(lease) => break lease.expect("it is free"),
            Err(_) => assert!(began.elapsed() < HANGS, "it does not follow"),
        }
    };
    for turn in 0..20 {
        let name = format!("dropped:{turn}");
        drop(leases.lock(&name).ttl(LONG).acquire().await.unwrap());
        eventually_async(HANGS, "the dropped lock is released", || !new.wire().exists(&name)).await;
    }
    held.renew().await.unwrap();
    assert_eq!(held.status(), Status::Held);
}

/// The number of connections made.
fn connections(proxy: &Proxy) -> usize {
    usize::try_from(proxy.seen().iter().map(|seen| seen.connection).max().unwrap_or_default()).unwrap()
}

/// The connection of the last script.
fn last_script_on(proxy: &Proxy) -> Option<u64> {
    proxy.seen().iter().rfind(|seen| seen.args[0].starts_with(b"EVAL")).map(|seen| seen.connection)
}

/// A server that is a replica only for a moment keeps its links, so requests in flight are not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_a_replica_for_a_moment_keeps_its_connections() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = connect(&proxy.url()).await.unwrap();
    server.wire().must(&["REPLICAOF", "127.0.0.1", "1"]);
    leases.lock(NAME).try_acquire().await.unwrap_err();
    server.wire().must(&["REPLICAOF", "NO", "ONE"]);
    let lease = within(HANGS, "the lock", leases.lock(NAME).acquire()).await.unwrap();
    let ours = |wire: &mut Wire| wire.must(&["CLIENT", "LIST"]).text().lines().count();
    let mut wire = server.wire();
    let before = last_script_on(&proxy);
    eventually_async(HANGS, "the address was tried", || connections(&proxy) > 2 && ours(&mut wire) <= 4).await;
    lease.release().await.unwrap();
    assert_eq!(last_script_on(&proxy), before);
}

/// An answer that is one caller's error does not end the shared connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_of_another_type_costs_no_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = connect(&proxy.url()).await.unwrap();
    // By then all connections are open.
    told(&leases).await;
    server.wire().must(&["RPUSH", "list", "value"]);
    let before = connections(&proxy);
    for _ in 0..5 {
        let error = leases.lock("list").force_release().await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error}");
        leases.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(connections(&proxy), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_whether_a_lock_could_be_taken_now() {
    let server = Server::start();
    let leases = connect(&server.url()).await.unwrap();
    let mut wire = server.wire();
    let written = |wire: &mut Wire| wire.info_field("persistence", "rdb_changes_since_last_save");
    let before = written(&mut wire);
    leases.health().await.unwrap();
    assert_eq!(written(&mut wire), before, "it writes nothing");
    for (what, ill, well) in [
        ("OOM", &["CONFIG", "SET", "maxmemory", "1"][..], &["CONFIG", "SET", "maxmemory", "0"][..]),
        ("READONLY", &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
        (
            "NOREPLICAS",
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
    ] {
        // Before 7.0, scripts write regardless of the replicas.
        if what == "NOREPLICAS" && !Server::version().at_least(7, 0) {
            continue;
        }
        wire.must(ill);
        let (health, acquire) = (leases.health().await, leases.lock(NAME).try_acquire().await);
        let (health, acquire) = (health.unwrap_err(), acquire.map(drop).unwrap_err());
        assert!(matches!(health, Error::Unavailable(_)), "{health}");
        assert!(health.to_string().contains(what), "{health}");
        assert_eq!(health.to_string(), acquire.to_string());
        wire.must(well);
        leases.health().await.unwrap();
    }
    // A missing right is reported too, and keys that only the probe needs are not required.
    wire.must(&["ACL", "SETUSER", "worker", "on", ">secret", "~job", "~{job*", "+@all", "-set"]);
    let url = format!("redis://worker:secret@127.0.0.1:{}", server.port());
    wire.must(&["ACL", "SETUSER", "worker", "allkeys"]);
    let worker = connect(&url).await.unwrap();
    assert!(matches!(worker.health().await.unwrap_err(), Error::Refused(_)));
    wire.must(&["ACL", "SETUSER", "worker", "+set", "resetkeys", "~job", "~{job*"]);
    worker.health().await.unwrap();
    worker.lock(NAME).try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    // The first script of a connection is sent as text; renewals are sent by their hash.
    wire.must(&["ACL", "SETUSER", "worker", "allkeys", "-evalsha"]);
    let probe = connect(&url).await.unwrap();
    assert!(matches!(probe.health().await.unwrap_err(), Error::Refused(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_over_a_quorum_is_that_of_a_majority_that_grants() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let builder = Client::builder().quorum(servers.iter().map(Server::url)).command_timeout(COMMAND);
    let leases = builder.restart_delay(Duration::ZERO).build().await.unwrap();
    servers[0].wire().must(&["CONFIG", "SET", "maxmemory", "1"]);
    leases.health().await.unwrap();
    servers[1].wire().must(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = leases.health().await.unwrap_err();
    assert_eq!(error.votes().map(|votes| (votes.granted(), votes.needed())), Some((1, 2)), "{error}");
    assert!(error.to_string().contains("OOM") && error.to_string().contains("READONLY"), "{error}");
}

/// The delay is known even if the server has not been asked for a lock before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_knows_of_a_restart_delay_that_is_not_over() {
    let server = Server::start();
    let leases =
        Client::builder().url(server.url()).restart_delay(LONG + Duration::from_secs(1)).build().await.unwrap();
    let error = leases.health().await.unwrap_err();
    assert!(error.retry_after().is_some_and(|wait| wait > LONG / 2), "{error}");
}

#[tokio::test]
async fn a_refused_connection_is_told_at_once() {
    // Bound, so that no other program gets the port, but never listened on.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let lag = Lag::start();
    for url in [format!("redis://{}", taken.local_addr().unwrap()), "unix:///nonexistent/redis.sock".into()] {
        let began = Instant::now();
        let error = Client::connect(url).await.unwrap_err();
        let took = began.elapsed();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert!(error.to_string().contains("Is the server running there"), "{error}");
        assert!(took < Duration::from_millis(500) + lag.worst(), "{took:?}");
    }
    // A waiter that waits all the same is given the reason.
    let lazy = Client::connect_lazy(format!("redis://{}", taken.local_addr().unwrap())).unwrap();
    let error = lazy.lock(NAME).acquire_within(Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(error.to_string().contains("refused. Is the server running there"), "{error}");
}

/// Like twemproxy, which does so on each unknown command.
fn ends_each_connection_on(proxy: &Proxy, commands: &[&str]) {
    for command in commands {
        proxy.on_each(Match::command(command), Action::CutBefore);
    }
}

/// Commands other than scripts may be left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_proxy_that_ends_connections_on_our_own_questions_locks_are_acquired() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    ends_each_connection_on(&proxy, &["HELLO", "SUBSCRIBE", "PUBLISH", "CONFIG"]);
    let leases = connect(&proxy.url()).await.unwrap();
    let held = within(HANGS, "the lock", leases.lock(NAME).acquire()).await.unwrap();
    let waiting = tokio::spawn(leases.lock(NAME).owner(leasehold::Owner::anonymous()).acquire());
    let before = connections(&proxy);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let made = connections(&proxy) - before;
    assert!(made <= 15, "{made} connections in three seconds");
    held.release().await.unwrap();
    drop(within(HANGS, "the lock", waiting).await.unwrap().unwrap());
}

/// The client library itself sends these on each connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_ends_connections_on_the_clients_questions_is_said_to() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    ends_each_connection_on(&proxy, &["CLIENT", "INFO"]);
    let limit = Duration::from_secs(1);
    let building = Client::builder().url(proxy.url()).connect_timeout(limit).build();
    let error = within(HANGS, "build", building).await.unwrap_err();
    println!("{error}");
    let made = connections(&proxy);
    assert!(made <= 20, "{made} connections in a second");
    assert!(error.to_string().contains("proxy"), "{error}");
}
