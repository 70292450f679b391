use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::SystemTime,
};

use tracing::{
    Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use leasehold_protocol::fence;

use super::*;
use crate::LossReason;

/// Keeps the level and the text of the last event.
#[derive(Clone, Default)]
struct Last(Arc<Mutex<Option<(Level, String)>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Last {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        *self.0.lock().unwrap() = Some((*event.metadata().level(), message.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn all() -> Vec<Event> {
    let text = || "text".to_owned();
    let lost = Lost::new("job", fence::ZERO, LossReason::Expired.into(), SystemTime::UNIX_EPOCH, Duration::ZERO);
    vec![
        Event::Lost { label: text(), lost, cause: None },
        Event::AtRisk { lock: text(), label: text(), node: Some(text()), left: Duration::ZERO, cause: Some(text()) },
        Event::Recovered { lock: text(), label: text() },
        Event::Renewal {
            lock: text(),
            label: text(),
            node: None,
            answer: RenewalAnswer::Unclear,
            took: Duration::ZERO,
        },
        Event::RenewalFailed { lock: text(), node: text(), failure: Failure::unknown("no answer") },
        Event::Repair { lock: text(), label: text(), node: text(), repaired: text() },
        Event::Reconnect { lock: text() },
        Event::Crowded { held: 1, awaited: 2, queued: 3, observed: 5, capacity: 4 },
        Event::TableFull { table: 1 },
        Event::ObserveFailed { lock: text(), failure: text(), count: 1 },
        Event::ObserveAgain { lock: text(), count: 1 },
        Event::NodeAnswers { node: text() },
        Event::NodeSilent { node: text(), reason: text(), count: 1 },
        Event::NodeAbsent { node: text(), error: text() },
        Event::NodeRecovers { node: text(), votes_in: Duration::ZERO },
        Event::SameServer { node: text(), other: text() },
        Event::ClocksDiffer { node: text(), other: text(), by: Duration::ZERO },
        Event::NotificationsInterrupted { reason: text() },
        Event::NotificationsRefused { reason: text() },
        Event::Connection { node: text(), error: text() },
        Event::Undone { lock: text(), label: text(), was_ours: true },
        Event::UndoLeft { lock: text(), label: text(), failure: Failure::unknown("no answer"), count: 1 },
        Event::UndoGivenUp { lock: text(), label: text(), failure: Failure::unknown("no answer") },
        Event::UndosGoOn { node: text(), count: 1 },
        Event::UndoFailed { lock: text(), label: text(), failure: Failure::unknown("no answer") },
        Event::UndosFull { node: text() },
        Event::EventsDropped { events: 1, samples: 2 },
    ]
}

/// The files whose events belong to a caller's own task.
const CALLERS: [&str; 3] = ["acquire/tell.rs", "engine/release.rs", "hand_over.rs"];

fn files_with_events(directory: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_with_events(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let macros = ["event", "error", "warn", "info", "debug", "trace"].map(|name| format!("tracing::{name}!("));
        if macros.iter().any(|name| text.contains(name)) {
            found.insert(path);
        }
    }
}

#[test]
fn the_keeper_tells_no_event_from_elsewhere() {
    let (root, mut found) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), BTreeSet::new());
    files_with_events(&root, &mut found);
    let allowed = CALLERS.into_iter().chain(["foreign/events.rs"]).map(|path| root.join(path)).collect();
    assert_eq!(found, allowed);
}

#[test]
fn what_other_crates_tell_on_the_keepers_thread_comes_to_no_subscriber() {
    let last = Last::default();
    let heard = last.clone();
    let tell = || Event::Reconnect { lock: "job".into() }.emit(None);
    let keeper = std::thread::Builder::new().spawn(move || {
        tracing::subscriber::with_default(last, || {
            tell();
            let before = heard.0.lock().unwrap().take();
            crate::foreign::this_thread_is_the_keepers();
            tell();
            (before.map(|(level, _)| level), heard.0.lock().unwrap().take())
        })
    });
    assert_eq!(keeper.unwrap().join().unwrap(), (Some(Level::DEBUG), None));
}

#[test]
fn an_event_has_a_text_and_the_level_by_which_it_is_wanted() {
    let last = Last::default();
    tracing::subscriber::with_default(last.clone(), || {
        for event in all() {
            event.emit(None);
            let (level, text) = last.0.lock().unwrap().take().unwrap();
            assert_eq!(level, event.level(), "{event:?}");
            assert!(!text.is_empty() && text.len() < 200, "{event:?}: {text:?}");
        }
    });
}
