//! The server's side: the scripts, over the memory node's store.

use leasehold_protocol::{
    combiner::Want,
    fence::Fence,
    holder::Holder,
    message::{AcquireRequest, Acquired, Claim, Owned, ReleaseMode, Reply, Request, VoteReply},
    store::{Process, Store},
    time::Micros,
    token::Token,
};

use super::{
    Setup,
    state::{Number, Said},
};
use crate::seeded::SeededBug;

/// The time on its clock. The clock stands still, so no lease expires here.
pub(super) const NOW: Micros = 1_000_000_000_000_000;

/// The outcome of a batch.
pub(super) struct Combined {
    /// The reply to each want; `None` for one that has to ask alone.
    pub(super) said: Vec<Option<Said>>,
    /// An acquire was denied for a lock that the same batch releases.
    pub(super) was_in_its_own_way: bool,
}

/// acquire.lua
pub(super) fn acquire(setup: &Setup, store: &mut Store, claim: &Claim) -> Said {
    let before = holder_of(store, claim).map(|(token, _)| token);
    let request = Request::Acquire(AcquireRequest { claim: claim.clone(), voting: None, heir_of: None });
    match VoteReply::try_from(reply(store, &request)).unwrap().acquired {
        Acquired::Granted(fence) if before.as_ref() == Some(&claim.token) && setup.has(SeededBug::ReplayDrawsAnew) => {
            Said::Granted { fence: Fence::try_from(u64::from(fence) + 1).unwrap(), overtaken: false }
        }
        Acquired::Granted(fence) => Said::Granted { fence, overtaken: false },
        Acquired::Busy { .. } | Acquired::Recovering(_) | Acquired::Gone => Said::Busy,
    }
}

/// release.lua
pub(super) fn release(store: &mut Store, claim: &Claim) -> Said {
    let request = Request::Release { claim: claim.clone(), mode: ReleaseMode::Delete };
    match Owned::try_from(reply(store, &request)).unwrap() {
        Ok(()) => Said::Released,
        Err(_) => Said::Denied,
    }
}

/// combined.lua: releases first. Any request that is not as simple has to ask alone. The acquire of `is_odd` is
/// executed, and is answered with "alone" too.
pub(super) fn combined(setup: &Setup, store: &mut Store, wants: &[Want], is_odd: Option<Number>) -> Combined {
    // Read before anything is written.
    let mut is_its_own = |claim: &Claim| {
        holder_of(store, claim)
            .is_some_and(|(token, fence)| token == claim.token && (setup.votes || Some(fence) == claim.fence))
    };
    let is_simple = |want: &Want| matches!(want, Want::Release(claim) if is_its_own(claim));
    let are_simple: Vec<_> = wants.iter().map(is_simple).collect();
    let mut said = vec![None; wants.len()];
    let mut was_in_its_own_way = false;
    let releases_first = !setup.has(SeededBug::AcquiresFirst);
    for releases in [releases_first, !releases_first] {
        for ((want, said), is_simple) in wants.iter().zip(&mut said).zip(&are_simple) {
            match want {
                Want::Release(claim) if releases && *is_simple => {
                    release(store, claim);
                    *said = Some(Said::Released);
                }
                Want::Acquire(AcquireRequest { claim, .. }) if !releases => {
                    let before = holder_of(store, claim).map(|(token, _)| token);
                    let is_own = before.as_ref() == Some(&claim.token);
                    let answer = (!is_own).then(|| acquire(setup, store, claim));
                    *said = answer.filter(|_| is_odd != Some(setup.session(&claim.token)));
                    let is_released =
                        |want: &Want| matches!(want, Want::Release(other) if Some(&other.token) == before.as_ref());
                    was_in_its_own_way |= answer == Some(Said::Busy) && wants.iter().any(is_released);
                }
                Want::Release(_) | Want::Acquire(_) => {}
            }
        }
    }
    Combined { said, was_in_its_own_way }
}

fn holder_of(store: &mut Store, claim: &Claim) -> Option<(Token, Fence)> {
    let holder: Holder = store.holder(NOW, &claim.key)?;
    Some((holder.whole_token()?.clone(), holder.fence()?))
}

fn reply(store: &mut Store, request: &Request) -> Reply {
    store.apply(NOW, request, Process { name: "", hears: false }, &|_| false).reply.unwrap()
}
