//! The thread that reports to the program's subscriber and recorder what has happened on the keeper.

use std::{collections::VecDeque, io, sync::OnceLock, thread, time::Duration};

use parking_lot::{Condvar, Mutex};
use tracing::{
    Level,
    dispatcher::has_been_set,
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
};

use super::{Event, LeaseSpan, on_keeper};
use crate::sync::catching_panics;

/// The most items that wait to be reported. An event takes some 150 bytes and its texts: at most a name of a KiB, a
/// label, an address and an error's text. A full queue takes some 400 KiB if names are short, and 2 MiB if they are as
/// long as possible.
const MOST: usize = 1024;

/// An entry of the queue.
enum Item {
    Event(Event, Option<LeaseSpan>),
    /// A value for a histogram.
    Sample {
        group: u8,
        name: &'static str,
        value: f64,
    },
    /// A step of a span, or the drop of a foreign value. Never left out.
    Step(Box<dyn FnOnce() + Send>),
}

/// The numbers that are reported beside the events: those of `metrics`. All of it runs foreign code.
pub(crate) trait Numbers: Send {
    /// When there is something to report even if nothing happens.
    fn next_in(&self) -> Option<Duration>;
    /// Reports what has changed.
    fn tell(&mut self);
    /// Reports a value of a group's histogram.
    fn sample(&self, group: u8, name: &'static str, value: f64);
}

#[derive(Default)]
struct Teller {
    queue: Mutex<EventQueue>,
    news: Condvar,
}

#[derive(Default)]
struct EventQueue {
    items: VecDeque<Item>,
    dropped: Dropped,
    deltas_are_due: bool,
}

/// The numbers of items that a full queue has dropped.
#[derive(Default)]
struct Dropped {
    events: u64,
    samples: u64,
}

static TELLER: OnceLock<Teller> = OnceLock::new();

/// Starts the thread for events: one for the process, with the numbers of the first call. After a failure the next call
/// tries again.
pub(crate) fn start(numbers: impl Numbers + 'static) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock();
    if !*started {
        let teller = TELLER.get_or_init(Teller::default);
        thread::Builder::new().name("leasehold-events".into()).spawn(move || teller.run(numbers))?;
        *started = true;
    }
    Ok(())
}

/// Reports an event: at once or, on the keeper's thread, through the queue.
pub(crate) fn tell(event: Event) {
    tell_in(None, event);
}

/// Like [`tell`], in the span of a lease.
pub(crate) fn tell_in(span: Option<LeaseSpan>, event: Event) {
    if is_wanted(event.level()) {
        if on_keeper() { put(Item::Event(event, span)) } else { event.emit(span.as_ref()) }
    }
}

/// Like [`tell`], but always through the queue: for threads other than the keeper's that must not be held up.
pub(crate) fn queue(event: Event) {
    if is_wanted(event.level()) {
        put(Item::Event(event, None));
    }
}

/// Reports an event of level DEBUG, which is made only if it is wanted.
pub(crate) fn tell_debug(event: impl FnOnce() -> Event) {
    tell_debug_in(|| None, event);
}

/// Like [`tell_debug`], in the span of a lease.
pub(crate) fn tell_debug_in(span: impl FnOnce() -> Option<LeaseSpan>, event: impl FnOnce() -> Event) {
    if is_wanted(Level::DEBUG) {
        tell_in(span(), event());
    }
}

/// Whether an event of this level is wanted. Reads two atomics, and asks no subscriber. If there has never been one,
/// tracing may forward its events to the `log` crate (its feature `log`). That cannot be queried, so events above
/// DEBUG, which are rare, count as wanted.
fn is_wanted(level: Level) -> bool {
    level <= STATIC_MAX_LEVEL && (level <= LevelFilter::current() || (level < Level::DEBUG && !has_been_set()))
}

/// Queues a value for a histogram; or counts it, if too many items wait.
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "without the feature there are no numbers"))]
pub(crate) fn sample(group: u8, name: &'static str, value: f64) {
    put(Item::Sample { group, name, value });
}

/// Queues a step of foreign code.
pub(super) fn step(step: Box<dyn FnOnce() + Send>) {
    put(Item::Step(step));
}

/// Wakes the thread for events, because there are numbers to report: see `metrics`.
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "without the feature there are no numbers"))]
pub(crate) fn deltas_are_due() {
    if let Some(teller) = TELLER.get() {
        teller.queue.lock().deltas_are_due = true;
        teller.news.notify_one();
    }
}

/// Queues an item; or counts it, if too many wait. Takes a mutex that is never held for long, and does not wait.
fn put(item: Item) {
    let Some(teller) = TELLER.get() else { return };
    teller.queue.lock().put(item);
    teller.news.notify_one();
}

impl EventQueue {
    fn put(&mut self, item: Item) {
        if self.items.len() < MOST || matches!(item, Item::Step(_)) {
            self.items.push_back(item);
            return;
        }
        match item {
            Item::Event(..) => self.dropped.events += 1,
            Item::Sample { .. } => self.dropped.samples += 1,
            Item::Step(_) => {}
        }
    }

    /// The numbers to report, once every kept item is reported, or when [`MOST`] were dropped.
    fn dropped(&mut self) -> Option<Dropped> {
        let number = self.dropped.events + self.dropped.samples;
        let is_due = number >= MOST as u64 || (number > 0 && self.items.is_empty());
        is_due.then(|| std::mem::take(&mut self.dropped))
    }
}

impl Teller {
    fn run(&self, mut numbers: impl Numbers) -> ! {
        let mut queue = self.queue.lock();
        loop {
            let (item, dropped) = (queue.items.pop_front(), queue.dropped());
            let deltas_are_due = std::mem::take(&mut queue.deltas_are_due);
            if item.is_none() && dropped.is_none() && !deltas_are_due {
                if let Some(pause) = numbers.next_in() {
                    let waited = self.news.wait_for(&mut queue, pause);
                    queue.deltas_are_due |= waited.timed_out();
                    continue;
                }
                self.news.wait(&mut queue);
                continue;
            }
            parking_lot::MutexGuard::unlocked(&mut queue, || {
                if deltas_are_due {
                    numbers.tell();
                }
                match item {
                    Some(Item::Event(event, span)) => event.emit(span.as_ref()),
                    Some(Item::Sample { group, name, value }) => numbers.sample(group, name, value),
                    Some(Item::Step(step)) => drop(catching_panics(step)),
                    None => {}
                }
                if let Some(Dropped { events, samples }) = dropped {
                    Event::EventsDropped { events, samples }.emit(None);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_counts_what_it_drops_and_tells_it_when_it_is_empty() {
        let mut queue = EventQueue::default();
        let event = || Item::Event(Event::Reconnect { lock: "job".into() }, None);
        for _ in 0..MOST {
            queue.put(event());
        }
        assert!(queue.dropped().is_none(), "everything has found room");
        for _ in 0..3 {
            queue.put(event());
        }
        assert_eq!(queue.items.len(), MOST);
        queue.put(Item::Step(Box::new(|| {})));
        assert_eq!(queue.items.len(), MOST + 1, "a step finds room");
        assert!(queue.dropped().is_none(), "not before what was kept");
        queue.items.clear();
        assert!(matches!(queue.dropped(), Some(Dropped { events: 3, samples: 0 })));
        assert!(queue.dropped().is_none(), "told once");
    }

    #[test]
    fn a_subscriber_that_is_always_too_slow_hears_of_it_too() {
        let mut queue = EventQueue::default();
        for _ in 0..2 * MOST {
            queue.put(Item::Event(Event::Reconnect { lock: "job".into() }, None));
        }
        assert!(matches!(queue.dropped(), Some(Dropped { events, .. }) if events == MOST as u64));
    }
}
