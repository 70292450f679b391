//! What the benchmarks share: a server of their own, the contestants, and medians.

use std::{error::Error, time::Duration};

mod contestant;
pub mod peer;
pub mod rates;
mod rounds;
mod server;
pub mod stats;
pub mod table;
pub mod usage;

pub use contestant::{Boxed, Contestant, Guard, leases, leases_at, leases_over};
pub use server::{Server, client_at};

pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The TTL everywhere: long enough that a short cycle never renews.
pub const TTL: Duration = Duration::from_secs(30);

/// The middle one; zero of nothing.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(values, 0.5)
}

/// The value that this share of all is not above; zero of nothing.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
pub fn percentile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values.get((last * share).round() as usize).copied().unwrap_or_default()
}
