//! Every event that code of the keeper may report, and the only place that emits it.
//!
//! An event that is emitted elsewhere could run a subscriber on the keeper's thread. A test below keeps tracing's
//! macros out of all files but those whose events belong to a caller's own task.

use std::time::Duration;

use leasehold_protocol::{
    failure::Failure, forced::ForcedRelease, message::Denial, renewal::RenewalAnswer, rounded::Rounded,
};
use tracing::Level;

use super::LeaseSpan;
use crate::{lost::Lost, sync::catching_panics};

const TARGET: &str = "leasehold";

/// The table of events: level, name, variant with the fields that are kept until it is emitted, and text. Fields that
/// are emitted in another form follow `=>`.
macro_rules! events {
    ($($(#[$doc:meta])* $level:ident $name:literal $event:ident { $($field:ident: $type:ty),* }
        $(=> { $($told:tt)* })? $text:literal $(, $arg:expr)?;)*) => {
        /// An event of the keeper.
        #[derive(Debug)]
        pub(crate) enum Event {
            $($(#[$doc])* $event { $($field: $type),* },)*
        }

        impl Event {
            pub(super) fn level(&self) -> Level {
                match self {
                    $(Self::$event { .. } => Level::$level,)*
                }
            }

            fn emit_to_subscriber(&self) {
                match self {
                    $(Self::$event { $($field),* } => {
                        emit!($name, $level, [$($field),*] [$($($told)*)?] $text $(, $arg)?);
                    })*
                }
            }
        }
    };
}

macro_rules! emit {
    ($name:literal, $level:ident, [$($field:ident),*] [] $($text:tt)+) => {
        emit!($name, $level, [] [$($field),*] $($text)+)
    };
    ($name:literal, $level:ident, [$($field:ident),*] [$($told:tt)+] $($text:tt)+) => {
        tracing::event!(name: $name, target: TARGET, Level::$level, { $($told)+ }, $($text)+)
    };
}

events! {
    /// `cause`: why its servers do not serve, if they do not.
    WARN "lost" Lost { label: String, lost: Lost, cause: Option<String> }
        => { lock = lost.name(), label, reason = ?lost.reason(), by = lost.forced().map(ForcedRelease::label), cause }
        "{lost}";
    /// `node`: the server that has the key; none for a quorum. `left`: how long the lease is valid. `cause` as above.
    WARN "at_risk" AtRisk { lock: String, label: String, node: Option<String>, left: Duration, cause: Option<String> }
        => { lock, label, node, left = %Rounded(*left), cause } "the lease is at risk";
    INFO "recovered" Recovered { lock: String, label: String } "a renewal is confirmed again";
    DEBUG "renew" Renewal { lock: String, label: String, node: Option<String>, answer: RenewalAnswer, took: Duration }
        => { lock, label, node, ?answer, took = %Rounded(*took) } "{}", renewed(answer);
    DEBUG "renew" RenewalFailed { lock: String, node: String, failure: Failure }
        => { lock, node, %failure } "a node has not renewed";
    /// `repaired`: the outcome's `Debug`.
    DEBUG "repair" Repair { lock: String, label: String, node: String, repaired: String }
        "the key was lost on a node: it was to be brought back";
    DEBUG "reconnect" Reconnect { lock: String } "renewals go unanswered: there will be a new connection";
    WARN "crowded" Crowded { held: usize, awaited: usize, queued: usize, observed: usize, capacity: usize }
        "more leases, waiters and observed locks than half of the server's tracking-table-max-keys allows: waiters poll, and a \
         loss is told by the next renewal only";
    WARN "crowded" TableFull { table: usize }
        "the server's table of tracked keys is full, with those of all its clients: waiters poll, and a loss is told by the next \
         renewal only";
    INFO "node" NodeAnswers { node: String } "the node answers again";
    /// `count`: how often this happened since the last report.
    WARN "node" NodeSilent { node: String, reason: String, count: u64 }
        "the node does not answer: it is not asked until it does";
    WARN "node" NodeAbsent { node: String, error: String }
        "the node is not there yet: it is connected to in the background";
    WARN "node" NodeRecovers { node: String, votes_in: Duration }
        => { node, votes_in = %Rounded(*votes_in) }
        "the node was started lately, or its clock was set back, and it may have forgotten leases: it gives no vote";
    WARN "node" ServerMoved { node: String }
        "the address leads to another server now: our connections go over to it, and a lease lives on if its key is there";
    WARN "node" ServersMixed { node: String }
        "the address leads now to one server and now to another: no lock is acquired there until it leads to one";
    INFO "node" ServerSettled { node: String } "the address leads to one server again";
    WARN "same_server" SameServer { node: String, other: String }
        "two nodes of the quorum are one server: this one has no vote";
    /// In a cluster, or of a primary behind Sentinel.
    WARN "primary" TakenOver { node: String, before: String, slots: usize, epoch: u64 }
        "a replica has taken over: locks that it has are renewed there, and those that it lacks are lost";
    /// Only `seen` of `wanted` replicas have the last write in time. `count`: how often this happened since the last
    /// report.
    WARN "replicas" TooFewReplicas { node: String, seen: u32, wanted: u8, count: u64 }
        "too few replicas confirm what is written: no lock is acquired there, and leases are not renewed";
    /// `count`: how often they were too few since the last report.
    INFO "replicas" ReplicasAgain { node: String, count: u64 } "enough replicas confirm what is written again";
    /// The primaries have other slots than before.
    DEBUG "topology" Topology { node: String, slots: usize, primaries: usize } "slots are at other servers now";
    /// All that is known of it belongs to another cluster.
    WARN "topology" AnotherCluster { node: String }
        "the servers are of another cluster than before: what was held there is renewed, and lost if it is gone";
    WARN "clocks" ClocksDiffer { node: String, other: String, by: Duration }
        => { node, other, by = %Rounded(*by) }
        "the nodes' clocks differ by more than leases allow for: have them synchronised";
    DEBUG "notifications" NotificationsInterrupted { reason: String } "notifications are interrupted";
    WARN "notifications" NotificationsRefused { reason: String }
        "the server does not tell of changes: waiters poll, and a loss is told by the next renewal";
    DEBUG "connection" Connection { node: String, error: String } "the connection is lost, or cannot be made";
    WARN "credentials" NoCredentials { node: String, reason: String }
        "no credentials: connections that there are go on, and a new one takes the last ones";
    INFO "credentials" CredentialsAgain { node: String } "there are credentials again";
    DEBUG "undo" Undone { lock: String, label: String, was_ours: bool } "taken back: nothing is left of it";
    /// `count`: how many were left for this reason since the last report.
    WARN "undo" UndoLeft { lock: String, label: String, failure: Failure, count: u64 }
        => { lock, label, %failure, count } "not taken back: the key is left to expire";
    /// One of the undos that are otherwise only counted.
    DEBUG "undo" UndoGivenUp { lock: String, label: String, failure: Failure }
        => { lock, label, %failure } "not taken back: the key is left to expire";
    /// After some were left. `count`: how many were left since the last report.
    INFO "undo" UndosGoOn { node: String, count: u64 } "the node takes back again what it is asked to";
    DEBUG "undo" UndoFailed { lock: String, label: String, failure: Failure }
        => { lock, label, %failure } "not taken back yet: it is tried again";
    /// `count`: how often observers failed for this reason since the last report.
    WARN "observe" ObserveFailed { lock: String, failure: String, count: u64 }
        => { lock, %failure, count } "who holds an observed lock is not known";
    /// `count`: how often they failed since the last report.
    INFO "observe" ObserveAgain { lock: String, count: u64 } "observers are answered again";
    WARN "undo" UndosFull { node: String }
        "too many attempts of unknown outcome to undo them all: some are left to expire";
    WARN "events_dropped" EventsDropped { events: u64, samples: u64 }
        "the subscriber or the exporter was too slow: some of what the keeper had to tell is missing";
}

impl Event {
    /// Runs foreign code.
    pub(super) fn emit(&self, span: Option<&LeaseSpan>) {
        let _told = catching_panics(|| match span {
            Some(span) => span.enter(|| self.emit_to_subscriber()),
            None => self.emit_to_subscriber(),
        });
    }
}

/// The text for the outcome of a renewal.
fn renewed(answer: &RenewalAnswer) -> &'static str {
    match answer {
        RenewalAnswer::Confirmed => "renewed",
        RenewalAnswer::Denied(Denial::Gone) => "not renewed: the key is gone",
        RenewalAnswer::Denied(Denial::Taken) => "not renewed: the key holds somebody else's value",
        RenewalAnswer::Denied(Denial::Forced(_)) => "not renewed: the lock was taken away by force",
        RenewalAnswer::Unclear => "not renewed: no answer, or none that says how it is",
        RenewalAnswer::Refused => "not renewed: it is refused",
    }
}

#[cfg(test)]
mod tests;
