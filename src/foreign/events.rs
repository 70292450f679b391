//! Every event that code of the keeper may tell, and the only place where it is told.
//!
//! An event that is told elsewhere could run a subscriber on the keeper's thread. A test below keeps tracing's macros
//! out of all files but those whose events belong to a caller's own task.

use std::time::Duration;

use leasehold_protocol::{
    failure::Failure, forced::ForcedRelease, message::Denial, renewal::RenewalAnswer, rounded::Rounded,
};
use tracing::{
    Level,
    dispatcher::has_been_set,
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
};

use super::{LeaseSpan, on_keeper, teller};
use crate::{lost::Lost, sync::catching_panics};

const TARGET: &str = "leasehold";

/// An event of the keeper, with all that it takes to tell it later on another thread.
#[derive(Debug)]
pub(crate) enum Event {
    Lost {
        label: String,
        lost: Lost,
        /// Why its servers do not serve, if they do not.
        cause: Option<String>,
    },
    AtRisk {
        lock: String,
        label: String,
        /// The server that has the key; of a quorum none.
        node: Option<String>,
        /// How long the lease is valid.
        left: Duration,
        /// As above.
        cause: Option<String>,
    },
    Recovered {
        lock: String,
        label: String,
    },
    Renewal {
        lock: String,
        label: String,
        node: Option<String>,
        answer: RenewalAnswer,
        took: Duration,
    },
    RenewalFailed {
        lock: String,
        node: String,
        failure: Failure,
    },
    /// With the outcome's `Debug`.
    Repair {
        lock: String,
        label: String,
        node: String,
        repaired: String,
    },
    Reconnect {
        lock: String,
    },
    Crowded {
        held: usize,
        awaited: usize,
        queued: usize,
        observed: usize,
        capacity: usize,
    },
    TableFull {
        table: usize,
    },
    NodeAnswers {
        node: String,
    },
    /// With how often that was so since it was last told.
    NodeSilent {
        node: String,
        reason: String,
        count: u64,
    },
    NodeAbsent {
        node: String,
        error: String,
    },
    NodeRecovers {
        node: String,
        votes_in: Duration,
    },
    ServerMoved {
        node: String,
    },
    ServersMixed {
        node: String,
    },
    ServerSettled {
        node: String,
    },
    SameServer {
        node: String,
        other: String,
    },
    /// Of a cluster, or of a primary behind Sentinel.
    TakenOver {
        node: String,
        before: String,
        slots: usize,
        epoch: u64,
    },
    /// Of what was written there, `seen` of `wanted` replicas have the last in time. With how often that was so since it
    /// was last told.
    TooFewReplicas {
        node: String,
        seen: u32,
        wanted: u8,
        count: u64,
    },
    /// With how often they were too few since that was last told.
    ReplicasAgain {
        node: String,
        count: u64,
    },
    /// The primaries have other slots than before.
    Topology {
        node: String,
        slots: usize,
        primaries: usize,
    },
    /// All that is known of it is of another one.
    AnotherCluster {
        node: String,
    },
    ClocksDiffer {
        node: String,
        other: String,
        by: Duration,
    },
    NotificationsInterrupted {
        reason: String,
    },
    NotificationsRefused {
        reason: String,
    },
    Connection {
        node: String,
        error: String,
    },
    NoCredentials {
        node: String,
        reason: String,
    },
    CredentialsAgain {
        node: String,
    },
    Undone {
        lock: String,
        label: String,
        was_ours: bool,
    },
    /// With how many were left for this reason since that was last told.
    UndoLeft {
        lock: String,
        label: String,
        failure: Failure,
        count: u64,
    },
    /// One of those that are only counted.
    UndoGivenUp {
        lock: String,
        label: String,
        failure: Failure,
    },
    /// After some were left. With how many were left since that was last told.
    UndosGoOn {
        node: String,
        count: u64,
    },
    UndoFailed {
        lock: String,
        label: String,
        failure: Failure,
    },
    /// With how often observers failed for this reason since that was last told.
    ObserveFailed {
        lock: String,
        failure: String,
        count: u64,
    },
    /// With how often they failed since that was last told.
    ObserveAgain {
        lock: String,
        count: u64,
    },
    UndosFull {
        node: String,
    },
    EventsDropped {
        events: u64,
        samples: u64,
    },
}

/// Tells an event: at once, or, on the keeper's thread, through the queue.
pub(crate) fn tell(event: Event) {
    tell_in(None, event);
}

/// The same in the span of a lease.
pub(crate) fn tell_in(span: Option<LeaseSpan>, event: Event) {
    if is_wanted(event.level()) {
        if on_keeper() { teller::queue(event, span) } else { event.emit(span.as_ref()) }
    }
}

/// The same from a thread that nothing may hold up, though it is not the keeper's: through the queue.
pub(crate) fn queue(event: Event) {
    if is_wanted(event.level()) {
        teller::queue(event, None);
    }
}

/// Tells an event of level DEBUG, which is made only if somebody wants it.
pub(crate) fn tell_debug(event: impl FnOnce() -> Event) {
    tell_debug_in(|| None, event);
}

/// The same in the span of a lease.
pub(crate) fn tell_debug_in(span: impl FnOnce() -> Option<LeaseSpan>, event: impl FnOnce() -> Event) {
    if is_wanted(Level::DEBUG) {
        tell_in(span(), event());
    }
}

/// Asks two atomics, and no subscriber. Where there has never been one, tracing may forward its events to the `log`
/// crate (its feature `log`). That cannot be asked here: events above DEBUG, which are rare, go there.
fn is_wanted(level: Level) -> bool {
    level <= STATIC_MAX_LEVEL && (level <= LevelFilter::current() || (level < Level::DEBUG && !has_been_set()))
}

impl Event {
    fn level(&self) -> Level {
        match self {
            Self::Recovered { .. }
            | Self::NodeAnswers { .. }
            | Self::CredentialsAgain { .. }
            | Self::ServerSettled { .. }
            | Self::ReplicasAgain { .. }
            | Self::ObserveAgain { .. }
            | Self::UndosGoOn { .. } => Level::INFO,
            Self::Renewal { .. }
            | Self::RenewalFailed { .. }
            | Self::Repair { .. }
            | Self::Reconnect { .. }
            | Self::NotificationsInterrupted { .. }
            | Self::Connection { .. }
            | Self::Topology { .. }
            | Self::Undone { .. }
            | Self::UndoGivenUp { .. }
            | Self::UndoFailed { .. } => Level::DEBUG,
            Self::Lost { .. }
            | Self::AtRisk { .. }
            | Self::Crowded { .. }
            | Self::TableFull { .. }
            | Self::NodeSilent { .. }
            | Self::NodeAbsent { .. }
            | Self::NodeRecovers { .. }
            | Self::ServerMoved { .. }
            | Self::ServersMixed { .. }
            | Self::SameServer { .. }
            | Self::TakenOver { .. }
            | Self::TooFewReplicas { .. }
            | Self::AnotherCluster { .. }
            | Self::ClocksDiffer { .. }
            | Self::NotificationsRefused { .. }
            | Self::NoCredentials { .. }
            | Self::ObserveFailed { .. }
            | Self::UndoLeft { .. }
            | Self::UndosFull { .. }
            | Self::EventsDropped { .. } => Level::WARN,
        }
    }

    /// Runs foreign code.
    pub(super) fn emit(&self, span: Option<&LeaseSpan>) {
        let _told = catching_panics(|| match span {
            Some(span) => span.enter(|| self.emit_to_subscriber()),
            None => self.emit_to_subscriber(),
        });
    }

    #[allow(clippy::too_many_lines, reason = "a list")]
    fn emit_to_subscriber(&self) {
        match self {
            Self::Lost { label, lost, cause } => {
                let (lock, reason, by) = (lost.name(), lost.reason(), lost.forced().map(ForcedRelease::label));
                let cause = cause.as_deref();
                tracing::warn!(name: "lost", target: TARGET, lock, label, ?reason, by, cause, "{lost}");
            }
            Self::AtRisk { lock, label, node, left, cause } => {
                let (node, left, cause) = (node.as_deref(), Rounded(*left), cause.as_deref());
                tracing::warn!(name: "at_risk", target: TARGET, lock, label, node, %left, cause, "a renewal is not confirmed");
            }
            Self::Recovered { lock, label } => {
                tracing::info!(name: "recovered", target: TARGET, lock, label, "a renewal is confirmed again");
            }
            Self::Renewal { lock, label, node, answer, took } => {
                let node = node.as_deref();
                tracing::debug!(name: "renew", target: TARGET, lock, label, node, ?answer, took = %Rounded(*took), "{}", renewed(answer));
            }
            Self::RenewalFailed { lock, node, failure } => {
                tracing::debug!(name: "renew", target: TARGET, lock, node, %failure, "a node has not renewed");
            }
            Self::Repair { lock, label, node, repaired } => {
                tracing::debug!(name: "repair", target: TARGET, lock, label, node, %repaired, "the key was lost on a node: it was to be brought back");
            }
            Self::Reconnect { lock } => {
                tracing::debug!(name: "reconnect", target: TARGET, lock, "renewals go unanswered: there will be a new connection");
            }
            Self::Crowded { held, awaited, queued, observed, capacity } => {
                tracing::warn!(
                    name: "crowded", target: TARGET, held, awaited, queued, observed, capacity,
                    "more leases, waiters and observed locks than half of the server's tracking-table-max-keys allows: waiters poll, and \
                     a loss is told by the next renewal only"
                );
            }
            Self::TableFull { table } => {
                tracing::warn!(
                    name: "crowded", target: TARGET, table,
                    "the server's table of tracked keys is full, with those of all its clients: waiters poll, and a loss is told \
                     by the next renewal only"
                );
            }
            Self::NodeAnswers { node } => {
                tracing::info!(name: "node", target: TARGET, node, "the node answers again");
            }
            Self::NodeSilent { node, reason, count } => {
                tracing::warn!(name: "node", target: TARGET, node, reason, count, "the node does not answer: it is not asked until it does");
            }
            Self::NodeAbsent { node, error } => {
                tracing::warn!(name: "node", target: TARGET, node, error, "the node is not there yet: it is connected to in the background");
            }
            Self::NodeRecovers { node, votes_in } => {
                tracing::warn!(
                    name: "node", target: TARGET, node, votes_in = %Rounded(*votes_in),
                    "the node was started lately, or its clock was set back, and it may have forgotten leases: it gives no vote"
                );
            }
            Self::ServerMoved { node } => {
                tracing::warn!(
                    name: "node", target: TARGET, node,
                    "the address leads to another server now: our connections go over to it, and a lease lives on if its key is there"
                );
            }
            Self::ServersMixed { node } => {
                tracing::warn!(
                    name: "node", target: TARGET, node,
                    "the address leads now to one server and now to another: no lock is acquired there until it leads to one"
                );
            }
            Self::ServerSettled { node } => {
                tracing::info!(name: "node", target: TARGET, node, "the address leads to one server again");
            }
            Self::SameServer { node, other } => {
                tracing::warn!(
                    name: "same_server", target: TARGET, node, other,
                    "two nodes of the quorum are one server: this one has no vote"
                );
            }
            Self::TakenOver { node, before, slots, epoch } => {
                tracing::warn!(
                    name: "primary", target: TARGET, node, before, slots, epoch,
                    "a replica has taken over: locks that it has are renewed there, and those that it lacks are lost"
                );
            }
            Self::TooFewReplicas { node, seen, wanted, count } => {
                tracing::warn!(
                    name: "replicas", target: TARGET, node, seen, wanted, count,
                    "too few replicas confirm what is written: no lock is acquired there, and leases are not renewed"
                );
            }
            Self::ReplicasAgain { node, count } => {
                tracing::info!(name: "replicas", target: TARGET, node, count, "enough replicas confirm what is written again");
            }
            Self::Topology { node, slots, primaries } => {
                tracing::debug!(name: "topology", target: TARGET, node, slots, primaries, "slots are at other servers now");
            }
            Self::AnotherCluster { node } => {
                tracing::warn!(
                    name: "topology", target: TARGET, node,
                    "the servers are of another cluster than before: what was held there is renewed, and lost if it is gone"
                );
            }
            Self::ClocksDiffer { node, other, by } => {
                tracing::warn!(
                    name: "clocks", target: TARGET, node, other, by = %Rounded(*by),
                    "the nodes' clocks differ by more than leases allow for: have them synchronised"
                );
            }
            Self::NotificationsInterrupted { reason } => {
                tracing::debug!(name: "notifications", target: TARGET, reason, "notifications are interrupted");
            }
            Self::NotificationsRefused { reason } => {
                tracing::warn!(
                    name: "notifications", target: TARGET, reason,
                    "the server does not tell of changes: waiters poll, and a loss is told by the next renewal"
                );
            }
            Self::Connection { node, error } => {
                tracing::debug!(name: "connection", target: TARGET, node, error, "the connection is lost, or cannot be made");
            }
            Self::NoCredentials { node, reason } => {
                tracing::warn!(
                    name: "credentials", target: TARGET, node, reason,
                    "no credentials: connections that there are go on, and a new one takes the last ones"
                );
            }
            Self::CredentialsAgain { node } => {
                tracing::info!(name: "credentials", target: TARGET, node, "there are credentials again");
            }
            Self::Undone { lock, label, was_ours } => {
                tracing::debug!(name: "undo", target: TARGET, lock, label, was_ours, "taken back: nothing is left of it");
            }
            Self::UndoLeft { lock, label, failure, count } => {
                tracing::warn!(name: "undo", target: TARGET, lock, label, %failure, count, "not taken back: the key is left to expire");
            }
            Self::UndoGivenUp { lock, label, failure } => {
                tracing::debug!(name: "undo", target: TARGET, lock, label, %failure, "not taken back: the key is left to expire");
            }
            Self::UndosGoOn { node, count } => {
                tracing::info!(name: "undo", target: TARGET, node, count, "the node takes back again what it is asked to");
            }
            Self::UndoFailed { lock, label, failure } => {
                tracing::debug!(name: "undo", target: TARGET, lock, label, %failure, "not taken back yet: it is tried again");
            }
            Self::ObserveFailed { lock, failure, count } => {
                tracing::warn!(name: "observe", target: TARGET, lock, %failure, count, "who holds an observed lock is not known");
            }
            Self::ObserveAgain { lock, count } => {
                tracing::info!(name: "observe", target: TARGET, lock, count, "observers are answered again");
            }
            Self::UndosFull { node } => {
                tracing::warn!(
                    name: "undo", target: TARGET, node,
                    "too many attempts of unknown outcome to undo them all: some are left to expire"
                );
            }
            Self::EventsDropped { events, samples } => {
                tracing::warn!(
                    name: "events_dropped", target: TARGET, events, samples,
                    "the subscriber or the exporter was too slow: some of what the keeper had to tell is missing"
                );
            }
        }
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
