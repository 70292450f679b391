//! Renews leases and tells their holders the truth: a short driver around the pure [`leasehold_protocol::renewal`].
//!
//! The loop never waits for the network. It sleeps until the next moment that some lease asks for, at most 250 ms while
//! anything is held (rule 3: timers do not count suspend), lets every due core decide, and sends what falls due
//! together in one batch. Answers are fed back from tasks of their own.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    acquisition::{self, Actions},
    holder::{self, Holder},
    key::Key,
    loss::LossReason,
    message::{Claim, ReleaseMode, Route},
    tally::Nodes,
    time::Time,
    token::Token,
};

use crate::{
    clock::{self, Clock},
    foreign::{self, Event},
    keeper::Host,
    quorum::{Quorum, Undo, Undone},
    random,
    sync::{
        Mutex, Notify,
        atomic::{AtomicBool, Ordering},
        catching_panics,
    },
    wait::Lines,
};

mod hold;
mod renewal;

pub(crate) use self::hold::{Entry, Hold, Leaving, Reaction};

/// The longest the loop sleeps while anything is held.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long the loop goes on looking after the last lease: a program that takes locks one after the other must not pay
/// for waking the keeper each time.
const LINGER: Duration = Duration::from_secs(2);

/// Questions about everything that is held are spread by this much each.
const ASK_EACH: Duration = Duration::from_micros(10);

/// The most leases that one batch renews: a script call that long keeps a server about a millisecond.
const BATCH: usize = 500;

/// Every hold of one `Leases`, and the loop that looks after them.
#[derive(Debug)]
pub(crate) struct Watchdog {
    clock: Arc<dyn Clock>,
    host: Host,
    quorum: Arc<Quorum>,
    command_timeout: Duration,
    lines: Arc<Lines>,
    queues: Arc<Lines>,
    table: Mutex<Table>,
    wake: Notify,
    /// More is held than the node watches, and that was said.
    crowded: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    holds: HashMap<Id, Kept>,
    /// The newest hold of each key: the only one that can be a good one.
    newest: HashMap<Key, Id>,
    /// Acquired since the last look. Most short leases leave from here and never reach `due`.
    fresh: Vec<Id>,
    /// When to look at which hold next. An entry that is not its hold's `look` is out of date, and skipped.
    due: BinaryHeap<Reverse<(Time, Id)>>,
    /// When the loop will look next.
    planned: Time,
    empty_since: Option<Time>,
}

/// So many entries that are out of date cost nothing worth speaking of.
const MANY_GONE: usize = 64;

/// A hold's address, which is its own for as long as the table keeps it.
type Id = usize;

fn id(hold: &Arc<Hold>) -> Id {
    Arc::as_ptr(hold).addr()
}

#[derive(Debug)]
struct Kept {
    hold: Arc<Hold>,
    look: Time,
}

impl Table {
    /// Entries of holds that have ended would stay until their time comes.
    fn forget_the_gone(&mut self) {
        if self.due.len() > 2 * self.holds.len() + MANY_GONE {
            let due = self.holds.iter().filter(|(_, kept)| kept.look != Time::NEVER);
            self.due = due.map(|(id, kept)| Reverse((kept.look, *id))).collect();
        }
    }

    /// Looks at a hold no later than it asks for.
    fn schedule(&mut self, id: Id) {
        let Some(kept) = self.holds.get_mut(&id) else { return };
        let Some(next) = kept.hold.next_tick() else { return };
        if next < kept.look {
            kept.look = next;
            self.due.push(Reverse((next, id)));
        }
    }

    fn newest(&self, key: &str) -> Option<Arc<Hold>> {
        let kept = self.holds.get(self.newest.get(key)?)?;
        Some(kept.hold.clone())
    }

    fn first_due(&self) -> Time {
        self.due.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }
}

/// Ends every hold when it is dropped while somebody still needs the keeper.
struct EndsHolds(Arc<Watchdog>);

impl Drop for EndsHolds {
    fn drop(&mut self) {
        let watchdog = &self.0;
        if watchdog.host.is_stopped() {
            return;
        }
        // First this: an acquire that is won meanwhile adds its hold and then looks whether the keeper has ended.
        watchdog.host.ends();
        let now = watchdog.now();
        for hold in watchdog.holds() {
            // Nobody carries out orders any more.
            if let Some(news) = hold.finish(now, LossReason::KeeperEnded).news {
                news.tell();
            }
        }
    }
}

impl Watchdog {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        host: Host,
        quorum: Arc<Quorum>,
        lines: Arc<Lines>,
        queues: Arc<Lines>,
        command_timeout: Duration,
    ) -> Self {
        let (table, wake, crowded) = (Mutex::default(), Notify::new(), AtomicBool::new(false));
        Self { clock, host, quorum, command_timeout, lines, queues, table, wake, crowded }
    }

    fn now(&self) -> Time {
        clock::now(&*self.clock)
    }

    /// Looks after a hold from now on. Costs a table entry; the loop is only woken when it would look too late.
    pub(crate) fn guard(&self, hold: &Arc<Hold>) {
        let first = hold.next_tick();
        let mut table = self.table.lock();
        table.holds.insert(id(hold), Kept { hold: hold.clone(), look: Time::NEVER });
        let before = table.newest.insert(hold.key.clone(), id(hold));
        let before = before.and_then(|id| Some(table.holds.get(&id)?.hold.clone()));
        table.fresh.push(id(hold));
        table.empty_since = None;
        let too_late = first.is_some_and(|first| first < table.planned);
        drop(table);
        if too_late {
            self.wake.notify_one();
        }
        // Hints go to the newest. Who had it until now has lost it, and must hear of that from its server.
        if let Some(before) = before {
            before.hint(self.now());
            self.reschedule(&before);
        }
    }

    /// The last lease of this hold has gone.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        let mut table = self.table.lock();
        let kept = table.holds.remove(&id(hold));
        if table.newest.get(&hold.key) == Some(&id(hold)) {
            table.newest.remove(&hold.key);
        }
        drop(table);
        drop(kept);
    }

    /// The last acquisition of this lock that has not been forgotten yet.
    pub(crate) fn newest(&self, key: &str) -> Option<Arc<Hold>> {
        self.table.lock().newest(key)
    }

    /// Whether a lock is held here, by whom, and for how long that is certain.
    pub(crate) fn held(&self, key: &Key) -> Option<Holder> {
        let hold = self.newest(key.lock())?;
        let remaining = hold.remaining(self.now());
        let holder = || holder::of(Some(hold.token.clone()), Some(remaining), Some(hold.fence));
        (!remaining.is_zero()).then(holder)
    }

    /// Something may have happened to this key: asks about it at once. The answer decides, not the hint.
    pub(crate) fn hint(&self, key: &str) {
        let Some(hold) = self.newest(key) else { return };
        hold.hint(self.now());
        self.reschedule(&hold);
    }

    /// Something may have happened to any key. So many questions are spread, or they would come all at once.
    pub(crate) fn hint_all(&self) {
        let (now, mut jitter) = (self.now(), random::jitter());
        let holds = self.holds();
        let spread = ASK_EACH * u32::try_from(holds.len()).unwrap_or(u32::MAX);
        for hold in holds {
            hold.hint(now + jitter.below(spread));
            self.reschedule(&hold);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().holds.is_empty()
    }

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.table.lock().holds.values().map(|kept| kept.hold.clone()).collect()
    }

    /// Carries out what an acquisition orders, but for what only the driver of a request can; then tells the news. What that
    /// tells of may block a caller's thread, and panic: nothing comes after it.
    pub(crate) fn execute(self: &Arc<Self>, hold: &Arc<Hold>, Reaction { actions, news }: Reaction) {
        let _carried_out = catching_panics(|| self.carry_out(hold, &actions));
        if let Some(news) = news {
            news.tell();
        }
        if !actions.reconnect.is_empty() {
            foreign::tell_debug(|| Event::Reconnect { lock: hold.key.name().into() });
        }
    }

    fn carry_out(self: &Arc<Self>, hold: &Arc<Hold>, actions: &Actions) {
        if !actions.reconnect.is_empty() {
            self.quorum.reconnect(actions.reconnect);
        }
        for (at, member) in actions.repair.iter().filter_map(|at| Some((at, self.quorum.member(at)?))) {
            // Its next denial brings another order.
            if !member.is_recovering() {
                self.host.spawn(self.clone().repair(at, member.clone(), hold.clone()));
            }
        }
        if let Some(undo) = &actions.undo {
            self.undo(undo, &hold.claim());
        }
    }

    /// Takes a token off nodes in the background.
    pub(crate) fn undo(&self, order: &acquisition::Undo, claim: &Claim) {
        for at in order.nodes.iter() {
            self.host.spawn(self.undoing(at, Undo::new(order, claim.clone())));
        }
    }

    /// Takes a token off one node. Whoever waits here may have relied on that it is held here; where nothing was, there is
    /// no news, or an attempt that a node refuses half way would be followed by the next at once.
    pub(crate) fn undoing(&self, at: usize, undo: Undo) -> impl Future<Output = ()> + Send + use<> {
        let (lines, clock, host, key) =
            (self.lines.clone(), self.clock.clone(), self.host.clone(), undo.claim.key.clone());
        let undoing = self.quorum.member(at).map(|member| undo.run(member.clone(), host.clone(), clock.clone()));
        async move {
            let Some(undoing) = undoing else { return };
            match undoing.await {
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
    /// call may come after the knock that confirmed it, or twice.
    pub(crate) fn leave(&self, key: &Key, token: &Token) {
        if self.newest(key.lock()).is_some_and(|hold| hold.token == *token) {
            return;
        }
        // Nobody renews a grant.
        let (nodes, route, mode) = (Nodes::all(self.quorum.len()), Route::Keeper, ReleaseMode::Leave);
        let order = acquisition::Undo { nodes, route, mode, is_attempt: false };
        self.undo(&order, &Claim { key: key.clone(), token: token.clone(), ttl: self.command_timeout });
    }

    /// The loop: until the keeper stops.
    ///
    /// A panic, which is a bug here or in the program's own clock, ends every lease that is held, and not the loop.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut now = Time::ZERO;
        loop {
            let planned = catching_panics(|| {
                now = self.now();
                self.look(now);
                let planned = self.plan();
                (planned != Time::NEVER).then(|| planned.since(self.now()))
            });
            let pause = planned.unwrap_or_else(|| {
                for hold in self.holds() {
                    self.give_up(&hold, now);
                }
                Some(LOOK_EVERY)
            });
            match pause {
                None => self.wake.notified().await,
                Some(pause) => tokio::select! {
                    () = self.host.sleep(pause) => {}
                    () = self.wake.notified() => {}
                },
            }
        }
    }

    /// Ends a lease that cannot be looked after any more.
    fn give_up(self: &Arc<Self>, hold: &Arc<Hold>, now: Time) {
        let _given_up = catching_panics(|| self.execute(hold, hold.finish(now, LossReason::KeeperEnded)));
    }

    /// Runs until the keeper stops, and ends every hold if the keeper's runtime ends before: nobody would renew them.
    pub(crate) fn ends_with_its_runtime(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        // Made here, it is there even if the runtime drops this before its first poll.
        let guard = EndsHolds(self.clone());
        async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        }
    }

    /// Looks at every hold whose time has come, and renews those that want it.
    fn look(self: &Arc<Self>, now: Time) {
        let mut batch = Vec::new();
        for hold in self.due(now) {
            let _under_way = self.host.token();
            let renew = catching_panics(|| {
                let reaction = hold.tick(now);
                let renew = reaction.actions.renew;
                self.execute(&hold, reaction);
                renew
            });
            if renew.is_none() {
                self.give_up(&hold, now);
            }
            self.table.lock().schedule(id(&hold));
            if renew == Some(true) {
                batch.push(hold);
            }
        }
        for part in batch.chunks(BATCH) {
            self.renew(now, part.to_vec());
        }
    }

    /// The holds whose time to be looked at has come.
    fn due(&self, now: Time) -> Vec<Arc<Hold>> {
        let mut table = self.table.lock();
        for id in std::mem::take(&mut table.fresh) {
            table.schedule(id);
        }
        let mut due = Vec::new();
        while table.first_due() <= now {
            let Some(Reverse((at, id))) = table.due.pop() else { break };
            if let Some(kept) = table.holds.get_mut(&id).filter(|kept| kept.look == at) {
                kept.look = Time::NEVER;
                due.push(kept.hold.clone());
            }
        }
        due
    }

    /// Decides when to look next.
    fn plan(&self) -> Time {
        let now = self.now();
        let mut table = self.table.lock();
        // What was acquired during this look is not in `due` yet.
        for id in std::mem::take(&mut table.fresh) {
            table.schedule(id);
        }
        if table.holds.is_empty() {
            let since = *table.empty_since.get_or_insert(now);
            table.planned = if now.since(since) < LINGER { now + LOOK_EVERY } else { Time::NEVER };
            table.due.clear();
        } else {
            table.empty_since = None;
            table.forget_the_gone();
            table.planned = table.first_due().min(now + LOOK_EVERY);
        }
        table.planned
    }

    /// A hold asks to be looked at earlier than before.
    fn reschedule(&self, hold: &Arc<Hold>) {
        let mut table = self.table.lock();
        table.schedule(id(hold));
        if table.first_due() < table.planned {
            self.wake.notify_one();
        }
    }

    /// Renewals have the node watch what they renew, and waiters what they wait for, as far as it has room. A full table
    /// would evict: each eviction be a hint, and each hint a renewal; or it would not be told, for a server keeps to
    /// itself what a connection's own command evicts.
    pub(crate) fn route(&self) -> Route {
        // A waiter's look reads the lock and its fence, a fair waiter's the queue as well.
        let (held, awaited, room) = (self.table.lock().holds.len(), self.lines.len(), self.quorum.tracking_capacity());
        let queued = self.queues.len();
        if held + 2 * awaited + 4 * queued <= room {
            self.crowded.store(false, Ordering::Relaxed);
            return Route::Tracked;
        }
        if room > 0 && !self.crowded.swap(true, Ordering::Relaxed) {
            foreign::tell(Event::Crowded { held, awaited, queued, room });
        }
        Route::Keeper
    }
}
