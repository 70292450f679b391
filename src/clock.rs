//! The one place where time enters.
//!
//! A lease is judged by a clock that counts while the machine sleeps (rule 3). A laptop that was closed for an hour has
//! lost its leases, whatever a timer believes. Tokio's timers do not count suspend, so every decision reads a
//! [`Clock`], and a timer is only a reason to check.

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "a clock of one's own is for tests"))]

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use leasehold_protocol::time::Time;
use tokio::sync::Notify;

use crate::sync::catching_panics;

/// The clock that [`Client`](crate::Client) reads; [`SystemClock`] unless a test sets another.
///
/// Give your own to [`Builder::clock`](crate::Builder::clock) to see what your job does when the machine is suspended.
/// A clock that jumps by an hour simulates a machine that slept for an hour.
/// [`ManualClock`](crate::testing::ManualClock) does that.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time since some fixed moment. It must never go back, and must keep counting while the machine is suspended.
    /// Every thread of the library reads it, the keeper's too, so it must neither block nor panic. If it panics there,
    /// every lease ends ([`KeeperEnded`](crate::LossReason::KeeperEnded)).
    fn now(&self) -> Duration;

    /// The notifier of this clock's jumps. After a jump, everything that sleeps until a moment checks the clock again
    /// at once. [`Client`](crate::Client) asks for it once, when it is built.
    ///
    /// `None`, the default, is right for a real clock: a program is not notified that its machine has slept, and the
    /// keeper checks a lease every 250 ms.
    fn jumps(&self) -> Option<Jumps> {
        None
    }
}

/// The notifier of the jumps of a [`Clock`] of your own. Clones wake the same sleepers.
#[derive(Debug, Clone, Default)]
pub struct Jumps(Arc<Notify>);

#[cfg(feature = "testing")]
impl Jumps {
    /// A notifier without sleepers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes everything that sleeps by the clock. Call it after the jump.
    pub fn notify(&self) {
        self.0.notify_waiters();
    }
}

impl Jumps {
    /// Completes when the clock shows this moment because it has jumped there; never, if the clock panics.
    pub(crate) async fn reach(self, clock: Arc<dyn Clock>, moment: Time) {
        loop {
            // Created before the check, so it is notified of every later jump.
            let jumped = self.0.notified();
            if catching_panics(|| now(&*clock)).is_some_and(|now| now >= moment) {
                return;
            }
            jumped.await;
        }
    }
}

/// The machine's clock that counts suspend, by which leases are judged: `CLOCK_BOOTTIME` on Linux, the nearest
/// equivalent on other platforms.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The time since some fixed moment.
    #[must_use]
    pub fn now(&self) -> Duration {
        system_now()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        system_now()
    }
}

#[cfg(all(test, leasehold_shuttle))]
fn system_now() -> Duration {
    crate::sync::shuttle::time::now()
}

#[cfg(all(unix, not(all(test, leasehold_shuttle))))]
fn system_now() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const COUNTS_SUSPEND: ClockId = ClockId::Boottime;
    // On Apple's systems this clock keeps counting during sleep.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const COUNTS_SUSPEND: ClockId = ClockId::Monotonic;

    let now = clock_gettime(COUNTS_SUSPEND);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

#[cfg(all(not(unix), not(all(test, leasehold_shuttle))))]
#[allow(clippy::disallowed_methods)]
fn system_now() -> Duration {
    // Windows' performance counter includes sleep.
    use std::{sync::OnceLock, time::Instant};
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// The wall clock, for people and for the memory node's server time; no decision about a lease reads it (F27).
#[allow(clippy::disallowed_methods)]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// A moment that is noticed this late says nothing about the server. This process stood still, or hardly ran, perhaps
/// with the answer in its socket.
const STOOD_STILL: Duration = Duration::from_millis(250);

/// Whether this process noticed only long afterwards that this moment had come.
pub(crate) fn stood_still(now: Time, moment: Time) -> bool {
    now.since(moment) >= STOOD_STILL
}

/// The time of this clock, as a moment for the protocol.
pub(crate) fn now(clock: &dyn Clock) -> Time {
    Time::ZERO + clock.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_moves_forward() {
        let before = SystemClock.now();
        assert!(before > Duration::ZERO);
        assert!(SystemClock.now() >= before);
    }

    /// Where this process shows the clocks of a machine that has slept for an hour, the clock has to have counted that.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_clock_counts_suspend() {
        use rustix::time::{ClockId, clock_gettime};
        use std::process::Command;

        const ASLEEP: &str = "LEASEHOLD_TEST_ASLEEP";
        let read = |id| Duration::from_secs(u64::try_from(clock_gettime(id).tv_sec).unwrap());
        if std::env::var_os(ASLEEP).is_some() {
            let (awake, all) = (read(ClockId::Monotonic), read(ClockId::Boottime));
            assert!(all >= awake + Duration::from_secs(3_500), "the premise");
            assert!(SystemClock.now() >= all, "{:?} of {all:?}", SystemClock.now());
            return;
        }
        let slept = |more: &[&str]| {
            let mut unshare = Command::new("unshare");
            unshare.args(more).args(["--time", "--boottime", "3600"]);
            unshare
        };
        let ways: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
        let may = |way: &&&[&str]| slept(way).arg("true").output().is_ok_and(|done| done.status.success());
        let Some(way) = ways.iter().find(may) else {
            // Here no process may set a clock apart. A machine that has slept once shows the difference too.
            let before = read(ClockId::Boottime);
            assert!(SystemClock.now() >= before);
            return;
        };
        let this = std::env::current_exe().unwrap();
        let name = "clock::tests::the_system_clock_counts_suspend";
        let done = slept(way).arg(this).args(["--exact", name]).env(ASLEEP, "1").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        assert!(String::from_utf8_lossy(&done.stdout).contains("1 passed"), "the premise");
    }
}
