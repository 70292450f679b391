//! The fair queue as its waiters see it: when to poll, and which of them a server notifies.
//!
//! Every fair waiter has a place of its own on the server, so that they come in order whatever process they are in. One
//! of each process and name leads: it polls for all of them, so that the queue does not expire. The others say nothing
//! until they are notified.

use std::{collections::HashMap, sync::Arc};

use leasehold_protocol::{key::Key, time::Time, token::Token};

use super::alarm::Alarm;
use crate::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// The fair waiters of this process, by the token that a server's notification names.
#[derive(Debug, Default)]
pub(crate) struct FairWaiters(Mutex<FairTable>);

#[derive(Debug, Default)]
struct FairTable {
    waiters: HashMap<Token, Arc<Listening>>,
    /// The first waiter of the queue, which has the lock tracked. The second may have it tracked too, and is not rung.
    trackers: HashMap<Key, Arc<Listening>>,
    /// Waiters whose poll is not answered yet. It may have the lock tracked: a change can be heard before the answer.
    polling: HashMap<Key, Vec<Arc<Listening>>>,
}

impl FairTable {
    fn is_answered(&mut self, waiter: &Arc<Listening>) {
        if let Some(polling) = self.polling.get_mut(&waiter.key) {
            polling.retain(|other| !Arc::ptr_eq(other, waiter));
            if polling.is_empty() {
                self.polling.remove(&waiter.key);
            }
        }
    }
}

#[derive(Debug)]
struct Listening {
    key: Key,
    /// When to poll.
    alarm: Alarm,
    /// The lock is there, and has only to be taken.
    granted: AtomicBool,
}

/// A waiter that hears its notifications; gone when dropped.
#[derive(Debug)]
pub(crate) struct FairWaiter {
    fair_waiters: Arc<FairWaiters>,
    token: Token,
    waiter: Arc<Listening>,
}

impl FairWaiters {
    pub(crate) fn listen(self: &Arc<Self>, key: &Key, token: &Token) -> FairWaiter {
        let (alarm, granted) = (Alarm::new(), AtomicBool::new(false));
        let waiter = Arc::new(Listening { key: key.clone(), alarm, granted });
        self.0.lock().waiters.insert(token.clone(), waiter.clone());
        FairWaiter { fair_waiters: self.clone(), token: token.clone(), waiter }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().waiters.is_empty()
    }

    pub(crate) fn has(&self, token: &str) -> bool {
        self.0.lock().waiters.contains_key(token)
    }

    /// This one is to poll at the moment given. False if nobody here has the token.
    pub(crate) fn notify(&self, token: &str, at: Time) -> bool {
        let waiter = self.0.lock().waiters.get(token).cloned();
        waiter.inspect(|waiter| waiter.alarm.ring(at)).is_some()
    }

    /// This one has only to take the lock.
    pub(crate) fn grant(&self, token: &str, now: Time) -> bool {
        let waiter = self.0.lock().waiters.get(token).cloned();
        let grant = |waiter: &Arc<Listening>| {
            waiter.granted.store(true, Ordering::Release);
            waiter.alarm.ring(now);
        };
        waiter.inspect(grant).is_some()
    }

    /// Something was done to this lock: the waiter that has it tracked is to poll, or else those that may have it
    /// tracked.
    pub(crate) fn changed(&self, key: &str, now: Time) {
        let waiters: Vec<_> = {
            let table = self.0.lock();
            match table.trackers.get(key) {
                Some(tracker) => vec![tracker.clone()],
                None => table.polling.get(key).cloned().unwrap_or_default(),
            }
        };
        for waiter in waiters {
            waiter.alarm.ring(now);
        }
    }

    /// All who wait for this lock are to poll: the queue was lost.
    pub(crate) fn notify_line(&self, key: &Key, at: Time) {
        self.notify_those(at, |waiter| waiter.key == *key);
    }

    /// Everybody is to poll: notifications may have been missed.
    pub(crate) fn notify_all(&self, at: Time) {
        self.notify_those(at, |_| true);
    }

    fn notify_those(&self, at: Time, wanted: impl Fn(&Listening) -> bool) {
        let fair_waiters: Vec<_> = self.0.lock().waiters.values().filter(|waiter| wanted(waiter)).cloned().collect();
        for waiter in fair_waiters {
            waiter.alarm.ring(at);
        }
    }
}

impl FairWaiter {
    /// Completes when a notification has come since the last [`polls`](Self::polls).
    pub(crate) async fn heard(&self) {
        self.waiter.alarm.heard().await;
    }

    /// Our poll is answered: whether we have the lock tracked. Then we are notified when something is done to it.
    pub(crate) fn tracks(&self, tracked: bool) {
        let mut table = self.fair_waiters.0.lock();
        table.is_answered(&self.waiter);
        if tracked {
            table.trackers.insert(self.waiter.key.clone(), self.waiter.clone());
        } else if table.trackers.get(&self.waiter.key).is_some_and(|waiter| Arc::ptr_eq(waiter, &self.waiter)) {
            table.trackers.remove(&self.waiter.key);
        }
    }

    /// When to poll, by the notifications.
    pub(crate) fn due(&self) -> Time {
        self.waiter.alarm.due()
    }

    /// Whether a notification says that the lock is there.
    pub(crate) fn is_granted(&self) -> bool {
        self.waiter.granted.load(Ordering::Acquire)
    }

    /// We poll now, which deals with all notifications before.
    pub(crate) fn polls(&self) {
        self.waiter.granted.store(false, Ordering::Release);
        self.waiter.alarm.set(Time::NEVER);
        let mut table = self.fair_waiters.0.lock();
        table.is_answered(&self.waiter);
        table.polling.entry(self.waiter.key.clone()).or_default().push(self.waiter.clone());
    }
}

impl Drop for FairWaiter {
    fn drop(&mut self) {
        self.tracks(false);
        self.fair_waiters.0.lock().waiters.remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert!(fair_waiters.notify(one.as_str(), later) && fair_waiters.notify(one.as_str(), soon));
        assert!(has_heard(&first) && !has_heard(&second));
        assert!(!first.is_granted() && fair_waiters.grant(one.as_str(), later) && first.is_granted());
        assert_eq!((first.due(), second.due()), (soon, Time::NEVER));
        first.polls();
        assert_eq!((first.due(), first.is_granted()), (Time::NEVER, false));
        drop(first);
        assert!(!fair_waiters.grant(one.as_str(), soon));
        assert!(
            !fair_waiters.notify(one.as_str(), soon)
                && fair_waiters.has(two.as_str())
                && !fair_waiters.has(one.as_str())
        );
        fair_waiters.notify_line(&Key::new("", "other").unwrap(), soon);
        assert_eq!(second.due(), Time::NEVER);
        fair_waiters.notify_line(&key, later);
        assert_eq!(second.due(), later);
        fair_waiters.notify_all(soon);
        assert_eq!(second.due(), soon);

        second.polls();
        second.tracks(false);
        fair_waiters.changed("job", soon);
        assert_eq!(second.due(), Time::NEVER, "it has not had it tracked");
        second.polls();
        fair_waiters.changed("job", soon);
        assert_eq!(second.due(), soon, "the change was heard before the answer");
        second.tracks(true);
        assert_eq!(second.due(), soon);
        second.polls();
        second.tracks(true);
        fair_waiters.changed("another", soon);
        assert_eq!(second.due(), Time::NEVER);
        fair_waiters.changed("job", soon);
        assert_eq!(second.due(), soon);
        drop(second);
        let table = fair_waiters.0.lock();
        assert!(table.waiters.is_empty() && table.trackers.is_empty() && table.polling.is_empty());
    }
}
