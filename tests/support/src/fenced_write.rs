//! The resource of the tests: a hash in Redis that refuses writes by earlier holders, as in the cookbook's recipe.

use std::io;

use super::wire::Wire;

/// The recipe's script, as shown in the cookbook.
pub const FENCED_WRITE: &str = include_str!("fenced_write.lua");

/// Writes a value, unless a later holder has written before. The error is that holder's fence.
#[track_caller]
pub fn fenced_write(wire: &mut Wire, key: &str, value: &str, fence: impl Into<u64>) -> Result<(), u64> {
    try_fenced_write(wire, key, value, fence).unwrap_or_else(|error| panic!("{key} was not written: {error}"))
}

/// Like [`fenced_write`], for callers that expect a broken connection.
pub fn try_fenced_write(wire: &mut Wire, key: &str, value: &str, fence: impl Into<u64>) -> io::Result<Result<(), u64>> {
    let fence = fence.into().to_string();
    let stored = wire.try_cmd(&["EVAL", FENCED_WRITE, "1", key, value, &fence])?.text();
    Ok(if stored == fence { Ok(()) } else { Err(stored.parse().expect("a fence is stored")) })
}
