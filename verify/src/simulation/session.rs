//! A client's knowledge about one token.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::Acquisition,
    attempt,
    message::{Claim, ReleaseMode},
    outliving::Outliving,
    time::Time,
    token::Token,
};
use uuid::Uuid;

use super::{
    chance::{Real, Skewed},
    history::Violation,
    world::World,
};
use crate::seeded::SeededBug;

/// A token, from its creation until no node can have it any more.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) token: Token,
    pub(super) ttl: Duration,
    /// When its attempt was sent.
    pub(super) sent: Real,
    pub(super) resent: Option<Time>,
    pub(super) acquisition: Acquisition,
    /// Its lease in the history.
    pub(super) held: Option<Held>,
    pub(super) nodes: Vec<OnNode>,
}

/// The state of a session at one node.
#[derive(Default, Clone)]
pub(super) struct OnNode {
    /// How many requests are under way that may put the token there, or take it away.
    pub(super) open: u32,
    /// When the node executed the newest of the requests that it has answered.
    pub(super) heard: Real,
    /// Whether its key is left to expire.
    pub(super) is_given_up: bool,
}

/// A lease in the history.
pub(super) struct Held {
    /// Its number there.
    pub(super) lease: usize,
    /// Until when its belief is recorded there.
    pub(super) seen: Real,
    /// When the next tick is planned.
    pub(super) tick_at: Option<Real>,
}

impl Session {
    /// How long to wait for a vote.
    pub(super) fn limit(&self, world: &World) -> Duration {
        attempt::limit(self.nodes.len(), world.command_timeout, self.ttl)
    }

    /// The claim of the lock, as the session wants it from now on.
    pub(super) fn claim(&self, world: &World, now: Time) -> Claim {
        let life = match world.bug {
            Some(SeededBug::LifeForgotten) if self.held.is_some() => self.ttl,
            _ => self.acquisition.outliving().life(self.ttl, now.since(self.acquisition.sent())),
        };
        Claim { life, ..world.claim(&self.token, self.ttl, self.acquisition.fence()) }
    }

    /// How its release leaves the key.
    pub(super) fn mode(&self, world: &World, now: Time) -> ReleaseMode {
        let rest = self.acquisition.outliving().interval_left(now.since(self.acquisition.sent()));
        if rest.is_zero() || world.bug == Some(SeededBug::ReleaseFrees) {
            return ReleaseMode::Delete;
        }
        ReleaseMode::Retain(rest, Token::new(Uuid::from_u128(u128::from(self.id)), "released"))
    }

    /// Records how long the client has believed in its lease since the last time.
    pub(super) fn witness(&mut self, clock: Skewed, world: &mut World) {
        if let Some(held) = &mut self.held {
            let until = clock.when(self.acquisition.valid_until()).min(world.now);
            world.history.believed(held.lease, held.seen, until);
            held.seen = world.now;
        }
    }

    /// Whether no request is under way that may put the token anywhere, and every key with it has been taken away.
    pub(super) fn is_settled(&self, world: &mut World) -> bool {
        if !self.acquisition.is_over() {
            return false;
        }
        // A key that a loss left behind expires.
        let runs_out = self.acquisition.outliving() != Outliving::NOTHING && self.held.is_some();
        for (node, on) in
            self.nodes.iter().enumerate().take_while(|_| !runs_out).filter(|(_, on)| on.open == 0 && !on.is_given_up)
        {
            // A key that arrived after the node's last answer expires within a TTL, and cannot be helped.
            if world.owner(node).as_ref() == Some(&self.token) && world.appeared(node) <= on.heard {
                world.note(|| format!("{} is left on node {node}", self.id));
                world.history.saw(Violation::Abandoned { at: world.now });
            }
        }
        self.nodes.iter().all(|on| on.open == 0)
    }
}
