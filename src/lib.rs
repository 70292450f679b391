// The page has links to files, for a clone and a forge. Here are the same names for rustdoc, which has no files beside
// it: of two definitions the first counts.
#![doc = "[contributing]: https://docs.rs/crate/leasehold/latest/source/CONTRIBUTING.md"]
#![doc = "[cookbook]: crate::cookbook"]
#![doc = "[cron]: crate::cron"]
#![doc = "[Deployments]: crate::deployments"]
#![doc = "[guide]: crate::guide"]
#![doc = "[metrics]: crate::metrics"]
#![doc = "[Operations]: crate::operations"]
#![doc = "[Performance]: https://docs.rs/crate/leasehold/latest/source/docs/performance.md"]
#![doc = "[Quorum]: crate::quorum"]
#![doc = "[Safety]: crate::safety"]
#![doc = "[Security]: https://docs.rs/crate/leasehold/latest/source/SECURITY.md"]
#![doc = "[unconfirmed]: crate::guide#when-a-release-is-not-confirmed"]
#![doc = "[Waiting]: crate::waiting"]
#![doc = "[work that can fail]: crate::guide#work-that-can-fail"]
#![doc = include_str!("../docs/performance/rates-multi.link")]
#![doc = include_str!("../README.md")]
// Shows which feature an item needs; docs.rs builds with a compiler that can.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod bounds;
mod capabilities;
mod client;
mod clock;
mod error;
mod foreign;
mod guarded;
#[cfg_attr(all(test, leasehold_shuttle), path = "keeper/shuttle.rs")]
mod keeper;
mod lease;
mod leases;
mod lock;
mod lost;
mod node;
mod owner;
mod random;
mod reentry;
mod released;
#[cfg(all(test, leasehold_shuttle))]
mod shuttle_tests;
mod status;
mod sync;
mod troubles;
mod wait;
mod waiter;
mod watchdog;

#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

// Its snippets use a web framework and databases: `examples/cookbook` compiles and runs them, with those crates.
#[cfg_attr(not(doctest), doc = include_str!("../docs/cookbook.md"))]
#[doc(alias = "leader")]
pub mod cookbook {}

#[doc = include_str!("../docs/waiting.md")]
pub mod waiting {}

#[doc = include_str!("../docs/quorum.md")]
pub mod quorum;

#[doc = include_str!("../docs/operations.md")]
pub mod operations {}

#[doc = include_str!("../docs/cron.md")]
pub mod cron {}

#[doc = include_str!("../docs/metrics.md")]
pub mod metrics;

#[cfg(feature = "testing")]
#[doc = include_str!("../docs/testing.md")]
pub mod testing;

#[doc = include_str!("../docs/safety.md")]
pub mod safety {}

#[doc = include_str!("../docs/deployments.md")]
pub mod deployments {}

pub use tokio_util::sync::CancellationToken;

#[doc(inline)]
pub use leasehold_protocol::{
    fence::{Fence, ParseFenceError},
    holder::Holder,
    loss::LossReason,
    node_status::{NodeState, NodeStatus},
    votes::{NodeAnswer, Vote, Votes},
};

pub use crate::{
    capabilities::{Capabilities, Notifications},
    clock::{Clock, Jumps, SystemClock},
    error::{Details, Error, ErrorKind},
    guarded::Guarded,
    keeper::Keeper,
    lease::{Lease, LeaseHandle},
    leases::{Builder, Leases},
    lock::Lock,
    lost::Lost,
    owner::Owner,
    released::Released,
    status::{Status, StatusChanges},
    waiter::Waiter,
};
