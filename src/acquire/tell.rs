//! The log of an acquire, and the program's `on_wait`: the holder it waits for, why it was not won, and an outage.

use std::fmt;

use leasehold_protocol::{check::Check, holder::Holder, rounded::Rounded, troubles::causes};

use tracing::dispatcher::has_been_set;

use super::Acquire;
use crate::{foreign::LeaseSpan, held::Hold, lease::Lease};

/// The holder that was last reported.
#[derive(Debug, Default)]
pub(super) struct ToldHolder(Option<Holder>);

impl ToldHolder {
    fn is(&self, holder: &Holder) -> bool {
        self.0.as_ref().is_some_and(|told| told.is_same(holder))
    }
}

/// Logs a lease that was won, and begins its span. This happens here, where a panic of the subscriber drops the lease.
pub(super) fn tell_acquired(lease: &Lease) {
    let (lock, label, fence) = (lease.name(), lease.label(), u64::from(lease.fence()));
    // Without a subscriber, tracing's feature `log` would make a line of the span.
    if has_been_set() {
        let outcome = tracing::field::Empty;
        let span = tracing::info_span!(target: "leasehold", "lease", lock, label, fence, outcome);
        if let Some(span) = LeaseSpan::new(span) {
            lease.belongs_to(span);
        }
    }
    tracing::debug!(name: "acquired", target: "leasehold", lock, label, fence, "acquired");
}

impl Acquire {
    /// Reports to the log and the program which holder we wait for, if that is news.
    pub(super) fn tell(&self, look: &Check, told: &mut ToldHolder) {
        let (engine, lock) = (&self.engine, self.wanted.key.name());
        match look {
            // The holder is not known yet.
            Check::NotYet | Check::Split { .. } => {}
            Check::Failed(failure) => self.tell_outage(causes(failure), failure),
            Check::Held { holder, .. } if told.is(holder) => {}
            Check::Held { holder, .. } => {
                let holder = engine.watchdog.recognize(&self.wanted.key, holder.clone());
                let remaining = holder.remaining().map(|remaining| tracing::field::display(Rounded(remaining)));
                let label = holder.label();
                if self.waits_for_itself(&holder) {
                    tracing::warn!(name: "wait", target: "leasehold", lock, holder = label, remaining, "waiting for {holder}: this task itself acquired it, and has not released it");
                } else if told.0.is_none() {
                    tracing::info!(name: "wait", target: "leasehold", lock, holder = label, remaining, "waiting for {holder}");
                } else {
                    // A busy lock changes hands often, and each waiter sees it.
                    tracing::debug!(name: "wait", target: "leasehold", lock, holder = label, remaining, "waiting for {holder}");
                }
                self.tell_program(&holder);
                *told = ToldHolder(Some(holder));
            }
        }
    }

    /// Reports to the log and the program why an acquire that does not wait has failed.
    pub(super) fn tell_busy(&self, look: &Check) {
        let lock = self.wanted.key.name();
        match look {
            // The error says it.
            Check::NotYet | Check::Failed(_) => {}
            Check::Split { holder, .. } => {
                tracing::debug!(name: "busy", target: "leasehold", lock, holder = holder.label(), "not acquired: several try at once, and none has a majority of the nodes");
            }
            Check::Held { holder, .. } => {
                let holder = self.engine.watchdog.recognize(&self.wanted.key, holder.clone());
                let remaining = holder.remaining().map(|remaining| tracing::field::display(Rounded(remaining)));
                tracing::debug!(name: "busy", target: "leasehold", lock, holder = holder.label(), remaining, "not acquired: it is held by {holder}");
                self.tell_program(&holder);
            }
        }
    }

    /// Reports the holder to the program, and warns if it is never released. Last, because it runs the program's code.
    fn tell_program(&self, holder: &Holder) {
        if let Some(kind) = holder.not_a_lock() {
            let (lock, key) = (self.wanted.key.name(), self.wanted.key.lock());
            let cause = [format!("{kind} {key}")];
            if let Some(count) = self.engine.misplaced.meet_causes(self.engine.now(), cause) {
                tracing::warn!(name: "misplaced", target: "leasehold", lock, key, kind, count, "the key {key:?} holds a {kind}, which is no lock and is not released: give the lock another name or a prefix, or delete the key");
            }
        }
        if let Some(on_wait) = &self.wanted.on_wait {
            on_wait(holder);
        }
    }

    /// Warns of an outage, once for all acquires that meet it.
    pub(super) fn tell_outage(&self, causes: Vec<String>, failure: &dyn fmt::Display) {
        let (engine, lock) = (&self.engine, self.wanted.key.name());
        if let Some(count) = engine.outages.meet_causes(engine.now(), causes) {
            tracing::warn!(name: "wait", target: "leasehold", lock, %failure, count, "waiting for the server");
        }
    }

    /// Logs the end of an outage.
    pub(super) fn tell_answer(&self) {
        if let Some(count) = self.engine.outages.end() {
            let lock = self.wanted.key.name();
            tracing::info!(name: "wait", target: "leasehold", lock, count, "the server answers again");
        }
    }

    /// Whether the owner that waits here has acquired the lock itself.
    fn waits_for_itself(&self, holder: &Holder) -> bool {
        let is_its_own = |hold: &Hold| hold.owner == self.owner;
        holder.is_ours() && self.owner.is_some() && self.engine.watchdog.has_hold(self.wanted.key.lock(), is_its_own)
    }
}
