//! What a client knows of one token.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::{Acquisition, Ask},
    attempt,
    time::Time,
    token::Token,
    undo::Undoing,
};

use super::{
    chance::{Real, Skewed},
    history::Violation,
    holding::Held,
    world::World,
};
/// One token, from its making until no node can have it any more.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) token: Token,
    pub(super) ttl: Duration,
    pub(super) resent: Option<Time>,
    pub(super) acquisition: Acquisition,
    /// Its lease in the history.
    pub(super) held: Option<Held>,
    pub(super) nodes: Vec<OnNode>,
}

/// What a session has to do with a node.
#[derive(Default, Clone)]
pub(super) struct OnNode {
    /// How much is under way that may put the token there, or is to take it away.
    pub(super) open: u32,
    /// When the node executed the newest of that which it has answered.
    pub(super) heard: Real,
    /// It is left to expire.
    pub(super) is_given_up: bool,
}

/// A request that was sent.
pub(super) struct Sent {
    pub(super) session: u64,
    pub(super) node: usize,
    pub(super) at: Time,
    pub(super) about: About,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum About {
    Token(Ask),
    Undo(Undoing),
}

impl About {
    /// Whether it may put the token on the node, or take it off.
    pub(super) fn counts(self) -> bool {
        !matches!(self, Self::Token(Ask::Raise | Ask::Renew))
    }
}

/// A timer of a client. Those of a session that is gone ring in vain.
#[derive(Debug, Clone, Copy)]
pub(super) enum Alarm {
    Try {
        life: u32,
    },
    /// Nobody waits for the answer to this request any longer.
    Limit(u64),
    Resend(u64),
    GiveUp(u64),
    Tick(u64, Real),
    Hint(u64),
    LetGo(u64),
    UndoAgain(u64, usize, Undoing),
}

impl Session {
    /// How long a vote is waited for.
    pub(super) fn limit(&self, world: &World) -> Duration {
        attempt::limit(self.nodes.len(), world.command_timeout, self.ttl)
    }

    /// Writes down for how long the client has believed in its lease since the last time.
    pub(super) fn witness(&mut self, clock: Skewed, world: &mut World) {
        if let Some(held) = &mut self.held {
            let until = clock.when(self.acquisition.valid_until()).min(world.now);
            world.history.believed(held.lease, held.seen, until);
            held.seen = world.now;
        }
    }

    /// Whether nothing is under way any more that may put the token anywhere, and what was there is taken away.
    pub(super) fn is_settled(&self, world: &mut World) -> bool {
        if !self.acquisition.is_over() {
            return false;
        }
        for (node, on) in self.nodes.iter().enumerate().filter(|(_, on)| on.open == 0 && !on.is_given_up) {
            // What has arrived since the node's last word is gone within a TTL, and cannot be helped.
            if world.owner(node).as_ref() == Some(&self.token) && world.appeared(node) <= on.heard {
                world.note(|| format!("{} is left on node {node}", self.id));
                world.history.saw(Violation::Abandoned { at: world.now });
            }
        }
        self.nodes.iter().all(|on| on.open == 0)
    }
}
