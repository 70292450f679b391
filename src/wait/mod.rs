//! The lines of this process, one for each name: their waiters, and which of them wakes. One waiter of a name asks the
//! server for all of them; the others stand in line behind it, in order, and cost the server nothing.
//!
//! # Invariants
//!
//! 1. A notification wakes one waiter of its name: the one whose turn it is. It is kept until that one checks, so none
//!    is lost on a waiter that is busy with a check.
//! 2. A waiter that needs several nodes to be freed is notified when that many of them have changed since its last
//!    check. Changes by its competitors, or by itself, lead to no check. Otherwise waiters that take and give back a
//!    free minority, or split the votes, would notify each other without end.
//! 3. The waiter with the turn says by when it will check, before any wait. If it does not check by then (nobody may
//!    poll its runtime), the others go on without it.

use std::{collections::HashMap, pin::pin, sync::Arc};

use leasehold_protocol::{
    check::Check,
    key::Key,
    tally::{Nodes, WakeCondition, majority},
    time::Time,
};
use tokio::sync::watch;

use crate::sync::{
    Mutex, Notify, Semaphore, SemaphorePermit,
    atomic::{AtomicU64, Ordering},
};

mod queue;
mod slots;

pub(crate) use self::{
    queue::{FairWaiter, FairWaiters},
    slots::{CheckSlot, CheckSlots},
};

/// Every line of one `Leases`, by name.
#[derive(Debug)]
pub(crate) struct Lines {
    /// The changes that are worth a check, while no check has shown a better condition.
    needs: WakeCondition,
    lines: Mutex<HashMap<Key, (Arc<Line>, Waiters)>>,
}

/// How many stand in a line.
type Waiters = usize;

/// The waiters of one name.
#[derive(Debug)]
pub(crate) struct Line {
    /// The turn to ask the server. Tokio's semaphore is first come, first served, and a waiter that goes away passes it
    /// on.
    turn: Semaphore,
    /// Something may have happened to the lock.
    notify: Notify,
    changed: Mutex<Changed>,
    /// By when the waiter with the turn will have checked, or said by when it will.
    due: AtomicU64,
    seen: watch::Sender<Check>,
}

/// The nodes that changed since the last check, and those that have to.
#[derive(Debug)]
struct Changed {
    nodes: Nodes,
    needs: WakeCondition,
}

/// A place in a line; gone when dropped.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    lines: &'a Lines,
    key: Key,
    line: Arc<Line>,
}

impl Lines {
    /// Lines over this many nodes: no lock can be had without a majority of them.
    pub(crate) fn new(nodes: usize) -> Self {
        let needs = WakeCondition { count: majority(nodes), of: Nodes::all(nodes) };
        Self { needs, lines: Mutex::default() }
    }

    /// Whether anybody waits for this name: then it is not for a newcomer to ask the server.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.lines.lock().contains_key(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.lock().is_empty()
    }

    /// How many names are waited for.
    pub(crate) fn len(&self) -> usize {
        self.lines.lock().len()
    }

    pub(crate) fn join(&self, key: &Key) -> Waiter<'_> {
        let mut lines = self.lines.lock();
        let (line, waiters) = lines.entry(key.clone()).or_insert_with(|| (Arc::new(Line::new(self.needs)), 0));
        *waiters += 1;
        let line = line.clone();
        Waiter { lines: self, key: key.clone(), line }
    }

    /// Something may have happened to the lock with this key: the waiter with the turn checks at once.
    pub(crate) fn notify(&self, key: &str, now: Time) {
        let line = self.lines.lock().get(key).map(|(line, _)| line.clone());
        if let Some(line) = line {
            line.notify(now);
        }
    }

    /// The same, but it happened on one node only.
    pub(crate) fn changed(&self, key: &str, node: usize, now: Time) {
        let line = self.lines.lock().get(key).map(|(line, _)| line.clone());
        if let Some(line) = line {
            line.changed.lock().nodes.insert(node);
            line.notify_if_enough(now);
        }
    }

    /// The same for every name.
    pub(crate) fn notify_all(&self, now: Time) {
        let lines: Vec<_> = self.lines.lock().values().map(|(line, _)| line.clone()).collect();
        for line in lines {
            line.notify(now);
        }
    }
}

impl Line {
    fn new(needs: WakeCondition) -> Self {
        let (turn, notify) = (Semaphore::new(1), Notify::new());
        let changed = Mutex::new(Changed { nodes: Nodes::NONE, needs });
        let due = AtomicU64::new(Time::NEVER.as_nanos());
        Self { turn, notify, changed, due, seen: watch::Sender::new(Check::NotYet) }
    }

    fn notify_if_enough(&self, now: Time) {
        let is_enough = {
            let changed = self.changed.lock();
            changed.needs.are_met_by(changed.nodes)
        };
        if is_enough {
            self.notify(now);
        }
    }

    fn notify(&self, now: Time) {
        self.due.fetch_min(now.as_nanos(), Ordering::AcqRel);
        self.notify.notify_one();
    }
}

impl Waiter<'_> {
    /// Our turn, if nobody is before us.
    pub(crate) fn turn_now(&self) -> Option<SemaphorePermit<'_>> {
        self.line.turn.try_acquire().ok()
    }

    /// Completes when everybody before us has gone.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        match self.line.turn.acquire().await {
            Ok(permit) => permit,
            // Nobody closes it.
            Err(_closed) => std::future::pending().await,
        }
    }

    /// Completes when something may have happened to the lock since the last [`checks_by`](Self::checks_by).
    pub(crate) async fn notified(&self) {
        self.line.notify.notified().await;
    }

    /// We cannot check yet, and shall say more at this moment.
    pub(crate) fn waits_until(&self, at: Time) {
        self.line.due.store(at.as_nanos(), Ordering::Release);
    }

    /// We check now, and shall have checked at this moment. That deals with all notifications before it.
    pub(crate) fn checks_by(&self, at: Time) {
        let _alerted_before = pin!(self.line.notify.notified()).enable();
        // A change during the check counts once the check has shown which changes are needed.
        *self.line.changed.lock() = Changed { nodes: Nodes::NONE, needs: WakeCondition::NEVER };
        self.line.due.store(at.as_nanos(), Ordering::Release);
    }

    /// By when the waiter with the turn will have checked, or said by when it will.
    pub(crate) fn due(&self) -> Time {
        Time::from_nanos(self.line.due.load(Ordering::Acquire))
    }

    /// Tells everybody in line what a check found, and by when there will be the next. Only news wakes them.
    pub(crate) fn saw(&self, look: Check, now: Time, next: Time) {
        self.line.due.store(next.as_nanos(), Ordering::Release);
        self.line.changed.lock().needs = look.needs().unwrap_or(self.lines.needs);
        self.line.notify_if_enough(now);
        self.line.seen.send_if_modified(|seen| {
            let news = !look.is_like(seen);
            *seen = look;
            news
        });
    }

    pub(crate) fn looks(&self) -> watch::Receiver<Check> {
        self.line.seen.subscribe()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lines.lock();
        if let Some((_, waiters)) = lines.get_mut(&self.key) {
            *waiters -= 1;
            if *waiters == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_protocol::{
        holder::{self, Holder},
        token::Token,
    };

    use super::*;

    fn key() -> Key {
        Key::new("", "job").unwrap()
    }

    #[tokio::test]
    async fn the_turn_goes_in_order_and_past_those_who_left() {
        let lines = Lines::new(1);
        let (first, second, third) = (lines.join(&key()), lines.join(&key()), lines.join(&key()));
        let turn = first.turn().await;
        let mut leaves = Box::pin(second.turn());
        let mut stays = Box::pin(third.turn());
        assert!(futures_now(&mut leaves).is_none() && futures_now(&mut stays).is_none());
        drop(leaves);
        drop(turn);
        let _third_has_it = stays.await;
    }

    #[test]
    fn an_empty_line_leaves_nothing() {
        let lines = Lines::new(1);
        let (one, two) = (lines.join(&key()), lines.join(&key()));
        drop(one);
        assert!(lines.has(&key()));
        drop(two);
        assert!(!lines.has(&key()));
    }

    #[test]
    fn names_are_counted_and_not_their_waiters() {
        let lines = Lines::new(1);
        assert_eq!((lines.is_empty(), lines.len()), (true, 0));
        let (_one, _two) = (lines.join(&key()), lines.join(&key()));
        assert_eq!((lines.is_empty(), lines.len()), (false, 1));
        let _other = lines.join(&Key::new("", "another").unwrap());
        assert_eq!((lines.is_empty(), lines.len()), (false, 2));
    }

    #[test]
    fn a_turn_is_had_at_once_unless_somebody_has_it() {
        let lines = Lines::new(1);
        let (first, second) = (lines.join(&key()), lines.join(&key()));
        let turn = first.turn_now();
        assert!(turn.is_some() && second.turn_now().is_none());
        drop(turn);
        assert!(second.turn_now().is_some());
    }

    #[test]
    fn a_release_in_this_process_is_not_lost_on_a_busy_waiter() {
        let lines = Lines::new(1);
        let waiter = lines.join(&key());
        lines.notify("job", Time::ZERO);
        assert!(futures_now(&mut Box::pin(waiter.notified())).is_some());
    }

    #[test]
    fn a_look_deals_with_the_alerts_before_it_and_keeps_those_after() {
        let lines = Lines::new(1);
        let waiter = lines.join(&key());
        lines.notify("job", Time::ZERO);
        waiter.checks_by(Time::NEVER);
        assert!(futures_now(&mut Box::pin(waiter.notified())).is_none());
        lines.notify_all(Time::ZERO);
        assert!(futures_now(&mut Box::pin(waiter.notified())).is_some());
    }

    #[test]
    fn an_alert_is_due_at_once() {
        let lines = Lines::new(1);
        let waiter = lines.join(&key());
        let later = Time::ZERO + Duration::from_secs(30);
        waiter.saw(Check::NotYet, Time::ZERO, later);
        assert_eq!(waiter.due(), later);
        lines.notify("another", Time::ZERO);
        assert_eq!(waiter.due(), later);
        lines.notify("job", Time::ZERO);
        assert_eq!(waiter.due(), Time::ZERO);
    }

    #[tokio::test]
    async fn a_waiter_for_several_nodes_is_alerted_when_so_many_were_touched() {
        let lines = Lines::new(1);
        let waiter = lines.join(&key());
        let notified = || futures_now(&mut Box::pin(waiter.notified())).is_some();
        lines.changed("job", 2, Time::ZERO);
        waiter.checks_by(Time::NEVER);
        lines.changed("job", 0, Time::ZERO);
        assert!(!notified(), "it is looking");
        let needs = WakeCondition { count: 2, of: [0, 2, 4].into_iter().collect() };
        let held = || Check::Held { holder: Holder::default(), tracked: true, needs };
        waiter.saw(held(), Time::ZERO, Time::NEVER);
        lines.changed("job", 0, Time::ZERO);
        assert!(!notified(), "the same node twice");
        lines.changed("job", 3, Time::ZERO);
        assert!(!notified(), "one that it was granted");
        lines.changed("job", 4, Time::ZERO);
        assert!(notified(), "also by what was changed during the look");
        waiter.checks_by(Time::NEVER);
        lines.changed("job", 0, Time::ZERO);
        waiter.saw(held(), Time::ZERO, Time::NEVER);
        assert!(!notified(), "it has looked since");
        waiter.saw(
            Check::Split { holder: Holder::default(), answered: Duration::ZERO, took: Duration::ZERO },
            Time::ZERO,
            Time::NEVER,
        );
        lines.changed("job", 2, Time::ZERO);
        assert!(!notified(), "the others do the same");
    }

    #[test]
    fn only_another_holder_is_news_to_those_in_line() {
        let lines = Lines::new(1);
        let waiter = lines.join(&key());
        let held = |label: &str, secs| Check::Held {
            holder: holder::of(
                Token::parse(&format!("lh1:0d9a60f5-51a8-4bd6-a02c-0123456789ab@{label}")),
                Some(Duration::from_secs(secs)),
                None,
            ),
            tracked: true,
            needs: WakeCondition::ANY,
        };
        let mut looks = waiter.looks();
        waiter.saw(held("one", 3), Time::ZERO, Time::NEVER);
        assert!(looks.has_changed().unwrap());
        drop(looks.borrow_and_update());
        waiter.saw(held("one", 30), Time::ZERO, Time::NEVER);
        assert!(!looks.has_changed().unwrap(), "it has renewed");
        waiter.saw(held("two", 30), Time::ZERO, Time::NEVER);
        assert!(looks.has_changed().unwrap());
        let split = || Check::Split { holder: Holder::default(), answered: Duration::ZERO, took: Duration::ZERO };
        waiter.saw(split(), Time::ZERO, Time::NEVER);
        drop(looks.borrow_and_update());
        waiter.saw(split(), Time::ZERO, Time::NEVER);
        assert!(!looks.has_changed().unwrap(), "nobody has it still");
    }

    fn futures_now<F: std::future::Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
