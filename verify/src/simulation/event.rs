//! What is under way for a client: its requests and its timers.

use leasehold_protocol::{acquisition::Ask, message::ReleaseMode, time::Time, undo::Undoing};

use super::chance::Real;

/// A request that was sent.
pub(super) struct Sent {
    pub(super) session: u64,
    pub(super) node: usize,
    pub(super) at: Time,
    pub(super) about: About,
}

#[derive(Debug, Clone)]
pub(super) enum About {
    Token(Ask),
    Undo(Undoing, ReleaseMode),
}

impl About {
    /// Whether it may put the token on the node, or take it off.
    pub(super) fn counts(&self) -> bool {
        !matches!(self, Self::Token(Ask::Raise | Ask::Renew))
    }
}

/// A timer of a client. A timer of a session that is gone has no effect.
#[derive(Debug, Clone)]
pub(super) enum Alarm {
    Try {
        life: u32,
    },
    /// The wait for the answer to this request ends.
    Limit(u64),
    Resend(u64),
    GiveUp(u64),
    Tick(u64, Real),
    Hint(u64),
    LetGo(u64),
    UndoAgain(u64, usize, Undoing, ReleaseMode),
}
