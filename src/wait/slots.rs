//! The slots for the few checks that a process makes at a time.
//!
//! # Invariants
//!
//! 1. A slot counts until it is given back, and at the latest until the time by which its check ends. So a check that
//!    is not polled keeps it no longer than that.
//! 2. A waiter has no slot before it is polled: a slot that becomes free is unused until a waiter takes it.
//! 3. While slots are free, a waiter is notified. If that one is not polled, the waiters behind it try again when the
//!    next check must have ended: [`CheckSlots::next_lapse`].

use std::collections::BTreeSet;

use leasehold_protocol::time::Time;

use crate::sync::{Mutex, Notify};

/// A number of slots, and those that are taken.
#[derive(Debug)]
pub(crate) struct CheckSlots {
    slots: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

/// The slots that count as taken. A number distinguishes slots that lapse at the same time.
#[derive(Debug, Default)]
struct Taken {
    lapses: BTreeSet<(Time, u64)>,
    last: u64,
}

/// A slot; given back when dropped.
#[derive(Debug)]
#[must_use = "a slot that is dropped is given back"]
pub(crate) struct CheckSlot<'a> {
    slots: &'a CheckSlots,
    id: (Time, u64),
}

impl Taken {
    fn forget_the_lapsed(&mut self, now: Time) {
        while self.lapses.first().is_some_and(|(lapses, _)| *lapses <= now) {
            self.lapses.pop_first();
        }
    }
}

impl CheckSlots {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots, taken: Mutex::default(), freed: Notify::new() }
    }

    /// Takes a slot, if one is free, for a check that has ended by `lapses`.
    pub(crate) fn take(&self, now: Time, lapses: Time) -> Option<CheckSlot<'_>> {
        let mut taken = self.taken.lock();
        taken.forget_the_lapsed(now);
        if taken.lapses.len() >= self.slots {
            return None;
        }
        taken.last += 1;
        let id = (lapses, taken.last);
        taken.lapses.insert(id);
        let is_more = taken.lapses.len() < self.slots;
        drop(taken);
        // The last notification may have woken a waiter that is not polled.
        if is_more {
            self.freed.notify_one();
        }
        Some(CheckSlot { slots: self, id })
    }

    /// When to try again without a notification, if no slot is free.
    pub(crate) fn next_lapse(&self) -> Option<Time> {
        self.taken.lock().lapses.first().map(|(lapses, _)| *lapses)
    }

    /// Completes when a slot may have become free since the last [`take`](Self::take).
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl Drop for CheckSlot<'_> {
    fn drop(&mut self) {
        if self.slots.taken.lock().lapses.remove(&self.id) {
            self.slots.freed.notify_one();
        }
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
        time::Duration,
    };

    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn no_more_are_taken_than_there_are() {
        let slots = CheckSlots::new(2);
        let (one, two) = (slots.take(at(0), at(10)), slots.take(at(0), at(10)));
        assert!(one.is_some() && two.is_some() && slots.take(at(9), at(19)).is_none());
        drop(one);
        assert!(slots.take(at(9), at(19)).is_some());
    }

    #[test]
    fn a_slot_lapses_when_its_look_has_not_ended_in_time() {
        let slots = CheckSlots::new(1);
        let stuck = slots.take(at(0), at(10));
        assert_eq!((stuck.is_some(), slots.next_lapse()), (true, Some(at(10))));
        assert!(slots.take(at(9), at(19)).is_none());
        let next = slots.take(at(10), at(20));
        assert_eq!((next.is_some(), slots.next_lapse()), (true, Some(at(20))));
        drop(stuck);
        assert!(slots.take(at(11), at(21)).is_none(), "a lapsed slot was given back twice");
        drop(next);
        assert_eq!(slots.next_lapse(), None);
    }

    #[test]
    fn a_free_slot_notifies_one_waiter() {
        let slots = CheckSlots::new(1);
        let taken = slots.take(at(0), at(10));
        assert!(!is_ready(slots.freed()));
        drop(taken);
        assert!(is_ready(slots.freed()) && !is_ready(slots.freed()));
    }

    #[test]
    fn a_slot_that_is_taken_notifies_the_next_waiter_while_others_are_free() {
        let slots = CheckSlots::new(3);
        let held = [slots.take(at(0), at(10)), slots.take(at(0), at(10)), slots.take(at(0), at(10))];
        // The takes have left one notification.
        assert!(is_ready(slots.freed()) && !is_ready(slots.freed()));
        let mut unpolled = [Box::pin(slots.freed()), Box::pin(slots.freed())];
        let mut polled = Box::pin(slots.freed());
        for waiter in &mut unpolled {
            assert!(!is_ready(waiter.as_mut()));
        }
        assert!(!is_ready(polled.as_mut()));
        drop(held);
        assert!(is_ready(polled.as_mut()), "two of three notifications went to nobody");
        let mut last = Box::pin(slots.freed());
        assert!(!is_ready(last.as_mut()));
        let taken = slots.take(at(1), at(11));
        assert!(taken.is_some() && is_ready(last.as_mut()));
    }
}
