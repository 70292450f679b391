//! Keys and arguments of a script, written one after the other into one buffer: a string for each would cost more than
//! the rest of the request.

use std::{mem::replace, time::Duration};

use leasehold_protocol::message::Claim;

use crate::node::redis::wire::{Bytes, Value};

/// The approximate size of an argument, in a request of many locks.
const ARGUMENT: usize = 48;

/// The number of digits of the largest number.
const DIGITS: usize = 20;

/// A key or an argument, before it is written.
pub(super) enum Argument<'a> {
    Number(u64),
    Whole(&'a str),
    Parts([&'a str; 4]),
    /// The value of the lock's key, as far as it is known.
    Value(&'a Claim),
}

impl Argument<'_> {
    fn write(&self, buffer: &mut Vec<u8>) {
        match *self {
            Self::Number(number) => buffer.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            Self::Whole(text) => buffer.extend_from_slice(text.as_bytes()),
            Self::Parts(parts) => parts.into_iter().for_each(|part| buffer.extend_from_slice(part.as_bytes())),
            Self::Value(Claim { token, fence: Some(fence), .. }) => {
                Argument::Parts(token.value_parts(itoa::Buffer::new().format(u64::from(*fence)))).write(buffer);
            }
            Self::Value(Claim { token, fence: None, .. }) => Argument::Whole(token.as_str()).write(buffer),
        }
    }

    /// The most bytes that the argument takes.
    fn most(&self) -> usize {
        match self {
            Self::Number(_) => DIGITS,
            Self::Whole(text) => text.len(),
            Self::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
            Self::Value(claim) => claim.token.as_str().len() + DIGITS + 1,
        }
    }
}

/// Packs a few arguments, for a request of one lock.
pub(super) fn packed<const N: usize>(arguments: [Argument<'_>; N]) -> [Value; N] {
    let mut buffer = Vec::with_capacity(arguments.iter().map(Argument::most).sum());
    let ends = arguments.map(|text| {
        text.write(&mut buffer);
        buffer.len()
    });
    let (buffer, mut start) = (Bytes::from(buffer), 0);
    ends.map(|end| Value::Bytes(buffer.slice(replace(&mut start, end)..end)))
}

/// Any number of packed arguments, for a request of many locks.
pub(super) struct Packed {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Packed {
    /// Without arguments yet, with room for this number of them.
    pub(super) fn with_capacity(arguments: usize) -> Self {
        Self { text: Vec::with_capacity(arguments * ARGUMENT), ends: Vec::with_capacity(arguments) }
    }

    pub(super) fn put(&mut self, text: &Argument<'_>) {
        text.write(&mut self.text);
        self.ends.push(self.text.len());
    }

    pub(super) fn into_values(self) -> impl ExactSizeIterator<Item = Value> {
        let (text, mut start) = (Bytes::from(self.text), 0);
        self.ends.into_iter().map(move |end| Value::Bytes(text.slice(replace(&mut start, end)..end)))
    }
}

/// `span` in milliseconds, rounded up: a key must not expire before the lease that relies on it.
pub(super) fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// `span` in seconds, rounded up, as a restart delay must be.
pub(super) fn seconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u64::MAX)
}
