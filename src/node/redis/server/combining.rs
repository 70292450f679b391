//! Batches requests, as [`Combiner`] decides; its invariants are numbered there.
//!
//! A lone request is sent inline, in its caller's own future. Batches are sent by a task on the runtime of the
//! connection, the flusher. The sweeper, on the keeper, answers requests that waited too long, so no answer depends on
//! that runtime.
//!
//! Cycles a second with batches and without, on two cores: over a quorum of five 12.5 k and 7.7 k at 16 tasks, 21 k and
//! 8.5 k at 256 (`scripts/bench quorum`); on a cluster of three 44 k and 32 k, 81 k and 43 k (`scripts/bench cluster`).

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    ops::DerefMut,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::{Either, join_all};
use leasehold_protocol::{
    combiner::{Batch, BatchLimits, BatchVerdict, Combiner, Entry, SweepOutcome, Want, after_failure},
    failure::Failure,
    message::{AcquireRequest, Claim, Reply, Request, VoteReply},
    time::Time,
    token::Token,
};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
};

use super::{
    pack::{Argument, Packed, seconds, whole_millis},
    replicas::{Answered, Patience, Replicas},
    witness::Witness,
};
use crate::{
    clock::stood_still,
    keeper::Host,
    node::redis::{
        reply,
        script::{COMBINED, COMBINED_SLOTS},
        transport::{Before, Connection, Delivery},
        wire::Value,
    },
    sync::catching_panics,
};

/// The most flights under way. While the server works on one flight, the client packs the next. More flights were no
/// faster, and slow a busy machine down.
const FLIGHTS: usize = 2;

/// A second flight begins when this many requests wait: fewer are served sooner by one, which takes all of them.
const CROWD: usize = 32;

/// Waiting requests get a flight of their own if no flight has begun or ended for this long.
const PACE: Duration = Duration::from_millis(1);

/// The sweeper stays for this long after a flight has begun or ended.
const TRAFFIC: Duration = Duration::from_millis(20);

/// The most requests in a batch: the server needs less than a millisecond, and serves no other client meanwhile.
const BATCH: usize = 128;

/// How long requests go alone to a server that refused a batch, or served no request of its batches.
const REST: Duration = Duration::from_secs(30);

/// After this many batches in a row without a served request, the server counts as not serving batches.
const IN_VAIN: u32 = 2;

/// A batch of at least this size is taken to contain a simple request.
const MANY: usize = 8;

/// The most that waiting requests weigh together, in bytes.
const FULL: usize = 32 * 1024 * 1024;

/// A caller's answer.
pub(super) enum BatchAnswer {
    Reply(Reply),
    /// The caller has to ask alone. If `repeated`, its batch may have been executed before, without an answer.
    Alone {
        repeated: bool,
    },
}

type Caller = oneshot::Sender<Result<BatchAnswer, Failure>>;

/// How an entered request is sent.
pub(super) enum Admission {
    /// At once, by itself.
    Alone(Flight),
    /// In a batch: this receives the outcome.
    Queued(oneshot::Receiver<Result<BatchAnswer, Failure>>),
    /// Not at all.
    Full(Failure),
}

/// The script that serves a batch, by its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// With all keys declared.
    Keys,
    /// With keys in many slots, which are not declared. Redis requires declared keys: this relies on how its cluster
    /// treats others, with an error for each that is not there. A server may not support it.
    Slots,
}

/// Batches the requests of one connection.
pub(super) struct Combining {
    packing: Packing,
    /// Requests go alone until this time, in nanoseconds.
    rests_until: AtomicU64,
    /// Batches without a served request, since the last with one.
    in_vain: AtomicU32,
    /// The witness of the server's uptime, and the restart delay, if votes are asked for.
    votes: Option<(Arc<Witness>, Duration)>,
    connection: Arc<Connection>,
    /// The replicas that have to confirm writes, if any do.
    replicas: Option<Arc<Replicas>>,
    home: Handle,
    host: Host,
    command_timeout: Duration,
    state: Mutex<Traffic>,
    sweeps_earlier: Arc<Notify>,
    /// Held while sending, if votes are asked for; taken before the state.
    order: Mutex<()>,
}

struct Traffic {
    combiner: Combiner<Caller>,
    /// When the sweeper runs next, while there is one.
    sweeps: Option<Time>,
}

impl Combining {
    /// Batches requests on `connection`, which lives on the runtime `home`.
    pub(super) fn new(
        packing: Packing,
        votes: Option<(Arc<Witness>, Duration)>,
        connection: Arc<Connection>,
        replicas: Option<Arc<Replicas>>,
        home: Handle,
        host: Host,
        command_timeout: Duration,
    ) -> Arc<Self> {
        let combiner =
            Combiner::new(BatchLimits { flights: FLIGHTS, crowd: CROWD, pace: PACE, batch: BATCH, weight: FULL });
        let state = Mutex::new(Traffic { combiner, sweeps: None });
        let (rests_until, in_vain) = (AtomicU64::new(0), AtomicU32::new(0));
        let sweeps_earlier = Arc::default();
        Arc::new(Self {
            packing,
            rests_until,
            in_vain,
            votes,
            connection,
            replicas,
            home,
            host,
            command_timeout,
            state,
            sweeps_earlier,
            order: Mutex::new(()),
        })
    }

    pub(super) fn now(&self) -> Time {
        self.connection.now()
    }

    /// Whether votes are asked for.
    pub(super) fn has_votes(&self) -> bool {
        self.votes.is_some()
    }

    /// This request as a want of a batch, if it may be batched: one impatient caller must not set the limit of all.
    pub(super) fn takes(&self, request: &Request, limit: Duration) -> Option<Want> {
        let delay = self.votes.as_ref().map(|(_, delay)| *delay);
        let is_alike = |want: &Want| match want {
            Want::Acquire(AcquireRequest { voting, .. }) => voting.map(|voting| voting.restart_delay) == delay,
            Want::Release(_) => true,
        };
        Want::of(request).filter(|want| limit >= self.command_timeout / 2 && !self.rests() && is_alike(want))
    }

    /// Whether requests go alone now, because the server does not serve batches.
    fn rests(&self) -> bool {
        if self.packing == Packing::Keys {
            return false;
        }
        let until = self.rests_until.load(Ordering::Relaxed);
        until != 0 && self.connection.now() < Time::from_nanos(until)
    }

    /// Notes the end of a batch: this server may not serve batches.
    fn note_batch(&self, is_refused: bool, is_in_vain: bool) {
        let in_vain = if is_in_vain { self.in_vain.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        if is_refused || in_vain >= IN_VAIN {
            self.rests_until.store((self.connection.now() + REST).as_nanos(), Ordering::Relaxed);
        }
        if !is_in_vain || in_vain >= IN_VAIN {
            self.in_vain.store(0, Ordering::Relaxed);
        }
    }

    /// Enters a request that [can be batched](Self::takes).
    pub(super) fn enter(self: &Arc<Self>, want: Want, now: Time, limit: Duration) -> Admission {
        let mut told = None;
        let token = self.has_votes().then(|| want.claim().token.clone());
        let queued = || {
            let (caller, receiver) = oneshot::channel();
            told = Some(receiver);
            (want, caller)
        };
        let mut state = self.state.lock();
        let entry = state.combiner.enter(now, limit, queued);
        if let (Entry::Alone, Some(token)) = (entry, &token) {
            state.combiner.may_set_aside(token.clone());
        }
        // If nothing has moved for long, the request is overdue already; that is no gap in our own sweeps.
        let sweeper = if let Entry::Queued(at) = entry { state.sweep_by(at.max(now)) } else { Sweeper::InTime };
        drop(state);
        self.see_to(sweeper);
        match (entry, told) {
            (Entry::Queued(_), Some(told)) => Admission::Queued(told),
            (Entry::Full, _) => Admission::Full(self.connection.full()),
            _ => Admission::Alone(Flight { combining: self.clone(), token }),
        }
    }

    /// Notes that a majority decided without the answer to this token's request: its caller does not await it now.
    pub(super) fn set_aside(self: &Arc<Self>, token: &Token) {
        let now = self.connection.now();
        let mut state = self.state.lock();
        let goes_on = state.combiner.set_aside(token) && state.combiner.goes_on(now);
        drop(state);
        if goes_on {
            self.fly();
        }
    }

    /// Withdraws an acquire: if it still waits here, it is never sent. Returns whether it did.
    pub(super) fn withdraw(&self, token: &Token) -> bool {
        let withdrawn = self.state.lock().combiner.withdraw(token);
        let is_withdrawn = withdrawn.is_some();
        if let Some(caller) = withdrawn {
            tell(caller, Err(Failure::unsent("it was taken back before it was sent")));
        }
        is_withdrawn
    }

    /// Starts a flight for the waiting requests, on the runtime of the connection.
    #[allow(clippy::disallowed_methods, reason = "it ends with its runtime, and its callers are under way until then")]
    fn fly(self: &Arc<Self>) {
        let flusher = Flusher { combining: self.clone(), batch: None, has_ended: false };
        self.home.spawn(flusher.run());
    }

    fn see_to(self: &Arc<Self>, sweeper: Sweeper) {
        match sweeper {
            Sweeper::InTime => {}
            Sweeper::TooLate => self.sweeps_earlier.notify_one(),
            Sweeper::None => self.host.spawn_beside(sweep(Arc::downgrade(self))),
        }
    }

    /// Answers the requests past their limit. Returns when to sweep again, or `None` if nothing is left to sweep.
    fn look(self: &Arc<Self>, now: Time) -> Option<Time> {
        let SweepOutcome { unsent, unknown, flies, next } = {
            let mut state = self.state.lock();
            state.notice_gap(now);
            let mut swept = state.combiner.sweep(now);
            // While flights come and go it ticks, so the next request that waits need not wake the keeper.
            let ticks = now < state.combiner.moved() + TRAFFIC;
            swept.next = swept.next.into_iter().chain(ticks.then(|| now + PACE)).min();
            state.sweeps = swept.next;
            swept
        };
        if flies {
            self.fly();
        }
        for (caller, _) in unsent {
            tell(caller, Err(self.connection.late()));
        }
        for (caller, limit) in unknown {
            tell(caller, Err(self.connection.silent(limit)));
        }
        next
    }
}

/// Polls a request. If votes are asked for, its first poll, which sends it, never falls between making a batch and
/// sending it. Otherwise a release could be sent before its own acquire, which another thread has just put into a
/// batch. A request that is sent later reports by itself that it was overtaken.
pub(super) async fn in_order<F: Future>(
    order: Option<Arc<Combining>>,
    mut request: Pin<impl DerefMut<Target = F>>,
) -> F::Output {
    let mut order = order;
    poll_fn(|context| {
        let order = order.take();
        let _in_order = order.as_ref().map(|combining| combining.order.lock());
        request.as_mut().poll(context)
    })
    .await
}

/// Sweeps until nothing is left to sweep. It runs beside the keeper's tasks, because some of them wait for its answers.
async fn sweep(combining: Weak<Combining>) {
    loop {
        let Some(this) = combining.upgrade() else { return };
        let (earlier, host) = (this.sweeps_earlier.clone(), this.host.clone());
        // A program's own clock may panic; callers must get their answers all the same.
        let next = catching_panics(|| {
            let now = this.connection.now();
            Some((now, this.look(now)?))
        });
        drop(this);
        let pause = match next {
            Some(None) => return,
            Some(Some((now, next))) => Either::Left(host.sleep_until(now, next)),
            None => Either::Right(host.sleep(PACE)),
        };
        tokio::select! {
            () = pause => {}
            () = earlier.notified() => {}
        }
    }
}

/// Whether the sweeper has to be notified of a waiting request.
#[derive(Clone, Copy)]
enum Sweeper {
    InTime,
    TooLate,
    None,
}

impl Traffic {
    /// Excludes the time in which this process stood still: answers may have arrived meanwhile.
    fn notice_gap(&mut self, now: Time) {
        if self.sweeps.is_some_and(|planned| stood_still(now, planned)) {
            self.combiner.stood_still(now);
            self.sweeps = Some(now);
        }
    }

    fn sweep_by(&mut self, at: Time) -> Sweeper {
        match self.sweeps.replace(self.sweeps.map_or(at, |planned| planned.min(at))) {
            Some(planned) if planned <= at + PACE => Sweeper::InTime,
            Some(_) => Sweeper::TooLate,
            None => Sweeper::None,
        }
    }
}

/// A request that goes alone. When it ends or is dropped, the requests that arrived meanwhile are sent next.
pub(super) struct Flight {
    combining: Arc<Combining>,
    /// The token by which it may be set aside.
    token: Option<Token>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        // If the program's clock panicked, and that drops this, it must not panic too. A time that is too early only
        // means an earlier sweep.
        let now = catching_panics(|| self.combining.connection.now()).unwrap_or(Time::ZERO);
        let mut state = self.combining.state.lock();
        let is_one = self.token.as_ref().is_none_or(|token| state.combiner.set_aside(token));
        let goes_on = is_one && state.combiner.goes_on(now);
        drop(state);
        if goes_on {
            self.combining.fly();
        }
    }
}

/// Sends batches until no request waits.
struct Flusher {
    combining: Arc<Combining>,
    batch: Option<Batch>,
    has_ended: bool,
}

impl Flusher {
    async fn run(mut self) {
        while !self.has_ended {
            self.carry().await;
            // The tasks that were just answered run first, so their next requests join the batch.
            tokio::task::yield_now().await;
            let now = self.combining.connection.now();
            self.has_ended = !self.combining.state.lock().combiner.goes_on(now);
        }
    }

    /// Sends one batch, and answers its callers.
    async fn carry(&mut self) {
        let Self { combining, batch, .. } = self;
        let (began, mut has_link) = (combining.connection.now(), false);
        let mut arguments = |all: &mut Vec<Value>| {
            has_link = true;
            combining.fill(batch, all)
        };
        let script = match combining.packing {
            Packing::Keys => &COMBINED,
            Packing::Slots => &COMBINED_SLOTS,
        };
        let (connection, limit) = (&combining.connection, combining.command_timeout);
        // Its timers are the keeper's, which ticks in any case: with one of its own, this runtime would wake itself.
        let (_under_way, time) = (combining.host.token(), combining.host.time_keeper());
        // Boxed, because it is large, and tokio moves a task more than once.
        let outcome = if let Some((witness, delay)) = &combining.votes {
            let is_trusted = |run_id: &str| witness.vouches_for(run_id, *delay);
            let mut sent = Box::pin(connection.vote(script, &mut arguments, limit, || Before::Nothing, is_trusted));
            time.keep(pin!(in_order(Some(combining.clone()), sent.as_mut()))).await
        } else {
            let mut sent = Box::pin(connection.run(script, &mut arguments, limit, || Before::Nothing));
            time.keep(sent.as_mut()).await
        };
        match (self.batch.take(), outcome) {
            (Some(batch), outcome) => self.combining.landed(&batch, outcome),
            // The connection has ended, or takes no requests. Later requests keep waiting, each for its full limit.
            (None, Err(failure)) if !has_link => {
                let waiting = self.combining.state.lock().combiner.turn_away(began);
                for caller in waiting {
                    tell(caller, Err(failure.clone()));
                }
            }
            // No caller was left that wanted it.
            (None, _) => {}
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // The runtime of the connection has ended: nothing more can be sent there (invariant 6).
        let (waiting, sent) = self.combining.state.lock().combiner.crash(self.batch.as_ref());
        for caller in waiting {
            tell(caller, Err(Failure::unsent("the runtime of the connection has ended")));
        }
        for caller in sent {
            tell(caller, Err(Failure::unknown("the runtime of the connection ended before the answer")));
        }
    }
}

impl Combining {
    /// Fills in arguments right before a sending: what waits, or, for a second sending, what of the batch has no answer
    /// yet. Returns how many are keys.
    fn fill(self: &Arc<Self>, batch: &mut Option<Batch>, all: &mut Vec<Value>) -> Option<usize> {
        let mut state = self.state.lock();
        if let Some(batch) = batch {
            state.combiner.keep_unanswered(batch);
        } else {
            let now = self.connection.now();
            state.notice_gap(now);
            let (taken, late) = state.combiner.take(now, |caller| !caller.is_closed());
            *batch = taken;
            let looks_at = state.combiner.looks_at();
            let sweeper = looks_at.map_or(Sweeper::InTime, |at| state.sweep_by(at.max(now)));
            drop(state);
            self.see_to(sweeper);
            for (caller, _) in late {
                tell(caller, Err(self.connection.late()));
            }
        }
        let wants = batch.as_ref().map(|batch| &batch.wants).filter(|wants| !wants.is_empty())?;
        Some(match self.packing {
            Packing::Keys => pack(wants, self.votes.as_ref(), all),
            Packing::Slots => pack_slots(wants, all),
        })
    }

    /// Ends a batch: each caller without an answer yet gets one.
    fn landed(&self, batch: &Batch, outcome: Result<(Value, Delivery), Failure>) {
        let (mut due, callers) = {
            let combiner = &mut self.state.lock().combiner;
            let due = if self.replicas.is_some() { combiner.due(batch) } else { Vec::new() };
            (due.into_iter(), combiner.landed(batch))
        };
        let repeated = outcome.as_ref().is_ok_and(|(_, delivery)| delivery.repeated);
        let link = outcome.as_ref().map_or(0, |(_, delivery)| delivery.link);
        let mut granted = Vec::new();
        // A server that is busy, or loads its data, may serve them later.
        let is_refused = outcome.as_ref().is_err_and(Failure::is_refusal);
        let mut replies = match outcome {
            Ok((value, delivery)) => {
                match reply::combined(&value, &batch.wants, self.has_votes(), delivery.overtaken) {
                    Some(replies) => {
                        self.note_run(&replies, link);
                        Ok(replies.into_iter())
                    }
                    None => Err(BatchVerdict::Failed(reply::unreadable())),
                }
            }
            Err(failure) => Err(after_failure(failure)),
        };
        if self.packing == Packing::Slots {
            let is_in_vain = replies.as_ref().is_ok_and(|replies| replies.as_slice().iter().all(Option::is_none));
            // All requests of a small batch may have queues.
            self.note_batch(is_refused, is_in_vain && batch.wants.len() >= MANY);
        }
        let now = self.connection.now();
        for (caller, want) in callers.into_iter().zip(&batch.wants) {
            let until = due.next();
            let told = match &mut replies {
                Ok(replies) => match (replies.next().flatten(), want) {
                    (Some(reply), _) => Ok(BatchAnswer::Reply(reply)),
                    // Asked alone, as if for the first time, it would find its lock released, and not know by whom.
                    (None, Want::Release(_)) if repeated => Err(self.connection.silent(self.command_timeout)),
                    (None, _) => Ok(BatchAnswer::Alone { repeated }),
                },
                Err(BatchVerdict::Alone) => Ok(BatchAnswer::Alone { repeated }),
                Err(BatchVerdict::Failed(failure)) => Err(failure.clone()),
            };
            match (caller, told, &self.replicas, want) {
                (Some(caller), Ok(BatchAnswer::Reply(reply)), Some(_), Want::Acquire(request))
                    if reply.is_written() =>
                {
                    let rest = until.map_or(Duration::ZERO, |until| until.since(now));
                    let patience = Patience::of_grant(request.claim.ttl, self.command_timeout, self.command_timeout);
                    granted.push((caller, reply, patience.in_rest(rest)));
                }
                (Some(caller), told, ..) => tell(caller, told),
                (None, ..) => {}
            }
        }
        self.await_replicas(link, granted);
    }

    /// Notes the run of the server: all votes of a batch come from one run.
    fn note_run(&self, replies: &[Option<Reply>], link: u64) {
        let Some((witness, _)) = &self.votes else { return };
        let identity = replies.iter().flatten().find_map(|reply| match reply {
            Reply::Vote(VoteReply { identity, .. }) => identity.as_ref(),
            _ => None,
        });
        if let Some(run_id) = identity.and_then(|identity| identity.run_id.as_ref()) {
            witness.heard(run_id);
            self.connection.note_run(link, run_id);
        }
    }

    /// Answers these callers once replicas have what was granted: one `WAIT` serves a whole batch.
    fn await_replicas(&self, link: u64, granted: Vec<(Caller, Reply, Patience)>) {
        let Some(replicas) = self.replicas.clone().filter(|_| !granted.is_empty()) else { return };
        let mut by_patience: BTreeMap<Patience, Vec<(Caller, Reply)>> = BTreeMap::new();
        for (caller, reply, patience) in granted {
            by_patience.entry(patience).or_default().push((caller, reply));
        }
        // Beside the keeper: a blocked runtime must not hold up callers on other runtimes.
        self.host.spawn_beside(async move {
            let telling = by_patience.into_iter().map(async |(patience, granted)| {
                let verdict = replicas.confirm(link, patience).await;
                for (caller, reply) in granted {
                    tell(caller, verdict.clone().map(|()| BatchAnswer::Reply(reply)));
                }
            });
            join_all(telling).await;
        });
    }
}

fn tell(caller: Caller, told: Result<BatchAnswer, Failure>) {
    let _nobody_waits = caller.send(told);
}

fn released(wants: &[Want]) -> impl Iterator<Item = &Claim> {
    wants.iter().filter_map(|want| if let Want::Release(claim) = want { Some(claim) } else { None })
}

fn acquires(wants: &[Want]) -> impl Iterator<Item = &AcquireRequest> {
    wants.iter().filter_map(|want| if let Want::Acquire(request) = want { Some(request) } else { None })
}

fn acquired(wants: &[Want]) -> impl Iterator<Item = &Claim> {
    acquires(wants).map(|request| &request.claim)
}

/// Puts the number of releases, the number of acquires if asked for, and the memory for their fences.
fn put_counts(wants: &[Want], packed: &mut Packed, with_acquires: bool) {
    let mut put = |number| packed.put(&Argument::Number(number));
    put(u64::try_from(released(wants).count()).unwrap_or_default());
    if with_acquires {
        put(u64::try_from(acquired(wants).count()).unwrap_or_default());
    }
    put(whole_millis(acquired(wants).next().map(|claim| claim.fence_memory).unwrap_or_default()));
}

fn add(packed: Packed, all: &mut Vec<Value>) {
    let values = packed.into_values();
    all.reserve_exact(values.len());
    all.extend(values);
}

/// Packs the arguments of `combined_slots.lua`, none of which is a key.
fn pack_slots(wants: &[Want], all: &mut Vec<Value>) -> usize {
    let mut packed = Packed::with_capacity(4 * wants.len() + 3);
    put_counts(wants, &mut packed, true);
    for claim in released(wants) {
        packed.put(&Argument::Whole(claim.key.lock()));
        packed.put(&Argument::Parts(claim.key.queue_parts()));
        packed.put(&Argument::Value(claim));
    }
    for claim in acquired(wants) {
        packed.put(&Argument::Whole(claim.key.lock()));
        packed.put(&Argument::Parts(claim.key.fence_parts()));
        packed.put(&Argument::Whole(claim.token.as_str()));
        packed.put(&Argument::Number(whole_millis(claim.life)));
    }
    add(packed, all);
    0
}

/// Packs the keys and arguments of `combined.lua`, and returns how many are keys.
fn pack(wants: &[Want], votes: Option<&(Arc<Witness>, Duration)>, all: &mut Vec<Value>) -> usize {
    let (released, acquired) = (|| released(wants), || acquired(wants));
    let keys = 2 * wants.len();
    let mut packed = Packed::with_capacity(2 * keys + 3);
    released().for_each(|claim| packed.put(&Argument::Whole(claim.key.lock())));
    acquired().for_each(|claim| packed.put(&Argument::Parts(claim.key.fence_parts())));
    released().for_each(|claim| packed.put(&Argument::Parts(claim.key.queue_parts())));
    acquired().for_each(|claim| packed.put(&Argument::Whole(claim.key.lock())));
    put_counts(wants, &mut packed, false);
    let delay = votes.map(|(_, delay)| Argument::Number(seconds(*delay)));
    packed.put(&delay.unwrap_or(Argument::Whole("")));
    released().for_each(|claim| packed.put(&Argument::Value(claim)));
    acquired().for_each(|claim| packed.put(&Argument::Whole(claim.token.as_str())));
    acquired().for_each(|claim| packed.put(&Argument::Number(whole_millis(claim.life))));
    if votes.is_some() {
        for AcquireRequest { voting, .. } in acquires(wants) {
            let proposal = voting.and_then(|voting| voting.proposal).map(|fence| Argument::Number(fence.into()));
            packed.put(&proposal.unwrap_or(Argument::Whole("")));
        }
    }
    add(packed, all);
    if let Some((witness, _)) = votes.filter(|(_, delay)| !delay.is_zero()) {
        witness.testify(all);
    }
    keys
}
