//! The watchdog's notes in each hold, without a lock of its own.

use leasehold_protocol::time::Time;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Notes in a hold.
#[derive(Debug)]
pub(crate) struct Noted {
    /// When it is checked next, as a [`Time`]; never, if that is not planned. Only the table changes it, under its
    /// mutex.
    look: AtomicU64,
    /// Its place in the table, which changes it like `look`.
    place: AtomicU32,
    /// The nodes that refuse to renew it, one bit each.
    refused_by: AtomicU32,
}

/// Places of a hold. From [`FIRST_FRESH`] on, the place gives the index among the fresh.
pub(crate) const NOT_HERE: u32 = 0;
pub(crate) const SCHEDULED: u32 = 1;
const FIRST_FRESH: u32 = 2;

impl Default for Noted {
    fn default() -> Self {
        let (look, place) = (AtomicU64::new(Time::NEVER.as_nanos()), AtomicU32::new(NOT_HERE));
        Self { look, place, refused_by: AtomicU32::new(0) }
    }
}

impl Noted {
    /// Whether this node refused it when it was renewed alone.
    pub(crate) fn is_refused_by(&self, node: usize) -> bool {
        self.refused_by.load(Relaxed) & bit(node) != 0
    }

    pub(crate) fn set_refused_by(&self, node: usize, is_refused: bool) {
        if is_refused {
            self.refused_by.fetch_or(bit(node), Relaxed);
        } else if self.is_refused_by(node) {
            self.refused_by.fetch_and(!bit(node), Relaxed);
        }
    }

    pub(crate) fn look(&self) -> Time {
        Time::from_nanos(self.look.load(Relaxed))
    }

    pub(crate) fn set_look(&self, look: Time) {
        self.look.store(look.as_nanos(), Relaxed);
    }

    pub(crate) fn is_here(&self) -> bool {
        self.place.load(Relaxed) != NOT_HERE
    }

    pub(crate) fn fresh(&self) -> Option<usize> {
        usize::try_from(self.place.load(Relaxed).checked_sub(FIRST_FRESH)?).ok()
    }

    pub(crate) fn set_fresh(&self, at: usize) {
        // That many do not fit in memory.
        self.set_place(u32::try_from(at).map_or(SCHEDULED, |at| at.saturating_add(FIRST_FRESH)));
    }

    pub(crate) fn set_place(&self, place: u32) {
        self.place.store(place, Relaxed);
    }
}

fn bit(node: usize) -> u32 {
    u32::try_from(node).ok().and_then(|node| 1_u32.checked_shl(node)).unwrap_or_default()
}
