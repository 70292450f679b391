//! A server's uptime, as this program knows it by its own clock.
//!
//! A server derives its uptime from its wall clock. After that clock is set back, the server looks freshly started, and
//! would give no vote for as long as the step. A client that has had a reply of the same run for longer than the
//! restart delay knows better. So its requests state how long ago that was, and the script takes the larger uptime.
//!
//! # Invariants
//!
//! 1. A witness never exceeds the true uptime. It counts from the arrival of the *reply* to the first request, in whole
//!    seconds, rounded down. Its clock counts suspend (rule 3).
//! 2. It is for one run of one server. The script compares the run id, so the witness of a run that has ended counts
//!    for nothing.
//! 3. It is a duration, not a time of day (rule 4).

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::time::Time;
use parking_lot::Mutex;

use crate::{
    clock::{self, Clock},
    node::redis::{reply, wire::Value},
};

/// The run that has answered, and since when.
pub(super) struct Witness {
    clock: Arc<dyn Clock>,
    run: Mutex<Option<(Box<str>, Time)>>,
    /// Whether this process waits in queues that ask for the uptime: then releases, which pass locks on, ask too.
    queues: AtomicBool,
    /// Whether the server forgets its scripts on a restart, as far as its version is known.
    forgets_scripts: AtomicBool,
}

impl Witness {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            run: Mutex::default(),
            queues: AtomicBool::new(false),
            forgets_scripts: AtomicBool::new(false),
        })
    }

    /// Notes that a reply of this run arrived.
    pub(super) fn heard(&self, run_id: &str) {
        let mut run = self.run.lock();
        if run.as_ref().is_none_or(|(known, _)| **known != *run_id) {
            *run = Some((run_id.into(), clock::now(&*self.clock)));
        }
    }

    /// Notes the run of the server, if the reply to a poll or a repair names it.
    pub(super) fn read(&self, reply: &Value) {
        if let Some(run_id) = reply::run_id(reply) {
            self.heard(&run_id);
        }
    }

    /// The run that has answered, and its least uptime in seconds; `None` before the first second has passed.
    fn known(&self) -> Option<(Box<str>, u64)> {
        let (run_id, since) = self.run.lock().clone()?;
        let up = clock::now(&*self.clock).since(since).as_secs();
        (up > 0).then_some((run_id, up))
    }

    /// Notes the server's version: from 7.0 on, it forgets its scripts on a restart.
    pub(super) fn note_version(&self, major: Option<u32>) {
        self.forgets_scripts.store(major.is_some_and(|major| major >= 7), Ordering::Relaxed);
    }

    /// Whether a server of this run may vote whatever its own clock says. Then this run's script is enough.
    pub(super) fn vouches_for(&self, run_id: &str, restart_delay: Duration) -> bool {
        let now = clock::now(&*self.clock);
        let up = |(known, since): &(Box<str>, Time)| (**known == *run_id).then(|| now.since(*since).as_secs());
        let up = Duration::from_secs(self.run.lock().as_ref().and_then(up).unwrap_or_default());
        self.forgets_scripts.load(Ordering::Relaxed) && up >= restart_delay
    }

    /// Appends the witness to the other arguments of a script that checks the uptime.
    pub(super) fn testify(&self, arguments: &mut Vec<Value>) {
        if let Some((run_id, up)) = self.known() {
            arguments.extend([Value::from(&*run_id), i64::try_from(up).unwrap_or(i64::MAX).into()]);
        }
    }

    /// Like [`testify`](Self::testify), for a poll.
    pub(super) fn testify_and_queue(&self, arguments: &mut Vec<Value>) {
        self.queues.store(true, Ordering::Relaxed);
        self.testify(arguments);
    }

    /// Like [`testify`](Self::testify), for a script that may pass a lock on to a queue.
    pub(super) fn testify_to_queues(&self, arguments: &mut Vec<Value>) {
        if self.queues.load(Ordering::Relaxed) {
            self.testify(arguments);
        }
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Witness").field(&*self.run.lock()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Hand(Mutex<Duration>);

    impl Clock for Hand {
        fn now(&self) -> Duration {
            *self.0.lock()
        }
    }

    #[test]
    fn a_witness_counts_whole_seconds_from_the_first_reply_of_a_run() {
        let clock = Arc::new(Hand::default());
        let witness = Witness::new(clock.clone());
        let at = |millis: u64| *clock.0.lock() = Duration::from_millis(millis);
        at(5_000);
        assert_eq!(witness.known(), None, "nothing has answered");
        witness.heard("one");
        at(5_999);
        assert_eq!(witness.known(), None);
        at(8_999);
        witness.heard("one");
        assert_eq!(witness.known(), Some(("one".into(), 3)), "rounded down, and from the first reply");
        witness.heard("two");
        assert_eq!(witness.known(), None, "another run, of which nothing is known");
        at(12_000);
        assert_eq!(witness.known(), Some(("two".into(), 3)));
        witness.heard("one");
        at(13_000);
        assert_eq!(witness.known(), Some(("one".into(), 1)), "a late reply costs time, and makes none");
    }

    #[test]
    fn only_a_run_that_was_known_for_the_restart_delay_is_vouched_for() {
        let clock = Arc::new(Hand::default());
        let witness = Witness::new(clock.clone());
        let delay = Duration::from_secs(31);
        witness.heard("one");
        *clock.0.lock() = Duration::from_millis(31_999);
        assert!(!witness.vouches_for("one", delay), "a server of an unknown version may keep its scripts");
        for (major, may) in [(None, false), (Some(6), false), (Some(7), true), (Some(9), true)] {
            witness.note_version(major);
            assert_eq!(witness.vouches_for("one", delay), may, "{major:?}");
        }
        assert!(!witness.vouches_for("two", delay) && witness.vouches_for("two", Duration::ZERO));
        assert!(!witness.vouches_for("one", delay + Duration::from_millis(1)), "whole seconds");
        witness.heard("two");
        assert!(!witness.vouches_for("one", delay) && !witness.vouches_for("two", delay));
    }

    #[test]
    fn the_run_is_read_from_the_replies_that_name_it() {
        let clock = Arc::new(Hand::default());
        let witness = Witness::new(clock.clone());
        let waits: Vec<Value> = vec![0.into(), 7.into(), "a value".into(), 8.into(), "9".into(), 0.into(), 1.into()];
        for nameless in [waits, vec![1.into(), "5".into()], vec![2.into(), 9.into(), Value::Null]] {
            witness.read(&Value::Array(nameless));
            assert!(witness.run.lock().is_none());
        }
        let recovers: Vec<Value> = vec![2.into(), 9.into(), "run".into(), "5".into(), 0.into(), 1.into()];
        for names_it in [recovers, vec![1.into(), "5".into(), "run".into()], vec![2.into(), 9.into(), "run".into()]] {
            *witness.run.lock() = None;
            witness.read(&Value::Array(names_it));
            assert!(witness.run.lock().as_ref().is_some_and(|(run_id, _)| **run_id == *"run"));
        }
    }
}
