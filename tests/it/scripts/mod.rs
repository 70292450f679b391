//! The Lua scripts at the wire, without the library.

mod combined;
mod queue;
mod shares;
mod succession;
mod votes;

use support::Wire;

const LOCK: &str = "job";
const FENCE: &str = "{job}:lh:fence";
/// Longer than any test here, in milliseconds.
const TTL: &str = "30000";
/// A day, in milliseconds.
const MEMORY: &str = "86400000";

/// The token with this label, always the same one.
fn token(label: &str) -> String {
    let number = label.bytes().fold(1, |sum: u64, byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
    let number = number % (1 << 48);
    format!("lh1:00000000-0000-4000-8000-{number:012x}@{label}")
}

/// The text with each token and value shortened to its label.
fn labels(text: &str) -> String {
    let mut parts = text.split("lh1:00000000-0000-4000-8000-");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('@').map_or("no label", |(_, label)| label))
}

/// The holder's label.
fn owner(wire: &mut Wire) -> Option<String> {
    wire.get(LOCK).map(|value| labels(&value))
}

/// The fence in a value.
fn fence_in(value: &str) -> Option<i64> {
    value.get(40..)?.strip_prefix(':')?.split_once('@')?.0.parse().ok()
}
