//! The Lua scripts at the wire, without the library.

mod queue;
mod votes;

const LOCK: &str = "job";
const FENCE: &str = "{job}:lh:fence";
/// Longer than any test here, in milliseconds.
const TTL: &str = "30000";
