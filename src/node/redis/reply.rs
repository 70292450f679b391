//! Reads the replies of the scripts. Each script's header describes its reply; `None` means a reply of another shape.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    combiner::Want,
    failure::Failure,
    fence::Fence,
    forced,
    holder::Holder,
    message::{
        Acquired, Denial, Downgraded, Looked, Owned, Page, Polled, Repaired, Reply, ServerIdentity, Sharers, VoteReply,
        Waiters,
    },
    mode,
    stepwise::SingleReply,
    token::Token,
};

use super::{
    transport::{RequiredKind, is_no_primary, not_extended},
    wire::Value,
};

/// The reply to an acquire. With `votes`, the server's time and run id follow.
pub(super) fn vote(reply: &Value, tracked: bool, votes: bool) -> Option<VoteReply> {
    let (acquired, identity) = match array(reply) {
        [acquired @ .., time, run_id] if votes => {
            let run_id = run_id.as_str().map(|run_id| (&*run_id).into());
            (acquired, Some(ServerIdentity { time: Some(time.as_u64()?), run_id, is_alone: true }))
        }
        acquired => (acquired, None),
    };
    let acquired = match acquired {
        [granted, issued] if granted.as_i64() == Some(1) => Acquired::Granted(fence(issued)?),
        [busy, pttl, value] if busy.as_i64() == Some(0) => Acquired::Busy { holder: found(pttl, value)?, tracked },
        [recovering, missing] if recovering.as_i64() == Some(2) => Acquired::Recovering(secs(missing)?),
        _ => return None,
    };
    Some(VoteReply { acquired, identity, overtaken: false })
}

/// The reply to an adoption.
pub(super) fn succession(reply: &Value, tracked: bool) -> Option<VoteReply> {
    match array(reply) {
        [gone] if gone.as_i64() == Some(3) => {
            Some(VoteReply { acquired: Acquired::Gone, identity: None, overtaken: false })
        }
        _ => vote(reply, tracked, false),
    }
}

/// The reply to the first step of an acquire in a slot that is being moved.
pub(super) fn taken(reply: &Value) -> Option<SingleReply> {
    match array(reply) {
        [taken] if taken.as_i64() == Some(1) => Some(SingleReply::Taken),
        [busy, pttl, value] if busy.as_i64() == Some(0) => Some(SingleReply::Busy(found(pttl, value)?)),
        _ => None,
    }
}

/// One reply for each want of a batch, in their order; `None` for a want that has to be asked alone. With `votes`, the
/// server's run id follows if the batch has an acquire.
pub(super) fn combined(reply: &Value, wants: &[Want], votes: bool, overtaken: bool) -> Option<Vec<Option<Reply>>> {
    let [time, codes @ ..] = array(reply) else { return None };
    let (codes, run_id) = codes.split_at_checked(wants.len())?;
    let is_release = |want: &&Want| matches!(want, Want::Release(_));
    let identity = match run_id {
        [] => None,
        [run_id] if votes => {
            let run_id = run_id.as_str().map(|run_id| (&*run_id).into());
            Some(ServerIdentity { time: Some(time.as_u64()?), run_id, is_alone: true })
        }
        _ => return None,
    };
    let (released, acquired) = codes.split_at(wants.iter().filter(is_release).count());
    let (mut released, mut acquired) = (released.iter(), acquired.iter());
    let read = |want: &Want| {
        let (code, is_release) = match want {
            Want::Release(_) => (released.next()?, true),
            Want::Acquire(_) => (acquired.next()?, false),
        };
        let acquired = match array(code) {
            [alone] if alone.as_i64() == Some(-2) => return Some(None),
            [done] if done.as_i64() == Some(1) && is_release => return Some(Some(Reply::Owned(Ok(())))),
            _ if is_release => return None,
            [granted] if granted.as_i64() == Some(1) => Acquired::Granted(fence(time)?),
            [granted, issued] if granted.as_i64() == Some(1) => Acquired::Granted(fence(issued)?),
            [busy, pttl, value] if busy.as_i64() == Some(0) => {
                Acquired::Busy { holder: found(pttl, value)?, tracked: false }
            }
            [recovering, missing] if recovering.as_i64() == Some(2) => Acquired::Recovering(secs(missing)?),
            _ => return None,
        };
        Some(Some(Reply::Vote(VoteReply { acquired, identity: identity.clone(), overtaken })))
    };
    wants.iter().map(read).collect()
}

/// This reply, marked as answering a request that later requests may have overtaken.
pub(super) fn overtaken(reply: Reply) -> Reply {
    match reply {
        Reply::Vote(vote) => VoteReply { overtaken: true, ..vote }.into(),
        reply => reply,
    }
}

/// The failure for a reply that is not one of the script's.
pub(super) fn unreadable() -> Failure {
    Failure::unknown("redis sent a reply that is not the script's: is there a proxy between?")
}

pub(super) fn repaired(reply: &Value) -> Option<Repaired> {
    match array(reply) {
        [done] if done.as_i64() == Some(1) => Some(Repaired::Done),
        [taken] if taken.as_i64() == Some(-1) => Some(Repaired::Taken),
        [recovering, missing, _run_id] if recovering.as_i64() == Some(2) => Some(Repaired::Recovering(secs(missing)?)),
        _ => None,
    }
}

pub(super) fn rehearsed(reply: &Value) -> Option<Option<Duration>> {
    match array(reply) {
        [done] if done.as_i64() == Some(1) => Some(None),
        [recovering, missing, _run_id] if recovering.as_i64() == Some(2) => Some(Some(secs(missing)?)),
        _ => None,
    }
}

fn secs(value: &Value) -> Option<Duration> {
    value.as_u64().map(Duration::from_secs)
}

pub(super) fn polled(reply: &Value, tracked: bool, notified: bool) -> Option<Polled> {
    let (holder, recovers_for, place) = match array(reply) {
        [granted, issued] | [granted, issued, _] if granted.as_i64() == Some(1) => {
            return fence(issued).map(Polled::Granted);
        }
        [waits, pttl, value, place @ ..] if waits.as_i64() == Some(0) => {
            let mut holder = found(pttl, value)?;
            if pttl.as_i64() == Some(NO_KEY) {
                // Free already, so there is nothing to wait for.
                holder = match value {
                    Value::Null => Holder::nobody(),
                    _expired => holder.lasting(Some(Duration::ZERO)),
                };
            }
            (holder, None, place)
        }
        [recovers, missing, _run_id, place @ ..] if recovers.as_i64() == Some(2) => {
            (Holder::default(), Some(secs(missing)?), place)
        }
        _ => return None,
    };
    let (place, sharers) = match place {
        [place @ .., sharers] if recovers_for.is_none() => (place, u32::try_from(sharers.as_i64()?).ok()?),
        place => (place, 0),
    };
    let [ticket, ahead, entered] = place else { return None };
    let holder = if sharers > 0 { holder.shared_by(sharers) } else { holder };
    let ticket = Some(ticket.as_u64()?).filter(|&ticket| ticket != 0);
    let ahead = u32::try_from(ahead.as_i64()?).ok()?;
    Some(Polled::Waits { holder, recovers_for, ticket, ahead, entered: flag(entered)?, tracked, notified })
}

/// The run of the server that answered a poll or a repair, if the reply includes it.
pub(super) fn run_id(reply: &Value) -> Option<String> {
    match array(reply) {
        [code, _, run_id, ..] if matches!(code.as_i64(), Some(1 | 2)) => run_id.as_string(),
        _ => None,
    }
}

pub(super) fn waiters(reply: &Value) -> Option<Waiters> {
    let [now, _length, queue @ ..] = array(reply) else { return None };
    let now = now.as_u64()?;
    let mut waiting = Waiters::new();
    for one in queue.chunks(3) {
        let [token, ticket, limit] = one else { return None };
        let waited = Duration::from_micros(now.saturating_sub(ticket.as_u64()?));
        let limit = u32::try_from(limit.as_i64()?).ok()?;
        // Anything but a token of ours is skipped.
        if let Some(token) = token.as_str().and_then(|token| Token::parse(&token)) {
            let mode = mode::of_limit(limit, token.permits());
            waiting.push((token, waited, mode));
        }
    }
    Some(waiting)
}

pub(super) fn renewed(reply: &Value, wanted: RequiredKind) -> Option<Vec<Result<Owned, Failure>>> {
    let verdict = |one: &Value| match array(one) {
        [code, text] if code.as_i64() == Some(-2) => Some(Err(not_extended(&text.as_str()?, wanted))),
        // A key with another fence belongs to another grant: the lease's own key is gone.
        [code] if code.as_i64() == Some(-4) => Some(Ok(Err(Denial::Gone))),
        _ => released(one).map(Ok),
    };
    array(reply).iter().map(verdict).collect()
}

/// Whether a renewal met errors that only a server that is not a primary gives.
pub(super) fn is_of_no_primary(reply: &Value) -> bool {
    array(reply)
        .iter()
        .any(|one| matches!(array(one), [_, text] if text.as_str().is_some_and(|text| is_no_primary(&text))))
}

/// The value and TTL of each key, if it holds a text and has a TTL.
pub(super) fn looked(reply: &Value) -> Vec<Option<(String, Duration)>> {
    let read = |one: &Value| match array(one) {
        [value, pttl] => Some((value.as_string()?, Duration::from_millis(pttl.as_u64()?))),
        _ => None,
    };
    array(reply).iter().map(read).collect()
}

pub(super) fn released(reply: &Value) -> Option<Owned> {
    match array(reply) {
        [code] => match code.as_i64()? {
            1 => Some(Ok(())),
            0 => Some(Err(Denial::Gone)),
            -1 => Some(Err(Denial::Taken)),
            _ => None,
        },
        [code, text] if code.as_i64() == Some(-3) => {
            let text = String::from_utf8_lossy(text.as_bytes()?);
            Some(Err(Denial::Forced(Arc::new(forced::read(&text)))))
        }
        _ => None,
    }
}

pub(super) fn holding(reply: &Value, tracked: bool) -> Option<Looked> {
    let holder = match array(reply) {
        [none] if none.as_i64() == Some(0) => None,
        [some, pttl, value] if some.as_i64() == Some(1) => Some(found(pttl, value)?),
        _ => return None,
    };
    Some(Looked { holder, tracked })
}

pub(super) fn sharers(reply: &Value) -> Option<Option<Sharers>> {
    let (pttl, value, count, all) = match array(reply) {
        [none] if none.as_i64() == Some(0) => return Some(None),
        [some, pttl, value, count, all @ ..] if some.as_i64() == Some(1) => (pttl, value, count, all),
        _ => return None,
    };
    let (holder, count) = (found(pttl, value)?, u32::try_from(count.as_i64()?).ok()?);
    let mut first = Vec::new();
    for pair in all.chunks(2) {
        let [token, left] = pair else { return None };
        // Anything but a token of ours is counted, and shown without a label.
        let token = token.as_str().and_then(|token| Token::parse(&token));
        first.push(Holder::of_share(token, Some(Duration::from_millis(left.as_u64()?)), holder.fence()));
    }
    Some(Some(Sharers { holder: holder.shared_by(count), first }))
}

pub(super) fn downgraded(reply: &Value) -> Option<Downgraded> {
    match array(reply) {
        [done, issued] if done.as_i64() == Some(1) => fence(issued).map(Downgraded::Shared),
        [recovers, seconds] if recovers.as_i64() == Some(2) => secs(seconds).map(Downgraded::Recovering),
        _ => match released(reply)? {
            Err(denial) => Some(Downgraded::Denied(denial)),
            Ok(()) => None,
        },
    }
}

/// Keys that are not text are not locks, and are skipped.
pub(super) fn page(reply: &Value) -> Option<Page> {
    let [cursor, locks @ ..] = array(reply) else { return None };
    Some((cursor.as_u64()?, locks.iter().filter_map(Value::as_string).collect()))
}

/// The memory that all fence floors take, in bytes, estimated from a sample of the keys.
pub(super) fn floors(reply: &Value) -> Option<u64> {
    let [looked_at, bytes, keys] = array(reply) else { return None };
    let (looked_at, bytes, keys) = (looked_at.as_u64()?, bytes.as_u64()?, keys.as_u64()?);
    bytes.checked_mul(keys).map(|bytes| bytes / looked_at.max(1))
}

pub(super) fn flag(reply: &Value) -> Option<bool> {
    match reply.as_i64()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Reads the value of a string, `{0, type}` of another key, or `{0}` if our user may not ask for the type.
fn found(pttl: &Value, value: &Value) -> Option<Holder> {
    let pttl = pttl.as_i64()?;
    Some(match value {
        Value::Array(other) => Holder::of_type(other.get(1).and_then(Value::as_str).as_deref(), pttl),
        Value::Integer(_) => Holder::of_type(None, pttl),
        // The key does not exist.
        Value::Null => Holder::of(None, u64::try_from(pttl).ok().map(Duration::from_millis), None),
        text => Holder::read(text.as_str().as_deref(), pttl),
    })
}

pub(super) fn fence(value: &Value) -> Option<Fence> {
    value.as_i64().and_then(|number| Fence::try_from(number).ok())
}

/// PTTL's answer for a key that does not exist.
const NO_KEY: i64 = -2;

/// The wire returns an array of one element as that element.
fn array(reply: &Value) -> &[Value] {
    match reply {
        Value::Array(values) => values,
        other => std::slice::from_ref(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_shape_is_nobodys_verdict() {
        assert!(vote(&Value::from(1), false, false).is_none());
        assert!(vote(&Value::Array(vec![1.into(), "x".into()]), false, false).is_none());
        assert!(released(&Value::from(7)).is_none());
        assert!(released(&Value::Null).is_none());
    }

    #[test]
    fn a_key_of_another_type_is_told_by_its_type_if_that_is_known() {
        let list = Value::Array(vec![0.into(), "list".into()]);
        for (other, kind) in [
            (list, "list"),
            (0.into(), "value of another type"),
            (Value::Array(vec![0.into()]), "value of another type"),
        ] {
            let reply = Value::Array(vec![0.into(), 1_500.into(), other]);
            let vote = vote(&reply, false, false);
            let Some(VoteReply { acquired: Acquired::Busy { holder, .. }, identity: None, .. }) = vote else {
                panic!("busy was said")
            };
            assert_eq!(holder.remaining(), Some(Duration::from_millis(1_500)));
            assert_eq!((holder.token(), holder.not_a_lock()), (None, Some(kind)));
        }
    }
}
