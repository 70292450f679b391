//! What this process uses, from Linux' `/proc`.

use std::fs;

use crate::Result;

/// Linux counts processor time in hundredths of a second here, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time of this process, all threads.
///
/// # Errors
///
/// This is not Linux.
pub fn cpu() -> Result<f64> {
    cpu_of(std::process::id())
}

/// Seconds of processor time of another process.
///
/// # Errors
///
/// It does not run, or this is not Linux.
pub fn cpu_of(process: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The command's name, in brackets, may hold blanks; behind it utime and stime are the 12th and 13th.
    let (_, fields) = stat.rsplit_once(')').ok_or("unreadable stat")?;
    let ticks: Vec<f64> = fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// Seconds of processor time of all threads of this process whose name starts so, to the nanosecond.
///
/// # Errors
///
/// This is not Linux, or its kernel does not tell.
pub fn cpu_of_threads(name: &str) -> Result<f64> {
    let mut seconds = 0.0;
    for thread in fs::read_dir("/proc/self/task")? {
        let thread = thread?.path();
        if fs::read_to_string(thread.join("comm"))?.starts_with(name) {
            let stat = fs::read_to_string(thread.join("schedstat"))?;
            seconds += stat.split_whitespace().next().ok_or("unreadable schedstat")?.parse::<f64>()? / 1e9;
        }
    }
    Ok(seconds)
}

/// Bytes of this process in memory.
///
/// # Errors
///
/// This is not Linux.
pub fn memory() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("unreadable status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}
