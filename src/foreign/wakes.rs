//! The waking threads: they call and drop foreign wakers for the keeper.
//!
//! # Invariants
//!
//! 1. A job is run once, and never dropped.
//! 2. Of the threads one leads: it runs the jobs in their order. Another stands by, and takes the lead when the leader
//!    has sat in one job for too long while others wait.
//! 3. A thread that was left behind stands by when its job ends, if nobody else does, and ends otherwise. So idle
//!    threads are two.
//! 4. No lock is held while a job runs.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, OnceLock},
    task::Waker,
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::sync::catching_panics;

/// How long one job may keep the others waiting.
const PATIENCE: Duration = Duration::from_millis(5);

/// The same while another job blocks already: the next one is less trusted.
const LESS_PATIENCE: Duration = Duration::from_millis(1);

/// The most threads. When so many jobs block at a time, the others wait for the first of them to end.
const MOST_THREADS: usize = 64;

/// The leader, and the thread that stands by.
const IDLE_THREADS: usize = 2;

/// Something to do for the keeper, elsewhere.
pub(crate) enum Job {
    Wake(Waker),
    /// A waker that nobody needs any more.
    Forget(Waker),
    Step(Box<dyn FnOnce() + Send>),
}

impl Job {
    pub(super) fn run(self) {
        let _done = catching_panics(move || match self {
            Self::Wake(waker) => waker.wake(),
            Self::Forget(waker) => drop(waker),
            Self::Step(step) => step(),
        });
    }
}

#[derive(Default)]
struct Crew {
    state: Mutex<WakeState>,
    /// There is a job for the leader.
    work: Condvar,
    /// The leader has a job while another waits.
    watch: Condvar,
}

#[derive(Default)]
struct WakeState {
    jobs: VecDeque<Job>,
    /// The leader's number. A thread with a smaller one was left behind.
    leader: u64,
    is_busy: bool,
    /// How many jobs were begun: whether the leader has gone on.
    begun: u64,
    /// How many stand by: one, or none while the threads are at their most.
    standing_by: usize,
    /// The one that stands by looks again by itself.
    is_watching: bool,
    threads: usize,
}

static CREW: OnceLock<Crew> = OnceLock::new();

/// Starts the leader if it is not there yet; it has the one that stands by started.
pub(super) fn start() -> io::Result<()> {
    let crew = CREW.get_or_init(Crew::default);
    let mut state = crew.state.lock();
    if state.threads > 0 {
        return Ok(());
    }
    // Under the lock: a second caller must not go away before there is a thread.
    crew.spawn()?;
    (state.standing_by, state.threads) = (1, 1);
    Ok(())
}

/// Has a job done on another thread. Takes a lock that nobody keeps, and does not wait.
pub(crate) fn hand_over(job: Job) {
    // Without a keeper there is nobody to be spared.
    let Some(crew) = CREW.get() else { return job.run() };
    let mut state = crew.state.lock();
    state.jobs.push_back(job);
    if !state.is_busy {
        crew.work.notify_one();
    } else if !state.is_watching {
        crew.watch.notify_one();
    }
}

/// Has a step of the program's taken on a thread of its own, for it may take its time; here, if there can be none.
pub(crate) fn on_its_own_thread(step: impl FnOnce() + Send + 'static) {
    let step = Arc::new(Mutex::new(Some(step)));
    let taken = {
        let step = step.clone();
        move || {
            let step = step.lock().take();
            let _taken = catching_panics(move || step.map(|step| step()));
        }
    };
    if thread::Builder::new().name("leasehold-tells".into()).spawn(taken.clone()).is_err() {
        taken();
    }
}

impl Crew {
    /// Starts one more thread, which stands by until it is needed.
    fn recruit(&'static self, state: &mut MutexGuard<'_, WakeState>) -> io::Result<()> {
        state.standing_by += 1;
        state.threads += 1;
        let started = MutexGuard::unlocked(state, || self.spawn());
        if started.is_err() {
            state.standing_by -= 1;
            state.threads -= 1;
        }
        started
    }

    fn spawn(&'static self) -> io::Result<()> {
        thread::Builder::new().name("leasehold-wakes".into()).spawn(|| self.serve()).map(drop)
    }

    /// Has somebody stand by. Without it the jobs wait for this thread; the next job brings another try.
    fn recruit_if_alone(&'static self, state: &mut MutexGuard<'_, WakeState>) {
        if state.standing_by == 0 && state.threads < MOST_THREADS {
            let _recruited = self.recruit(state);
        }
    }

    /// The life of a thread.
    fn serve(&'static self) {
        let mut state = self.state.lock();
        loop {
            self.stand_by(&mut state);
            self.lead(&mut state);
            if state.standing_by > 0 {
                state.threads -= 1;
                return;
            }
            state.standing_by += 1;
        }
    }

    /// Returns when this thread has to lead.
    fn stand_by(&self, state: &mut MutexGuard<'_, WakeState>) {
        // The first of all has nobody to wait for.
        while state.leader > 0 {
            if !state.is_busy || state.jobs.is_empty() {
                self.watch.wait(state);
                continue;
            }
            let (begun, blocked) = (state.begun, state.threads > IDLE_THREADS);
            state.is_watching = true;
            let has_waited = self.watch.wait_for(state, if blocked { LESS_PATIENCE } else { PATIENCE });
            state.is_watching = false;
            if has_waited.timed_out() && state.is_busy && state.begun == begun && !state.jobs.is_empty() {
                break;
            }
        }
        state.leader += 1;
        state.standing_by -= 1;
        state.is_busy = false;
    }

    /// Runs jobs until another thread leads.
    fn lead(&'static self, state: &mut MutexGuard<'_, WakeState>) {
        let number = state.leader;
        self.recruit_if_alone(state);
        while state.leader == number {
            let Some(job) = state.jobs.pop_front() else {
                self.work.wait(state);
                continue;
            };
            state.is_busy = true;
            state.begun += 1;
            // It came before this thread woke up, when nobody had to watch.
            if !state.jobs.is_empty() && !state.is_watching {
                self.watch.notify_one();
            }
            self.recruit_if_alone(state);
            MutexGuard::unlocked(state, || job.run());
            if state.leader == number {
                state.is_busy = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::mpsc};

    use super::*;

    const HANGS: Duration = Duration::from_secs(20);

    fn step(step: impl FnOnce() + Send + 'static) {
        hand_over(Job::Step(Box::new(step)));
    }

    #[test]
    fn jobs_that_block_or_panic_keep_no_other_waiting_and_none_is_lost() {
        super::super::start_without_numbers();
        let (release, blocked) = (Mutex::new(()), mpsc::channel::<u32>());
        let release: &'static Mutex<()> = Box::leak(Box::new(release));
        let held = release.lock();
        for number in 0..8 {
            let (over, begun) = (blocked.0.clone(), mpsc::channel());
            step(move || {
                begun.0.send(()).unwrap();
                drop(release.lock());
                over.send(number).unwrap();
            });
            begun.1.recv_timeout(HANGS).expect("it is not kept waiting by those that block");
            step(|| panic!("a job that panics, as it is meant to"));
        }
        let (said, heard) = mpsc::channel();
        for number in 0..1000 {
            let said = said.clone();
            step(move || said.send((thread::current().id(), number)).unwrap());
        }
        let mut all = HashMap::<_, Vec<u32>>::new();
        for _ in 0..1000 {
            let (thread, number) = heard.recv_timeout(HANGS).unwrap();
            all.entry(thread).or_default().push(number);
        }
        assert!(all.values().all(|jobs| jobs.is_sorted()), "each thread runs them in their order");
        let mut all: Vec<u32> = all.into_values().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        drop(held);
        let mut ended: Vec<u32> = (0..8).map(|_| blocked.1.recv_timeout(HANGS).unwrap()).collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_came_before_the_leader_woke_up_waits_for_no_third() {
        super::super::start_without_numbers();
        let crew = CREW.get().unwrap();
        let ((end, ended), (say, said)) = (mpsc::channel::<()>(), mpsc::channel());
        let blocks: Box<dyn FnOnce() + Send> = Box::new(move || assert!(ended.recv().is_err()));
        // Both threads sleep: no event tells.
        thread::sleep(Duration::from_millis(100));
        let mut state = crew.state.lock();
        // As two calls of `hand_over` before the leader has woken up.
        state.jobs.push_back(Job::Step(blocks));
        crew.work.notify_one();
        state.jobs.push_back(Job::Step(Box::new(move || say.send(()).unwrap())));
        crew.work.notify_one();
        drop(state);
        let outcome = said.recv_timeout(HANGS / 4);
        drop(end);
        outcome.expect("it does not stand behind the one that blocks");
    }
}
