//! The one place where randomness enters.

use std::sync::{
    LazyLock,
    atomic::{AtomicU64, Ordering},
};

use leasehold_protocol::{jitter::Jitter, token::Token};

/// A version 4 UUID, from the operating system's random source.
#[cfg(not(all(test, leasehold_shuttle)))]
#[allow(clippy::disallowed_methods)]
fn uuid() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}

#[cfg(all(test, leasehold_shuttle))]
use crate::sync::shuttle::random_uuid as uuid;

/// A new token, never seen before.
pub(crate) fn token(label: &str) -> Token {
    Token::new(uuid(), label)
}

/// A random number, for less than a token.
pub(crate) fn number() -> u64 {
    uuid().as_u64_pair().1
}

/// The seed of this process.
static SEED: LazyLock<u64> = LazyLock::new(number);

/// Jitter that differs every time, in every process.
pub(crate) fn jitter() -> Jitter {
    static STREAMS: AtomicU64 = AtomicU64::new(0);
    Jitter::stream(*SEED, STREAMS.fetch_add(1, Ordering::Relaxed))
}

/// Jitter that all leases of this process share, and no other process.
pub(crate) fn common_jitter() -> Jitter {
    Jitter::from_seed(*SEED)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn two_tokens_differ_and_carry_the_label() {
        let (one, two) = (token("host:7"), token("host:7"));
        assert_ne!(one, two);
        assert_eq!(one.label(), "host:7");
    }

    #[test]
    fn two_jitters_differ() {
        let [one, two] = [jitter(), jitter()].map(|mut jitter| jitter.below(Duration::from_secs(1)));
        assert_ne!(one, two);
    }
}
