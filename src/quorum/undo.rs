//! Taking back what may have happened (rule 6).

use std::{sync::Arc, time::Duration};

use super::Member;
use crate::{
    clock::{Clock, Time},
    keeper::Host,
    key::Key,
    node::{Lane, Parting},
    token::Token,
};

/// The pause after the first release that got no answer; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Takes one token off one node: a token-checked release, repeated until the node has answered it, or until what was
/// there has expired by itself. What a node executes after that is believed by nobody, and gone within one TTL.
#[derive(Debug, Clone)]
pub(crate) struct Undo {
    /// The lane of what is undone: on it the release arrives later than that.
    pub(crate) lane: Lane,
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) parting: Parting,
    /// How long what is taken back may live: the TTL that the key was given, or a place in a queue.
    pub(crate) for_at_most: Duration,
    /// Whether nobody has asked for it before.
    pub(crate) is_first: bool,
}

impl Undo {
    /// Whether anything may have changed by it.
    pub(crate) async fn run(self, member: Arc<Member>, host: Host, clock: Arc<dyn Clock>) -> bool {
        let until = Time::now(&*clock) + self.for_at_most;
        let limit = member.command_timeout();
        let mut pause = FIRST_PAUSE;
        let mut may_be_replay = !self.is_first;
        // The first lane may have died with its runtime, so the keeper's takes turns with it. What is to be watched cannot
        // be called back when its time is over, so once behind the request that is undone is enough.
        let again = if self.lane == Lane::Watched { Lane::Keeper } else { self.lane };
        let later = [Lane::Keeper, again].into_iter().cycle();
        for lane in std::iter::once(self.lane).chain(later) {
            let turn = member.undos.acquire().await;
            let release = |node: &dyn crate::node::Node| self.parting.send(node, lane, &self.key, &self.token, limit);
            let outcome = member.ask(release).await;
            drop(turn);
            let (lock, label) = (self.key.name(), self.token.label());
            match outcome {
                Ok(found) => {
                    tracing::debug!(name: "undo", target: "leasehold", lock, label, was_ours = found.is_ok());
                    return found.is_ok() || may_be_replay;
                }
                Err(failure) if failure.is_refusal() || Time::now(&*clock) >= until => {
                    tracing::warn!(name: "undo", target: "leasehold", lock, label, %failure, "left to expire");
                    return true;
                }
                Err(failure) => {
                    may_be_replay |= failure.may_have_happened();
                    tracing::debug!(name: "undo", target: "leasehold", lock, label, %failure);
                }
            }
            tokio::select! {
                () = host.sleep(pause) => {}
                () = member.back() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        true
    }
}
