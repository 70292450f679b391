//! The fair queue as its waiters see it: when to poll, and which of them a server notifies.
//!
//! Every fair waiter has a place of its own on the server, so that waiters come in order whatever their process. In
//! each process, one waiter of a name leads: it polls for all of them, so that the queue does not expire. The others
//! send nothing until they are notified.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{addressees::Addressees, key::Key, slot::Keys, time::Time, token::Token};

use super::alarm::Alarm;
use crate::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The fair waiters of this process, by the token that a server's notification names.
#[derive(Debug, Default)]
pub(crate) struct FairWaiters(Mutex<Addressees<Arc<Listening>>>);

#[derive(Debug)]
struct Listening {
    /// When to poll.
    alarm: Alarm,
    /// When a grant ahead of us lapses, of which a server has notified us: in nanoseconds on our clock. A poll before
    /// that time does not cover it.
    lapses: AtomicU64,
    /// Whether the lock is granted, and only has to be confirmed.
    granted: AtomicBool,
}

/// A waiter that receives its notifications; removed when dropped.
#[derive(Debug)]
pub(crate) struct FairWaiter {
    fair_waiters: Arc<FairWaiters>,
    token: Token,
    waiter: Arc<Listening>,
}

impl FairWaiters {
    pub(crate) fn listen(self: &Arc<Self>, key: &Key, token: &Token) -> FairWaiter {
        let lapses = AtomicU64::new(Time::NEVER.as_nanos());
        let waiter = Arc::new(Listening { alarm: Alarm::new(), lapses, granted: AtomicBool::new(false) });
        self.0.lock().enters(key, token, waiter.clone());
        FairWaiter { fair_waiters: self.clone(), token: token.clone(), waiter }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(crate) fn has(&self, token: &str) -> bool {
        self.0.lock().get(token).is_some()
    }

    /// Has this waiter poll after a time. Returns false if no waiter here has the token.
    pub(crate) fn notify(&self, token: &str, now: Time, within: Duration) -> bool {
        let (waiter, at) = (self.0.lock().get(token).cloned(), now + within);
        let notify = |waiter: &Arc<Listening>| {
            // To poll now leaves a grant that lapses later.
            if !within.is_zero() {
                waiter.lapses.fetch_min(at.as_nanos(), Ordering::AcqRel);
            }
            waiter.alarm.ring(at);
        };
        waiter.inspect(notify).is_some()
    }

    /// Notes a grant, which this waiter only has to confirm.
    pub(crate) fn grant(&self, token: &str, now: Time) -> bool {
        let waiter = self.0.lock().get(token).cloned();
        let grant = |waiter: &Arc<Listening>| {
            waiter.granted.store(true, Ordering::Release);
            waiter.alarm.ring(now);
        };
        waiter.inspect(grant).is_some()
    }

    /// Has the waiter poll that tracks this lock, which was changed; or else those that may track it.
    pub(crate) fn changed(&self, key: &str, now: Time) {
        let waiters: Vec<_> = self.0.lock().of_a_change(key).cloned().collect();
        ring(waiters, now);
    }

    /// Has all waiters of this lock poll, because the queue was lost.
    pub(crate) fn notify_line(&self, key: &Key, at: Time) {
        let waiters = self.0.lock().all().filter(|(of, _)| *of == key).map(|(_, waiter)| waiter.clone()).collect();
        ring(waiters, at);
    }

    /// Has all waiters of these locks poll, because notifications may have been missed.
    pub(crate) fn notify_all(&self, keys: &Keys, at: Time) {
        let waiters =
            self.0.lock().all().filter(|(of, _)| keys.has(of.lock())).map(|(_, waiter)| waiter.clone()).collect();
        ring(waiters, at);
    }
}

/// Rings each waiter's alarm, while no table is locked.
fn ring(waiters: Vec<Arc<Listening>>, at: Time) {
    for waiter in waiters {
        waiter.alarm.ring(at);
    }
}

impl FairWaiter {
    /// Completes when a notification has arrived since the last [`polls`](Self::polls).
    pub(crate) async fn heard(&self) {
        self.waiter.alarm.heard().await;
    }

    /// Notes with the answer to our poll whether we track the lock, and so are notified of its changes.
    pub(crate) fn tracks(&self, tracked: bool) {
        self.fair_waiters.0.lock().answered(&self.token, tracked);
    }

    /// When to poll, according to the notifications.
    pub(crate) fn due(&self) -> Time {
        self.waiter.alarm.due()
    }

    /// Whether a notification has granted the lock.
    pub(crate) fn is_granted(&self) -> bool {
        self.waiter.granted.load(Ordering::Acquire)
    }

    /// Notes that we poll now, which covers all notifications but the one to poll later.
    pub(crate) fn polls(&self, now: Time) {
        self.waiter.granted.store(false, Ordering::Release);
        let lapses = Time::from_nanos(self.waiter.lapses.load(Ordering::Acquire));
        if lapses > now {
            self.waiter.alarm.set(lapses);
        } else {
            self.waiter.lapses.store(Time::NEVER.as_nanos(), Ordering::Release);
            self.waiter.alarm.set(Time::NEVER);
        }
        self.fair_waiters.0.lock().polls(&self.token);
    }
}

impl Drop for FairWaiter {
    fn drop(&mut self) {
        self.fair_waiters.0.lock().leaves(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    const GRANT: Duration = Duration::from_millis(900);

    fn has_heard(waiter: &FairWaiter) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(waiter.heard()).poll(&mut context).is_ready()
    }

    #[test]
    fn a_notification_is_for_its_token_and_kept_until_the_next_poll() {
        let (fair_waiters, key) = (Arc::<FairWaiters>::default(), Key::new("", "job").unwrap());
        let (one, two) = (random::token("one"), random::token("two"));
        let (first, second) = (fair_waiters.listen(&key, &one), fair_waiters.listen(&key, &two));
        assert!(!fair_waiters.is_empty() && !has_heard(&first));
        let (soon, later) = (Time::ZERO + GRANT, Time::ZERO + GRANT * 2);
        let notify = |within| fair_waiters.notify(one.as_str(), Time::ZERO, within);
        assert!(notify(GRANT * 2) && notify(GRANT) && notify(Duration::ZERO));
        assert!(has_heard(&first) && !has_heard(&second));
        assert!(!first.is_granted() && fair_waiters.grant(one.as_str(), later) && first.is_granted());
        assert_eq!((first.due(), second.due()), (Time::ZERO, Time::NEVER));
        first.polls(Time::ZERO);
        assert_eq!((first.due(), first.is_granted()), (soon, false), "a poll before that time does not cover it");
        first.polls(soon);
        assert_eq!(first.due(), Time::NEVER);
        drop(first);
        assert!(!fair_waiters.grant(one.as_str(), soon));
        assert!(!notify(GRANT) && fair_waiters.has(two.as_str()) && !fair_waiters.has(one.as_str()));
        fair_waiters.notify_line(&Key::new("", "other").unwrap(), soon);
        assert_eq!(second.due(), Time::NEVER);
        fair_waiters.notify_line(&key, later);
        assert_eq!(second.due(), later);
        fair_waiters.notify_all(&Keys::All, soon);
        assert_eq!(second.due(), soon);

        second.polls(soon);
        second.tracks(false);
        fair_waiters.changed("job", soon);
        assert_eq!(second.due(), Time::NEVER, "it has not had it tracked");
        second.polls(soon);
        fair_waiters.changed("job", soon);
        assert_eq!(second.due(), soon, "the change was heard before the answer");
        second.tracks(true);
        assert_eq!(second.due(), soon);
        second.polls(soon);
        second.tracks(true);
        fair_waiters.changed("another", soon);
        assert_eq!(second.due(), Time::NEVER);
        fair_waiters.changed("job", soon);
        assert_eq!(second.due(), soon);
        drop(second);
        assert!(fair_waiters.is_empty());
    }
}
