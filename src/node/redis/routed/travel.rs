//! Requests on their way to the primary that has their key, as [`Trip`] decides.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use leasehold_protocol::{
    failure::{Failure, Redirection},
    message::{Claim, Owned, Reply, Request, Route, only},
    slot,
    trip::{Heard, Step, Trip},
};

use super::Cluster;
use crate::node::redis::reply;

/// On which route a request goes, and for how long its answer is awaited.
type Via = (Route, Duration);

impl Cluster {
    pub(super) async fn send(self: &Arc<Self>, via: Via, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Renew(claims) if claims.len() != 1 => self.renew(via, &claims).await,
            // It is about what this very server has.
            Request::Held { shard, .. } => self.server(shard)?.0.ask(via, request).await,
            request => self.travel(via, via.1, request).await,
        }
    }

    /// Each lease by a script of its own, side by side: their keys are in many slots. If none has an answer, the primary
    /// has given none.
    async fn renew(self: &Arc<Self>, via: Via, claims: &[Claim]) -> Result<Reply, Failure> {
        let renew = |claim: &Claim| {
            let (cluster, claim) = (self.clone(), claim.clone());
            async move {
                // The others' answers do not wait for one that has to go elsewhere.
                let patience = cluster.pattern.limits.command;
                only(cluster.travel(via, patience, Request::Renew([claim].into())).await?.try_into()?)
            }
        };
        let renewed: Vec<Result<Owned, Failure>> = join_all(claims.iter().map(renew)).await;
        match renewed.first() {
            Some(Err(silence)) if renewed.iter().all(|one| one.as_ref().is_err_and(Failure::is_silence)) => {
                Err(silence.clone())
            }
            _ => Ok(renewed.into()),
        }
    }

    /// One request for one key. It is sent again, or waits for an owner of the slot, for `patience` at most.
    async fn travel(
        self: &Arc<Self>,
        (route, limit): Via,
        patience: Duration,
        request: Request,
    ) -> Result<Reply, Failure> {
        let Some(key) = request.key().cloned() else {
            return Err(Failure::refused("a cluster has no server that this could be asked of"));
        };
        let slot = slot::of(key.lock());
        let (until, patient_until) = (self.now() + limit, self.now() + patience.min(limit));
        let mut trip = Trip::new(slot);
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let step = trip.next(&self.topology.read());
            let to = match step {
                Step::Send(to) => to,
                Step::Enough => return Err(self.wandering(slot)),
                Step::Await => {
                    self.doubt();
                    tokio::select! {
                        biased;
                        () = self.closed.cancelled() => return Err(Failure::unsent("it was closed meanwhile")),
                        _ = changes.changed() => continue,
                        () = self.host.sleep(patient_until.since(self.now())) => {
                            let of = &self.address;
                            return Err(Failure::unavailable(format!("slot {slot} of the cluster {of} has no primary")));
                        }
                    }
                }
            };
            let left = until.since(self.now()).max(Duration::from_millis(1));
            let (answer, pulse) = match self.server(to) {
                Ok((server, pulse)) => {
                    let under_way = pulse.begin(self.now());
                    self.wake();
                    let answer = server.ask((route, left), request.clone()).await;
                    drop(under_way);
                    (answer, Some(pulse))
                }
                Err(failure) => (Err(failure), None),
            };
            let failure = answer.as_ref().err();
            if let Some(pulse) = pulse.as_ref().filter(|_| !failure.is_some_and(Failure::is_silence)) {
                pulse.heard(self.now());
            }
            if let Some(Redirection::Moved { to: target, .. }) = failure.and_then(Failure::redirection) {
                let moved = self.topology.write().moved(to, slot, target.clone());
                // Others with a key there hear it from the server that has lost it.
                self.take_over(&moved);
            }
            // A refusal would be that of another server too.
            if failure.is_some_and(|failure| !failure.is_refusal() || failure.redirection().is_some()) {
                self.doubt();
            }
            if let Some(Redirection::Moving { .. }) = failure.and_then(Failure::redirection) {
                return Err(Failure::unavailable(format!(
                    "slot {slot} is being moved to another server of the cluster"
                )));
            }
            let heard = trip.heard(to, failure, &self.topology.read());
            match heard {
                Heard::Counts => {
                    if let Some(pulse) = pulse.filter(|_| answer.is_ok()) {
                        pulse.counted(&key, self.now());
                        self.wake();
                    }
                    return if trip.was_repeated() { answer.map(reply::overtaken) } else { answer };
                }
                Heard::Void => {
                    return Err(Failure::unknown(
                        "another server of the cluster had its slot when the answer was heard",
                    ));
                }
                Heard::Again(_) if self.now() >= patient_until => return answer.map_err(|_| self.wandering(slot)),
                Heard::Again(pause) if pause.is_zero() => {}
                Heard::Again(pause) => self.host.sleep(pause).await,
            }
        }
    }

    fn wandering(&self, slot: u16) -> Failure {
        let of = &self.address;
        Failure::unavailable(format!("the servers of the cluster {of} do not agree who has slot {slot}"))
    }
}
