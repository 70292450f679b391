//! The fair queue as its waiters see it: when to poll, and which of them a server notifies.
//!
//! Every fair waiter has a place of its own on the server, so that they come in order whatever process they are in. One
//! of each process and name leads: it polls for all of them, so that the queue does not expire. The others say nothing
//! until they are notified.

use std::{collections::HashMap, sync::Arc};

use leasehold_protocol::{key::Key, time::Time, token::Token};

use crate::sync::{
    Mutex, Notify,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The fair waiters of this process, by the token that a server's notification names.
#[derive(Debug, Default)]
pub(crate) struct FairWaiters(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    waiters: HashMap<Token, Arc<Call>>,
    /// The first waiter of the queue, which has the lock tracked. The second may have it tracked too, and is not rung.
    trackers: HashMap<Key, Arc<Call>>,
    /// Waiters whose poll is not answered yet. It may have the lock tracked: a change can be heard before the answer.
    polling: HashMap<Key, Vec<Arc<Call>>>,
}

impl Table {
    fn is_answered(&mut self, call: &Arc<Call>) {
        if let Some(polling) = self.polling.get_mut(&call.key) {
            polling.retain(|other| !Arc::ptr_eq(other, call));
            if polling.is_empty() {
                self.polling.remove(&call.key);
            }
        }
    }
}

#[derive(Debug)]
struct Call {
    key: Key,
    /// When to poll.
    due: AtomicU64,
    /// The lock is there, and has only to be taken.
    granted: AtomicBool,
    heard: Notify,
}

/// A waiter that hears its notifications; gone when dropped.
#[derive(Debug)]
pub(crate) struct FairWaiter {
    fair_waiters: Arc<FairWaiters>,
    token: Token,
    call: Arc<Call>,
}

impl FairWaiters {
    pub(crate) fn listen(self: &Arc<Self>, key: &Key, token: &Token) -> FairWaiter {
        let due = AtomicU64::new(Time::NEVER.as_nanos());
        let granted = AtomicBool::new(false);
        let call = Arc::new(Call { key: key.clone(), due, granted, heard: Notify::new() });
        self.0.lock().waiters.insert(token.clone(), call.clone());
        FairWaiter { fair_waiters: self.clone(), token: token.clone(), call }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().waiters.is_empty()
    }

    pub(crate) fn has(&self, token: &str) -> bool {
        self.0.lock().waiters.contains_key(token)
    }

    /// This one is to poll at the moment given. False if nobody here has the token.
    pub(crate) fn notify(&self, token: &str, at: Time) -> bool {
        let call = self.0.lock().waiters.get(token).cloned();
        call.inspect(|call| call.ring(at)).is_some()
    }

    /// This one has only to take the lock.
    pub(crate) fn grant(&self, token: &str, now: Time) -> bool {
        let call = self.0.lock().waiters.get(token).cloned();
        let grant = |call: &Arc<Call>| {
            call.granted.store(true, Ordering::Release);
            call.ring(now);
        };
        call.inspect(grant).is_some()
    }

    /// Something was done to this lock: the waiter that has it tracked is to poll, or else those that may have it tracked.
    pub(crate) fn changed(&self, key: &str, now: Time) {
        let calls: Vec<_> = {
            let table = self.0.lock();
            match table.trackers.get(key) {
                Some(tracker) => vec![tracker.clone()],
                None => table.polling.get(key).cloned().unwrap_or_default(),
            }
        };
        for call in calls {
            call.ring(now);
        }
    }

    /// All who wait for this lock are to poll: the queue was lost.
    pub(crate) fn notify_line(&self, key: &Key, at: Time) {
        self.notify_those(at, |call| call.key == *key);
    }

    /// Everybody is to poll: notifications may have been missed.
    pub(crate) fn notify_all(&self, at: Time) {
        self.notify_those(at, |_| true);
    }

    fn notify_those(&self, at: Time, wanted: impl Fn(&Call) -> bool) {
        let fair_waiters: Vec<_> = self.0.lock().waiters.values().filter(|call| wanted(call)).cloned().collect();
        for call in fair_waiters {
            call.ring(at);
        }
    }
}

impl Call {
    fn ring(&self, at: Time) {
        self.due.fetch_min(at.as_nanos(), Ordering::AcqRel);
        self.heard.notify_one();
    }
}

impl FairWaiter {
    /// Completes when a notification has come since the last [`polls`](Self::polls).
    pub(crate) async fn heard(&self) {
        self.call.heard.notified().await;
    }

    /// Our poll is answered: whether we have the lock tracked. Then we are notified when something is done to it.
    pub(crate) fn tracks(&self, tracked: bool) {
        let mut table = self.fair_waiters.0.lock();
        table.is_answered(&self.call);
        if tracked {
            table.trackers.insert(self.call.key.clone(), self.call.clone());
        } else if table.trackers.get(&self.call.key).is_some_and(|call| Arc::ptr_eq(call, &self.call)) {
            table.trackers.remove(&self.call.key);
        }
    }

    /// When to poll, by the notifications.
    pub(crate) fn due(&self) -> Time {
        Time::from_nanos(self.call.due.load(Ordering::Acquire))
    }

    /// Whether a notification says that the lock is there.
    pub(crate) fn is_granted(&self) -> bool {
        self.call.granted.load(Ordering::Acquire)
    }

    /// We poll now, which deals with all notifications before.
    pub(crate) fn polls(&self) {
        self.call.granted.store(false, Ordering::Release);
        self.call.due.store(Time::NEVER.as_nanos(), Ordering::Release);
        let mut table = self.fair_waiters.0.lock();
        table.is_answered(&self.call);
        table.polling.entry(self.call.key.clone()).or_default().push(self.call.clone());
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

    fn has_heard(called: &FairWaiter) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(called.heard()).poll(&mut context).is_ready()
    }

    #[test]
    fn a_call_is_for_its_token_and_kept_until_it_knocks() {
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
