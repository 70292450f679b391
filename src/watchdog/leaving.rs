//! Takes waiters off the queue of a fair lock. The waiters of one name leave in batches, so thousands that are
//! cancelled at once cost the server a few calls, and hold up no waiter behind them.

use std::{
    collections::{HashMap, hash_map},
    sync::Arc,
};

use leasehold_protocol::{
    acquisition::Undo,
    key::Key,
    message::{Claim, Owned, ReleaseMode, Request, Route},
    tally::Nodes,
};

use super::{Watchdog, own_releases::OwnRelease};
use crate::{
    quorum::{PendingReply, UndoTask},
    sync::Mutex,
};

/// The most waiters in a batch, which takes the server a fraction of a millisecond.
const BATCH: usize = 100;

/// The waiters that are to leave, by the lock's key. A key is present while a task takes its waiters off.
#[derive(Debug, Default)]
pub(super) struct Leaving(Mutex<HashMap<Key, Vec<Leaver>>>);

/// A waiter that leaves, as the claim of its attempt.
#[derive(Debug)]
struct Leaver {
    claim: Claim,
    order: Undo,
    _own_release: OwnRelease,
}

impl Watchdog {
    /// Takes a waiter off the one server, in the background, once its last request is answered. A lock that it has
    /// acquired already is kept if the mode says so.
    pub(crate) fn leave_line<T: Send + 'static>(
        self: &Arc<Self>,
        claim: Claim,
        (route, mode): (Route, ReleaseMode),
        answer: Option<PendingReply<T>>,
    ) {
        let order = Undo { nodes: Nodes::one(0), route, mode, is_attempt: true };
        let leaver = Leaver { _own_release: self.own_releases.begin(&claim.key, 0), claim, order };
        match answer {
            Some(answer) => {
                let watchdog = self.clone();
                self.host.spawn(async move {
                    let _too_late = answer.await;
                    watchdog.line_up_to_leave(leaver);
                });
            }
            None => self.line_up_to_leave(leaver),
        }
    }

    fn line_up_to_leave(self: &Arc<Self>, leaver: Leaver) {
        if matches!(leaver.order.mode, ReleaseMode::Retain(..)) {
            return self.leave_alone(leaver);
        }
        match self.leaving.0.lock().entry(leaver.claim.key.clone()) {
            hash_map::Entry::Occupied(mut all) => all.get_mut().push(leaver),
            hash_map::Entry::Vacant(none) => {
                let key = none.key().clone();
                none.insert(vec![leaver]);
                self.host.spawn(self.clone().leave_in_batches(key));
            }
        }
    }

    async fn leave_in_batches(self: Arc<Self>, key: Key) {
        while let Some(batch) = self.next_batch(&key) {
            let mut claims = batch.iter().map(|leaver| &leaver.claim);
            let Some(claim) = claims.next().cloned() else { continue };
            let others: Arc<[_]> = claims.map(|claim| claim.token.clone()).collect();
            let is_done = !others.is_empty() && self.leave_together(claim, ReleaseMode::Leave(others)).await;
            if is_done {
                drop(batch);
                self.lines.changed(key.lock(), 0, self.now());
            } else {
                for leaver in batch {
                    self.leave_alone(leaver);
                }
            }
        }
    }

    fn leave_alone(&self, Leaver { claim, order, .. }: Leaver) {
        self.host.spawn(self.undoing(0, UndoTask { order, claim, was_asked: true }));
    }

    fn next_batch(&self, key: &Key) -> Option<Vec<Leaver>> {
        let mut leaving = self.leaving.0.lock();
        let all = leaving.get_mut(key)?;
        if all.is_empty() {
            leaving.remove(key);
            return None;
        }
        let rest = all.len().saturating_sub(BATCH);
        Some(all.split_off(rest))
    }

    /// Takes a batch off. Returns whether the server answered; if not, each waiter leaves by itself, retrying as
    /// needed.
    async fn leave_together(&self, claim: Claim, mode: ReleaseMode) -> bool {
        let Some(member) = self.quorum.member(0) else { return false };
        let leave = Request::Release { claim, mode };
        let answer: Result<Owned, _> = member.ask_without_vote(Route::Keeper, leave, self.command_timeout).await;
        answer.is_ok()
    }
}
