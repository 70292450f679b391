//! A daemon that replaces itself by `exec`, five times, while others wait for its lock: they never get it, and each
//! process has a larger fence than the one before.
//!
//! Two traps. Renew right before the ticket is made, because the key is not renewed until the successor adopts it. And
//! pass the ticket by the environment or a pipe, never by an argument: any user who can list processes could take the
//! lock with it.
//!
//! ```text
//! cargo run --example hand_over                                       # starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example hand_over
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may start tasks; the library has one door for it")]

use std::{
    env,
    error::Error,
    net::TcpListener,
    process::{self, Stdio},
    time::Duration,
};

use leasehold::{Client, Fence, Lock};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The daemon's variables. It is this program once more: its lock, the ticket of the process before it, and how many
/// processes came before.
const LOCK: &str = "HAND_OVER_LOCK";
const TICKET: &str = "HAND_OVER_TICKET";
const GENERATION: &str = "HAND_OVER_GENERATION";
const GENERATIONS: u32 = 5;

const TTL: Duration = Duration::from_secs(2);
/// How long each process works.
const WORKS: Duration = Duration::from_millis(400);
/// The whole example takes a few seconds.
const LIMIT: Duration = Duration::from_secs(25);

#[tokio::main]
async fn main() -> Result<()> {
    if let Ok(name) = env::var(LOCK) {
        return serve(&name).await;
    }
    timeout(LIMIT, watch()).await.map_err(|_| format!("not done after {LIMIT:?}"))?
}

/// The daemon: works for a while, and is replaced.
async fn serve(name: &str) -> Result<()> {
    let generation: u32 = env::var(GENERATION)?.parse()?;
    let client = Client::builder().url(env::var("REDIS_URL")?).ttl(TTL).build().await?;
    let lock = client.lock(name);
    let lease = match env::var(TICKET) {
        Ok(ticket) => lock.adopt(ticket.parse()?).await?,
        Err(_) => lock.acquire().await?,
    };
    sleep(WORKS).await;
    lease.check()?;
    println!("process {} has worked with fence {}", generation + 1, lease.fence());
    if generation + 1 == GENERATIONS {
        lease.release().await?;
        return Ok(());
    }
    lease.renew().await?; // a full TTL for the successor
    let ticket = lease.into_ticket()?;
    Err(replace(&ticket.expose(), generation + 1).into())
}

/// Returns only if it fails. All connections and threads end with the `exec`; the lock's key stays.
#[cfg(unix)]
fn replace(ticket: &str, generation: u32) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    process::Command::new(program).env(TICKET, ticket).env(GENERATION, generation.to_string()).exec()
}

#[cfg(not(unix))]
fn replace(_ticket: &str, _generation: u32) -> std::io::Error {
    std::io::Error::other("this system has no exec")
}

/// Starts the daemon, and makes others wait for its lock meanwhile.
async fn watch() -> Result<()> {
    let (url, _server) = server().await?;
    let client = Client::builder().url(&url).ttl(TTL).build().await?;
    let name = format!("examples:hand_over:{}", process::id());
    let mut daemon = Command::new(env::current_exe()?)
        .env(LOCK, &name)
        .env(GENERATION, "0")
        .env("REDIS_URL", &url)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = daemon.stdout.take().ok_or("the daemon has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    let mut last = None;
    let mut others = Vec::new();
    for generation in 1..=GENERATIONS {
        let line = lines.next_line().await?.ok_or("the daemon has ended too early")?;
        println!("{line}");
        let (_, fence) = line.split_once("fence ").ok_or("that is no line of the daemon's")?;
        let fence: Fence = fence.parse()?;
        if last.replace(fence).is_some_and(|last| fence <= last) {
            return Err(format!("process {generation} has no larger fence than the one before").into());
        }
        if generation == 1 {
            // From the first hand-over on, the others keep asking.
            others.extend((0..4).map(|_| tokio::spawn(intrude(client.lock(&name)))));
        }
        if generation < GENERATIONS && others.iter().any(tokio::task::JoinHandle::is_finished) {
            return Err("somebody else got the lock in between".into());
        }
    }
    if !daemon.wait().await?.success() {
        return Err("the daemon has failed".into());
    }
    // The lock is released at last, so the others get it now.
    for other in others {
        other.await??;
    }
    println!("the fences grew, and nobody else had the lock before the end");
    client.close().await;
    Ok(())
}

/// Asks for the lock until it has it.
async fn intrude(lock: Lock) -> Result<()> {
    loop {
        if let Some(lease) = lock.try_acquire().await? {
            lease.release().await?;
            return Ok(());
        }
    }
}

/// Where the lock is: on an existing server, or on one of our own, which ends when it is dropped.
async fn server() -> Result<(String, Option<Child>)> {
    match env::var("REDIS_URL") {
        Ok(url) if url.starts_with("memory:") => {
            return Err("processes share no memory: REDIS_URL must name a server".into());
        }
        Ok(url) => return Ok((url, None)),
        Err(_) => {}
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let server = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(env::temp_dir())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let mut server = server.map_err(|error| {
        format!("redis-server cannot be started ({error}): install it, or set REDIS_URL to a server that is there")
    })?;
    // A refused connection is reported at once, and it takes a moment until the server listens.
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        if server.try_wait()?.is_some() {
            return Err("redis-server has ended before it listened".into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok((format!("redis://127.0.0.1:{port}"), Some(server)))
}
