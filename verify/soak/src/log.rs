//! A log that stops taking lines on command, as a full pipe does: the nemesis of any code that logs.
//!
//! It blocks only threads that the worker has not started itself. If it blocked the worker's own thread, on which its
//! jobs run, the worker would be as if stopped, which is another fault.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::ThreadId,
    time::Duration,
};

use tracing::{
    Event, Metadata, Subscriber,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};

/// The longest time that a line is blocked.
const LONGEST: Duration = Duration::from_secs(20);

/// The log of this process.
#[derive(Clone)]
pub struct StallingLog(Arc<Stall>);

struct Stall {
    stalls: Mutex<bool>,
    changed: Condvar,
    own: ThreadId,
}

impl StallingLog {
    /// Takes all lines of this process from now on.
    pub fn start() -> Self {
        let own = std::thread::current().id();
        let log = Self(Arc::new(Stall { stalls: Mutex::new(false), changed: Condvar::new(), own }));
        tracing::subscriber::set_global_default(log.clone()).expect("it is the only one");
        log
    }

    pub fn stall(&self, stalls: bool) {
        *self.0.stalls.lock().unwrap_or_else(PoisonError::into_inner) = stalls;
        self.0.changed.notify_all();
    }
}

impl Subscriber for StallingLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "leasehold"
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        if std::thread::current().id() == self.0.own {
            return;
        }
        let stalls = self.0.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let _released = self.0.changed.wait_timeout_while(stalls, LONGEST, |stalls| *stalls);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
