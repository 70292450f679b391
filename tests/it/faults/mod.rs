//! The fault table's rows for one server. Each test is named after its row.

mod address;
mod batched;
mod clocks;
mod credentials;
mod floors;
mod keys;
mod lossy;
mod network;
mod outage;
mod outliving;
mod pressure;
mod process;
mod queued;
pub(crate) mod refusals;
mod unpushed;
