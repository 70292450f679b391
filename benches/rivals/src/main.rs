//! The bench that `scripts/bench` runs: each part measures, and writes its own section of `docs/performance.md`.

use std::{env, error, time::Duration};

mod bound;
mod chart;
mod cluster;
mod command;
mod contestant;
mod hand_off;
mod held;
mod idle;
mod life;
mod machine;
mod page;
mod peer;
mod pictures;
mod plain;
mod profile;
mod quorum;
mod rates;
mod rivals;
mod rounds;
mod server;
mod shared;
mod short;
mod stats;
mod table;
mod timeline;
mod told;
mod usage;
mod waiting;
mod ways;

use contestant::Contestant;
use server::Server;

type Error = Box<dyn error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// The TTL everywhere: long enough that a short cycle never renews.
const TTL: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["told"] => told::main(),
        ["pictures"] => pictures::main(),
        ["rivals"] => rivals::rivals(),
        ["lone"] => rivals::lone(),
        ["handoff"] => hand_off::main(),
        ["quorum"] => quorum::main(),
        ["waiting"] => waiting::main(),
        ["idle"] => idle::main(),
        ["held"] => held::main(),
        ["held", "short"] => short::main(),
        ["cluster"] => cluster::main(),
        ["cluster", "replicas"] => cluster::replicas(),
        ["profile"] => profile::main(),
        ["ways"] => ways::main(),
        ["shared"] => shared::main(),
        ["command", tool] => command::main(tool, None),
        ["command", tool, static_tool] => command::main(tool, Some(static_tool)),
        // The parts start this program once more, with these arguments.
        ["peer", url] => peer::serve(Contestant::waiting(url)),
        ["sharer", url] => peer::serve(shared::hand_over::contestants(url)),
        ["crowd", url] => shared::crowd::serve(url),
        ["bound", port] => bound::serve(port.parse()?),
        ["names", port] => waiting::serve_names(port.parse()?),
        ["holder", url, ports, ids, leases, what] => held::serve(held::Holder::of(url, ports, ids, leases, what)?),
        _ => Err("run it by scripts/bench".into()),
    }
}

/// The median of some values, and how far they spread.
#[derive(Debug, Clone, Copy)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Self {
        Self::up_to(values, 1.0)
    }

    /// A spread whose maximum is a percentile, where a few late values would hide the rest.
    fn up_to(values: impl IntoIterator<Item = f64>, most: f64) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let share = |share| percentile(values.iter().copied(), share);
        Self { median: share(0.5), least: share(0.0), most: share(most) }
    }

    /// `median (least..most)`
    fn show(&self, number: impl Fn(f64) -> String) -> String {
        format!("{} ({}..{})", number(self.median), number(self.least), number(self.most))
    }

    fn of_thousands(self) -> Self {
        Self { median: self.median / 1e3, least: self.least / 1e3, most: self.most / 1e3 }
    }
}

/// The median; zero if there are no values.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(values, 0.5)
}

/// The value that this share of all values does not exceed; zero if there are none.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
fn percentile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values.get((last * share).round() as usize).copied().unwrap_or_default()
}
