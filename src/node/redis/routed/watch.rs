//! Keeps the topology up to date: asks other servers whether the primaries are still what they were, and asks for views
//! whenever there is a doubt.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use leasehold_protocol::{
    failure::Redirection,
    key::Key,
    place::{Place, Shard},
    slot,
    time::Time,
};

use super::{Cluster, leave_idle, pulse::Pulse, refresh::Source, sentinel::Sentinels};
use crate::node::redis::{transport::Endpoint, wire::is_answer};

/// How often to check whether a primary answers its requests.
const TICK: Duration = Duration::from_millis(50);

/// The pause between two rounds of questions for views, while there is a doubt; and how long a doubt lasts.
const PAUSE: Duration = Duration::from_millis(100);
const DOUBT: Duration = Duration::from_millis(1_500);

/// The pause between two rounds once a doubt has lasted for `LONG_DOUBT`: it may last for as long as an outage.
const LONG_PAUSE: Duration = Duration::from_secs(1);
const LONG_DOUBT: Duration = Duration::from_secs(60);

/// The most Sentinels that are asked at a time which server is the primary.
const ASKED: usize = 5;

/// The state from check to check.
#[derive(Default)]
struct Watch {
    doubted_since: Time,
    doubted_until: Time,
    asked: Time,
    /// When the servers that reported their cluster as down were last asked.
    asked_down: Time,
    round: usize,
}

/// Watches the topology until the cluster is closed. While nothing is requested, held or awaited, it asks nothing.
pub(super) async fn run(cluster: Weak<Cluster>) {
    let Some((closed, woken)) = cluster.upgrade().map(|cluster| (cluster.closed.clone(), cluster.woken.clone())) else {
        return;
    };
    let mut watch = Watch::default();
    loop {
        let Some(cluster) = cluster.upgrade() else { return };
        // Set before the check, so that whatever begins after it wakes us.
        cluster.is_asleep.store(true, Ordering::SeqCst);
        let now = cluster.now();
        let next = cluster.tick(&mut watch, now);
        cluster.is_asleep.store(next > now + TICK, Ordering::SeqCst);
        let host = cluster.host.clone();
        drop(cluster);
        let pause = async {
            tokio::select! {
                biased;
                () = woken.notified() => {}
                () = host.sleep(next.since(now)), if next != Time::NEVER => {}
            }
        };
        if closed.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}

impl Cluster {
    /// Asks the questions that are due. Returns when to check again.
    fn tick(self: &Arc<Self>, watch: &mut Watch, now: Time) -> Time {
        let is_needed = self.is_needed();
        let pulses: Vec<(Shard, Arc<Pulse>)> =
            self.servers.lock().iter().map(|(shard, ((_, pulse), _))| (*shard, pulse.clone())).collect();
        if self.is_doubted.swap(false, Ordering::AcqRel) || pulses.iter().any(|(_, pulse)| pulse.is_silent(now)) {
            if watch.doubted_until <= now {
                watch.doubted_since = now;
            }
            watch.doubted_until = now + DOUBT;
        }
        let mut next = Time::NEVER;
        if pulses.iter().any(|(_, pulse)| pulse.is_under_way()) {
            next = now + TICK;
        }
        if watch.doubted_until > now {
            let pause = if now.since(watch.doubted_since) < LONG_DOUBT { PAUSE } else { LONG_PAUSE };
            if now.since(watch.asked) >= pause {
                (watch.asked, watch.round) = (now, watch.round.wrapping_add(1));
                self.host.spawn_until_stopped(self.clone().look(watch.round));
            }
            next = next.min(watch.asked + pause);
        }
        let down = self.topology.read().down();
        if !down.is_empty() {
            if now.since(watch.asked_down) >= PAUSE {
                watch.asked_down = now;
                self.host.spawn_until_stopped(self.clone().ask_down(down));
            }
            next = next.min(watch.asked_down + PAUSE);
        }
        for (shard, pulse) in pulses {
            if pulse.check_due(is_needed) <= now {
                if let Some(key) = pulse.check(now) {
                    watch.round = watch.round.wrapping_add(1);
                    self.host.spawn_until_stopped(self.clone().cross_check(shard, key, watch.round));
                }
            }
            next = next.min(pulse.check_due(is_needed));
        }
        if next > now + LONG_PAUSE {
            // Nothing is under way: slots that were being moved to the guests may never arrive.
            leave_idle(&mut self.guests.lock());
        }
        next
    }

    /// Asks the servers that reported their cluster as down whether it is up again.
    async fn ask_down(self: Arc<Self>, down: Vec<Shard>) {
        let Some(_asking) = self.ask_once("those that are down".into()) else { return };
        let ask = async |shard| {
            let Ok((server, _)) = self.server(shard) else { return };
            let info = server.keeper.command("CLUSTER", vec!["INFO".into()], self.pattern.limits.command).await;
            let serves = match &info {
                Ok(info) => info.as_str().is_some_and(|info| info.contains("cluster_state:ok")),
                // Our user may not ask that: a request will show it.
                Err(error) => is_answer(error),
            };
            if serves && self.topology.write().serves_again(shard) {
                self.changes.send_modify(|changes| *changes += 1);
            }
        };
        join_all(down.into_iter().map(ask)).await;
    }

    /// Asks Sentinels in parallel whether this is still the primary. If one names another, all are asked to report.
    async fn cross_check_by_sentinels(&self, sentinels: &Sentinels, place: Option<Place>, round: usize) {
        let (all, limits) = (sentinels.from(&self.seeds, round), self.pattern.limits);
        let ask = async |sentinel: &Endpoint| {
            // A Sentinel that hangs is asked again once it has answered, or has timed out.
            let _asking = self.ask_once(format!("who it is: {}", sentinel.target))?;
            tokio::time::timeout(limits.connect + limits.command, self.primary_by(sentinel)).await.ok().flatten()
        };
        let mut asking: FuturesUnordered<_> = all.iter().take(ASKED).map(ask).collect();
        while let Some(primary) = asking.next().await {
            if primary.is_some() && primary != place {
                let sources: Vec<Source> = all.iter().map(|one| Source::Other(Box::new(one.clone()))).collect();
                return self.look_at(sources, round).await;
            }
        }
    }

    /// Asks another server which server has the key of this primary.
    async fn cross_check(self: Arc<Self>, shard: Shard, key: Key, round: usize) {
        let (place, others, replicas) = {
            let topology = self.topology.read();
            if !topology.counts(slot::of(key.lock()), shard) {
                drop(topology);
                // The next answer brings another key.
                if let Some((_, pulse)) = self.known(shard) {
                    pulse.forget();
                }
                return;
            }
            let others: Vec<Shard> = topology.servers().into_iter().filter(|other| *other != shard).collect();
            (topology.place(shard).cloned(), others, topology.replicas(shard).cloned().collect::<Vec<_>>())
        };
        if let Some(sentinels) = &self.sentinels {
            return self.cross_check_by_sentinels(sentinels, place, round).await;
        }
        let (source, asked, answer) = if let Some(other) = others.get(round % others.len().max(1)) {
            let Ok((server, _)) = self.server(*other) else { return };
            let answer = server.keeper.command("GET", vec![key.lock().into()], self.pattern.limits.command).await;
            (Source::Primary(*other), server.address.clone(), answer)
        } else if let Some(replica) = replicas.get(round % replicas.len().max(1)) {
            let endpoint = self.endpoint(replica);
            let answer = self.question(&endpoint, "GET", &[key.lock()]).await;
            (Source::Other(Box::new(endpoint)), replica.to_string(), answer)
        } else {
            return;
        };
        match answer {
            Err(error) => match Redirection::read(error.details(), &asked) {
                Some(Redirection::Moved { to, .. }) if to.is_some() && to == place => return,
                Some(_) => self.look_at(vec![source], round).await,
                // Our user may not ask that, but perhaps for the view.
                None if is_answer(&error) => return self.look_at(vec![source], round).await,
                None => {}
            },
            // That server has the key itself, so it has taken over.
            Ok(_) => self.look_at(vec![source], round).await,
        }
        // Other servers are asked too, and again in a moment.
        self.doubt();
    }
}
