//! The faults that the nemesis of a cluster, or of Sentinels, will cause: a function of the seed alone.
//!
//! In a *calm* round, one of three, nothing can lose a write: a primary hands over in peace, slots are moved, replicas
//! and Sentinels stand still. No second holder is forgiven there.

use std::{fmt, time::Duration};

use crate::{chance::Chance, setup::Stage};

/// Whether nothing in a round of this seed can lose a write.
pub fn is_calm(seed: u64) -> bool {
    seed % 3 == 0
}

/// A lane of faults, by its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// A primary and its replicas.
    Shard(usize),
    /// The slots of the locks, which are moved from shard to shard.
    Slots,
    Sentinels,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A replica is ordered to take over.
    Planned,
    /// The primary is killed when its replicas have been cut off for this long, and started as a replica this long
    /// after another has taken over.
    Kill { cut_off: Duration, down: Duration },
    /// It stands still until another has taken over, and for this long after that.
    Freeze { cut_off: Duration, after: Duration },
    /// It stands still for a moment.
    Hiccup(Duration),
    /// A replica stands still, by its number.
    Replica(usize, Duration),
    /// The slot of a lock, by the lock's number, goes this many shards further, and is on its way for this long.
    Reshard { name: usize, by: usize, takes: Duration },
    /// A Sentinel stands still, by its number.
    Sentinel(usize, Duration),
}

/// A fault, and the rest before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub after: Duration,
    pub fault: Fault,
}

/// The steps of a lane, as many as it has time for.
pub fn plan(stage: Stage, seed: u64, lane: Lane) -> Box<dyn Iterator<Item = Step>> {
    let place = match lane {
        Lane::Shard(shard) => [11, shard as u64],
        Lane::Slots => [12, 0],
        Lane::Sentinels => [13, 0],
    };
    let mut chance = Chance::new(seed, &place);
    match lane {
        Lane::Shard(_) => Box::new(std::iter::repeat_with(move || Step {
            after: chance.millis(200, 2_000),
            fault: if is_calm(seed) { calm(stage, &mut chance) } else { stormy(&mut chance) },
        })),
        // Each slot once, and in one direction: there and back it may be lost between servers that hear of it late.
        Lane::Slots => {
            let mut names: Vec<usize> = one_of_each_slot(stage);
            let many = names.len();
            for at in 0..many {
                names.swap(at, at + chance.below(many - at));
            }
            Box::new(names.into_iter().map(move |name| Step {
                after: chance.millis(200, 3_000),
                fault: Fault::Reshard { name, by: chance.below(2) + 1, takes: chance.millis(0, 900) },
            }))
        }
        Lane::Sentinels => Box::new(std::iter::repeat_with(move || Step {
            after: chance.millis(500, 4_000),
            // A Sentinel that stood still for two seconds trusts no clock for thirty, and elects no primary.
            fault: Fault::Sentinel(chance.below(3), chance.millis(100, 1_600)),
        })),
    }
}

fn calm(stage: Stage, chance: &mut Chance) -> Fault {
    // Sentinels promote a replica while the primary keeps running.
    if stage == Stage::Cluster && chance.one_in(2) { Fault::Planned } else { replica(chance) }
}

fn stormy(chance: &mut Chance) -> Fault {
    let cut_off = if chance.one_in(2) { Duration::ZERO } else { chance.millis(50, 1_200) };
    match chance.below(12) {
        0..=2 => Fault::Planned,
        3..=5 => Fault::Kill { cut_off, down: chance.millis(0, 2_000) },
        6..=9 => {
            Fault::Freeze { cut_off, after: if chance.one_in(2) { Duration::ZERO } else { chance.millis(0, 1_500) } }
        }
        10 => Fault::Hiccup(chance.millis(5, 400)),
        _ => replica(chance),
    }
}

fn replica(chance: &mut Chance) -> Fault {
    Fault::Replica(chance.below(2), chance.millis(20, 3_000))
}

/// Locks with one hash tag share a slot.
fn one_of_each_slot(stage: Stage) -> Vec<usize> {
    let kinds = stage.kinds();
    let tag = |name: &'static str| name.split_once('}').map_or(name, |(tag, _)| tag);
    let is_first = |at: &usize| kinds[..*at].iter().all(|other| tag(other.name) != tag(kinds[*at].name));
    (0..kinds.len()).filter(is_first).collect()
}

impl Fault {
    /// The words under which the fault is counted, and then its details.
    fn words(self) -> (&'static str, String) {
        match self {
            Self::Planned => ("planned failover", String::new()),
            Self::Kill { cut_off, down } if cut_off.is_zero() => ("primary killed", format!("{down:?}")),
            Self::Kill { cut_off, down } => {
                ("primary killed without its last writes", format!("{cut_off:?}, {down:?}"))
            }
            Self::Freeze { cut_off, after } if cut_off.is_zero() => {
                ("primary stopped until another took over", format!("{after:?}"))
            }
            Self::Freeze { cut_off, after } => {
                ("primary stopped without its last writes until another took over", format!("{cut_off:?}, {after:?}"))
            }
            Self::Hiccup(by) => ("primary stopped for a moment", format!("{by:?}")),
            Self::Replica(_, by) => ("replica stopped", format!("{by:?}")),
            Self::Reshard { name, by, takes } => ("slot moved", format!("of lock {name}, by {by}, {takes:?}")),
            Self::Sentinel(at, by) => ("Sentinel stopped", format!("{at}, {by:?}")),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, how) = self.words();
        f.write_str(kind)?;
        if how.is_empty() { Ok(()) } else { write!(f, " ({how})") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_function_of_its_seed() {
        let steps = |seed, lane| plan(Stage::Cluster, seed, lane).take(100).collect::<Vec<_>>();
        for lane in [Lane::Shard(0), Lane::Shard(2), Lane::Slots, Lane::Sentinels] {
            assert_eq!(steps(7, lane), steps(7, lane));
            assert_ne!(steps(7, lane), steps(8, lane));
        }
        assert_ne!(steps(7, Lane::Shard(0)), steps(7, Lane::Shard(1)));
    }

    #[test]
    fn nothing_in_a_calm_round_loses_a_write() {
        for stage in [Stage::Cluster, Stage::Sentinel] {
            let faults: Vec<Fault> = plan(stage, 3, Lane::Shard(0)).take(1_000).map(|step| step.fault).collect();
            let has_planned = faults.contains(&Fault::Planned);
            assert_eq!(has_planned, stage == Stage::Cluster, "a Sentinel leaves the old primary as it is");
            assert!(faults.iter().all(|fault| matches!(fault, Fault::Planned | Fault::Replica(..))));
        }
    }

    #[test]
    fn each_slot_is_moved_once() {
        let moved: Vec<usize> = plan(Stage::Cluster, 5, Lane::Slots)
            .map(|step| match step.fault {
                Fault::Reshard { name, by, .. } if (1..=2).contains(&by) => name,
                other => panic!("{other:?}"),
            })
            .collect();
        let mut once = moved.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!((moved.len(), once.len()), (24, 24), "four of the locks share the slots of others");
    }
}
