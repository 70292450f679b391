#![doc = include_str!("../README.md")]

mod acquire;
mod attempt;
mod capabilities;
mod clock;
mod doubling;
mod error;
mod fence;
mod foreign;
#[cfg(test)]
mod fuzz;
mod guarded;
mod holder;
mod jitter;
#[cfg_attr(all(test, leasehold_shuttle), path = "shuttled/keeper.rs")]
mod keeper;
mod key;
mod lease;
mod leases;
mod lock;
mod lost;
mod measures;
#[cfg(test)]
mod model;
mod node;
mod owner;
mod plants;
mod quorum;
mod shared;
#[cfg(all(test, leasehold_shuttle))]
mod shuttled;
mod status;
mod sync;
mod token;
mod votes;
mod wait;
mod watchdog;

#[doc = include_str!("../docs/cron.md")]
pub mod cron {}

#[doc = include_str!("../docs/metrics.md")]
pub mod metrics {}

#[doc = include_str!("../docs/safety.md")]
pub mod safety {}

#[doc = include_str!("../docs/set-ups.md")]
pub mod set_ups {}

pub use tokio_util::sync::CancellationToken;

pub use crate::{
    capabilities::{Capabilities, Push},
    clock::{Clock, SystemClock},
    error::{AcquireError, Error, ErrorKind, GuardError, ReleaseError, RenewError, RunError},
    fence::{Fence, InvalidFence},
    guarded::Guarded,
    holder::{Holder, Waiting},
    keeper::Keeper,
    lease::{Lease, LeaseHandle},
    leases::{Builder, Leases},
    lock::Lock,
    lost::{LossReason, Lost},
    owner::Owner,
    status::{Status, StatusChanges},
    votes::{NodeAnswer, NodeState, NodeStatus, Vote, Votes},
};
