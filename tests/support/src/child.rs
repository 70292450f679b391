//! A part of a test that runs in a process of its own, so that it can be killed, stopped or ended with that process.
//!
//! The process is the test program again, or that of another build, told to run one test only. That test calls
//! [`Part::mine`] first: in the child it finds its part, plays it and returns; in the parent there is none, and it
//! directs. The two exchange lines. The child's begin with `@`, which tells them from the output of libtest.

use std::any::type_name;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Stdin, Stdout, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::clock_shim::ClockShim;
use super::spawner;

/// The variable with this process's part; unset in a test program started by a person.
const PART: &str = "LEASEHOLD_TEST_PART";
/// The variable with the url of the parent's server.
const URL: &str = "LEASEHOLD_TEST_URL";
/// The variable with another build's test program, which plays the parts; unset if this build does.
const OTHER_BUILD: &str = "LEASEHOLD_TEST_OTHER_BUILD";
/// The variable with the child's longest life in seconds, if it is not the usual one.
const LIFE: &str = "LEASEHOLD_TEST_LIFE";
const MARK: char = '@';
/// The life of a child that outlives its parent because the kernel was not asked to prevent it.
const LONGEST_LIFE: Duration = Duration::from_secs(60);
/// Long enough for a loaded machine to start a process, short enough that a test cannot hang.
const PATIENCE: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(1);

/// The task of a child.
#[derive(Debug)]
pub struct Part {
    /// The name of this part of the test.
    pub name: String,
    /// The url of the parent's server.
    pub url: String,
    ears: Stdin,
    mouth: Stdout,
}

impl Part {
    /// This process's part, if it is a child.
    pub fn mine() -> Option<Self> {
        let name = std::env::var(PART).ok()?;
        let url = std::env::var(URL).expect("the parent says where its server is");
        let life = std::env::var(LIFE).ok().and_then(|seconds| seconds.parse().ok());
        let life = life.map_or(LONGEST_LIFE, Duration::from_secs);
        std::thread::Builder::new()
            .name("longest life".into())
            // A part may be unable to start threads of the usual size.
            .stack_size(64 * 1024)
            .spawn(move || {
                std::thread::sleep(life);
                std::process::exit(2);
            })
            .expect("a thread that ends the child in time");
        Some(Self { name, url, ears: std::io::stdin(), mouth: std::io::stdout() })
    }

    /// The port in [`Part::url`].
    pub fn port(&self) -> u16 {
        let port = self.url.rsplit(':').next().expect("the url has a port");
        port.parse().unwrap_or_else(|_| panic!("no port at the end of {}", self.url))
    }

    /// Sends one line to the parent.
    pub fn say(&self, line: impl Display) {
        // libtest may have left an unfinished line before ours.
        writeln!(&self.mouth, "\n{MARK}{line}").expect("the parent listens");
    }

    /// Blocks this thread until the parent sends a line, and returns it; ends the process if the parent has ended.
    pub fn hear(&self) -> String {
        let mut line = String::new();
        match self.ears.read_line(&mut line) {
            Ok(read) if read > 0 => line.trim_end().to_owned(),
            _ => std::process::exit(3),
        }
    }
}

/// A child process; killed and reaped on drop.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    ears: ChildStdin,
    said: mpsc::Receiver<String>,
}

impl Child {
    /// Runs the test function `test` of this program in a new process, as its `part`.
    #[track_caller]
    pub fn start(test: impl Fn(), part: &str, url: &str) -> Self {
        Self::launch(test_name(test), part, url, Vec::new())
    }

    /// Like [`Child::start`], for a part that takes longer than usual.
    #[track_caller]
    pub fn start_for(life: Duration, test: impl Fn(), part: &str, url: &str) -> Self {
        Self::start_with(test, part, url, LIFE, &life.as_secs().to_string())
    }

    /// Like [`Child::start`], with a variable set in its environment.
    #[track_caller]
    pub fn start_with(test: impl Fn(), part: &str, url: &str, name: &str, value: &str) -> Self {
        Self::launch(test_name(test), part, url, vec![(name.into(), value.into())])
    }

    /// Like [`Child::start`], with a wall clock that can be moved.
    #[track_caller]
    pub fn start_by_clock(test: impl Fn(), part: &str, url: &str, clock: &ClockShim) -> Self {
        let clock = clock.env().into_iter().map(|(name, value)| (name.into(), value));
        Self::launch(test_name(test), part, url, clock.collect())
    }

    #[track_caller]
    fn launch(test: &str, part: &str, url: &str, env: Vec<(OsString, OsString)>) -> Self {
        let this = || std::env::current_exe().expect("the test program knows where it is");
        let program = std::env::var_os(OTHER_BUILD).map_or_else(this, PathBuf::from);
        let mut command = spawner::mortal(&program);
        command
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(URL, url)
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = spawner::spawn(command).expect("the test program starts again");
        let ears = process.stdin.take().expect("the child's input was asked for");
        let mouth = process.stdout.take().expect("the child's output was asked for");
        let (hand_over, said) = mpsc::channel();
        std::thread::Builder::new()
            .name("child's output".into())
            .spawn(move || {
                for line in BufReader::new(mouth).lines().map_while(Result::ok) {
                    if let Some(line) = line.strip_prefix(MARK) {
                        hand_over.send(line.to_owned()).ok();
                    }
                }
            })
            .expect("a thread for the child's output");
        Self { process, ears, said }
    }

    /// Waits for the child's next line, which must begin with `what`, and returns the rest of it.
    #[track_caller]
    pub fn says(&self, what: &str) -> String {
        let line = match self.said.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(why) => panic!("the child did not say {what:?}: {why}"),
        };
        let Some(rest) = line.strip_prefix(what) else { panic!("the child said {line:?} and not {what:?}") };
        rest.trim().to_owned()
    }

    /// The child's next line, if one has arrived.
    pub fn has_said(&self) -> Option<String> {
        self.said.try_recv().ok()
    }

    /// Sends one line to the child, which may be stopped and read it later.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        writeln!(self.ears, "{line}").expect("the child's input is open");
    }

    /// Kills the child without warning. It no longer runs when this returns.
    pub fn kill(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }

    /// Suspends the child and returns once it is suspended.
    #[track_caller]
    pub fn stop(&self) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP).expect("SIGSTOP reaches the child");
        // NOWAIT leaves a process that died instead for its owner to reap.
        let states = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), states).expect("the child reports that it is suspended");
    }

    /// Lets a suspended child continue.
    #[track_caller]
    pub fn cont(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).expect("SIGCONT reaches the child");
    }

    /// Waits until the child ends by itself, which must be a success.
    #[track_caller]
    pub fn ends(mut self) {
        let start = Instant::now();
        let status: ExitStatus = loop {
            if let Some(status) = self.process.try_wait().expect("the child can be waited for") {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "the child has not ended within {PATIENCE:?}");
            std::thread::sleep(POLL);
        };
        assert!(status.success(), "the child failed: {status}; what it said is above");
    }
}

/// The name that libtest uses for this test of the running program: its path without the crate.
pub fn test_name<T: Fn()>(_: T) -> &'static str {
    name_of::<T>()
}

/// The name of the test of this type: a test function, or a closure in one.
pub(crate) fn name_of<T>() -> &'static str {
    let path = type_name::<T>();
    let path = path.strip_suffix("::{{closure}}").unwrap_or(path);
    path.split_once("::").map_or(path, |(_, test)| test)
}

impl Drop for Child {
    fn drop(&mut self) {
        // SIGKILL ends a suspended process too.
        self.kill();
    }
}
