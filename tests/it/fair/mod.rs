//! Fair locks.

mod faults;
pub(crate) mod line;
mod lost;
mod many;
mod order;
