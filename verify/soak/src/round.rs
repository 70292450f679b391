//! One round: servers, workers and a nemesis for a while, and then the checks.

use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use crate::{
    check::{self, Violation},
    crew::Crew,
    history::Recorder,
    nemesis,
    plan::Lane,
    quiescence,
    scene::Scene,
    setup::{LONE, Stage, nanos},
    watch,
};

pub const WORKERS: u16 = 3;
const LOOK_EVERY: Duration = Duration::from_millis(8);
const ALL: u64 = u64::MAX;

/// The results of a round.
pub struct Outcome {
    pub seed: u64,
    pub lasted: Duration,
    pub recorder: Recorder,
    pub violations: Vec<Violation>,
    /// How often two leases of one lock were believed at a time.
    pub rivals: usize,
}

pub fn run(stage: Stage, seed: u64, length: Duration) -> Outcome {
    let scene = Scene::new(stage, seed, WORKERS, ALL);
    let start = Instant::now();
    let until = start + length;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (scene, over) = (&scene, &over);
        let at_the_end = watch::Over(over);
        let eyes = [LONE..LONE + 1, LONE + 1..stage.servers()].into_iter().filter(|servers| !servers.is_empty());
        let eyes = eyes.map(|servers| scope.spawn(move || watch::run(scene, servers, LOOK_EVERY, over)));
        let eyes: Vec<_> = eyes.collect();
        let lanes = (0..stage.servers())
            .map(Lane::Server)
            .chain((0..WORKERS).flat_map(|slot| [Lane::Process(slot), Lane::Links(slot)]));
        let lanes: Vec<_> = lanes.map(|lane| scope.spawn(move || nemesis::run(scene, lane, until))).collect();
        let workers = lanes.into_iter().filter_map(|lane| lane.join().expect("a lane does not panic"));
        quiescence::run(scene, workers.collect());
        drop(at_the_end);
        for eye in eyes {
            eye.join().expect("a look does not panic");
        }
    });
    let lasted = start.elapsed();
    judge(seed, lasted, &scene.crew)
}

/// Judges the history of a scene that has ended.
pub fn judge(seed: u64, lasted: Duration, crew: &Crew) -> Outcome {
    let mut recorder = std::mem::take(&mut *crew.recorder());
    recorder.end();
    recorder.history.lag = nanos(crew.lag.worst());
    let violations = check::check(&recorder.history);
    let rivals = check::rivals(&recorder.history);
    Outcome { seed, lasted, recorder, violations, rivals }
}
