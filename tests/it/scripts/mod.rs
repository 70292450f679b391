//! The Lua scripts at the wire, without the library.

mod queue;
mod votes;
