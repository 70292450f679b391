//! Prints failovers, and why a waiter or an observer cannot check the lock; keeps why a lease is not renewed. The
//! library reports all of these to `tracing`.

use std::{fmt, sync::Mutex, time::Duration};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use super::now;
use crate::say::tell;

/// How often to print a trouble again while it lasts.
const AGAIN: Duration = Duration::from_secs(60);

/// The reason of the last renewal that failed.
static RENEWAL: Mutex<Option<String>> = Mutex::new(None);

/// Why no renewal is confirmed, in brackets, if it is known.
pub(super) fn of_renewals() -> String {
    let why = RENEWAL.lock().ok().and_then(|why| why.clone());
    why.map_or_else(String::new, |why| format!(" ({why})"))
}

/// Forgets why earlier renewals failed, because one is confirmed: the reason explains no later failure.
pub(super) fn is_over() {
    if let Ok(mut last) = RENEWAL.lock() {
        *last = None;
    }
}

/// From now on, prints why a waiter (at most once in `AGAIN`) or an observer cannot check the lock, and keeps why
/// renewals fail. If `verbose`, it also prints each failover.
pub(crate) fn is_told(verbose: bool) {
    let troubles = Troubles { verbose, told: Mutex::default() };
    let _somebody_did_it_before = tracing::subscriber::set_global_default(troubles);
}

#[derive(Debug)]
struct Troubles {
    verbose: bool,
    told: Mutex<Option<Duration>>,
}

impl Subscriber for Troubles {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.fields().field("failure").is_some() && ["wait", "observe", "renew"].contains(&metadata.name())
            || self.verbose && metadata.name() == "primary"
    }

    fn event(&self, event: &Event<'_>) {
        if event.metadata().name() == "renew" {
            event.record(&mut Failure(|why| {
                if let Ok(mut last) = RENEWAL.lock() {
                    *last = Some(why);
                }
            }));
            return;
        }
        if event.metadata().name() == "primary" {
            let mut failover = Failover::default();
            event.record(&mut failover);
            let Failover { node, before } = failover;
            tell(format_args!(
                "{node} has taken over from {before}: locks that it has are renewed there, and those that it lacks are lost"
            ));
            return;
        }
        if event.metadata().name() == "observe" {
            // The library reports it once for all observers.
            event.record(&mut Failure(|why| tell(format_args!("who holds it is not known: {why}"))));
            return;
        }
        let Ok(mut told) = self.told.lock() else { return };
        if told.is_some_and(|told| now() < told + AGAIN) {
            return;
        }
        *told = Some(now());
        event.record(&mut Failure(|why| tell(format_args!("waiting for the server: {why}"))));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The servers of a failover.
#[derive(Debug, Default)]
struct Failover {
    node: String,
    before: String,
}

impl Visit for Failover {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "node" => value.clone_into(&mut self.node),
            "before" => value.clone_into(&mut self.before),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// Passes on the failure that an event reports.
struct Failure<F>(F);

impl<F: FnMut(String)> Visit for Failure<F> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "failure" {
            (self.0)(format!("{value:?}"));
        }
    }
}
