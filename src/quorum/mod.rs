//! The nodes as a quorum. One node is a quorum of one, and is asked in the same way as many.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{
    attempt,
    failure::Failure,
    key::Key,
    message::{AcquireRequest, Request, Route, Shard, Voting},
    node_health::Peers,
    node_status::NodeStatus,
    tally::{drift, majority},
    time::Time,
    token::Token,
    votes::NodeAnswer,
};

pub(crate) use self::{
    ask::Seen,
    asked::{ComingVote, PendingReply},
    connect::ConnectConfig,
    fan_out::{FanOut, MayFail, Unreported},
    first_connection::FirstConnection,
    member::Member,
    undo::{UndoTask, Undone},
};
use crate::{
    clock::Clock,
    foreign::{self, Event},
    keeper::Host,
    node::{Node, Seat, Table},
    options::longest_life,
};

mod ask;
mod asked;
mod connect;
mod fan_out;
mod first_connection;
mod member;
mod shard;
mod undo;
mod undo_limits;

/// How often the nodes' clocks are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(1);

/// Every node of one `Client`, in the order in which the builder was given them.
#[derive(Debug)]
pub(crate) struct Quorum {
    members: Box<[Arc<Member>]>,
    table: Arc<Table>,
    restart_delay: Duration,
    compared: AtomicU64,
    clocks_differ: AtomicBool,
}

/// The answer of a node, for people.
fn vote_of<T>(said: &Result<T, Failure>, answer: impl Fn(&T) -> NodeAnswer) -> NodeAnswer {
    match said {
        Ok(said) => answer(said),
        Err(failure) if failure.is_refusal() => NodeAnswer::Refused(failure.to_string()),
        Err(failure) => NodeAnswer::Unreachable(failure.to_string()),
    }
}

/// Whether this number of nodes is asked for votes: a single node without a restart delay decides without them.
pub(crate) fn votes(nodes: usize, restart_delay: Duration) -> bool {
    nodes > 1 || !restart_delay.is_zero()
}

impl Quorum {
    pub(crate) fn new(
        addresses: &[String],
        restart_delay: Duration,
        clock: &Arc<dyn Clock>,
        host: &Host,
        command_timeout: Duration,
    ) -> Self {
        // A call asks a second time at most.
        let (is_only, table) = (addresses.len() == 1, Table::new(Peers::new(addresses, 2 * command_timeout)));
        let member = |(at, address): (usize, &String)| {
            Member::new(at, address, is_only, table.clone(), clock.clone(), host.clone(), command_timeout)
        };
        let members = addresses.iter().enumerate().map(member).collect();
        Self { members, table, restart_delay, compared: AtomicU64::new(0), clocks_differ: AtomicBool::new(false) }
    }

    /// A quorum of one node that is connected.
    pub(crate) fn of_one(
        address: &str,
        node: Arc<dyn Node>,
        clock: &Arc<dyn Clock>,
        host: &Host,
        command_timeout: Duration,
    ) -> Self {
        let quorum = Self::new(&[address.into()], Duration::ZERO, clock, host, command_timeout);
        if let Some(only) = quorum.only() {
            only.install(node);
        }
        quorum
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn is_one(&self) -> bool {
        self.members.len() == 1
    }

    pub(crate) fn majority(&self) -> usize {
        majority(self.members.len())
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (usize, &Arc<Member>)> {
        self.members.iter().enumerate()
    }

    /// The seat of a node in this quorum; a node that is alone has none.
    pub(crate) fn seat(&self, at: usize, clock: &Arc<dyn Clock>) -> Option<Seat> {
        (!self.is_one()).then(|| Seat::new(at, self.table.clone(), clock.clone()))
    }

    pub(crate) fn member(&self, at: usize) -> Option<&Arc<Member>> {
        self.members.get(at)
    }

    /// The only node, if there is just one.
    fn only(&self) -> Option<&Arc<Member>> {
        if let [only] = &*self.members { Some(only) } else { None }
    }

    /// The only node, for calls that work on a single one.
    pub(crate) fn sole(&self) -> Result<&Arc<Member>, Failure> {
        let text = "this works on one server only, not over a quorum: build another Client with the url of one server";
        self.only().ok_or_else(|| Failure::refused(text))
    }

    /// Notes the TTL of a lease that is wanted.
    pub(crate) fn note_ttl(&self, ttl: Duration) {
        if !self.is_one() {
            self.table.peers().identities.note_ttl(ttl);
        }
    }

    pub(crate) fn restart_delay(&self) -> Duration {
        self.restart_delay
    }

    /// The longest that a key may be kept without a lease, if that is bounded.
    pub(crate) fn longest_keep(&self) -> Option<Duration> {
        if self.is_one() { None } else { longest_life(self.restart_delay) }
    }

    /// The shard that has this key on the only node; several nodes count as one shard.
    pub(crate) fn shard_of(&self, key: &Key) -> Shard {
        self.only().map_or(Shard::FIRST, |only| only.shard_of(key))
    }

    /// All current shards.
    pub(crate) fn shards(&self) -> Vec<Shard> {
        self.only().map_or_else(|| vec![Shard::FIRST], |only| only.shard_numbers())
    }

    /// The route that fits the caller's runtime, on every node.
    pub(crate) fn route(&self) -> Route {
        let at_home = self.members.iter().filter_map(|member| member.node()).any(|node| node.route() == Route::Home);
        if at_home { Route::Home } else { Route::Keeper }
    }

    /// The number of keys that may be tracked: the least capacity among the nodes that track at all.
    pub(crate) fn tracking_capacity(&self) -> usize {
        let capacities = self.members.iter().filter_map(|member| member.node()).map(|node| node.tracking_capacity());
        capacities.filter(|&capacity| capacity > 0).min().unwrap_or_default()
    }

    /// The conditions of a vote, if the nodes' answers are votes.
    pub(crate) fn voting(&self, now: Time) -> Option<Voting> {
        let Self { restart_delay, .. } = *self;
        match self.members.len() {
            nodes if !votes(nodes, restart_delay) => None,
            1 => Some(Voting { restart_delay, proposal: None }),
            _ => Some(Voting { restart_delay, proposal: self.table.peers().fence_proposal.at(now) }),
        }
    }

    /// How long one node's answer is awaited.
    pub(crate) fn limit(&self, limit: Duration, ttl: Duration) -> Duration {
        attempt::limit(self.members.len(), limit, ttl)
    }

    /// Asks every node at once.
    pub(crate) fn vote(
        &self,
        now: Time,
        route: Route,
        request: &AcquireRequest,
        limit: Duration,
    ) -> FanOut<ComingVote> {
        let ask = |member: &Arc<Member>| member.ask_at(now, route, Request::Acquire(request.clone()), limit);
        self.members().map(|(at, member)| (at, ComingVote(ask(member)))).collect()
    }

    /// Notes that a majority has decided without a node's answer to this token's request.
    pub(crate) fn set_aside(&self, node: usize, token: &Token) {
        if let Some(links) = self.member(node).and_then(|member| member.links()) {
            links.set_aside(token);
        }
    }

    /// Why too few nodes granted something, with the answer of each.
    pub(crate) fn failure<T>(&self, said: &[Result<T, Failure>], answer: impl Fn(&T) -> NodeAnswer) -> Failure {
        if let ([Err(failure)], true) = (said, self.is_one()) {
            return failure.clone();
        }
        let vote =
            |(member, said): (&Arc<Member>, &Result<T, Failure>)| (member.address().into(), vote_of(said, &answer));
        Failure::of_nodes(self.members.iter().zip(said).map(vote))
    }

    /// Why nodes do not serve this key, as each reports it.
    pub(crate) fn trouble(&self, key: &Key) -> Option<String> {
        let mut troubles: Vec<String> = self.members.iter().filter_map(|member| member.trouble(key)).collect();
        troubles.dedup();
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }

    /// The current address of the server that has this key, if there is only one node.
    pub(crate) fn address_of(&self, key: &Key) -> Option<String> {
        self.only().map(|only| only.address_of(only.shard_of(key)))
    }

    pub(crate) fn status(&self) -> Vec<NodeStatus> {
        let of = |member: &Arc<Member>| member.shards().iter().map(|shard| member.status(shard)).collect::<Vec<_>>();
        self.members.iter().flat_map(of).collect()
    }

    /// Warns when the nodes' clocks differ by more than leases of this TTL allow for; compares them now and then.
    pub(crate) fn compare_clocks(&self, now: Time, ttl: Duration) {
        let compared = self.compared.load(Ordering::Relaxed);
        if now.since(Time::from_nanos(compared)) < COMPARE_EVERY {
            return;
        }
        self.compared.store(now.as_nanos(), Ordering::Relaxed);
        self.members.iter().for_each(|member| member.measure_clock());
        let pairs = self.members().flat_map(|(at, one)| self.members.iter().take(at).map(move |other| (one, other)));
        let by = |one: &Member, other: &Member| Some(one.clock_offset()?.differs_from(other.clock_offset()?));
        let differing = pairs.filter_map(|(one, other)| Some((by(one, other)?, one, other)));
        let most = differing.max_by_key(|(by, ..)| *by).filter(|(by, ..)| *by > drift(ttl));
        let did_differ = self.clocks_differ.swap(most.is_some(), Ordering::Relaxed);
        if let Some((by, one, other)) = most.filter(|_| !did_differ) {
            let [node, other] = [one, other].map(|member| member.address().to_owned());
            foreign::tell(Event::ClocksDiffer { node, other, by });
        }
    }
}
