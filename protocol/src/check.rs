//! What one look at a lock has found.

use std::time::Duration;

use crate::{
    failure::Failure,
    holder::{self, Holder},
    tally::WakeCondition,
};

/// What the last look at the server found.
#[derive(Debug, Clone)]
pub enum Check {
    /// There was none.
    NotYet,
    /// Somebody holds it.
    Held {
        /// Who.
        holder: Holder,
        /// Whether we shall be told when that changes.
        tracked: bool,
        /// On which nodes it has to change.
        needs: WakeCondition,
    },
    /// Several tried at once, and none got a majority of the nodes.
    Split {
        /// Of the most nodes.
        holder: Holder,
        /// How long the nodes took that answered.
        answered: Duration,
        /// How long the whole round took: some may have said nothing.
        took: Duration,
    },
    /// It cannot be told.
    Failed(Failure),
}

impl Check {
    /// What is worth another look, if it told. Who has lost a split vote pauses, so that one comes first.
    pub fn needs(&self) -> Option<WakeCondition> {
        match self {
            Self::Held { needs, .. } => Some(*needs),
            Self::Split { .. } => Some(WakeCondition::NEVER),
            Self::NotYet | Self::Failed(_) => None,
        }
    }

    /// Whether it found the same holder, who may have renewed.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Held { holder: one, .. }, Self::Held { holder: other, .. }) => holder::is_same(one, other),
            (Self::Split { .. }, Self::Split { .. }) => true,
            _ => false,
        }
    }
}
