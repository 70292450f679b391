//! A real Redis or Valkey server that belongs to one test.
//!
//! Locks live on the server, so it is never imitated. A server of its own lets a test stop, kill and restart it, and
//! read all its keys, without affecting other tests.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::binary::{Binary, Version};
use super::clock_shim::ClockShim;
use super::cluster::NODE_TIMEOUT;
use super::spawner;
use super::temp_dir::{TempDir, random};
use super::tls::{self, Authority};
use super::wire::Wire;

/// How long a server may take to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A port may be lost to another process between its choice and its use.
const PORT_TRIES: u32 = 20;
const POLL: Duration = Duration::from_millis(2);

const SOCKET: &str = "s.sock";
const SENTINEL: &str = "sentinel.conf";
const LOG: &str = "log";
const OUTPUT: &str = "output";

/// A running server process; on drop it is killed and reaped, and its files are deleted.
///
/// All controls take `&self`, so that a test can share the server with the
/// threads or tasks that damage it.
#[derive(Debug)]
pub struct Server {
    plan: Plan,
    process: Mutex<Option<Process>>,
    /// Reserves the port while there is no process: see [`reserve`].
    reserved: Mutex<Option<OwnedFd>>,
}

impl Server {
    /// An empty server without persistence, reached by TCP.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server with other settings.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The version of the program of every [`Server`] in this process.
    pub fn version() -> &'static Version {
        &Binary::get().version
    }

    /// Whether it notifies a connection of changes by that connection's own scripts, despite being asked not to. Redis
    /// 6.2 does. A client must then check whether the change was its own.
    pub fn echoes_own_changes() -> bool {
        !Self::version().at_least(7, 0)
    }

    /// The url `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.plan.port)
    }

    /// The plain TCP port, kept over restarts.
    pub fn port(&self) -> u16 {
        self.plan.port
    }

    /// The Unix socket; panics unless the builder asked for one.
    #[track_caller]
    pub fn socket_path(&self) -> PathBuf {
        assert!(self.plan.socket, "the server was started without a socket");
        self.plan.file(SOCKET)
    }

    /// The TLS port; panics unless the builder asked for TLS.
    #[track_caller]
    pub fn tls_port(&self) -> u16 {
        self.plan.tls_port.expect("the server was started without TLS")
    }

    /// The TLS url, `rediss://127.0.0.1:port`.
    #[track_caller]
    pub fn tls_url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.tls_port())
    }

    /// The certificate a client has to trust; panics without TLS.
    #[track_caller]
    pub fn ca_pem_path(&self) -> PathBuf {
        self.tls_port();
        self.plan.file(tls::CA)
    }

    /// A client certificate from that authority, and its key.
    #[must_use]
    pub fn client_pem_paths(&self) -> [PathBuf; 2] {
        self.tls_port();
        tls::CLIENT.map(|name| self.plan.file(name))
    }

    /// An expired client certificate from that authority, and its key.
    #[must_use]
    pub fn expired_pem_paths(&self) -> [PathBuf; 2] {
        self.tls_port();
        tls::EXPIRED.map(|name| self.plan.file(name))
    }

    /// The url of a user whom this server may not notify, at its own port or at a proxy's.
    #[track_caller]
    pub fn url_without_push(&self, port: u16) -> String {
        let rights = ["on", ">secret", "allkeys", "allcommands", "-client", "-subscribe"];
        self.wire().must(&[&["ACL", "SETUSER", "poller"], &rights[..]].concat());
        format!("redis://poller:secret@127.0.0.1:{port}")
    }

    /// The directory of this server's data and log.
    pub fn directory(&self) -> &Path {
        self.plan.directory.path()
    }

    /// The log of the running process.
    pub fn log(&self) -> String {
        self.plan.said()
    }

    /// The process; panics if there is none.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        match &*self.process() {
            Some(process) => process.0.id(),
            None => panic!("the server is not running"),
        }
    }

    /// A new raw connection.
    #[track_caller]
    pub fn wire(&self) -> Wire {
        Wire::to_port(self.plan.port)
    }

    /// Suspends the process and returns once it is suspended.
    ///
    /// Connections stay open, and new ones are still accepted by the kernel;
    /// nothing is answered until [`Server::cont`].
    #[track_caller]
    pub fn stop(&self) {
        let process = self.process();
        let pid = process.as_ref().expect("the server is not running").pid();
        kill_process(pid, Signal::STOP).expect("SIGSTOP reaches the server");
        // NOWAIT leaves a process that died instead for its owner to reap.
        let states = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), states).expect("the server reports that it is suspended");
    }

    /// Lets a suspended process continue.
    #[track_caller]
    pub fn cont(&self) {
        let process = self.process();
        let pid = process.as_ref().expect("the server is not running").pid();
        kill_process(pid, Signal::CONT).expect("SIGCONT reaches the server");
    }

    /// Kills the process without warning and reaps it. Its port refuses
    /// connections when this returns, and no other server takes it.
    pub fn kill(&self) {
        self.process().take();
        *self.reserved() = reserve(self.plan.port);
    }

    /// Starts the server again (killing it first if it runs) on the same port
    /// and directory: with its data if it keeps an append-only file, else empty.
    #[track_caller]
    pub fn restart(&self) {
        let mut process = self.process();
        process.take();
        self.reserved().take();
        let start = Instant::now();
        loop {
            match self.plan.launch() {
                Ok(new) => {
                    *process = Some(new);
                    return;
                }
                Err(Failure::PortTaken(_)) if start.elapsed() < START_LIMIT => {
                    std::thread::sleep(POLL);
                }
                Err(failure) => panic!("the server does not start again: {failure}"),
            }
        }
    }

    fn reserved(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Before the directory is deleted, which the drop order of the fields would not ensure.
        self.kill();
    }
}

/// The settings of a server.
#[derive(Debug, Default)]
pub struct ServerBuilder {
    args: Vec<String>,
    env: Vec<(&'static str, OsString)>,
    aof: bool,
    socket: bool,
    sentinel: Option<String>,
    cluster: bool,
    tls: bool,
    tls_clients: bool,
    is_next: bool,
}

impl ServerBuilder {
    /// Sets a configuration directive, such as `arg("--maxmemory", "1mb")`, which overrides the builder's own.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Removes this command, which is then unknown, as on many rented servers.
    #[must_use]
    pub fn without_command(mut self, name: &str) -> Self {
        self.args.extend(["--rename-command", name, ""].map(str::to_owned));
        self
    }

    /// Whether each write is on disk before it is answered, so that
    /// [`Server::restart`] loses nothing.
    #[must_use]
    pub fn aof(mut self, yes: bool) -> Self {
        self.aof = yes;
        self
    }

    /// Whether the server also listens on a Unix socket.
    #[must_use]
    pub fn unix_socket(mut self, yes: bool) -> Self {
        self.socket = yes;
        self
    }

    /// Whether the server is a Sentinel, which keeps no keys.
    #[must_use]
    pub fn sentinel(mut self, yes: bool) -> Self {
        self.sentinel = yes.then(String::new);
        self
    }

    /// Makes the server a Sentinel with this configuration at each start.
    #[must_use]
    pub fn sentinel_that_knows(mut self, config: String) -> Self {
        self.sentinel = Some(config);
        self
    }

    /// Whether the server may join a cluster, in which a slot without a server does not stop the others.
    #[must_use]
    pub fn cluster(mut self, yes: bool) -> Self {
        self.cluster = yes;
        self
    }

    /// Whether the server also listens for TLS, with a certificate of its own for `localhost` and 127.0.0.1.
    #[must_use]
    pub fn tls(mut self, yes: bool) -> Self {
        self.tls = yes;
        self
    }

    /// Enables TLS with a certificate from this authority, and trusts it too: for servers that use TLS among each
    /// other.
    #[must_use]
    pub fn tls_by(self, authority: &Authority) -> Self {
        let [certificate, key] = authority.certificate_and_key().map(|path| path.display().to_string());
        let ca = authority.ca_pem_path().display().to_string();
        let server = self.tls(true).arg("--tls-cert-file", &certificate).arg("--tls-key-file", &key);
        server.arg("--tls-ca-cert-file", &ca).arg("--tls-replication", "yes")
    }

    /// Whether the server requires client certificates from its own authority on its TLS port.
    #[must_use]
    pub fn tls_clients(mut self, yes: bool) -> Self {
        self.tls_clients = yes;
        self
    }

    /// Whether the server is of the next version, if the tests run against an older one.
    #[must_use]
    pub fn next_version(mut self, yes: bool) -> Self {
        self.is_next = yes;
        self
    }

    /// Makes the server use a wall clock that the test can move; the shim must live as long as the server.
    #[must_use]
    pub fn clock(mut self, clock: &ClockShim) -> Self {
        self.env.extend(clock.env());
        self
    }

    /// Starts the server and returns once it answers; panics if it does not.
    #[track_caller]
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|no_tls| panic!("{no_tls}"))
    }

    /// Like [`ServerBuilder::start`], except that a program built without TLS is an error for the caller. Any other
    /// failure panics.
    #[track_caller]
    pub fn try_start(self) -> Result<Server, NoTls> {
        let has_tls = self.tls;
        let mut plan = self.plan(0);
        let mut tries = 0;
        loop {
            tries += 1;
            plan.port = free_port();
            plan.tls_port = has_tls.then(free_port);
            match plan.launch() {
                Ok(process) => {
                    return Ok(Server { plan, process: Mutex::new(Some(process)), reserved: Mutex::default() });
                }
                Err(Failure::PortTaken(_)) if tries < PORT_TRIES => {}
                Err(Failure::NoTls(said)) => return Err(NoTls { said }),
                Err(failure) => panic!("{} does not start: {failure}", Server::version()),
            }
        }
    }
}

/// Starts servers that know each other's ports, both plain and TLS, before any of them is up.
#[track_caller]
pub(crate) fn start_together<const N: usize>(builders: impl Fn([[u16; 2]; N]) -> [ServerBuilder; N]) -> [Server; N] {
    for _ in 0..PORT_TRIES {
        let ports = [(); N].map(|()| [free_port(), free_port()]);
        // The ports are not bound yet, so two may be the same.
        if ports.as_flattened().iter().collect::<HashSet<_>>().len() < 2 * N {
            continue;
        }
        let mut ports_left = ports.into_iter();
        let started = builders(ports).map(|builder| {
            let [port, tls_port] = ports_left.next().expect("ports for each");
            let has_tls = builder.tls;
            let mut plan = builder.plan(port);
            plan.tls_port = has_tls.then_some(tls_port);
            plan.launch().map(|process| Server { plan, process: Mutex::new(Some(process)), reserved: Mutex::default() })
        });
        match started.into_iter().collect::<Result<Vec<Server>, Failure>>() {
            Ok(servers) => return servers.try_into().expect("as many as were asked for"),
            Err(Failure::PortTaken(_)) => {}
            Err(failure) => panic!("{} does not start: {failure}", Server::version()),
        }
    }
    panic!("no {N} ports stay free");
}

impl ServerBuilder {
    fn plan(self, port: u16) -> Plan {
        let plan = Plan {
            directory: TempDir::new("server"),
            args: self.args,
            env: self.env,
            aof: self.aof,
            socket: self.socket,
            sentinel: self.sentinel,
            cluster: self.cluster,
            port,
            tls_port: None,
            tls_clients: self.tls_clients,
            is_next: self.is_next,
        };
        if self.tls {
            tls::write_certificates(plan.directory.path(), &tls::LOCAL);
        }
        plan
    }
}

/// The error of a server program built without TLS.
#[derive(Debug)]
pub struct NoTls {
    said: String,
}

impl fmt::Display for NoTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &Binary::get().path;
        write!(f, "{} ({}) was built without TLS: {}", Server::version(), program.display(), self.said)
    }
}

impl std::error::Error for NoTls {}

/// Everything needed for a start or a restart.
#[derive(Debug)]
struct Plan {
    directory: TempDir,
    args: Vec<String>,
    env: Vec<(&'static str, OsString)>,
    aof: bool,
    socket: bool,
    /// The configuration of a Sentinel.
    sentinel: Option<String>,
    cluster: bool,
    port: u16,
    tls_port: Option<u16>,
    tls_clients: bool,
    is_next: bool,
}

impl Plan {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts the process and waits until it answers, and not another process on that port.
    fn launch(&self) -> Result<Process, Failure> {
        if let Some(config) = &self.sentinel {
            // The Sentinel writes what it learns to this file.
            std::fs::write(self.file(SENTINEL), config).expect("a file for the Sentinel");
        }
        for stale in [LOG, OUTPUT] {
            std::fs::remove_file(self.file(stale)).ok();
        }
        let output = std::fs::File::create(self.file(OUTPUT)).expect("a file for the output");
        let errors = output.try_clone().expect("a second handle to the output");
        let next = self.is_next.then(Binary::next);
        let mut command = spawner::mortal(next.as_ref().unwrap_or(&Binary::get().path));
        command
            .args(self.arguments())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        let child = spawner::spawn(command).map_err(|error| Failure::Other(error.to_string()))?;
        let mut process = Process(child);

        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = process.0.try_wait() {
                return Err(self.diagnose(&format!("it ended with {status}")));
            }
            if self.answers(process.0.id()) {
                return Ok(process);
            }
            if start.elapsed() > START_LIMIT {
                let why = format!("no answer within {START_LIMIT:?}");
                return Err(Failure::Other(format!("{why}: {}", self.said())));
            }
            std::thread::sleep(POLL);
        }
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        if self.sentinel.is_some() {
            args.extend([self.file(SENTINEL).into(), "--sentinel".into()]);
        }
        let mut set = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            args.extend([name.into(), value.as_ref().to_owned()]);
        };
        set("--port", &self.port.to_string());
        set("--bind", &"127.0.0.1");
        set("--dir", &self.directory.path());
        set("--logfile", &self.file(LOG));
        set("--loglevel", &"warning");
        set("--daemonize", &"no");
        set("--save", &"");
        set("--appendonly", &if self.aof { "yes" } else { "no" });
        set("--appendfsync", &"always");
        if Server::version().at_least(7, 0) {
            // Before 7.0 DEBUG was always allowed and the directive was unknown.
            set("--enable-debug-command", &"yes");
        }
        if self.socket {
            set("--unixsocket", &self.file(SOCKET));
        }
        if self.cluster {
            set("--cluster-enabled", &"yes");
            set("--cluster-node-timeout", &NODE_TIMEOUT.as_millis().to_string());
            set("--cluster-require-full-coverage", &"no");
        }
        if let Some(port) = self.tls_port {
            set("--tls-port", &port.to_string());
            set("--tls-cert-file", &self.file(tls::CERTIFICATE));
            set("--tls-key-file", &self.file(tls::KEY));
            set("--tls-ca-cert-file", &self.file(tls::CA));
            set("--tls-auth-clients", &if self.tls_clients { "yes" } else { "no" });
        }
        args.extend(self.args.iter().map(OsString::from));
        args
    }

    fn answers(&self, pid: u32) -> bool {
        let probe = || -> std::io::Result<bool> {
            let mut wire = Wire::try_to_port(self.port)?;
            // Asking anew would not make a starved server answer sooner.
            wire.set_patience(START_LIMIT / 4)?;
            let pong = wire.try_cmd(&["PING"])?;
            if pong.error().is_some_and(|text| text.starts_with("NOAUTH")) {
                // A password hides the process id from us, but other processes on the port have no password.
                return Ok(true);
            }
            // A server that is loading its data answers INFO, but answers PING with an error.
            if pong.error().is_some() {
                return Ok(false);
            }
            let answering = wire.try_info_field("server", "process_id")?;
            Ok(answering == Some(pid.to_string()))
        };
        probe().unwrap_or(false)
    }

    fn said(&self) -> String {
        [OUTPUT, LOG].iter().filter_map(|name| std::fs::read_to_string(self.file(name)).ok()).collect()
    }

    fn diagnose(&self, how: &str) -> Failure {
        let said = self.said();
        // Redis does not know the directive; Valkey knows it but lacks the code.
        let no_tls = said.contains("'tls-") || said.contains("Failed finding TLS support");
        if said.contains("already in use") || said.contains("Failed listening") {
            Failure::PortTaken(said)
        } else if self.tls_port.is_some() && no_tls {
            Failure::NoTls(said.trim().to_owned())
        } else {
            Failure::Other(format!("{how}: {said}"))
        }
    }
}

#[derive(Debug)]
enum Failure {
    PortTaken(String),
    NoTls(String),
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortTaken(said) | Self::NoTls(said) | Self::Other(said) => f.write_str(said),
        }
    }
}

/// A child that is always killed, even after a panic.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL ends a suspended process too.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Keeps a dead server's port from other tests' servers, which its clients would take for it: a bound socket that does
/// not listen. Other programs can bind to the port, too, but not listen on it.
fn reserve(port: u16) -> Option<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    // The dead server's connections keep the port for some time.
    sockopt::set_socket_reuseaddr(&socket, true).ok()?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).ok()?;
    sockopt::set_socket_reuseaddr(&socket, false).ok()?;
    Some(socket)
}

/// A port that was just free, below those that the kernel hands out.
///
/// A port from `bind(:0)` is among the kernel's own, so an outgoing connection could take a killed server's port before
/// its restart. Worse, a client that keeps connecting to such a port may get it as its own, and TCP then connects it to
/// itself.
fn free_port() -> u16 {
    for _ in 0..1000 {
        let port = 10_000 + u16::try_from(random() % 22_000).expect("less than 22 000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between 10 000 and 32 000");
}
