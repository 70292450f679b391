//! The processor time and the memory of a process, from Linux' `/proc`.

use std::fs;

use crate::Result;

/// The seconds of processor time of this process: the threads that still run.
pub fn cpu() -> Result<f64> {
    cpu_of(std::process::id())
}

/// The seconds of processor time of another process, to the nanosecond: the threads that still run.
pub fn cpu_of(process: u32) -> Result<f64> {
    threads(process, "")
}

/// The seconds of processor time of all threads of this process whose name starts with `name`.
pub fn cpu_of_threads(name: &str) -> Result<f64> {
    threads(std::process::id(), name)
}

fn threads(process: u32, name: &str) -> Result<f64> {
    let mut seconds = 0.0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?.path();
        // A thread may end between the listing and the reading.
        let (Ok(comm), Ok(stat)) =
            (fs::read_to_string(thread.join("comm")), fs::read_to_string(thread.join("schedstat")))
        else {
            continue;
        };
        if comm.starts_with(name) {
            seconds += stat.split_whitespace().next().ok_or("unreadable schedstat")?.parse::<f64>()? / 1e9;
        }
    }
    Ok(seconds)
}

/// Bytes of this process in memory.
pub fn memory() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("unreadable status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}
