//! The thread that tells the program's subscriber and recorder what has happened on the keeper.

use std::{collections::VecDeque, io, sync::OnceLock, thread};

use parking_lot::{Condvar, Mutex};

use super::{Event, relay};
#[cfg(feature = "metrics")]
use crate::metrics;
use crate::sync::catching_panics;

/// The most that waits to be told. An event takes some 150 bytes and its texts, at most a name of a KiB, a label, an
/// address and an error's text: some 400 KiB in all where names are short, 2 MiB where they are as long as can be.
const MOST: usize = 1024;

/// An event, or a value for a histogram.
enum Item {
    Event(Event),
    #[cfg(feature = "metrics")]
    Sample {
        group: metrics::Group,
        name: &'static str,
        value: f64,
    },
}

#[derive(Default)]
struct Teller {
    queue: Mutex<Queue>,
    news: Condvar,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    dropped: Dropped,
    deltas_are_due: bool,
    has_thread: bool,
}

/// What the queue had no room for.
#[derive(Default)]
struct Dropped {
    events: u64,
    samples: u64,
}

static TELLER: OnceLock<Teller> = OnceLock::new();

pub(super) fn start() -> io::Result<()> {
    let teller = TELLER.get_or_init(Teller::default);
    if !teller.queue.lock().has_thread {
        thread::Builder::new().name("leasehold-events".into()).spawn(|| {
            // Until then no waker is trusted, and after a failure none ever is: slower, and as good.
            let _learnt = catching_panics(relay::learn);
            teller.run();
        })?;
        teller.queue.lock().has_thread = true;
    }
    Ok(())
}

/// Has an event told; or counts it, if too many wait. Takes a lock that nobody keeps, and does not wait.
pub(super) fn queue(event: Event) {
    put(Item::Event(event));
}

/// Has a value recorded by a histogram; or counts it, if too much waits.
#[cfg(feature = "metrics")]
pub(crate) fn sample(group: metrics::Group, name: &'static str, value: f64) {
    put(Item::Sample { group, name, value });
}

/// There are numbers to tell: see `metrics`.
#[cfg(feature = "metrics")]
pub(crate) fn deltas_are_due() {
    if let Some(teller) = TELLER.get() {
        teller.queue.lock().deltas_are_due = true;
        teller.news.notify_one();
    }
}

fn put(item: Item) {
    let Some(teller) = TELLER.get() else { return };
    teller.queue.lock().put(item);
    teller.news.notify_one();
}

impl Queue {
    fn put(&mut self, item: Item) {
        if self.items.len() < MOST {
            self.items.push_back(item);
            return;
        }
        match item {
            Item::Event(_) => self.dropped.events += 1,
            #[cfg(feature = "metrics")]
            Item::Sample { .. } => self.dropped.samples += 1,
        }
    }

    /// What was dropped is told once all that was kept has been, or when it is very much.
    fn dropped(&mut self) -> Option<Dropped> {
        let number = self.dropped.events + self.dropped.samples;
        let is_due = number >= MOST as u64 || (number > 0 && self.items.is_empty());
        is_due.then(|| std::mem::take(&mut self.dropped))
    }
}

impl Teller {
    fn run(&self) -> ! {
        #[cfg(feature = "metrics")]
        let mut telling = metrics::Telling::default();
        let mut queue = self.queue.lock();
        loop {
            let (item, dropped) = (queue.items.pop_front(), queue.dropped());
            let deltas_are_due = std::mem::take(&mut queue.deltas_are_due);
            if item.is_none() && dropped.is_none() && !deltas_are_due {
                #[cfg(feature = "metrics")]
                if let Some(pause) = telling.next_in() {
                    let waited = self.news.wait_for(&mut queue, pause);
                    queue.deltas_are_due |= waited.timed_out();
                    continue;
                }
                self.news.wait(&mut queue);
                continue;
            }
            parking_lot::MutexGuard::unlocked(&mut queue, || {
                #[cfg(feature = "metrics")]
                if deltas_are_due {
                    telling.tell();
                }
                match item {
                    Some(Item::Event(event)) => event.emit(),
                    #[cfg(feature = "metrics")]
                    Some(Item::Sample { group, name, value }) => group.tell_sample(name, value),
                    None => {}
                }
                if let Some(Dropped { events, samples }) = dropped {
                    Event::EventsDropped { events, samples }.emit();
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
        let mut queue = Queue::default();
        let event = || Item::Event(Event::Reconnect { lock: "job".into() });
        for _ in 0..MOST {
            queue.put(event());
        }
        assert!(queue.dropped().is_none(), "everything has found room");
        for _ in 0..3 {
            queue.put(event());
        }
        assert_eq!(queue.items.len(), MOST);
        assert!(queue.dropped().is_none(), "not before what was kept");
        queue.items.clear();
        assert!(matches!(queue.dropped(), Some(Dropped { events: 3, samples: 0 })));
        assert!(queue.dropped().is_none(), "told once");
    }

    #[test]
    fn a_subscriber_that_is_always_too_slow_hears_of_it_too() {
        let mut queue = Queue::default();
        for _ in 0..2 * MOST {
            queue.put(Item::Event(Event::Reconnect { lock: "job".into() }));
        }
        assert!(matches!(queue.dropped(), Some(Dropped { events, .. }) if events == MOST as u64));
    }
}
