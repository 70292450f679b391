//! The script of each request, its keys and arguments, and how its reply is read.

use std::{future::ready, pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    combiner::Want,
    failure::Failure,
    fence::Fence,
    forced,
    key::Key,
    message::{AcquireRequest, Claim, Poll, Polled, ReleaseMode, Reply, Request, Route, VoteReply, Voting},
    mode,
    queue_position::WINDOW,
    token::Token,
};

use super::{
    Connections,
    combining::{Admission, BatchAnswer, Combining, Flight, in_order},
    pack::{Argument, packed, seconds, whole_millis},
    replicas::{Answered, Patience},
};
use crate::node::{
    Answer,
    redis::{
        info, reply,
        script::{
            ACQUIRE, FLOORS, FORCE_RELEASE, HELD, HOLDER, JOIN, KEEP, LEAVE, POLL, QUEUE, RAISE, REHEARSE, RELEASE,
            REPAIR, SUCCEED, Script,
        },
        transport::{Before, Connection, Delivery, is_no_right_to_a_key},
        wire::Value,
    },
};

/// How many keys the server samples to estimate the memory of all floors, in a millisecond.
const KEYS_OF_A_SAMPLE: i64 = 1_000;

/// How many keys the server scans for one page of held locks, in well under a millisecond.
const KEYS_OF_A_PAGE: i64 = 500;

/// How a request is sent, and how long its answer is awaited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendOptions {
    pub(crate) route: Route,
    pub(crate) limit: Duration,
    /// Whether another server, which has the key's slot, has redirected it to this one.
    pub(crate) is_asking: bool,
    /// How long replicas have to confirm it, if they must.
    pub(crate) patience: Option<Patience>,
}

impl SendOptions {
    pub(crate) fn new(route: Route, limit: Duration) -> Self {
        Self { route, limit, is_asking: false, patience: None }
    }
}

impl Connections {
    /// Sends a request: alone, or batched with others that arrive at the same time.
    pub(crate) fn ask(self: &Arc<Self>, options: SendOptions, request: Request) -> Answer<Reply> {
        let options = self.passable(options);
        let SendOptions { route, limit, .. } = options;
        if let Some(refused) = self.findings.refuse(&request, &self.address) {
            return Box::pin(ready(Err(refused)));
        }
        let Some(combining) = &self.combining else { return self.ask_alone(options, request, None) };
        if let Some(token) = Want::undone_by(&request, combining.has_votes()) {
            combining.withdraw(token);
        }
        let travels = self.travels_with_others(route) && !options.is_asking;
        let Some(want) = travels.then(|| combining.takes(&request, limit)).flatten() else {
            return self.ask_alone(options, request, None);
        };
        let now = combining.now();
        match combining.enter(want, now, limit) {
            Admission::Alone(flight) => self.ask_alone(options, request, Some(flight)),
            Admission::Full(failure) => Box::pin(ready(Err(failure))),
            Admission::Queued(told) => {
                let (server, until) = (self.clone(), now + limit);
                Box::pin(async move {
                    match server.host.time_keeper().keep(pin!(told)).await {
                        Ok(Ok(BatchAnswer::Reply(reply))) => Ok(reply),
                        // Later requests on this route may have been sent before it now.
                        Ok(Ok(BatchAnswer::Alone { repeated })) => {
                            let (left, _) = server.keeper.left(limit, until);
                            let answer = server
                                .ask_alone(SendOptions::new(route, left), request, None)
                                .await
                                .map(reply::overtaken);
                            // Even if this one failed, the batch may have executed the request.
                            if repeated { answer.map_err(Failure::halfway) } else { answer }
                        }
                        Ok(Err(failure)) => Err(failure),
                        Err(_dropped) => Err(Failure::unknown("the request was lost on its way")),
                    }
                })
            }
        }
    }

    fn ask_alone(self: &Arc<Self>, options: SendOptions, request: Request, flight: Option<Flight>) -> Answer<Reply> {
        let patience =
            self.replicas(options.route).and_then(|_| Patience::of(&request, options.limit, self.command_timeout));
        let options = SendOptions { patience, ..options };
        match request {
            Request::Acquire(AcquireRequest { claim, voting, heir_of: Some(tokens) }) => {
                self.succeed(options, claim, voting.unwrap_or_default(), tokens)
            }
            Request::Acquire(AcquireRequest { claim, voting, heir_of: None }) => {
                self.acquire(options, claim, voting, flight)
            }
            Request::Raise { claim, fence } => {
                let arguments = move |all: &mut Vec<Value>| {
                    let Claim { key, fence_memory, .. } = &claim;
                    all.extend(packed([
                        Argument::Whole(key.lock()),
                        Argument::Parts(key.fence_parts()),
                        Argument::Value(&claim),
                    ]));
                    all.extend([number(fence), millis(*fence_memory)]);
                };
                self.run(options, &RAISE, 2, arguments, |reply, _| reply::released(reply))
            }
            Request::Repair { claim, fence, restart_delay } => self.repair(options, claim, fence, restart_delay),
            Request::Renew(batch) => self.renew(options, batch),
            Request::Release { claim, mode } => self.release(options, claim, mode, flight),
            Request::Poll(poll) => self.poll(options, poll),
            Request::Waiters { key, most } => {
                let most = i64::try_from(most).unwrap_or(i64::MAX);
                let arguments =
                    move |all: &mut Vec<Value>| all.extend([key.queue().into(), most.into(), key.wait().into()]);
                self.run(options, &QUEUE, 1, arguments, |reply, _| reply::waiters(reply))
            }
            Request::Sharers { key, most } => self.sharers(options, key, most),
            Request::Downgrade { claim, from, restart_delay } => self.downgrade(options, claim, from, restart_delay),
            Request::Holder(key) => {
                let arguments = move |all: &mut Vec<Value>| all.push(key.lock().into());
                self.run(options, &HOLDER, 1, arguments, |reply, delivery| reply::holding(reply, delivery.tracked))
            }
            Request::Held { pattern, cursor, .. } => {
                let arguments = move |all: &mut Vec<Value>| {
                    all.extend([cursor.to_string().into(), (&*pattern).into(), KEYS_OF_A_PAGE.into()]);
                };
                self.run(options, &HELD, 0, arguments, |reply, _| reply::page(reply))
            }
            Request::ForceRelease { key, by } => {
                let arguments = move |all: &mut Vec<Value>| {
                    all.extend(packed(queue_keys(&key)));
                    all.extend([key.forced().into(), forced::to_text(&by).into()]);
                };
                self.run(options, &FORCE_RELEASE, 5, arguments, |reply, _| reply::flag(reply))
            }
            Request::Probe => self.probe(options),
            Request::Rehearse { key, restart_delay } => self.rehearse(options, key, restart_delay),
        }
    }

    fn succeed(
        &self,
        options: SendOptions,
        claim: Claim,
        Voting { proposal, restart_delay }: Voting,
        tokens: Arc<Vec<Token>>,
    ) -> Answer<Reply> {
        let witness = self.witness.clone();
        let arguments = move |all: &mut Vec<Value>| {
            let Claim { key, token, life, fence_memory, .. } = &claim;
            let (lock, fence, token) = (key.lock(), key.fence_parts(), token.as_str());
            all.extend(packed([Argument::Whole(lock), Argument::Parts(fence), Argument::Whole(token)]));
            all.extend([millis(*life), millis(*fence_memory)]);
            all.push(proposal.map(|fence| fence.to_string()).unwrap_or_default().into());
            all.extend([whole_seconds(restart_delay), i64::try_from(tokens.len()).unwrap_or(i64::MAX).into()]);
            all.extend(tokens.iter().map(|token| token.identity().into()));
            if !restart_delay.is_zero() {
                witness.testify(all);
            }
        };
        self.run(options, &SUCCEED, 2, arguments, |reply, Delivery { tracked, overtaken, .. }| {
            Some(VoteReply { overtaken, ..reply::succession(reply, tracked)? })
        })
    }

    fn acquire(
        &self,
        options: SendOptions,
        claim: Claim,
        voting: Option<Voting>,
        flight: Option<Flight>,
    ) -> Answer<Reply> {
        let witness = self.witness.clone();
        let arguments = move |all: &mut Vec<Value>| {
            let Claim { key, token, life, fence_memory, .. } = &claim;
            let (lock, fence, token) = (key.lock(), key.fence_parts(), token.as_str());
            all.extend(packed([Argument::Whole(lock), Argument::Parts(fence), Argument::Whole(token)]));
            all.push(millis(*life));
            all.push(millis(*fence_memory));
            if let Some(voting) = voting {
                let proposal = voting.proposal.map(|fence| fence.to_string()).unwrap_or_default();
                all.extend([whole_seconds(voting.restart_delay), proposal.into()]);
                if !voting.restart_delay.is_zero() {
                    witness.testify(all);
                }
            }
        };
        let Some(Voting { restart_delay, .. }) = voting else {
            return self.run_in(
                flight,
                options,
                &ACQUIRE,
                2,
                arguments,
                |reply, Delivery { tracked, overtaken, .. }| {
                    Some(VoteReply { overtaken, ..reply::vote(reply, tracked, false)? })
                },
            );
        };
        let (connection, witness) = (self.connection(options.route), self.witness.clone());
        let replicas = self.replicas(options.route).cloned();
        let (before, time, order) = (self.before(options), self.host.time_keeper(), self.order(options.route));
        Box::pin(async move {
            let _flight = flight;
            let mut arguments = |all: &mut Vec<Value>| {
                arguments(all);
                Some(2)
            };
            let is_trusted = |run_id: &str| witness.vouches_for(run_id, restart_delay);
            let voting = pin!(connection.vote(&ACQUIRE, &mut arguments, options.limit, before, is_trusted));
            let voting = pin!(in_order(order, voting));
            let (value, delivery) = time.keep(voting).await?;
            let vote = reply::vote(&value, delivery.tracked, true).ok_or_else(reply::unreadable)?;
            if let Some(run_id) = vote.identity.as_ref().and_then(|identity| identity.run_id.as_ref()) {
                witness.heard(run_id);
                connection.note_run(delivery.link, run_id);
            }
            let vote = VoteReply { overtaken: delivery.overtaken, ..vote }.into();
            match replicas.zip(options.patience) {
                Some((replicas, patience)) => replicas.confirmed(delivery.link, patience, vote).await,
                None => Ok(vote),
            }
        })
    }

    fn release(&self, options: SendOptions, claim: Claim, mode: ReleaseMode, flight: Option<Flight>) -> Answer<Reply> {
        let witness = self.witness.clone();
        match mode {
            ReleaseMode::Delete if claim.mode.is_shared() => self.part(options, claim),
            ReleaseMode::Delete => {
                let arguments = move |all: &mut Vec<Value>| {
                    let [lock, fence, queue, wait, holders] = queue_keys(&claim.key);
                    all.extend(packed([lock, fence, queue, wait, holders, Argument::Value(&claim)]));
                    witness.testify_to_queues(all);
                };
                self.run_in(flight, options, &RELEASE, 5, arguments, |reply, _| reply::released(reply))
            }
            ReleaseMode::Leave(others) => {
                // The channel on which it was or would be notified: by now this process may not be listening.
                let channel = self.subscription.name().to_owned();
                let arguments = move |all: &mut Vec<Value>| {
                    all.extend(packed(queue_keys(&claim.key)));
                    all.extend([
                        channel.as_str().into(),
                        millis(WINDOW),
                        i64::try_from(others.len() + 1).unwrap_or(i64::MAX).into(),
                    ]);
                    all.extend([&claim.token].into_iter().chain(&*others).map(|token| Value::from(token.as_str())));
                    witness.testify_to_queues(all);
                };
                self.run(options, &LEAVE, 5, arguments, |reply, _| reply::released(reply))
            }
            ReleaseMode::Retain(keep, stays) if claim.mode.is_shared() => self.keep_share(options, claim, keep, stays),
            ReleaseMode::Retain(keep, stays) => {
                let arguments = move |all: &mut Vec<Value>| {
                    all.extend([claim.key.lock().into(), value(&claim), millis(keep), stays.as_str().into()]);
                };
                self.run(options, &KEEP, 1, arguments, |reply, _| reply::released(reply))
            }
        }
    }

    fn repair(&self, options: SendOptions, claim: Claim, fence: Fence, restart_delay: Duration) -> Answer<Reply> {
        let witness = self.witness.clone();
        let arguments = move |all: &mut Vec<Value>| {
            let Claim { key, token, life, fence_memory, .. } = &claim;
            let (lock, floor, token) = (key.lock(), key.fence_parts(), token.as_str());
            all.extend(packed([Argument::Whole(lock), Argument::Parts(floor), Argument::Whole(token)]));
            all.push(millis(*life));
            all.extend([number(fence), millis(*fence_memory), whole_seconds(restart_delay)]);
            if !restart_delay.is_zero() {
                witness.testify(all);
            }
        };
        let witness = self.witness.clone();
        self.run(options, &REPAIR, 2, arguments, move |reply, _| {
            witness.read(reply);
            reply::repaired(reply)
        })
    }

    /// Takes a first place in the queue once it is known whether the server notifies this process. A waiter that cannot
    /// be notified, and dies, costs the waiter behind it a grant.
    fn poll(self: &Arc<Self>, options: SendOptions, poll: Poll) -> Answer<Reply> {
        if !poll.enter || poll.ticket.is_some() || !self.subscription.is_undecided() {
            return self.poll_once(options, poll);
        }
        let (server, until) = (self.clone(), self.keeper.now() + options.limit);
        Box::pin(async move {
            let tried = server.poll_once(options, Poll { enter: false, ..poll.clone() }).await?;
            if !matches!(tried, Reply::Polled(Polled::Waits { .. })) {
                return Ok(tried);
            }
            // The second request has the other half of what is left.
            let pause = (options.limit / 4).min(until.since(server.keeper.now()) / 2);
            let deciding = pin!(server.subscription.decided(server.host.sleep(pause)));
            server.host.time_keeper().keep(deciding).await;
            let (left, _) = server.keeper.left(options.limit, until);
            server.poll_once(SendOptions { limit: left, ..options }, poll).await
        })
    }

    fn poll_once(&self, options: SendOptions, poll: Poll) -> Answer<Reply> {
        let (witness, notified) = (self.witness.clone(), self.subscription.channel().is_some());
        let script = if poll.claim.mode.is_shared() { &JOIN } else { &POLL };
        // The process has this name whether or not it listens on the channel.
        let channel = format!("{}{}", if notified { "" } else { "~" }, self.subscription.name());
        let arguments = move |all: &mut Vec<Value>| {
            let Claim { key, token, life, fence_memory, mode, .. } = &poll.claim;
            all.extend(packed(queue_keys(key)));
            all.extend([token.as_str().into(), millis(*life)]);
            all.push(poll.ticket.unwrap_or_default().to_string().into());
            all.extend([millis(poll.grant), millis(poll.window)]);
            all.extend([channel.as_str().into(), i64::from(poll.enter).into()]);
            all.extend([whole_seconds(poll.restart_delay), millis(*fence_memory)]);
            all.push(i64::from(mode::limit(*mode)).into());
            if !poll.restart_delay.is_zero() {
                witness.testify_and_queue(all);
            }
        };
        let witness = self.witness.clone();
        self.run(options, script, 5, arguments, move |reply, delivery| {
            witness.read(reply);
            reply::polled(reply, delivery.tracked, notified)
        })
    }

    fn probe(&self, SendOptions { route, limit, .. }: SendOptions) -> Answer<Reply> {
        let (connection, witness, time) = (self.connection(route), self.witness.clone(), self.host.time_keeper());
        Box::pin(async move {
            let answer = pin!(async {
                let info = connection.info(limit).await?;
                witness.note_version(info::major_version(&info));
                let identity = info::identity(&info);
                if let Some(run_id) = &identity.run_id {
                    witness.heard(run_id);
                }
                Ok(identity.into())
            });
            time.keep(answer).await
        })
    }

    /// Rehearses an acquire. A user may have rights to some locks only, and not to this key: then any answer is enough.
    fn rehearse(self: &Arc<Self>, options: SendOptions, key: Key, restart_delay: Duration) -> Answer<Reply> {
        let is_known = self.connection(options.route).up().is_some_and(|link| link.knows(&REHEARSE));
        let (server, until) = (self.clone(), self.keeper.now() + options.limit);
        Box::pin(async move {
            let mut outcome = server.rehearse_once(options, &key, restart_delay).await;
            // By its text, and by its hash, for which a user may lack the right.
            if !is_known && matches!(outcome, Ok(Reply::Rehearsed(None))) {
                let (limit, _) = server.keeper.left(options.limit, until);
                outcome = server.rehearse_once(SendOptions { limit, ..options }, &key, restart_delay).await;
            }
            match outcome {
                Err(failure) if is_no_right_to_a_key(&failure) => Ok(None::<Duration>.into()),
                outcome => outcome,
            }
        })
    }

    fn rehearse_once(&self, options: SendOptions, key: &Key, restart_delay: Duration) -> Answer<Reply> {
        let (key, witness) = (key.clone(), self.witness.clone());
        let arguments = move |all: &mut Vec<Value>| {
            all.extend([key.lock().into(), whole_seconds(restart_delay)]);
            if !restart_delay.is_zero() {
                witness.testify(all);
            }
        };
        let witness = self.witness.clone();
        self.run(options, &REHEARSE, 1, arguments, move |reply, _| {
            witness.read(reply);
            reply::rehearsed(reply)
        })
    }

    /// The approximate memory of the fence floors of this program's locks, in bytes; `None` if the server does not
    /// report it.
    pub(crate) async fn floors(connection: &Connection, limit: Duration) -> Option<u64> {
        let mut arguments = |all: &mut Vec<Value>| {
            all.extend([KEYS_OF_A_SAMPLE.into(), connection.endpoint.names.prefix.as_ref().into()]);
            Some(0)
        };
        let (reply, _) = connection.run(&FLOORS, &mut arguments, limit, || Before::Nothing).await.ok()?;
        reply::floors(&reply)
    }

    /// The command right before each sending of a request. `ASKING` and `CLIENT CACHING` exclude each other.
    pub(super) fn before(&self, options: SendOptions) -> impl Fn() -> Before + Send + use<> {
        let subscription = (options.route == Route::Tracked && !options.is_asking).then(|| self.subscription.clone());
        move || match &subscription {
            Some(subscription) if subscription.is_on() => Before::Tracking,
            _ if options.is_asking => Before::Asking,
            _ => Before::Nothing,
        }
    }

    /// The requests whose votes may be about to be sent, as a batch, on this route.
    fn order(&self, route: Route) -> Option<Arc<Combining>> {
        let has_votes = |combining: &&Arc<Combining>| combining.has_votes() && self.travels_with_others(route);
        self.combining.as_ref().filter(has_votes).cloned()
    }

    /// Runs a script and reads its reply, with how it arrived. `arguments` adds `keys` keys and then the arguments.
    pub(super) fn run<T: Into<R> + 'static, R: Answered + Send + 'static>(
        &self,
        options: SendOptions,
        script: &'static Script,
        keys: usize,
        arguments: impl Fn(&mut Vec<Value>) + Send + Sync + 'static,
        read: impl FnOnce(&Value, Delivery) -> Option<T> + Send + 'static,
    ) -> Answer<R> {
        self.run_in(None, options, script, keys, arguments, read)
    }

    /// Like [`run`](Self::run), but ends the flight with the answer.
    fn run_in<T: Into<R> + 'static, R: Answered + Send + 'static>(
        &self,
        flight: Option<Flight>,
        options: SendOptions,
        script: &'static Script,
        keys: usize,
        arguments: impl Fn(&mut Vec<Value>) + Send + Sync + 'static,
        read: impl FnOnce(&Value, Delivery) -> Option<T> + Send + 'static,
    ) -> Answer<R> {
        let (connection, time) = (self.connection(options.route), self.host.time_keeper());
        let (before, order) = (self.before(options), self.order(options.route));
        let replicas = options.patience.and_then(|patience| {
            Some((self.replicas(options.route)?.clone(), patience, connection.now() + options.limit))
        });
        Box::pin(async move {
            let _flight = flight;
            let mut arguments = |all: &mut Vec<Value>| {
                arguments(all);
                Some(keys)
            };
            let running = pin!(connection.run(script, &mut arguments, options.limit, before));
            let running = pin!(in_order(order, running));
            let (value, delivery) = time.keep(running).await?;
            let answer = read(&value, delivery).map(Into::into).ok_or_else(reply::unreadable);
            match replicas {
                None => answer,
                // Boxed: most programs ask no replicas.
                Some((replicas, patience, until)) => {
                    let patience = patience.in_rest(until.since(connection.now()));
                    Box::pin(replicas.confirmed(delivery.link, patience, answer?)).await
                }
            }
        })
    }
}

/// The keys of every script that may pass a lock on.
pub(super) fn queue_keys(key: &Key) -> [Argument<'_>; 5] {
    let companions = [key.fence_parts(), key.queue_parts(), key.wait_parts(), key.holders_parts()];
    let [fence, queue, wait, holders] = companions.map(Argument::Parts);
    [Argument::Whole(key.lock()), fence, queue, wait, holders]
}

/// A lock's value, as scripts of many keys take it for each.
pub(super) fn value(claim: &Claim) -> Value {
    let [value] = packed([Argument::Value(claim)]);
    value
}

pub(super) fn number(fence: Fence) -> Value {
    fence.to_string().into()
}

pub(super) fn whole_seconds(span: Duration) -> Value {
    i64::try_from(seconds(span)).unwrap_or(i64::MAX).into()
}

pub(super) fn millis(span: Duration) -> Value {
    i64::try_from(whole_millis(span)).unwrap_or(i64::MAX).into()
}
