//! Renewals of leases in many slots. The leases of one primary share a pipeline, with a script for each. A lease
//! without an answer that counts is then renewed alone, like any request: a renewal may be sent again.

use std::sync::Arc;

use futures_util::future::join_all;
use leasehold_protocol::{
    failure::Failure,
    message::{Claim, Owned, Reply, Request, only},
    place::Shard,
    slot,
    time::Time,
    trip::{Step, Trip},
};
use tokio_util::sync::CancellationToken;

use super::{Cluster, pulse::Pulse, travel::rest};
use crate::node::redis::server::SendOptions;

/// Answers wait for others for this part of a TTL: a lease without one for a sixth is at risk.
const MOMENT: u32 = 8;

impl Cluster {
    /// Renews these leases. Fails if the primary answered none.
    pub(super) async fn renew(self: &Arc<Self>, options: SendOptions, claims: &[Claim]) -> Result<Reply, Failure> {
        let Some(first) = claims.first() else { return Ok(Reply::Renewed(Vec::new())) };
        let (began, primary) = (self.now(), self.shard(&first.key));
        let trips: Vec<Option<Trip>> = claims.iter().map(|claim| self.trip_to(primary, claim)).collect();
        // The answers of this primary wait for those of another one for a moment only.
        let moment = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default() / MOMENT;
        let answered = CancellationToken::new();
        let alone = async |claim| {
            let enough = async {
                answered.cancelled().await;
                self.host.sleep(moment).await;
            };
            tokio::select! {
                biased;
                renewed = self.renew_alone(options, began, claim) => renewed,
                () = enough => Err(Failure::unknown("no answer yet, and other leases have theirs")),
            }
        };
        // Leases of other primaries do not wait for this one.
        let elsewhere = claims.iter().zip(&trips).map(async |(claim, trip)| match trip {
            Some(_) => None,
            None => Some(alone(claim).await),
        });
        let together = async {
            let together = self.renew_together(options, began, primary, claims, &trips).await;
            if together.iter().any(Option::is_some) {
                answered.cancel();
            }
            together
        };
        let (together, elsewhere) = tokio::join!(together, join_all(elsewhere));
        let renewed = together.into_iter().zip(elsewhere).zip(claims);
        let renewed = renewed.map(async |((answer, elsewhere), claim)| match elsewhere.or(answer) {
            Some(renewed) => renewed,
            None => alone(claim).await,
        });
        let renewed: Vec<Result<Owned, Failure>> = join_all(renewed).await;
        match renewed.first() {
            Some(Err(silence)) if renewed.iter().all(|one| one.as_ref().is_err_and(Failure::is_silence)) => {
                Err(silence.clone())
            }
            _ => Ok(renewed.into()),
        }
    }

    async fn renew_alone(self: &Arc<Self>, options: SendOptions, began: Time, claim: &Claim) -> Result<Owned, Failure> {
        let patience = self.pattern.limits.command;
        only(self.send_alone(options, began, patience, Request::Renew([claim.clone()].into())).await?.try_into()?)
    }

    /// The primary's answers to the leases with a trip to it; `None` for each that has to be renewed alone then.
    async fn renew_together(
        self: &Arc<Self>,
        options: SendOptions,
        began: Time,
        primary: Shard,
        claims: &[Claim],
        trips: &[Option<Trip>],
    ) -> Vec<Option<Result<Owned, Failure>>> {
        let each = |answer: Option<Result<Owned, Failure>>| claims.iter().map(|_| answer.clone()).collect();
        // Created before the check, so that it catches every later change.
        let mut changes = self.changes.subscribe();
        let Ok((server, pulse)) = self.server(primary) else { return each(None) };
        let _under_way = pulse.begin(began);
        self.wake();
        // They wait for a link together: alone, each would cost some kilobytes, in each of its rounds.
        let connection = server.connection(options.route);
        let linked = tokio::select! {
            biased;
            _ = changes.changed() => return each(None),
            linked = connection.linked(options.limit) => linked,
        };
        if let Err(failure) = linked {
            // Its connections end before the change is announced.
            let is_replaced = claims.first().is_some_and(|first| self.shard(&first.key) != primary);
            return each((!is_replaced).then_some(Err(failure)));
        }
        let together = claims.iter().zip(trips).filter(|(_, trip)| trip.is_some()).map(|(claim, _)| claim);
        let together: Vec<&Claim> = together.collect();
        let answers = server.renew_each(rest(options, began + options.limit, self.now()), &together).await;
        match answers {
            Ok(answers) => self.counted(primary, &pulse, claims.iter().zip(trips.iter().cloned()), answers),
            Err(failure) if failure.is_silence() && !failure.is_unsent() => {
                self.doubt();
                each(Some(Err(failure)))
            }
            Err(_) => each(None),
        }
    }

    /// The trip of a lease's renewal, if it goes to this primary.
    fn trip_to(&self, primary: Shard, claim: &Claim) -> Option<Trip> {
        let mut trip = Trip::new(slot::of(claim.key.lock()));
        (trip.next(&self.topology.read()) == Step::Send(primary)).then_some(trip)
    }

    /// The answers that count: one for each trip, in their order.
    fn counted<'a>(
        &self,
        primary: Shard,
        pulse: &Pulse,
        trips: impl Iterator<Item = (&'a Claim, Option<Trip>)>,
        answers: Vec<Result<Owned, Failure>>,
    ) -> Vec<Option<Result<Owned, Failure>>> {
        let (now, topology) = (self.now(), self.topology.read());
        let (mut answers, mut counts) = (answers.into_iter(), None);
        let counted = trips.map(|(claim, trip)| {
            let (mut trip, answer) = (trip?, answers.next()?);
            // The next script finds out the cause of an error that this one met.
            let owned = answer.ok().filter(|_| trip.heard(primary, None, &topology).is_counted)?;
            counts = Some(&claim.key);
            Some(Ok(owned))
        });
        let counted: Vec<Option<Result<Owned, Failure>>> = counted.collect();
        drop(topology);
        pulse.heard(now);
        if let Some(key) = counts {
            pulse.counted(key, now);
            self.wake();
        }
        if counted.iter().flatten().any(|one| matches!(one, Ok(Err(_)))) {
            // Perhaps the primary is a replica now.
            self.doubt();
        }
        counted
    }
}
