//! The worlds that are searched: within the assumptions of the library, from no faults at all to a search that takes a
//! night.

use super::*;

/// The first time on a node's clock: its microseconds since 1970 are long past zero.
const EPOCH: u64 = 1_000_000_000_000_000;

/// The most that a clock may gain on a client's, and a client's on a node's: one per cent.
const FAST: u32 = 1_010;
const SLOW: u32 = 990;

/// Clocks that differ by less than a restart delay, so that nodes draw different fences.
const THREE: [Clock; 3] = [
    Clock { offset: EPOCH + 100_000_000, rate: FAST },
    Clock { offset: EPOCH + 300_000_000, rate: SLOW },
    Clock { offset: EPOCH, rate: 1_000 },
];

/// No faults.
pub(super) const NO_FAULTS: Faults =
    Faults { late: 0, doubled: 0, deaths: 0, pauses: 0, cuts: 0, amnesias: 0, restarts: 0, steps: 0 };

/// One node whose clock gains on the clients' as much as it may, and one attempt of each client.
pub(super) fn one(name: &'static str, faults: Faults) -> Setup {
    world(name, &THREE[..1], faults)
}

/// Three nodes.
pub(super) fn three(name: &'static str, faults: Faults) -> Setup {
    world(name, &THREE, faults)
}

fn world(name: &'static str, nodes: &[Clock], faults: Faults) -> Setup {
    Setup {
        name,
        clients: Clock { offset: 5_000_000_000, rate: 1_000 },
        nodes: nodes.to_vec(),
        attempts: [1, 1],
        grid: TTL / 2,
        faults,
        step: -300_000,
        closes: TTL * 5 / 4,
        restart_delay: Duration::ZERO,
        is_one_new: false,
        tracks_after: None,
        hands_over: false,
        stalls_after: None,
        reports: 0,
        proposes: None,
        bug: None,
        key: Key::new("", "job").unwrap(),
        tokens: Tokens::new(2, 8),
    }
}

impl Setup {
    pub(super) fn attempts(self, first: u8, second: u8) -> Self {
        Self { attempts: [first, second], ..self }
    }

    /// Closes the world after this many milliseconds.
    pub(super) fn for_millis(self, millis: u64) -> Self {
        Self { closes: Duration::from_millis(millis), ..self }
    }

    /// Lets one lease be handed over.
    pub(super) fn handing_over(self) -> Self {
        Self { hands_over: true, ..self }
    }

    /// Renews a lease only while its work makes progress, which is reported this often at most.
    pub(super) fn stalling(self, reports: u8) -> Self {
        Self { stalls_after: Some(TTL / 2), reports, ..self }
    }

    /// Has recently started nodes give no vote: for the longest TTL, rounded up to seconds, and one second more.
    pub(super) fn delayed(self) -> Self {
        Self { restart_delay: TTL * 2, ..self }
    }

    pub(super) fn with(self, bug: SeededBug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    /// Sets the rate of the first node's clock, in thousandths.
    pub(super) fn rate(mut self, rate: u32) -> Self {
        self.nodes[0].rate = rate;
        self
    }
}

/// The worlds that every test run searches.
pub(super) fn quick() -> Vec<Setup> {
    vec![
        one("one node, no faults", NO_FAULTS).attempts(2, 2),
        one("one node, a late message", Faults { late: 1, ..NO_FAULTS }),
        one("one node, a pause", Faults { pauses: 1, ..NO_FAULTS }),
        one("one node, a late message, a cut", Faults { late: 1, cuts: 1, ..NO_FAULTS }).for_millis(1_350),
        one("one node, a death and a request twice", Faults { deaths: 1, doubled: 1, ..NO_FAULTS }),
        one("one node, amnesia", Faults { amnesias: 1, ..NO_FAULTS }).delayed().for_millis(2_500),
        one("one node, a restart with its data, its clock set back", Faults { restarts: 1, steps: 1, ..NO_FAULTS }),
        Setup { tracks_after: Some(TTL / 4), ..one("one node, an early renewal", NO_FAULTS) },
        one("one node, a hand-over, a late message", Faults { late: 1, ..NO_FAULTS }).handing_over().for_millis(1_050),
        one("one node, a hand-over, a pause, a death", Faults { pauses: 1, deaths: 1, ..NO_FAULTS })
            .handing_over()
            .attempts(2, 1),
        one("one node, work that stalls, short", NO_FAULTS).stalling(1).for_millis(700),
        three("three nodes, a hand-over", NO_FAULTS).handing_over().for_millis(600),
        three("three nodes, no faults", NO_FAULTS),
        Setup { proposes: Some(TTL / 2), ..three("three nodes, fences proposed", NO_FAULTS) },
        Setup { is_one_new: true, ..three("three nodes, one of them new", NO_FAULTS).delayed().for_millis(1_750) },
        three("three nodes, a death", Faults { deaths: 1, ..NO_FAULTS }),
        three("three nodes, a cut", Faults { cuts: 1, ..NO_FAULTS }).for_millis(1_050),
        three("three nodes, a late message, short", Faults { late: 1, ..NO_FAULTS }).for_millis(300),
        three("three nodes, amnesia", Faults { amnesias: 1, ..NO_FAULTS }).delayed(),
    ]
}

/// The worlds that only the deep search adds.
pub(super) fn deep() -> Vec<Setup> {
    vec![
        one("one node, a late message, a pause", Faults { late: 1, pauses: 1, ..NO_FAULTS }),
        one("one node, two late messages", Faults { late: 2, ..NO_FAULTS }),
        one("one node, a late message, retries", Faults { late: 1, ..NO_FAULTS }).attempts(2, 2),
        one("one node, a late message, one twice, a death", Faults { late: 1, doubled: 1, deaths: 1, ..NO_FAULTS }),
        one("one node, amnesia, a pause", Faults { amnesias: 1, pauses: 1, ..NO_FAULTS })
            .attempts(1, 2)
            .delayed()
            .for_millis(2_500),
        one("one node, amnesia, a late message", Faults { amnesias: 1, late: 1, ..NO_FAULTS })
            .delayed()
            .for_millis(2_500),
        one("one node, a hand-over, two late messages", Faults { late: 2, ..NO_FAULTS }).handing_over(),
        one("one node, work that stalls", NO_FAULTS).stalling(1).for_millis(1_400),
        one("one node, work that stalls, a late message", Faults { late: 1, ..NO_FAULTS })
            .stalling(1)
            .for_millis(1_400),
        one("one node, work that stalls, a pause", Faults { pauses: 1, ..NO_FAULTS }).stalling(1).for_millis(1_400),
        three("three nodes, work that stalls", NO_FAULTS).stalling(1).for_millis(1_400),
        three("three nodes, a hand-over, a late message", Faults { late: 1, ..NO_FAULTS })
            .handing_over()
            .for_millis(300),
        three("three nodes, a hand-over, a cut", Faults { cuts: 1, ..NO_FAULTS }).handing_over().for_millis(300),
        three("three nodes, a late message", Faults { late: 1, ..NO_FAULTS }),
        three("three nodes, two late messages, short", Faults { late: 2, ..NO_FAULTS }).for_millis(300),
        three("three nodes, a pause", Faults { pauses: 1, ..NO_FAULTS }),
        three("three nodes, a request twice, a death", Faults { doubled: 1, deaths: 1, ..NO_FAULTS }),
        three("three nodes, retries", NO_FAULTS).attempts(2, 2),
        three("three nodes, amnesia, a late message, short", Faults { amnesias: 1, late: 1, ..NO_FAULTS })
            .delayed()
            .for_millis(600),
        three("three nodes, a clock set back", Faults { steps: 1, ..NO_FAULTS }),
    ]
}
