//! Compares `combined.lua`, with and without votes, and `combined_slots.lua` on a server with the model's script: every
//! batch of up to two requests for one lock, whichever token holds it.

use std::iter::once;

use leasehold_protocol::{
    combiner::Want, fence::Fence, holder::Holder, message::AcquireRequest, store::Store, token::Token,
};
use support::{
    Server, Value, Wire,
    scripts::{ACQUIRE, COMBINED, COMBINED_SLOTS},
};

use super::{
    Setup,
    server::{self, NOW},
    state::{Number, Said},
    tests::NO_FAULTS,
};

const TTL: &str = "600000";
const MEMORY: &str = "86400000";

/// Larger than what any server issues by itself.
const PROPOSAL: &str = "4000000000000000";

/// The request of one of three tokens.
#[derive(Debug, Clone, Copy)]
enum Ask {
    Acquire(Number),
    /// A release with the holder's own fence, if `true`, or with another.
    Release(Number, bool),
}

/// The outcome of each request of a batch, and the holder after it.
type Outcome = (Vec<&'static str>, Option<Number>);

#[test]
fn the_script_does_what_the_models_server_does() {
    let setup = super::tests::world("script", 1, &[0, 0, 0], NO_FAULTS);
    let (server, tokens) = (Server::start(), 0..3);
    let mut wire = server.wire();
    let asks: Vec<_> = tokens
        .clone()
        .flat_map(|token| [Ask::Acquire(token), Ask::Release(token, true), Ask::Release(token, false)])
        .collect();
    let pairs = asks.iter().flat_map(|first| asks.iter().map(|second| vec![*first, *second]));
    let batches: Vec<_> = asks.iter().map(|ask| vec![*ask]).chain(pairs).collect();
    for holder in once(None).chain(tokens.map(Some)) {
        for batch in &batches {
            for script in [(COMBINED, None), (COMBINED, Some("")), (COMBINED, Some(PROPOSAL)), (COMBINED_SLOTS, None)] {
                let setup = Setup { votes: script.1.is_some(), ..setup.clone() };
                let by_model = by_model(&setup, holder, batch);
                let by_script = by_script(script, &setup, &mut wire, holder, batch);
                assert_eq!(by_script, by_model, "{:?}: {holder:?} {batch:?}", script.1);
            }
        }
    }
}

fn by_model(setup: &Setup, holder: Option<Number>, batch: &[Ask]) -> Outcome {
    let mut store = Store::default();
    let mut held = Fence::try_from(1_u64).unwrap();
    if let Some(holder) = holder {
        let Said::Granted { fence, .. } = server::acquire(setup, &mut store, &setup.claim(holder, None)) else {
            panic!("it is free")
        };
        held = fence;
    }
    let other = Fence::try_from(7_u64).unwrap();
    let want = |ask: &Ask| match *ask {
        Ask::Acquire(token) => {
            Want::Acquire(AcquireRequest { claim: setup.claim(token, None), voting: None, heir_of: None })
        }
        Ask::Release(token, own) => Want::Release(setup.claim(token, Some(if own { held } else { other }))),
    };
    let wants: Vec<_> = batch.iter().map(want).collect();
    let said = server::combined(setup, &mut store, &wants, None).said;
    let said = said.into_iter().map(|said| match said {
        Some(Said::Granted { .. } | Said::Released) => "done",
        Some(Said::Busy) => "busy",
        Some(Said::Denied) => "denied",
        None => "alone",
    });
    let holder: Option<Holder> = store.holder(NOW, &setup.keys[0]);
    let after = holder.and_then(|holder| Some(setup.session(holder.whole_token()?)));
    (said.collect(), after)
}

/// With a proposal, the acquires are votes.
fn by_script(
    (script, proposal): (&str, Option<&str>),
    setup: &Setup,
    wire: &mut Wire,
    holder: Option<Number>,
    batch: &[Ask],
) -> Outcome {
    let key = &setup.keys[0];
    let (lock, fence, queue) = (key.lock().to_owned(), key.fence(), key.queue());
    let token = |number: Number| setup.tokens[usize::from(number)].clone();
    wire.must(&["FLUSHALL"]);
    if let Some(holder) = holder {
        wire.must(&["EVAL", ACQUIRE, "2", &lock, &fence, token(holder).as_str(), TTL, MEMORY]);
    }
    let held = wire.get(&lock).and_then(|value| Token::read_value(&value)).map_or(1, |(_, fence)| u64::from(fence));
    let value = |number, fence: u64| token(number).value(Fence::try_from(fence).unwrap());
    let (mut released, mut acquired) = (Vec::new(), Vec::new());
    for (at, ask) in batch.iter().enumerate() {
        match *ask {
            Ask::Acquire(number) => acquired.push((at, token(number).as_str().to_owned())),
            Ask::Release(number, own) => released.push((at, value(number, if own { held } else { 7 }))),
        }
    }
    let mut command = vec!["EVAL".to_owned(), script.to_owned()];
    if script == COMBINED {
        command.push((2 * batch.len()).to_string());
        command.extend(released.iter().map(|_| lock.clone()));
        command.extend(acquired.iter().map(|_| fence.clone()));
        command.extend(released.iter().map(|_| queue.clone()));
        command.extend(acquired.iter().map(|_| lock.clone()));
        let delay = if proposal.is_some() { "0" } else { "" };
        command.extend([released.len().to_string(), MEMORY.to_owned(), delay.to_owned()]);
        command.extend(released.iter().chain(&acquired).map(|(_, text)| text.clone()));
        command.extend(acquired.iter().map(|_| TTL.to_owned()));
        command.extend(acquired.iter().filter_map(|_| proposal.map(str::to_owned)));
    } else {
        command.extend(["0".to_owned(), released.len().to_string(), acquired.len().to_string(), MEMORY.to_owned()]);
        command.extend(released.iter().flat_map(|(_, value)| [lock.clone(), queue.clone(), value.clone()]));
        let acquire = |(_, token): &(usize, String)| [lock.clone(), fence.clone(), token.clone(), TTL.to_owned()];
        command.extend(acquired.iter().flat_map(acquire));
    }
    let reply = wire.must(&command.iter().map(String::as_str).collect::<Vec<_>>());
    let mut said = vec![""; batch.len()];
    for ((at, _), code) in released.iter().chain(&acquired).zip(&reply.array()[1..]) {
        said[*at] = match code {
            Value::Array(parts) if parts[0].int() == 0 => "busy",
            Value::Array(parts) => {
                assert_eq!(proposal, Some(&*parts[1].text()), "a fence that is not the time");
                "done"
            }
            code if code.int() == 1 => "done",
            _ => "alone",
        };
    }
    let after = wire.get(&lock).and_then(|value| Token::read_value(&value));
    // The holder's fence is the floor, below which no later fence falls.
    let floor = wire.get(&fence).map(|floor| floor.parse::<u64>().unwrap());
    assert!(after.as_ref().is_none_or(|(_, fence)| floor == Some(u64::from(*fence))), "{after:?} {floor:?}");
    (said, after.map(|(token, _)| setup.session(&token)))
}
