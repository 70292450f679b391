//! What every scene has, whatever its servers are: its record, the resource that the locks protect, and the workers.

use std::{
    io::{BufRead, BufReader, Write},
    ops::Deref,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use support::{Lag, Server, eventually, spawner};

use crate::{
    history::{Mark, Name, Recorder, Whom},
    record::{Line, Nanos, Process, now},
    setup::{Kind, Stage},
    worker::{self, Part},
};

/// How long a worker may take to rest, and to end, when it is told to.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// The soak of another build, whose workers take every second place; unset where all are of this one.
const OTHER_BUILD: &str = "LEASEHOLD_SOAK_OTHER_BUILD";

/// What every scene has.
pub struct Crew {
    pub stage: Stage,
    pub resource: Server,
    pub recorder: Arc<Mutex<Recorder>>,
    pub seed: u64,
    pub lag: Lag,
    kinds: u64,
    /// How many replicas must have what a worker is granted.
    pub min_replicas: u8,
}

/// A scene: it has a crew, and gives each worker the addresses of the servers.
pub trait Scenery: Deref<Target = Crew> + Sync {
    fn worker(&self, process: Process) -> Worker;

    /// Held while a worker is in trouble, if something else has to wait for that.
    fn troubled(&self) -> Option<RwLockReadGuard<'_, ()>> {
        None
    }
}

impl Crew {
    /// A crew whose workers use these kinds of locks, by their bits.
    pub fn new(stage: Stage, names: Vec<Name>, seed: u64, kinds: u64) -> Self {
        let recorder = Arc::new(Mutex::new(Recorder::new(names)));
        Self { stage, resource: Server::start(), recorder, seed, lag: Lag::start(), kinds, min_replicas: 0 }
    }

    /// Sets how many replicas must have what a worker is granted.
    pub fn with_min_replicas(self, min_replicas: u8) -> Self {
        Self { min_replicas, ..self }
    }

    /// The number of a lock.
    pub fn number_of(&self, kind: &Kind) -> usize {
        self.stage.kinds().iter().position(|other| other.name == kind.name).unwrap_or(0)
    }

    /// Whether all replicas have what a worker is granted, so that none that takes over lacks it (rule 12).
    pub fn all_replicas_confirm(&self) -> bool {
        self.min_replicas > 0 && self.min_replicas >= self.stage.replicas()
    }

    pub fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn mark(&self, from: Nanos, whom: Whom, text: impl Into<String>) {
        let mark = Mark { from, to: now(), whom, text: text.into() };
        self.recorder().history.marks.push(mark);
    }

    /// Starts a worker with the addresses of its servers. Its lines are recorded as they come.
    pub fn hire(&self, process: Process, servers: Vec<String>, password: String) -> Worker {
        let part = Part {
            stage: self.stage,
            process,
            seed: self.seed,
            kinds: self.kinds,
            min_replicas: self.min_replicas,
            resource: self.resource.port(),
            password,
            servers,
        };
        let this = || std::env::current_exe().unwrap_or_else(|_| PathBuf::from("leasehold-soak"));
        let other = std::env::var_os(OTHER_BUILD).filter(|_| process.slot % 2 == 1);
        let program = other.map_or_else(this, PathBuf::from);
        let mut command: Command = spawner::mortal(&program);
        command.arg("worker").args(part.to_args()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawner::spawn(command).expect("a worker starts");
        let input = child.stdin.take();
        let output = child.stdout.take().expect("the worker's output was asked for");
        let recorder = self.recorder.clone();
        let hearing = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let line: Line = line.parse().unwrap_or_else(|_| panic!("a worker said {line:?}"));
                recorder.lock().unwrap_or_else(PoisonError::into_inner).hear(&line);
            }
        });
        Worker { process, child, input, hearing: Some(hearing) }
    }
}

/// A worker process; killed and reaped on drop.
pub struct Worker {
    pub process: Process,
    child: Child,
    input: Option<ChildStdin>,
    hearing: Option<JoinHandle<()>>,
}

impl Worker {
    /// Kills it without warning. All that it reported is recorded when this returns.
    pub fn kill(mut self, crew: &Crew) {
        self.end();
        crew.recorder().killed(self.process);
    }

    /// Suspends it, and returns once it is suspended.
    pub fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("SIGSTOP reaches the worker");
        let states = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), states).expect("the worker reports that it is suspended");
    }

    pub fn cont(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("SIGCONT reaches the worker");
    }

    /// Tells it to begin nothing more.
    pub fn rest(&mut self) {
        self.tell(worker::REST);
    }

    /// Has its log take no lines, or take them again.
    pub fn stall_log(&mut self, stalls: bool) {
        self.tell(if stalls { worker::STALL_LOG } else { worker::UNSTALL_LOG });
    }

    fn tell(&mut self, word: u8) {
        if let Some(input) = &mut self.input {
            input.write_all(&[word]).ok();
        }
    }

    /// Waits until it has nothing under way, after [`rest`](Self::rest).
    pub fn rested(&mut self, crew: &Crew) {
        let (process, what) = (self.process, format!("{} comes to rest", self.process));
        eventually(ENDS_WITHIN, &what, || crew.recorder().rested.contains(&process) || self.is_dead());
    }

    /// Tells it to end.
    pub fn dismiss(&mut self) {
        self.input.take();
    }

    /// Waits for its end after [`dismiss`](Self::dismiss); panics if it did not end well.
    pub fn ended(mut self, crew: &Crew) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("the worker can be waited for") {
                Some(status) => break status,
                None if start.elapsed() > ENDS_WITHIN => panic!("{} does not end", self.process),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert!(status.success(), "{} failed: {status}", self.process);
        self.kill(crew);
    }

    /// Whether it has died by itself.
    pub fn is_dead(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    fn end(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(hearing) = self.hearing.take() {
            hearing.join().expect("the worker's lines can be read");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
