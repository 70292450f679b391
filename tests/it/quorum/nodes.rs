//! The servers of a quorum and the state of each: what `build` refuses and waits for, `nodes()`, and the events about
//! nodes.

use std::{
    future::IntoFuture as _,
    net::TcpListener,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, Lease, LossReason, NodeAnswer, NodeState};
use support::{
    AGE, Action, EventLog, HANGS, Lag, Match, Nodes, Proxy, Server, alone, eventually_async,
    scripts::{ACQUIRE, RAISE, RENEW, REPAIR},
    two_workers, within,
};

const NAME: &str = "app:job";

const COMMAND: Duration = Duration::from_millis(300);
const CONNECT: Duration = Duration::from_secs(1);
/// How long `build` waits for the other nodes once it has a majority.
const GRACE: Duration = Duration::from_millis(500);
/// The longest that a call without a wait may take.
const PROMPT: Duration = Duration::from_millis(100);
/// The longest pause between two checks, and the error of a server's uptime.
const SECOND: Duration = Duration::from_secs(1);

/// The secret that no text may contain.
const SECRET: &str = "open-s3same";

fn builder<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Builder {
    let urls = urls.into_iter().map(Into::<String>::into);
    Client::builder().quorum(urls).command_timeout(COMMAND).connect_timeout(CONNECT)
}

async fn build(urls: Vec<String>) -> Client {
    within(HANGS, "build", builder(urls).build()).await.expect("a majority is there")
}

/// A patient client that reaches each node through a proxy.
async fn behind_proxies(nodes: &Nodes) -> ([Proxy; 3], Client) {
    let proxies = [0, 1, 2].map(|at| Proxy::to(&nodes[at]));
    let urls = proxies.each_ref().map(Proxy::url);
    let leases = within(HANGS, "build", builder(urls).command_timeout(3 * SECOND).build()).await;
    (proxies, leases.expect("all are there"))
}

#[track_caller]
fn names(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert!(!text.contains(SECRET), "{text}");
}

fn config(error: &Error) -> bool {
    matches!(error, Error::Config(_))
}

fn unsupported(error: &Error) -> bool {
    matches!(error, Error::Unsupported(_))
}

fn refused(error: &Error) -> bool {
    matches!(error, Error::Refused(_))
}

fn unavailable(error: &Error) -> bool {
    matches!(error, Error::Unavailable(_))
}

/// The error of a build that must fail.
async fn turned_down(builder: Builder, is_it: fn(&Error) -> bool, words: &[&str]) -> Error {
    let error = within(HANGS, "build", builder.build()).await.expect_err("it should have been refused");
    assert!(is_it(&error), "{error:?}");
    names(&format!("{error} {error:?}"), words);
    error
}

fn state(leases: &Client, at: usize) -> NodeState {
    leases.nodes()[at].state().clone()
}

async fn eventually_is(leases: &Client, at: usize, what: &str, is: impl Fn(&NodeState) -> bool) {
    eventually_async(HANGS, what, || is(leases.nodes()[at].state())).await;
}

/// The number of events of this name with this address, whose port is this test's own.
fn count(log: EventLog, name: &str, address: &str) -> usize {
    let is_one = |line: &String| line.split(' ').nth(1) == Some(name) && line.contains(address);
    log.lines().into_iter().filter(is_one).count()
}

/// Waits for the event, which is emitted on its own thread after the state has changed.
async fn told_once(log: EventLog, name: &str, address: &str) {
    eventually_async(HANGS, &format!("{name} is told"), || count(log, name, address) > 0).await;
    assert_eq!(count(log, name, address), 1, "{name} of {address}");
}

#[tokio::test]
async fn the_urls_are_checked_before_anything_is_sent() {
    let urls = |count: usize| (0..count).map(|node| format!("redis://node-{node}.invalid")).collect::<Vec<_>>();
    for count in [0, 1, 2, 4, 10, 11] {
        turned_down(builder(urls(count)), config, &["quorum", "3, 5, 7 or 9", &count.to_string()]).await;
    }
    let mut twice = urls(5);
    twice[3] = format!("redis://user:{SECRET}@node-1.invalid:6379/2");
    turned_down(builder(twice), config, &["quorum[1] and quorum[3]", "node-1.invalid:6379"]).await;
    for (scheme, service) in [("redis-cluster", ""), ("redis-sentinel", "/locks")] {
        let mut several = urls(3);
        several[2] = format!("{scheme}://user:{SECRET}@node-2.invalid{service}");
        turned_down(builder(several), config, &["quorum[2]", scheme, "stand-alone"]).await;
    }
    let mut mixed = urls(3);
    mixed[1] = "memory://".into();
    turned_down(builder(mixed), config, &["quorum[1]", "memory://", "no other process"]).await;
    let both = builder(urls(3)).url("redis://node-0.invalid");
    turned_down(both, config, &["and quorum are both set"]).await;
    turned_down(builder(urls(3)).fair(true), unsupported, &["fair", "one server"]).await;
    let (ttl, delay) = (Duration::from_millis(2_001), Duration::from_secs(3));
    turned_down(builder(urls(3)).ttl(ttl).restart_delay(delay), config, &["ttl", "restart_delay", "3s"]).await;
    turned_down(builder(urls(3)).ttl(31 * SECOND), config, &["ttl", "restart_delay", "31s"]).await;
}

#[tokio::test]
async fn a_lock_is_refused_what_a_quorum_cannot_do() {
    let nodes = Nodes::seasoned(3);
    let leases = build(nodes.urls()).await;
    let long = leases.lock(NAME).ttl(31 * SECOND);
    for (lock, words) in [(leases.lock(NAME).fair(true), ["fair", "one server"]), (long, ["ttl", "restart_delay"])] {
        match lock.try_acquire().await {
            Err(Error::Config(error) | Error::Unsupported(error)) => names(&error.to_string(), &words),
            other => panic!("it should be refused, and is {other:?}"),
        }
    }
    assert_eq!(nodes.with_key(NAME), Vec::<usize>::new());
}

#[tokio::test]
async fn one_server_under_two_addresses_is_turned_down() {
    let nodes = Nodes::seasoned(2);
    let mut urls = nodes.urls();
    urls.push(format!("redis://localhost:{}", nodes[0].port()));
    let port = nodes[0].port().to_string();
    turned_down(builder(urls), config, &["quorum[", "the same server as", "localhost", "127.0.0.1", &port]).await;
}

#[tokio::test]
async fn a_server_of_a_cluster_is_turned_down() {
    let nodes = Nodes::seasoned(2);
    // Set explicitly: by default the server would use a port that may be invalid.
    let bus = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port().to_string();
    let cluster = Server::builder().arg("--cluster-enabled", "yes").arg("--cluster-port", &bus).start();
    let mut urls = nodes.urls();
    urls.push(cluster.url());
    let address = format!("127.0.0.1:{}", cluster.port());
    turned_down(builder(urls), config, &["quorum[2]", &address, "part of a cluster", "stand-alone"]).await;
}

#[test]
fn a_majority_is_enough_and_the_others_join_when_they_come() {
    alone(|| {
        two_workers().block_on(async {
            let log = EventLog::start();
            let (nodes, lag) = (Nodes::seasoned(3), Lag::start());
            nodes[1].kill();
            let started = Instant::now();
            let leases = build(nodes.urls()).await;
            let took = started.elapsed();
            // Some round trips are needed before there is a majority.
            assert!(took <= GRACE + PROMPT + lag.of(6), "build took {took:?}");
            assert!(matches!(state(&leases, 1), NodeState::Unreachable(_)), "{:?}", leases.nodes());
            let lease = leases.lock(NAME).acquire().await.expect("two of three are there");
            assert_eq!([state(&leases, 0), state(&leases, 2)], [NodeState::Up, NodeState::Up]);

            // Longer than any single try to connect takes.
            tokio::time::sleep(CONNECT + PROMPT).await;
            nodes[1].restart();
            nodes.clock(1).forward(AGE);
            let address = format!("127.0.0.1:{}", nodes[1].port());
            eventually_is(&leases, 1, "it joins", |state| *state == NodeState::Up).await;
            assert_eq!(leases.nodes()[1].address(), address);
            let token = nodes[0].wire().token(NAME);
            eventually_async(HANGS, "it is repaired", || nodes[1].wire().token(NAME) == token).await;
            let told = || count(log, "node", &address) >= 2;
            eventually_async(HANGS, "both that it is missed and that it has come are told", told).await;
            assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
        });
    });
}

#[test]
fn a_node_that_turns_out_to_be_another_one_has_no_vote() {
    alone(|| {
        two_workers().block_on(async {
            let log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let proxy = Proxy::to(&nodes[2]);
            proxy.refuse(true);
            let mut urls = nodes.urls();
            urls[2] = proxy.url();
            // Only the node that is stopped below costs this once; the others have it for their answers.
            let leases = within(HANGS, "build", builder(urls).command_timeout(SECOND).build())
                .await
                .expect("a majority is there");
            let address = format!("127.0.0.1:{}", proxy.port());
            proxy.turn_to(nodes[0].port());
            proxy.refuse(false);
            let other = format!("127.0.0.1:{}", nodes[0].port());
            eventually_is(&leases, 2, "it is found out", |state| *state == NodeState::SameServer(other.clone())).await;
            told_once(log, "same_server", &address).await;

            nodes[1].stop();
            match leases.lock(NAME).try_acquire().await {
                Err(Error::Unavailable(error)) => {
                    let votes = error.votes().expect("it says what each node said");
                    assert_eq!(votes.granted(), 1, "{error}");
                    let NodeAnswer::Unreachable(why) = votes.nodes()[2].answer() else { panic!("{error}") };
                    names(why, &["the same server as", &other]);
                }
                other => panic!("there is only one server, and it returned {other:?}"),
            }
            nodes[1].cont();

            // Once corrected, it is a node like the others.
            proxy.turn_to(nodes[2].port());
            proxy.cut();
            eventually_is(&leases, 2, "it joins", |state| *state == NodeState::Up).await;
            let lease = leases.lock(NAME).acquire().await.expect("all are there");
            eventually_async(HANGS, "it has a vote", || nodes.with_key(NAME) == [0, 1, 2]).await;
            assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
        });
    });
}

#[test]
fn a_node_that_becomes_another_one_loses_its_vote() {
    alone(|| {
        two_workers().block_on(async {
            let log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let proxy = Proxy::to(&nodes[2]);
            let mut urls = nodes.urls();
            urls[2] = proxy.url();
            let leases = build(urls).await;
            assert_eq!(
                leases.lock(NAME).acquire().await.expect("all are there").release().await,
                Ok(leasehold::Released::Confirmed),
                "it was ours"
            );
            // Answers to earlier requests no longer count once it answers later ones.
            eventually_async(HANGS, "its vote is heard", || leases.nodes()[2].clock_offset_micros().is_some()).await;
            proxy.turn_to(nodes[0].port());
            proxy.cut();
            nodes[1].stop();
            let other = format!("127.0.0.1:{}", nodes[0].port());
            let found_out = |state: &NodeState| *state == NodeState::SameServer(other.clone());
            let started = Instant::now();
            while !found_out(&state(&leases, 2)) {
                assert!(started.elapsed() < HANGS, "{:?}", leases.nodes());
                let outcome = leases.lock(NAME).try_acquire().await;
                assert!(matches!(outcome, Err(Error::Unavailable(_))), "one server gave two votes: {outcome:?}");
            }
            told_once(log, "same_server", &format!("127.0.0.1:{}", proxy.port())).await;
            nodes[1].cont();
            // Nobody asks for a lock, and its connections to the wrong server are not cut.
            proxy.turn_to(nodes[2].port());
            eventually_is(&leases, 2, "it has its vote", |state| *state == NodeState::Up).await;
        });
    });
}

/// Its renewals do not count either, though no lock is asked for that would show which server it is.
#[test]
fn a_node_that_becomes_another_one_renews_nothing() {
    alone(|| {
        two_workers().block_on(async {
            let _log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let [second, last] = [1, 2].map(|at| Proxy::to(&nodes[at]));
            let leases = build(vec![nodes[0].url(), second.url(), last.url()]).await;
            let began = Instant::now();
            let lease = leases.lock(NAME).ttl(2 * SECOND).acquire().await.expect("all are there");
            // It was renewed once, to have its key tracked. From here on a renewal can be told from none.
            tokio::time::sleep(SECOND / 2).await;
            // One server is left, under two addresses.
            second.turn_to(nodes[0].port());
            last.freeze(true);
            let ends = began.elapsed() + lease.remaining();
            second.cut();
            ends_unrenewed(&lease, ends).await;
        });
    });
}

/// Nor do those of a node whose new connections do not show which server they lead to.
#[test]
fn a_node_that_hides_which_server_it_is_renews_nothing() {
    alone(|| {
        two_workers().block_on(async {
            let _log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let [second, last] = [1, 2].map(|at| Proxy::to(&nodes[at]));
            let urls = [nodes[0].url(), second.url(), last.url()];
            let leases = within(HANGS, "build", builder(urls).restart_delay(Duration::ZERO).build()).await;
            let began = Instant::now();
            let lock = leases.expect("all are there").lock(NAME);
            let lease = lock.ttl(2 * SECOND).acquire().await.expect("all are there");
            // It was renewed once, to have its key tracked. From here on a renewal can be told from none.
            tokio::time::sleep(SECOND / 2).await;
            nodes[0].wire().must(&["ACL", "SETUSER", "default", "-info"]);
            second.turn_to(nodes[0].port());
            last.freeze(true);
            second.forget();
            let ends = began.elapsed() + lease.remaining();
            second.cut();
            ends_unrenewed(&lease, ends).await;
            assert!(second.count(Match::script(RENEW)) > 0, "it was asked: the premise");
        });
    });
}

/// A node leads to another one's server when the program starts, while that one is away, and then to its own. Its old
/// connections are cut, or live on.
async fn a_wrong_address_is_corrected(are_cut: bool) {
    let _log = EventLog::start();
    let nodes = Nodes::seasoned(3);
    let proxies = nodes.proxies();
    let (first, second) = (&proxies[0], &proxies[1]);
    first.turn_to(nodes[1].port());
    second.refuse(true);
    let urls = proxies.iter().map(Proxy::url);
    // The address is not checked of its own accord.
    let builder = builder(urls).restart_delay(Duration::ZERO).check_address_every(Duration::ZERO);
    let leases = within(HANGS, "build", builder.build()).await.expect("a majority is there");
    first.turn_to(nodes[0].port());
    if are_cut {
        first.cut();
        eventually_async(HANGS, "new connections", || first.connections() > 0).await;
    }
    second.refuse(false);
    eventually_async(HANGS, "each has its vote", || (0..3).all(|at| state(&leases, at) == NodeState::Up)).await;
    let lease = leases.lock(NAME).acquire().await.expect("all are there");
    eventually_async(HANGS, "each has voted", || nodes.with_key(NAME) == [0, 1, 2]).await;
    assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
}

#[test]
fn a_node_that_led_to_another_one_for_a_moment_does_not_keep_it_out() {
    alone(|| two_workers().block_on(a_wrong_address_is_corrected(true)));
}

#[test]
fn a_connection_that_still_leads_to_another_node_does_not_keep_it_out() {
    alone(|| two_workers().block_on(a_wrong_address_is_corrected(false)));
}

/// Which is no refusal of their keys: they are renewed together again as soon as it has its vote back.
#[test]
fn a_node_without_a_vote_does_not_take_batches_apart() {
    const MANY: usize = 40;
    alone(|| {
        two_workers().block_on(async {
            let _log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let proxy = Proxy::to(&nodes[2]);
            let leases = build(vec![nodes[0].url(), nodes[1].url(), proxy.url()]).await;
            let mut held = Vec::new();
            for number in 0..MANY {
                held.push(leases.lock(format!("app:{number}")).ttl(3 * SECOND).acquire().await.expect("all are there"));
            }
            proxy.turn_to(nodes[0].port());
            proxy.cut();
            let other = format!("127.0.0.1:{}", nodes[0].port());
            eventually_is(&leases, 2, "it is found out", |state| *state == NodeState::SameServer(other.clone())).await;
            let rounds = async |what, count| {
                let before = nodes[1].wire().scripts();
                eventually_async(HANGS, what, || nodes[1].wire().scripts() >= before + count).await;
            };
            rounds("renewals without its vote", 2).await;
            proxy.turn_to(nodes[2].port());
            proxy.cut();
            proxy.forget();
            eventually_is(&leases, 2, "it has its vote", |state| *state == NodeState::Up).await;
            rounds("renewals with its vote", 3).await;
            let renewed = proxy.count(Match::script(RENEW));
            assert!(renewed > 0 && renewed < MANY, "{renewed} batches for {MANY} leases");
            assert!(held.iter().all(Lease::is_held));
        });
    });
}

/// Nor does a repair, which is ordered while there is no connection, and sent on the next.
#[test]
fn a_node_that_becomes_another_one_repairs_nothing() {
    alone(|| {
        two_workers().block_on(async {
            let _log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let ([first, second, last], leases) = behind_proxies(&nodes).await;
            let began = Instant::now();
            let lease = leases.lock(NAME).ttl(6 * SECOND).acquire().await.expect("all are there");
            // It was renewed once, to have its key tracked.
            tokio::time::sleep(SECOND).await;
            for slow in [&first, &last] {
                slow.delay(SECOND / 4);
            }
            let denied = nodes[1].wire().scripts();
            assert!(nodes[1].wire().del(NAME));
            eventually_async(HANGS, "a renewal that finds nothing", || nodes[1].wire().scripts() > denied).await;
            second.turn_to(nodes[0].port());
            second.refuse(true);
            second.cut();
            // The others confirm the round, so a repair is ordered, which waits for a connection.
            let before = lease.remaining();
            eventually_async(HANGS, "the confirmation", || lease.remaining() > before).await;
            let ends = began.elapsed() + lease.remaining();
            last.freeze(true);
            second.refuse(false);
            ends_unrenewed(&lease, ends).await;
        });
    });
}

/// Nor does a renewal on a connection that has led elsewhere from the beginning, beside one that has not.
#[test]
fn a_first_connection_to_another_node_renews_nothing() {
    alone(|| {
        two_workers().block_on(async {
            let _log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let [second, last] = [1, 2].map(|at| Proxy::to(&nodes[at]));
            // The program's own connection; then that of renewals, however often it is made again.
            let mut leads_to = [nodes[0].port(); 1_000];
            leads_to[0] = nodes[1].port();
            second.turn_among(&leads_to);
            let leases = build(vec![nodes[0].url(), second.url(), last.url()]).await;
            let began = Instant::now();
            let lease = leases.lock(NAME).ttl(2 * SECOND).acquire().await.expect("all are there");
            eventually_async(HANGS, "each has its vote", || nodes.with_key(NAME) == [0, 1, 2]).await;
            last.freeze(true);
            let ends = began.elapsed() + lease.remaining();
            ends_unrenewed(&lease, ends).await;
        });
    });
}

/// Two addresses are exchanged during an acquire. The server that has voted under the first votes under the second.
#[test]
fn a_server_that_becomes_another_node_gives_no_second_vote() {
    alone(|| {
        two_workers().block_on(async {
            let _log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let ([first, second, last], leases) = behind_proxies(&nodes).await;
            for away in [&second, &last] {
                away.refuse(true);
                away.cut();
            }
            let acquire = leases.lock(NAME).acquire_within(2 * SECOND);
            let acquiring = tokio::spawn(acquire.into_future());
            eventually_async(HANGS, "its vote", || nodes.with_key(NAME) == [0]).await;
            first.turn_to(nodes[1].port());
            first.cut();
            eventually_async(HANGS, "new connections", || first.connections() >= 2).await;
            // The first shows by this that it is another server now.
            let another = tokio::spawn(leases.lock("app:another").try_acquire().into_future());
            let other = format!("127.0.0.1:{}", second.port());
            eventually_is(&leases, 0, "it is found out", |state| *state == NodeState::SameServer(other.clone())).await;
            second.turn_to(nodes[0].port());
            second.refuse(false);
            let outcomes = [acquiring.await.unwrap().map(Some), another.await.unwrap()];
            assert!(outcomes.iter().all(Result::is_err), "one server gave two votes: {outcomes:?}");
        });
    });
}

/// Nor does a node count for a fence that is raised on another one.
#[test]
fn a_node_that_becomes_another_one_raises_no_fence() {
    alone(|| {
        two_workers().block_on(async {
            let _log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let ([first, second, last], leases) = behind_proxies(&nodes).await;
            last.refuse(true);
            last.cut();
            // Its vote has the larger fence, so the first's is raised.
            nodes.clock(1).forward(60 * SECOND);
            let vote = second.on(Match::script(ACQUIRE), 1, Action::HoldReply);
            let acquire = leases.lock(NAME).acquire_within(2 * SECOND);
            let acquiring = tokio::spawn(acquire.into_future());
            eventually_async(HANGS, "both votes", || nodes.with_key(NAME) == [0, 1]).await;
            first.turn_to(nodes[1].port());
            first.cut();
            eventually_async(HANGS, "new connections", || first.connections() >= 2).await;
            vote.release();
            let outcome = acquiring.await.unwrap();
            assert!(first.count(Match::script(RAISE)) > 0, "the premise");
            assert!(outcome.is_err(), "the first's floor was not raised: {outcome:?}");
        });
    });
}

/// The vote does not count, but it leaves a key. The address under which that server does vote cannot be reached.
#[test]
fn a_vote_of_a_server_that_has_one_already_is_undone() {
    alone(|| {
        two_workers().block_on(async {
            let _log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let [first, last] = [0, 2].map(|at| Proxy::to(&nodes[at]));
            let leases = build(vec![first.url(), nodes[1].url(), last.url()]).await;
            assert_eq!(
                leases.lock(NAME).acquire().await.expect("all are there").release().await,
                Ok(leasehold::Released::Confirmed),
                "it was ours"
            );
            // Answers to earlier requests no longer count once it answers later ones.
            eventually_async(HANGS, "its vote is heard", || leases.nodes()[2].clock_offset_micros().is_some()).await;
            eventually_async(HANGS, "the lock is free", || nodes.with_key(NAME).is_empty()).await;
            last.turn_to(nodes[0].port());
            first.refuse(true);
            first.cut();
            last.cut();
            let other = format!("127.0.0.1:{}", first.port());
            let started = Instant::now();
            while state(&leases, 2) != NodeState::SameServer(other.clone()) {
                assert!(started.elapsed() < HANGS, "{:?}", leases.nodes());
                let outcome = leases.lock(NAME).try_acquire().await;
                assert!(matches!(outcome, Err(Error::Unavailable(_))), "one of three is a majority: {outcome:?}");
            }
            let granted = nodes[0].wire().info_field("commandstats", "cmdstat_set");
            assert!(granted.is_some(), "the premise");
            // Long before the TTL has passed.
            eventually_async(HANGS, "what it granted is undone", || nodes.with_key(NAME).is_empty()).await;
        });
    });
}

/// The url of a user whose password on the server is another.
fn guessing(node: &Server) -> String {
    node.wire().must(&["ACL", "SETUSER", "worker", "on", ">another", "~*", "+@all"]);
    format!("redis://worker:{SECRET}@127.0.0.1:{}", node.port())
}

#[test]
fn f22_a_wrong_password_on_one_node_is_told_by_its_state() {
    alone(|| {
        two_workers().block_on(async {
            let log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let mut urls = nodes.urls();
            urls[0] = guessing(&nodes[0]);
            let leases = build(urls).await;
            match state(&leases, 0) {
                NodeState::Refused(text) => names(&text, &["WRONGPASS", "check the user and password"]),
                other => panic!("it refused us, and is {other:?}"),
            }
            assert_eq!(
                leases.lock(NAME).acquire().await.expect("two are there").release().await,
                Ok(leasehold::Released::Confirmed),
                "it was ours"
            );
            names(&format!("{leases:?} {:?}", leases.nodes()), &[]);
            // Once it accepts the password, it takes part.
            nodes[0].wire().must(&["ACL", "SETUSER", "worker", &format!(">{SECRET}")]);
            eventually_is(&leases, 0, "it joins", |state| *state == NodeState::Up).await;
            let lines = log.lines().join("\n");
            names(&lines, &["WRONGPASS"]);
        });
    });
}

#[tokio::test]
async fn f22_a_wrong_password_on_a_majority_is_refused() {
    let nodes = Nodes::seasoned(3);
    let mut urls = nodes.urls();
    (0..2).for_each(|at| urls[at] = guessing(&nodes[at]));
    let error = turned_down(builder(urls), refused, &["WRONGPASS", "1 of 3 nodes", "2 are needed"]).await;
    let answers: Vec<&NodeAnswer> = error.votes().unwrap().nodes().iter().map(leasehold::Vote::answer).collect();
    let [NodeAnswer::Refused(_), NodeAnswer::Refused(_), NodeAnswer::Granted] = answers[..] else { panic!("{error}") };
}

#[tokio::test]
async fn a_majority_that_is_not_there_is_unavailable_after_the_connect_timeout() {
    let (nodes, lag) = (Nodes::seasoned(3), Lag::start());
    nodes[0].kill();
    nodes[2].stop();
    let started = Instant::now();
    let error = turned_down(builder(nodes.urls()), unavailable, &["1 of 3 nodes", "cannot reach"]).await;
    let took = started.elapsed();
    assert!(took <= CONNECT + PROMPT + lag.worst(), "build took {took:?}");
    assert_eq!(error.votes().map(leasehold::Votes::granted), Some(1));
    nodes[2].cont();
}

/// A lease ends when it would without any renewal from here on.
async fn ends_unrenewed(lease: &Lease, ends: Duration) {
    let lost = within(HANGS, "the loss", lease.lost()).await;
    assert_eq!(lost.reason(), LossReason::NoQuorum);
    assert!(lost.held_for() <= ends, "it was renewed: {:?} instead of {ends:?}", lost.held_for());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_tell_how_each_is() {
    const DELAY: Duration = Duration::from_secs(3);
    let (nodes, lag) = (Nodes::seasoned(3), Lag::start());
    let builder = builder(nodes.urls()).ttl(2 * SECOND).restart_delay(DELAY);
    let leases = within(HANGS, "build", builder.build()).await.expect("all are there");
    let lease = leases.lock(NAME).acquire().await.expect("all are there");
    let ahead = i64::try_from(AGE.as_micros()).unwrap();
    for (at, node) in nodes.iter().enumerate() {
        // A majority is enough for the lease, and the third vote arrives a moment later.
        eventually_async(HANGS, "it has voted", || leases.nodes()[at].clock_offset_micros().is_some()).await;
        let status = leases.nodes()[at].clone();
        assert_eq!(*status.state(), NodeState::Up);
        assert_eq!(status.address(), format!("127.0.0.1:{}", node.port()));
        assert!(status.last_answer().is_some_and(|ago| ago < SECOND), "{status:?}");
        let offset = status.clock_offset_micros().expect("it has voted");
        let most = Duration::from_millis(100) + lag.worst();
        assert!(u128::from((offset - ahead).unsigned_abs()) < most.as_micros(), "{offset} µs for {AGE:?}");
    }
    nodes[0].kill();
    let unreachable = |state: &NodeState| matches!(state, NodeState::Unreachable(reason) if !reason.is_empty());
    eventually_is(&leases, 0, "it is missed", unreachable).await;
    nodes[0].restart();
    let is_recovering = |state: &NodeState| matches!(state, NodeState::Recovering { remaining } if !remaining.is_zero() && *remaining <= DELAY);
    eventually_is(&leases, 0, "it is back", is_recovering).await;
    eventually_is(&leases, 0, "it may vote", |state| *state == NodeState::Up).await;
    eventually_async(HANGS, "it is repaired", || nodes.with_key(NAME) == [0, 1, 2]).await;
    assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
}

#[test]
fn differing_clocks_are_reported_once() {
    alone(|| {
        two_workers().block_on(async {
            let log = EventLog::start();
            let nodes = Nodes::seasoned(3);
            let leases = build(nodes.urls()).await;
            let address = format!("127.0.0.1:{}", nodes[1].port());
            let look = async || {
                let lease = leases.lock(NAME).acquire().await.expect("all are there");
                eventually_async(HANGS, "all have voted", || nodes.with_key(NAME).len() == 3).await;
                assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
                // The clocks are compared once a second.
                tokio::time::sleep(SECOND + PROMPT).await;
                assert_eq!(
                    leases.lock(NAME).acquire().await.expect("all are there").release().await,
                    Ok(leasehold::Released::Confirmed),
                    "it was ours"
                );
                count(log, "clocks", &address)
            };
            // Leases of 30 s allow for 302 ms.
            nodes.clock(1).forward(Duration::from_millis(150));
            assert_eq!(look().await, 0, "they differ by less than leases allow for");
            // Far enough to be certain, however long this machine delays an answer.
            nodes.clock(1).forward(5 * SECOND);
            assert_eq!(look().await, 1);
            assert_eq!(look().await, 1, "it is no news");
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_that_was_just_started_votes_after_the_restart_delay() {
    const DELAY: Duration = Duration::from_secs(3);
    let before = Instant::now();
    let (nodes, lag) = (Nodes::start(3), Lag::start());
    let up = Instant::now();
    let builder = builder(nodes.urls()).ttl(SECOND).restart_delay(DELAY);
    let leases = within(HANGS, "build", builder.build()).await.expect("all are there");
    match leases.lock(NAME).try_acquire().await {
        Err(Error::Unavailable(error)) => {
            let votes = error.votes().expect("it says what each node said");
            let is_recovering =
                |answer: &NodeAnswer| matches!(answer, NodeAnswer::Recovering { remaining } if *remaining <= DELAY);
            // The third may not have been waited for.
            assert!(votes.nodes().iter().filter(|vote| is_recovering(vote.answer())).count() >= 2, "{error}");
            names(&error.to_string(), &["0 of 3 nodes", "is recovering", "restart_delay"]);
        }
        other => panic!("all may have forgotten, and it returned {other:?}"),
    }
    let lease = within(HANGS, "they vote", leases.lock(NAME).acquire()).await.expect("it waits for them");
    assert!(before.elapsed() + SECOND >= DELAY, "they voted after {:?}", before.elapsed());
    assert!(up.elapsed() <= DELAY + SECOND + PROMPT + lag.worst(), "they voted after {:?} only", up.elapsed());
    assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
}

/// The least rights on one server, as listed in docs/operations.md.
const LEAST_ACL: &str = "resetchannels ~app:* ~{app:* -@all +eval +evalsha +get +getrange +mget +exists +set +del +pexpire \
                         +pttl +time";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_a_quorum_needs_the_right_to_info() {
    let nodes = Nodes::seasoned(3);
    let allow = |rights: &str| {
        for node in nodes.iter() {
            let password = format!(">{SECRET}");
            let mut command = vec!["ACL", "SETUSER", "worker", "reset", "on", &password];
            command.extend(LEAST_ACL.split_whitespace().chain(rights.split_whitespace()));
            node.wire().must(&command);
        }
    };
    let url = |proxy: &Proxy| format!("redis://worker:{SECRET}@127.0.0.1:{}", proxy.port());
    allow("");
    let proxies = nodes.proxies();
    let refused = match builder(proxies.iter().map(url)).build().await {
        Err(error) => error,
        Ok(leases) => match leases.lock(NAME).try_acquire().await {
            Err(error @ Error::Refused(_)) => error,
            other => panic!("no server may report its uptime, and it returned {other:?}"),
        },
    };
    assert!(matches!(refused, Error::Refused(_)));
    names(&refused.to_string(), &["INFO", "how long this server has been up", "give the user the rights"]);

    allow("+info");
    let leases = builder(proxies.iter().map(url)).build().await.expect("all are there");
    // Far enough that two clocks have passed the proposed fence, and no two issue the same.
    nodes.clock(1).forward(SECOND);
    nodes.clock(2).forward(2 * SECOND);
    let raises: Vec<_> = proxies.iter().map(|proxy| proxy.on(Match::script(RAISE), 1, Action::HoldReply)).collect();
    raises.iter().for_each(support::RuleHandle::release);
    let lease = leases.lock(NAME).acquire().await.expect("that is all it takes");
    // If the third node replaces the one being raised, the lease does not wait for the raise.
    let raised = || raises.iter().any(|raise| raise.hits() > 0);
    eventually_async(HANGS, "the clocks differ, so something is raised", raised).await;
    nodes.all_have(NAME).await;
    assert!(nodes[0].wire().del(NAME));
    lease.renew().await.expect("two of three hold it");
    eventually_async(HANGS, "it is repaired", || nodes.with_key(NAME) == [0, 1, 2]).await;
    assert!(proxies[0].count(Match::script(REPAIR)) > 0);
    assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed), "it was ours");
}
