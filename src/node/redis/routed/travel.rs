//! Sends a request through the cluster: to the server that has its key, and on to another if it must be. [`Trip`] decides.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    failure::{Failure, Redirection},
    key::Key,
    message::{Reply, Request},
    slot,
    time::Time,
    trip::{Heard, Step, Trip},
};

use super::Cluster;
use crate::node::{
    Answer,
    redis::{
        reply,
        server::{Connections, Via},
    },
};

/// An answer that counts, and whether it was to a second sending.
pub(super) type Counted<T> = (T, bool);

impl Cluster {
    pub(super) async fn send(self: &Arc<Self>, via: Via, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Renew(claims) if claims.len() != 1 && self.sentinels.is_none() => self.renew(via, &claims).await,
            // It is about what this very server has.
            Request::Held { shard, .. } => {
                let (server, _) = self.server(shard)?;
                let answer = server.ask(via, request).await;
                answer.map_err(|failure| self.unsent_to(shard, failure, &server))
            }
            request => self.send_alone(via, self.now(), via.limit, request).await,
        }
    }

    /// One request, which began then; in steps where its keys are in two places.
    pub(super) async fn send_alone(
        self: &Arc<Self>,
        via: Via,
        began: Time,
        patience: Duration,
        request: Request,
    ) -> Result<Reply, Failure> {
        match self.send_whole(via, began, patience, &request).await {
            Err(failure) if is_in_two_places(&failure) => {
                // It is large, and seldom.
                Box::pin(self.send_in_parts(rest(via, began + via.limit, self.now()), request)).await
            }
            answer => answer,
        }
    }

    async fn send_whole(
        self: &Arc<Self>,
        via: Via,
        began: Time,
        patience: Duration,
        request: &Request,
    ) -> Result<Reply, Failure> {
        let Some(key) = request.key() else {
            return Err(Failure::refused("there is no server that this could be asked of"));
        };
        let ask = |server: &Arc<Connections>, via| server.ask(via, request.clone());
        let (reply, was_repeated) = self.travel(via, began, patience, key, ask).await?;
        if matches!(&reply, Reply::Renewed(all) if all.iter().any(Result::is_err)) {
            // Perhaps it is a replica now.
            self.doubt();
        }
        Ok(if was_repeated { reply::overtaken(reply) } else { reply })
    }

    /// One request for one key, which began then. It is sent again, or waits for an owner of the slot, for `patience` at
    /// most.
    pub(super) async fn travel<T>(
        self: &Arc<Self>,
        via: Via,
        began: Time,
        patience: Duration,
        key: &Key,
        ask: impl Fn(&Arc<Connections>, Via) -> Answer<T>,
    ) -> Result<Counted<T>, Failure> {
        let slot = slot::of(key.lock());
        let (until, patient_until) = (began + via.limit, began + patience.min(via.limit));
        // Its first sending has all of the limit: by that the server sees who may travel with others.
        let (mut trip, mut changes, mut now) = (Trip::new(slot), None, began);
        loop {
            let step = trip.next(&self.topology.read());
            let (owner, on_to) = match step {
                Step::Send(owner) => (owner, None),
                Step::Ask(owner, place) => (owner, Some(place)),
                Step::Enough => return Err(self.wandering(slot)),
                Step::Await => {
                    self.doubt();
                    let Some(changes) = &mut changes else {
                        // Made before the next look, it hears of what comes after that.
                        changes = Some(self.changes.subscribe());
                        continue;
                    };
                    tokio::select! {
                        biased;
                        () = self.closed.cancelled() => return Err(Failure::unsent("it was closed meanwhile")),
                        _ = changes.changed() => {}
                        () = self.host.sleep(patient_until.since(now)) => return Err(self.no_owner(slot)),
                    }
                    now = self.now();
                    continue;
                }
            };
            let via = Via { is_asking: on_to.is_some(), ..rest(via, until, now) };
            let server = match &on_to {
                None => self.server(owner),
                Some(place) => self.guest(place),
            };
            let (answer, pulse) = match server {
                Ok((server, pulse)) => {
                    let under_way = pulse.begin(now);
                    self.wake();
                    let answer = ask(&server, via).await;
                    drop(under_way);
                    let answer = answer.map_err(|failure| {
                        let place = on_to.clone().or_else(|| self.topology.read().place(owner).cloned());
                        self.unsent(failure, &server, place.as_ref(), Some(slot))
                    });
                    (answer, Some(pulse))
                }
                Err(failure) => (Err(failure), None),
            };
            let failure = answer.as_ref().err();
            now = self.now();
            if let Some(pulse) = pulse.as_ref().filter(|_| !failure.is_some_and(Failure::is_silence)) {
                pulse.heard(now);
            }
            let redirection = failure.and_then(Failure::redirection);
            if let Some(redirection) = redirection {
                self.metrics.count(redirection.into());
            }
            match redirection {
                // From the owner only: what another server says of the slot is for a view to tell.
                Some(Redirection::Moved { to: target, .. }) if on_to.is_none() => {
                    let moved = self.topology.write().moved(owner, slot, target.clone());
                    // Others with a key there hear it from the server that has lost it.
                    self.take_over(&moved);
                    // Unless that has died.
                    if !moved.taken_over.is_empty() {
                        self.have_missed(&moved);
                    }
                }
                Some(Redirection::Down) if on_to.is_none() => self.topology.write().is_down_now(owner),
                _ => {}
            }
            // A refusal would be that of another server too. A slot that is being moved is no reason for a doubt.
            let is_moving = matches!(redirection, Some(Redirection::Moving { .. }));
            if failure.is_some_and(|failure| !failure.is_refusal() || redirection.is_some()) && !is_moving {
                self.doubt();
            }
            let heard = trip.heard(owner, failure, &self.topology.read());
            match heard {
                Heard::Counts => {
                    if let Some(pulse) = pulse.filter(|_| answer.is_ok() && on_to.is_none()) {
                        pulse.counted(key, now);
                        self.wake();
                    }
                    return answer.map(|answer| (answer, trip.was_repeated()));
                }
                Heard::Void => {
                    return Err(Failure::unknown(
                        "another server was the primary of its key when the answer was heard",
                    ));
                }
                Heard::Again(pause) => {
                    // By sending a request on, a server says that the slot is its own.
                    if let Some(pulse) = pulse.filter(|_| is_moving && on_to.is_none()) {
                        pulse.counted(key, now);
                        self.wake();
                    }
                    if now >= patient_until {
                        return answer.map(|answer| (answer, true)).map_err(|_| self.wandering(slot));
                    }
                    if !pause.is_zero() {
                        self.host.sleep(pause).await;
                        now = self.now();
                    }
                }
            }
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

/// The same way with what is left of the time.
pub(super) fn rest(via: Via, until: Time, now: Time) -> Via {
    Via { limit: until.since(now).max(Duration::from_millis(1)), ..via }
}

/// Whether a slot is being moved, and not all that the request needs is on either server.
fn is_in_two_places(failure: &Failure) -> bool {
    matches!(failure.redirection(), Some(Redirection::Moving { .. }))
}
