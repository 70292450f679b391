//! Everything around the clients: nodes, messages, time, and faults.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::Said,
    failure::Failure,
    fence::{self, Fence},
    holder::Holder,
    message::{AcquireRequest, Acquired, Claim, Denial, ReleaseMode, Repaired, Request, VoteReply, Voting, only},
    store::Store,
    time::{Micros, Time},
};

use super::{
    Run, Setup,
    node::ask,
    state::{Clock, Content, Kind, Message, Owner, Real, State, nanos},
};
use crate::seeded::SeededBug;

impl State {
    /// The time on a node's clock.
    pub(super) fn time_at(&self, setup: &Setup, node: usize) -> Micros {
        self.clock(setup, node).shows(self.now).as_nanos() / 1_000
    }

    fn clock(&self, setup: &Setup, node: usize) -> Clock {
        let clock = setup.nodes[node];
        Clock { offset: clock.offset.saturating_add_signed(self.servers[node].stepped), ..clock }
    }

    /// The real moment at which a node's clock shows this.
    fn when(&self, setup: &Setup, node: usize, shows: Micros) -> Real {
        self.clock(setup, node).when(Time::from_nanos(shows * 1_000))
    }

    /// The next moment after this one at which anything is due, if anything still is.
    pub(super) fn next_moment(&self, setup: &Setup) -> Option<Real> {
        let mut moments = Vec::new();
        for client in &self.clients {
            for session in &client.sessions {
                if !client.is_paused {
                    moments.extend(session.requests.iter().map(|request| request.until));
                }
                let acquisition = &session.acquisition;
                if acquisition.is_attempting() {
                    moments.push(acquisition.sent() + setup.belief());
                } else if acquisition.is_held() && client.is_paused {
                    moments.push(acquisition.valid_until());
                } else {
                    moments.extend(acquisition.next_tick());
                }
            }
        }
        let due = moments.into_iter().map(|moment| setup.clients.when(moment));
        let expiries = self.servers.iter().enumerate().filter_map(|(node, server)| {
            let (_, until) = server.key?;
            Some(self.when(setup, node, until))
        });
        let delay = nanos(setup.restart_delay).div_ceil(1_000_000_000) * 1_000_000;
        let recoveries = self
            .servers
            .iter()
            .enumerate()
            .filter_map(|(node, server)| Some(self.when(setup, node, server.started? + delay)));
        let step = (self.now / nanos(setup.grid) + 1) * nanos(setup.grid);
        let whole = recoveries.chain([step]).filter(|_| !self.is_closing(setup));
        due.chain(expiries).chain(whole).filter(|&moment| moment > self.now).min()
    }

    /// Whether the world is closing: no fault happens any more, no client begins, and each lets go.
    pub(super) fn is_closing(&self, setup: &Setup) -> bool {
        self.now >= nanos(setup.closes)
    }
}

impl Run<'_> {
    /// Time passes to the next moment at which something is due.
    pub(super) fn pass(&mut self) -> Option<()> {
        self.state.now = self.state.next_moment(self.setup)?;
        if self.state.is_closing(self.setup) {
            self.state.net.clear();
        }
        for node in 0..self.state.servers.len() {
            self.look_at(node);
        }
        Some(())
    }

    /// Notes the owner of a node's key now.
    fn look_at(&mut self, node: usize) {
        let now = self.state.time_at(self.setup, node);
        let server = &mut self.state.servers[node];
        let holder = server.store.holder(now, &self.setup.key);
        let shown = holder.as_ref().and_then(Holder::fence);
        let key = holder.and_then(|holder| {
            let until = now + u64::try_from(holder.remaining()?.as_micros()).ok()?;
            Some((self.setup.tokens.owner(holder.whole_token()?)?, until))
        });
        if key.map(|(owner, _)| owner) != server.key.map(|(owner, _)| owner) {
            server.is_belated = false;
            server.shown = shown;
        } else if self.setup.bug != Some(SeededBug::RaiseLeavesValue) {
            server.shown = shown;
        }
        server.key = key;
    }

    /// A node executes a request.
    pub(super) fn execute(
        &mut self,
        message: &Message,
        fence: Option<Fence>,
        heir_of: Option<Owner>,
        checks: Option<Duration>,
    ) -> Said {
        let Message { owner, node, kind, .. } = *message;
        let now = self.state.time_at(self.setup, node);
        let claim = |owner| self.setup.tokens.claim(&self.setup.key, owner);
        let restart_delay = self.setup.restart_delay;
        let mut sessions = self.state.clients[usize::from(owner.0)].sessions.iter();
        let session = sessions.find(|session| session.number == owner.1);
        let is_awaited = session.is_some_and(|session| session.requests.iter().any(|request| message.answers(request)));
        let before = self.state.servers[node].key.map(|(owner, _)| owner);
        let server = &mut self.state.servers[node];
        let is_belated = !is_awaited || server.released.contains(&owner);
        let is_known = session.is_some_and(|session| session.acquisition.fence() == server.shown);
        let compares = matches!(kind, Kind::Raise | Kind::Renew | Kind::Release | Kind::Undo) && before == Some(owner);
        if self.setup.bug == Some(SeededBug::WholeValueCompared) && compares && !is_known {
            return Said::Owned(Err(Denial::Taken));
        }
        let fence = fence.unwrap_or(fence::ZERO);
        let reply = match kind {
            Kind::Acquire => {
                let proposal = (fence != fence::ZERO).then_some(fence);
                let votes = !restart_delay.is_zero() || proposal.is_some();
                let voting = votes.then_some(Voting { restart_delay, proposal });
                let is_unchecked = self.setup.bug == Some(SeededBug::AdoptionUnchecked);
                let giver = heir_of.map(|giver| before.filter(|_| is_unchecked).unwrap_or(giver));
                let heir_of = giver.map(|giver| vec![self.setup.tokens.of(giver).clone()].into());
                let request = AcquireRequest { claim: claim(owner), voting, heir_of };
                let shown = server.shown;
                let vote: VoteReply = ask(&mut server.store, now, &Request::Acquire(request));
                let acquired = match vote.acquired {
                    Acquired::Granted(fence) if before == Some(owner) => Acquired::Granted(self.setup.replayed(fence)),
                    Acquired::Granted(fence) if giver.is_some() => {
                        let keeps = self.setup.bug == Some(SeededBug::HeirKeepsFence);
                        Acquired::Granted(shown.filter(|_| keeps).unwrap_or(fence))
                    }
                    acquired => acquired,
                };
                // On this network any message may overtake any other.
                Said::Vote { acquired, overtaken: true }
            }
            Kind::Raise => {
                let request = Request::Raise { claim: claim(owner), fence };
                Said::Owned(ask(&mut server.store, now, &request))
            }
            Kind::Renew => {
                let claim = claim(owner);
                let shortens = self.setup.bug == Some(SeededBug::CheckShortens);
                let life = checks.map_or(claim.life, |left| if shortens { left } else { Duration::ZERO });
                let renewed = ask(&mut server.store, now, &Request::Renew([Claim { life, ..claim }].into()));
                Said::Owned(only(renewed).unwrap())
            }
            Kind::Repair => {
                let request = Request::Repair { claim: claim(owner), fence, restart_delay };
                Said::Repaired(ask(&mut server.store, now, &request))
            }
            Kind::Release | Kind::Undo => {
                let whose = self.setup.released_as(owner, before);
                if !server.released.contains(&owner) {
                    server.released.push(owner);
                }
                let request = Request::Release { claim: claim(whose), mode: ReleaseMode::Delete };
                Said::Owned(ask(&mut server.store, now, &request))
            }
        };
        self.look_at(node);
        let server = &mut self.state.servers[node];
        if server.key.is_some_and(|(now_there, _)| now_there == owner) && before != Some(owner) {
            server.is_belated = is_belated;
        }
        reply
    }

    /// A node is started again. It calculates its uptime from whole seconds, and so by up to one second too long.
    pub(super) fn restart(&mut self, node: usize, forgets: bool) {
        let now = self.state.time_at(self.setup, node) / 1_000_000 * 1_000_000;
        let server = &mut self.state.servers[node];
        if forgets {
            server.store = Store::started(now);
        } else {
            server.store.restarted(now);
        }
        server.started = Some(now);
        self.look_at(node);
    }

    /// A node's clock is set.
    pub(super) fn step(&mut self, node: usize) {
        self.state.servers[node].stepped += self.setup.step * 1_000;
        self.look_at(node);
    }

    /// A message reaches its destination. The answer to a request is heard at once, unless it `is_late`.
    pub(super) fn deliver(&mut self, at: usize, is_late: bool) {
        let message = self.state.net.remove(at);
        let reply = match &message.content {
            Content::Reply(reply) => reply.clone(),
            Content::Request { fence, heir_of, checks, .. } => self.execute(&message, *fence, *heir_of, *checks),
        };
        let client = &self.state.clients[usize::from(message.owner.0)];
        if is_late || client.is_paused {
            if client.born <= message.owner.1 {
                self.state.net.push(Message { content: Content::Reply(reply), ..message });
            }
            return;
        }
        self.hear(&message, Ok(reply));
    }

    /// The connection breaks under a request, whose outcome is unknown.
    pub(super) fn break_off(&mut self, message: &Message) {
        self.hear(message, Err(Failure::unknown("the connection was reset")));
    }

    /// Notes that every attempt under way may be disturbed now, and so may fail.
    pub(super) fn disturb(&mut self) {
        for session in self.state.clients.iter_mut().flat_map(|client| &mut client.sessions) {
            session.is_clear = false;
        }
    }

    /// Whether the lock is free for any client that asks: no client has it or is about to, and all clients and nodes
    /// are well.
    pub(super) fn is_clear(&self) -> bool {
        let State { clients, servers, net, .. } = &self.state;
        servers.iter().all(|server| server.key.is_none() && server.started.is_none())
            && net.is_empty()
            && clients.iter().all(|client| {
                !client.is_paused && client.cut.is_empty() && client.sessions.iter().all(|other| !other.is_on())
            })
    }

    /// The number of nodes that have a token.
    pub(super) fn keys_of(&self, owner: Owner) -> usize {
        let has =
            |server: &&super::state::Server| server.key.is_some_and(|(there, _)| there == owner) && !server.is_belated;
        self.state.servers.iter().filter(has).count()
    }
}

/// Until when a node gives no vote, if an answer says so.
pub(super) fn recovery(now: Time, said: &Result<Said, Failure>) -> Option<Time> {
    match said {
        Ok(Said::Vote { acquired: Acquired::Recovering(left), .. } | Said::Repaired(Repaired::Recovering(left))) => {
            Some(now + *left)
        }
        Ok(Said::Vote { .. }) => Some(Time::ZERO),
        Ok(Said::Owned(_) | Said::Repaired(_)) | Err(_) => None,
    }
}
