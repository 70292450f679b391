//! Sends a request through the cluster: to the server that has its key, or on to another. [`Trip`] decides.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    failure::{Failure, Redirection},
    key::Key,
    message::{Reply, Request},
    place::Shard,
    slot,
    time::Time,
    trip::{Step, Trip, TripOrders, TripOutcome},
};
use tokio::sync::watch::Receiver;

use super::{Cluster, pulse::Pulse};
use crate::node::{
    Answer,
    redis::{
        reply,
        server::{Connections, SendOptions},
    },
};

const REPLACED: &str = "another server was the primary of its key when the answer was heard";

/// An answer that counts, and whether it was to a second sending.
pub(super) type Counted<T> = (T, bool);

impl Cluster {
    pub(super) async fn send(self: &Arc<Self>, options: SendOptions, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Renew(claims) if claims.len() != 1 && self.sentinels.is_none() => {
                self.renew(options, &claims).await
            }
            // The request is about what this very server has.
            Request::Held { shard, .. } => {
                let (server, _) = self.server(shard)?;
                let answer = server.ask(options, request).await;
                answer.map_err(|failure| self.unsent(failure, &server, shard, None, None))
            }
            request => self.send_alone(options, self.now(), options.limit, request).await,
        }
    }

    /// Sends one request, which began at `began`; in steps if its keys are in two places.
    pub(super) async fn send_alone(
        self: &Arc<Self>,
        options: SendOptions,
        began: Time,
        patience: Duration,
        request: Request,
    ) -> Result<Reply, Failure> {
        let Some(key) = request.key() else {
            return Err(Failure::refused("there is no server that this could be asked of"));
        };
        let ask = |server: &Arc<Connections>, options| server.ask(options, request.clone());
        let (reply, was_repeated) = match self.travel(options, began, patience, key, ask).await {
            Ok(counted) => counted,
            // The slot is being moved, and not all that the request needs is on either server.
            Err(failure) if matches!(failure.redirection(), Some(Redirection::Moving { .. })) => {
                // Boxed: it is large, and rarely needed.
                return Box::pin(self.send_in_parts(rest(options, began + options.limit, self.now()), request)).await;
            }
            Err(failure) => return Err(failure),
        };
        if matches!(&reply, Reply::Renewed(all) if all.iter().any(Result::is_err)) {
            // Perhaps the primary is a replica now.
            self.doubt();
        }
        Ok(if was_repeated { reply::overtaken(reply) } else { reply })
    }

    /// Sends one request for one key, which began at `began`. It is sent again, or waits for an owner of the slot, for
    /// `patience` at most.
    pub(super) async fn travel<T>(
        self: &Arc<Self>,
        options: SendOptions,
        began: Time,
        patience: Duration,
        key: &Key,
        ask: impl Fn(&Arc<Connections>, SendOptions) -> Answer<T>,
    ) -> Result<Counted<T>, Failure> {
        let slot = slot::of(key.lock());
        let (until, patient_until) = (began + options.limit, began + patience.min(options.limit));
        // The first sending has the whole limit, by which the server's connections decide what may be batched.
        let (mut trip, mut changes, mut now) = (Trip::new(slot), None, began);
        loop {
            let step = trip.next(&self.topology.read());
            let (owner, on_to) = match step {
                Step::Send(owner) => (owner, None),
                Step::Ask(owner, place) => (owner, Some(place)),
                Step::Enough => return Err(self.wandering(slot)),
                Step::Await => {
                    self.await_owner(slot, &mut changes, patient_until.since(now)).await?;
                    now = self.now();
                    continue;
                }
            };
            let options = SendOptions { is_asking: on_to.is_some(), ..rest(options, until, now) };
            let server = on_to.as_ref().map_or_else(|| self.server(owner), |place| self.guest(place));
            let (answer, pulse) = match server {
                Ok((server, pulse)) => {
                    let under_way = pulse.begin(now);
                    self.wake();
                    let answer = ask(&server, options).await;
                    drop(under_way);
                    (answer.map_err(|failure| self.unsent(failure, &server, owner, on_to, Some(slot))), Some(pulse))
                }
                Err(failure) => (Err(failure), None),
            };
            now = self.now();
            let orders = trip.heard(owner, answer.as_ref().err(), &self.topology.read());
            if let Some(redirection) = answer.as_ref().err().and_then(Failure::redirection) {
                self.metrics.count(redirection.into());
            }
            self.carry_out(&orders, owner, (key, slot), pulse.as_deref(), now);
            match orders.outcome {
                TripOutcome::Counts => return answer.map(|answer| (answer, trip.was_repeated())),
                TripOutcome::Void => return Err(Failure::unknown(REPLACED)),
                TripOutcome::Again(_) if now >= patient_until => return Err(self.wandering(slot)),
                TripOutcome::Again(pause) if pause.is_zero() => {}
                TripOutcome::Again(pause) => {
                    self.host.sleep(pause).await;
                    now = self.now();
                }
            }
        }
    }

    /// Waits for a change of the topology. The first call only subscribes, so that the check after it misses nothing.
    async fn await_owner(
        &self,
        slot: u16,
        changes: &mut Option<Receiver<u64>>,
        patience: Duration,
    ) -> Result<(), Failure> {
        self.doubt();
        let Some(changes) = changes else {
            *changes = Some(self.changes.subscribe());
            return Ok(());
        };
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(Failure::unsent("it was closed meanwhile")),
            _ = changes.changed() => Ok(()),
            () = self.host.sleep(patience) => Err(self.no_owner(slot)),
        }
    }

    /// Does what follows from an answer of the server that has this key's slot, or of the one that it redirected to.
    fn carry_out(&self, orders: &TripOrders, owner: Shard, (key, slot): (&Key, u16), pulse: Option<&Pulse>, now: Time) {
        if let Some(pulse) = pulse.filter(|_| orders.is_heard) {
            pulse.heard(now);
        }
        if let Some(to) = &orders.moved {
            let moved = {
                let mut topology = self.topology.write();
                self.settled.lock().clear();
                topology.moved(owner, slot, to.clone())
            };
            // Other requests for keys there learn it from the server that has lost the slot.
            self.take_over(&moved);
            // Unless that server has died.
            if !moved.taken_over.is_empty() {
                self.have_missed(&moved);
            }
        }
        if orders.is_down {
            self.topology.write().is_down_now(owner);
        }
        if orders.doubt {
            self.doubt();
        }
        if let Some(pulse) = pulse.filter(|_| orders.is_counted) {
            pulse.counted(key, now);
            self.wake();
        }
    }

    fn wandering(&self, slot: u16) -> Failure {
        let of = &self.address;
        Failure::unavailable(if self.sentinels.is_some() {
            format!("the primary behind the Sentinels {of} has changed in that time: try again")
        } else {
            format!("the servers of the cluster {of} do not agree who has slot {slot}")
        })
    }

    fn no_owner(&self, slot: u16) -> Failure {
        let topology = self.topology.read();
        let text = if let Some(place) = topology.owner(slot).and_then(|owner| topology.place(owner)) {
            format!(
                "redis at {place} says that its cluster is down: see to the servers that it lacks \
                 (cluster-require-full-coverage no keeps the others up)"
            )
        } else if self.sentinels.is_some() {
            format!("the Sentinels {} have named no primary in that time", self.address)
        } else {
            format!("slot {slot} of the cluster {} has no primary", self.address)
        };
        Failure::unavailable(text)
    }
}

/// This `via`, with what is left of its time.
pub(super) fn rest(options: SendOptions, until: Time, now: Time) -> SendOptions {
    SendOptions { limit: until.since(now).max(Duration::from_millis(1)), ..options }
}
