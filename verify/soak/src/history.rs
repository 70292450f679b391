//! The events of each name, as far as witnesses have reported them: the input of the [checks](crate::check).

use std::collections::{HashMap, HashSet};

use leasehold::Mode;

use crate::record::{Call, Ending, LeaseId, Line, Nanos, Outcome, Ports, Process, Written, now};

/// A lock, and which of the servers have its key.
#[derive(Debug, Clone)]
pub struct Name {
    pub text: String,
    /// One server, or the nodes of a quorum.
    pub servers: std::ops::Range<usize>,
    /// The modes in which it is held.
    pub modes: Vec<Mode>,
}

/// One lease, from the acquire to the end of the belief in it.
#[derive(Debug, Clone)]
pub struct Lease {
    pub id: LeaseId,
    /// The lease whose name its token has on the server: another lease, if it continues that one.
    pub known_as: LeaseId,
    pub name: usize,
    pub mode: Mode,
    pub ttl: Nanos,
    pub fence: u64,
    /// Before the acquire was called: nothing was sent earlier.
    pub invoked: Nanos,
    /// After it had returned.
    pub start: Nanos,
    /// The last moment at which it was believed for certain; `None` if it never was.
    pub end: Option<Nanos>,
    /// The latest deadline that its holder knew of for certain; zero if it never did.
    pub until: Nanos,
    pub how: Ending,
    /// When its holder had learned how it ended; this is unknown for a killed holder.
    pub told: Nanos,
}

/// A write with a lease's fence at a resource of the lease's name.
#[derive(Debug, Clone)]
pub struct Write {
    pub lease: LeaseId,
    pub name: usize,
    pub fence: u64,
    pub from: Nanos,
    pub to: Nanos,
    pub written: Written,
}

/// A release whose answer was that the lock was no longer its lease's.
#[derive(Debug, Clone)]
pub struct LostRelease {
    pub lease: LeaseId,
    pub at: Nanos,
}

/// The content of a name on a server, by one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The server did not answer.
    Unknown,
    Nothing,
    /// A token of this process, and the fence beside it. A foreign token has no process.
    Token(Option<Process>, u64),
    /// The fence of a phase, and its sharers, each of them before its expiry.
    Shared(u64, Box<[LeaseId]>),
}

/// The content of a name on every server, each at some moment between `from` and `to`: for each server, one or more
/// looks.
#[derive(Debug, Clone)]
pub struct Look {
    pub name: usize,
    pub from: Nanos,
    pub to: Nanos,
    pub found: Box<[Found]>,
}

/// An event that took keys away from a server, at some moment between `from` and `to`.
#[derive(Debug, Clone)]
pub struct Loss {
    pub server: usize,
    /// One name, or all of them.
    pub name: Option<usize>,
    pub from: Nanos,
    pub to: Nanos,
    pub cause: Cause,
}

/// The cause that took keys away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A command; the server kept running.
    Deletion,
    /// A command, which deleted the set of the lock's sharers.
    Places,
    EmptyRestart,
    /// The keys run out before their time.
    ClockJump,
    /// The address resolves to another server; this one keeps running for processes that have not resolved it again
    /// yet.
    Move,
    /// A replica has taken over, which may lack the last writes: the number of the failover.
    Failover(usize),
}

/// A takeover by a replica. Servers are known by their ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failover {
    pub shard: usize,
    pub old: u16,
    pub new: u16,
    /// A moment when it was still a replica, and one when it was a primary.
    pub promoted: (Nanos, Nanos),
    /// The moment by which the takeover could be known: another server, or a Sentinel, named the new primary.
    pub named: Nanos,
    /// The old primary was silent after this; `None` if it keeps running.
    pub dead: Option<Nanos>,
    /// Whether it may lack a write that the old one had confirmed: one that hands over in peace waits until it has all.
    pub loses: bool,
}

/// The primaries as a process has seen them from this moment on, as far as it has reported them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub process: Process,
    pub at: Nanos,
    pub ports: Ports,
}

/// A call that had to end within a time of its `from`, and had ended, or was given up, by `to`.
#[derive(Debug, Clone)]
pub struct Timed {
    pub process: Process,
    pub name: usize,
    pub call: Call,
    pub within: Nanos,
    pub from: Nanos,
    pub to: Nanos,
}

/// An observed leader with a smaller fence than the previous leader's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fall {
    pub process: Process,
    pub name: usize,
    /// When the previous leader was reported, and when this one was.
    pub from: Nanos,
    pub to: Nanos,
    pub before: u64,
    pub after: u64,
}

/// A key that is left when every process has gone.
#[derive(Debug, Clone)]
pub struct Remnant {
    pub name: usize,
    pub server: usize,
    pub key: String,
    pub at: Nanos,
    /// How long until it expires, if it does.
    pub lasts: Option<Nanos>,
    /// The server's address resolves to another server.
    pub is_left: bool,
}

/// An action of the nemesis, for readers of the history, and to know which processes could not be in time.
#[derive(Debug, Clone)]
pub struct Mark {
    pub from: Nanos,
    pub to: Nanos,
    pub whom: Whom,
    pub text: String,
}

/// The target of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    Server(usize),
    /// The servers of a shard of a cluster, or the Sentinels that monitor them.
    Shard(usize),
    Process(Process),
    /// The sink of a process's log, which is not an excuse for anything.
    Log(Process),
    Link {
        slot: u16,
        server: usize,
    },
}

/// The resident memory of a process at the start of its work and after it, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub process: Process,
    pub at: Nanos,
    pub before: u64,
    pub after: u64,
}

#[derive(Debug, Default, Clone)]
pub struct History {
    pub names: Vec<Name>,
    pub leases: Vec<Lease>,
    pub writes: Vec<Write>,
    pub lost_releases: Vec<LostRelease>,
    pub looks: Vec<Look>,
    pub losses: Vec<Loss>,
    pub failovers: Vec<Failover>,
    pub named: Vec<Named>,
    pub marks: Vec<Mark>,
    /// The calls that were late, and the last ones.
    pub calls: Vec<Timed>,
    pub falls: Vec<Fall>,
    pub remnants: Vec<Remnant>,
    pub memories: Vec<Memory>,
    /// By how much the machine was late to wake a thread.
    pub lag: Nanos,
}

/// Puts the workers' lines together into a history.
#[derive(Debug, Default)]
pub struct Recorder {
    pub history: History,
    pub outcomes: HashMap<Outcome, u64>,
    pub rested: HashSet<Process>,
    open: HashMap<LeaseId, Lease>,
}

impl Recorder {
    pub fn new(names: Vec<Name>) -> Self {
        Self { history: History { names, ..History::default() }, ..Self::default() }
    }

    pub fn hear(&mut self, line: &Line) {
        match *line {
            Line::Acquired { lease: id, known_as, name, mode, ttl, fence, invoked, start, until } => {
                let (end, until) = (until.map(|_| start), until.unwrap_or(0));
                let (how, told) = (Ending::Killed, Nanos::MAX);
                let of_it = Lease { id, known_as, name, mode, ttl, fence, invoked, start, end, until, how, told };
                self.open.insert(id, of_it);
            }
            Line::Believed { lease, at, until } => {
                if let Some(open) = self.open.get_mut(&lease) {
                    open.end = open.end.max(Some(at));
                    open.until = open.until.max(until);
                }
            }
            Line::Wrote { lease, from, to, written } => {
                if let Some(of) = self.open.get(&lease) {
                    self.history.writes.push(Write { lease, name: of.name, fence: of.fence, from, to, written });
                }
            }
            Line::Ended { lease, at, how } => {
                if let Some(open) = self.open.remove(&lease) {
                    self.close(Lease { how, told: at, ..open });
                }
            }
            Line::ReleaseLost { lease, at } => {
                self.history.lost_releases.push(LostRelease { lease, at });
                *self.outcomes.entry(Outcome::ReleaseLost).or_default() += 1;
            }
            Line::Late { process, name, call, within, from, to } => {
                self.history.calls.push(Timed { process, name, call, within, from, to });
            }
            Line::Fell { process, name, from, to, before, after } => {
                self.history.falls.push(Fall { process, name, from, to, before, after });
            }
            Line::Rested { process, before, after } => {
                self.history.memories.push(Memory { process, at: now(), before, after });
                self.rested.insert(process);
            }
            Line::Named { process, at, ref ports } => {
                self.history.named.push(Named { process, at, ports: ports.clone() });
            }
            Line::Counted(outcome) => *self.outcomes.entry(outcome).or_default() += 1,
        }
    }

    /// Notes that a process was killed. It could have believed in its leases until the deadlines that it knew of.
    pub fn killed(&mut self, process: Process) {
        let of_it: Vec<LeaseId> = self.open.keys().filter(|id| id.process == process).copied().collect();
        for id in of_it {
            if let Some(open) = self.open.remove(&id) {
                self.close(open);
            }
        }
    }

    /// Closes the history: no process reports any more.
    pub fn end(&mut self) {
        for open in std::mem::take(&mut self.open).into_values() {
            self.close(open);
        }
    }

    fn close(&mut self, mut lease: Lease) {
        if lease.how.is_by_deadline() {
            lease.end = lease.end.map(|end| end.max(lease.until));
        }
        self.history.leases.push(lease);
    }
}
