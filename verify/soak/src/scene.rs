//! The servers, the links to them, and the worker processes.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use support::{Lag, Nodes, Proxy, Server, ServerBuilder, eventually, spawner, urls};

use crate::{
    history::{Loss, Mark, Recorder, Whom},
    password::Password,
    record::{Line, Nanos, Process, now},
    setup::{LONE, SERVERS, names},
    worker::{self, Part},
};

/// How long a worker may take to rest, and to end, when it is told to.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Everything that takes part in a round.
pub struct Scene {
    pub servers: Nodes,
    /// By the lone server's clock. Its address leads here at times.
    stand_in: Server,
    stands_in: AtomicBool,
    /// Shared while something is in the way of a worker that looks where the address leads; alone while it moves.
    calm: RwLock<()>,
    pub resource: Server,
    /// For each worker, one to each server.
    pub links: Vec<Vec<Proxy>>,
    pub recorder: Arc<Mutex<Recorder>>,
    pub seed: u64,
    pub lag: Lag,
    kinds: u64,
    password: Mutex<Password>,
}

impl Scene {
    /// Servers that keep their data over a restart and have been up for long, and links for so many workers.
    pub fn new(seed: u64, workers: u16, kinds: u64) -> Self {
        // No fsync: what a killed process has written is there all the same.
        let lasting = |server: ServerBuilder| server.aof(true).arg("--appendfsync", "no");
        let servers = Nodes::with(SERVERS, lasting).season();
        let stand_in = lasting(Server::builder().clock(servers.clock(LONE))).start();
        let links = (0..workers).map(|_| servers.proxies()).collect();
        let recorder = Arc::new(Mutex::new(Recorder::new(names())));
        let password = Mutex::new(Password::new([&servers[LONE], &stand_in]));
        Self {
            servers,
            stand_in,
            stands_in: AtomicBool::new(false),
            calm: RwLock::new(()),
            resource: Server::start(),
            links,
            recorder,
            seed,
            lag: Lag::start(),
            kinds,
            password,
        }
    }

    /// Whatever the address of this server leads to.
    pub fn server(&self, at: usize) -> &Server {
        if at == LONE && self.stands_in.load(Ordering::SeqCst) { &self.stand_in } else { &self.servers[at] }
    }

    /// The lone server and the one that stands in for it at times.
    pub fn lone_servers(&self) -> [&Server; 2] {
        [&self.servers[LONE], &self.stand_in]
    }

    /// The lone server's address leads to the other one from now on. Connections stay where they are.
    pub fn move_lone(&self) {
        self.stands_in.fetch_xor(true, Ordering::SeqCst);
        for links in &self.links {
            links[LONE].turn_to(self.server(LONE).port());
        }
    }

    /// No address moves while this is held.
    pub fn troubled(&self) -> RwLockReadGuard<'_, ()> {
        self.calm.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is in the way of who looks where an address leads while this is held.
    pub fn calm(&self) -> RwLockWriteGuard<'_, ()> {
        self.calm.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// That of the server on its own.
    pub fn password(&self) -> MutexGuard<'_, Password> {
        self.password.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn mark(&self, from: Nanos, whom: Whom, text: impl Into<String>) {
        let mark = Mark { from, to: now(), whom, text: text.into() };
        self.recorder().history.marks.push(mark);
    }

    pub fn loss(&self, loss: Loss) {
        self.recorder().history.losses.push(loss);
    }

    /// Starts a worker. Its lines are on record as they come.
    pub fn worker(&self, process: Process) -> Worker {
        let part = Part {
            process,
            seed: self.seed,
            kinds: self.kinds,
            resource: self.resource.url(),
            password: self.password().file().display().to_string(),
            servers: urls(&self.links[usize::from(process.slot)]),
        };
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("leasehold-soak"));
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
    /// Kills it without warning. All that it said is on record when this returns.
    pub fn kill(mut self, scene: &Scene) {
        self.end();
        scene.recorder().killed(self.process);
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

    /// Has its log take no line, or take them again.
    pub fn stall_log(&mut self, stalls: bool) {
        self.tell(if stalls { worker::STALL_LOG } else { worker::UNSTALL_LOG });
    }

    fn tell(&mut self, word: u8) {
        if let Some(input) = &mut self.input {
            input.write_all(&[word]).ok();
        }
    }

    /// Waits until it has nothing under way, after [`rest`](Self::rest).
    pub fn rested(&mut self, scene: &Scene) {
        let (process, what) = (self.process, format!("{} comes to rest", self.process));
        eventually(ENDS_WITHIN, &what, || scene.recorder().rested.contains(&process) || self.is_dead());
    }

    /// Tells it to end.
    pub fn dismiss(&mut self) {
        self.input.take();
    }

    /// Waits for its end after [`dismiss`](Self::dismiss); panics if it ended otherwise than well.
    pub fn ended(mut self, scene: &Scene) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("the worker can be waited for") {
                Some(status) => break status,
                None if start.elapsed() > ENDS_WITHIN => panic!("{} does not end", self.process),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert!(status.success(), "{} failed: {status}", self.process);
        self.kill(scene);
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
