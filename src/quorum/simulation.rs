//! The whole protocol, simulated: three clients, one, three or five nodes, and everything that may befall them, from one
//! seed. What decides is what is shipped: [`Attempt`](crate::attempt::Attempt), [`Core`](crate::watchdog::Core),
//! [`Tally`](super::tally::Tally), [`Parting`](super::parted::Parting), [`Roll`](super::roll::Roll),
//! [`Backoff`](crate::wait::Backoff), and the memory node's `Store` as each node. Only what carries messages and sets
//! timers is written again, in `client` and `holding`.
//!
//! Checked, with real time at hand that nobody in the simulation can read:
//!
//! 1. No two clients believe in the lock at the same instant, whichever: beliefs are compared as spans, from the win to
//!    the earliest of deadline, release and news of a loss. A client that stands still believes as its clock would say.
//! 2. Fences grow in the order of the wins.
//! 3. What nobody will use is taken off every node, but for what arrives there later; and nothing outlives a TTL.
//! 4. It is no empty promise: leases are won, raised, healed, lost and released, and on a calm day none is lost.
//!
//! That the checks would notice is shown by bugs that the simulated driver can be given: each must be found.

use std::time::Duration;

use self::{
    chance::{Dice, nanos},
    client::Client,
    history::{Counts, Violation},
    weather::{Climate, Weather},
    world::{Event, World},
};

mod chance;
mod client;
mod history;
mod holding;
mod weather;
mod world;

const CLIENTS: usize = 3;

/// What the driver does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A majority that drew different fences is a win with the largest of them.
    NoSecondPhase,
    /// A grant that comes after the attempt has failed is left where it is.
    LateGrantStays,
    /// A node votes as soon as it is up.
    AmnesiacVotes,
    /// A node has its key brought back as soon as it is up.
    HealUnchecked,
    /// A bid is sent again, and its lease counted from there.
    DeadlineFromRetry,
    /// A lease is counted from the answers.
    DeadlineFromReply,
    /// Clocks gain and lose 1 % each, and a TTL allows for 1 % between two of them.
    ClocksTooFast,
}

#[derive(Debug, Clone, Copy)]
struct Scene {
    seed: u64,
    nodes: usize,
    climate: Climate,
    bug: Bug,
}

struct Outcome {
    violations: Vec<Violation>,
    counts: Counts,
    trace: Vec<String>,
}

impl Scene {
    fn run(self) -> Outcome {
        self.play(false)
    }

    fn play(self, is_traced: bool) -> Outcome {
        let mut dice = Dice::new(self.seed);
        let ttl = dice.between(Duration::from_secs(1), Duration::from_secs(3));
        let restart_delay = Duration::from_secs(ttl.as_nanos().div_ceil(1_000_000_000) as u64 + 1);
        let mut weather = Weather::of(self.climate, &mut dice, ttl, restart_delay);
        if self.bug == Bug::ClocksTooFast {
            weather.gains = 10_000;
        }
        let mut world = World::new(CLIENTS, self.nodes, (ttl, restart_delay), weather, self.bug, dice);
        world.trace = is_traced.then(Vec::new);
        let mut clients: Vec<_> = (0..CLIENTS).map(|me| Client::new(me, &mut world)).collect();
        for client in &clients {
            client.try_after(&mut world, Duration::ZERO);
        }
        while let Some(event) = world.next() {
            match event {
                Event::Arrives(message) => world.arrive(message),
                Event::Answered { client, request, said, executed } => {
                    clients[client].hear(&mut world, request, said, executed);
                }
                Event::Rings { client, alarm } => clients[client].ring(&mut world, alarm),
                Event::Dies(client) => clients[client].die(&mut world),
                Event::Restarts(node) => world.restart(node),
                Event::Strikes(trouble) => world.strike(trouble),
            }
        }
        assert!(clients.iter().all(|client| client.sessions.is_empty()), "somebody is still at it");
        world.now = world.now.max(world.last_arrival + nanos(ttl) / 100 * 101);
        world.check_is_empty();
        Outcome {
            violations: world.history.violations(),
            counts: world.history.counts,
            trace: world.trace.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survey() {
        let climates = [Climate::Calm, Climate::Mixed, Climate::Pausing, Climate::Forgetting, Climate::Sly];
        let bugs = [Bug::None, Bug::NoSecondPhase, Bug::LateGrantStays, Bug::AmnesiacVotes, Bug::HealUnchecked, Bug::DeadlineFromRetry, Bug::DeadlineFromReply, Bug::ClocksTooFast];
        let only = std::env::var("BUG").ok();
        for bug in bugs {
        if only.as_ref().is_some_and(|only| *only != format!("{bug:?}")) { continue }
        for climate in climates {
        if std::env::var("CLIMATE").is_ok_and(|only| only != format!("{climate:?}")) { continue }
            for nodes in std::env::var("NODES").map_or(vec![1,3,5], |n| vec![n.parse().unwrap()]) {
                let mut kinds = [0; 4];
                let mut first = [u64::MAX; 4];
                let seeds = std::env::var("SEEDS").map_or(20, |n| n.parse().unwrap());
                for seed in 0..seeds {
                    let outcome = Scene { seed, nodes, climate, bug }.play(true);
                    if std::env::var("DBG").is_ok() {
                        for (i, line) in outcome.trace.iter().enumerate() { if line.contains("betrays") { println!("seed {seed}"); for l in &outcome.trace[i.saturating_sub(12)..outcome.trace.len().min(i+25)] { println!("  {l}"); } } }
                    }
                    let mut has = [false; 4];
                    for violation in outcome.violations {
                        let kind = match violation { Violation::TwoHolders{..} => 0, Violation::FenceFell{..} => 1, Violation::Abandoned{..} => 2, Violation::Immortal{..} => 3 };
                        has[kind] = true;
                        first[kind] = first[kind].min(seed);
                    }
                    for k in 0..4 { kinds[k] += usize::from(has[k]); }
                }
                if kinds != [0; 4] { println!("{bug:?} {climate:?} {nodes}: holders {} fence {} abandoned {} immortal {} of {seeds}, first {first:?}", kinds[0], kinds[1], kinds[2], kinds[3]); }
            }
        }
        println!("{bug:?} done");
        }
    }
}
