//! Three processes, one of which leads. The leader is killed, and another one leads in the next term. A router that
//! only observes always knows who the leader is, or that it does not know.
//!
//! Two traps. When a leader's term is lost, its work is dropped at the next `await`, so its effects on other systems
//! must carry the term's fence. And an observer that keeps the last known leader while it hears nothing sends work to a
//! former leader, so handle `Unknown`.
//!
//! ```text
//! cargo run --example leader                                          # starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example leader
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may look at the clock; the library has one door for it")]

use std::{
    env,
    error::Error,
    future::pending,
    io::{self, Read as _},
    net::TcpListener,
    process::{self, Stdio},
    time::{Duration, Instant},
};

use leasehold::{Client, Election, Fence, Leaders, Leadership};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Set in the candidates, which are this program once more: the address of each.
const CANDIDATE: &str = "LEADER_CANDIDATE";
const CANDIDATES: [&str; 3] = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"];

/// How long the others wait after a leader has died: the time of a failover.
const TTL: Duration = Duration::from_secs(2);
/// The whole example takes a few seconds.
const LIMIT: Duration = Duration::from_secs(25);

#[tokio::main]
async fn main() -> Result<()> {
    if let Ok(address) = env::var(CANDIDATE) {
        return stand(&address).await;
    }
    timeout(LIMIT, watch()).await.map_err(|_| format!("not done after {LIMIT:?}"))?
}

async fn election(url: &str) -> Result<(Client, Election)> {
    let client = Client::builder().url(url).ttl(TTL).build().await?;
    let election =
        client.election(env::var("LEADER_ELECTION").unwrap_or_else(|_| format!("examples:{}", process::id())));
    Ok((client, election))
}

/// A candidate: leads whenever it can.
async fn stand(address: &str) -> Result<()> {
    end_with_parent()?;
    let (_leases, election) = election(&env::var("REDIS_URL")?).await?;
    election
        .candidate(address)
        .lead(async |term| {
            println!("         {} does the work of term {}", term.label(), term.fence());
            pending::<()>().await; // until the term is lost
        })
        .await?;
    Ok(())
}

/// The router: starts the candidates, kills two leaders, and sends its requests to the current leader.
async fn watch() -> Result<()> {
    let (url, _server) = server().await?;
    let (client, election) = election(&url).await?;
    let (started, mut leaders) = (Instant::now(), election.observe()?);
    let mut candidates = Vec::new();
    for address in CANDIDATES {
        candidates.push((address, start(address, &url, election.name())?));
    }
    let mut terms: Vec<(String, Fence)> = Vec::new();
    while terms.len() < CANDIDATES.len() {
        let (leader, fence) = next_leader(started, &mut leaders).await?;
        if terms.last().is_some_and(|(_, before)| *before >= fence) {
            return Err("a term that is not above the one before".into());
        }
        if let Some((_, process)) = candidates.iter_mut().find(|(address, _)| *address == leader) {
            process.kill().await?;
            tell(started, &format!("{leader} is killed"));
        }
        terms.push((leader, fence));
    }
    client.close().await;
    let mut led: Vec<&str> = terms.iter().map(|(leader, _)| &**leader).collect();
    led.sort_unstable();
    if led == CANDIDATES { Ok(()) } else { Err(format!("these have led: {led:?}").into()) }
}

async fn next_leader(started: Instant, leaders: &mut Leaders) -> Result<(String, Fence)> {
    while let Some(now) = leaders.next().await {
        match now {
            Leadership::Led(leader) => {
                let (Some(address), Some(fence)) = (leader.label(), leader.fence()) else { continue };
                tell(started, &format!("requests go to {address}, term {fence}"));
                return Ok((address.to_owned(), fence));
            }
            Leadership::Vacant => tell(started, "nobody leads: requests wait"),
            _ => tell(started, "nobody knows who leads: requests wait"),
        }
    }
    Err("the connection was closed".into())
}

fn tell(started: Instant, what: &str) {
    println!("{:5.1} s  {what}", started.elapsed().as_secs_f64());
}

fn start(address: &str, url: &str, election: &str) -> Result<Child> {
    let candidate = Command::new(env::current_exe()?)
        .env(CANDIDATE, address)
        .env("REDIS_URL", url)
        .env("LEADER_ELECTION", election)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    Ok(candidate?)
}

/// Ends this candidate when the first process has ended, for whatever reason: then the pipe to it is closed.
fn end_with_parent() -> Result<()> {
    std::thread::Builder::new().name("end-with-parent".into()).spawn(|| {
        let _gone = io::stdin().read_to_end(&mut Vec::new());
        process::exit(1);
    })?;
    Ok(())
}

/// Where the election is held: an existing server, or one of our own, which ends when it is dropped.
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
