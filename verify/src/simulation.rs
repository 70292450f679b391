//! The whole protocol, simulated: three clients, one, three or five nodes, and everything that may happen to them, from
//! one seed. The shipped code decides: the machines of [`leasehold_protocol`], and its `Store` as each node. Only the
//! code that carries messages and sets timers is written again, in `client` and `holding`.
//!
//! The checks know real time, which no part of the simulation can read:
//!
//! 1. No two clients believe in the lock at the same instant, at whatever instant. Beliefs are compared as spans, from
//!    the win to the earliest of deadline, release and news of a loss. A client that stands still believes as its clock
//!    would say.
//! 2. Fences grow in the order of the wins.
//! 3. A key that will not be used is taken off every node, unless it arrives there later; and nothing outlives the life
//!    of a key.
//! 4. No client wins before the end of an interval in which the lock is acquired once, or before the delay after a
//!    lease that was not let go of.
//! 5. The promise is not empty: leases are won, raised, repaired, lost and released, and without faults none is lost.
//!
//! Seeded bugs show that the checks would notice: each must be found.

use std::time::Duration;

use self::{
    chance::{Dice, Real, nanos},
    client::Client,
    history::{Counts, Violation},
    profile::FaultProfile,
    world::{Event, World},
};
use crate::seeded::SeededBug;

mod chance;
mod client;
mod event;
mod history;
mod holding;
mod profile;
mod session;
mod tests;
mod world;

const CLIENTS: usize = 3;

/// The longest life of a key that outlives its lease, in TTLs.
const LONGEST_LIFE: u32 = 4;

#[derive(Debug, Clone, Copy)]
struct Scene {
    seed: u64,
    nodes: usize,
    profile: FaultProfile,
    /// Whether keys outlive their leases.
    outlives: bool,
    /// The driver's bug, if any.
    bug: Option<SeededBug>,
}

struct Outcome {
    violations: Vec<Violation>,
    counts: Counts,
    /// The events and their times, if a trace was asked for.
    trace: Vec<(Real, String)>,
}

impl Scene {
    fn play(self, is_traced: bool) -> Outcome {
        let mut dice = Dice::new(self.seed);
        let any = dice.between(Duration::from_secs(1), Duration::from_secs(3));
        let ttl = if dice.percent(50) { any } else { Duration::from_secs(any.as_secs()) };
        // Whole seconds, and one more, because servers count whole seconds.
        let more = u64::from(self.bug != Some(SeededBug::DelayTooShort));
        let longest_life = if self.outlives { ttl * LONGEST_LIFE } else { ttl };
        let restart_delay = Duration::from_secs(nanos(longest_life).div_ceil(1_000_000_000) + more);
        let mut faults = self.profile.draw(&mut dice, ttl, restart_delay);
        if self.bug == Some(SeededBug::ClocksTooFast) {
            faults.gains = 10_000;
        }
        let mut world = World::new(CLIENTS, self.nodes, (ttl, longest_life, restart_delay), faults, self.bug, dice);
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
                Event::Inject(fault) => world.inject(fault),
            }
        }
        assert!(clients.iter().all(|client| client.sessions.is_empty()), "a client is still at work");
        world.now = world.now.max(world.last_arrival + nanos(longest_life) / 100 * 101);
        world.check_is_empty();
        Outcome {
            violations: world.history.violations(),
            counts: world.history.counts,
            trace: world.trace.unwrap_or_default(),
        }
    }
}
