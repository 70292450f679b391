//! The options of a lock, for which the builder has defaults, and the bounds of settings.

use std::{fmt, num::NonZeroU32, ops::RangeInclusive, sync::Arc, time::Duration};

use leasehold_protocol::{fence, holder::RELEASED, mode::Mode, rounded::Rounded};

use crate::{error::Error, metrics::Group};

/// How a lock is acquired and held.
#[derive(Clone, Copy)]
pub(crate) struct LockOptions {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) stall_after: Option<Duration>,
    /// Zero means no delay.
    pub(crate) lock_delay: Duration,
    pub(crate) fair: bool,
    pub(crate) access: Access,
    /// How many permits an acquire takes.
    pub(crate) take: u32,
    pub(crate) fence_memory: Duration,
    pub(crate) metrics_group: Group,
}

/// How a name is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Access {
    /// A plain lock.
    #[default]
    Lock,
    /// Shared, beside all other sharers.
    Read,
    /// Alone, in its turn among the sharers.
    Write,
    /// Shared, if no more permits than this are taken.
    Permit(u32),
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            max_hold: None,
            stall_after: None,
            lock_delay: Duration::ZERO,
            fair: false,
            access: Access::Lock,
            take: 1,
            fence_memory: fence::MEMORY,
            metrics_group: Group::default(),
        }
    }
}

impl fmt::Debug for LockOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockOptions")
            .field("ttl", &self.ttl)
            .field("max_hold", &self.max_hold)
            .field("stall_after", &self.stall_after)
            .field("lock_delay", &self.lock_delay)
            .field("fair", &self.fair)
            .field("access", &self.access)
            .field("fence_memory", &self.fence_memory)
            .finish_non_exhaustive()
    }
}

impl LockOptions {
    /// Checks that the options are within their bounds, and fit these servers.
    pub(crate) fn check(&self, is_quorum: bool, restart_delay: Duration) -> Result<(), Error> {
        check_times(self.ttl, self.max_hold, restart_delay)?;
        check_stall_after(self.stall_after, self.ttl, self.max_hold)?;
        check_lock_delay(self.lock_delay, self.ttl, restart_delay)?;
        check_fence_memory(self.fence_memory)?;
        self.check_access(is_quorum)?;
        if self.fair && is_quorum {
            return Err(Error::unsupported(
                "fair is on, which works on one server only, not over a quorum: turn it off, or use the url of one server",
            ));
        }
        Ok(())
    }

    pub(crate) fn check_access(&self, is_quorum: bool) -> Result<(), Error> {
        match self.access {
            Access::Permit(permits) if !PERMITS.contains(&permits) => {
                Err(Error::config(format!("permits is {permits}: it must be from 1 to 1,000,000")))
            }
            Access::Permit(permits) if !(1..=permits).contains(&self.take) => Err(Error::config(format!(
                "take is {}: it must be from 1 to the number of permits, {permits}",
                self.take
            ))),
            Access::Lock | Access::Read | Access::Write if self.take != 1 => Err(Error::config(format!(
                "take is {}: only a lock with permits has several to take, which `semaphore` makes",
                self.take
            ))),
            Access::Read | Access::Write | Access::Permit(_) if is_quorum => Err(Error::unsupported(
                "shared locks do not work over a quorum, whose nodes may each admit others so that more \
                 hold it than may: use the url of one server, or a name for each permit",
            )),
            _ => Ok(()),
        }
    }

    /// How the lock is acquired.
    pub(crate) fn mode(&self) -> Mode {
        let number = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        match self.access {
            Access::Lock | Access::Write => Mode::Exclusive,
            Access::Read => Mode::Shared { limit: None, permits: NonZeroU32::MIN },
            Access::Permit(permits) => Mode::Shared { limit: Some(number(permits)), permits: number(self.take) },
        }
    }

    /// Whether the lock is acquired in turn, through the queue on the server.
    pub(crate) fn is_queued(&self) -> bool {
        self.fair || self.access != Access::Lock
    }
}

/// The bounds of how many may hold a name at a time.
const PERMITS: RangeInclusive<u32> = 1..=1_000_000;

/// The prefix and the label of the locks of a scope, or of a whole program.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// The whole prefix, including the builder's.
    pub(crate) prefix: Arc<str>,
    pub(crate) label: Arc<str>,
}

const LONGEST_LABEL: usize = 128;
const LONGEST_PREFIX: usize = 256;

pub(crate) fn check_prefix(prefix: &str) -> Result<(), Error> {
    if prefix.len() > LONGEST_PREFIX {
        let length = prefix.len();
        return Err(Error::config(format!("prefix is {length} bytes long: {LONGEST_PREFIX} is the most")));
    }
    Ok(())
}

/// The longest reason for taking a lock by force, in bytes.
const LONGEST_REASON: usize = 256;

/// Checks the reason of a forced release. For the tool, which refuses a reason before it asks a server: this function is
/// not part of the API, and any version may change it.
///
/// # Errors
///
/// [`Error::Config`] for a reason that is empty, has control characters, or more than 256 bytes.
pub fn check_reason(reason: &str) -> Result<(), Error> {
    check_shown("reason", reason, LONGEST_REASON)
}

pub(crate) fn check_label(label: &str) -> Result<(), Error> {
    check_shown("label", label, LONGEST_LABEL)?;
    if label.ends_with(RELEASED) {
        return Err(Error::config(format!(
            "label is {label:?}: with that end it would be taken for a lock that was released"
        )));
    }
    Ok(())
}

/// Checks a text that others see. For a text that is too long, the error gives only its length.
fn check_shown(setting: &str, text: &str, longest: usize) -> Result<(), Error> {
    let is_too_long = text.len() > longest;
    if !is_too_long && !text.is_empty() && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let what = if is_too_long { format!("{} bytes long", text.len()) } else { format!("{text:?}") };
    Err(Error::config(format!("{setting} is {what}: it must have 1 to {longest} bytes and no control characters")))
}

/// The shortest and the longest TTL.
const TTL: RangeInclusive<Duration> = Duration::from_millis(100)..=LONGEST_TTL;

pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(24 * 60 * 60);

fn check_times(ttl: Duration, max_hold: Option<Duration>, restart_delay: Duration) -> Result<(), Error> {
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

/// Work that reports as often as renewals go out has not stalled.
fn check_stall_after(stall_after: Option<Duration>, ttl: Duration, max_hold: Option<Duration>) -> Result<(), Error> {
    let Some(stall_after) = stall_after else { return Ok(()) };
    if stall_after < ttl / 3 {
        return Err(Error::config(format!(
            "stall_after is {stall_after:?}: it must be at least a third of the ttl, {:?}",
            ttl / 3
        )));
    }
    match max_hold {
        Some(max_hold) if stall_after > max_hold => {
            Err(Error::config(format!("stall_after is {stall_after:?}: it must be at most the max_hold, {max_hold:?}")))
        }
        _ => Ok(()),
    }
}

/// The longest delay by which a key outlives its lease.
const LONGEST_DELAY: Duration = Duration::from_secs(60 * 60);

fn check_lock_delay(lock_delay: Duration, ttl: Duration, restart_delay: Duration) -> Result<(), Error> {
    if lock_delay > LONGEST_DELAY {
        let most = Rounded(LONGEST_DELAY);
        return Err(Error::config(format!("lock_delay is {lock_delay:?}: it must be at most {most}")));
    }
    match longest_life(restart_delay) {
        Some(longest) if !lock_delay.is_zero() && ttl + lock_delay > longest => Err(Error::config(format!(
            "lock_delay is {lock_delay:?}, and ttl and lock_delay together {:?}: they must be at most {longest:?}, {WHY}",
            ttl + lock_delay
        ))),
        _ => Ok(()),
    }
}

/// Checks the bounds of the interval in which a lock is acquired once.
pub(crate) fn check_once_per(once_per: Option<Duration>, restart_delay: Duration) -> Result<(), Error> {
    let Some(once_per) = once_per else { return Ok(()) };
    // Rounded up to milliseconds.
    if once_per.is_zero() || once_per > LONGEST_KEEP {
        let (least, most) = (Rounded(Duration::from_millis(1)), Rounded(LONGEST_KEEP));
        return Err(Error::config(format!("once_per is {once_per:?}: it must be from {least} to {most}")));
    }
    match longest_life(restart_delay) {
        Some(longest) if once_per > longest => {
            Err(Error::config(format!("once_per is {once_per:?}: it must be at most {longest:?}, {WHY}")))
        }
        _ => Ok(()),
    }
}

/// The longest that a key may live if a server may forget it in a restart. A server counts its uptime in whole seconds,
/// and up to one too many.
pub(crate) fn longest_life(restart_delay: Duration) -> Option<Duration> {
    (!restart_delay.is_zero()).then(|| restart_delay.saturating_sub(Duration::from_secs(1)))
}

const WHY: &str = "1 s less than restart_delay: a server that was restarted has forgotten the key";

/// The longest time for which a key is kept without a lease.
const LONGEST_KEEP: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// Checks how long a key may be kept without a lease; `bound` is the quorum's own.
pub(crate) fn check_keep(name: &str, keep: Duration, least: Duration, bound: Option<Duration>) -> Result<(), Error> {
    let longest = bound.map_or(LONGEST_KEEP, |bound| bound.min(LONGEST_KEEP));
    if (least..=longest).contains(&keep) {
        return Ok(());
    }
    let why = if longest < LONGEST_KEEP { format!(", {WHY}") } else { String::new() };
    Err(Error::config(format!("{name} is {keep:?}: it must be from {} to {}{why}", Rounded(least), Rounded(longest))))
}

/// Checks the grace: a healthy lease has two thirds of its TTL or more left.
pub(crate) fn check_grace(grace: Duration, ttl: Duration) -> Result<(), Error> {
    if grace > ttl / 2 {
        let most = ttl / 2;
        return Err(Error::config(format!("grace is {grace:?}: it must be at most {most:?}, half of the ttl")));
    }
    Ok(())
}

fn check_fence_memory(memory: Duration) -> Result<(), Error> {
    if memory > fence::MEMORY {
        let most = Rounded(fence::MEMORY);
        return Err(Error::config(format!("fence_memory is {memory:?}: it must be at most {most}")));
    }
    Ok(())
}
