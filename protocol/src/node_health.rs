//! The health of one node, as its answers and its silences show it: pure.
//!
//! Events and their times come in. Decisions come out: whether the node may be asked, when it is probed, what to
//! report. The library's `Member` is the driver.
//!
//! # Invariants
//!
//! 1. A silent node of a quorum is not asked but probed, until it answers. A request that was not sent needs no undo,
//!    and a dead node costs nothing. The only node of a lock is never silent.
//! 2. A node is silent once we have waited for `SILENCE` without an answer since its last one, on any connection.
//!    Overlapping waits count once. A link that breaks at once says nothing about its node.
//! 3. A node that is the same server as another node of the quorum has no vote, until it shows another identity.
//! 4. A vote that arrives late reverts nothing that a later one has shown: neither identity nor clock nor recovery.
//! 5. Each silence, recovery and shared server is reported once, when it begins.
//! 6. At most one row of probes is under way: it ends when a new one begins, or when there is nothing left to find out.

use std::{mem, time::Duration};

use crate::{
    doubling::Doubling,
    failure::Failure,
    fence_proposal::FenceProposal,
    identities::Identities,
    message::ServerIdentity,
    node_status::{self, NodeState, NodeStatus},
    time::Time,
};

#[cfg(test)]
mod tests;

/// The time waited without an answer, since the last one, that makes a node silent.
const SILENCE: Duration = Duration::from_millis(100);

/// The pause before a silent node is probed; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How often a node without a vote is probed: DNS may later point its address at another server.
const IDENTIFY_EVERY: Duration = Duration::from_secs(1);

/// One node's health.
#[derive(Debug)]
pub struct NodeHealth {
    /// The node's number in the quorum.
    at: usize,
    is_only: bool,
    /// When the node last answered; [`Time::ZERO`] before the first answer.
    last_answer: Time,
    /// Why the node could not be reached, and why it refused: the last of each since its last answer.
    unreachable: Option<String>,
    refused: Option<String>,
    is_silent: bool,
    /// How long we have waited without an answer since the last one, and up to when that is counted.
    waited: Duration,
    waited_until: Time,
    /// The address of the other node that is the same server.
    same_as: Option<Box<str>>,
    /// When the newest of the votes that have arrived was asked for.
    newest_vote: Time,
    recovers_until: Option<Time>,
    clock_offset: Option<ClockOffset>,
    row: ProbeRow,
    pauses: Doubling,
}

/// The identities and the clocks of one quorum's nodes, side by side.
#[derive(Debug)]
pub struct Peers {
    /// Which run of which server each node is.
    pub identities: Identities,
    /// The fence that their clocks suggest.
    pub fence_proposal: FenceProposal,
}

impl Peers {
    /// The peers at these addresses. A call counts answers for at most this long.
    pub fn new(addresses: &[String], call: Duration) -> Self {
        Self { identities: Identities::new(addresses, call), fence_proposal: FenceProposal::default() }
    }
}

/// The driver's orders after an event.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct HealthOrders {
    /// Begin a row of probes, with the pauses of [`NodeHealth::next_probe`].
    pub probe: Option<ProbeRow>,
    /// Wake the tasks that wait for the node to answer.
    pub wake: bool,
    /// The news to report to users.
    pub tell: Option<HealthChange>,
}

/// The number of a row of probes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeRow(u64);

/// A change of the health of a node, for users.
#[derive(Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// It has stopped answering.
    Silent {
        /// The reason, as far as it is known.
        reason: String,
    },
    /// It answers again.
    Answers,
    /// It gives no vote.
    Recovers {
        /// The time until it votes.
        votes_in: Duration,
    },
    /// It is the same server as another node.
    SameServer {
        /// The address of that node.
        other: String,
    },
}

impl NodeHealth {
    /// A node that has not answered yet.
    pub fn new(at: usize, is_only: bool) -> Self {
        Self {
            at,
            is_only,
            last_answer: Time::ZERO,
            unreachable: None,
            refused: None,
            is_silent: false,
            waited: Duration::ZERO,
            waited_until: Time::ZERO,
            same_as: None,
            newest_vote: Time::ZERO,
            recovers_until: None,
            clock_offset: None,
            row: ProbeRow::default(),
            pauses: Doubling::from(FIRST_PAUSE),
        }
    }

    /// Whether [`answered`](Self::answered) and [`askable`](Self::askable) make any difference. Without trouble the
    /// driver does not call them. It calls [`note_answer`](Self::note_answer) before the next event instead.
    pub fn is_troubled(&self) -> bool {
        self.is_silent || self.unreachable.is_some() || self.refused.is_some() || self.same_as.is_some()
    }

    /// Returns the node, if it is connected and may be asked. A request that needs no vote may also go to the same
    /// server.
    pub fn askable<N>(&self, node: Option<N>, needs_vote: bool) -> Result<N, Failure> {
        if needs_vote {
            self.has_vote()?;
        }
        match (node, &self.refused) {
            (Some(node), _) if !self.is_silent => Ok(node),
            (None, Some(text)) => Err(Failure::refused(text)),
            _ => Err(Failure::unavailable(self.unreachable.as_deref().unwrap_or("it is not connected yet"))),
        }
    }

    /// Fails if its server has its vote under another address (invariant 3).
    pub fn has_vote(&self) -> Result<(), Failure> {
        self.same_as.as_ref().map_or(Ok(()), |other| Err(same_server(other)))
    }

    /// Notes an answer at this time, which ended no trouble.
    pub fn note_answer(&mut self, at: Time) {
        self.last_answer = self.last_answer.max(at);
    }

    /// The node has answered.
    pub fn answered(&mut self, now: Time) -> HealthOrders {
        self.note_answer(now);
        (self.unreachable, self.refused, self.waited) = (None, None, Duration::ZERO);
        let was_silent = mem::take(&mut self.is_silent);
        HealthOrders { wake: true, tell: was_silent.then_some(HealthChange::Answers), ..HealthOrders::default() }
    }

    /// The node has not answered a request that was sent at `sent`, or not as it should.
    pub fn failed(&mut self, failure: &Failure, sent: Time, now: Time) -> HealthOrders {
        let text = Some(failure.to_string());
        if failure.is_refusal() {
            self.refused = text;
        } else {
            self.unreachable = text;
        }
        // Invariant 2.
        self.waited += now.since(sent.max(self.waited_until).max(self.last_answer));
        self.waited_until = now;
        if self.waited >= SILENCE && failure.is_silence() { self.silent() } else { HealthOrders::default() }
    }

    /// A request has been unanswered for too long, and is still under way.
    pub fn silent(&mut self) -> HealthOrders {
        if self.is_only || mem::replace(&mut self.is_silent, true) {
            return HealthOrders::default();
        }
        let reason = self.unreachable.get_or_insert_with(|| "it does not answer".into()).clone();
        HealthOrders {
            probe: Some(self.begin_row()),
            tell: Some(HealthChange::Silent { reason }),
            ..HealthOrders::default()
        }
    }

    /// The node could not be connected to, or the server there may not be this node.
    pub fn not_connected(&mut self, failure: &Failure) {
        let text = Some(failure.to_string());
        (self.unreachable, self.refused) = if failure.is_refusal() { (None, text) } else { (text, None) };
    }

    /// The node is connected for the first time, later than the others.
    pub fn arrived(&mut self, now: Time) -> HealthOrders {
        self.is_silent = true;
        self.answered(now)
    }

    /// The node has answered a request for its vote that was sent at `sent`. A recovering node votes in `votes_in`. If
    /// this fails, the driver has to undo what the node granted.
    pub fn voted(
        &mut self,
        sent: Time,
        now: Time,
        identity: &ServerIdentity,
        votes_in: Duration,
        peers: &mut Peers,
    ) -> (Result<(), Failure>, HealthOrders) {
        // Invariant 4. It is still the vote of this node, if it comes from the same server.
        if sent < self.newest_vote {
            let is_same = identity.run_id.as_ref().is_none_or(|run_id| peers.identities.is_known(self.at, run_id));
            let other = || Failure::unknown("another server has answered under this address since");
            return (if is_same { Ok(()) } else { Err(other()) }, HealthOrders::default());
        }
        self.newest_vote = sent;
        if let Some(time) = identity.time {
            peers.fence_proposal.note_time(time, sent);
            self.clock_offset = Some(ClockOffset::new(time, sent, now));
        }
        match self.identified(now, identity, &mut peers.identities) {
            (Ok(()), _) => (Ok(()), self.recovering(votes_in, now)),
            // It may have granted, and the address under which that server votes may be out of reach.
            (Err(failure), orders) => (Err(failure.halfway()), orders),
        }
    }

    /// The node has shown at this time which server it is. Fails if that server has its vote under another address
    /// (invariant 3); then votes that were asked for before may come from yet another one (invariant 4).
    pub fn identified(
        &mut self,
        at: Time,
        identity: &ServerIdentity,
        identities: &mut Identities,
    ) -> (Result<(), Failure>, HealthOrders) {
        let Some(run_id) = &identity.run_id else { return (Ok(()), HealthOrders::default()) };
        let _same = identities.enter(self.at, run_id, at);
        self.compare(at, identities)
    }

    /// Compares which server the node was last found to be with the others, as [`identified`](Self::identified) does.
    pub fn compare(&mut self, at: Time, identities: &Identities) -> (Result<(), Failure>, HealthOrders) {
        let Some(other) = identities.same_as(self.at) else {
            self.same_as = None;
            return (Ok(()), HealthOrders::default());
        };
        self.newest_vote = self.newest_vote.max(at);
        let mut orders = HealthOrders::default();
        if self.same_as.replace(other.into()).is_none() {
            orders.probe = (!self.is_silent).then(|| self.begin_row());
            orders.tell = Some(HealthChange::SameServer { other: other.into() });
        }
        (Err(same_server(other)), orders)
    }

    /// The node gives no vote for this long; zero if it votes.
    pub fn recovering(&mut self, votes_in: Duration, now: Time) -> HealthOrders {
        let until = (!votes_in.is_zero()).then(|| now + votes_in);
        let was = mem::replace(&mut self.recovers_until, until);
        let begins = was.is_none() && until.is_some();
        HealthOrders { tell: begins.then_some(HealthChange::Recovers { votes_in }), ..HealthOrders::default() }
    }

    /// How long the node is known to give no vote. Asking it to restore a key is pointless until then.
    pub fn recovers_in(&self, now: Time) -> Option<Duration> {
        self.recovers_until.map(|until| until.since(now)).filter(|left| !left.is_zero())
    }

    /// Whether the node must not be asked (invariant 1).
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    fn begin_row(&mut self) -> ProbeRow {
        self.pauses = Doubling::from(FIRST_PAUSE);
        self.row.0 += 1;
        self.row
    }

    /// The pause before the next probe of a row; `None` at its end.
    pub fn next_probe(&mut self, row: ProbeRow) -> Option<Duration> {
        if row != self.row {
            return None;
        }
        let pause = self.is_silent.then(|| self.pauses.next(LONGEST_PAUSE));
        pause.or_else(|| self.same_as.is_some().then_some(IDENTIFY_EVERY))
    }

    /// A probe has failed. That says nothing if the node has answered another request meanwhile.
    pub fn probe_failed(&mut self, failure: &Failure) {
        if self.is_silent {
            self.unreachable = Some(failure.to_string());
        }
    }

    /// Why the node does not serve, if it does not.
    pub fn trouble(&self) -> Option<&str> {
        self.unreachable.as_deref().or(self.refused.as_deref())
    }

    /// The offset of the node's clock, as of its newest vote.
    pub fn clock_offset(&self) -> Option<ClockOffset> {
        self.clock_offset
    }

    /// The status for users; `wall` is the time since 1970 by this machine's wall clock.
    pub fn status(&self, address: &str, now: Time, wall: Duration) -> NodeStatus {
        let last_answer = (self.last_answer != Time::ZERO).then(|| now.since(self.last_answer));
        let clock_offset_micros = self.clock_offset.and_then(|offset| offset.to_wall(now, wall));
        node_status::of(address.to_owned(), self.state(now), last_answer, clock_offset_micros)
    }

    fn state(&self, now: Time) -> NodeState {
        if let Some(other) = &self.same_as {
            return NodeState::SameServer(other.to_string());
        }
        match (&self.unreachable, &self.refused, self.recovers_until) {
            (Some(text), _, _) => NodeState::Unreachable(text.clone()),
            (None, Some(text), _) => NodeState::Refused(text.clone()),
            (None, None, Some(until)) if now < until => NodeState::Recovering { remaining: until.since(now) },
            _ if self.last_answer == Time::ZERO => NodeState::Unknown,
            _ => NodeState::Up,
        }
    }
}

fn same_server(other: &str) -> Failure {
    // An exchange of two addresses passes.
    Failure::unavailable(format!(
        "it is the same server as {other}, and one server has one vote: name independent servers"
    ))
}

/// By how much a node's clock is ahead of ours, in microseconds, and how exact that is.
#[derive(Debug, Clone, Copy)]
pub struct ClockOffset {
    micros: i128,
    give_or_take: i128,
}

impl ClockOffset {
    /// A clock that showed `time` at some moment between a request and its reply.
    fn new(time: u64, sent: Time, now: Time) -> Self {
        let half = i128::try_from(now.since(sent).as_micros() / 2).unwrap_or_default();
        Self { micros: i128::from(time) - micros(sent) - half, give_or_take: half }
    }

    /// By how much two clocks differ at least.
    pub fn differs_from(self, other: Self) -> Duration {
        let certain = (self.micros - other.micros).abs() - self.give_or_take - other.give_or_take;
        Duration::from_micros(u64::try_from(certain).unwrap_or_default())
    }

    /// By how much that clock is ahead of the wall clock, which now shows `wall`.
    fn to_wall(self, now: Time, wall: Duration) -> Option<i64> {
        let wall = i128::try_from(wall.as_micros()).unwrap_or_default();
        i64::try_from(self.micros + micros(now) - wall).ok()
    }
}

fn micros(time: Time) -> i128 {
    i128::from(time.as_nanos() / 1_000)
}
