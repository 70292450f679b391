//! Fencing tokens: the number that lets a resource refuse a holder from the past.

use std::{fmt, num::ParseIntError, str::FromStr, time::Duration};

/// A fencing token: strictly larger for every later holder of the same name.
///
/// Hand it to whatever the lease protects, and let that refuse a number smaller than the largest it has seen. Then a
/// job that was paused past its lease can do no harm, however late it wakes up (Kleppmann, *How to do distributed
/// locking*, 2016). See the [guide] for SQL, and the [cookbook] for a value kept in Redis.
///
/// It is issued in the same atomic step as the lock ([rule 9]). It grows across restarts, even of a server that forgot
/// everything, as long as that server's clock does not go back. It is never above [`i64::MAX`], so that it fits a
/// `BIGINT`. The numbers have gaps; only their order means anything.
///
/// ```
/// # use leasehold_protocol::fence::Fence;
/// let (old, new) = (Fence::try_from(7_i64)?, "8".parse::<Fence>()?);
/// assert!(old < new);
/// assert_eq!((i64::from(new), u64::from(new)), (8, 8)); // for a `BIGINT`, and for the rest
/// # Ok::<(), leasehold_protocol::fence::ParseFenceError>(())
/// ```
///
/// [cookbook]: https://docs.rs/leasehold/latest/leasehold/docs/cookbook/#fence-a-value-in-redis
/// [guide]: https://docs.rs/leasehold/latest/leasehold/docs/guide/#fence-what-you-write
/// [rule 9]: https://docs.rs/leasehold/latest/leasehold/docs/safety/#rule-9
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

/// The smallest fence.
pub const ZERO: Fence = Fence(0);

/// How long a name's floor is kept by default, and the longest that can be set (rule 9).
pub const MEMORY: Duration = Duration::from_secs(24 * 60 * 60);

const LARGEST: u64 = i64::MAX.unsigned_abs();

/// The number is negative or above [`i64::MAX`], so it cannot be a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fence is a number from 0 to {LARGEST}")]
pub struct ParseFenceError(());

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Fence {
    type Err = ParseFenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number: Result<u64, ParseIntError> = text.parse();
        number.map_err(|_| ParseFenceError(())).and_then(Self::try_from)
    }
}

impl TryFrom<u64> for Fence {
    type Error = ParseFenceError;

    fn try_from(number: u64) -> Result<Self, Self::Error> {
        if number <= LARGEST { Ok(Self(number)) } else { Err(ParseFenceError(())) }
    }
}

impl TryFrom<i64> for Fence {
    type Error = ParseFenceError;

    fn try_from(number: i64) -> Result<Self, Self::Error> {
        u64::try_from(number).map(Self).map_err(|_| ParseFenceError(()))
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

impl From<Fence> for i64 {
    fn from(fence: Fence) -> Self {
        // Lossless: the constructors allow nothing above `i64::MAX`.
        fence.0.try_into().unwrap_or(Self::MAX)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Fence {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Fence {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = <u64 as serde::Deserialize>::deserialize(deserializer)?;
        Self::try_from(number).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fits_a_bigint_is_a_fence() {
        assert_eq!(Fence::try_from(i64::MAX).map(i64::from), Ok(i64::MAX));
        assert!(Fence::try_from(LARGEST + 1).is_err());
        assert!(Fence::try_from(-1_i64).is_err());
    }

    #[test]
    fn text_and_back() {
        let fence: Fence = "1795243932883512".parse().unwrap();
        assert_eq!(fence.to_string(), "1795243932883512");
        for bad in ["", "-1", "1.5", "9223372036854775808", "x"] {
            assert!(bad.parse::<Fence>().is_err(), "{bad:?} is no fence");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_reads_and_writes_a_number() {
        let fence = Fence::try_from(42_u64).unwrap();
        assert_eq!(serde_json::to_string(&fence).unwrap(), "42");
        assert_eq!(serde_json::from_str::<Fence>("42").unwrap(), fence);
        assert!(serde_json::from_str::<Fence>("-1").is_err());
    }
}
