//! Waits until enough replicas have what a server has written, as [`Replication`] decides (rule 12).
//!
//! A task on the runtime of the connection sends `WAIT`. Each caller has its own time limit.

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold_protocol::{
    failure::Failure,
    message::{Acquired, Downgraded, Poll, Polled, ReleaseMode, Repaired, Reply, Request},
    replication::{LONGEST, Next, Registration, Replication, SHORTEST, slice_of},
    rounded::Rounded,
    stepwise::{Single, SingleReply},
    time::Time,
};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    foreign::{Event, tell},
    keeper::Host,
    metrics::{NodeCount, NodeMetrics, note_replicated},
    node::redis::{info, transport::Connection},
    troubles::Troubles,
};

/// How long replicas have to confirm a write, and how long one `WAIT` for it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Patience {
    /// In milliseconds, because each request has one.
    all: u32,
    slice: u32,
}

impl Patience {
    /// The patience for this request, if replicas have to confirm it. A command may take `command`.
    pub(super) fn of(request: &Request, limit: Duration, command: Duration) -> Option<Self> {
        match request {
            Request::Acquire(request) => Some(Self::of_grant(request.claim.ttl, limit, command)),
            Request::Poll(Poll { claim, .. }) | Request::Downgrade { claim, .. } => {
                Some(Self::of_grant(claim.ttl, limit, command))
            }
            Request::Renew(batch) => Some(Self::of_renewals(batch.iter().map(|claim| claim.ttl).min()?, limit)),
            Request::Release { mode: ReleaseMode::Retain(keep, _), .. } => Some(Self::within(limit, *keep)),
            _ => None,
        }
    }

    /// The patience for a step of an acquire.
    pub(super) fn of_step(step: &Single, limit: Duration, command: Duration) -> Option<Self> {
        match step {
            Single::Issue(claim) | Single::Confirm(claim) => Some(Self::of_grant(claim.ttl, limit, command)),
            Single::ExtendPhase(claim) | Single::ExtendShare(claim) => Some(Self::of_renewals(claim.ttl, limit)),
            // The steps after a take cover it, and no caller waits for the other two.
            Single::Take(_) | Single::Release(_) | Single::Part(_) => None,
        }
    }

    /// The patience for a grant of a key that lives for `ttl`. The rest of the TTL has to be worth having.
    pub(super) fn of_grant(ttl: Duration, limit: Duration, command: Duration) -> Self {
        Self::within(limit.min(ttl / 4).min(command / 2), ttl)
    }

    /// The patience for renewals whose shortest TTL is `ttl`. The next renewal is sent before the lease ends, and a
    /// lease that has its own answer, from another server, does not wait any longer for its neighbours' replicas.
    pub(super) fn of_renewals(ttl: Duration, limit: Duration) -> Self {
        Self::within(limit.min(ttl / 4), ttl)
    }

    fn within(all: Duration, ttl: Duration) -> Self {
        Self::new(all, slice_of(ttl))
    }

    fn new(all: Duration, slice: Duration) -> Self {
        Self { all: millis(all).max(1), slice: millis(slice) }
    }

    /// This patience, within the rest of a call's time. It is never zero, because replicas may have the write already.
    pub(super) fn in_rest(self, rest: Duration) -> Self {
        Self { all: self.all.min(millis(rest).max(millis(SHORTEST))), ..self }
    }
}

fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

/// An answer that counts only once replicas have the write that it reports.
pub(super) trait Answered: Sized {
    /// Whether the answer reports that something was granted, extended, kept or written.
    fn is_written(&self) -> bool;

    /// The answer to give instead, if replicas do not have the write that this one reports.
    fn without(self, failure: Failure) -> Result<Self, Failure>;
}

impl Answered for Reply {
    fn is_written(&self) -> bool {
        match self {
            Self::Vote(vote) => matches!(vote.acquired, Acquired::Granted(_)),
            Self::Owned(owned) => owned.is_ok(),
            Self::Repaired(repaired) => *repaired == Repaired::Done,
            Self::Renewed(all) => all.iter().any(|one| matches!(one, Ok(Ok(())))),
            Self::Polled(polled) => matches!(polled, Polled::Granted(_)),
            Self::Downgraded(downgraded) => matches!(downgraded, Downgraded::Shared(_)),
            _ => false,
        }
    }

    fn without(self, failure: Failure) -> Result<Self, Failure> {
        match self {
            Self::Renewed(all) => {
                let without = |one| if matches!(one, Ok(Ok(()))) { Err(failure.clone()) } else { one };
                Ok(Self::Renewed(all.into_iter().map(without).collect()))
            }
            _ => Err(failure),
        }
    }
}

impl Answered for SingleReply {
    fn is_written(&self) -> bool {
        matches!(self, Self::Taken | Self::Issued(_) | Self::Owned(Ok(())))
    }

    fn without(self, failure: Failure) -> Result<Self, Failure> {
        Err(failure)
    }
}

type Verdict = Result<(), Failure>;

/// The writes on one connection that wait for replicas.
pub(super) struct Replicas {
    connection: Arc<Connection>,
    /// The connection's runtime.
    runtime: Handle,
    host: Host,
    state: Mutex<Replication<oneshot::Sender<Verdict>>>,
    shortage: Arc<Shortage>,
}

impl Replicas {
    /// Waits for `wanted` replicas.
    pub(super) fn new(
        wanted: u8,
        connection: Arc<Connection>,
        runtime: Handle,
        host: Host,
        shortage: Arc<Shortage>,
    ) -> Arc<Self> {
        Arc::new(Self { connection, runtime, host, state: Mutex::new(Replication::new(wanted)), shortage })
    }

    /// The answer, which arrived on this link, once enough replicas have the write that it reports.
    pub(super) async fn confirmed<T: Answered>(
        self: &Arc<Self>,
        link: u64,
        patience: Patience,
        answer: T,
    ) -> Result<T, Failure> {
        if !answer.is_written() {
            return Ok(answer);
        }
        match self.confirm(link, patience).await {
            Ok(()) => Ok(answer),
            Err(failure) => answer.without(failure),
        }
    }

    /// Whether replicas have the write of a request that was answered on this link.
    pub(super) async fn confirm(self: &Arc<Self>, link: u64, Patience { all, slice }: Patience) -> Verdict {
        let [all, slice] = [all, slice].map(|millis| Duration::from_millis(millis.into()));
        let (began, (who, mut verdict)) = (self.connection.now(), oneshot::channel());
        let Registration { number, begins, unknown } = self.state.lock().enter(link, slice, who);
        let waiting = Waiting { replicas: self, number };
        for who in unknown {
            let _told = who.send(Err(Failure::unknown("the connection ended before replicas had confirmed it")));
        }
        if begins {
            self.drive();
        }
        // By the keeper's timer: the caller may be outside of any runtime.
        tokio::select! {
            biased;
            verdict = &mut verdict => return self.heard(began, verdict),
            () = self.host.sleep(all) => {}
        }
        match waiting.give_up() {
            Some(seen) => Err(self.short(seen, all)),
            // Its verdict is being sent at this moment.
            None => self.heard(began, verdict.await),
        }
    }

    fn heard(&self, began: Time, verdict: Result<Verdict, oneshot::error::RecvError>) -> Verdict {
        let verdict = verdict.unwrap_or_else(|_| Err(Failure::unknown("nobody asks for replicas any more")));
        if verdict.is_ok() {
            note_replicated(self.connection.now().since(began));
        }
        verdict
    }

    fn short(&self, seen: u32, all: Duration) -> Failure {
        let (server, wanted) = (&self.connection.server, self.state.lock().wanted());
        self.shortage.is_met(self.connection.now(), seen, wanted);
        Failure::unknown(format!(
            "redis at {server} has written it, but {seen} of {wanted} replicas confirmed that within {} (min_replicas)",
            Rounded(all)
        ))
    }

    /// The number of replicas that have acknowledged more than at the last call, as their primary reports.
    async fn acknowledging(&self, before: &mut HashMap<String, u64>) -> usize {
        let asking = self.connection.command("INFO", vec!["replication".into()], LONGEST);
        let told = asking.await.ok().and_then(|info| info.as_string()).unwrap_or_default();
        let now = info::following(&told).into_iter().filter_map(|one| Some((one.address, one.acknowledged?)));
        let now: HashMap<String, u64> = now.collect();
        let moving = now.iter().filter(|(address, bytes)| before.get(*address).is_some_and(|before| before < *bytes));
        let moving = moving.count();
        *before = now;
        moving
    }

    #[allow(clippy::disallowed_methods, reason = "it ends with its runtime, and with it all who wait")]
    fn drive(self: &Arc<Self>) {
        let driver = Driver { replicas: self.clone(), has_ended: false };
        self.runtime.spawn(driver.run());
    }
}

/// Reports that a server has too few replicas, and that it has enough again: once for all its writes.
#[derive(Debug)]
pub(super) struct Shortage {
    node: String,
    troubles: Troubles,
    metrics: NodeMetrics,
}

impl Shortage {
    /// For the server at this address.
    pub(super) fn at(node: &str) -> Arc<Self> {
        let metrics = NodeMetrics::of_replicated(node);
        Arc::new(Self { node: node.into(), troubles: Troubles::default(), metrics })
    }

    fn is_met(&self, now: Time, seen: u32, wanted: u8) {
        self.metrics.count(NodeCount::Unreplicated);
        if let Some(count) = self.troubles.meet_causes(now, ["replicas".to_owned()]) {
            tell(Event::TooFewReplicas { node: self.node.clone(), seen, wanted, count });
        }
    }

    fn is_over(&self) {
        if let Some(count) = self.troubles.end() {
            tell(Event::ReplicasAgain { node: self.node.clone(), count });
        }
    }
}

/// A write that waits for replicas, until it has its verdict or is dropped.
struct Waiting<'a> {
    replicas: &'a Replicas,
    number: u64,
}

impl Waiting<'_> {
    fn give_up(&self) -> Option<u32> {
        self.replicas.state.lock().give_up(self.number)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let _told_or_not = self.give_up();
    }
}

/// Sends one `WAIT` after the other, while any write waits for one.
struct Driver {
    replicas: Arc<Replicas>,
    has_ended: bool,
}

impl Driver {
    async fn run(mut self) {
        let Replicas { connection, state, shortage, .. } = &*self.replicas;
        let mut acknowledged = HashMap::new();
        loop {
            let next = state.lock().next(connection.now());
            match next {
                Next::Over => break,
                Next::Rest(pause) => tokio::time::sleep(pause).await,
                Next::Wait { link, slice } => {
                    let wanted = state.lock().wanted();
                    let outcome = connection.replicas(link, wanted, slice).await;
                    let are_enough = outcome.as_ref().is_ok_and(|replicas| *replicas >= u32::from(wanted));
                    let told = state.lock().counted(connection.now(), outcome);
                    if are_enough {
                        shortage.is_over();
                    }
                    for (who, verdict) in told {
                        let _told = who.send(verdict);
                    }
                    if !are_enough && state.lock().is_at_its_longest() {
                        let moving = self.replicas.acknowledging(&mut acknowledged).await;
                        state.lock().are_slow(moving >= usize::from(wanted));
                    }
                }
            }
        }
        self.has_ended = true;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.has_ended {
            // Dropping the senders notifies the waiting callers.
            let told = self.replicas.state.lock().stop();
            drop(told);
        }
    }
}
