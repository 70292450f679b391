//! The built `leasehold`, as a user runs it, against real servers.

// The tests do not use the library's wrappers for time, threads and tasks.
#![allow(clippy::disallowed_methods)]
// A helper that cannot do its work has to stop the test and say why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod acl;
mod help;
mod hold;
mod look;
mod observe;
mod run;
mod scene;
mod settings;
mod sharing;
mod stalling;
mod terminal;
