//! The least ratio of the current window and of the one before it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The ratio while nothing is noted.
const FULL: f64 = 1.0;

/// The least ratios as bits, which have the same order as long as no ratio is negative.
#[derive(Debug)]
pub(super) struct Least {
    now: AtomicU64,
    before: AtomicU64,
    /// The ratio that was last reported.
    told: AtomicU64,
}

impl Default for Least {
    fn default() -> Self {
        let full = || AtomicU64::new(FULL.to_bits());
        Self { now: full(), before: full(), told: full() }
    }
}

impl Least {
    /// Notes a ratio. Returns whether it is less than all others in this window so far.
    pub(super) fn note(&self, ratio: f64) -> bool {
        let bits = ratio.clamp(0.0, FULL).to_bits();
        self.now.fetch_min(bits, Ordering::AcqRel) > bits
    }

    /// Begins a window, and forgets the one before the last.
    pub(super) fn begin_window(&self) {
        let ended = self.now.swap(FULL.to_bits(), Ordering::AcqRel);
        self.before.store(ended, Ordering::Release);
    }

    /// The least ratio, if it is to be reported: always, or if it is news.
    pub(super) fn news(&self, always: bool) -> Option<f64> {
        let least = self.bits();
        let told = self.told.swap(least, Ordering::AcqRel);
        (always || told != least).then(|| f64::from_bits(least))
    }

    /// Whether a window's end would change anything.
    pub(super) fn wanes(&self) -> bool {
        self.bits() != FULL.to_bits()
    }

    fn bits(&self) -> u64 {
        self.now.load(Ordering::Acquire).min(self.before.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_told_until_two_windows_have_ended() {
        let least = Least::default();
        assert_eq!((least.news(true), least.news(false), least.wanes()), (Some(FULL), None, false));
        assert!(least.note(0.66) && !least.note(0.7) && least.note(0.5) && !least.note(0.5));
        assert_eq!((least.news(false), least.news(false)), (Some(0.5), None));
        least.begin_window();
        assert_eq!((least.news(false), least.note(0.6), least.news(false)), (None, true, None));
        least.begin_window();
        assert_eq!((least.news(false), least.wanes()), (Some(0.6), true));
        least.begin_window();
        assert_eq!((least.news(false), least.wanes()), (Some(FULL), false));
    }

    #[test]
    fn a_ratio_is_from_nought_to_one() {
        let least = Least::default();
        assert!(!least.note(1.5) && least.note(0.5) && least.note(-0.5));
        assert_eq!(least.news(false), Some(0.0));
    }
}
