//! Fences over a quorum: each step of the argument in `docs/deployments.md`, and clocks that step (F28, F29).

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Fence, Lease, LossReason};
use support::{
    Action, HANGS, Lag, Match, Nodes, Proxy, RuleHandle, eventually_async,
    scripts::{ACQUIRE, RAISE, RELEASE, RENEW, REPAIR},
    urls, within,
};

use crate::common::{COMMAND, Calm, Confirmed as _, FENCE, LONG, NAME};

const TTL: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// The clocks of the counter-example: 100, 200 and 140, in units longer than any test.
const CLOCKS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(10), Duration::from_secs(4)];

/// A node that issues a fence later than this after its proposal issues its own, which needs a raise.
const AHEAD: Duration = Duration::from_millis(50);
const TOGETHER: [Duration; 3] = [Duration::ZERO; 3];

/// The first node's clock is the slowest, the second one's the fastest.
const SLOW: usize = 0;
const FAST: usize = 1;

fn servers(clocks: &[Duration]) -> Nodes {
    let nodes = Nodes::seasoned(clocks.len());
    nodes.know(&[ACQUIRE, RAISE, REPAIR, RENEW, RELEASE]);
    set_apart(&nodes, clocks);
    nodes
}

/// Sets each clock ahead by its own offset. A client that does not know of it proposes a fence that the fast ones have
/// passed.
fn set_apart(nodes: &Nodes, clocks: &[Duration]) {
    for (at, ahead) in clocks.iter().enumerate() {
        nodes.clock(at).forward(*ahead);
    }
}

async fn client(urls: Vec<String>, restart_delay: Duration) -> Client {
    let builder = Client::builder().quorum(urls).command_timeout(COMMAND).restart_delay(restart_delay).ttl(TTL);
    builder.build().await.expect("a majority is there")
}

/// A client with its own link to each node, except a dead one to `without`.
async fn client_without(nodes: &Nodes, without: usize) -> (Client, Vec<Proxy>) {
    delayed_client_without(nodes, without, LONG + TTL).await
}

async fn delayed_client_without(nodes: &Nodes, without: usize, restart_delay: Duration) -> (Client, Vec<Proxy>) {
    let proxies = nodes.proxies();
    proxies[without].black_hole(true);
    (client(urls(&proxies), restart_delay).await, proxies)
}

async fn acquire(leases: &Client) -> Lease {
    within(HANGS, "the lock is free", leases.lock(NAME).acquire()).await.expect("a majority is well")
}

/// Acquires and releases.
async fn cycle(leases: &Client) -> Fence {
    let lease = acquire(leases).await;
    let fence = lease.fence();
    lease.release().await.expect("it was ours").confirmed();
    fence
}

fn floor(nodes: &Nodes, at: usize) -> Option<Fence> {
    nodes[at].wire().get(FENCE).map(|text| text.parse().expect("a fence"))
}

/// The fence that a server would issue from its clock alone.
fn micros_at(nodes: &Nodes, at: usize) -> u64 {
    let time = nodes[at].wire().must(&["TIME"]);
    let part = |part: usize| time.array()[part].text().parse::<u64>().expect("a number");
    part(0) * 1_000_000 + part(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_holder_on_another_majority_has_the_larger_fence() {
    let nodes = servers(&TOGETHER);
    let (one, _one) = client_without(&nodes, 2).await;
    let (two, _two) = client_without(&nodes, FAST).await;
    set_apart(&nodes, &CLOCKS);
    let first = cycle(&one).await;
    let floors = [FAST, SLOW].map(|at| floor(&nodes, at));
    let second = cycle(&two).await;
    assert!(second > first, "{second} after {first}");
    assert_eq!(floors, [Some(first); 2], "the largest that was drawn, and what was raised to it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_whatever_majority_each_holder_has() {
    let nodes = servers(&TOGETHER);
    let mut clients = Vec::new();
    for without in 0..3 {
        clients.push(client_without(&nodes, without).await);
    }
    set_apart(&nodes, &CLOCKS);
    let mut last = None;
    for turn in 0..60 {
        // Each majority follows each of the three, itself included.
        let (leases, _) = &clients[(turn * turn + turn / 3) % 3];
        let fence = cycle(leases).await;
        assert!(Some(fence) > last, "turn {turn}: {fence} after {last:?}");
        last = Some(fence);
    }
}

/// A client of the slow and the fast node, so every fence has to be raised on the slow one, where `fault` interferes.
/// Returns the client and the error of its try.
async fn a_raise_that_fails(nodes: &Nodes, action: Action, fault: impl FnOnce()) -> (Client, String) {
    let (leases, proxies) = client_without(nodes, 2).await;
    set_apart(nodes, &CLOCKS);
    let raise = proxies[SLOW].on(Match::script(RAISE), 1, action);
    let attempt = tokio::spawn(leases.lock(NAME).ttl(LONG).try_acquire());
    within(HANGS, "the raise", raise.hit()).await;
    fault();
    raise.release();
    match within(HANGS, "the attempt ends", attempt).await.expect("it does not panic") {
        Err(Error::Unavailable(error)) => {
            let votes = error.votes().expect("it says what each node said");
            assert_eq!((votes.granted(), votes.needed()), (1, 2), "{error}");
            // The links must live as long as the client.
            proxies.into_iter().for_each(std::mem::forget);
            (leases, error.to_string())
        }
        other => panic!("the fence is on one of three nodes only, and it returned {other:?}"),
    }
}

async fn is_undone(nodes: &Nodes) {
    eventually_async(HANGS, "the key is nowhere", || nodes.with_key(NAME).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raise_without_an_answer_is_no_raise() {
    let nodes = servers(&TOGETHER);
    let (leases, _) = a_raise_that_fails(&nodes, Action::SwallowReply, || {}).await;
    is_undone(&nodes).await;
    let raised = floor(&nodes, SLOW);
    assert_eq!(raised, floor(&nodes, FAST), "only the answer was lost");
    assert!(Some(cycle(&leases).await) > raised);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raise_that_is_refused_is_no_raise() {
    let nodes = servers(&TOGETHER);
    let (leases, text) = a_raise_that_fails(&nodes, Action::Mangle, || {}).await;
    assert!(text.contains("unknown command"), "{text}");
    is_undone(&nodes).await;
    let drawn = floor(&nodes, FAST);
    assert!(floor(&nodes, SLOW) < drawn, "nothing can have raised it");
    assert!(Some(cycle(&leases).await) > drawn);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raise_where_the_key_is_gone_is_no_raise() {
    let nodes = servers(&TOGETHER);
    let (leases, text) = a_raise_that_fails(&nodes, Action::Hold, || {
        assert!(nodes[SLOW].wire().del(NAME), "it was granted there");
    })
    .await;
    assert!(text.contains("lost the key"), "{text}");
    is_undone(&nodes).await;
    let drawn = floor(&nodes, FAST);
    assert!(floor(&nodes, SLOW) < drawn, "the next fence there may be smaller");
    assert!(Some(cycle(&leases).await) > drawn);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raise_where_the_key_is_anothers_is_no_raise() {
    let nodes = servers(&TOGETHER);
    let (_, text) = a_raise_that_fails(&nodes, Action::Hold, || nodes[SLOW].wire().set(NAME, "somebody else's")).await;
    assert!(text.contains("somebody took the key"), "{text}");
    eventually_async(HANGS, "the other grant is undone", || nodes.with_key(NAME) == [SLOW]).await;
    assert_eq!(nodes[SLOW].wire().get(NAME).as_deref(), Some("somebody else's"));
    assert!(floor(&nodes, SLOW) < floor(&nodes, FAST), "the fence of another's lock is not raised");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_replaces_one_that_fails_to_raise() {
    let nodes = servers(&TOGETHER);
    let proxies = nodes.proxies();
    let refused = proxies[SLOW].on(Match::script(RAISE), 1, Action::Mangle);
    let leases = client(urls(&proxies), LONG + TTL).await;
    set_apart(&nodes, &CLOCKS);
    let lease = leases.lock(NAME).try_acquire().await.expect("two of three raise it").expect("it is free");
    within(HANGS, "the first one's raise", refused.hit()).await;
    let backed = (0..3).filter(|&at| floor(&nodes, at) >= Some(lease.fence())).count();
    assert!(backed >= 2, "the floor is on {backed} nodes");
    lease.release().await.expect("it was ours").confirmed();
}

/// Acquires and releases, and waits each time until all nodes have done it: a node behind the majority would get the
/// next acquire first, and issue another fence. Returns how long the nodes took.
async fn cycle_everywhere(leases: &Client, nodes: &Nodes) -> Duration {
    let began = Instant::now();
    let lease = acquire(leases).await;
    eventually_async(HANGS, "all have granted it", || nodes.with_key(NAME).len() == nodes.iter().count()).await;
    let took = began.elapsed();
    lease.release().await.expect("it was ours").confirmed();
    is_undone(nodes).await;
    took
}

/// Asserts that each cycle is one acquire on each node and no raise, because known nodes issue the same fence.
async fn cycles_take_one_round_trip_each(clocks: &[Duration], clients: usize) {
    const CYCLES: usize = 30;
    let nodes = servers(clocks);
    let mut all = Vec::new();
    for _ in 0..clients {
        let proxies = nodes.proxies();
        let leases = client(urls(&proxies), LONG + TTL).await;
        // The first answers contain the nodes' times. The slowest node may need a raise afterwards.
        cycle_everywhere(&leases, &nodes).await;
        cycle_everywhere(&leases, &nodes).await;
        all.push((leases, proxies));
    }
    let proxies = || all.iter().flat_map(|(_, proxies)| proxies);
    proxies().for_each(Proxy::forget);
    let mut late = 0;
    for turn in 0..CYCLES {
        let (leases, _) = &all[turn % clients];
        late += usize::from(cycle_everywhere(leases, &nodes).await >= AHEAD);
    }
    let count = |script| proxies().map(|proxy| proxy.count(Match::script(script))).collect::<Vec<_>>();
    assert_eq!(count(ACQUIRE), vec![CYCLES / clients; clients * clocks.len()]);
    let raised = count(RAISE);
    assert!(raised.iter().all(|raises| *raises <= late), "{raised:?}, and {late} that may raise");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycles_take_one_round_trip_each_where_the_clocks_agree() {
    cycles_take_one_round_trip_each(&[Duration::ZERO; 5], 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycles_take_one_round_trip_each_where_the_clocks_differ() {
    cycles_take_one_round_trip_each(&CLOCKS, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycles_of_two_clients_take_one_round_trip_each() {
    cycles_take_one_round_trip_each(&CLOCKS, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_reports_the_fence_of_the_lease() {
    let nodes = servers(&CLOCKS);
    let leases = client(nodes.urls(), LONG + TTL).await;
    for _ in 0..10 {
        let lease = acquire(&leases).await;
        let holder = leases.lock(NAME).holder().await.expect("all are there").expect("it is held");
        assert_eq!(holder.fence(), Some(lease.fence()));
        lease.release().await.expect("it was ours").confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_reports_the_fence_of_the_lease_when_a_faster_clock_came_late() {
    let nodes = servers(&TOGETHER);
    let proxies = nodes.proxies();
    let late = proxies[FAST].on(Match::script(ACQUIRE), 1, Action::HoldReply);
    let leases = client(urls(&proxies), LONG + TTL).await;
    set_apart(&nodes, &CLOCKS);
    let lease = acquire(&leases).await;
    within(HANGS, "the fast one has granted it", late.hit()).await;
    assert!(floor(&nodes, FAST) > Some(lease.fence()), "it drew the largest, and was not waited for");
    late.release();
    // The fast node is now among the first to answer.
    proxies[SLOW].delay(Duration::from_millis(20));
    for _ in 0..10 {
        let holder = leases.lock(NAME).holder().await.expect("all are there").expect("it is held");
        assert_eq!(holder.fence(), Some(lease.fence()));
    }
    let fence = lease.fence();
    lease.release().await.expect("it was ours").confirmed();
    assert!(cycle(&leases).await > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_reports_the_fence_of_the_lease_when_two_issued_alike_after_a_raise_began() {
    let nodes = servers(&TOGETHER);
    let ahead = (micros_at(&nodes, SLOW) + 6_000_000).to_string();
    for at in [SLOW, 2] {
        nodes[at].wire().set(FENCE, &ahead);
    }
    let proxies = nodes.proxies();
    let late = proxies[2].on(Match::script(ACQUIRE), 1, Action::HoldReply);
    let raise = proxies[SLOW].on(Match::script(RAISE), 1, Action::Hold);
    let leases = client(urls(&proxies), LONG + TTL).await;
    set_apart(&nodes, &CLOCKS);
    let attempt = tokio::spawn(leases.lock(NAME).ttl(LONG).try_acquire());
    within(HANGS, "the raise", raise.hit()).await;
    late.release();
    let lease = within(HANGS, "the attempt ends", attempt).await.expect("it does not panic");
    let lease = lease.expect("two of three are enough").expect("it is free");
    raise.release();
    eventually_async(HANGS, "the raise arrives", || floor(&nodes, SLOW) == floor(&nodes, FAST)).await;
    let holder = leases.lock(NAME).holder().await.expect("all are there").expect("it is held");
    assert_eq!(holder.fence(), Some(lease.fence()));
    lease.release().await.expect("it was ours").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_across_nodes_that_restarted_empty() {
    const DELAY: Duration = Duration::from_secs(3);
    // A majority loses its floor, and its clocks are behind the other's by less than the delay.
    let nodes = servers(&[Duration::ZERO, Duration::from_secs(1), Duration::ZERO]);
    let (one, _one) = delayed_client_without(&nodes, 2, DELAY).await;
    let first = cycle(&one).await;
    assert_eq!(floor(&nodes, FAST), Some(first), "it drew the largest");
    for at in [0, 2] {
        nodes[at].kill();
        nodes[at].restart();
        assert_eq!(floor(&nodes, at), None);
    }
    let (two, _two) = delayed_client_without(&nodes, FAST, DELAY).await;
    let second = cycle(&two).await;
    assert!(second > first, "{second} after {first}");
}

/// Asserts that fences grow past these steps, for a client that has seen them and for one that has not.
async fn fences_grow_over(nodes: &Nodes, leases: &Client, mut last: Fence, what: &str) {
    for leases in [leases, &client(nodes.urls(), LONG + TTL).await, leases] {
        let fence = cycle(leases).await;
        assert!(fence > last, "{what}: {fence} after {last}");
        last = fence;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_a_minority_steps_forward_past_the_ttl() {
    let nodes = servers(&TOGETHER);
    let leases = client(nodes.urls(), LONG + TTL).await;
    let (lag, lease) = (Lag::start(), acquire(&leases).await);
    let (fence, calm) = (lease.fence(), Calm::of(&lease));
    nodes.all_have(NAME).await;
    let token = nodes[1].wire().token(NAME);
    nodes[0].wire().must(&["CONFIG", "RESETSTAT"]);
    eventually_async(HANGS, "its key has expired", || {
        // A renewal executed at that moment can save the key.
        nodes.clock(0).forward(HOUR);
        let mut wire = nodes[0].wire();
        let _whoever_asks_finds_out = wire.get(NAME);
        wire.info_field("stats", "expired_keys").is_some_and(|expired| expired != "0")
    })
    .await;
    eventually_async(HANGS, "it is repaired", || nodes[0].wire().token(NAME) == token).await;
    tokio::time::sleep(TTL).await;
    calm.lasted(&lag);
    lease.release().await.expect("it was held to the end").confirmed();
    fences_grow_over(&nodes, &leases, fence, "ahead").await;
    let last = cycle(&leases).await;
    nodes.clock(0).back(HOUR);
    fences_grow_over(&nodes, &leases, last, "back again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_a_majority_steps_forward_past_the_ttl() {
    let nodes = servers(&TOGETHER);
    let proxies = nodes.proxies();
    let leases = client(urls(&proxies), LONG + TTL).await;
    let lease = acquire(&leases).await;
    // A later vote would keep the key past the step.
    nodes.all_have(NAME).await;
    // Otherwise the first node would be repaired before the loss on the second is known, and then the second from the
    // first.
    let repairs: Vec<_> =
        proxies.iter().map(|proxy| proxy.on_each(Match::script(REPAIR), Action::DropRequest)).collect();
    for at in 0..2 {
        nodes.clock(at).forward_past(HOUR, &mut nodes[at].wire(), NAME);
    }
    let lost = within(HANGS, "the loss is told", lease.lost()).await;
    assert_eq!(lost.reason(), LossReason::Deleted);
    repairs.iter().for_each(RuleHandle::disarm);
    fences_grow_over(&nodes, &leases, lease.fence(), "ahead").await;
}

async fn the_holder_is_not_told_of_steps_back(stepping: usize) {
    let nodes = servers(&TOGETHER);
    let leases = client(nodes.urls(), LONG + TTL).await;
    let (lag, lease) = (Lag::start(), acquire(&leases).await);
    let (fence, calm) = (lease.fence(), Calm::of(&lease));
    (0..stepping).for_each(|at| nodes.clock(at).back(HOUR));
    // Long enough for the step to affect renewals.
    tokio::time::sleep(2 * TTL).await;
    calm.lasted(&lag);
    lease.release().await.expect("it was held to the end").confirmed();
    fences_grow_over(&nodes, &leases, fence, "back").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_a_minority_steps_back() {
    the_holder_is_not_told_of_steps_back(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_a_majority_steps_back() {
    the_holder_is_not_told_of_steps_back(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_all_step_back() {
    the_holder_is_not_told_of_steps_back(3).await;
}
