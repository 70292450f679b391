//! A worker's reports about itself, line by line, and the clock that all processes here use.
//!
//! A worker may be killed at any instant, so it writes each line at once, and *before* it acts on it: a release is
//! reported before it is requested. For the check, an unreported event did not happen.

use std::{fmt, str::FromStr};

use leasehold::{LossReason, Mode, SystemClock};
use leasehold_protocol::mode;

/// A moment of this machine's clock that counts suspend, in nanoseconds: the same for every process.
pub type Nanos = u64;

pub const MILLI: Nanos = 1_000_000;

pub fn now() -> Nanos {
    u64::try_from(SystemClock.now().as_nanos()).unwrap_or(Nanos::MAX)
}

/// A process: its place among the workers, and how many were killed there before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    pub slot: u16,
    pub life: u16,
}

/// A lease, among all that were ever held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    pub process: Process,
    pub number: u32,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}.{}", self.slot, self.life)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.process, self.number)
    }
}

/// The error for a text that is not one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

impl FromStr for Process {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let (slot, life) = text.strip_prefix('w').and_then(|rest| rest.split_once('.')).ok_or(Unreadable)?;
        Ok(Self { slot: number(slot)?, life: number(life)? })
    }
}

impl FromStr for LeaseId {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let (process, of_it) = text.split_once('#').ok_or(Unreadable)?;
        Ok(Self { process: process.parse()?, number: number(of_it)? })
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, Unreadable> {
    text.parse().map_err(|_| Unreadable)
}

macro_rules! words {
    ($(#[$attribute:meta])* $name:ident { $($variant:ident = $word:literal,)+ }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($variant),+ }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $name {
            type Err = Unreadable;

            fn from_str(text: &str) -> Result<Self, Unreadable> {
                match text { $($word => Ok(Self::$variant),)+ _ => Err(Unreadable) }
            }
        }
    };
}

words! {
    /// How the belief in a lease ended.
    Ending {
        Release = "release",
        Drop = "drop",
        HandOver = "hand-over",
        Downgrade = "downgrade",
        Expired = "expired",
        NoQuorum = "no-quorum",
        Deleted = "deleted",
        Taken = "taken",
        Forced = "forced",
        FailedOver = "failed-over",
        Stalled = "stalled",
        OtherLoss = "other-loss",
        // Never reported: the parent assigns this to a lease of a killed process.
        Killed = "killed",
    }
}

impl Ending {
    /// The ending by the loss of a lease, by its reason.
    pub fn of(reason: LossReason) -> Self {
        match reason {
            LossReason::Expired => Self::Expired,
            LossReason::NoQuorum => Self::NoQuorum,
            LossReason::Deleted => Self::Deleted,
            LossReason::Taken => Self::Taken,
            LossReason::Forced => Self::Forced,
            LossReason::FailedOver => Self::FailedOver,
            LossReason::Stalled => Self::Stalled,
            _ => Self::OtherLoss,
        }
    }

    /// Whether nothing ended the lease before its deadline did.
    pub fn is_by_deadline(self) -> bool {
        matches!(self, Self::Expired | Self::NoQuorum | Self::Stalled | Self::Killed)
    }
}

words! {
    /// The outcome of a write with a fence.
    Written {
        Accepted = "accepted",
        Refused = "refused",
        Unknown = "unknown",
    }
}

words! {
    /// The outcome of something that has no place in the histories, and is only counted.
    Outcome {
        Released = "released",
        Kept = "released-and-kept",
        Reentered = "re-entered",
        ReleaseLost = "release-lost",
        ReleaseUnknown = "release-unknown",
        TimedOut = "acquire-timed-out",
        Unavailable = "acquire-unavailable",
        Failed = "acquire-failed",
        Abandoned = "acquire-abandoned",
        Adopted = "adopted",
        AdoptedTooLate = "adopted-too-late",
        NotAdopted = "adoption-unavailable",
        Downgraded = "downgraded",
        DowngradeLost = "downgrade-lost",
        DowngradeUnavailable = "downgrade-unavailable",
        // A hundred of them.
        Observed = "hundreds-of-leaders-observed",
    }
}

words! {
    /// A call that has to end in time.
    Call {
        Acquire = "acquire",
        Release = "release",
        Downgrade = "downgrade",
        Signal = "signal",
        // Not reported by a worker: the parent's own call.
        LastAcquire = "acquire after the last fault",
    }
}

/// The primaries as a process sees them: their ports, in order.
pub type Ports = Box<[u16]>;

/// A line of a worker's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// An acquire, begun at `invoked`, had given a lease by `start`. `until` is a deadline that the holder knew for
    /// certain, or nothing if the first check already failed. Its token is called `known_as`.
    Acquired {
        lease: LeaseId,
        known_as: LeaseId,
        name: usize,
        mode: Mode,
        ttl: Nanos,
        fence: u64,
        invoked: Nanos,
        start: Nanos,
        until: Option<Nanos>,
    },
    /// A check that began at `at` succeeded.
    Believed {
        lease: LeaseId,
        at: Nanos,
        until: Nanos,
    },
    /// A write with the lease's fence, begun and answered at these moments.
    Wrote {
        lease: LeaseId,
        from: Nanos,
        to: Nanos,
        written: Written,
    },
    /// The holder does not believe any more, and knew it by `at`.
    Ended {
        lease: LeaseId,
        at: Nanos,
        how: Ending,
    },
    /// The release had been answered by `at`: the lock was no longer this lease's.
    ReleaseLost {
        lease: LeaseId,
        at: Nanos,
    },
    /// A call for this name that had to end within a time was late, or was given up.
    Late {
        process: Process,
        name: usize,
        call: Call,
        within: Nanos,
        from: Nanos,
        to: Nanos,
    },
    /// An observer got a leader with a smaller fence than the previous one's, which it got at `from`.
    Fell {
        process: Process,
        name: usize,
        from: Nanos,
        to: Nanos,
        before: u64,
        after: u64,
    },
    /// From this moment on, the process took these servers for the primaries.
    Named {
        process: Process,
        at: Nanos,
        ports: Ports,
    },
    /// The worker has nothing under way and begins nothing more. Its resident memory at the start of its work and now,
    /// in KiB.
    Rested {
        process: Process,
        before: u64,
        after: u64,
    },
    Counted(Outcome),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquired { lease, known_as, name, mode, ttl, fence, invoked, start, until } => {
                let (limit, permits, until) = (mode::limit(*mode), mode::permits(*mode), until.unwrap_or(0));
                write!(f, "A {lease} {known_as} {name} {limit} {permits} {ttl} {fence} {invoked} {start} {until}")
            }
            Self::Believed { lease, at, until } => write!(f, "B {lease} {at} {until}"),
            Self::Wrote { lease, from, to, written } => write!(f, "W {lease} {from} {to} {written}"),
            Self::Ended { lease, at, how } => write!(f, "E {lease} {at} {how}"),
            Self::ReleaseLost { lease, at } => write!(f, "L {lease} {at}"),
            Self::Late { process, name, call, within, from, to } => {
                write!(f, "T {process} {name} {call} {within} {from} {to}")
            }
            Self::Fell { process, name, from, to, before, after } => {
                write!(f, "O {process} {name} {from} {to} {before} {after}")
            }
            Self::Named { process, at, ports } => {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                write!(f, "N {process} {at} {}", ports.join(","))
            }
            Self::Rested { process, before, after } => write!(f, "R {process} {before} {after}"),
            Self::Counted(outcome) => write!(f, "C {outcome}"),
        }
    }
}

impl FromStr for Line {
    type Err = Unreadable;

    fn from_str(line: &str) -> Result<Self, Unreadable> {
        let mut words = line.split(' ');
        let kind = words.next().ok_or(Unreadable)?;
        let mut word = || words.next().ok_or(Unreadable);
        Ok(match kind {
            "A" => Self::Acquired {
                lease: word()?.parse()?,
                known_as: word()?.parse()?,
                name: number(word()?)?,
                mode: mode::of_limit(number(word()?)?, number(word()?)?),
                ttl: number(word()?)?,
                fence: number(word()?)?,
                invoked: number(word()?)?,
                start: number(word()?)?,
                until: Some(number(word()?)?).filter(|&until| until > 0),
            },
            "B" => Self::Believed { lease: word()?.parse()?, at: number(word()?)?, until: number(word()?)? },
            "W" => Self::Wrote {
                lease: word()?.parse()?,
                from: number(word()?)?,
                to: number(word()?)?,
                written: word()?.parse()?,
            },
            "E" => Self::Ended { lease: word()?.parse()?, at: number(word()?)?, how: word()?.parse()? },
            "L" => Self::ReleaseLost { lease: word()?.parse()?, at: number(word()?)? },
            "T" => Self::Late {
                process: word()?.parse()?,
                name: number(word()?)?,
                call: word()?.parse()?,
                within: number(word()?)?,
                from: number(word()?)?,
                to: number(word()?)?,
            },
            "O" => Self::Fell {
                process: word()?.parse()?,
                name: number(word()?)?,
                from: number(word()?)?,
                to: number(word()?)?,
                before: number(word()?)?,
                after: number(word()?)?,
            },
            "N" => Self::Named {
                process: word()?.parse()?,
                at: number(word()?)?,
                ports: word()?.split(',').map(number).collect::<Result<_, _>>()?,
            },
            "R" => Self::Rested { process: word()?.parse()?, before: number(word()?)?, after: number(word()?)? },
            "C" => Self::Counted(word()?.parse()?),
            _ => return Err(Unreadable),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let process = Process { slot: 2, life: 7 };
        let lease = LeaseId { process, number: 99 };
        let known_as = LeaseId { number: 98, ..lease };
        let acquired = |until| {
            let mode = mode::of_limit(2, NonZeroU32::new(3).unwrap());
            Line::Acquired { lease, known_as, name: 3, mode, ttl: 4, fence: 5, invoked: 6, start: 7, until }
        };
        for line in [
            acquired(Some(8)),
            acquired(None),
            Line::Believed { lease, at: 1, until: 2 },
            Line::Wrote { lease, from: 1, to: 2, written: Written::Refused },
            Line::Ended { lease, at: 3, how: Ending::NoQuorum },
            Line::ReleaseLost { lease, at: 4 },
            Line::Late { process, name: 3, call: Call::Release, within: 4, from: 5, to: 6 },
            Line::Fell { process, name: 3, from: 4, to: 5, before: 7, after: 6 },
            Line::Named { process, at: 5, ports: [7_001, 7_002].into() },
            Line::Rested { process, before: 1, after: 2 },
            Line::Counted(Outcome::Released),
        ] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for bad in ["", "A", "E w1.2#3", "E w1#3 4 release", "E w1.2#3 release", "C thing", "Z 1"] {
            assert_eq!(bad.parse::<Line>(), Err(Unreadable), "{bad:?}");
        }
    }
}
