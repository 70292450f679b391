//! Random faults against real servers, recorded histories, and a checker that reads them (docs/evidence/soak.md).
//!
//! ```text
//! leasehold-soak [--scene servers|cluster|sentinel|shared] [--min-replicas N] [--seconds N] [--seed S]
//! leasehold-soak --bugs                      the seeded bugs, each with its patch of mutations/
//! leasehold-soak --bug NAME seeded|absent    the scene of one, in a program with it or without
//! ```

use std::{process::ExitCode, time::Duration};

use leasehold_verify::seeded::SeededBug;

use self::setup::Stage;

mod chance;
mod check;
mod clients;
mod crew;
mod duel;
mod failover;
mod history;
mod log;
mod nemesis;
mod password;
mod plan;
mod quiescence;
mod record;
mod report;
mod resource;
mod round;
mod scene;
mod seeded;
mod setup;
mod sharing;
mod watch;
mod worker;

/// The longest round: a history has to fit into memory, and a seed has to be worth repeating.
const ROUND: u64 = 60;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == "worker") {
        let part = worker::Part::from_args(&args[1..]).expect("the parent says what to do");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(worker::run(part));
        return ExitCode::SUCCESS;
    }
    match &args[..] {
        [word, name, build] if word == "--bug" && ["seeded", "absent"].contains(&&**build) => return play(name, build),
        [word] if word == "--bugs" => {
            for (bug, patch) in SeededBug::ALL.iter().filter_map(|bug| Some((bug, bug.patch()?))) {
                println!("{} {patch}", bug.name());
            }
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let (mut seconds, mut seed, mut stage, mut min_replicas) = (600, 1, Stage::Servers, 0);
    for pair in args.chunks(2) {
        match pair {
            [name, value] if name == "--seconds" => seconds = value.parse().expect("--seconds takes a number"),
            [name, value] if name == "--seed" => seed = value.parse().expect("--seed takes a number"),
            [name, value] if name == "--scene" && value.parse::<Stage>().is_ok() => {
                stage = value.parse().unwrap_or(stage);
            }
            [name, value] if name == "--min-replicas" => {
                min_replicas = value.parse().expect("--min-replicas takes a number");
            }
            _ => {
                let scenes = "servers|cluster|sentinel|shared";
                eprintln!("leasehold-soak [--scene {scenes}] [--min-replicas N] [--seconds N] [--seed S]");
                return ExitCode::FAILURE;
            }
        }
    }
    if min_replicas > stage.replicas() {
        let most = stage.replicas();
        eprintln!(
            "--min-replicas {min_replicas}: it is at most {most} in the scene {stage}, of which no primary has more"
        );
        return ExitCode::FAILURE;
    }
    soak(stage, min_replicas, seconds, seed)
}

fn soak(stage: Stage, min_replicas: u8, seconds: u64, first_seed: u64) -> ExitCode {
    let mut totals = report::Totals::default();
    let (mut left, longest) = (Duration::from_secs(seconds), Duration::from_secs(ROUND));
    for seed in first_seed.. {
        if left.is_zero() {
            break;
        }
        // A long outage needs a longer round, which replaces as many short ones.
        let has_outage = plan::has_outage(stage, seed);
        let length = if has_outage { left.min(plan::LONG_ROUND) } else { left.min(longest) };
        left -= length;
        eprintln!("seed {seed}, {length:?}");
        let outcome = match stage {
            Stage::Servers | Stage::Shared => round::run(stage, seed, length),
            Stage::Cluster | Stage::Sentinel => failover::run(stage, min_replicas, seed, length),
        };
        for violation in outcome.violations.iter().take(3) {
            println!("seed {seed}: {}", report::timeline(&outcome.recorder.history, violation));
        }
        let history = &outcome.recorder.history;
        let (leases, lag) = (history.leases.len(), Duration::from_nanos(history.lag));
        eprintln!("  {leases} leases, {} violations; the machine lagged {lag:?} at most", outcome.violations.len());
        totals.add(&outcome);
    }
    println!("{totals}");
    if totals.is_hollow() {
        eprintln!("a lock was never held, or no server was seen: that nothing was wrong means nothing");
        return ExitCode::FAILURE;
    }
    if totals.failed() > 0 {
        eprintln!("{} acquires failed for reasons that no fault here gives; each is told of above", totals.failed());
        return ExitCode::FAILURE;
    }
    if totals.violations() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays the scene of a bug. A program that was built with it must find violations, any other must find none.
fn play(name: &str, build: &str) -> ExitCode {
    let bug = SeededBug::ALL.into_iter().find(|bug| bug.name() == name);
    let Some(scene) = bug.and_then(seeded::scene) else {
        eprintln!("no such bug: leasehold-soak --bugs names them");
        return ExitCode::FAILURE;
    };
    let outcome = scene();
    let (found, leases) = (outcome.violations.len(), outcome.recorder.history.leases.len());
    let seconds = outcome.lasted.as_secs_f64();
    println!("{name}, {build}, seed {}: {found} violations in {leases} leases, {seconds:.1} s", outcome.seed);
    if let Some(violation) = outcome.violations.first() {
        println!("{}", report::timeline(&outcome.recorder.history, violation));
    }
    if (build == "seeded") == (found > 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
