//! The machine that a table describes, and the cores of it that are used.

use std::{env, fs};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

/// The cores that this process may use.
pub fn cores() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect())
}

/// Pins the calling thread, and all threads and processes that it starts from here on.
pub fn pin(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Pins to two cores, for servers and clients together.
pub fn pin_to_two() -> Result<[usize; 2]> {
    let cores = cores()?;
    let (Some(first), Some(second)) = (cores.first(), cores.get(1)) else { return Err("it needs two cores".into()) };
    pin(&[*first, *second])?;
    Ok([*first, *second])
}

/// The libraries that are compared, with their versions.
pub fn versions() -> String {
    env::var("LEASEHOLD_BENCH_VERSIONS").unwrap_or_else(|_| "versions that were not asked".into())
}

/// The facts that make the figures comparable, and leave the machine anonymous. `scripts/bench` knows the rest.
pub fn describe() -> String {
    let told = env::var("LEASEHOLD_BENCH_MACHINE").unwrap_or_else(|_| "a machine that was not asked".into());
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown").to_owned();
    format!("{told}, load {load} before")
}
