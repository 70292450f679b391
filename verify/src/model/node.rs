//! A node's answers, which only the asking client hears.

use leasehold_protocol::{
    acquisition::Said,
    failure::Failure,
    message::{AcquireRequest, Claim, Owned, ReleaseMode, Reply, Request, VoteReply, only},
    store::{Process, Store},
    time::Micros,
};

use super::state::Kind;

pub(super) fn ask<T: TryFrom<Reply, Error = Failure>>(store: &mut Store, now: Micros, request: &Request) -> T {
    let applied = store.apply(now, request, Process { name: "", hears: false }, &|_| false);
    applied.reply.and_then(T::try_from).unwrap()
}

/// A lone node executes a request.
pub(super) fn execute(store: &mut Store, now: Micros, claim: Claim, kind: Kind) -> Said {
    match kind {
        Kind::Acquire => {
            let request = AcquireRequest { claim, voting: None, heir_of: None };
            let vote: VoteReply = ask(store, now, &Request::Acquire(request));
            // On this network any message may overtake any other.
            Said::Vote { acquired: vote.acquired, overtaken: true }
        }
        Kind::Renew => {
            let renewed = ask(store, now, &Request::Renew([claim].into()));
            Said::Owned(only(renewed).unwrap())
        }
        Kind::Release | Kind::Undo => {
            Said::Owned(ask(store, now, &Request::Release { claim, mode: ReleaseMode::Delete }))
        }
        Kind::Raise | Kind::Repair => panic!("one node is never asked for that"),
    }
}

/// The answer to an undo.
pub(super) fn owned(said: Said) -> Owned {
    match said {
        Said::Owned(owned) => owned,
        other => panic!("an undo is answered with {other:?}"),
    }
}
