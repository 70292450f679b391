//! Locks over a quorum.

mod broken;
mod faults;
mod fences;
mod hand_over;
mod interop;
mod keys;
mod network;
mod nodes;
mod outliving;
mod process;
mod runs;
mod runtimes;
pub(crate) mod scene;
mod together;
mod votes;
mod waiting;
