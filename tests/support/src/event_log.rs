//! The library's events, as text.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::{Layer, Registry};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The log of this process, because a subscriber is process-wide.
#[derive(Debug, Clone, Copy)]
pub struct EventLog(());

impl EventLog {
    /// Begins to log, at the first call in this process.
    pub fn start() -> Self {
        static STARTED: Once = Once::new();
        let log = Self(());
        STARTED.call_once(|| {
            tracing::subscriber::set_global_default(Registry::default().with(log)).expect("it is the only one");
        });
        log
    }

    /// The lines logged, such as `WARN lost lock="job" reason=Deleted` and `span acquire lock="job"`.
    pub fn lines(self) -> Vec<String> {
        lines().clone()
    }

    /// Discards all lines logged so far.
    pub fn clear(self) {
        lines().clear();
    }
}

fn lines() -> MutexGuard<'static, Vec<String>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("a String takes any text");
    }
}

fn log(metadata: &Metadata<'_>, kind: &str, record: impl FnOnce(&mut Line)) {
    if metadata.target() == "leasehold" {
        let mut line = Line(format!("{kind} {}", metadata.name()));
        record(&mut line);
        lines().push(line.0);
    }
}

impl<S: Subscriber> Layer<S> for EventLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        log(metadata, metadata.level().as_str(), |line| event.record(line));
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        log(attributes.metadata(), "span", |line| attributes.record(line));
    }
}
