//! Processes, as `/proc` shows them. Without `/proc` we see no children, and every process counts as alive.

use std::fs::{self, DirEntry};

use rustix::{
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions, getpid, waitid},
};

/// Linux's `__WALL`: children of every kind.
const ALL_KINDS: WaitIdOptions = WaitIdOptions::from_bits_retain(0x4000_0000);

/// Our children.
pub(super) fn children() -> Vec<Pid> {
    // One call shows that there are none. Listing them takes several calls for each of our threads.
    let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT | ALL_KINDS;
    if matches!(waitid(WaitId::All, only_look), Err(Errno::CHILD)) { Vec::new() } else { children_of("self") }
}

/// These processes, their children, and so on.
pub(super) fn with_descendants(mut processes: Vec<Pid>) -> Vec<Pid> {
    let mut next = 0;
    while let Some(process) = processes.get(next) {
        let children = children_of(&process.as_raw_nonzero().to_string());
        // A process that changes its parent meanwhile might appear twice.
        let new: Vec<_> = children.into_iter().filter(|child| !processes.contains(child)).collect();
        processes.extend(new);
        next += 1;
    }
    processes
}

/// The children of all threads of a process: any of our threads may get an orphan.
fn children_of(process: &str) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(pid).collect::<Vec<_>>()).collect()
}

/// Whether a process of this group other than ourselves has not died yet.
pub(super) fn is_alive(group: Pid) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let ours = getpid();
    let others = processes.flatten().filter(|process| numbered(process) != Some(ours));
    let mut stats = others.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats.any(|stat| state(&stat).is_some_and(|(state, of)| of == group && !matches!(state, 'Z' | 'X')))
}

/// The processes that were started with this variable, and a value that `accepts` allows, as far as we may read that.
pub(super) fn with_variable(name: &str, accepts: impl Fn(&[u8]) -> bool) -> Vec<Pid> {
    let is_it =
        |one: &[u8]| one.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")).is_some_and(&accepts);
    let has_it = |process: &DirEntry| {
        let variables = fs::read(process.path().join("environ"));
        variables.is_ok_and(|variables| variables.split(|&byte| byte == 0).any(is_it))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| numbered(&process).filter(|_| has_it(&process))).collect()
}

/// The process whose directory in `/proc` this is.
fn numbered(directory: &DirEntry) -> Option<Pid> {
    pid(directory.file_name().to_str()?)
}

/// The state and the group in a line of `/proc/PID/stat`, whose second field may have any character in its parentheses.
fn state(stat: &str) -> Option<(char, Pid)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, pid(fields.nth(1)?)?))
}

fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_anything() {
        let group = pid("77").unwrap();
        assert_eq!(state("12 (sh) S 1 77 12 0 -1"), Some(('S', group)));
        assert_eq!(state("12 (a) Z 1 5 (b) T 1 77 12 0 -1"), Some(('T', group)));
        for line in ["", "12", "12 (sh)", "12 (sh) ", "12 (sh) S", "12 (sh) S 1", "12 (sh) S 1 x", "12 (sh) S 1 0 3"] {
            assert_eq!(state(line), None, "{line:?}");
        }
    }
}
