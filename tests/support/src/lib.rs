//! Tools of the tests and of the soak: real servers, a raw client, a proxy that injects faults, waiting with a limit.
//!
//! Only [`scripts`] depends on the library under test. So a failed test says something about the library, and these
//! tools can be trusted before it works.

// A test's tool that cannot work must stop the test and report why.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)]
// A test that drops a result has its reasons.
#![allow(clippy::must_use_candidate)]
// The library's wrappers for time, threads and tasks are not meant for its tests.
#![allow(clippy::disallowed_methods)]

mod alone;
mod binary;
mod bounds;
mod child;
mod clock_shim;
mod cluster;
mod event_log;
mod fenced_write;
mod lag;
mod nodes;
mod pool;
mod proxy;
mod proxy_conn;
mod proxy_rule;
mod replicated;
mod resp;
mod run;
pub mod scripts;
pub mod seen;
mod sentinels;
mod server;
mod sha1;
pub mod spawner;
mod stamp;
mod temp_dir;
mod tls;
mod tracking;
mod wait;
mod wire;

pub use alone::alone;
pub use binary::Version;
pub use bounds::{HANGS, SIGNAL};
pub use child::{Child, Part, test_name};
pub use clock_shim::ClockShim;
pub use cluster::{Cluster, NODE_TIMEOUT};
pub use event_log::EventLog;
pub use fenced_write::{FENCED_WRITE, fenced_write, try_fenced_write};
pub use lag::Lag;
pub use nodes::{AGE, Nodes, urls};
pub use pool::{Deployment, Loan, Pool};
pub use proxy::{Messages, Proxy, Seen};
pub use proxy_rule::{Action, Match, RuleHandle};
pub use replicated::{Replicated, await_replicas};
pub use resp::Value;
pub use run::{Dropped, Polls, on_no_runtime, one_thread, timed, two_workers};
pub use sentinels::{SERVICE, Sentinels};
pub use server::{NoTls, Server, ServerBuilder};
pub use sha1::sha1_hex;
pub use stamp::{Stamped, stamped};
pub use temp_dir::TempDir;
pub use tls::Authority;
pub use tracking::{start_anew, waiter_is_tracked};
pub use wait::{eventually, eventually_async, eventually_but_for, within};
pub use wire::Wire;
