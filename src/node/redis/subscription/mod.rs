//! Notifications from the server, on a connection of their own.
//!
//! They report that a tracked key has changed (server-assisted client-side caching, `CLIENT TRACKING … REDIRECT`), and
//! whose turn it is in a fair queue (on a channel of this process).
//!
//! # Invariants
//!
//! 1. A request counts as tracked only if notifications were on before it was sent, and the server accepted its
//!    `CLIENT CACHING YES`.
//! 2. The listener learns of every possible gap: the start or end of a session, a new connection of the keeper, a
//!    receiver that lags, a flush of the server. Where a gap turns notifications off, they are marked as off first.
//! 3. The connection exists only while it is needed.
//! 4. A change that leaves a held lock as it was is not reported, or each renewal could cause the next.
//! 5. A refused command is not tried again before the keeper has a new connection, and is warned about once.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::OptionFuture;
use leasehold_protocol::{
    reconnect::{Reconnect, ReconnectConfig},
    slot::Keys,
    tracking::capacity,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::{
    notification::Notification,
    own_invalidations::OwnInvalidations,
    session::{Session, ended},
};
use super::{
    transport::{Connection, Endpoint, Limits, NewLinks},
    wire::Value,
};
use crate::{
    foreign::{self, Event},
    keeper::Host,
    metrics::NodeMetrics,
    node::NodeListener,
    random,
};

#[cfg(test)]
mod fuzz;
mod notification;
mod own_invalidations;
mod session;

/// How often to check whether the connection is needed; after two checks without need, it is closed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A session that ends soon after its start is reopened soon: waiters poll meanwhile.
const RECONNECT: ReconnectConfig = ReconnectConfig {
    first: Duration::from_millis(10),
    longest: Duration::from_secs(5),
    longest_flap: Duration::from_millis(150),
    steady: Duration::from_secs(1),
};

/// The capacity while it is unknown how many keys the server tracks.
const USUAL_CAPACITY: usize = capacity(None, 0);

/// Whether the server notifies us, and of what.
pub(super) struct Subscription {
    /// The channel on which fair waiters of this process are notified.
    channel: Arc<str>,
    /// Whether a notification on the channel arrives.
    notifies_waiters: AtomicBool,
    /// Whether none ever will arrive, on this connection.
    notifies_no_waiters: AtomicBool,
    /// Whether reads can be tracked.
    on: AtomicBool,
    capacity: AtomicUsize,
    /// Whether the server's table is as good as full, which was reported then.
    is_crowded: AtomicBool,
    /// Why the server does not notify us.
    refused: Mutex<Option<String>>,
    wanted: Notify,
    /// Notified when it is known whether the server notifies us.
    known: Notify,
    listener: OnceLock<Weak<dyn NodeListener>>,
    own_invalidations: OnceLock<Arc<OwnInvalidations>>,
    closed: CancellationToken,
    metrics: NodeMetrics,
}

/// How a session ended.
enum End {
    /// It is not needed.
    Idle,
    Refused(String),
    Failed(String),
}

/// A name for a channel that no other process has.
pub(super) fn channel() -> Arc<str> {
    format!("leasehold:{:016x}", random::number()).into()
}

impl Subscription {
    pub(super) fn new(channel: Arc<str>, metrics: NodeMetrics) -> Arc<Self> {
        Arc::new(Self {
            channel,
            notifies_waiters: AtomicBool::new(false),
            notifies_no_waiters: AtomicBool::new(false),
            on: AtomicBool::new(false),
            capacity: AtomicUsize::new(USUAL_CAPACITY),
            is_crowded: AtomicBool::new(false),
            refused: Mutex::default(),
            wanted: Notify::new(),
            known: Notify::new(),
            listener: OnceLock::new(),
            own_invalidations: OnceLock::new(),
            closed: CancellationToken::new(),
            metrics,
        })
    }

    pub(super) fn listen(&self, listener: Weak<dyn NodeListener>) {
        let _first_stays = self.listener.set(listener);
    }

    /// How many keys may be tracked: the server's table evicts at random when it is full.
    pub(super) fn tracking_capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Whether a request can be tracked now; if not, a session is requested.
    pub(super) fn is_on(&self) -> bool {
        let on = self.on.load(Ordering::Acquire);
        if !on && self.tracking_capacity() > 0 {
            self.wanted.notify_one();
        }
        on
    }

    /// The channel on which the server notifies our waiters whenever it can.
    pub(super) fn name(&self) -> &str {
        &self.channel
    }

    /// The name of the channel, if the server can notify our waiters now; if not, a session is requested.
    pub(super) fn channel(&self) -> Option<&str> {
        let notifies = self.notifies_waiters.load(Ordering::Acquire);
        if !notifies && !self.notifies_no_waiters.load(Ordering::Acquire) {
            self.wanted.notify_one();
        }
        notifies.then_some(&self.channel)
    }

    /// Whether it is not known yet whether the server notifies our waiters.
    pub(super) fn is_undecided(&self) -> bool {
        self.channel().is_none() && !self.notifies_no_waiters.load(Ordering::Acquire)
    }

    /// Completes when that is known, or with this limit.
    pub(super) async fn decided(&self, limit: impl Future<Output = ()>) {
        let mut limit = pin!(limit);
        loop {
            // Created before the check, so that it catches every later change.
            let known = self.known.notified();
            if !self.is_undecided() {
                return;
            }
            tokio::select! {
                biased;
                () = known => {}
                () = &mut limit => return,
            }
        }
    }

    /// Whether the server notifies us of changes, or why not, and of waiters' turns; and how many keys it tracks. Waits
    /// for the answers if necessary, but at most for `limit`.
    pub(super) async fn settled(&self, limit: impl Future<Output = ()>) -> (Option<Result<(), String>>, bool, usize) {
        let mut limit = pin!(limit);
        loop {
            // Created before the check, so that it catches every later change.
            let known = self.known.notified();
            let on = self.is_on();
            let refused = self.refused.lock().clone().filter(|_| self.tracking_capacity() == 0);
            let notifications = if on { Some(Ok(())) } else { refused.map(Err) };
            let answer = (notifications, self.notifies_waiters.load(Ordering::Acquire), self.tracking_capacity());
            if answer.0.is_some() {
                return answer;
            }
            tokio::select! {
                biased;
                () = known => {}
                () = &mut limit => return answer,
            }
        }
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    pub(super) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// Runs one session after the other, for as long as the keeper lives.
    pub(super) async fn serve(
        self: Arc<Self>,
        endpoint: Endpoint,
        keeper: Arc<Connection>,
        host: Host,
        in_slots: bool,
    ) {
        let own_invalidations = OwnInvalidations::new(keeper.clone(), host, endpoint.limits.command, in_slots);
        let own_invalidations = self.own_invalidations.get_or_init(|| own_invalidations);
        let closed = self.closed.clone();
        let _closed = closed.run_until_cancelled(Box::pin(self.sessions(&endpoint, &keeper, own_invalidations))).await;
        self.off();
    }

    /// Reads the keys of held locks, so that they are tracked from now on.
    pub(super) fn look_at(&self, keys: &HashSet<&str>) {
        let (Some(looks), Some(listener)) = (self.own_invalidations.get(), self.listener()) else { return };
        if self.is_on() {
            for key in keys {
                looks.add(key, &listener);
            }
        }
    }

    /// Whether a lock is held here, or waited for.
    pub(super) fn is_needed(&self) -> bool {
        self.listener().is_some_and(|listener| listener.is_needed())
    }

    /// Marks all as off. Returns whether any was on.
    fn off(&self) -> bool {
        self.metrics.note_notifications(false);
        let on = self.on.swap(false, Ordering::AcqRel);
        self.notifies_waiters.swap(false, Ordering::AcqRel) || on
    }

    async fn sessions(&self, endpoint: &Endpoint, keeper: &Connection, own_invalidations: &Arc<OwnInvalidations>) {
        let limits = endpoint.limits;
        let mut links = keeper.new_links();
        let mut reconnect = Reconnect::new(RECONNECT);
        loop {
            tokio::select! {
                () = self.wanted.notified() => {}
                () = links.next() => {
                    self.begin_anew();
                    continue;
                }
            }
            // The session was requested before it was refused.
            if self.tracking_capacity() == 0 && !self.has_waiters() {
                continue;
            }
            let link = links.last();
            let end = match self.open(endpoint, keeper, &mut links).await {
                Ok(session) => {
                    reconnect.came_up(keeper.now());
                    let end = self.listen_to(session, keeper, own_invalidations, limits, &mut links).await;
                    reconnect.ended(keeper.now());
                    end
                }
                Err(end) => {
                    reconnect.failed();
                    self.notifies_no_waiters.store(matches!(end, End::Refused(_)), Ordering::Release);
                    self.known.notify_waiters();
                    // A link that was made meanwhile shows that the server is back.
                    if links.last() > link {
                        reconnect.reset();
                    }
                    end
                }
            };
            if self.off() {
                self.missed();
            }
            if self.refused.lock().is_none() {
                // Tracking is asked for again, however full the table was.
                self.capacity.store(USUAL_CAPACITY, Ordering::Relaxed);
            }
            match end {
                End::Idle => {}
                End::Failed(reason) => {
                    foreign::tell_debug(|| Event::NotificationsInterrupted { reason });
                    tokio::select! {
                        () = tokio::time::sleep(reconnect.pause(keeper.now())) => {}
                        () = links.next() => self.begin_anew(),
                    }
                    if self.is_needed() {
                        self.wanted.notify_one();
                    }
                }
                End::Refused(reason) => self.refuse(&reason),
            }
        }
    }

    /// Opens a session. Once the keeper has a new link, the server is available: then a step that hangs may have been
    /// lost, and is not awaited for much longer.
    async fn open(&self, endpoint: &Endpoint, keeper: &Connection, links: &mut NewLinks) -> Result<Session, End> {
        let limits = endpoint.limits;
        let mut opening = pin!(Session::open(endpoint, keeper, &self.channel));
        let mut hangs = pin!(tokio::time::sleep(limits.connect * 2));
        loop {
            tokio::select! {
                biased;
                opened = &mut opening => return opened,
                () = &mut hangs => return Err(End::Failed("it hangs".into())),
                () = links.next() => {
                    self.begin_anew();
                    hangs.set(tokio::time::sleep(limits.command.max(limits.connect / 4)));
                }
            }
        }
    }

    /// Notes a new link of the keeper, on which nothing is tracked: waiters check now, because notifications may take
    /// long to resume.
    fn begin_anew(&self) {
        self.notes_link();
        self.missed();
    }

    /// Notes a new connection of the keeper, and forgets refusals: the server may be another, or support the commands now.
    fn notes_link(&self) {
        self.notifies_no_waiters.store(false, Ordering::Release);
        self.capacity.store(USUAL_CAPACITY, Ordering::Relaxed);
    }

    fn refuse(&self, reason: &str) {
        self.capacity.store(0, Ordering::Relaxed);
        let known = self.refused.lock().replace(reason.into());
        self.known.notify_waiters();
        if known.is_none() {
            foreign::tell(Event::NotificationsRefused { reason: reason.into() });
        }
    }

    /// Listens until the session ends.
    async fn listen_to(
        &self,
        mut session: Session,
        keeper: &Connection,
        own_invalidations: &Arc<OwnInvalidations>,
        limits: Limits,
        links: &mut NewLinks,
    ) -> End {
        let mut look = pin!(tokio::time::sleep(LOOK_EVERY));
        let (mut before, mut was_idle, mut table) = (None, false, None);
        let mut counting = pin!(OptionFuture::from(None));
        loop {
            // The tracking below covers every link so far.
            if links.have_come() {
                self.notes_link();
            }
            match self.begin_on_link(&session, keeper, limits, before, &mut table).await {
                Ok(notifies) => before = Some(notifies),
                Err(end) => return end,
            }
            self.missed();
            loop {
                tokio::select! {
                    heard = session.running.next() => match heard {
                        Ok(Some(message)) => self.hear(&message, |key, listener| own_invalidations.add(key, listener)),
                        Ok(None) => self.missed(),
                        Err(reason) => return End::Failed(reason),
                    },
                    () = links.next() => {
                        self.notes_link();
                        break;
                    }
                    () = &mut look => {
                        let is_idle = !self.is_needed();
                        // Not at the first idle check: the next waiter would have to connect again.
                        if is_idle && was_idle {
                            let off = vec!["TRACKING".into(), "OFF".into()];
                            let _outcome = keeper.command("CLIENT", off, limits.command).await;
                            return End::Idle;
                        }
                        was_idle = is_idle;
                        if matches!(table, Some(1..)) {
                            counting.set(Some(session::tracked(keeper, limits)).into());
                        }
                        look.set(tokio::time::sleep(LOOK_EVERY));
                    }
                    // Beside the notifications: it may take a command time-out.
                    Some(tracked) = &mut counting => {
                        counting.set(None.into());
                        match (table, tracked) {
                            (Some(table), Some(tracked)) => self.note_table(table, tracked),
                            // The server does not report it.
                            _ => table = None,
                        }
                    }
                }
            }
            self.off();
        }
    }

    /// Sets the session up on the keeper's newest link, and returns whether our waiters are notified there. `before` is
    /// whether they were on the session's previous link, if it had one.
    async fn begin_on_link(
        &self,
        session: &Session,
        keeper: &Connection,
        limits: Limits,
        before: Option<bool>,
        table: &mut Option<usize>,
    ) -> Result<bool, End> {
        if let Err(end) = self.set_up(session, keeper, limits, table).await {
            // Nothing is tracked any more, and that may last.
            if before.is_some() {
                self.missed();
            }
            return Err(end);
        }
        let notifies = self.notifies_waiters.load(Ordering::Acquire);
        // On another server the session's id is unknown, or another client's.
        if before == Some(true) && !notifies {
            self.missed();
            return Err(End::Failed("the keeper is connected to another server".into()));
        }
        // Requests for a session that arrived meanwhile are met. If left, they would start another one needlessly.
        let _asked_before = pin!(self.wanted.notified()).enable();
        Ok(notifies)
    }

    /// Has the reads of a new keeper connection tracked, and finds out whether our waiters can be notified.
    async fn set_up(
        &self,
        session: &Session,
        keeper: &Connection,
        limits: Limits,
        table: &mut Option<usize>,
    ) -> Result<(), End> {
        let notifies = self.hears_itself(keeper, limits).await?;
        self.notifies_no_waiters.store(!notifies, Ordering::Release);
        self.notifies_waiters.store(notifies, Ordering::Release);
        if self.tracking_capacity() > 0 || !notifies {
            match session.track(keeper, limits).await {
                Ok(()) => {
                    *table = session::table(keeper, limits).await;
                    let tracked = session::tracked(keeper, limits).await;
                    if let (Some(table), Some(tracked)) = (*table, tracked) {
                        self.note_table(table, tracked);
                    } else {
                        self.capacity.store(capacity(table.take(), 0), Ordering::Relaxed);
                        self.is_crowded.store(false, Ordering::Relaxed);
                    }
                    *self.refused.lock() = None;
                    self.on.store(true, Ordering::Release);
                    self.metrics.note_notifications(true);
                }
                Err(End::Refused(reason)) if notifies && self.has_waiters() => self.refuse(&reason),
                Err(end) => return Err(end),
            }
        }
        self.known.notify_waiters();
        Ok(())
    }

    /// Notes how full the table is, which other clients fill too. Once it is full, tracked keys may be evicted without
    /// a notification, so waiters poll.
    fn note_table(&self, table: usize, tracked: usize) {
        let capacity = capacity(Some(table), tracked);
        let had_some = self.capacity.swap(capacity, Ordering::Relaxed) > 0;
        // Once, however many sessions find it full.
        if !self.is_crowded.swap(capacity == 0, Ordering::Relaxed) && capacity == 0 {
            foreign::tell(Event::TableFull { table });
        }
        if had_some && capacity == 0 {
            self.missed();
        }
    }

    /// Whether there are fair waiters to be notified, unless the server is known not to notify them.
    fn has_waiters(&self) -> bool {
        !self.notifies_no_waiters.load(Ordering::Acquire)
            && self.listener().is_some_and(|listener| listener.has_waiters())
    }

    /// Whether a notification would arrive, which only the server knows.
    async fn hears_itself(&self, keeper: &Connection, limits: Limits) -> Result<bool, End> {
        let message = vec![(&*self.channel).into(), "".into()];
        match keeper.command("PUBLISH", message, limits.command).await {
            Ok(receivers) => Ok(receivers.as_i64().is_some_and(|receivers| receivers > 0)),
            Err(error) => match ended(&error) {
                End::Refused(_) => Ok(false),
                end => Err(end),
            },
        }
    }

    /// Passes a message on. `held` is called for a key of a lock that is held here, whose change may be our own.
    fn hear(&self, message: &Value, held: impl Fn(&str, &Arc<dyn NodeListener>)) {
        let Some(listener) = self.listener() else { return };
        match message {
            Value::Null => listener.missed(&Keys::All),
            Value::Array(keys) => {
                for key in keys.iter().filter_map(text) {
                    if listener.holds(key) {
                        held(key, &listener);
                    } else {
                        listener.changed(key);
                    }
                }
            }
            message => match text(message).and_then(Notification::read) {
                Some(Notification::Granted { key, token }) => listener.granted(key, token),
                Some(Notification::Next { token, within }) => listener.next(token, within),
                None => {}
            },
        }
    }

    fn missed(&self) {
        if let Some(listener) = self.listener() {
            listener.missed(&Keys::All);
        }
    }

    fn listener(&self) -> Option<Arc<dyn NodeListener>> {
        self.listener.get().and_then(Weak::upgrade)
    }
}

fn text(value: &Value) -> Option<&str> {
    value.as_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
}
