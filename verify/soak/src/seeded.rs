//! The checks, checked: each seeded bug has a scene that shows it. A program with the bug's patch must find it there; a
//! program without the patch must find no violation.

use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use leasehold_verify::seeded::SeededBug;

use crate::{
    chance::Chance,
    duel,
    history::Whom,
    nemesis,
    plan::Lane,
    quiescence,
    record::now,
    round::{self, Outcome},
    scene::Scene,
    setup::{KINDS, LONE, SERVERS, Stage},
    watch,
};

/// The scene in which a bug shows, if the soak plays it.
pub fn scene(bug: SeededBug) -> Option<fn() -> Outcome> {
    match bug {
        SeededBug::ReleaseUnchecked => Some(releases_that_come_late),
        SeededBug::DeadlineFromReply => Some(duel::slow_link),
        SeededBug::RenewalRecreates | SeededBug::DeletionIgnored => Some(deleted_keys),
        SeededBug::NoSecondPhase => Some(duel::clocks_apart),
        SeededBug::RepairUnchecked => Some(duel::forgetful_node),
        SeededBug::NoDrift => Some(fast_clock),
        SeededBug::OneAnswersForAnother => Some(votes_that_split),
        SeededBug::LimitUnchecked | SeededBug::KeyEndsEarly | SeededBug::DowngradeKeepsFence => Some(shared_names),
        _ => None,
    }
}

/// The bits of these locks.
fn kinds(stage: Stage, names: &[&str]) -> u64 {
    stage.kinds().iter().enumerate().filter(|(_, kind)| names.contains(&kind.name)).map(|(at, _)| 1 << at).sum()
}

const SLOW: [&str; 3] = ["slow-1", "slow-2", "slow-3"];

/// Workers on these locks for this long, one for each process among the lanes, and one fault that lasts all the time.
fn aimed(
    stage: Stage,
    seed: u64,
    length: Duration,
    names: &[&str],
    lanes: &[Lane],
    fault: impl Fn(&Scene, Instant) + Sync,
) -> Outcome {
    let workers = lanes.iter().filter(|lane| matches!(lane, Lane::Process(_))).count();
    let scene = Scene::new(stage, seed, u16::try_from(workers).unwrap_or(0), kinds(stage, names));
    let start = Instant::now();
    let until = start + length;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (scene, over, fault) = (&scene, &over, &fault);
        let at_the_end = watch::Over(over);
        scope.spawn(move || watch::run(scene, LONE..LONE + 1, Duration::from_millis(1), over));
        if stage.servers() > 1 {
            scope.spawn(move || watch::run(scene, LONE + 1..SERVERS, Duration::from_millis(4), over));
        }
        scope.spawn(move || fault(scene, until));
        let lanes: Vec<_> = lanes.iter().map(|&lane| scope.spawn(move || nemesis::run(scene, lane, until))).collect();
        let workers = lanes.into_iter().filter_map(|lane| lane.join().expect("a lane does not panic"));
        quiescence::run(scene, workers.collect());
        drop(at_the_end);
    });
    round::judge(seed, start.elapsed(), &scene.crew)
}

/// Three processes ask three nodes at the same time, so each often has one.
fn votes_that_split() -> Outcome {
    aimed(Stage::Servers, 17, Duration::from_secs(12), &["quorum-1", "quorum-2"], &PROCESSES, nothing_else)
}

/// Readers and writers, some of which continue as readers, and permits.
fn shared_names() -> Outcome {
    let names = ["rw-quick", "rw-slow", "permits-2"];
    aimed(Stage::Shared, 18, Duration::from_secs(20), &names, &PROCESSES, nothing_else)
}

const PROCESSES: [Lane; 3] = [Lane::Process(0), Lane::Process(1), Lane::Process(2)];

fn nothing_else(_: &Scene, _: Instant) {}

/// Attempts of unknown outcome are undone by a release, which comes when another process has the lock.
fn releases_that_come_late() -> Outcome {
    let lanes = [PROCESSES.as_slice(), &[Lane::Links(0), Lane::Links(1), Lane::Links(2)]].concat();
    aimed(Stage::Servers, 11, Duration::from_secs(12), &["slow-1", "slow-2", "crowded"], &lanes, nothing_else)
}

/// Locks are deleted by hand for which no other process waits.
fn deleted_keys() -> Outcome {
    aimed(Stage::Servers, 13, Duration::from_secs(12), &SLOW, &PROCESSES[..1], |scene, until| {
        let mut chance = Chance::new(13, &[]);
        while Instant::now() < until {
            std::thread::sleep(chance.millis(30, 150));
            let name = *chance.pick(&SLOW);
            nemesis::delete(scene, LONE, KINDS.iter().find(|kind| kind.name == name).expect("it is one of them"));
        }
    })
}

/// The server's clock runs 1 % too fast, and holders are killed.
fn fast_clock() -> Outcome {
    aimed(Stage::Servers, 14, Duration::from_secs(12), &SLOW, &PROCESSES, |scene, _| {
        let from = now();
        scene.servers.clock(LONE).gain(10_000);
        scene.mark(from, Whom::Server(LONE), "clock goes 1 % too fast");
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bug_that_has_a_patch_has_a_scene() {
        for bug in SeededBug::ALL {
            assert_eq!(bug.patch().is_some(), scene(bug).is_some(), "{bug:?}");
        }
    }
}
