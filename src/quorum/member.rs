//! One node in its quorum: asks it, reports the results to its [`NodeHealth`], and carries out what follows.
//!
//! # Invariants
//!
//! 1. Locks are taken in the order `health`, `peers`. Neither is held while anything is awaited, notified or reported.

use std::{
    fmt,
    future::pending,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, UNIX_EPOCH},
};

use leasehold_protocol::{
    acquisition::Said,
    failure::Failure,
    key::Key,
    message::{Acquired, Request, Route, ServerIdentity, Shard, VoteReply},
    node_health::{ClockOffset, HealthChange, HealthOrders, NodeHealth, ProbeRow},
    node_status::{self, NodeStatus},
    slot::Keys,
    time::Time,
    token::Token,
    troubles::causes_of_absence,
};

use super::{shard::ShardState, undo_limits::Undos};
use crate::{
    clock::{self, Clock, wall},
    error::Error,
    foreign::{self, Event},
    keeper::Host,
    metrics::{self, NodeMetrics},
    node::{Links, Node, NodeListener, ShardInfo, Sharded, Table},
    per_shard::{Of, PerShard},
    troubles::Troubles,
};

/// One node, and what its answers have shown.
pub(crate) struct Member {
    address: Box<str>,
    /// Unset before the first connection.
    node: OnceLock<Arc<dyn Node>>,
    listener: OnceLock<Weak<dyn NodeListener>>,
    table: Arc<Table>,
    is_only: bool,
    clock: Arc<dyn Clock>,
    host: Host,
    pub(super) command_timeout: Duration,
    pub(super) undos: Undos,
    /// The troubles that were reported for it.
    told: Troubles,
    /// One state for each shard. A vote belongs to the first.
    shards: PerShard<ShardState>,
    metrics: NodeMetrics,
}

impl Member {
    pub(super) fn new(
        at: usize,
        address: &str,
        is_only: bool,
        table: Arc<Table>,
        clock: Arc<dyn Clock>,
        host: Host,
        command_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            address: address.into(),
            node: OnceLock::new(),
            listener: OnceLock::new(),
            table,
            is_only,
            clock,
            host,
            command_timeout,
            undos: Undos::default(),
            told: Troubles::default(),
            shards: PerShard::new(ShardState::new(NodeHealth::new(at, is_only))),
            metrics: NodeMetrics::of(address),
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The node itself. Only what is not a request may bypass its health.
    pub(super) fn node(&self) -> Option<&Arc<dyn Node>> {
        self.node.get()
    }

    /// Its connections; `None` for a node in this process.
    pub(super) fn links(&self) -> Option<&dyn Links> {
        self.node()?.links()
    }

    pub(super) fn sharded(&self) -> Option<&dyn Sharded> {
        self.node()?.sharded()
    }

    /// The shard that has this key now.
    pub(crate) fn shard_of(&self, key: &Key) -> Shard {
        self.sharded().map_or(Shard::FIRST, |node| node.shard(key))
    }

    /// All current shards.
    pub(super) fn shards(&self) -> Vec<ShardInfo> {
        self.sharded().map_or_else(|| vec![ShardInfo::only(&self.address)], Sharded::shards)
    }

    /// The current address of a shard's server, for people.
    pub(crate) fn address_of(&self, shard: Shard) -> String {
        self.sharded().map_or_else(|| self.address().into(), |node| node.address_of(shard))
    }

    /// The numbers of all current shards.
    pub(super) fn shard_numbers(&self) -> Vec<Shard> {
        self.shards().iter().map(|info| info.shard).collect()
    }

    pub(super) fn state(&self, shard: Shard) -> Of<'_, ShardState> {
        self.shards.of(shard, || self.new_state(shard))
    }

    #[cold]
    fn new_state(&self, shard: Shard) -> ShardState {
        let there = self.shard_numbers();
        self.shards.retain(&there).iter().for_each(|gone| gone.has_gone());
        // The removed shard may have been the one that was down.
        self.metrics.note_up(self.is_half_up());
        // The node is the only one, because there is no quorum of clusters.
        let state = ShardState::new(NodeHealth::new(0, true));
        // A late answer concerns a removed shard.
        if !there.contains(&shard) {
            state.has_gone();
        }
        state
    }

    /// The gate through which tests control it, if it is in memory.
    #[cfg(feature = "testing")]
    pub(crate) fn gate(&self) -> Option<&crate::node::memory::Gate> {
        self.node()?.gate()
    }

    /// Completes once the route has no connection to this shard.
    pub(super) async fn unlinked(&self, route: Route, shard: Shard) {
        match self.links() {
            Some(links) => links.unlinked(route, shard).await,
            None => pending().await,
        }
    }

    /// Whether its answers are ready at the first poll.
    pub(crate) fn answers_at_once(&self) -> bool {
        self.node().is_some_and(|node| node.links().is_none())
    }

    /// Installs the node once it is connected for the first time.
    pub(super) fn install(&self, node: Arc<dyn Node>) {
        let node = self.node.get_or_init(|| node);
        self.metrics.note_up(true);
        if let Some(listener) = self.listener.get() {
            node.listen(listener.clone());
        }
    }

    pub(crate) fn listen(&self, listener: Weak<dyn NodeListener>) {
        let listener = self.listener.get_or_init(|| listener);
        if let Some(node) = self.node.get() {
            node.listen(listener.clone());
        }
    }

    pub(super) fn now(&self) -> Time {
        clock::now(&*self.clock)
    }

    /// The first shard, which is the only one of a node that votes.
    fn first(&self) -> &ShardState {
        self.shards.first()
    }

    /// Withdraws an acquire that is no longer wanted. Returns whether it was never sent, and never will be.
    pub(crate) fn withdraw(&self, token: &Token) -> bool {
        self.links().is_some_and(|links| links.withdraw(token))
    }

    /// Notes what the node reports about itself with a vote that was requested at `sent`.
    pub(super) fn voted(
        self: &Arc<Self>,
        sent: Time,
        VoteReply { acquired, identity, overtaken }: VoteReply,
    ) -> Result<Said, Failure> {
        if let Some(identity) = identity {
            let votes_in = if let Acquired::Recovering(left) = &acquired { *left } else { Duration::ZERO };
            self.update(Shard::FIRST, |health, now| {
                health.voted(sent, now, &identity, votes_in, &mut self.table.peers())
            })?;
        }
        Ok(Said::Vote { acquired, overtaken })
    }

    /// Notes that a shard has answered what was sent at `sent`, or has failed to.
    pub(super) fn heard(self: &Arc<Self>, shard: Shard, failure: Option<&Failure>, sent: Time) {
        // A refusal of a key is still an answer of the server.
        let Some(failure) = failure.filter(|failure| !failure.is_of_a_key()) else { return self.answered(shard) };
        self.state(shard).note_trouble();
        // An answer that does not count for this reason is no silence.
        if self.is_only || self.compare(shard).is_ok() {
            self.update(shard, |health, now| ((), health.failed(failure, sent, now)));
        }
    }

    /// Fails if the run that it has last shown is another node's.
    pub(super) fn compare(self: &Arc<Self>, shard: Shard) -> Result<(), Failure> {
        self.update(shard, |health, now| health.compare(now, &self.table.peers().identities))
    }

    fn answered(self: &Arc<Self>, shard: Shard) {
        if self.state(shard).answered(self.now()) {
            self.update(shard, |health, now| ((), health.answered(now)));
        }
    }

    /// Notes that a shard has not answered a request for too long.
    pub(crate) fn silent(self: &Arc<Self>, shard: Shard) {
        self.update(shard, |health, _now| ((), health.silent()));
    }

    /// Feeds an event to the health, and carries out what follows.
    fn update<T>(self: &Arc<Self>, shard: Shard, event: impl FnOnce(&mut NodeHealth, Time) -> (T, HealthOrders)) -> T {
        let mut is_news = false;
        // In a cluster, no shard has the first number.
        let note_up = |is_up| {
            is_news = self.metrics.set_up(if shard == Shard::FIRST { is_up } else { self.is_half_up() });
        };
        let (outcome, orders) = self.state(shard).update(|| self.now(), event, note_up);
        if is_news {
            metrics::have_news();
        }
        self.carry_out(shard, orders);
        outcome
    }

    /// Whether at least half of the shards asked so far are well: a cluster then serves most of its locks.
    fn is_half_up(&self) -> bool {
        let shards: Vec<bool> = self.shards.others().iter().filter_map(|shard| shard.is_up()).collect();
        2 * shards.iter().filter(|is_up| **is_up).count() >= shards.len()
    }

    fn carry_out(self: &Arc<Self>, shard: Shard, HealthOrders { probe, wake, tell }: HealthOrders) {
        if let Some(row) = probe {
            self.host.spawn_until_stopped(self.clone().probe(row));
        }
        if wake {
            self.state(shard).wake();
        }
        let node = || self.address().into();
        match tell {
            None => {}
            Some(HealthChange::Silent { reason }) => {
                if let Some(count) = self.meet(causes_of_absence(&reason, None)) {
                    foreign::tell(Event::NodeSilent { node: node(), reason, count });
                }
            }
            Some(HealthChange::Answers) => {
                // Leases have to be renewed there, and waiters may have missed something.
                if let Some(listener) = self.listener.get().and_then(Weak::upgrade) {
                    listener.missed(&Keys::All);
                }
                if self.told.end().is_some() {
                    foreign::tell(Event::NodeAnswers { node: node() });
                }
            }
            Some(HealthChange::Recovers { votes_in }) => {
                self.tell("recovers".to_owned(), Event::NodeRecovers { node: node(), votes_in });
            }
            Some(HealthChange::SameServer { other }) => {
                self.tell(format!("is {other}"), Event::SameServer { node: node(), other });
            }
        }
    }

    /// Notes trouble. Returns how often it occurred since the last report, if it is to be reported: a node may come and
    /// go many times a minute.
    fn meet(&self, causes: impl IntoIterator<Item = String>) -> Option<u64> {
        self.told.meet_causes(self.now(), causes)
    }

    fn tell(&self, cause: String, event: Event) {
        if self.meet([cause]).is_some() {
            foreign::tell(event);
        }
    }

    /// Reports that the first connection to it is made in the background.
    pub(super) fn is_absent(&self, error: String) {
        self.tell("absent".to_owned(), Event::NodeAbsent { node: self.address().into(), error });
    }

    async fn probe(self: Arc<Self>, row: ProbeRow) {
        loop {
            let Some(pause) = self.first().health().next_probe(row) else { return };
            self.host.sleep(pause).await;
            let Some(node) = self.node.get() else { return };
            match node.ask(Route::Keeper, Request::Probe, self.command_timeout).await {
                Ok(identity) => {
                    if self.check_identity(&identity).is_err() {
                        // Its address may lead to its own server by now.
                        if let Some(links) = self.links() {
                            for route in [Route::Keeper, Route::Home] {
                                links.reconnect(route, Shard::FIRST);
                            }
                        }
                    }
                    self.answered(Shard::FIRST);
                }
                Err(failure) => self.first().health().probe_failed(&failure),
            }
        }
    }

    /// Notes that it could not be connected.
    pub(super) fn not_there(self: &Arc<Self>, error: &Error) {
        let is_refusal = matches!(error, Error::Refused(_));
        let kind = if is_refusal { Failure::refused } else { Failure::unavailable };
        self.update(Shard::FIRST, |health, _now| {
            (health.not_connected(&kind(error.to_string())), HealthOrders::default())
        });
    }

    /// Notes that it was connected at last.
    pub(super) fn arrived(self: &Arc<Self>) {
        self.update(Shard::FIRST, |health, now| ((), health.arrived(now)));
    }

    /// Completes as soon as a shard is not silent.
    pub(crate) async fn speaks(&self, shard: Shard) {
        self.state(shard).speaks().await;
    }

    /// Completes when there is a reason to repeat a request for a key that this shard has not answered: it answers, or
    /// another shard has the key.
    pub(super) async fn answers_for(&self, key: &Key, asked: Shard, host: &Host) {
        /// Polled, because there is no notification when a slot gets an owner.
        const PAUSE: Duration = Duration::from_secs(1);
        while self.shard_of(key) == asked {
            let state = self.state(asked);
            if self.sharded().is_none() {
                return state.back().await;
            }
            tokio::select! {
                biased;
                () = state.back() => return,
                () = host.sleep(PAUSE) => {}
            }
        }
    }

    /// Why it does not serve this key, if it does not.
    pub(super) fn trouble(&self, key: &Key) -> Option<String> {
        let shard = self.shard_of(key);
        // The link comes first: renewals wait for a connection for longer than the report of its trouble can.
        let of_link = self.links().and_then(|links| links.trouble(shard));
        of_link.or_else(|| self.state(shard).health_by_now().trouble().map(Into::into))
    }

    /// Whether it is known to give no vote yet, so that asking it for a repair is pointless.
    pub(crate) fn is_recovering(&self) -> bool {
        self.first().health().recovers_in(self.now()).is_some()
    }

    pub(crate) fn note_recovery(self: &Arc<Self>, left: Duration) {
        self.update(Shard::FIRST, |health, now| ((), health.recovering(left, now)));
    }

    /// Fails if it is the same server as another node.
    pub(super) fn check_identity(self: &Arc<Self>, identity: &ServerIdentity) -> Result<(), Failure> {
        let identified = self
            .update(Shard::FIRST, |health, now| health.identified(now, identity, &mut self.table.peers().identities));
        identified.inspect_err(|_| self.table.contest())
    }

    /// Notes its first answer, and its clock, so that the first fence can be proposed.
    pub(super) fn greet(&self, identity: &ServerIdentity) {
        let now = self.now();
        let _in_trouble = self.first().answered(now);
        if let Some(time) = identity.time {
            self.table.peers().fence_proposal.note_time(time, now);
        }
    }

    pub(super) fn clock_offset(&self) -> Option<ClockOffset> {
        self.first().health().clock_offset()
    }

    pub(super) fn measure_clock(&self) {
        let offset = || self.status(&ShardInfo::only(&self.address)).clock_offset_micros();
        if let Some(micros) = NodeMetrics::WANT_CLOCKS.then(offset).flatten() {
            self.metrics.note_clock_offset(micros);
        }
    }

    pub(super) fn status(&self, ShardInfo { shard, address, slots, replicas }: &ShardInfo) -> NodeStatus {
        let wall = wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let status = self.state(*shard).health_by_now().status(address, self.now(), wall);
        node_status::of_shard(status, *slots, *replicas)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("address", &self.address).field("node", &self.node.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    /// The files below a directory that name the trait as an object.
    fn files_that_see_nodes(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_that_see_nodes(&path, found);
            } else if fs::read_to_string(&path).unwrap_or_default().contains(concat!("dyn ", "Node>")) {
                found.push(path);
            }
        }
    }

    #[test]
    fn a_request_reaches_a_node_through_its_member_only() {
        let (src, mut found) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), Vec::new());
        files_that_see_nodes(&src, &mut found);
        found.retain(|path| !path.starts_with(src.join("node")));
        found.sort();
        // The first makes nodes, and probes them before they are members; the others ask and install them.
        assert_eq!(found, ["quorum/connect.rs", "quorum/member.rs", "quorum/mod.rs"].map(|path| src.join(path)));
    }
}
