//! One or two holders, step by step, for faults that a random nemesis causes too rarely to rely on.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use leasehold::{Client, Lease, Mode};

use support::{Action, Match, eventually_async, scripts::ACQUIRE, urls};

use crate::{
    clients::builder,
    history::{Cause, Loss, Whom},
    nemesis::empty,
    record::{LeaseId, Line, Process, now},
    round::{self, Outcome},
    scene::Scene,
    setup::{KINDS, LONE, NODES, RESTART_DELAY, SERVERS, Stage},
    watch,
    worker::Held,
};

/// Processes of a scene that run inside this one.
const DUELLISTS: [Process; 2] = [Process { slot: 0, life: 0 }, Process { slot: 1, life: 0 }];
const LOCK: &str = "quorum-1";
const LONE_LOCK: &str = "plain-1";
const HANGS: Duration = Duration::from_secs(20);
/// The quorum's nodes, by their servers.
const A: usize = LONE + 1;
const B: usize = LONE + 2;
const C: usize = LONE + NODES;

/// One of the two holders, with links of its own.
struct Duellist<'a> {
    scene: &'a Scene,
    process: Process,
    leases: Client,
    lock: &'static str,
    numbers: AtomicU32,
}

impl<'a> Duellist<'a> {
    async fn new(scene: &'a Scene, at: usize, restart_delay: Duration) -> Self {
        let process = DUELLISTS[at];
        let nodes = &scene.links[at][A..];
        let builder = builder(process).quorum(urls(nodes)).restart_delay(restart_delay).ttl(Duration::from_millis(300));
        let leases = builder.command_timeout(Duration::from_millis(4_400)).build().await.expect("the nodes are there");
        Self { scene, process, leases, lock: LOCK, numbers: AtomicU32::new(0) }
    }

    /// A duellist on the lone server.
    async fn alone(scene: &'a Scene) -> Self {
        // The link is slow, and has to be re-established at times.
        let builder = builder(DUELLISTS[0]).url(scene.links[0][LONE].url()).command_timeout(Duration::from_secs(4));
        let leases = builder.build().await.expect("the server is there");
        Self { scene, process: DUELLISTS[0], leases, lock: LONE_LOCK, numbers: AtomicU32::new(0) }
    }

    fn say(&self, line: &Line) {
        self.scene.recorder().hear(line);
    }

    /// Acquires the lock and reports it; `None` if it took too long.
    async fn acquire(&self, ttl: Duration, within: Duration) -> Option<Held> {
        let invoked = now();
        let lease: Lease = match self.leases.lock(self.lock).ttl(ttl).acquire_within(within).await {
            Ok(lease) => lease,
            Err(error) => {
                eprintln!("{}: {error}", self.process);
                return None;
            }
        };
        let start = now();
        let id = LeaseId { process: self.process, number: self.numbers.fetch_add(1, Ordering::Relaxed) };
        let mut held = Held::new(id, lease);
        let until = held.check().ok().map(|()| held.until());
        let name = KINDS.iter().position(|kind| kind.name == self.lock).unwrap_or(0);
        let (fence, ttl) = (held.fence(), u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX));
        let (lease, known_as, mode) = (id, id, Mode::Exclusive);
        self.say(&Line::Acquired { lease, known_as, name, mode, ttl, fence, invoked, start, until });
        Some(held)
    }

    /// Believes in the lease for as long as it may, or until `enough` holds.
    async fn believe(&self, held: &mut Held, enough: impl Fn() -> bool) -> bool {
        while !enough() {
            if let Err(how) = held.check() {
                self.say(&Line::Ended { lease: held.id(), at: now(), how });
                return false;
            }
            self.say(&held.believed());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        true
    }

    async fn let_go(&self, held: Held) {
        self.say(&Line::Ended { lease: held.id(), at: now(), how: crate::record::Ending::Release });
        held.release().await.ok();
    }

    /// Cuts this process's link to a node.
    fn cut_off(&self, slot: usize, server: usize) {
        let from = now();
        let link = &self.scene.links[slot][server];
        link.refuse(true);
        link.cut();
        let slot = u16::try_from(slot).unwrap_or(0);
        self.scene.mark(from, Whom::Link { slot, server }, "link refused");
    }
}

/// Plays a scene while its servers are watched.
fn played<F: Future<Output = ()>>(seed: u64, play: impl FnOnce(&'static Scene) -> F) -> Outcome {
    // The play borrows it from several tasks, and the process ends soon after.
    let scene: &'static Scene = Box::leak(Box::new(Scene::new(Stage::Servers, seed, 2, 0)));
    let start = Instant::now();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let _at_the_end = watch::Over(over);
        for servers in [LONE..A, A..SERVERS] {
            scope.spawn(move || watch::run(scene, servers, Duration::from_millis(2), over));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(play(scene));
    });
    round::judge(seed, start.elapsed(), &scene.crew)
}

/// Every answer takes a good part of the TTL. The link stops after the acquire, or after some renewals.
pub fn slow_link() -> Outcome {
    played(12, |scene| async move {
        let one = Duellist::alone(scene).await;
        let (link, whom) = (&scene.links[0][LONE], Whom::Link { slot: 0, server: LONE });
        let delayed = now();
        link.delay(Duration::from_millis(60));
        scene.mark(delayed, whom, "link delayed (60ms each way)");
        for renewed_for in [0, 0, 700, 1_400].map(Duration::from_millis) {
            let mut held = one.acquire(Duration::from_secs(1), HANGS).await.expect("the server is there");
            let start = Instant::now();
            let still = one.believe(&mut held, || start.elapsed() >= renewed_for).await;
            let frozen = now();
            link.freeze(true);
            if still {
                one.believe(&mut held, || false).await;
            }
            link.freeze(false);
            scene.mark(frozen, whom, "link frozen");
        }
    })
}

/// One node's clock jumps ahead after the first holder has seen it, so that the nodes draw different fences. The second
/// holder reaches the node that drew the smaller one.
pub fn clocks_apart() -> Outcome {
    played(15, |scene| async move {
        let (one, other) = (Duellist::new(scene, 0, RESTART_DELAY).await, Duellist::new(scene, 1, RESTART_DELAY).await);
        one.cut_off(0, C);
        other.cut_off(1, B);
        for _ in 0..5 {
            let from = now();
            scene.servers.clock(B).forward(Duration::from_millis(400));
            scene.loss(Loss { server: B, name: None, from, to: now(), cause: Cause::ClockJump });
            scene.mark(from, Whom::Server(B), "server clock forward (400ms)");
            for duellist in [&one, &other] {
                let held = duellist.acquire(Duration::from_millis(900), HANGS).await.expect("two nodes are enough");
                duellist.let_go(held).await;
            }
        }
    })
}

/// The second holder has a node's vote, and its next vote is on its way. Then that node forgets. If the first holder's
/// key were brought back there, both would have a majority.
pub fn forgetful_node() -> Outcome {
    played(16, |scene| async move {
        // Longer than the TTLs here.
        let restart_delay = Duration::from_secs(10);
        let one = Duellist::new(scene, 0, restart_delay).await;
        // The second holder proposes fences that no clock has reached. So its nodes draw equal fences, and none has to
        // be raised.
        scene.servers.clock(B).forward(Duration::from_secs(5));
        let other = Duellist::new(scene, 1, restart_delay).await;
        other.cut_off(1, A);
        let vote = scene.links[1][C].on(Match::script(ACQUIRE), 1, Action::Hold);
        let (mut asking, both) =
            (Box::pin(other.acquire(Duration::from_secs(9), Duration::from_millis(4_400))), AtomicBool::new(false));
        let on = |server: usize| scene.servers[server].wire().exists(LOCK);
        let asked = eventually_async(HANGS, "the other has one vote", || on(B));
        tokio::select! {
            _ = &mut asking => panic!("one vote is no majority"),
            () = asked => {}
        }

        let story = async {
            let mut held = one.acquire(Duration::from_millis(300), HANGS).await.expect("two nodes are enough");
            let director = async {
                let from = now();
                scene.servers[B].kill();
                empty(scene, B);
                scene.servers[B].restart();
                scene.loss(Loss { server: B, name: None, from, to: now(), cause: Cause::EmptyRestart });
                scene.mark(from, Whom::Server(B), "server restarted empty");
                let start = Instant::now();
                while !on(B) && start.elapsed() < Duration::from_millis(700) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                let from = now();
                scene.links[0][C].black_hole(true);
                scene.mark(from, Whom::Link { slot: 0, server: C }, "link black-holed");
                eventually_async(HANGS, "the key of the first has run out", || !on(C)).await;
                vote.release();
            };
            let believing = one.believe(&mut held, || both.load(Ordering::SeqCst));
            let (still, ()) = tokio::join!(believing, director);
            if still {
                one.let_go(held).await;
            }
        };
        let rival = async {
            if let Some(mut held) = asking.await {
                let end = Instant::now() + Duration::from_millis(200);
                if other.believe(&mut held, || Instant::now() >= end).await {
                    other.let_go(held).await;
                }
            }
            both.store(true, Ordering::SeqCst);
        };
        tokio::join!(story, rival);
    })
}
