//! The faults that the nemesis will cause: a function of the seed alone.
//!
//! Each lane has its own list of steps: there is a lane for each server, for each worker process, and for the links of
//! each worker. So faults of one kind overlap with those of every other, but never with themselves.
//!
//! In one round of five, which is longer, the lone server and a majority of the quorum are away for minutes. One
//! process lives through that outage.
//!
//! The plan keeps to the assumptions of the promises (`docs/safety.md`), because otherwise the checks would only find
//! that these are needed. The clocks of a quorum's nodes stay within 0.8 s of each other, which is less than the
//! restart delay. Only a restart makes a node forget its fences.

use std::{fmt, time::Duration};

use crate::{
    chance::Chance,
    setup::{Kind, LONE, Stage},
};

/// How far a node's clock may be from the others' either way.
const ASTRAY: i64 = 400;

/// How long the servers of a long outage are away, and when that begins.
const OUTAGE: Duration = Duration::from_secs(120);
const OUTAGE_AFTER: Duration = Duration::from_secs(15);
/// The least time that a round with a long outage takes.
pub const LONG_ROUND: Duration = Duration::from_secs(180);

/// Whether a round of this seed has a long outage, if it has the time.
pub fn has_outage(stage: Stage, seed: u64) -> bool {
    stage == Stage::Servers && seed % 5 == 0
}

/// A lane of faults, by its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Server(usize),
    Process(u16),
    Links(u16),
}

/// The faults of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    Stop(Duration),
    /// Killed, and back after this time with all its data.
    Restart(Duration),
    /// Killed, and back after minutes with all its data.
    Outage(Duration),
    RestartEmpty(Duration),
    ClockForward(Duration),
    ClockBack(Duration),
    ScriptFlush,
    FlushAll,
    /// The key of one lock is deleted.
    Delete(&'static Kind),
    /// The set of the sharers of one lock is deleted.
    DeletePlaces(&'static Kind),
    /// Another library sets the key, without checking it, for this long.
    Overwrite(&'static Kind, Duration),
    KillClients,
    /// The workers' password changes. One side knows it first, for this long.
    Rotate(First, Duration),
    /// The address resolves to another server with other data; this one keeps running.
    Move,
}

/// The side that knows a new password first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    Server,
    Workers,
}

/// The faults of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessFault {
    Kill(Duration),
    Stop(Duration),
    /// Its log takes no line for this long.
    StallLog(Duration),
}

/// The faults of a worker's link to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkFault {
    Cut,
    BlackHole(Duration),
    Delay(Duration, Duration),
    Freeze(Duration),
    Refuse(Duration),
    /// One command from now on, by its number: the reply is lost, or the link is cut before or after it, or the command
    /// is lost.
    LoseReply(usize),
    LoseCommand(usize),
    CutBefore(usize),
    CutAfter(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Server(ServerFault),
    Process(ProcessFault),
    Link(usize, LinkFault),
}

/// A fault, and the rest before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub after: Duration,
    pub fault: Fault,
}

/// The steps of a lane, as many as it has time for.
pub fn plan(stage: Stage, seed: u64, lane: Lane) -> impl Iterator<Item = Step> {
    let place = match lane {
        Lane::Server(server) => [1, server as u64],
        Lane::Process(slot) => [2, slot.into()],
        Lane::Links(slot) => [3, slot.into()],
    };
    let mut chance = Chance::new(seed, &place);
    let mut astray = 0;
    // Node 3 is there all the time, and so is the first process.
    let is_away = has_outage(stage, seed) && matches!(lane, Lane::Server(0..=2));
    let lives = has_outage(stage, seed) && lane == Lane::Process(0);
    let outage = Step { after: OUTAGE_AFTER, fault: Fault::Server(ServerFault::Outage(OUTAGE)) };
    // Here all tasks wait in one line, so a stopped worker delays all others. With the usual short rests, hardly
    // anything would happen.
    let rests = if stage == Stage::Shared && !matches!(lane, Lane::Server(_)) { 3 } else { 1 };
    let steps = std::iter::repeat_with(move || match lane {
        Lane::Server(LONE) => {
            let after = chance.millis(200, 3_000);
            let of = if stage == Stage::Shared { sharing_server } else { lone_server };
            Step { after, fault: Fault::Server(of(&mut chance)) }
        }
        Lane::Server(_) => {
            let after = chance.millis(300, 4_000);
            Step { after, fault: Fault::Server(node(&mut chance, &mut astray)) }
        }
        Lane::Process(_) => {
            let after = chance.millis(1_000, 6_000);
            let fault = match chance.below(6) {
                0..=2 if !lives => ProcessFault::Kill(chance.millis(0, 300)),
                0..=3 => ProcessFault::StallLog(chance.millis(100, 6_000)),
                _ => ProcessFault::Stop(chance.millis(20, 2_500)),
            };
            Step { after, fault: Fault::Process(fault) }
        }
        Lane::Links(_) => {
            let (after, server) = (chance.millis(50, 1_200), chance.below(stage.servers()));
            Step { after, fault: Fault::Link(server, link(&mut chance)) }
        }
    });
    let steps = steps.map(move |step| Step { after: step.after * rests, ..step });
    is_away.then_some(outage).into_iter().chain(steps)
}

fn lone_server(chance: &mut Chance) -> ServerFault {
    match chance.below(26) {
        23..=25 => ServerFault::Move,
        0..=3 => ServerFault::Stop(chance.millis(5, 1_500)),
        20 => ServerFault::Rotate(First::Server, chance.millis(0, 400)),
        21..=22 => ServerFault::Rotate(First::Workers, chance.millis(0, 400)),
        4..=5 => ServerFault::Restart(chance.millis(0, 300)),
        6 => ServerFault::RestartEmpty(chance.millis(0, 300)),
        7 if chance.one_in(4) => ServerFault::ClockForward(Duration::from_secs(3_600)),
        7..=8 => ServerFault::ClockForward(chance.millis(10, 2_000)),
        9..=10 => ServerFault::ClockBack(chance.millis(10, 2_000)),
        11..=12 => ServerFault::ScriptFlush,
        13 => ServerFault::FlushAll,
        14..=17 => ServerFault::Delete(one_of(chance, Stage::Servers, false)),
        _ => ServerFault::KillClients,
    }
}

/// A fault without a move of the address, because each of two servers would admit as many sharers as it may.
fn sharing_server(chance: &mut Chance) -> ServerFault {
    match chance.below(14) {
        0 => ServerFault::DeletePlaces(one_of(chance, Stage::Shared, false)),
        1 => ServerFault::Overwrite(one_of(chance, Stage::Shared, false), chance.millis(1, 500)),
        2..=3 => ServerFault::Delete(one_of(chance, Stage::Shared, false)),
        _ => loop {
            let fault = lone_server(chance);
            if !matches!(fault, ServerFault::Move | ServerFault::Delete(_)) {
                break fault;
            }
        },
    }
}

/// One of the stage's locks.
fn one_of(chance: &mut Chance, stage: Stage, quorum: bool) -> &'static Kind {
    let here: Vec<&Kind> = stage.kinds().iter().filter(|kind| kind.quorum == quorum).collect();
    here[chance.below(here.len())]
}

fn node(chance: &mut Chance, astray: &mut i64) -> ServerFault {
    match chance.below(20) {
        0..=5 => ServerFault::Stop(chance.millis(5, 1_500)),
        6..=7 => ServerFault::Restart(chance.millis(0, 300)),
        8..=10 => ServerFault::RestartEmpty(chance.millis(0, 300)),
        11..=13 => {
            // A step to anywhere within the bounds.
            let to = i64::try_from(chance.below(2 * 400 + 1)).unwrap_or(0) - ASTRAY;
            let by = Duration::from_millis((to - *astray).unsigned_abs());
            let forward = to > *astray;
            *astray = to;
            if forward { ServerFault::ClockForward(by) } else { ServerFault::ClockBack(by) }
        }
        14 => ServerFault::ScriptFlush,
        15..=17 => ServerFault::Delete(one_of(chance, Stage::Servers, true)),
        _ => ServerFault::KillClients,
    }
}

fn link(chance: &mut Chance) -> LinkFault {
    let nth = chance.below(10) + 1;
    match chance.below(18) {
        0..=2 => LinkFault::Cut,
        3..=4 => LinkFault::BlackHole(chance.millis(10, 1_500)),
        5..=7 => LinkFault::Delay(chance.millis(1, 150), chance.millis(50, 1_500)),
        8..=10 => LinkFault::Freeze(chance.millis(5, 900)),
        11 => LinkFault::Refuse(chance.millis(10, 700)),
        12..=13 => LinkFault::LoseReply(nth),
        14 => LinkFault::LoseCommand(nth),
        15 => LinkFault::CutBefore(nth),
        _ => LinkFault::CutAfter(nth),
    }
}

impl Fault {
    /// The word under which the fault is counted.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Server(fault) => match fault {
                ServerFault::Stop(_) => "server stopped",
                ServerFault::Restart(_) => "server restarted with its data",
                ServerFault::Outage(_) => "server away for minutes",
                ServerFault::RestartEmpty(_) => "server restarted empty",
                ServerFault::ClockForward(_) => "server clock forward",
                ServerFault::ClockBack(_) => "server clock back",
                ServerFault::ScriptFlush => "SCRIPT FLUSH",
                ServerFault::FlushAll => "FLUSHALL",
                ServerFault::Delete(_) => "DEL of a lock",
                ServerFault::DeletePlaces(_) => "DEL of those who share a lock",
                ServerFault::Overwrite(..) => "SET of a lock by another library",
                ServerFault::KillClients => "CLIENT KILL",
                ServerFault::Rotate(..) => "password rotated",
                ServerFault::Move => "address moved",
            },
            Self::Process(ProcessFault::Kill(_)) => "worker killed",
            Self::Process(ProcessFault::Stop(_)) => "worker stopped",
            Self::Process(ProcessFault::StallLog(_)) => "worker's log stalled",
            Self::Link(_, fault) => match fault {
                LinkFault::Cut => "link cut",
                LinkFault::BlackHole(_) => "link black-holed",
                LinkFault::Delay(..) => "link delayed",
                LinkFault::Freeze(_) => "link frozen",
                LinkFault::Refuse(_) => "link refused",
                LinkFault::LoseReply(_) => "reply lost",
                LinkFault::LoseCommand(_) => "command lost",
                LinkFault::CutBefore(_) => "link cut before a command",
                LinkFault::CutAfter(_) => "link cut before a reply",
            },
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Self::Server(ServerFault::Delete(kind) | ServerFault::DeletePlaces(kind)) => write!(f, " ({})", kind.name),
            Self::Server(ServerFault::Overwrite(kind, by)) => write!(f, " ({}, {by:?})", kind.name),
            Self::Server(
                ServerFault::Stop(by)
                | ServerFault::Restart(by)
                | ServerFault::Outage(by)
                | ServerFault::RestartEmpty(by)
                | ServerFault::ClockForward(by)
                | ServerFault::ClockBack(by),
            )
            | Self::Process(ProcessFault::Kill(by) | ProcessFault::Stop(by) | ProcessFault::StallLog(by))
            | Self::Link(_, LinkFault::BlackHole(by) | LinkFault::Freeze(by) | LinkFault::Refuse(by)) => {
                write!(f, " ({by:?})")
            }
            Self::Server(ServerFault::Rotate(first, by)) => write!(f, " ({first:?} first, {by:?})"),
            Self::Link(_, LinkFault::Delay(each_way, by)) => write!(f, " ({each_way:?} each way, {by:?})"),
            Self::Link(
                _,
                LinkFault::LoseReply(nth)
                | LinkFault::LoseCommand(nth)
                | LinkFault::CutBefore(nth)
                | LinkFault::CutAfter(nth),
            ) => write!(f, " (the {nth}. from now)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_function_of_its_seed() {
        let steps = |seed, lane| plan(Stage::Servers, seed, lane).take(100).collect::<Vec<_>>();
        for lane in [Lane::Server(LONE), Lane::Server(2), Lane::Process(1), Lane::Links(0)] {
            assert_eq!(steps(7, lane), steps(7, lane));
            assert_ne!(steps(7, lane), steps(8, lane));
        }
        assert_ne!(steps(7, Lane::Server(1)), steps(7, Lane::Server(2)));
    }

    #[test]
    fn one_round_of_five_has_an_outage_of_minutes_and_a_process_that_lives_through_it() {
        let first = |seed, lane| plan(Stage::Servers, seed, lane).next().map(|step| step.fault);
        for server in 0..Stage::Servers.servers() {
            let is_away = first(5, Lane::Server(server)) == Some(Fault::Server(ServerFault::Outage(OUTAGE)));
            assert_eq!(is_away, server < 3, "{server}");
        }
        assert_ne!(first(4, Lane::Server(LONE)), Some(Fault::Server(ServerFault::Outage(OUTAGE))));
        let dies = |seed| {
            plan(Stage::Servers, seed, Lane::Process(0))
                .take(100)
                .any(|step| matches!(step.fault, Fault::Process(ProcessFault::Kill(_))))
        };
        assert!(dies(4) && !dies(5));
        assert!(OUTAGE_AFTER + OUTAGE < LONG_ROUND);
    }

    #[test]
    fn the_clocks_of_a_quorum_stay_close() {
        let mut at = 0;
        for step in plan(Stage::Servers, 3, Lane::Server(1)).take(10_000) {
            match step.fault {
                Fault::Server(ServerFault::ClockForward(by)) => at += i64::try_from(by.as_millis()).unwrap(),
                Fault::Server(ServerFault::ClockBack(by)) => at -= i64::try_from(by.as_millis()).unwrap(),
                Fault::Server(ServerFault::FlushAll) => panic!("a node forgets without a restart"),
                _ => {}
            }
            assert!(at.abs() <= ASTRAY);
        }
    }

    #[test]
    fn where_locks_are_shared_there_is_one_server_and_its_address_stays() {
        let steps = |lane| plan(Stage::Shared, 5, lane).take(1_000).map(|step| step.fault);
        let of_server: Vec<Fault> = steps(Lane::Server(LONE)).collect();
        assert!(
            !of_server.iter().any(|fault| matches!(fault, Fault::Server(ServerFault::Move | ServerFault::Outage(_))))
        );
        for kind in Stage::Shared.kinds() {
            for fault in [ServerFault::Delete(kind), ServerFault::DeletePlaces(kind)] {
                assert!(of_server.contains(&Fault::Server(fault)), "{fault:?}");
            }
        }
        assert!(steps(Lane::Links(1)).all(|fault| matches!(fault, Fault::Link(LONE, _))));
    }
}
