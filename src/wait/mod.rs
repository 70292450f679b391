//! The lines of this process, one for each name: their waiters, and which of them is woken. One waiter of a name asks
//! the server for all of them; the others wait behind it, in order, and cost the server nothing.
//!
//! # Invariants
//!
//! 1. A notification wakes one waiter of its name: the one whose turn it is. It is kept until that one checks, so none
//!    is lost while a waiter is busy with a check.
//! 2. A waiter that needs several nodes to be freed is notified when that many of them have changed since its last
//!    check. Changes by its competitors, or by itself, lead to no check. Otherwise waiters that take and give back a
//!    free minority, or split the votes, would notify each other without end.
//! 3. The waiter with the turn announces by when it will check, before any wait. If it does not check by then (its
//!    runtime may not be polled), the others continue without it.

use std::sync::Arc;

use leasehold_protocol::{
    check::Check,
    hash::HashMap,
    key::Key,
    slot::Keys,
    tally::{Nodes, WakeCondition, majority},
    time::Time,
};
use tokio::sync::watch;

use self::alarm::Alarm;
use crate::sync::{Mutex, Semaphore, SemaphorePermit};

mod alarm;
mod queue;
mod slots;

pub(crate) use self::{
    queue::{FairWaiter, FairWaiters},
    slots::{CheckSlot, CheckSlots},
};

/// Every line of one `Client`, by name.
#[derive(Debug)]
pub(crate) struct Lines {
    /// The changes that are worth a check, while no check has shown a better condition.
    needs: WakeCondition,
    /// The lines, and the number of waiters in each.
    lines: Mutex<HashMap<Key, (Arc<Line>, usize)>>,
}

/// The waiters of one name.
#[derive(Debug)]
pub(crate) struct Line {
    /// The turn to ask the server. Tokio's semaphore is first come, first served, and a waiter that leaves passes the
    /// turn on.
    turn: Semaphore,
    changed: Mutex<Changed>,
    /// Due when the waiter with the turn will have checked, or announced by when it will. It rings when something may
    /// have happened to the lock.
    alarm: Alarm,
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
pub(crate) struct InLine<'a> {
    lines: &'a Lines,
    key: Key,
    line: Arc<Line>,
}

impl Lines {
    /// Lines over this many nodes: no lock is acquired without a majority of them.
    pub(crate) fn new(nodes: usize) -> Self {
        let needs = WakeCondition { count: majority(nodes), of: Nodes::all(nodes) };
        Self { needs, lines: Mutex::default() }
    }

    /// Whether this name has waiters. If so, a newcomer must not ask the server.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.lines.lock().contains_key(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.lock().is_empty()
    }

    /// The number of names with waiters.
    pub(crate) fn len(&self) -> usize {
        self.lines.lock().len()
    }

    pub(crate) fn join(&self, key: &Key) -> InLine<'_> {
        let mut lines = self.lines.lock();
        let (line, waiters) = lines.entry(key.clone()).or_insert_with(|| (Arc::new(Line::new(self.needs)), 0));
        *waiters += 1;
        let line = line.clone();
        InLine { lines: self, key: key.clone(), line }
    }

    /// Has the waiter with the turn check at once, because something may have happened to the lock with this key.
    pub(crate) fn notify(&self, key: &str, now: Time) {
        let line = self.lines.lock().get(key).map(|(line, _)| line.clone());
        if let Some(line) = line {
            line.alarm.ring(now);
        }
    }

    /// Notes a change of the key on one node only.
    pub(crate) fn changed(&self, key: &str, node: usize, now: Time) {
        let line = self.lines.lock().get(key).map(|(line, _)| line.clone());
        if let Some(line) = line {
            line.changed.lock().nodes.insert(node);
            line.notify_if_enough(now);
        }
    }

    /// Notifies the line of each of these keys.
    pub(crate) fn notify_all(&self, keys: &Keys, now: Time) {
        let lines: Vec<_> = {
            let all = self.lines.lock();
            all.iter().filter(|(key, _)| keys.has(key.lock())).map(|(_, (line, _))| line.clone()).collect()
        };
        for line in lines {
            line.alarm.ring(now);
        }
    }
}

impl Line {
    fn new(needs: WakeCondition) -> Self {
        let changed = Mutex::new(Changed { nodes: Nodes::NONE, needs });
        Self { turn: Semaphore::new(1), changed, alarm: Alarm::new(), seen: watch::Sender::new(Check::NotYet) }
    }

    fn notify_if_enough(&self, now: Time) {
        let is_enough = {
            let changed = self.changed.lock();
            changed.needs.are_met_by(changed.nodes)
        };
        if is_enough {
            self.alarm.ring(now);
        }
    }
}

impl InLine<'_> {
    /// The lock that is waited for.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Our turn, if no waiter is before us.
    pub(crate) fn turn_now(&self) -> Option<SemaphorePermit<'_>> {
        self.line.turn.try_acquire().ok()
    }

    /// Completes when every waiter before us has left.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        match self.line.turn.acquire().await {
            Ok(permit) => permit,
            // It is never closed.
            Err(_closed) => std::future::pending().await,
        }
    }

    /// Completes when something may have happened to the lock since the last [`checks_by`](Self::checks_by).
    pub(crate) async fn notified(&self) {
        self.line.alarm.heard().await;
    }

    /// Announces that we cannot check yet, and will announce more at this time.
    pub(crate) fn waits_until(&self, at: Time) {
        self.line.alarm.set(at);
    }

    /// Announces that we check now, and will be done at this time. The check covers all earlier notifications.
    pub(crate) fn checks_by(&self, at: Time) {
        self.line.alarm.quiet();
        // A change during the check counts once the check has shown which changes are needed.
        *self.line.changed.lock() = Changed { nodes: Nodes::NONE, needs: WakeCondition::NEVER };
        self.line.alarm.set(at);
    }

    /// When the waiter with the turn will have checked, or announced by when it will.
    pub(crate) fn due(&self) -> Time {
        self.line.alarm.due()
    }

    /// Reports to all in line what a check found, and when the next is due. Only news wakes them.
    pub(crate) fn saw(&self, look: Check, now: Time, next: Time) {
        self.line.alarm.set(next);
        self.line.changed.lock().needs = look.needs().unwrap_or(self.lines.needs);
        self.line.notify_if_enough(now);
        self.line.seen.send_if_modified(|seen| {
            let news = !look.is_like(seen);
            *seen = look;
            news
        });
    }

    /// The last check of the waiter with the turn.
    pub(crate) fn seen(&self) -> watch::Receiver<Check> {
        self.line.seen.subscribe()
    }
}

impl Drop for InLine<'_> {
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
mod tests;
