//! The fence that is proposed to every node, so that a majority draws the same one.

use std::time::Duration;

use crate::{
    fence::Fence,
    time::{Micros, Time},
};

/// By how much a proposed fence is ahead of the highest clock that was seen: for links and servers that are slower than
/// the last time, and far less than any restart delay.
const AHEAD: Duration = Duration::from_millis(50);

/// For so long a seen time says what time it is now.
const FRESH: Duration = Duration::from_secs(10);

/// What the servers' clocks have shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct FenceProposal {
    /// The highest time seen in a reply, and when its request was sent.
    seen: Option<(Micros, Time)>,
}

impl FenceProposal {
    /// What time the reply to a request showed, and when that was sent. Counted from there, and not from the reply, a
    /// proposal is ahead by what requests take as well, however far the nodes are away.
    pub fn note_time(&mut self, time: Micros, sent: Time) {
        if self.seen.is_none_or(|seen| time >= elapsed(seen, sent) || sent.since(seen.1) > FRESH) {
            self.seen = Some((time, sent));
        }
    }

    /// A fence that is probably larger than what any node would draw now, and so drawn by all of them alike. It comes from
    /// the nodes' own clocks only, and never from a fence, which would ratchet.
    pub fn at(&self, now: Time) -> Option<Fence> {
        let seen = self.seen.filter(|seen| now.since(seen.1) <= FRESH)?;
        let ahead = u64::try_from(AHEAD.as_micros()).unwrap_or_default();
        Fence::try_from(elapsed(seen, now).saturating_add(ahead)).ok()
    }
}

/// What the clock that showed this would show now.
fn elapsed((time, at): (Micros, Time), now: Time) -> Micros {
    time.saturating_add(u64::try_from(now.since(at).as_micros()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn at_millis(proposal: &FenceProposal, millis: u64) -> Option<u64> {
        proposal.at(at(millis)).map(u64::from)
    }

    #[test]
    fn a_proposal_is_ahead_of_the_highest_clock_as_it_stands_now() {
        let mut proposal = FenceProposal::default();
        assert_eq!(at_millis(&proposal, 0), None);
        proposal.note_time(5_000_000, at(1_000));
        proposal.note_time(4_000_000, at(1_001));
        assert_eq!(at_millis(&proposal, 1_200), Some(5_250_000));
        proposal.note_time(5_300_000, at(1_200));
        assert_eq!(at_millis(&proposal, 1_200), Some(5_350_000));
    }

    #[test]
    fn an_old_time_is_none() {
        let mut proposal = FenceProposal::default();
        proposal.note_time(9_000_000, at(0));
        proposal.note_time(5_000_000, at(10_000));
        assert_eq!(at_millis(&proposal, 10_000), Some(19_050_000), "ten seconds are not old");
        assert_eq!(at_millis(&proposal, 10_001), None);
        proposal.note_time(5_000_000, at(10_001));
        assert_eq!(at_millis(&proposal, 10_001), Some(5_050_000), "a node whose clock was ahead has gone");
    }
}
