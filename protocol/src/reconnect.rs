//! When to connect again: pure.
//!
//! # Invariants
//!
//! 1. The first try comes at once. The pauses after it double while tries fail, up to `longest`.
//! 2. They also double while connections soon end, but only up to `longest_flap`: each may serve requests meanwhile.
//! 3. After a connection that lasted, and once the server is known to be back, the next pause is the first one again.

use std::time::Duration;

use crate::{doubling::Doubling, time::Time};

/// The bounds of pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReconnectConfig {
    /// The pause before the second try.
    pub first: Duration,
    /// The longest pause while no connection comes up.
    pub longest: Duration,
    /// The longest pause while connections come up and soon end.
    pub longest_flap: Duration,
    /// How long a connection must be up to count as one that has lasted.
    pub steady: Duration,
}

/// The tries of one connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reconnect {
    config: ReconnectConfig,
    pauses: Doubling,
    last: LastTry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum LastTry {
    None,
    Failed,
    CameUp(Time),
}

impl Reconnect {
    /// The state before the first try.
    pub fn new(config: ReconnectConfig) -> Self {
        Self { config, pauses: Doubling::from(config.first), last: LastTry::None }
    }

    /// A try has failed.
    pub fn failed(&mut self) {
        self.last = LastTry::Failed;
    }

    /// The connection is up.
    pub fn came_up(&mut self, now: Time) {
        self.last = LastTry::CameUp(now);
    }

    /// The connection that was up has ended by now. If it has lasted, the pauses start over.
    pub fn ended(&mut self, now: Time) {
        if matches!(self.last, LastTry::CameUp(at) if now.since(at) >= self.config.steady) {
            self.reset();
        }
    }

    /// The server is known to be back, so earlier tries no longer count.
    pub fn reset(&mut self) {
        self.pauses = Doubling::from(self.config.first);
    }

    /// The pause before the next try.
    pub fn pause(&mut self, now: Time) -> Duration {
        self.ended(now);
        match self.last {
            LastTry::None => Duration::ZERO,
            LastTry::Failed => self.pauses.next(self.config.longest),
            LastTry::CameUp(_) => self.pauses.next(self.config.longest_flap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: ReconnectConfig = ReconnectConfig {
        first: Duration::from_millis(10),
        longest: Duration::from_millis(100),
        longest_flap: Duration::from_millis(30),
        steady: Duration::from_secs(1),
    };

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn failures(reconnect: &mut Reconnect, now: u64) -> [u128; 5] {
        [(); 5].map(|()| {
            reconnect.failed();
            reconnect.pause(at(now)).as_millis()
        })
    }

    #[test]
    fn the_first_try_comes_at_once_and_the_next_ones_after_pauses_that_double() {
        let mut reconnect = Reconnect::new(CONFIG);
        assert_eq!(reconnect.pause(at(0)), Duration::ZERO);
        assert_eq!(failures(&mut reconnect, 0), [10, 20, 40, 80, 100]);
    }

    #[test]
    fn what_comes_up_and_soon_ends_lets_them_grow_to_a_longest_of_its_own() {
        let mut reconnect = Reconnect::new(CONFIG);
        let flaps = [0, 100, 200, 300].map(|now| {
            reconnect.came_up(at(now));
            reconnect.pause(at(now + 50)).as_millis()
        });
        assert_eq!(flaps, [10, 20, 30, 30]);
        assert_eq!(failures(&mut reconnect, 400), [30, 60, 100, 100, 100]);
    }

    #[test]
    fn what_lasted_begins_anew() {
        let mut reconnect = Reconnect::new(CONFIG);
        let _grown = failures(&mut reconnect, 0);
        reconnect.came_up(at(1_000));
        assert_eq!(reconnect.pause(at(1_999)).as_millis(), 30);
        reconnect.came_up(at(2_000));
        assert_eq!(reconnect.pause(at(3_000)).as_millis(), 10);
        assert_eq!(failures(&mut reconnect, 3_000), [20, 40, 80, 100, 100]);
        // `ended` starts them over at once, even though the next try fails.
        reconnect.came_up(at(4_000));
        reconnect.ended(at(5_000));
        assert_eq!(failures(&mut reconnect, 5_000), [10, 20, 40, 80, 100]);
    }

    #[test]
    fn a_server_that_is_back_begins_anew() {
        let mut reconnect = Reconnect::new(CONFIG);
        let _grown = failures(&mut reconnect, 0);
        reconnect.reset();
        assert_eq!(failures(&mut reconnect, 0), [10, 20, 40, 80, 100]);
    }
}
