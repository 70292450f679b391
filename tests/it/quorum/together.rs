//! Batched votes and releases, on servers of which some are slow, silent, or empty after a restart.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Fence, Owner};
use support::{HANGS, Nodes, Server, Wire, eventually_async, within};
use tokio::task::JoinSet;

use super::scene::{Node, Scene, built};
use crate::{
    combined::Standing,
    common::{COMMAND, Confirmed as _, LONG},
};

const TASKS: usize = 48;

/// Cycles of many tasks, each with its own lock, or all sharing a few. Asserts that each holder was alone, and had a
/// larger fence than the one before.
#[derive(Default)]
struct Work {
    locks: Mutex<HashMap<String, Held>>,
    done: AtomicUsize,
    is_over: AtomicBool,
}

/// The task that has a lock, and the lock's last fence.
#[derive(Default)]
struct Held {
    by: Option<usize>,
    last: Option<Fence>,
}

impl Work {
    /// Runs cycles until the work is over, but at most `most`. Returns their number.
    async fn cycles(self: Arc<Self>, leases: Client, task: usize, locks: usize, most: usize) -> usize {
        let name = format!("job:{}", task % locks);
        let mut done = 0;
        while done < most && !self.is_over.load(Ordering::Relaxed) {
            let lock = leases.lock(&name).ttl(LONG).owner(Owner::anonymous());
            let Ok(Some(lease)) = lock.try_acquire().await else {
                tokio::task::yield_now().await;
                continue;
            };
            self.begins(&name, task, lease.fence());
            tokio::task::yield_now().await;
            self.ends(&name, task);
            // Its nodes may be silent.
            let _released = lease.release().await;
            self.done.fetch_add(1, Ordering::Relaxed);
            done += 1;
        }
        done
    }

    fn begins(&self, name: &str, task: usize, fence: Fence) {
        let mut locks = self.locks.lock().unwrap();
        let held = locks.entry(name.to_owned()).or_default();
        assert_eq!(held.by, None, "{name} has two holders");
        assert!(held.last < Some(fence), "{name} has falling fences: {:?}, {fence}", held.last);
        *held = Held { by: Some(task), last: Some(fence) };
    }

    fn ends(&self, name: &str, task: usize) {
        let was = self.locks.lock().unwrap().get_mut(name).and_then(|held| held.by.take());
        assert_eq!(was, Some(task));
    }
}

struct Tasks {
    work: Arc<Work>,
    running: JoinSet<usize>,
}

impl Tasks {
    fn start(leases: &Client, locks: usize, most: usize) -> Self {
        let (work, mut running) = (Arc::new(Work::default()), JoinSet::new());
        for task in 0..TASKS {
            running.spawn(work.clone().cycles(leases.clone(), task, locks, most));
        }
        Self { work, running }
    }

    /// Waits for `cycles` more cycles.
    async fn go_on(&self, cycles: usize, what: &str) {
        let done = || self.work.done.load(Ordering::Relaxed);
        let until = done() + cycles;
        eventually_async(HANGS, what, || done() >= until).await;
    }

    async fn all(mut self) -> usize {
        let mut all = 0;
        while let Some(done) = within(4 * HANGS, "the tasks end", self.running.join_next()).await {
            all += done.unwrap();
        }
        all
    }

    async fn stop(self) -> usize {
        self.work.is_over.store(true, Ordering::Relaxed);
        self.all().await
    }
}

/// Asserts that late votes are undone: no key expires within the test.
async fn nothing_is_left<'a>(servers: impl IntoIterator<Item = &'a Server>) {
    let mut wires: Vec<Wire> = servers.into_iter().map(Server::wire).collect();
    let is_empty = || wires.iter_mut().all(|wire| wire.keys("*").iter().all(|key| key.ends_with(":fence")));
    eventually_async(HANGS, "no lock is left on any node", is_empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_each_node_of_a_quorum_travel_together() {
    const CYCLES: usize = 20;
    let scene = Scene::with(3, |builder| builder.command_timeout(HANGS)).await;
    let done = Tasks::start(&scene.leases, TASKS, CYCLES).all().await;
    assert_eq!(done, TASKS * CYCLES);
    for node in &scene.nodes {
        // Each cycle has two requests.
        let calls = node.proxy.commands();
        assert!(calls < done, "{calls} calls for {} requests", 2 * done);
    }
    nothing_is_left(scene.nodes.iter().map(|node| &node.server)).await;
    scene.leases.close().await;
}

/// A majority decides without the slow nodes, whose votes arrive when their locks are released, or later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_that_come_after_the_release_leave_nothing() {
    for locks in [TASKS, 4] {
        let scene = Scene::with(5, |builder| builder.command_timeout(HANGS)).await;
        for (node, millis) in scene.nodes.iter().zip([0, 0, 0, 3, 40]) {
            node.proxy.delay(Duration::from_millis(millis));
        }
        let tasks = Tasks::start(&scene.leases, locks, usize::MAX);
        tokio::time::sleep(Duration::from_secs(2)).await;
        tasks.go_on(2 * locks, "three of five go on").await;
        tasks.stop().await;
        nothing_is_left(scene.nodes.iter().map(|node| &node.server)).await;
        scene.leases.close().await;
    }
}

/// More threads than cores: one is interrupted after it made a batch and before it sent it, while another releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn no_release_comes_before_its_acquire() {
    let nodes = Nodes::start(3);
    let builder = Client::builder().quorum(nodes.urls()).restart_delay(Duration::ZERO).command_timeout(HANGS);
    let leases = built(builder).await;
    let tasks = Tasks::start(&leases, TASKS, usize::MAX);
    tokio::time::sleep(Duration::from_secs(4)).await;
    tasks.go_on(TASKS, "they go on").await;
    tasks.stop().await;
    nothing_is_left(nodes.iter()).await;
    leases.close().await;
}

/// Requests that wait for a silent node are sent late or never, and its late grants are undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_holds_up_nobody_and_keeps_nothing() {
    for locks in [TASKS, 4] {
        let scene = Scene::of(3).await;
        let tasks = Tasks::start(&scene.leases, locks, usize::MAX);
        for _ in 0..3 {
            tasks.go_on(TASKS, "all three go on").await;
            scene.nodes[1].server.stop();
            tasks.go_on(TASKS, "two of three go on").await;
            scene.nodes[1].server.cont();
            scene.nodes[2].proxy.cut();
        }
        tasks.stop().await;
        nothing_is_left(scene.nodes.iter().map(|node| &node.server)).await;
        scene.leases.close().await;
    }
}

/// A server that has forgotten everything gives no vote, neither in a batch nor alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_restarted_empty_gives_no_votes_in_batches() {
    const DELAY: Duration = Duration::from_secs(60);
    let nodes = Nodes::seasoned(3);
    let builder = Client::builder().quorum(nodes.urls()).restart_delay(DELAY).command_timeout(COMMAND);
    let leases = built(builder).await;
    let tasks = Tasks::start(&leases, TASKS, usize::MAX);
    let node = nodes.iter().next_back().unwrap();
    let wire = || node.wire();
    let has_voted = || wire().try_info_field("commandstats", "cmdstat_set").unwrap().is_some();
    eventually_async(HANGS, "it votes", has_voted).await;
    node.kill();
    node.restart();
    // By then it has had batches and lone requests.
    let was_asked = || wire().try_info_field("commandstats", "cmdstat_info").unwrap().is_some();
    eventually_async(HANGS, "it is asked", was_asked).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    tasks.go_on(TASKS, "two of three go on").await;
    tasks.stop().await;
    assert!(!has_voted(), "it has granted nothing since");
    let lease = leases.lock("last").ttl(LONG).acquire().await.unwrap();
    assert!(!node.wire().exists("last"));
    lease.release().await.unwrap().confirmed();
    leases.close().await;
}

/// Three nodes, of which the last ones are stopped. The client's clock stands still, so no request is sent because of
/// its age.
async fn with_silent_nodes(silent: usize) -> Scene {
    let clock = Standing::default();
    let scene = Scene::with(3, |builder| builder.clock(clock.clone()).command_timeout(HANGS)).await;
    scene.acquire_everywhere(LONG).await.release().await.unwrap().confirmed();
    clock.stand();
    for node in &scene.nodes[3 - silent..] {
        node.server.stop();
    }
    scene
}

/// Whether any request for this lock was sent to a node.
fn was_asked(node: &Node, lock: &str) -> bool {
    node.proxy.seen().iter().flat_map(|seen| &seen.args).any(|arg| arg == lock.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_no_majority_needs_holds_up_nobody() {
    let scene = with_silent_nodes(1).await;
    let mut held = Vec::new();
    for lock in ["one", "two", "three", "four"] {
        held.push(within(HANGS, lock, scene.leases.lock(lock).acquire()).await.expect("two of three are well"));
        eventually_async(HANGS, lock, || was_asked(&scene.nodes[2], lock)).await;
    }
    scene.nodes[2].server.cont();
    for lease in held {
        lease.release().await.unwrap().confirmed();
    }
    nothing_is_left(scene.nodes.iter().map(|node| &node.server)).await;
}

/// The other nodes have granted the lock, and it is released before its turn at the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_that_waits_for_its_turn_is_not_asked_for_after_its_release() {
    let scene = with_silent_nodes(1).await;
    let [_, second, silent] = &scene.nodes[..] else { panic!("there are three") };
    let mut undecided = JoinSet::new();
    second.server.wire().set("one", "another program's");
    let first = scene.leases.lock("one");
    undecided.spawn(async move { first.acquire().await });
    eventually_async(HANGS, "the first is asked for", || was_asked(silent, "one")).await;
    let lease = within(HANGS, "a majority", scene.leases.lock("three").acquire()).await.expect("two of three are well");
    assert!(!was_asked(silent, "three"), "it waits for the first");
    lease.release().await.unwrap().confirmed();
    silent.server.cont();
    while let Some(acquired) = within(HANGS, "they are decided", undecided.join_next()).await {
        acquired.unwrap().expect("two of three have granted it").release().await.unwrap().confirmed();
    }
    eventually_async(HANGS, "the release comes there", || was_asked(silent, "three")).await;
    let mut wire = silent.server.wire();
    eventually_async(HANGS, "it is executed", || !wire.exists("one")).await;
    assert!(!wire.exists("three") && !wire.exists("{three}:lh:fence"), "no vote was asked for");
}

/// The acquire is dropped when one node has granted it, before its turn at the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_dropped_while_votes_wait_is_undone_where_it_was_granted() {
    let scene = with_silent_nodes(2).await;
    let [first, silent @ ..] = &scene.nodes[..] else { panic!("there are three") };
    let mut acquiring = JoinSet::new();
    for lock in ["one", "three"] {
        let lock_of_it = scene.leases.lock(lock);
        acquiring.spawn(async move { lock_of_it.acquire().await });
        eventually_async(HANGS, lock, || first.server.wire().exists(lock)).await;
    }
    // A proxy may read a request to a silent node later than the first node executes its own.
    eventually_async(HANGS, "the first is asked for", || silent.iter().all(|node| was_asked(node, "one"))).await;
    assert!(silent.iter().all(|node| !was_asked(node, "three")), "it waits for the first");
    acquiring.shutdown().await;
    eventually_async(HANGS, "it is undone", || !first.server.wire().exists("three")).await;
    for node in silent {
        node.server.cont();
    }
    nothing_is_left(scene.nodes.iter().map(|node| &node.server)).await;
    assert!(silent.iter().all(|node| !was_asked(node, "{three}:lh:fence")), "no vote was asked for");
}
