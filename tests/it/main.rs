//! Tests of the library against real servers, in one program, because each test program costs a build.
//!
//! Tests that change process-wide state are in `process`, or call `alone`. Those that need all processors are in the
//! program `machine`.

// Helpers of tests may panic and read clocks, like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::disallowed_methods)]

mod auto_traits;
mod cluster;
mod combined;
mod common;
mod conformance;
mod connecting;
mod election;
mod fair;
mod faults;
mod fences;
mod grace;
mod hand_over;
mod misplaced;
mod multi_lock;
mod neighbours;
mod pages;
mod process;
mod push;
mod quorum;
mod recipes;
mod releasing;
mod renewing;
mod replicas;
mod restart_delay;
mod scopes;
mod scripts;
mod sentinel;
mod servers;
mod set_back;
mod settings;
mod sharing;
mod stalling;
mod stopping;
mod threads;
mod tls;
mod waiting;
