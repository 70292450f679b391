//! Why a wait does not come to a look at the lock: the library says so to `tracing`, and the tool to who reads it.

use std::{fmt, sync::Mutex, time::Duration};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use super::now;
use crate::say::tell;

/// How often it is said again, while it lasts.
const AGAIN: Duration = Duration::from_secs(60);

/// Tells, from now on, what keeps a waiter from its look. With a server that is away that may be each look.
pub(super) fn is_told() {
    let _somebody_did_it_before = tracing::subscriber::set_global_default(Troubles::default());
}

#[derive(Debug, Default)]
struct Troubles {
    told: Mutex<Option<Duration>>,
}

impl Subscriber for Troubles {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.name() == "wait" && *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let Ok(mut told) = self.told.lock() else { return };
        if told.is_some_and(|told| now() < told + AGAIN) {
            return;
        }
        *told = Some(now());
        event.record(&mut Failure);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What the event says of the server.
struct Failure;

impl Visit for Failure {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "failure" {
            tell(format_args!("waiting for the server: {value:?}"));
        }
    }
}
