//! The bounds of settings that the builder, a lock and a lease have in common.

use std::time::Duration;

use leasehold_protocol::{fence, rounded::Rounded};

use crate::error::Error;

/// Shortest and longest TTL.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 60 * 60);

pub(crate) fn fair_quorum() -> Error {
    Error::config(
        "fair is on, which works on one server only, not over a quorum: turn it off, or use the url of one server",
    )
}

/// The bounds that hold for a lock as for the builder.
pub(crate) fn check_times(ttl: Duration, max_hold: Option<Duration>, restart_delay: Duration) -> Result<(), Error> {
    if !TTL.contains(&ttl) {
        let (least, most) = (TTL.start(), TTL.end());
        return Err(Error::config(format!(
            "ttl is {ttl:?}: it must be from {} to {}",
            Rounded(*least),
            Rounded(*most)
        )));
    }
    // A server counts its uptime in whole seconds, and up to one too many.
    if !restart_delay.is_zero() && ttl + Duration::from_secs(1) > restart_delay {
        return Err(Error::config(format!(
            "ttl is {ttl:?}: it must be at least 1 s less than restart_delay, {restart_delay:?}, for which a server that \
             was restarted gives no vote because it may have forgotten a lease"
        )));
    }
    match max_hold {
        Some(max_hold) if max_hold < ttl => {
            Err(Error::config(format!("max_hold is {max_hold:?}: it must be at least the ttl, {ttl:?}")))
        }
        _ => Ok(()),
    }
}

/// The longest that a key is kept without a lease.
const LONGEST_KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a key may be kept without a lease; `bound` is the quorum's own.
pub(crate) fn check_keep(name: &str, keep: Duration, least: Duration, bound: Option<Duration>) -> Result<(), Error> {
    let longest = bound.map_or(LONGEST_KEEP, |bound| bound.min(LONGEST_KEEP));
    if (least..=longest).contains(&keep) {
        return Ok(());
    }
    let why =
        if longest < LONGEST_KEEP { ", the restart_delay: a server that was restarted has forgotten it" } else { "" };
    Err(Error::config(format!("{name} is {keep:?}: it must be from {} to {}{why}", Rounded(least), Rounded(longest))))
}

/// A healthy lease has two thirds of its TTL or more before it.
pub(crate) fn check_grace(grace: Duration, ttl: Duration) -> Result<(), Error> {
    if grace > ttl / 2 {
        let most = ttl / 2;
        return Err(Error::config(format!("grace is {grace:?}: it must be at most {most:?}, half of the ttl")));
    }
    Ok(())
}

pub(crate) fn check_fence_memory(memory: Duration) -> Result<(), Error> {
    if memory > fence::MEMORY {
        let most = Rounded(fence::MEMORY);
        return Err(Error::config(format!("fence_memory is {memory:?}: it must be at most {most}")));
    }
    Ok(())
}
