//! Sends renewals and repairs to every node, and feeds the answers to the cores.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use leasehold_protocol::{
    acquisition::{Ask, Said, Sent, Undo},
    failure::Failure,
    fence::Fence,
    forced::ForcedRelease,
    message::{Acquired, Claim, Denial, Owned, Repaired, Request, Route, Shard},
    renewal::RenewalAnswer,
    tally::Nodes,
    time::Time,
};

use super::{Watchdog, table::HoldBatch};
use crate::{
    foreign::{self, Event},
    held::Hold,
    node::Answer,
    quorum::{FanOut, Member},
};

/// The most shares that one script renews; each takes twice what an exclusive lock takes.
const SHARES: usize = 250;

/// The number of parts that a refused batch is split into. Two would find one key of 500 with 18 requests, and 250 with
/// up to 998; with eight it takes 24, and up to 572.
const PARTS: usize = 8;

/// The work that a node's answer leaves to the driver of the request.
#[must_use = "it is there to be carried out"]
pub(crate) struct FollowUp {
    /// The fence to raise the floor to, and the nodes to raise it on.
    pub(crate) raise: Option<(Fence, Nodes)>,
    /// The undo of a vote that is not used.
    pub(crate) undo: Option<Undo>,
}

impl Watchdog {
    /// Sends one batch to every node, and feeds the answers to the cores.
    pub(super) fn renew(self: &Arc<Self>, sent: Time, batch: &HoldBatch) {
        let route = self.route();
        for (at, member) in self.quorum.members() {
            for (shard, part) in parts(at, member, batch) {
                self.send((at, shard), member, route, sent, part);
            }
        }
    }

    fn send(self: &Arc<Self>, to: (usize, Shard), member: &Arc<Member>, route: Route, sent: Time, batch: HoldBatch) {
        let renewing = self.clone().renew_on(to, member.clone(), route, sent, batch, None).map(drop);
        #[cfg(feature = "testing")]
        let renewing = self.settling.track(renewing);
        self.host.spawn_until_stopped(renewing);
    }

    /// Renews one batch on one shard. The answers are awaited for `limit`, or without one until the last deadline in
    /// the batch (rule 7). The error says why one of the leases has no answer.
    async fn renew_on(
        self: Arc<Self>,
        (at, shard): (usize, Shard),
        member: Arc<Member>,
        route: Route,
        sent: Time,
        batch: HoldBatch,
        limit: Option<Duration>,
    ) -> Result<(), Failure> {
        let shortest = batch.iter().map(|hold| hold.claim.ttl).min().unwrap_or_default();
        if limit.is_none() {
            self.awaken(&member, shard, shortest).await;
        }
        let now = self.now();
        let left = batch.iter().map(|hold| hold.remaining(now)).max().unwrap_or_default();
        // Leases that were let go since they fell due must not be renewed (rule 8), so this is the last check before
        // sending. Besides, a wait of zero means "for ever".
        let batch: Vec<_> = batch.iter().filter(|hold| !hold.remaining(now).is_zero()).collect();
        if batch.is_empty() {
            return Err(Failure::unavailable("the lease has ended"));
        }
        let claims = batch.iter().map(|hold| self.renewed_claim(hold, sent, now)).collect();
        let answers = self.renewed((&member, shard), route, claims, shortest, limit.unwrap_or(left)).await;
        let is_refused = answers.as_ref().is_err_and(Failure::is_refusal);
        if let [alone] = batch[..] {
            alone.noted.set_refused_by(at, is_refused);
        } else if is_refused {
            // One refused key, for instance because of an ACL, has its whole batch refused.
            for part in batch.chunks(batch.len().div_ceil(PARTS)) {
                let part = part.iter().map(|hold| (*hold).clone()).collect();
                // It stays what it was, a renewal or a check.
                self.send((at, shard), &member, route, sent, Arc::new(part));
            }
            return Ok(());
        }
        let mut outcome = Ok(());
        for (place, hold) in batch.iter().enumerate() {
            // Every round to a silent node fails at the deadline, when the leases in it end.
            if hold.is_over() {
                continue;
            }
            let said = match &answers {
                Ok(answers) => answers.get(place).cloned().unwrap_or_else(|| Err(Failure::unknown("it is missing"))),
                Err(failure) => Err(failure.clone()),
            };
            if let Err(failure) = &said {
                tell_failed(hold, (&member, shard), failure);
                outcome = Err(failure.clone());
            }
            let _renewed = self.on_reply(hold, Sent { node: at, ask: Ask::Renew, at: sent }, said.map(Said::Owned));
        }
        outcome
    }

    /// The claim that a renewal sends. The nodes of a quorum may have issued different fences for one lease; a single
    /// node has issued the lease's.
    fn renewed_claim(&self, hold: &Hold, sent: Time, now: Time) -> Claim {
        Claim { fence: hold.claim.fence.filter(|_| self.quorum.is_one()), ..hold.renewed_claim(sent, now) }
    }

    /// Gives a silent node a moment before its renewal counts as unclear. A silent node is not asked, but may be about
    /// to answer again: one dead connection is enough to make it silent. The moment is a quarter of the time in which a
    /// node is found silent, so the holder learns of a lost majority while there is time to act.
    async fn awaken(&self, member: &Member, shard: Shard, shortest_ttl: Duration) {
        let moment = self.quorum.limit(self.command_timeout, shortest_ttl) / 4;
        tokio::select! {
            biased;
            () = member.speaks(shard) => {}
            () = self.host.sleep(moment) => {}
        }
    }

    /// Sends renewals, whose answers are awaited long after the node must count as silent.
    fn renewed(
        &self,
        (member, shard): (&Arc<Member>, Shard),
        route: Route,
        claims: Arc<[Claim]>,
        shortest_ttl: Duration,
        limit: Duration,
    ) -> Answer<Vec<Result<Owned, Failure>>> {
        let mut answer = member.ask(route, Request::Renew(claims), limit);
        if self.quorum.is_one() {
            return Box::pin(answer);
        }
        let silence = self.host.sleep(self.quorum.limit(self.command_timeout, shortest_ttl));
        let member = member.clone();
        Box::pin(async move {
            tokio::select! {
                biased;
                answers = &mut answer => return answers,
                () = silence => member.silent(shard),
            }
            answer.await
        })
    }

    /// Renews one lease at once; `Ok` if a majority confirmed it within the limit. Later answers count too.
    pub(crate) async fn renew_now(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        route: Route,
        limit: Duration,
    ) -> Result<(), Failure> {
        let (sent, batch) = (self.now(), Arc::new(vec![hold.clone()]));
        let renew = |(at, member): (usize, &Arc<Member>)| {
            let to = (at, member.shard_of(&hold.claim.key));
            (at, Box::pin(self.clone().renew_on(to, member.clone(), route, sent, batch.clone(), Some(limit))))
        };
        let mut renewing: FanOut<_> = self.quorum.members().map(renew).collect();
        let mut last = Failure::unknown("no node has answered");
        while !renewing.is_empty() {
            if let (_, Err(failure)) = renewing.next().await {
                last = failure;
            }
            if hold.is_confirmed(sent) || hold.is_over() {
                break;
            }
        }
        for (_, later) in renewing.take() {
            self.host.spawn(later.map(drop));
        }
        if hold.is_confirmed(sent) { Ok(()) } else { Err(last) }
    }

    /// Renews a lease at once; if it is on trial, its key lives for the interval of its lock from here on. It goes the
    /// way of the keeper's renewals, so that none which was sent before follows it.
    pub(crate) async fn lengthen(self: &Arc<Self>, hold: &Arc<Hold>, limit: Duration) -> Result<(), Failure> {
        let lengthening = hold.lengthen();
        self.renew_now(hold, self.route(), limit).await?;
        lengthening.confirm();
        Ok(())
    }

    /// Feeds a node's answer to its acquisition. Returns the work that only the driver of the request can do.
    pub(crate) fn on_reply(self: &Arc<Self>, hold: &Arc<Hold>, sent: Sent, said: Result<Said, Failure>) -> FollowUp {
        let now = self.now();
        // A holder that is notified of a loss may call `close` at once, which must wait for what the answer orders.
        let _under_way = self.host.token();
        let left = hold.remaining(now);
        let answer = answer(&said);
        let mut reaction = hold.on_reply(now, sent, said);
        let is_of_vote = |undo: &mut Undo| sent.ask == Ask::Acquire && undo.nodes == Nodes::one(sent.node);
        let undo = reaction.actions.undo.take_if(is_of_vote);
        let left_over = FollowUp { raise: reaction.actions.raise.take(), undo };
        let is_extended = hold.remaining(now) > left;
        self.reschedule(hold);
        self.execute(hold, reaction);
        if is_extended {
            hold.measured.was_renewed(now.since(sent.at), left, hold.claim.ttl);
        }
        if sent.ask != Ask::Renew && matches!(answer, RenewalAnswer::Unclear | RenewalAnswer::Refused) {
            return left_over;
        }
        foreign::tell_debug_in(
            || hold.span(),
            || Event::Renewal {
                lock: hold.claim.key.name().into(),
                label: hold.claim.token.label().into(),
                node: self.quorum.member(sent.node).map(|member| address_for(member, hold)),
                answer,
                took: now.since(sent.at),
            },
        );
        left_over
    }

    /// Reports to these holds that their lock was taken from them by force on these nodes, by a request that was sent
    /// at `sent`. Each next renewal would get the same answer.
    pub(crate) fn taken(self: &Arc<Self>, from: &[Arc<Hold>], nodes: Nodes, sent: Time, by: &Arc<ForcedRelease>) {
        for hold in from {
            for node in nodes.iter() {
                let denied = Ok(Said::Owned(Err(Denial::Forced(by.clone()))));
                let _renewed = self.on_reply(hold, Sent { node, ask: Ask::Renew, at: sent }, denied);
            }
        }
    }

    /// Brings the key back on a node that has lost it, and counts that as a renewal.
    pub(super) async fn repair(self: Arc<Self>, at: usize, member: Arc<Member>, hold: Arc<Hold>) {
        let sent = self.now();
        let limit = hold.remaining(sent).min(self.command_timeout);
        // The lease was released meanwhile. Besides, a wait of zero means "for ever".
        if limit.is_zero() {
            return;
        }
        let (claim, restart_delay) = (hold.claim_at(sent), self.quorum.restart_delay());
        let repair = Request::Repair { claim, fence: hold.fence, restart_delay };
        let repaired = member.ask(Route::Keeper, repair, limit).await;
        foreign::tell_debug_in(
            || hold.span(),
            || Event::Repair {
                lock: hold.claim.key.name().into(),
                label: hold.claim.token.label().into(),
                node: address_for(&member, &hold),
                repaired: format!("{repaired:?}"),
            },
        );
        if let Ok(Repaired::Recovering(left)) = repaired {
            member.note_recovery(left);
        }
        let _repaired =
            self.on_reply(&hold, Sent { node: at, ask: Ask::Repair, at: sent }, repaired.map(Said::Repaired));
    }
}

/// Splits a batch into the requests to one node: one for each shard, and separate ones for shares, of at most
/// [`SHARES`] each. A lease that the node has refused is sent alone, so that no other is refused with it.
fn parts(at: usize, member: &Member, batch: &HoldBatch) -> Vec<(Shard, HoldBatch)> {
    let part = |(place, hold): (usize, &Arc<Hold>)| {
        let is_refused = batch.len() > 1 && hold.noted.is_refused_by(at);
        (member.shard_of(&hold.claim.key), hold.claim.mode.is_shared(), is_refused.then_some(place))
    };
    let mut all = batch.iter().enumerate().map(part);
    match all.next() {
        Some(first @ (shard, is_shared, _)) if all.all(|one| one == first) && (!is_shared || batch.len() <= SHARES) => {
            return vec![(shard, batch.clone())];
        }
        _ => {}
    }
    let mut parts = BTreeMap::<_, Vec<_>>::new();
    for one in batch.iter().enumerate() {
        parts.entry(part(one)).or_default().push(one.1.clone());
    }
    let most = |is_shared| if is_shared { SHARES } else { batch.len() };
    let split = |((shard, is_shared, _), part): ((Shard, bool, Option<usize>), Vec<_>)| {
        let chunks: Vec<_> = part.chunks(most(is_shared)).map(|some| (shard, Arc::new(some.to_vec()))).collect();
        chunks
    };
    parts.into_iter().flat_map(split).collect()
}

/// The address of the server that has the lock's key now.
fn address_for(member: &Member, hold: &Hold) -> String {
    member.address_of(member.shard_of(&hold.claim.key))
}

fn tell_failed(hold: &Hold, (member, asked): (&Member, Shard), failure: &Failure) {
    foreign::tell_debug_in(
        || hold.span(),
        || Event::RenewalFailed {
            lock: hold.claim.key.name().into(),
            node: member.address_of(asked),
            failure: failure.clone(),
        },
    );
}

/// The meaning of an answer for a lease, for the log.
fn answer(said: &Result<Said, Failure>) -> RenewalAnswer {
    match said {
        Ok(
            Said::Owned(Ok(())) | Said::Repaired(Repaired::Done) | Said::Vote { acquired: Acquired::Granted(_), .. },
        ) => RenewalAnswer::Confirmed,
        Ok(Said::Owned(Err(denial))) => RenewalAnswer::Denied(denial.clone()),
        Ok(Said::Vote { acquired: Acquired::Busy { .. }, .. } | Said::Repaired(Repaired::Taken)) => {
            RenewalAnswer::Denied(Denial::Taken)
        }
        Ok(Said::Vote { acquired: Acquired::Recovering(_) | Acquired::Gone, .. }) => {
            RenewalAnswer::Denied(Denial::Gone)
        }
        Ok(Said::Repaired(_)) => RenewalAnswer::Unclear,
        Err(failure) => RenewalAnswer::of(failure),
    }
}
