//! The built program, and helpers for its tests.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

use support::{Server, TempDir, eventually};

pub(crate) const HANGS: Duration = Duration::from_secs(20);
pub(crate) const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");
pub(crate) const NAME: &str = "job";

/// `leasehold run` with these options, then `--` and this command of a shell.
pub(crate) fn run(server: &Server, options: &[&str], script: &str) -> Command {
    let mut command = tool(server, &["run"]);
    command.args(options).args([NAME, "--", "sh", "-c", script]);
    command
}

pub(crate) fn tool(server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(LEASEHOLD);
    command
        .env("LEASEHOLD_URL", server.url())
        .env("LEASEHOLD_CONFIG", "/dev/null")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
pub(crate) fn ends_with(output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
}

pub(crate) fn is_held(server: &Server) -> bool {
    server.wire().exists(NAME)
}

/// Waits until the lock is held and the command has created its file.
pub(crate) fn started(server: &Server, sign: &Path) {
    eventually(HANGS, "the command runs", || sign.exists() && is_held(server));
}

pub(crate) fn directory() -> (TempDir, PathBuf) {
    let directory = TempDir::new("cli");
    let sign = directory.path().join("sign");
    (directory, sign)
}

pub(crate) fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the runner is there");
}

pub(crate) fn is_there(pid: &Path) -> bool {
    // A zombie counts as gone.
    state_of(pid).is_some_and(|state| state != 'Z')
}

/// The state of the process whose number is in this file.
pub(crate) fn state_of(pid: &Path) -> Option<char> {
    state(fs::read_to_string(pid).ok()?.trim().parse().ok()?)
}

/// The state of a process: running, sleeping, stopped, dead.
pub(crate) fn state(pid: u32) -> Option<char> {
    stat(pid)?.chars().next()
}

/// The state of the parent of the process whose number is in this file.
pub(crate) fn state_of_parent(pid: &Path) -> Option<char> {
    let pid = fs::read_to_string(pid).ok()?.trim().parse().ok()?;
    state(stat(pid)?.split(' ').nth(1)?.parse().ok()?)
}

/// The `/proc` line of a process, beginning with its state.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// The runner's output, and the time at which it and its command had ended. Their pipes show the time, because a kernel
/// under load may take seconds to report the end of a process.
pub(crate) fn ended(mut runner: Child) -> (Output, Instant) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut errors = runner.stderr.take().unwrap();
    let errors = thread::spawn(move || errors.read_to_end(&mut stderr).map(|_| stderr));
    runner.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    let stderr = errors.join().unwrap().unwrap();
    let at = Instant::now();
    (Output { status: runner.wait().unwrap(), stdout, stderr }, at)
}

/// Makes this pipe, and reports when a command that writes to it has ended. A kernel closes the pipe before it reports
/// the end of the process.
pub(crate) fn end_of_writers(pipe: &Path) -> Receiver<Instant> {
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let (pipe, (tell, told)) = (pipe.to_owned(), channel());
    // Reads until the last writer has closed the pipe.
    thread::spawn(move || fs::read(pipe).map(|_| tell.send(Instant::now())));
    told
}

/// A terminal of 80 columns, and a shell command that runs in a session of its own there.
pub(crate) struct Terminal {
    shell: Child,
    /// The user's side.
    keyboard: File,
    /// The programs' side.
    device: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub(crate) fn running(server: &Server, line: &str) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&keyboard).and_then(|()| unlockpt(&keyboard)).expect("it is ours");
        let device = ptsname(&keyboard, Vec::new()).expect("it has a name").into_string().unwrap();
        let device = File::options().read(true).write(true).open(device).unwrap();
        let keyboard = File::from(keyboard);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, showing) = (keyboard.try_clone().unwrap(), shown.clone());
        thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut some) {
                showing.lock().unwrap().extend(&some[..read]);
            }
        });
        // In a background script the tests ignore interrupts, and so would their children.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=INT,QUIT", "setsid", "--ctty", "sh", "-c"])
            .arg(format!("stty cols 80 rows 24; {line}"))
            .env("LEASEHOLD_URL", server.url())
            .env("LEASEHOLD_CONFIG", "/dev/null")
            .stdin(device.try_clone().unwrap())
            .stdout(device.try_clone().unwrap())
            .stderr(device.try_clone().unwrap());
        Self { shell: command.spawn().expect("setsid is there"), keyboard, device, shown }
    }

    /// All output so far.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        let began = Instant::now();
        while !self.shown().contains(text) {
            assert!(began.elapsed() < HANGS, "{text:?} is not shown: {}", self.shown());
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// All output, once the shell command has ended.
    #[track_caller]
    pub(crate) fn ended(mut self) -> String {
        const LAST: &str = "that was all";
        let began = Instant::now();
        while self.shell.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < HANGS, "it does not end: {}", self.shown());
            thread::sleep(Duration::from_millis(2));
        }
        // The terminal shows this after everything that was written earlier.
        self.device.write_all(LAST.as_bytes()).unwrap();
        self.shows(LAST);
        self.shown().replace(LAST, "")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The shell command loses its session leader, and ends.
        let _gone = self.shell.kill();
        let _gone = self.shell.wait();
    }
}
