//! The engine behind `Client`, `Lock` and `Lease`: the state that they share, and one release.
//!
//! # Lock order
//!
//! The watchdog's table is locked before a hold's state, and a node's health before what its quorum knows of all nodes.
//! Every other lock is taken alone. None is held while anything is awaited, or while a program's own code runs.

use std::{
    panic::RefUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_protocol::{key::Key, loss::LossReason, slot::Keys, time::Time, token::Token};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{self, Clock},
    error::{Error, FORKED},
    foreign::relayed,
    held::Hold,
    keeper::{Host, Stop},
    node::{NodeAddress, NodeListener},
    options::LockOptions,
    per_shard::{Of, PerShard},
    quorum::{ConnectConfig, FirstConnection, Member, Quorum},
    reentry::Owners,
    sync::OnceLock,
    troubles::Troubles,
    wait::{CheckSlot, CheckSlots, FairWaiters, Lines},
    watchdog::Watchdog,
};

mod late_replies;
mod observers;
mod release;

pub(crate) use self::observers::LastReport;
use self::{late_replies::LateReplies, observers::Observers};

/// The settings of a `Client`, as the builder has checked them.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The options of a lock that sets none of its own.
    pub(crate) lock: LockOptions,
    pub(crate) prefix: Arc<str>,
    pub(crate) label: Arc<str>,
    pub(crate) command_timeout: Duration,
    /// How long a fair waiter has to confirm a grant.
    pub(crate) grant_timeout: Duration,
    /// Whether keys are in slots, so that all keys of a lock must be in one.
    pub(crate) in_slots: bool,
}

/// Everything behind one `Client`. It lives as long as any clone, lock or lease.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) options: Options,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) host: Host,
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) lines: Arc<Lines>,
    /// The lines of fair waiters, which have places on the server as well.
    pub(crate) queues: Arc<Lines>,
    pub(crate) fair_waiters: Arc<FairWaiters>,
    /// The lines of observers, one for each observed name.
    pub(crate) observed: Arc<Lines>,
    pub(crate) observers: Observers,
    /// Bounds how many waiters check at a time. After a flush or a new connection all of them want to. Sent at once,
    /// the requests would time out behind each other, be undone and be sent again. The server would do nothing else.
    check_slots: PerShard<CheckSlots>,
    pub(crate) closed: CancellationToken,
    /// Cancelled once no acquire continues: this was closed or is shut down, or the keeper's runtime has ended.
    pub(crate) ended: CancellationToken,
    /// The outages that keep acquires waiting.
    pub(crate) outages: Troubles,
    /// The keys that are not locks.
    pub(crate) misplaced: Troubles,
    /// Why releases are not confirmed.
    unconfirmed: Troubles,
    /// How many leases were held when this was closed.
    cut_short: OnceLock<usize>,
    /// Present if this `Client` connects at its first use.
    first_connection: Option<Arc<FirstConnection>>,
    pub(crate) late_replies: Arc<LateReplies>,
    _listeners: Vec<Arc<Listener>>,
    _stop: Stop,
}

/// The most checks at a time: enough for a server that is a few milliseconds away.
const CHECKS_AT_ONCE: usize = 128;

// Shared state is changed in whole steps, behind mutexes without poisoning, so no panic leaves it half changed.
impl RefUnwindSafe for Engine {}

impl Engine {
    pub(crate) fn new(
        options: Options,
        clock: Arc<dyn Clock>,
        host: Host,
        stop: Stop,
        quorum: Quorum,
        to_connect: Option<(Vec<NodeAddress>, ConnectConfig)>,
    ) -> Arc<Self> {
        let (quorum, closed) = (Arc::new(quorum), CancellationToken::new());
        let lines = || Arc::new(Lines::new(quorum.len()));
        let (lines, queues, observed) = (lines(), lines(), lines());
        let limit = options.command_timeout;
        let (waiting, fair) = (lines.clone(), queues.clone());
        let fair_waiters = Arc::<FairWaiters>::default();
        let tracked = [waiting, fair, observed.clone()];
        let watchdog = Arc::new(Watchdog::new(clock.clone(), host.clone(), quorum.clone(), tracked, limit));
        let listener = |(node, _)| {
            let (lines, fair_waiters, watchdog) = (lines.clone(), fair_waiters.clone(), watchdog.clone());
            Arc::new(Listener { node, lines, fair_waiters, observed: observed.clone(), watchdog, clock: clock.clone() })
        };
        let listeners: Vec<_> = quorum.members().map(listener).collect();
        for (listener, (_, member)) in listeners.iter().zip(quorum.members()) {
            member.listen(Arc::downgrade(listener) as Weak<dyn NodeListener>);
        }
        host.spawn_until_stopped(watchdog.clone().run());
        let first = |(places, config)| FirstConnection::new(quorum.clone(), places, config, closed.clone());
        let first_connection = to_connect.map(first);
        let ended = host.over().child_token();
        Arc::new(Self {
            options,
            clock,
            late_replies: LateReplies::new(host.clone()),
            host,
            quorum,
            watchdog,
            owners: Arc::default(),
            lines,
            queues,
            fair_waiters,
            observed,
            observers: Observers::default(),
            check_slots: PerShard::new(CheckSlots::new(CHECKS_AT_ONCE)),
            closed,
            ended,
            outages: Troubles::default(),
            misplaced: Troubles::default(),
            unconfirmed: Troubles::default(),
            cut_short: OnceLock::new(),
            first_connection,
            _listeners: listeners,
            _stop: stop,
        })
    }

    /// The only node, for calls that work on a single one.
    pub(crate) fn sole(&self) -> Result<&Arc<Member>, Error> {
        self.quorum.sole().map_err(Error::of)
    }

    pub(crate) fn now(&self) -> Time {
        clock::now(&*self.clock)
    }

    /// The slots for checks of this lock: a shard that does not answer takes none of another's.
    pub(crate) fn check_slots(&self, key: &Key) -> Of<'_, CheckSlots> {
        self.check_slots.of(self.quorum.shard_of(key), || {
            let _gone = self.check_slots.retain(&self.quorum.shards());
            CheckSlots::new(CHECKS_AT_ONCE)
        })
    }

    /// Takes one of these slots, for a check that may take `limit`. `None` if no slot is free by `until`, or once
    /// acquires have ended: the check is then made without a slot.
    pub(crate) async fn check_slot<'a>(
        &self,
        slots: &'a CheckSlots,
        until: Time,
        mut limit: impl FnMut(Time) -> Duration,
    ) -> Option<CheckSlot<'a>> {
        let mut now = self.now();
        loop {
            if let Some(slot) = slots.take(now, now + limit(now)) {
                return Some(slot);
            }
            if now >= until || self.ended.is_cancelled() {
                return None;
            }
            let again = slots.next_lapse().map_or(now, |lapse| lapse.min(until));
            tokio::select! {
                biased;
                () = slots.freed() => {}
                () = self.ended.cancelled() => {}
                () = self.host.sleep_until(now, again) => {}
            }
            now = self.now();
        }
    }

    /// Has the waiters here check at once, because the lock was released here. (The server notifies fair waiters.)
    pub(crate) fn freed(&self, key: &Key) {
        let now = self.now();
        self.lines.notify(key.lock(), now);
        // The server does not notify us of our own changes on the connection that tracks the key.
        self.observed.notify(key.lock(), now);
    }

    /// An error once `close` was called or the keeper has failed, or in a process that was forked.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        self.check_process()?;
        if self.closed.is_cancelled() || self.host.over().is_cancelled() { Err(self.end()) } else { Ok(()) }
    }

    /// Whether the first connection was made.
    pub(crate) fn is_connected(&self) -> bool {
        self.first_connection.as_ref().is_none_or(|first| first.is_made())
    }

    /// Makes the first connection, if that is still to be done.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        match &self.first_connection {
            Some(first) => first.make().await,
            None => Ok(()),
        }
    }

    /// Connects before a query, if that is still to be done; an error once this was closed.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        self.check_open()?;
        if !self.is_connected() {
            relayed!(Box::pin(self.connect()))?;
        }
        Ok(())
    }

    /// Returns an error once no acquire continues.
    pub(crate) fn check_acquires(&self) -> Result<(), Error> {
        self.check_process()?;
        if self.ended.is_cancelled() { Err(self.end()) } else { Ok(()) }
    }

    /// Returns an error in a process that was forked from the keeper's: the leases are the parent's.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.host.is_forked() { Err(Error::misuse(FORKED)) } else { Ok(()) }
    }

    /// Why no acquire continues, once `ended` is cancelled.
    pub(crate) fn end(&self) -> Error {
        let by_keeper = self.host.over().is_cancelled() && !self.closed.is_cancelled();
        match by_keeper {
            true if self.host.is_forked() => Error::keeper_ended(),
            true => Error::keeper_failed(),
            false => Error::Closed,
        }
    }

    /// Ends every wait, asks every holder to stop, and waits for them; then ends everything. Returns how many leases
    /// were cut short.
    pub(crate) async fn shut_down(self: &Arc<Self>, limit: Duration) -> usize {
        if self.host.is_forked() {
            return 0;
        }
        self.ended.cancel();
        let now = self.now();
        let noted = |hold: &Arc<Hold>| hold.note_stop(now, LossReason::Closing);
        let asked: Vec<_> = self.watchdog.holds().iter().flat_map(noted).collect();
        // Every lease is woken before any is cancelled, because cancelling runs foreign code, and may take its time.
        for lease in &asked {
            lease.wake();
        }
        for lease in &asked {
            lease.cancel();
        }
        tokio::select! {
            biased;
            () = self.watchdog.emptied() => {}
            () = self.closed.cancelled() => {}
            () = self.host.sleep(limit) => {}
        }
        self.close().await
    }

    /// Ends everything: waiters, leases, connections. Waits for at most a command time-out in all. Returns how many
    /// leases the first close has cut short.
    pub(crate) async fn close(self: &Arc<Self>) -> usize {
        if self.host.is_forked() {
            return 0;
        }
        self.ended.cancel();
        let now = self.now();
        let held = |hold: &Arc<Hold>| if hold.remaining(now).is_zero() { 0 } else { hold.holds() };
        // Counted before a shutdown is notified of the close, because it returns this number.
        let cut_short = *self.cut_short.get_or_init(|| self.watchdog.holds().iter().map(held).sum());
        self.closed.cancel();
        for hold in self.watchdog.holds() {
            self.watchdog.execute(&hold, hold.close(now));
        }
        let limit = self.options.command_timeout;
        let ended = async {
            if let Some(first) = &self.first_connection {
                first.settled().await;
            }
            self.host.finished().await;
            self.quorum.close(limit).await;
        };
        tokio::select! {
            () = ended => {}
            () = self.host.sleep(limit) => {}
        }
        cut_short
    }
}

/// Passes the notifications of a node to the waiters and the holder of the lock.
#[derive(Debug)]
struct Listener {
    node: usize,
    lines: Arc<Lines>,
    fair_waiters: Arc<FairWaiters>,
    observed: Arc<Lines>,
    watchdog: Arc<Watchdog>,
    clock: Arc<dyn Clock>,
}

impl Listener {
    fn now(&self) -> Time {
        clock::now(&*self.clock)
    }
}

impl NodeListener for Listener {
    fn changed(&self, key: &str) {
        self.watchdog.hint(key, self.node);
        let now = self.now();
        self.lines.changed(key, self.node, now);
        self.observed.changed(key, self.node, now);
        self.fair_waiters.changed(key, now);
    }

    fn holds(&self, key: &str) -> bool {
        self.watchdog.has_hold(key, |_| true)
    }

    fn is_as_left(&self, key: &str, value: &str, left: Duration) -> bool {
        let now = self.now();
        // The key has to outlive all who share it here.
        self.watchdog.has_hold(key, |hold| hold.is_as_left(value, left, now))
            && !self.watchdog.is_held_for_longer(key, left, now)
    }

    fn taken_over(&self, keys: &Keys) {
        self.watchdog.note_takeover(keys);
    }

    fn missed(&self, keys: &Keys) {
        self.watchdog.hint_all(keys);
        self.lines.notify_all(keys, self.now());
        self.observed.notify_all(keys, self.now());
        self.fair_waiters.notify_all(keys, self.now());
    }

    fn is_needed(&self) -> bool {
        let is_idle = self.lines.is_empty() && self.fair_waiters.is_empty() && self.observed.is_empty();
        !is_idle || !self.watchdog.is_empty()
    }

    fn granted(&self, key: &str, token: &str) {
        if self.fair_waiters.grant(token, self.now()) {
            return;
        }
        // The waiter has left meanwhile, and its grant must not hold up the others. (If the grant has become a lease,
        // the notification is late, and nothing is done.)
        if let Some(token) = Token::parse(token) {
            self.watchdog.leave(&Key::of_lock(key), &token);
        }
    }

    fn next(&self, token: &str, within: Duration) {
        let _gone_otherwise = self.fair_waiters.notify(token, self.now(), within);
    }

    fn has_waiters(&self) -> bool {
        !self.fair_waiters.is_empty()
    }

    fn has_waiter(&self, token: &str) -> bool {
        self.fair_waiters.has(token)
    }
}
