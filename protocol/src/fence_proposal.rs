//! The fence that an acquire proposes to every node, so that all of them issue the same: pure.

use std::time::Duration;

use crate::{fence::Fence, time::Time};

/// By how much a proposal is ahead of the highest clock seen. It allows for links and servers that are slower than the
/// last time, and is far less than any restart delay.
const AHEAD: Duration = Duration::from_millis(50);

/// How long the time of a clock is used after it was seen.
const FRESH: Duration = Duration::from_secs(10);

/// The highest of the nodes' clocks, from which fences are proposed. It comes from those clocks only, and never from a
/// fence, because that would ratchet.
#[derive(Debug, Default)]
pub struct FenceProposal(Option<Seen>);

/// The time that a node's clock showed, in microseconds, and when we asked.
#[derive(Debug, Clone, Copy)]
struct Seen {
    time: u64,
    sent: Time,
}

impl Seen {
    /// The time that the clock would show now. It counts from the request, and not from the reply, so a proposal is
    /// also ahead by the time that requests take, however distant the nodes are.
    fn at(self, now: Time) -> u64 {
        self.time.saturating_add(u64::try_from(now.since(self.sent).as_micros()).unwrap_or_default())
    }
}

impl FenceProposal {
    /// Notes that the reply to a request that was sent at `sent` showed this time, in microseconds.
    pub fn note_time(&mut self, time: u64, sent: Time) {
        if self.0.is_none_or(|seen| time >= seen.at(sent) || sent.since(seen.sent) > FRESH) {
            self.0 = Some(Seen { time, sent });
        }
    }

    /// A fence that is probably larger than what any node would issue now.
    pub fn at(&self, now: Time) -> Option<Fence> {
        let seen = self.0.filter(|seen| now.since(seen.sent) <= FRESH)?;
        let ahead = u64::try_from(AHEAD.as_micros()).unwrap_or_default();
        Fence::try_from(seen.at(now).saturating_add(ahead)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn proposal(proposal: &FenceProposal, millis: u64) -> Option<u64> {
        proposal.at(at(millis)).map(u64::from)
    }

    #[test]
    fn it_is_ahead_of_the_highest_clock_as_it_stands_now() {
        let mut seen = FenceProposal::default();
        assert_eq!(proposal(&seen, 0), None);
        seen.note_time(5_000_000, at(1_000));
        seen.note_time(4_000_000, at(1_001));
        assert_eq!(proposal(&seen, 1_200), Some(5_250_000));
        seen.note_time(5_300_000, at(1_200));
        assert_eq!(proposal(&seen, 1_200), Some(5_350_000));
    }

    #[test]
    fn an_old_time_counts_for_nothing() {
        let mut seen = FenceProposal::default();
        seen.note_time(9_000_000, at(0));
        seen.note_time(5_000_000, at(10_000));
        assert_eq!(proposal(&seen, 10_000), Some(19_050_000), "ten seconds are not old");
        assert_eq!(proposal(&seen, 10_001), None);
        seen.note_time(5_000_000, at(10_001));
        assert_eq!(proposal(&seen, 10_001), Some(5_050_000), "a node whose clock was ahead has gone");
    }
}
