//! ^C in development: the next start has the lock at once.
//!
//! The trap: a process that ^C kills leaves its key. The next start waits in silence until the key has expired, 30 s
//! unless you set a TTL. So during development set a short `ttl`, and an `on_wait` that prints what the program waits
//! for. And give ^C a branch that ends in `shutdown` (or `close`), which waits for the release.
//!
//! This example starts itself: once to interrupt it, once to kill it, and again after each.
//!
//! ```text
//! cargo run --example ctrl_c      # starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example ctrl_c
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may look at the clock; the library has one door for it")]

use std::{
    env,
    error::Error,
    net::TcpListener,
    process::Stdio,
    time::{Duration, Instant},
};

use leasehold::Client;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    signal::ctrl_c,
    time::sleep,
};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const LOCK: &str = "examples:ctrl_c";
/// How long the next start waits after a crash; 30 s by default.
const TTL: Duration = Duration::from_secs(5);
const WORKING: &str = "working";

/// The recipe.
async fn program(url: String) -> Result<()> {
    let client = Client::builder().url(url).ttl(TTL).build().await?;
    let lock = client.lock(LOCK).on_wait(|holder| println!("waiting for {holder}"));
    tokio::select! {
        outcome = lock.run(|_| work()) => outcome?,
        interrupted = ctrl_c() => interrupted?,
    }
    // The work is dropped, and its lock is released in the background. A process that just ends may leave the key.
    client.shutdown(TTL).await;
    Ok(())
}

async fn work() -> Result<(), leasehold::Error> {
    println!("{WORKING}");
    sleep(Duration::from_secs(60)).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let (url, _server) = server().await?;
    if env::args().nth(1).as_deref() == Some("program") {
        return program(url).await;
    }
    let client = Client::connect(&url).await?;
    let lock = client.lock(LOCK);

    let (mut first, _) = start(&url).await?;
    interrupt(&first).await?;
    assert!(first.wait().await?.success(), "it ends by itself");
    assert_eq!(lock.holder().await?, None, "and leaves nothing");
    let (mut second, took) = start(&url).await?;
    println!("after ^C the next start has the lock after {took:.1?}");
    assert!(took < TTL / 2);

    second.kill().await?;
    assert!(lock.holder().await?.is_some(), "nobody has released it");
    let (third, took) = start(&url).await?;
    println!("after a kill the next start has the lock after {took:.1?}: the TTL is {TTL:?}");
    assert!(took < 3 * TTL);

    interrupt(&third).await?;
    third.wait_with_output().await?;
    client.close().await;
    Ok(())
}

/// Starts the program, and waits until it works. Returns how long that took.
async fn start(url: &str) -> Result<(Child, Duration)> {
    let started = Instant::now();
    let mut program = Command::new(env::current_exe()?)
        .arg("program")
        .env("REDIS_URL", url)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(program.stdout.take().ok_or("its output is not ours")?).lines();
    while let Some(line) = lines.next_line().await? {
        println!("  program: {line}");
        if line == WORKING {
            return Ok((program, started.elapsed()));
        }
    }
    Err("the program ended".into())
}

/// Does what the terminal does at ^C.
async fn interrupt(program: &Child) -> Result<()> {
    let pid = program.id().ok_or("it has ended")?;
    Command::new("kill").args(["-INT", &pid.to_string()]).status().await?;
    Ok(())
}

/// Where the locks are: an existing server, or one of our own, which ends when it is dropped.
async fn server() -> Result<(String, Option<Child>)> {
    if let Ok(url) = env::var("REDIS_URL") {
        if url.starts_with("memory:") {
            return Err("two processes share no memory: REDIS_URL must name a server".into());
        }
        return Ok((url, None));
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("redis-server cannot be started ({error}): install it, or set REDIS_URL"))?;
    // A refused connection is reported at once, and it takes a moment until the server listens.
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        if server.try_wait()?.is_some() {
            return Err("redis-server has ended before it listened".into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok((format!("redis://127.0.0.1:{port}"), Some(server)))
}
