//! The fair queue as its waiters see it: when to knock, and who is called.
//!
//! Every fair waiter has a place of its own on the server, so that they come in order whatever process they are in. One
//! of each process and name leads: it knocks for all of them, so that the queue does not expire. The others say nothing
//! until they are called.

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold_protocol::{backoff::Backoff, key::Key, look::Look, time::Time, token::Token};

use crate::sync::{
    Mutex, Notify,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// How often a process says at least that it waits.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How long a waiter that cannot be called counts as alive. The queue lives twice as long after the last knock.
pub(crate) const WINDOW: Duration = Duration::from_secs(15);

/// For how long it is tried to leave the queue of a server that does not answer: others who wait keep the place alive.
pub(crate) const LEAVES_FOR: Duration = Duration::from_secs(600);

/// Those who are not the first leave it to those before them to notice that the holder's key has expired.
const STAGGER: Duration = Duration::from_millis(4);
const LONGEST_STAGGER: Duration = Duration::from_millis(40);

/// A place in the queue, as the last knock found it.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// What gives the place back after the queue was lost.
    pub(crate) ticket: Option<u64>,
    /// How many come before.
    pub(crate) ahead: u32,
    /// Whether the server can call us.
    pub(crate) called: bool,
    /// For how long the server, which may have forgotten who holds the lock, grants it to nobody.
    pub(crate) recovers_for: Option<Duration>,
}

impl Place {
    /// When to knock next without being called; `None` if only a call brings us there.
    pub(crate) fn next_knock(
        &self,
        look: &Look,
        leads: bool,
        grant: Duration,
        backoff: &mut Backoff,
    ) -> Option<Duration> {
        let (remaining, watched) = match (look, self.recovers_for) {
            _ if self.ticket.is_none() => return Some(backoff.after(look)),
            (Look::Held { holder, watched, .. }, _) => (holder.remaining(), *watched),
            // There is nothing to be told of before.
            (Look::Failed(_), Some(left)) => (Some(left.min(HEARTBEAT)), true),
            _ => return Some(backoff.after(look)),
        };
        let first = self.ahead == 0;
        let stagger = if first { Duration::ZERO } else { (STAGGER * self.ahead).min(LONGEST_STAGGER) };
        let expiry = backoff.after_expiry(remaining) + stagger;
        if !self.called {
            // Nobody tells us of a grant: we have to come while it is there.
            Some(expiry.min(if self.ahead <= 1 { grant / 3 } else { grant * 2 / 3 }))
        } else if first && !watched {
            // Nobody tells us of a lock that became free otherwise than by a release.
            Some(expiry.min(grant / 3))
        } else if leads || first {
            Some(expiry.min(HEARTBEAT))
        } else {
            None
        }
    }
}

/// Everybody in this process who waits in a queue, by token: what a server calls out is for one of them.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    waiters: HashMap<Token, Arc<Call>>,
    /// Who has the lock watched: the first of this process.
    watchers: HashMap<Key, Arc<Call>>,
}

#[derive(Debug)]
struct Call {
    key: Key,
    /// When to knock.
    due: AtomicU64,
    /// The lock is there, and has only to be taken.
    granted: AtomicBool,
    heard: Notify,
}

/// An ear for one's calls; gone when dropped.
#[derive(Debug)]
pub(crate) struct Called {
    calls: Arc<Calls>,
    token: Token,
    call: Arc<Call>,
}

impl Calls {
    pub(crate) fn listen(self: &Arc<Self>, key: &Key, token: &Token) -> Called {
        let due = AtomicU64::new(Time::NEVER.as_nanos());
        let granted = AtomicBool::new(false);
        let call = Arc::new(Call { key: key.clone(), due, granted, heard: Notify::new() });
        self.0.lock().waiters.insert(token.clone(), call.clone());
        Called { calls: self.clone(), token: token.clone(), call }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().waiters.is_empty()
    }

    pub(crate) fn has(&self, token: &str) -> bool {
        self.0.lock().waiters.contains_key(token)
    }

    /// This one is to knock at the moment given. False if nobody here has the token.
    pub(crate) fn call(&self, token: &str, at: Time) -> bool {
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

    /// Something was done to this lock: whoever has it watched is to knock.
    pub(crate) fn touched(&self, key: &str, now: Time) {
        let call = self.0.lock().watchers.get(key).cloned();
        if let Some(call) = call {
            call.ring(now);
        }
    }

    /// All who wait for this lock are to knock: the queue was lost.
    pub(crate) fn call_line(&self, key: &Key, at: Time) {
        self.call_those(at, |call| call.key == *key);
    }

    /// Everybody is to knock: calls may have been missed.
    pub(crate) fn call_all(&self, at: Time) {
        self.call_those(at, |_| true);
    }

    fn call_those(&self, at: Time, wanted: impl Fn(&Call) -> bool) {
        let calls: Vec<_> = self.0.lock().waiters.values().filter(|call| wanted(call)).cloned().collect();
        for call in calls {
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

impl Called {
    /// Completes when a call has come since the last [`knocks`](Self::knocks).
    pub(crate) async fn heard(&self) {
        self.call.heard.notified().await;
    }

    /// Whether we have the lock watched: then we are called when something is done to it.
    pub(crate) fn watches(&self, watched: bool) {
        let mut table = self.calls.0.lock();
        if watched {
            table.watchers.insert(self.call.key.clone(), self.call.clone());
        } else if table.watchers.get(&self.call.key).is_some_and(|call| Arc::ptr_eq(call, &self.call)) {
            table.watchers.remove(&self.call.key);
        }
    }

    /// When the calls want us to knock.
    pub(crate) fn due(&self) -> Time {
        Time::from_nanos(self.call.due.load(Ordering::Acquire))
    }

    /// Whether one of them says that the lock is there.
    pub(crate) fn is_granted(&self) -> bool {
        self.call.granted.load(Ordering::Acquire)
    }

    /// We knock now, which deals with all calls before.
    pub(crate) fn knocks(&self) {
        self.call.granted.store(false, Ordering::Release);
        self.call.due.store(Time::NEVER.as_nanos(), Ordering::Release);
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        self.watches(false);
        self.calls.0.lock().waiters.remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{holder, jitter::Jitter, tally::WakeCondition};

    use super::*;
    use crate::random;

    const GRANT: Duration = Duration::from_millis(900);

    fn held(remaining: Option<Duration>, watched: bool) -> Look {
        Look::Held { holder: holder::of(None, remaining, None), watched, needs: WakeCondition::ANY }
    }

    fn next(place: &Place, look: &Look, leads: bool) -> Option<Duration> {
        place.next_knock(look, leads, GRANT, &mut Backoff::new(Jitter::from_seed(7)))
    }

    fn place(ahead: u32, called: bool) -> Place {
        Place { ticket: Some(1), ahead, called, recovers_for: None }
    }

    #[test]
    fn who_is_called_says_nothing_unless_it_leads() {
        let look = held(Some(Duration::from_secs(30)), true);
        assert_eq!(next(&place(3, true), &look, false), None);
        assert_eq!(next(&place(3, true), &look, true), Some(HEARTBEAT));
        assert_eq!(next(&place(0, true), &look, true), Some(HEARTBEAT));
    }

    #[test]
    fn who_has_no_place_yet_waits_as_if_there_was_no_queue() {
        let nobody = Place { called: true, ..Place::default() };
        let remaining = Duration::from_secs(30);
        assert!(next(&nobody, &held(Some(remaining), true), true).is_some_and(|look| look > remaining));
    }

    #[test]
    fn whoever_leads_is_there_when_the_key_expires_and_the_first_before_the_others() {
        let remaining = Duration::from_millis(500);
        let look = held(Some(remaining), true);
        let first = next(&place(0, true), &look, true).unwrap();
        let third = next(&place(2, true), &look, true).unwrap();
        let last = next(&place(500, true), &look, true).unwrap();
        assert!(first > remaining && first < third && third < last, "{first:?} {third:?} {last:?}");
        assert!(last <= remaining + Duration::from_millis(50), "{last:?}");
    }

    #[test]
    fn who_cannot_be_called_is_there_while_a_grant_lasts() {
        for (ahead, leads, thirds) in [(0, true, 1), (1, false, 1), (2, false, 2), (99, true, 2)] {
            let knock = next(&place(ahead, false), &held(None, true), leads);
            assert_eq!(knock, Some(GRANT * thirds / 3), "{ahead}");
        }
    }

    #[test]
    fn the_first_is_there_when_the_key_expires_whoever_leads() {
        let look = held(Some(Duration::from_millis(500)), true);
        assert!(next(&place(0, true), &look, false).is_some_and(|knock| knock < Duration::from_millis(510)));
    }

    #[test]
    fn the_first_looks_often_when_nobody_watches_the_lock_for_it() {
        assert_eq!(next(&place(0, true), &held(None, false), true), Some(GRANT / 3));
    }

    #[test]
    fn a_server_that_recovers_is_left_alone_until_it_grants_again() {
        let left = Duration::from_secs(2);
        let look = Look::Failed(leasehold_protocol::failure::Failure::recovering("h:1", left));
        let recovering = |ahead, left| Place { recovers_for: Some(left), ..place(ahead, true) };
        let first = next(&recovering(0, left), &look, false).unwrap();
        let leader = next(&recovering(2, left), &look, true).unwrap();
        assert!(first > left && first < leader && leader < left + GRANT, "{first:?} {leader:?}");
        assert_eq!(next(&recovering(2, left), &look, false), None);
        assert_eq!(next(&recovering(0, Duration::MAX), &look, true), Some(HEARTBEAT));
        let held = held(Some(GRANT), true);
        assert!(next(&recovering(0, left), &held, true).is_some_and(|knock| knock < left), "somebody has it again");
    }

    #[test]
    fn who_has_no_place_yet_tries_again() {
        let failed = Look::Failed(leasehold_protocol::failure::Failure::unknown("no answer"));
        assert!(next(&Place::default(), &failed, false).is_some());
    }

    fn has_heard(called: &Called) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(called.heard()).poll(&mut context).is_ready()
    }

    #[test]
    fn a_call_is_for_its_token_and_kept_until_it_knocks() {
        let (calls, key) = (Arc::<Calls>::default(), Key::new("", "job").unwrap());
        let (one, two) = (random::token("one"), random::token("two"));
        let (first, second) = (calls.listen(&key, &one), calls.listen(&key, &two));
        assert!(!calls.is_empty() && !has_heard(&first));
        let (soon, later) = (Time::ZERO + GRANT, Time::ZERO + GRANT * 2);
        assert!(calls.call(one.as_str(), later) && calls.call(one.as_str(), soon));
        assert!(has_heard(&first) && !has_heard(&second));
        assert!(!first.is_granted() && calls.grant(one.as_str(), later) && first.is_granted());
        assert_eq!((first.due(), second.due()), (soon, Time::NEVER));
        first.knocks();
        assert_eq!((first.due(), first.is_granted()), (Time::NEVER, false));
        drop(first);
        assert!(!calls.grant(one.as_str(), soon));
        assert!(!calls.call(one.as_str(), soon) && calls.has(two.as_str()) && !calls.has(one.as_str()));
        calls.call_line(&Key::new("", "other").unwrap(), soon);
        assert_eq!(second.due(), Time::NEVER);
        calls.call_line(&key, later);
        assert_eq!(second.due(), later);
        calls.call_all(soon);
        assert_eq!(second.due(), soon);

        second.knocks();
        calls.touched("job", soon);
        assert_eq!(second.due(), Time::NEVER, "it has not had it watched");
        second.watches(true);
        calls.touched("another", soon);
        assert_eq!(second.due(), Time::NEVER);
        calls.touched("job", soon);
        assert_eq!(second.due(), soon);
        drop(second);
        assert!(calls.is_empty() && calls.0.lock().watchers.is_empty());
    }
}
