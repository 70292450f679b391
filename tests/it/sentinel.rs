//! A primary behind Sentinels: its urls, and its failovers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, Lease, LossReason, NodeState, Owner, Status};
use support::{
    Cluster, HANGS, Lag, Proxy, SERVICE, Sentinels, Server, Value, Wire, eventually, eventually_async,
    eventually_but_for, within,
};
use tokio::task::JoinSet;

use crate::common::{COMMAND, Confirmed as _, LONG};

/// By then a replica has been promoted, and Sentinels name it.
const TAKEN_OVER: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Result<Client, Error> {
    within(HANGS, "build", Client::builder().url(url).command_timeout(COMMAND).build()).await
}

async fn acquire(leases: &Client, name: &str, ttl: Duration) -> Lease {
    within(HANGS, "the lock", leases.lock(name).ttl(ttl).acquire()).await.unwrap()
}

/// Completes when a Sentinel names another primary. The returned moment is that of the check that found it.
async fn names_another(all: &Sentinels) -> (Instant, &Server) {
    let mut looked = Instant::now();
    let another = || all.named_by(0).filter(|named| named.port() != all.primary().port());
    eventually_async(TAKEN_OVER, "a Sentinel names another primary", || {
        looked = Instant::now();
        another().is_some()
    })
    .await;
    (looked, another().expect("it has named one"))
}

/// Stops the replicas and cuts their links, so what is written from now on is lost with the primary.
fn cut_replicas_off(all: &Sentinels) {
    all.replicas().iter().for_each(Server::stop);
    // Without this they would find the write in their sockets when they continue.
    all.primary().wire().must(&["CLIENT", "KILL", "TYPE", "replica"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_is_enough_also_beside_the_dead() {
    let all = Sentinels::start();
    let dead = Server::start();
    dead.kill();
    let [one, ..] = all.sentinels() else { panic!("there are three") };
    for url in [
        all.url(),
        all.url_of(&all.sentinels()[..1]),
        format!("redis-sentinel://127.0.0.1:{},localhost:{}/{SERVICE}/0", dead.port(), one.port()),
        format!("valkey+sentinel://127.0.0.1:{}/{SERVICE}/3", one.port()),
    ] {
        let leases = connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let lease = acquire(&leases, "a}b", LONG).await;
        let mut wire = all.primary().wire();
        wire.must(&["SELECT", if url.ends_with("/3") { "3" } else { "0" }]);
        assert!(wire.exists("a}b"), "{url}");
        let nodes = leases.nodes();
        let [node] = &*nodes else { panic!("{nodes:?}") };
        assert_eq!(node.address(), format!("127.0.0.1:{}", all.primary().port()));
        assert_eq!((node.state(), node.slots(), node.replicas()), (&NodeState::Up, None, Some(2)));
        leases.health().await.unwrap();
        assert_eq!(leases.list("*").await.unwrap().len(), 1);
        lease.release().await.unwrap().confirmed();
        leases.close().await;
    }
    let clients = || all.primary().wire().must(&["CLIENT", "LIST"]).text();
    eventually_async(HANGS, "no connection is left", || !clients().contains("leasehold")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_sentinels_is_named() {
    let (all, alone, cluster) = (Sentinels::start(), Server::start(), Cluster::start(1, 0));
    let closed = Sentinels::start();
    for server in closed.servers() {
        let mut wire = server.wire();
        wire.must(&["CONFIG", "SET", "masterauth", "data"]);
        wire.must(&["CONFIG", "SET", "requirepass", "data"]);
    }
    for sentinel in closed.sentinels() {
        let mut wire = sentinel.wire();
        wire.must(&["SENTINEL", "SET", SERVICE, "auth-pass", "data"]);
        wire.must(&["ACL", "SETUSER", "default", "resetpass", ">watch"]);
    }
    let at = |server: &Server, rest: &str| format!("redis-sentinel://127.0.0.1:{}/{rest}", server.port());
    let [one, ..] = all.sentinels() else { panic!("there are three") };
    let dead = Server::start();
    dead.kill();
    let guarded = closed.url();
    for (url, kind, parts) in [
        (at(one, "lock"), "config", vec!["does not watch \"lock\"".into(), format!("it watches {SERVICE:?}")]),
        (at(&alone, SERVICE), "config", vec!["is no Sentinel".into(), "redis://".into()]),
        (at(&cluster.servers()[0], SERVICE), "config", vec!["is no Sentinel".into(), "redis-cluster://".into()]),
        (one.url(), "config", vec!["is a Sentinel".into(), "redis-sentinel://".into()]),
        (one.url().replace("redis:", "redis-cluster:"), "config", vec!["is a Sentinel".into()]),
        (at(&dead, SERVICE), "unavailable", vec!["cannot reach".into(), dead.port().to_string()]),
        (guarded.clone(), "refused", vec!["NOAUTH".into(), "sentinel_password".into()]),
        (
            format!("{}?sentinel_password=wrong", guarded.replace("://", "://:data@")),
            "refused",
            vec!["WRONGPASS".into(), "sentinel_password".into()],
        ),
        (format!("{guarded}?sentinel_password=wrong"), "refused", vec!["WRONGPASS".into(), "sentinel_password".into()]),
        (
            format!("{guarded}?sentinel_password=watch"),
            "refused",
            vec![format!("the primary of {SERVICE:?}: "), "NOAUTH".into(), closed.primary().port().to_string()],
        ),
        (
            format!("{}?sentinel_password=watch", guarded.replace("://", "://:wrong@")),
            "refused",
            vec!["WRONGPASS".into(), closed.primary().port().to_string()],
        ),
    ] {
        let error = connect(&url).await.map(|_| ()).expect_err(&url);
        let found = match &error {
            Error::Config(_) => "config",
            Error::Refused(_) => "refused",
            Error::Unavailable(_) => "unavailable",
            _ => "another",
        };
        let text = error.to_string();
        assert_eq!(found, kind, "{url}: {text}");
        for part in parts {
            assert!(text.contains(&part), "{url}: {text}");
        }
        if text.contains("the primary of") {
            assert_eq!(text.matches("redis at").count(), 1, "once for all Sentinels: {text}");
        }
        assert!(!text.contains("wrong") && !text.contains("watch\""), "{text}");
    }
    let right = format!("{}?sentinel_password=watch", guarded.replace("://", "://:data@"));
    acquire(&connect(&right).await.unwrap(), "job", LONG).await.release().await.unwrap().confirmed();
    let error = Client::builder().url(all.url()).restart_delay(Duration::from_secs(31)).build().await.unwrap_err();
    assert!(error.to_string().contains("restart_delay"), "{error}");
    let error = Client::builder().quorum([alone.url(), all.url(), one.url()]).build().await.unwrap_err().to_string();
    assert!(error.contains("quorum[1]") && error.contains("redis-sentinel"), "{error}");
}

/// Sentinels report an address that does not work from here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f57_a_primary_that_is_out_of_reach_is_named() {
    let all = Sentinels::start();
    let dead = Server::start();
    dead.kill();
    for sentinel in all.sentinels() {
        let mut wire = sentinel.wire();
        wire.must(&["SENTINEL", "MONITOR", "far", "127.0.0.1", &dead.port().to_string(), "2"]);
    }
    let url = all.url().replace(SERVICE, "far");
    let builder = || Client::builder().url(&url).connect_timeout(Duration::from_secs(1));
    let says = async |builder: Builder, parts: [&str; 3]| {
        let error = within(HANGS, "build", builder.build()).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Unavailable(_)), "{text}");
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
    };
    let (from, replica) = (format!("127.0.0.1:{}", dead.port()), &all.replicas()[0]);
    says(
        builder(),
        [
            "primary of \"far\"",
            &format!("{from} as"),
            "(Connection refused): if it has another address from here, see Builder::address_map",
        ],
    )
    .await;
    // A server answers there, but is not a primary.
    let to = format!("localhost:{}", replica.port());
    says(builder().address_map([(&from, &to)]), ["primary of \"far\"", &from, "is a replica"]).await;
    let to = format!("localhost:{}", all.primary().port());
    let leases = within(HANGS, "build", builder().address_map([(&from, &to)]).build()).await.unwrap();
    acquire(&leases, "job", LONG).await.release().await.unwrap().confirmed();
}

/// A hundred holders and a queue: no lease and no waiter is lost in a planned failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f43a_a_planned_failover_loses_nobody() {
    let all = Sentinels::start();
    let leases = connect(&all.url()).await.unwrap();
    let mut held = Vec::new();
    for number in 0..100 {
        held.push(acquire(&leases, &format!("job:{number}"), Duration::from_secs(5)).await);
    }
    let queue = leases.lock("queue").ttl(LONG).fair(true);
    let first = within(HANGS, "the lock", queue.clone().acquire()).await.unwrap();
    let waiting = || {
        let lock = queue.clone().owner(Owner::anonymous());
        tokio::spawn(async move {
            let lease = lock.acquire_within(Duration::from_secs(60)).await.unwrap();
            let fence = lease.fence();
            lease.release().await.unwrap().confirmed();
            fence
        })
    };
    let waiters: Vec<_> = (0..20).map(|_| waiting()).collect();
    // For up to a second, a replica may lack the latest writes.
    let has_all = |replica: &Server| {
        let mut wire = replica.wire();
        wire.keys("job:*").len() >= 100 && wire.exists("queue")
    };
    eventually(HANGS, "all is replicated", || all.replicas().iter().all(has_all));
    all.sentinels()[0].wire().must(&["SENTINEL", "FAILOVER", SERVICE]);
    let (_, promoted) = names_another(&all).await;
    let is_there = || leases.nodes().iter().any(|node| node.address().ends_with(&format!(":{}", promoted.port())));
    eventually_async(HANGS, "it is found", is_there).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    for lease in &held {
        assert_eq!((lease.status(), lease.check().is_ok()), (Status::Held, true), "{}", lease.name());
        assert!(promoted.wire().exists(lease.name()));
    }
    let mut fence = first.fence();
    first.release().await.unwrap().confirmed();
    for waiter in waiters {
        fence = fence.max(within(Duration::from_secs(61), "the lock", waiter).await.unwrap());
    }
    for lease in held {
        lease.release().await.unwrap().confirmed();
    }
    let next = within(HANGS, "the lock", queue.acquire()).await.unwrap();
    assert!(next.fence() > fence);
}

/// A replicated lease outlives its primary, and locks are granted again soon after a Sentinel names the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f43b_a_lease_that_was_replicated_outlives_its_primary() {
    for killed in [true, false] {
        let (all, lag) = (Sentinels::start(), Lag::start());
        let leases = connect(&all.url()).await.unwrap();
        let lease = acquire(&leases, "job", Duration::from_secs(60)).await;
        eventually(HANGS, "it is replicated", || all.replicas().iter().all(|replica| replica.wire().exists("job")));
        let until = Instant::now() + lease.remaining();
        let end = if killed { Server::kill } else { Server::stop };
        end(all.primary());
        let lock = leases.lock("another").ttl(LONG);
        let granted = tokio::spawn(async move { lock.acquire().await.map(|lease| (lease, Instant::now())) });
        let (named, promoted) = names_another(&all).await;
        let (another, at) = within(HANGS, "the lock", granted).await.unwrap().unwrap();
        // An attempt at the old primary may have to time out first.
        let (took, bound) = (at.saturating_duration_since(named), COMMAND + Duration::from_millis(500) + lag.worst());
        assert!(took <= bound, "killed: {killed}; {took:?} after it was named, the bound is {bound:?}");
        let is_renewed = || Instant::now() + lease.remaining() > until + Duration::from_secs(1);
        eventually_but_for(&lag, Duration::from_secs(6), "it is renewed there", is_renewed).await;
        lease.check().unwrap();
        let fence = lease.fence();
        lease.release().await.unwrap().confirmed();
        let next = acquire(&leases, "job", LONG).await;
        assert!(next.fence() > fence && promoted.wire().exists("job"));
        if !killed {
            all.primary().cont();
        }
        for lease in [next, another] {
            lease.release().await.unwrap().confirmed();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f43c_a_lease_that_was_not_replicated_is_told_as_lost_in_the_failover() {
    let (all, lag) = (Sentinels::start(), Lag::start());
    let leases = connect(&all.url()).await.unwrap();
    cut_replicas_off(&all);
    let held = acquire(&leases, "job", Duration::from_secs(60)).await;
    all.primary().kill();
    all.replicas().iter().for_each(Server::cont);
    let (named, _) = names_another(&all).await;
    let lost = within(HANGS, "the signal", held.lost()).await;
    assert_eq!(lost.reason(), LossReason::FailedOver, "{lost}");
    let (took, bound) = (named.elapsed(), Duration::from_secs(6) + lag.worst());
    assert!(took <= bound, "told {took:?} after it was named, the bound is {bound:?}");
    let next = acquire(&leases, "job", LONG).await;
    assert!(next.fence() > held.fence());
    next.release().await.unwrap().confirmed();
}

/// A primary that was stopped while another took over continues, with a lock that only it has: that lock does not
/// count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f49_a_replaced_primary_that_goes_on_grants_nothing_behind_sentinels() {
    let all = Sentinels::start();
    let [one, two] = [connect(&all.url()).await.unwrap(), connect(&all.url()).await.unwrap()];
    cut_replicas_off(&all);
    let held = acquire(&one, "job", Duration::from_secs(60)).await;
    all.primary().stop();
    all.replicas().iter().for_each(Server::cont);
    let waiting = tokio::spawn(two.lock("job").ttl(LONG).acquire());
    let (_, promoted) = names_another(&all).await;
    let lost = within(HANGS, "the signal", held.lost()).await;
    assert!(matches!(lost.reason(), LossReason::FailedOver | LossReason::Taken), "{lost}");
    let next = within(HANGS, "the next lease", waiting).await.unwrap().unwrap();
    assert!(next.fence() > held.fence() && promoted.wire().exists("job"));
    // The lock is free at the old primary. The Sentinels make that server a replica in some seconds; until then it
    // accepts all writes.
    let other = acquire(&two, "free", LONG).await;
    all.primary().cont();
    for _ in 0..200 {
        let lock = one.lock("free").owner(Owner::anonymous());
        assert!(lock.try_acquire().await.unwrap().is_none(), "the old one is believed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    next.check().unwrap();
    other.release().await.unwrap().confirmed();
    next.release().await.unwrap().confirmed();
}

/// Missing Sentinels do no harm, a stale one misleads no client, and Sentinels that start afresh are followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_sentinels_that_are_away_or_stale_or_begin_anew() {
    let all = Sentinels::start();
    let leases = connect(&all.url()).await.unwrap();
    // Longer than a holder may miss a failover, and shorter than the Sentinels are away.
    let held = acquire(&leases, "job", Duration::from_secs(4)).await;
    let (first, [second, third]) = (all.primary(), all.replicas()) else { panic!("it has two replicas") };
    // With one replica left, each failover is from one to the other.
    third.kill();
    all.sentinels().iter().for_each(Server::kill);
    tokio::time::sleep(Duration::from_secs(5)).await;
    held.check().unwrap();
    acquire(&leases, "another", LONG).await.release().await.unwrap().confirmed();
    let at =
        |server: &Server| leases.nodes().iter().any(|node| node.address().ends_with(&format!(":{}", server.port())));
    let fail_over = async |to: &Server, held: &Lease| {
        let names = || all.named_by(0).is_some_and(|named| named.port() == to.port());
        let can = |sentinel: &Server| sentinel.wire().cmd(&["SENTINEL", "CKQUORUM", SERVICE]).error().is_none();
        eventually_async(TAKEN_OVER, "they are a quorum", || all.sentinels().iter().all(can)).await;
        let begins = || all.sentinels()[0].wire().cmd(&["SENTINEL", "FAILOVER", SERVICE]).error().is_none();
        eventually_async(TAKEN_OVER, "the failover begins", begins).await;
        eventually_async(TAKEN_OVER, "it is named", names).await;
        eventually_async(Duration::from_secs(30), "it is found", || at(to)).await;
        held.check().unwrap();
        // Two of three Sentinels hear of the failover a moment later. Until then they name the old primary, which
        // reports for seconds that it is one. The client does not go back.
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            acquire(&leases, "another", LONG).await.release().await.unwrap().confirmed();
            assert!(at(to), "it went back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let other = if to.port() == first.port() { second } else { first };
        // A Sentinel ends the connections of a server that it makes a replica.
        let status = || Wire::try_to_port(other.port())?.try_info_field("replication", "master_link_status");
        let is_linked = || status().is_ok_and(|status| status.as_deref() == Some("up"));
        eventually_async(TAKEN_OVER, "the other replicates it", is_linked).await;
    };
    let begin_anew = || all.sentinels().iter().for_each(Server::restart);
    begin_anew();
    fail_over(second, &held).await;
    // One Sentinel reverts to its configuration file, and names the first primary, in a past epoch.
    all.sentinels()[1].restart();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        acquire(&leases, "another", LONG).await.release().await.unwrap().confirmed();
        assert!(at(second) && second.wire().calls("evalsha") > 0);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    held.check().unwrap();
    fail_over(first, &held).await;
    // All Sentinels forget what they knew: epochs restart at zero, and the next failover has a smaller one than the
    // last. Until that one is believed, renewals go to the old primary.
    held.release().await.unwrap().confirmed();
    let held = acquire(&leases, "job", Duration::from_secs(60)).await;
    eventually(HANGS, "it is replicated", || second.wire().get("job") == first.wire().get("job"));
    begin_anew();
    fail_over(second, &held).await;
    held.release().await.unwrap().confirmed();
}

/// One Sentinel has missed a failover, and answers first. The old primary still reports that it is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_a_program_that_starts_is_not_misled_by_one_stale_sentinel() {
    let all = Sentinels::start();
    let [stale, others @ ..] = all.sentinels() else { panic!("there are three") };
    let proxies: Vec<Proxy> = others.iter().map(Proxy::to).collect();
    for proxy in &proxies {
        // Delays each answer on a connection, but by far less than the time for which other Sentinels are awaited.
        proxy.delay(Duration::from_millis(5));
    }
    others[0].wire().must(&["SENTINEL", "FAILOVER", SERVICE]);
    let another = |at| all.named_by(at).filter(|named| named.port() != all.primary().port());
    eventually_async(TAKEN_OVER, "the others name another", || another(1).is_some() && another(2).is_some()).await;
    let promoted = another(1).expect("it is named").port();
    let hosts: Vec<u16> = [stale.port()].into_iter().chain(proxies.iter().map(Proxy::port)).collect();
    let hosts: Vec<String> = hosts.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("redis-sentinel://{}/{SERVICE}", hosts.join(","));
    // The others update the stale one every two seconds, and the old primary seconds later. In one of a few tries they
    // have not yet.
    let mut looks = 0;
    loop {
        stale.restart();
        let leases = connect(&url).await.unwrap();
        let nodes = leases.nodes();
        assert!(nodes.iter().all(|node| node.address().ends_with(&format!(":{promoted}"))), "{nodes:?}");
        let was_stale = all.named_by(0).is_some_and(|named| named.port() == all.primary().port());
        let role = all.primary().wire().info_field("replication", "role");
        assert_eq!(role.as_deref(), Some("master"), "it has been notified");
        looks += 1;
        if was_stale {
            break;
        }
        assert!(looks < 10, "it was never stale");
    }
}

/// A wrong address in a deployment script: one of three Sentinels watches a replica, or an unrelated server. The two
/// others and the primary itself disagree, so that Sentinel decides nothing, neither for a running program nor for one
/// that starts and asks it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_one_sentinel_with_a_wrong_address_moves_nobody() {
    let (all, stranger) = (Sentinels::start(), Server::start());
    let leases = connect(&all.url()).await.unwrap();
    let ttl = Duration::from_secs(3);
    let held = acquire(&leases, "job", ttl).await;
    let watch = |port: u16| {
        let mut wrong = all.sentinels()[0].wire();
        wrong.must(&["SENTINEL", "REMOVE", SERVICE]);
        wrong.must(&["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &port.to_string(), "2"]);
    };
    for port in [all.replicas()[0].port(), stranger.port()] {
        watch(port);
        let until = Instant::now() + ttl * 2;
        while Instant::now() < until {
            acquire(&leases, "another", LONG).await.release().await.unwrap().confirmed();
            let other = connect(&all.url()).await.unwrap();
            assert!(other.lock("job").try_acquire().await.unwrap().is_none(), "it is held");
            held.check().unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let named = all.sentinels()[0].wire().must(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let Value::Array(named) = named else { panic!("{named:?}") };
        assert_eq!(named.last().map(Value::text), Some(port.to_string()), "it is wrong still");
    }
    assert_eq!(stranger.wire().calls("set") + stranger.wire().calls("evalsha"), 0);
    held.release().await.unwrap().confirmed();
}

/// The Sentinels promote replicas meanwhile. A lock confirmed by both replicas is never held twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_one_sentinel_forgets_the_service_while_others_fail_over() {
    let all = Sentinels::start();
    let program = async || {
        let builder = Client::builder().url(all.url()).command_timeout(COMMAND).min_replicas(2);
        within(HANGS, "build", builder.build()).await.unwrap()
    };
    let programs = [program().await, program().await];
    all.sentinels()[0].wire().must(&["SENTINEL", "REMOVE", SERVICE]);
    let (is_over, turns) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let mut crowd = JoinSet::new();
    for name in 0..16 {
        let believers = Arc::<AtomicUsize>::default();
        for leases in &programs {
            let lock = leases.lock(format!("job-{name}")).ttl(Duration::from_secs(3)).owner(Owner::anonymous());
            let (is_over, believers, turns) = (is_over.clone(), believers.clone(), turns.clone());
            crowd.spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    // Locks are not granted while too few replicas are available.
                    let Ok(lease) = lock.acquire_within(LONG).await else { continue };
                    assert_eq!(believers.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    // Long enough that the next holder is granted the lock if the key is lost.
                    let work = tokio::time::sleep(Duration::from_millis(300));
                    tokio::select! { biased; _ = lease.lost() => {} () = work => {} }
                    believers.fetch_sub(1, Ordering::SeqCst);
                    drop(lease.release().await);
                    turns.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    }
    let mut before = all.named_by(1).map(Server::port);
    for _ in 0..2 {
        let begins = || all.sentinels()[1].wire().cmd(&["SENTINEL", "FAILOVER", SERVICE]).error().is_none();
        eventually_async(TAKEN_OVER, "the failover begins", begins).await;
        let now = || all.named_by(1).map(Server::port);
        eventually_async(TAKEN_OVER, "it names another", || now() != before).await;
        before = now();
        let done = turns.load(Ordering::SeqCst);
        eventually_async(TAKEN_OVER, "turns go on", || turns.load(Ordering::SeqCst) > done + 32).await;
    }
    is_over.store(true, Ordering::SeqCst);
    while let Some(one) = within(HANGS, "the crowd ends", crowd.join_next()).await {
        one.unwrap();
    }
}

/// A url of Sentinels does not name a primary, so an error must not ask the user to change it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_behind_sentinels_tells_of_the_url_or_of_a_cluster() {
    let all = Sentinels::start();
    let leases = connect(&all.url()).await.unwrap();
    let held = acquire(&leases, "held", Duration::from_secs(60)).await;
    let (primary, free) = (all.primary(), leases.lock("free"));
    let is_in_place = |error: &Error| {
        let text = error.to_string();
        assert!(!["the url must", "slot", "cluster"].iter().any(|word| text.contains(word)), "{text}");
        text
    };
    // Its Sentinels continue to name it for some seconds.
    primary.wire().must(&["REPLICAOF", "127.0.0.1", "1"]);
    let text = is_in_place(&free.try_acquire().await.unwrap_err());
    assert!(text.contains("READONLY") && text.contains("see to the Sentinels"), "{text}");
    let text = is_in_place(&held.renew().await.unwrap_err());
    assert!(text.contains("READONLY") && text.contains("see to the Sentinels"), "{text}");
    primary.wire().must(&["REPLICAOF", "NO", "ONE"]);
    // The error is the same at each moment of a failover.
    primary.kill();
    let until = Instant::now() + TAKEN_OVER;
    while let Err(error) = free.acquire_within(Duration::from_millis(20)).await {
        let text = is_in_place(&error);
        assert!(Instant::now() < until, "a replica has taken over: {text}");
    }
}

/// Connecting needs these rights, and the error names the missing one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named() {
    let all = Sentinels::start();
    for server in all.servers() {
        server.wire().must(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", "-role"]);
    }
    let error = connect(&all.url().replace("://", "://worker:secret@")).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Refused(_)) && text.contains("NOPERM") && text.contains("role"), "{text}");
    for sentinel in all.sentinels() {
        let rights = ["on", ">secret", "+@all", "-sentinel"];
        sentinel.wire().must(&[&["ACL", "SETUSER", "watcher"], &rights[..]].concat());
    }
    let url = format!("{}?sentinel_user=watcher&sentinel_password=secret", all.url());
    let error = connect(&url).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Refused(_)) && text.contains("NOPERM") && text.contains("sentinel"), "{text}");
}
