//! Carries out the orders of acquisitions: repairs, undos and new connections.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    acquisition::{Actions, Undo},
    key::Key,
    message::{Claim, ReleaseMode, Route},
    mode::Mode,
    tally::Nodes,
    token::Token,
};

use super::Watchdog;
use crate::{
    clock,
    foreign::{self, Event},
    held::{Hold, Reaction},
    quorum::{UndoTask, Undone},
    sync::catching_panics,
};

impl Watchdog {
    /// Carries out what an acquisition orders, but for what only the driver of a request can; then tells the news.
    /// Telling may block a caller's thread, and panic: no order comes after it.
    pub(crate) fn execute(self: &Arc<Self>, hold: &Arc<Hold>, Reaction { actions, news }: Reaction) {
        let _carried_out = catching_panics(|| self.carry_out(hold, &actions));
        if let Some(mut news) = news {
            let key = &hold.claim.key;
            news.because(|| self.quorum.trouble(key), || self.quorum.address_of(key));
            news.tell();
        }
        if !actions.reconnect.is_empty() {
            foreign::tell_debug_in(|| hold.span(), || Event::Reconnect { lock: hold.claim.key.name().into() });
        }
    }

    fn carry_out(self: &Arc<Self>, hold: &Arc<Hold>, actions: &Actions) {
        if !actions.reconnect.is_empty() {
            self.quorum.reconnect(actions.reconnect, &hold.claim.key);
        }
        for (at, member) in actions.repair.iter().filter_map(|at| Some((at, self.quorum.member(at)?))) {
            // Its next denial brings another order.
            if !member.is_recovering() {
                self.host.spawn(self.clone().repair(at, member.clone(), hold.clone()));
            }
        }
        if let Some(undo) = &actions.undo {
            self.undo(undo, &hold.claim_at(self.now()));
        }
    }

    /// Takes a token off nodes in the background.
    pub(crate) fn undo(&self, order: &Undo, claim: &Claim) {
        for at in order.nodes.iter() {
            self.host.spawn(self.undoing(at, UndoTask::new(order.clone(), claim.clone())));
        }
    }

    /// Takes a token off one node, and notifies the waiters of this process, who may have relied on its being held
    /// here. Without a possible change they are not notified: an attempt that a node refuses half way would be followed
    /// by the next at once.
    pub(crate) fn undoing(&self, at: usize, undo: UndoTask) -> impl Future<Output = ()> + Send + use<> {
        let (lines, clock, host, key) =
            (self.lines.clone(), self.clock.clone(), self.host.clone(), undo.claim.key.clone());
        let own_release = self.own_releases.begin(&key, at);
        // A node that is away may have an attempt for as long as its key lives, and nobody waits for that.
        let most = if undo.order.is_attempt { self.command_timeout } else { Duration::MAX };
        let undoing = self.quorum.member(at).map(|member| undo.run(member.clone(), host.clone(), clock.clone()));
        async move {
            let Some(undoing) = undoing else { return };
            let mut undoing = pin!(undoing);
            let undone = tokio::select! {
                biased;
                undone = &mut undoing => undone,
                // No timer for what is over at once: where a thread is ending, there are none.
                () = async { host.sleep(most).await } => {
                    drop(own_release);
                    undoing.await
                }
            };
            match undone {
                Undone::Yes { has_changed: false } => {}
                Undone::Yes { has_changed: true } => lines.changed(key.lock(), at, clock::now(&*clock)),
                // Nobody waits for this one: that may take as long as an outage.
                Undone::NotYet(unanswered) => host.clone().spawn_until_stopped(async move {
                    if unanswered.run(host, clock.clone()).await {
                        lines.changed(key.lock(), at, clock::now(&*clock));
                    }
                }),
            }
        }
    }

    /// A grant that has come for somebody who does not wait any more: passes it on. Not if the lock is held by it: the
    /// notification may come after the poll that confirmed it, or twice.
    pub(crate) fn leave(&self, key: &Key, token: &Token) {
        if self.has_hold(key.lock(), |hold| hold.claim.token.owns(token.as_str())) {
            return;
        }
        // Nobody renews a grant.
        let (nodes, route, mode) = (Nodes::all(self.quorum.len()), Route::Keeper, ReleaseMode::leave());
        let order = Undo { nodes, route, mode, is_attempt: false };
        let (key, token, ttl, fence_memory) = (key.clone(), token.clone(), self.command_timeout, Duration::ZERO);
        let claim = Claim { key, token, mode: Mode::Exclusive, ttl, life: ttl, fence: None, fence_memory };
        self.undo(&order, &claim);
    }
}
