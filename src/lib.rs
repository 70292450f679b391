// The README links to files, for a clone and a forge. rustdoc has no files beside it, so these definitions give it the
// same names: of two definitions, the first counts.
#![doc = "[contributing]: https://docs.rs/crate/leasehold/latest/source/CONTRIBUTING.md"]
#![doc = "[cookbook]: crate::docs::cookbook"]
#![doc = "[cron]: crate::docs::cron"]
#![doc = "[Deployments]: crate::docs::deployments"]
#![doc = "[guide]: crate::docs::guide"]
#![doc = "[metrics]: crate::docs::metrics"]
#![doc = "[Operations]: crate::docs::operations"]
#![doc = "[Performance]: https://docs.rs/crate/leasehold/latest/source/docs/performance.md"]
#![doc = "[Quorum]: crate::docs::quorum"]
#![doc = "[Safety]: crate::docs::safety"]
#![doc = "[Security]: https://docs.rs/crate/leasehold/latest/source/SECURITY.md"]
#![doc = "[Services]: crate::docs::services"]
#![doc = "[Sharing]: crate::docs::sharing"]
#![doc = "[unconfirmed]: crate::docs::guide#when-a-release-is-not-confirmed"]
#![doc = "[Waiting]: crate::docs::waiting"]
#![doc = "[When to use something else]: crate::docs::deployments#when-to-use-something-else"]
#![doc = "[work that can fail]: crate::docs::guide#work-that-can-fail"]
#![doc = include_str!("../docs/performance/told.link")]
#![doc = include_str!("../README.md")]
// Shows which feature an item needs. docs.rs builds with a compiler that supports it.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod block_on;
mod client;
mod clock;
mod credentials;
pub mod docs;
#[doc(hidden)]
pub mod doctor;
mod downgrade;
mod election;
mod engine;
mod error;
mod foreign;
mod hand_over;
mod held;
#[cfg_attr(all(test, leasehold_shuttle), path = "keeper/shuttle.rs")]
mod keeper;
mod lease;
mod lock;
mod lost;
mod metrics;
mod multi_lock;
mod node;
mod observers;
mod options;
mod owner;
mod per_shard;
mod quorum;
mod random;
mod reentry;
mod released;
mod rw_lock;
mod scope;
mod server;
#[cfg(all(test, not(leasehold_shuttle)))]
mod shard_tests;
#[cfg(all(test, leasehold_shuttle))]
mod shuttle_tests;
mod status;
mod survey;
mod sync;
mod tls;
mod troubles;
mod wait;
mod waiter;
mod watchdog;

#[cfg(feature = "testing")]
#[doc = include_str!("../docs/testing.md")]
pub mod testing;

#[doc(no_inline)]
pub use tokio_util::sync::CancellationToken;

#[doc(inline)]
pub use leasehold_protocol::{
    fence::{Fence, ParseFenceError},
    forced::ForcedRelease,
    holder::Holder,
    loss::LossReason,
    mode::Mode,
    node_status::{NodeState, NodeStatus},
    observer::Leadership,
    ticket::{ParseTicketError, Ticket},
    votes::{NodeAnswer, Vote, Votes},
};

#[doc(hidden)]
pub use crate::options::check_reason;
pub use crate::{
    block_on::block_on,
    client::{Builder, Client, Listing},
    clock::SystemClock,
    credentials::Credentials,
    election::{Election, Leaders},
    error::{Details, Error},
    lease::{Lease, LeaseHandle},
    lock::Lock,
    lost::Lost,
    multi_lock::{MultiLease, MultiLeaseHandle, MultiLock},
    owner::Owner,
    released::Released,
    rw_lock::RwLock,
    server::Server,
    status::{Status, StatusChanges},
    tls::Tls,
    waiter::Waiter,
};
