//! Renews leases and reports their losses: a short driver around the pure [`leasehold_protocol::renewal`].
//!
//! The loop never waits for the network. It sleeps until some lease is due, at most 250 ms while anything is held (rule
//! 3: timers do not count suspend). Then it lets every due core decide, and sends what falls due together in one batch.
//! The answers are fed back from separate tasks.

use std::{collections::HashSet, sync::Arc, time::Duration};

use leasehold_protocol::{
    holder::Holder, key::Key, loss::LossReason, message::Route, slot::Keys, time::Time, token::Token,
};

use self::{
    leaving::Leaving,
    own_releases::OwnReleases,
    table::{LOOK_EVERY, Table},
    tracking::Tracking,
};
use crate::{
    clock::{self, Clock},
    held::{Hold, Reaction},
    keeper::Host,
    quorum::Quorum,
    random,
    sync::{Mutex, Notify, catching_panics},
    wait::Lines,
};

mod leaving;
mod orders;
mod own_releases;
mod renewal;
#[cfg(feature = "testing")]
mod settling;
mod table;
mod tracking;

pub(crate) use self::renewal::FollowUp;

/// How much each lease adds to the time over which checks of many leases are spread.
const ASK_EACH: Duration = Duration::from_micros(10);

/// The most leases that one batch renews: a script call of this size takes a server about a millisecond.
const BATCH: usize = 500;

/// Ends every lease when the loop is dropped, if the keeper has failed.
struct EndsLeases<'a>(&'a Arc<Watchdog>);

impl Drop for EndsLeases<'_> {
    fn drop(&mut self) {
        if self.0.host.over().is_cancelled() {
            let now = catching_panics(|| self.0.now()).unwrap_or(Time::ZERO);
            for hold in self.0.holds() {
                self.0.give_up(&hold, now);
            }
        }
    }
}

/// Every hold of one `Client`, and the loop that looks after them.
#[derive(Debug)]
pub(crate) struct Watchdog {
    clock: Arc<dyn Clock>,
    host: Host,
    quorum: Arc<Quorum>,
    command_timeout: Duration,
    lines: Arc<Lines>,
    tracking: Tracking,
    /// The releases and undos of this process that are under way.
    pub(crate) own_releases: Arc<OwnReleases>,
    leaving: Leaving,
    table: Mutex<Table>,
    wake: Notify,
    forgotten: Notify,
    #[cfg(feature = "testing")]
    settling: settling::Settling,
}

impl Watchdog {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        host: Host,
        quorum: Arc<Quorum>,
        [lines, queues, observed]: [Arc<Lines>; 3],
        command_timeout: Duration,
    ) -> Self {
        let (table, wake, forgotten) = (Mutex::default(), Notify::new(), Notify::new());
        let tracking = Tracking::new(quorum.clone(), lines.clone(), queues, observed);
        Self {
            clock,
            host,
            quorum,
            command_timeout,
            lines,
            tracking,
            own_releases: Arc::default(),
            leaving: Leaving::default(),
            table,
            wake,
            forgotten,
            #[cfg(feature = "testing")]
            settling: settling::Settling::default(),
        }
    }

    fn now(&self) -> Time {
        clock::now(&*self.clock)
    }

    /// Guards a hold from now on. This costs a table entry; the loop is woken only if its next check would be too late.
    pub(crate) fn guard(self: &Arc<Self>, hold: &Arc<Hold>) {
        let (before, too_late) = self.table.lock().insert(hold);
        if too_late {
            self.wake.notify_one();
        }
        // Earlier holds that do not share the lock with this one have lost it. They have to learn that from its server.
        if before.is_some_and(|before| !before.shares_with(hold)) {
            let (now, mut before) = (self.now(), self.holds_of(hold.claim.key.lock()));
            before.retain(|before| !Arc::ptr_eq(before, hold));
            self.hint_each(&before, now);
        }
        // If the keeper failed before this lease was in the table, nothing else reports its end.
        if self.host.over().is_cancelled() {
            self.give_up(hold, self.now());
        }
    }

    /// Forgets a hold whose last lease has let go.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        let _dropped_unlocked = self.table.lock().remove(hold);
        self.forgotten.notify_waiters();
    }

    /// Completes when no hold is left.
    pub(crate) async fn emptied(&self) {
        loop {
            // Created before the check, so it is notified of every later change.
            let forgotten = self.forgotten.notified();
            if self.is_empty() {
                return;
            }
            forgotten.await;
        }
    }

    /// Whether this lock has such a hold. It may have several, because a lost one stays until its last lease lets go.
    pub(crate) fn has_hold(&self, key: &str, is_such: impl Fn(&Hold) -> bool) -> bool {
        self.table.lock().holds_of(key).any(|hold| is_such(hold))
    }

    /// Whether a hold of this lock is valid here for longer than `left`.
    pub(crate) fn is_held_for_longer(&self, key: &str, left: Duration, now: Time) -> bool {
        let table = self.table.lock();
        // No hold is valid for longer than its TTL. This runs after each batch of renewals, where reading every hold
        // that shares the lock would cost more than the renewals do.
        left < table.longest_ttl(key) && table.holds_of(key).any(|hold| left < hold.remaining(now))
    }

    /// The holder of a lock that is held here alone, and for how long that is certain.
    pub(crate) fn held(&self, key: &Key) -> Option<Holder> {
        let hold = self.table.lock().exclusive(key.lock())?;
        let remaining = hold.remaining(self.now());
        let holder = || Holder::of(Some(hold.claim.token.clone()), Some(remaining), Some(hold.fence));
        (!remaining.is_zero()).then(holder)
    }

    /// Marks a holder as ours if its lease is held here.
    pub(crate) fn recognize(&self, key: &Key, holder: Holder) -> Holder {
        let is_ours = self.has_hold(key.lock(), |hold| {
            // The sharers of one phase have the same fence, and the key contains none of their tokens.
            if holder.is_shared() {
                holder.fence() == Some(hold.fence)
            } else {
                Some(&hold.claim.token) == holder.whole_token()
            }
        });
        if is_ours { holder.ours() } else { holder }
    }

    /// Like [`recognize`](Self::recognize), for all holders that share a lock, of which there may be many.
    pub(crate) fn recognize_each(&self, key: &Key, holders: Vec<Holder>) -> Vec<Holder> {
        let held: HashSet<Token> =
            self.table.lock().holds_of(key.lock()).map(|hold| hold.claim.token.clone()).collect();
        let is_ours = |holder: &Holder| holder.whole_token().is_some_and(|token| held.contains(token));
        holders.into_iter().map(|holder| if is_ours(&holder) { holder.ours() } else { holder }).collect()
    }

    /// Checks a key at once that may have changed on this node. The answer decides, not the hint.
    pub(crate) fn hint(&self, key: &str, node: usize) {
        let now = self.now();
        let exclusive = self.table.lock().exclusive(key);
        match exclusive {
            Some(hold) => {
                hold.hint_of(node, now);
                self.reschedule(&hold);
            }
            None => self.hint_each(&self.holds_of(key), now),
        }
    }

    fn hint_each(&self, holds: &[Arc<Hold>], now: Time) {
        for hold in holds {
            hold.hint(now);
            self.reschedule(hold);
        }
    }

    pub(crate) fn holds_of(&self, key: &str) -> Vec<Arc<Hold>> {
        self.table.lock().holds_of(key).cloned().collect()
    }

    /// Checks all holds of these keys, which may have changed. The checks are spread, so that they do not coincide.
    pub(crate) fn hint_all(&self, keys: &Keys) {
        let (now, mut jitter) = (self.now(), random::jitter());
        let mut holds = self.holds();
        holds.retain(|hold| keys.has(hold.claim.key.lock()));
        let spread = ASK_EACH * u32::try_from(holds.len()).unwrap_or(u32::MAX);
        for hold in holds {
            hold.hint(now + jitter.below(spread));
            self.reschedule(&hold);
        }
    }

    /// Notes that a replica has taken over from the server of these keys, some of which it may lack.
    pub(crate) fn note_takeover(&self, keys: &Keys) {
        let now = self.now();
        self.holds().iter().filter(|hold| keys.has(hold.claim.key.lock())).for_each(|hold| hold.note_takeover(now));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().len() == 0
    }

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.table.lock().holds().cloned().collect()
    }

    /// Runs the loop until the keeper stops.
    ///
    /// A panic, which is a bug here or in the program's own clock, ends every lease that is held, but not the loop.
    pub(crate) async fn run(self: Arc<Self>) {
        let _if_it_fails = EndsLeases(&self);
        let mut now = Time::ZERO;
        loop {
            let planned = catching_panics(|| {
                now = self.now();
                self.look(now);
                #[cfg(feature = "testing")]
                let looked = now;
                now = self.now();
                let (planned, _dropped_unlocked) = self.table.lock().plan(now);
                #[cfg(feature = "testing")]
                if planned > looked {
                    self.settling.has_looked(looked);
                }
                (planned != Time::NEVER).then_some(planned)
            });
            let until = planned.unwrap_or_else(|| {
                for hold in self.holds() {
                    self.give_up(&hold, now);
                }
                Some(now + LOOK_EVERY)
            });
            match until {
                None => self.wake.notified().await,
                // The batch is sent first.
                Some(until) if until <= now => tokio::task::yield_now().await,
                Some(until) => tokio::select! {
                    () = self.host.sleep_until(now, until) => {}
                    () = self.wake.notified() => {}
                },
            }
        }
    }

    /// Ends a lease that can no longer be guarded.
    fn give_up(self: &Arc<Self>, hold: &Arc<Hold>, now: Time) {
        let _given_up = catching_panics(|| self.execute(hold, hold.finish(now, LossReason::KeeperEnded)));
    }

    /// Processes the holds that are due, and renews those that need it: as many as one batch takes.
    fn look(self: &Arc<Self>, now: Time) {
        // The rest are renewed after this batch was sent, at a later time. So leases that came due at once come due one
        // batch after another from then on.
        let due = self.table.lock().due(now, BATCH);
        let is_renewed = |hold: &Arc<Hold>| self.ask(hold, now, Hold::tick);
        let mut batch: Vec<_> = due.into_iter().filter(is_renewed).collect();
        // Leases due soon join the batch while it has room, so a process's renewals converge.
        let has_room = self.table.lock().len() <= BATCH;
        let meets = batch.first().filter(|_| has_room).map(|first| first.claim.ttl);
        while !batch.is_empty() && batch.len() < BATCH {
            let Some(next) = self.table.lock().next() else { break };
            if !self.ask(&next, now, |hold, now| hold.go_along(now, meets)) {
                break;
            }
            batch.push(next);
        }
        if !batch.is_empty() {
            let batch = Arc::new(batch);
            self.table.lock().renewing(&batch);
            self.renew(now, &batch);
        }
    }

    /// Feeds an event to a hold. Returns whether the hold is to be renewed.
    fn ask(self: &Arc<Self>, hold: &Arc<Hold>, now: Time, event: impl FnOnce(&Arc<Hold>, Time) -> Reaction) -> bool {
        let _under_way = self.host.token();
        let renew = catching_panics(|| {
            let reaction = event(hold, now);
            let renew = reaction.actions.renew;
            self.execute(hold, reaction);
            renew
        });
        if renew.is_none() {
            self.give_up(hold, now);
        }
        if renew == Some(true) {
            hold.measured.is_renewed(hold.remaining(now), hold.claim.ttl);
            return true;
        }
        self.table.lock().schedule(hold);
        false
    }

    /// Notes that the work under a hold makes progress.
    pub(crate) fn progress(&self, hold: &Arc<Hold>) {
        if hold.progress(self.now()) {
            self.reschedule(hold);
        }
    }

    /// Reschedules a hold, and wakes the loop if the hold is due before the planned check.
    fn reschedule(&self, hold: &Arc<Hold>) {
        if self.table.lock().schedule(hold) {
            self.wake.notify_one();
        }
    }

    /// The route of renewals and of waiters' checks: tracked while there is capacity for all of them.
    pub(crate) fn route(&self) -> Route {
        let held = self.table.lock().len();
        self.tracking.route(held)
    }
}
