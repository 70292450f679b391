//! Which faults a run has, and how many.

use std::time::Duration;

use super::chance::{Dice, Skewed, nanos};

/// Which kinds of faults there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultProfile {
    /// No faults but clocks that disagree.
    Quiet,
    /// Any, each seed with its own mixture.
    Mixed,
    /// Many messages are lost, no fences are proposed, and the nodes' clocks are far apart.
    Leaky,
    /// Clients stand still, or are cut off, for longer than a lease lives.
    Pausing,
    /// Nodes restart and have forgotten everything, all the time.
    Forgetting,
    /// Like [`Forgetting`](Self::Forgetting), by an adversary that knows the protocol: votes are forgotten once they
    /// are given, and requests to bring a key back are held up until then.
    Sly,
}

/// The faults of one run. Shares are in percent.
#[derive(Debug, Clone)]
pub(super) struct Faults {
    /// Messages that never arrive, on each way.
    pub(super) lost: u64,
    /// Requests that arrive twice.
    pub(super) doubled: u64,
    /// Requests that are never sent, which the client knows.
    pub(super) refused: u64,
    /// Messages that take up to `slowest`, and so overtake each other.
    pub(super) slow: u64,
    pub(super) slowest: Duration,
    /// The mean time between two restarts of any node, and how long it takes at most.
    pub(super) crashes: Option<Duration>,
    pub(super) down: Duration,
    /// The mean time between two stops of any client, and how long they take at most.
    pub(super) pauses: Option<Duration>,
    pub(super) longest_pause: Duration,
    /// How often a client stops for long just when it has won.
    pub(super) stalls: u64,
    /// The mean time between two cuts of any link between a client and some nodes, and how long they take at most.
    pub(super) cuts: Option<Duration>,
    pub(super) longest_cut: Duration,
    /// The mean time between two deaths of any client; another one takes its place.
    pub(super) deaths: Option<Duration>,
    /// The most by which the nodes' clocks differ.
    pub(super) skew: Duration,
    /// The most by which any clock gains or loses, in millionths.
    pub(super) gains: u64,
    pub(super) is_sly: bool,
    /// Whether clients propose fences, so that most attempts need no second phase.
    pub(super) proposes: bool,
}

/// A little less than half of what a TTL allows for (1 %), because the difference of two clocks counts.
const GAINS: u64 = 4_900;

impl FaultProfile {
    /// Draws the faults of one run.
    pub(super) fn draw(self, dice: &mut Dice, ttl: Duration, restart_delay: Duration) -> Faults {
        let quiet = Faults {
            lost: 0,
            doubled: 0,
            refused: 0,
            slow: 0,
            slowest: Duration::ZERO,
            crashes: None,
            down: Duration::ZERO,
            pauses: None,
            longest_pause: ttl * 2,
            stalls: 0,
            cuts: None,
            longest_cut: ttl * 2,
            deaths: None,
            // Fences need clocks that agree better than the restart delay. A proposal is ahead by 50 ms and by what a
            // client's clock gains in ten seconds, and during a run the clocks drift apart.
            skew: dice.between(Duration::ZERO, restart_delay.saturating_sub(Duration::from_millis(400))),
            gains: GAINS,
            is_sly: false,
            proposes: dice.percent(50),
        };
        let seconds = Duration::from_secs;
        match self {
            Self::Quiet => quiet,
            Self::Mixed => {
                let mut often = |mean: u64| (dice.percent(50)).then(|| seconds(mean));
                let (crashes, pauses, cuts, deaths) = (often(3), often(2), often(2), often(5));
                Faults {
                    lost: dice.below(20),
                    doubled: dice.below(15),
                    refused: dice.below(8),
                    slow: dice.below(30),
                    slowest: dice.short(ttl * 2),
                    crashes,
                    down: dice.short(ttl),
                    pauses,
                    stalls: dice.below(20),
                    cuts,
                    deaths,
                    ..quiet
                }
            }
            Self::Leaky => {
                let skew = restart_delay.saturating_sub(Duration::from_millis(400));
                Faults { lost: 20, refused: 5, slow: 5, slowest: ttl / 10, skew, proposes: false, ..quiet }
            }
            Self::Pausing => Faults {
                lost: 8,
                slow: 25,
                slowest: ttl / 5,
                pauses: Some(seconds(2)),
                stalls: 40,
                cuts: Some(seconds(2)),
                ..quiet
            },
            Self::Forgetting => {
                Faults { lost: 10, slow: 5, slowest: ttl / 4, crashes: Some(ttl / 2), down: ttl / 10, ..quiet }
            }
            Self::Sly => Faults {
                lost: 8,
                slow: 60,
                slowest: ttl / 5,
                crashes: Some(ttl * 4),
                is_sly: true,
                proposes: true,
                ..quiet
            },
        }
    }
}

impl Faults {
    /// A machine's clock. The clocks of nodes show the time since 1970, those of clients any time.
    pub(super) fn clock(&self, dice: &mut Dice) -> Skewed {
        const EPOCH: Duration = Duration::from_secs(1_000_000);
        let most = i64::try_from(self.gains).unwrap_or_default();
        let gains = [dice.signed(self.gains), most, -most][usize::try_from(dice.below(3)).unwrap_or_default()];
        Skewed { offset: nanos(EPOCH) + dice.below(nanos(self.skew) + 1), gains }
    }
}
