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
    /// Carries out what an acquisition orders, except what only the driver of a request can do; then reports the news.
    /// Reporting may panic, and may block a caller's thread, so no order follows it.
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
            // A recovering node is skipped: its next denial orders another repair.
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

    /// Takes a token off one node, and notifies the waiters of this process, which may have relied on its being held
    /// here. They are not notified if nothing can have changed. Otherwise an attempt that a node refuses half way would
    /// be followed by the next at once.
    pub(crate) fn undoing(&self, at: usize, undo: UndoTask) -> impl Future<Output = ()> + Send + use<> {
        let (lines, clock, host, key) =
            (self.lines.clone(), self.clock.clone(), self.host.clone(), undo.claim.key.clone());
        let own_release = self.own_releases.begin(&key, at);
        // An unreachable node may keep an attempt for as long as its key lives. No later attempt waits for that.
        let most = if undo.order.is_attempt { self.command_timeout } else { Duration::MAX };
        let undoing = self.quorum.member(at).map(|member| undo.run(member.clone(), host.clone(), clock.clone()));
        async move {
            let Some(undoing) = undoing else { return };
            let mut undoing = pin!(undoing);
            let undone = tokio::select! {
                biased;
                undone = &mut undoing => undone,
                // Created lazily, because an undo may end at once, and a thread that is ending has no timers.
                () = async { host.sleep(most).await } => {
                    drop(own_release);
                    undoing.await
                }
            };
            match undone {
                Undone::Yes { has_changed: false } => {}
                Undone::Yes { has_changed: true } => lines.changed(key.lock(), at, clock::now(&*clock)),
                // This one is not waited for: it may take as long as an outage.
                Undone::NotYet(unanswered) => host.clone().spawn_until_stopped(async move {
                    if unanswered.run(host, clock.clone()).await {
                        lines.changed(key.lock(), at, clock::now(&*clock));
                    }
                }),
            }
        }
    }

    /// Passes on a grant whose waiter no longer waits. It is left alone if the lock is held under it: the notification
    /// may come after the poll that confirmed it, or twice.
    pub(crate) fn leave(&self, key: &Key, token: &Token) {
        if self.has_hold(key.lock(), |hold| hold.claim.token.owns(token.as_str())) {
            return;
        }
        // A grant is never renewed.
        let (nodes, route, mode) = (Nodes::all(self.quorum.len()), Route::Keeper, ReleaseMode::leave());
        let order = Undo { nodes, route, mode, is_attempt: false };
        let (key, token, ttl, fence_memory) = (key.clone(), token.clone(), self.command_timeout, Duration::ZERO);
        let claim = Claim { key, token, mode: Mode::Exclusive, ttl, life: ttl, fence: None, fence_memory };
        self.undo(&order, &claim);
    }
}
