//! What `Leases`, `Lock` and `Lease` share: one attempt, one release, and everything that they run on.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    attempt::{Attempt, Verdict},
    clock::{Clock, Time},
    error::{Error, ReleaseError},
    fence::Fence,
    holder::Holder,
    jitter::Jitter,
    keeper::{Host, Stop},
    key::Key,
    lost::LossReason,
    node::{Acquired, Answer, Ear, Failure, Lane, Node, Parting},
    owner::Owners,
    quorum::tally::{Denial, Tally},
    status::Signal,
    token::Token,
    wait::{Calls, Lines},
    watchdog::{Core, Hold, Terms, Watchdog},
};

/// What `build` settled.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) prefix: String,
    pub(crate) label: String,
    pub(crate) command_timeout: Duration,
    pub(crate) fair: bool,
    /// How long a fair waiter has to take what was granted to it.
    pub(crate) grant: Duration,
}

/// Everything behind one `Leases`. It lives as long as any clone, lock or lease.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) host: Host,
    pub(crate) node: Arc<dyn Node>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) lines: Arc<Lines>,
    /// The lines of fair waiters, who have places on the server as well.
    pub(crate) queues: Arc<Lines>,
    pub(crate) calls: Arc<Calls>,
    /// So many waiters look at a time. After a flush or a new connection they all want to: sent at once, the requests
    /// would time out behind each other, be undone and be sent again, and the server would do nothing else.
    pub(crate) looks: Semaphore,
    pub(crate) closed: CancellationToken,
    _ear: Arc<Listener>,
    _stop: Stop,
}

/// Enough for a server that is a few milliseconds away.
const LOOKS_AT_ONCE: usize = 128;

/// A lease that lives for so long is renewed then, and not only at a third of its TTL: from there on the node tells when
/// the key is touched.
const WATCH_AFTER: Duration = Duration::from_millis(250);

/// What to acquire, settled before any I/O.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fair: bool,
}

/// How one attempt went.
pub(crate) enum Outcome {
    Won(Arc<Hold>, Arc<Signal>),
    Busy { holder: Holder, watched: bool },
    Failed(Failure),
}

impl Shared {
    pub(crate) fn new(
        options: Options,
        clock: Arc<dyn Clock>,
        host: Host,
        stop: Stop,
        node: Arc<dyn Node>,
    ) -> Arc<Self> {
        let (lines, queues) = (Arc::<Lines>::default(), Arc::<Lines>::default());
        let limit = options.command_timeout;
        let (waiting, fair) = (lines.clone(), queues.clone());
        let watchdog = Arc::new(Watchdog::new(clock.clone(), host.clone(), node.clone(), waiting, fair, limit));
        let calls = Arc::<Calls>::default();
        let ear = Arc::new(Listener {
            lines: lines.clone(),
            calls: calls.clone(),
            watchdog: watchdog.clone(),
            clock: clock.clone(),
        });
        node.listen(Arc::downgrade(&ear) as Weak<dyn Ear>);
        host.spawn_until_stopped(watchdog.clone().run());
        Arc::new(Self {
            options,
            clock,
            host,
            node,
            watchdog,
            owners: Arc::default(),
            lines,
            queues,
            calls,
            looks: Semaphore::new(LOOKS_AT_ONCE),
            closed: CancellationToken::new(),
            _ear: ear,
            _stop: stop,
        })
    }

    pub(crate) fn now(&self) -> Time {
        Time::now(&*self.clock)
    }

    /// The lock was let go of here: whoever waits for it here looks at once. (Fair waiters are called.)
    pub(crate) fn freed(&self, key: &Key) {
        self.lines.alert(key.lock(), self.now());
    }

    /// An error once `close` was called.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.closed.is_cancelled() { Err(Error::closed()) } else { Ok(()) }
    }

    /// One attempt: one token, one sending (rule 1). Dropped, or of unknown outcome, it is undone (rule 6).
    pub(crate) async fn attempt(self: &Arc<Self>, wanted: &Wanted, lane: Lane, limit: Duration) -> Outcome {
        let Wanted { key, ttl, .. } = wanted;
        let (token, sent) = (Token::draw(&self.options.label), self.now());
        let mut attempt = Attempt::new(sent, *ttl);
        let answer = self.node.acquire(lane, key, &token, *ttl, limit);
        let mut asked = Asked { shared: self, lane, wanted, token: token.clone(), answer: Some(answer) };
        let answer = asked.answer().await;
        let verdict = attempt.decide(self.now(), answer);
        if attempt.must_undo() {
            self.watchdog.undo(lane, key.clone(), token.clone(), *ttl);
        }
        match verdict {
            Verdict::Won { fence, tally } => self.hold(wanted, token, sent, fence, tally),
            Verdict::Busy { holder, watched } => Outcome::Busy { holder, watched },
            Verdict::Failed(failure) => Outcome::Failed(failure),
        }
    }

    /// A won attempt, whose request was sent at `sent`: from now on the watchdog looks after it.
    pub(crate) fn hold(&self, wanted: &Wanted, token: Token, sent: Time, fence: Fence, tally: Tally) -> Outcome {
        let Wanted { key, ttl, max_hold, .. } = wanted;
        let terms = Terms { ttl: *ttl, max_hold: *max_hold, patience: self.options.command_timeout };
        let mut core = Core::new(terms, tally, Jitter::new());
        if self.node.room() > 0 {
            core.hint(sent + WATCH_AFTER);
        }
        let (hold, signal) = Hold::new(key.clone(), token, fence, *ttl, sent, core);
        self.watchdog.guard(&hold);
        Outcome::Won(hold, signal)
    }

    /// Releases a hold that its last lease has left (rule 8). Dropped half way, it goes on in the background.
    pub(crate) async fn release(
        self: &Arc<Self>,
        hold: &Hold,
        parting: Parting,
        believed_until: Time,
    ) -> Result<(), ReleaseError> {
        // `close` must not take the connection away from under it.
        let _under_way = self.host.token();
        let background = Dropped { shared: self, hold, parting: parting.clone() };
        let limit = self.options.command_timeout / 2;
        let send = |lane| parting.send(&*self.node, lane, &hold.key, &hold.token, limit);

        let (lock, label) = (hold.key.name(), hold.token.label());
        // On the connection that our own waiter of this name has watched, the server keeps the news from us: the alert
        // below is enough.
        let lane = if self.lines.has(&hold.key) { Lane::Keeper } else { self.node.lane() };
        let first = send(lane).await;
        let only_sending = !matches!(&first, Err(failure) if failure.may_have_happened());
        let outcome = match first {
            Err(failure) if !failure.is_refusal() => send(Lane::Keeper).await,
            definite => definite,
        };
        let denial = match outcome {
            Err(failure) => {
                tracing::warn!(name: "release", target: "leasehold", lock, label, %failure, "not confirmed");
                return Err(ReleaseError::Unknown(failure.into()));
            }
            Ok(found) => {
                tracing::debug!(name: "release", target: "leasehold", lock, label, was_ours = found.is_ok());
                background.disarm();
                self.parted(&hold.key, &parting);
                found.err()
            }
        };
        let now = self.now();
        let lost = |since, reason| Err(ReleaseError::Lost(hold.lost(now, since, reason)));
        match denial {
            None => Ok(()),
            Some(Denial::Gone) if only_sending => lost(now, LossReason::Deleted),
            Some(Denial::Taken) if only_sending => lost(now, LossReason::Taken),
            // Our own replay: the sending before it did it, while the lease was good.
            Some(_) if now < believed_until => Ok(()),
            Some(_) => lost(believed_until, LossReason::Expired),
        }
    }

    fn parted(&self, key: &Key, parting: &Parting) {
        self.freed(key);
        if matches!(parting, Parting::KeepFor(..)) {
            // Nobody is called to a key that stays, and what happens on our own connection is not told.
            self.calls.touched(key.lock(), self.now());
        }
    }

    /// Releases a hold without anybody waiting for it.
    pub(crate) fn release_in_background(self: &Arc<Self>, hold: &Hold, parting: Parting) {
        let (key, token) = (hold.key.clone(), hold.token.clone());
        let undo = self.watchdog.undoing(Lane::Keeper, key.clone(), token, hold.ttl, parting.clone());
        let shared = self.clone();
        self.host.spawn(async move {
            undo.await;
            shared.parted(&key, &parting);
        });
    }

    /// Ends everything: waiters, leases, connections. Waits for at most a command time-out in all.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.closed.cancel();
        let now = self.now();
        for hold in self.watchdog.holds() {
            if hold.close(now).news {
                self.release_in_background(&hold, Parting::Delete);
            }
        }
        let limit = self.options.command_timeout;
        let ended = async {
            self.host.finished().await;
            self.node.close(limit).await;
        };
        tokio::select! {
            () = ended => {}
            () = self.host.sleep(limit) => {}
        }
    }
}

/// An acquire that the node has been asked for. Dropped before the answer, it waits for that in the background, for
/// fred would send a queued request even when nobody waits for it any more, and then undoes what was granted.
struct Asked<'a> {
    shared: &'a Arc<Shared>,
    lane: Lane,
    wanted: &'a Wanted,
    token: Token,
    answer: Option<Answer<Acquired>>,
}

impl Asked<'_> {
    async fn answer(&mut self) -> Result<Acquired, Failure> {
        let Some(answer) = &mut self.answer else { return Err(Failure::unknown("the answer was heard before")) };
        let answered = answer.await;
        self.answer = None;
        answered
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        let undoing = self.shared.watchdog.undoing(
            self.lane,
            self.wanted.key.clone(),
            self.token.clone(),
            self.wanted.ttl,
            Parting::Delete,
        );
        let (shared, key) = (self.shared.clone(), self.wanted.key.clone());
        self.shared.host.spawn(async move {
            if Attempt::given_up(&answer.await) {
                undoing.await;
                shared.freed(&key);
            }
        });
    }
}

/// A release under way: dropping it carries on in the background.
struct Dropped<'a> {
    shared: &'a Arc<Shared>,
    hold: &'a Hold,
    parting: Parting,
}

impl Dropped<'_> {
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.shared.release_in_background(self.hold, self.parting.clone());
    }
}

/// What the node notices by itself goes to whoever waits for that lock, and to whoever holds it.
#[derive(Debug)]
struct Listener {
    lines: Arc<Lines>,
    calls: Arc<Calls>,
    watchdog: Arc<Watchdog>,
    clock: Arc<dyn Clock>,
}

impl Listener {
    fn now(&self) -> Time {
        Time::now(&*self.clock)
    }
}

impl Ear for Listener {
    fn touched(&self, key: &str) {
        self.watchdog.hint(key);
        self.lines.alert(key, self.now());
        self.calls.touched(key, self.now());
    }

    fn missed(&self) {
        self.watchdog.hint_all();
        self.lines.alert_all(self.now());
        self.calls.call_all(self.now());
    }

    fn is_needed(&self) -> bool {
        !self.lines.is_empty() || !self.calls.is_empty() || !self.watchdog.is_empty()
    }

    fn granted(&self, key: &str, token: &str) {
        if self.calls.grant(token, self.now()) {
            return;
        }
        // It has gone meanwhile, and what it left behind must not hold the others up; unless it has become a lease, and
        // the call is a late one.
        if let Some(token) = Token::parse(token) {
            self.watchdog.leave(Key::of_lock(key), token);
        }
    }

    fn next(&self, token: &str, within: Duration) {
        let _gone_otherwise = self.calls.call(token, self.now() + within);
    }

    fn has_waiters(&self) -> bool {
        !self.calls.is_empty()
    }

    fn has_waiter(&self, token: &str) -> bool {
        self.calls.has(token)
    }
}
