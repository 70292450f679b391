//! Which nodes may vote, and what happens to votes: a node that forgot (F40), grants that arrive too late (F41), and
//! split votes (F42).

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, LossReason, NodeAnswer, NodeState, NodeStatus, Status};
use support::{
    Action, HANGS, Lag, Match, Nodes, RuleHandle, Value, Wire, eventually_async, eventually_but_for,
    scripts::{ACQUIRE, COMBINED, RAISE, RELEASE, RENEW, REPAIR},
    seen, sha1_hex, urls, within,
};
use tokio::{
    sync::Barrier,
    task::{JoinSet, spawn_blocking},
};

use crate::common::{COMMAND, Calm, Confirmed as _, FENCE, LONG, NAME};

/// A TTL for leases that expire during their test.
const TTL: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_secs(3);
/// The longest time until a returned node is noticed, as in `quorum/faults.rs`.
const NOTICED: Duration = Duration::from_millis(2 * (300 + 250 + 500));
/// The longest pause between two checks.
const LOOK: Duration = Duration::from_secs(1);
/// A server's uptime is in whole seconds, and up to one second too long.
const SECOND: Duration = Duration::from_secs(1);

fn builder(urls: Vec<String>) -> Builder {
    Client::builder().quorum(urls).command_timeout(COMMAND)
}

/// A client of servers that are restarted.
async fn client(urls: Vec<String>) -> Client {
    builder(urls).restart_delay(DELAY).ttl(TTL).build().await.expect("the servers are there")
}

fn servers(count: usize) -> Nodes {
    let nodes = Nodes::seasoned(count);
    nodes.know(&[ACQUIRE, RAISE, REPAIR, RENEW, RELEASE]);
    nodes
}

/// Kills a server, and starts it again without its data. Returns a moment before it was up.
fn forget(nodes: &Nodes, at: usize) -> Instant {
    nodes[at].kill();
    let killed = Instant::now();
    nodes[at].restart();
    killed
}

fn uptime(wire: &mut Wire) -> Duration {
    let seconds = wire.info_field("server", "uptime_in_seconds").expect("it says so");
    Duration::from_secs(seconds.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_a_node_restarted_empty_is_repaired_and_votes_after_the_restart_delay() {
    // The longest that the delay allows: half of it without a confirmation would be a risk.
    const TTL: Duration = Duration::from_secs(2);
    let (nodes, lag) = (servers(3), Lag::start());
    let lease = client(nodes.urls()).await.lock(NAME).ttl(TTL).acquire().await.expect("it is free");
    let (fence, calm) = (lease.fence().to_string(), Calm::of(&lease));
    nodes.all_have(NAME).await;
    let token = nodes[2].wire().token(NAME).expect("the lease's token");
    let rival = client(nodes.urls()).await;

    let down = forget(&nodes, 0);
    let up = Instant::now();
    let mut wire = nodes[0].wire();
    // A late repair that arrives now, from any sender.
    let late = wire.must(&["EVAL", REPAIR, "2", NAME, FENCE, &token, "1000", &fence, "0", "3"]);
    assert_eq!(late.array()[0].int(), 2, "{late:?}");
    assert!((2..=3).contains(&late.array()[1].int()), "{late:?}");
    let mut denied = 0;
    loop {
        match rival.lock(NAME).try_acquire().await {
            Ok(None) => denied += 1,
            // On a busy machine a node may answer too late.
            Err(Error::Unavailable(_)) => {}
            asked => panic!("one of three forgot, and the lock is free: {asked:?}"),
        }
        let held = wire.get(NAME);
        if uptime(&mut wire) >= DELAY {
            // From now on the node votes, and its grants are undone.
            break;
        }
        assert_eq!(held, None, "it has a vote, or is repaired");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(denied > 0, "the holder was never seen");
    assert!(down.elapsed() + SECOND >= DELAY, "its uptime is too long by more than a second");
    let left = (DELAY + SECOND + TTL / 3 + NOTICED).saturating_sub(up.elapsed());
    eventually_but_for(&lag, left, "it is repaired", || wire.token(NAME).as_ref() == Some(&token)).await;
    assert!(wire.get(FENCE) >= Some(fence), "the floor comes with the key");
    calm.lasted(&lag);

    nodes[1].stop();
    lease.release().await.expect("two of three held it").confirmed();
    let lease = within(HANGS, "two of three grant it", rival.lock(NAME).acquire()).await.expect("they are there");
    assert!(wire.token(NAME).is_some_and(|other| other != token), "it votes again");
    lease.release().await.expect("it was ours").confirmed();
    nodes[1].cont();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_a_node_restarted_empty_is_not_asked_to_bring_a_key_back_before_it_votes() {
    const LATER: Duration = Duration::from_secs(6);
    let nodes = servers(3);
    let proxies = nodes.proxies();
    let leases = within(HANGS, "build", builder(urls(&proxies)).restart_delay(LATER).ttl(TTL).build()).await;
    let lease = leases.expect("the servers are there").lock(NAME).acquire().await.expect("it is free");
    forget(&nodes, 0);
    let asked = |script| proxies[0].count(Match::script(script));
    let before = asked(RENEW);
    eventually_async(HANGS, "it denies renewals", || asked(RENEW) >= before + 10).await;
    let repairs = asked(REPAIR);
    assert!(uptime(&mut nodes[0].wire()) < LATER, "it may vote by now");
    // The first answer names the time left. The server does not know the script, so that is two commands. One answered
    // too late, on a stalled machine, is followed by another.
    assert!((1..=4).contains(&repairs), "{repairs}");
    lease.release().await.expect("two of three held it").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_a_node_restarted_empty_makes_no_second_majority() {
    let nodes = servers(5);
    let proxies = nodes.proxies();
    let leases = client(urls(&proxies)).await;
    // The holder has three of five, and all nodes are available to other clients.
    proxies[3..].iter().for_each(|proxy| proxy.black_hole(true));
    let lease = within(HANGS, "three are enough", leases.lock(NAME).acquire()).await.expect("they are there");
    let rival = client(nodes.urls()).await;
    assert!(matches!(rival.lock(NAME).try_acquire().await, Ok(None)), "three hold it");

    let handle = lease.handle();
    let believed = spawn_blocking(move || {
        let mut last_ok = Instant::now();
        while let (asked, Ok(())) = (Instant::now(), handle.check()) {
            last_ok = asked;
            thread::sleep(Duration::from_millis(1));
        }
        last_ok
    });
    forget(&nodes, 2);
    // By number, three of five would grant it now: the one that forgot, and two that never had it.
    let acquired = tokio::spawn(async move { (rival.lock(NAME).acquire().await, Instant::now()) });
    let last_ok = within(HANGS, "the lease ends", believed).await.expect("it does not panic");
    let (successor, acquired) = within(HANGS, "it is free", acquired).await.expect("it does not panic");
    let successor = successor.expect("three are there");
    assert!(acquired > last_ok, "two held the lock at the same time");
    match lease.status() {
        Status::Lost(lost) => assert_eq!(lost.reason(), LossReason::NoQuorum),
        other => panic!("two of five are left of it, and it is {other:?}"),
    }
    assert!(successor.fence() > lease.fence());
    successor.release().await.expect("it was held to the end").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_an_acquire_that_fails_for_nodes_that_forgot_says_so() {
    let (nodes, lag) = (servers(3), Lag::start());
    let leases = client(nodes.urls()).await;
    let mut wire = nodes[2].wire();
    wire.set(NAME, "somebody else's");
    let down = forget(&nodes, 0);
    forget(&nodes, 1);
    let up = Instant::now();

    let error = loop {
        match leases.lock(NAME).try_acquire().await {
            Err(Error::Unavailable(error)) => {
                let recovering = |answer: &NodeAnswer| matches!(answer, NodeAnswer::Recovering { .. });
                let votes = error.votes().expect("it says what each node said");
                // The connections may still be opening.
                if votes.nodes()[..2].iter().all(|vote| recovering(vote.answer())) {
                    break error;
                }
                assert!(up.elapsed() < NOTICED + lag.worst(), "{error}");
            }
            other => panic!("two of three forgot, and it returned {other:?}"),
        }
    };
    let votes = error.votes().expect("it says what each node said");
    assert_eq!((votes.granted(), votes.needed(), votes.nodes().len()), (0, 2, 3));
    for (at, vote) in votes.nodes().iter().enumerate() {
        assert_eq!(vote.address(), format!("127.0.0.1:{}", nodes[at].port()));
    }
    let most = DELAY.saturating_sub(Duration::from_secs(up.elapsed().as_secs()));
    for vote in &votes.nodes()[..2] {
        match vote.answer() {
            NodeAnswer::Recovering { remaining } => {
                assert!(!remaining.is_zero() && *remaining <= most, "{remaining:?}");
            }
            other => panic!("it is recovering, and said {other:?}"),
        }
    }
    assert!(matches!(votes.nodes()[2].answer(), NodeAnswer::HeldBy(_)), "{votes}");
    for words in ["0 of 3 nodes agreed, 2 are needed", "is recovering", "restart_delay"] {
        assert!(error.to_string().contains(words), "{words:?} is not in {error}");
    }
    assert!(Error::Unavailable(error).is_transient());

    wire.del(NAME);
    let lease = within(HANGS, "they vote again", leases.lock(NAME).acquire()).await.expect("it waits for them");
    assert!(down.elapsed() + SECOND >= DELAY, "they voted after {:?}", down.elapsed());
    seen::took("votes again after a restart", up.elapsed(), DELAY + LOOK + NOTICED, &lag);
    assert!(up.elapsed() <= DELAY + LOOK + NOTICED + lag.worst(), "they voted after {:?} only", up.elapsed());
    lease.release().await.expect("it was ours").confirmed();
}

/// A quorum whose second and third node are slow to take part.
struct Late {
    leases: Client,
    proxies: Vec<support::Proxy>,
    nodes: Nodes,
}

impl Late {
    async fn start() -> Self {
        let nodes = servers(3);
        let proxies = nodes.proxies();
        let leases = builder(urls(&proxies)).ttl(LONG).build().await.expect("the servers are there");
        Self { leases, proxies, nodes }
    }

    fn each(&self, action: Action) -> Vec<RuleHandle> {
        self.proxies[1..].iter().map(|proxy| proxy.on(Match::script(ACQUIRE), 1, action)).collect()
    }

    /// Waits until each of these nodes has granted the lock once: the floor stays.
    async fn granted(&self, nodes: &[usize]) {
        eventually_async(HANGS, "the late grants", || self.nodes.with_key(FENCE) == nodes).await;
    }

    /// Waits until all grants are undone. They would live for [`LONG`].
    async fn is_undone(&self) {
        eventually_async(HANGS, "all grants are undone", || self.nodes.with_key(NAME).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_grants_that_arrive_after_a_timeout_are_undone() {
    let late = Late::start().await;
    let held = late.each(Action::HoldReply);
    match late.leases.lock(NAME).acquire_within(COMMAND).await {
        Err(Error::Unavailable(error)) => {
            assert_eq!(error.votes().map(leasehold::Votes::granted), Some(1), "{error}");
        }
        other => panic!("one of three granted it, and it says {other:?}"),
    }
    late.granted(&[0, 1, 2]).await;
    held.iter().for_each(RuleHandle::release);
    late.is_undone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_grants_over_links_that_are_slower_than_the_timeout_are_undone() {
    let late = Late::start().await;
    late.proxies[1..].iter().for_each(|proxy| proxy.delay(COMMAND));
    match late.leases.lock(NAME).try_acquire().await {
        Err(Error::Unavailable(_)) => {}
        other => panic!("one of three granted it, and it says {other:?}"),
    }
    late.granted(&[0, 1, 2]).await;
    late.proxies[1..].iter().for_each(|proxy| proxy.delay(Duration::ZERO));
    late.is_undone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_requests_that_arrive_after_the_acquire_was_cancelled_are_undone() {
    let late = Late::start().await;
    let held = late.each(Action::Hold);
    let acquire = tokio::spawn(late.leases.lock(NAME).acquire());
    for rule in &held {
        within(HANGS, "the request is held", rule.hit()).await;
    }
    late.granted(&[0]).await;
    acquire.abort();
    assert!(acquire.await.is_err(), "two of three had not heard of it");
    held.iter().for_each(RuleHandle::release);
    late.granted(&[0, 1, 2]).await;
    late.is_undone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_a_grant_that_arrives_after_a_majority_was_busy_is_undone() {
    let late = Late::start().await;
    for node in &late.nodes[..2] {
        node.wire().set(NAME, "somebody else's");
    }
    let held = late.proxies[2].on(Match::script(ACQUIRE), 1, Action::HoldReply);
    let asked = late.leases.lock(NAME).try_acquire().await;
    assert!(matches!(asked, Ok(None)), "two of three hold it: {asked:?}");
    within(HANGS, "the third has granted it", held.hit()).await;
    assert!(late.nodes[2].wire().exists(NAME), "nothing can have undone it");
    held.release();
    eventually_async(HANGS, "the grant is undone", || late.nodes.with_key(NAME) == [0, 1]).await;
}

/// The number of contests for each set-up, and how many of them may take longer than [`ROUNDS`].
const CONTESTS: usize = 100;
const LONGER: usize = 1;
const ROUNDS: usize = 5;

/// Lets several clients compete for one lock at the same moment, many times. Returns how many rounds each contest took:
/// the most attempts that any client began before one had the lock.
///
/// Each client asks the nodes in another order, so that each is the first somewhere.
async fn contests(clients: usize, nodes: usize, away: usize) -> Vec<usize> {
    let nodes = servers(nodes);
    let mut all = Vec::new();
    for client in 0..clients {
        let mut urls = nodes.urls();
        urls.rotate_left(client);
        all.push(builder(urls).label(format!("client-{client}")).build().await.expect("the servers are there"));
    }
    for node in &nodes[nodes.len() - away..] {
        node.kill();
    }
    for client in &all {
        let first = client.lock("first").acquire().await.expect("a majority is there");
        first.release().await.expect("it was ours").confirmed();
        // The first round may wait for the unavailable nodes, but none after it.
        let gone = |status: &NodeStatus| matches!(status.state(), NodeState::Unreachable(_));
        let all_known = || client.nodes().iter().filter(|status| gone(status)).count() == away;
        eventually_async(HANGS, "unavailable nodes are known", all_known).await;
    }
    let mut wires: Vec<_> = nodes[..nodes.len() - away].iter().map(|node| node.wire()).collect();
    for wire in &mut wires {
        wire.must(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        wire.must(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
    }
    let mut rounds = Vec::new();
    for contest in 0..CONTESTS {
        for wire in &mut wires {
            wire.must(&["SLOWLOG", "RESET"]);
        }
        let (name, start) = (format!("contest-{contest}"), Arc::new(Barrier::new(clients)));
        let mut running = JoinSet::new();
        for (client, leases) in all.iter().enumerate() {
            let (acquire, start) = (leases.lock(&name).acquire(), start.clone());
            running.spawn(async move {
                start.wait().await;
                (client, acquire.await)
            });
        }
        let first = within(HANGS, "one of them has the lock", running.join_next()).await.expect("one of them");
        let (winner, lease) = first.expect("it does not panic");
        let holder = all[winner].lock(&name).holder().await.expect("a majority is there").expect("it is held");
        let token = holder.token().expect("one of ours").to_owned();
        let mut taken = None;
        // A node that was late is silent, and then not asked.
        eventually_async(HANGS, "the winner has asked a node", || {
            taken = wires.iter_mut().find_map(|wire| attempts(&wire.must(&["SLOWLOG", "GET", "10000"]), &token));
            taken.is_some()
        })
        .await;
        rounds.extend(taken);
        running.shutdown().await;
        let lease = lease.expect("a majority is there");
        lease.release().await.expect("it was ours").confirmed();
    }
    rounds
}

/// The most attempts by one client that a node had seen before the winning one, itself included.
fn attempts(log: &Value, won: &str) -> Option<usize> {
    // The first time it is sent as text, of which the log has the beginning and the length.
    let is = |script: &str, text: &str| {
        script == sha1_hex(text) || script.ends_with(&format!("({} more bytes)", text.len() - 128))
    };
    // Alone, or in a batch. A released token has its fence behind its identity.
    let tokens = |entry: &Value| {
        let args: Vec<String> = entry.array()[3].array().iter().map(Value::text).collect();
        let asks = args.get(1).is_some_and(|script| is(script, ACQUIRE) || is(script, COMBINED));
        let is_token = |arg: &String| asks && arg.starts_with("lh1:") && arg.get(40..41) == Some("@");
        args.into_iter().filter(is_token).collect::<Vec<_>>()
    };
    let label = |token: String| token.rsplit_once('@').map(|(_, label)| label.to_owned());
    // The log begins with the newest, and the losers continue asking.
    let until = log.array().iter().flat_map(tokens).skip_while(|token| !token.starts_with(won));
    let clients: Vec<String> = until.filter_map(label).collect();
    let of = |client: &String| clients.iter().filter(|other| *other == client).count();
    clients.iter().map(of).max()
}

/// Asserts the requirement of F42. Returns how many contests took more than one round.
async fn one_has_it_soon(clients: usize, nodes: usize, away: usize) -> usize {
    let rounds = contests(clients, nodes, away).await;
    let longer = rounds.iter().filter(|rounds| **rounds > ROUNDS).count();
    seen::at_most("contests of 100 with more than five rounds", longer, LONGER);
    seen::counted("rounds of a contest", rounds.iter().copied().max().unwrap_or(0));
    assert!(longer <= LONGER, "{longer} of {CONTESTS} took more than {ROUNDS} rounds: {rounds:?}");
    rounds.iter().filter(|rounds| **rounds > 1).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f42_two_clients() {
    one_has_it_soon(2, 3, 0).await;
    one_has_it_soon(2, 5, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f42_two_clients_and_an_even_number_of_votes() {
    let split = one_has_it_soon(2, 3, 1).await;
    assert!(split > 0, "no votes were split: this shows nothing");
    one_has_it_soon(2, 5, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f42_three_clients() {
    let split = one_has_it_soon(3, 3, 0).await;
    assert!(split > 0, "no votes were split: this shows nothing");
    one_has_it_soon(3, 5, 0).await;
}
