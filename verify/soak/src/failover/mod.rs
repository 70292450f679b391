//! Rounds on a cluster, and behind Sentinels: servers that take over from each other, and slots that move.

use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use self::{
    plan::Lane,
    scene::{SERVER, Scene, Set},
};
use crate::{
    clients::builder,
    nemesis::process_lane,
    quiescence::{acquire, end, look, somebody},
    round::{self, Outcome, WORKERS},
    setup::{Pace, Stage},
    watch::Over,
};

mod ledger;
mod nemesis;
mod plan;
mod reshard;
mod scene;
mod watch;

/// Longer than any TTL here.
const ALL_EXPIRED: Duration = Duration::from_secs(6);

pub fn run(stage: Stage, min_replicas: u8, seed: u64, length: Duration) -> Outcome {
    let scene = Scene::new(stage, min_replicas, seed);
    let start = Instant::now();
    let until = start + length;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (scene, over) = (&scene, &over);
        let at_the_end = Over(over);
        let eyes: Vec<_> =
            (0..scene.set.shards()).map(|shard| scope.spawn(move || watch::run(scene, shard, over))).collect();
        if let Set::Sentinel(all) = &scene.set {
            scope.spawn(move || watch::hear(scene, all, over));
        }
        let lanes = (0..scene.set.shards()).map(Lane::Shard).chain([Lane::Slots, Lane::Sentinels]);
        let lanes: Vec<_> = lanes.map(|lane| scope.spawn(move || nemesis::run(scene, lane, until))).collect();
        let workers = (0..WORKERS).map(|slot| scope.spawn(move || process_lane(scene, slot, until)));
        let workers: Vec<_> = workers.collect();
        for lane in lanes {
            lane.join().expect("a lane does not panic");
        }
        for shard in 0..scene.set.shards() {
            scene.await_whole(shard);
        }
        let workers = workers.into_iter().map(|worker| worker.join().expect("a lane does not panic"));
        end(scene, workers.collect(), acquire_all(scene));
        std::thread::sleep(ALL_EXPIRED);
        for shard in 0..scene.set.shards() {
            look(scene, SERVER, scene.server(scene.roles(shard).0), false);
        }
        drop(at_the_end);
        for eye in eyes {
            eye.join().expect("a look does not panic");
        }
    });
    scene.ledger().enter(&mut scene.recorder().history, &scene.ports(), scene.all_replicas_confirm());
    round::judge(seed, start.elapsed(), &scene)
}

/// A new process acquires each lock and lets go of it.
async fn acquire_all(scene: &Scene) {
    let process = somebody(usize::from(WORKERS));
    let leases = builder(process).url(scene.set.url()).min_replicas(scene.min_replicas).build();
    let leases = leases.await.expect("the servers are there");
    let ttl = scene.stage.ttls(Pace::Quick)[0];
    let locks = scene.stage.kinds().iter().map(|kind| leases.lock(kind.name).fair(kind.fair).ttl(ttl));
    acquire(scene, process, locks).await;
    leases.close().await;
}
