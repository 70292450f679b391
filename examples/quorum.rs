//! A lock on five servers that know nothing of each other: two die during the job, and it continues. When a third dies
//! the majority is gone, and the job is notified by its deadline.
//!
//! ```text
//! cargo run --example quorum      # starts five redis-servers of its own
//! REDIS_URLS=redis://a:6379,redis://b:6379,redis://c:6379 cargo run --example quorum
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may look at the clock; the library has one door for it")]

use std::{
    env, error, fs, io,
    net::TcpListener,
    path::PathBuf,
    process::{self, Stdio},
    time::{Duration, Instant, SystemTime},
};

use leasehold::{Client, Error, Lease, Lost, NodeState};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

type Result<T, E = Box<dyn error::Error + Send + Sync>> = std::result::Result<T, E>;

const NODES: usize = 5;
/// How long the job may believe in its lease after its last renewal, at most.
const TTL: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(500);
/// The whole example takes about ten seconds.
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<()> {
    // Dropping this ends the servers, if they are ours, and deletes their directory.
    tokio::select! {
        outcome = timeout(LIMIT, story()) => outcome.map_err(|_| format!("not done after {LIMIT:?}"))?,
        () = interrupted() => Err("interrupted".into()),
    }
}

async fn story() -> Result<()> {
    let (urls, mut servers) = match env::var("REDIS_URLS") {
        Ok(urls) => (urls.split(',').map(|url| url.trim().into()).collect(), None),
        Err(_) => Servers::start().await.map(|servers| (servers.urls(), Some(servers)))?,
    };
    let mut builder = Client::builder().quorum(urls).ttl(TTL);
    if servers.is_some() {
        // A server that was started recently gives no vote for the restart delay, 31 s by default, because it may have
        // forgotten a lease. These servers are new and had no lease to forget. With servers that keep running, this
        // setting would give up safety.
        builder = builder.restart_delay(Duration::ZERO);
        println!("the servers are newborn, so for this once they vote without a restart delay");
    }
    let client = builder.build().await?;
    let lease = match client.lock("examples:quorum").acquire_within(Duration::from_secs(5)).await {
        Err(error @ Error::Unavailable(_)) => {
            for vote in error.votes().iter().flat_map(|votes| votes.nodes()) {
                println!("  {} {}", vote.address(), vote.answer());
            }
            return Err(error.into());
        }
        outcome => outcome?,
    };
    println!("job: acquired {:?} with fence {}, on a majority of the nodes", lease.name(), lease.fence());
    nodes(&client);

    // The job needs only a majority: it continues without the servers that die.
    work(&lease, 3).await?;
    if let Some(servers) = &mut servers {
        servers.kill(2).await?;
        println!("two servers are killed");
        work(&lease, 5).await?;
        nodes(&client);

        servers.kill(1).await?;
        let killed = Instant::now();
        println!("a third server is killed, and the others are no majority");
        if let Err(lost) = work(&lease, 10).await {
            let (after, late) = (killed.elapsed(), SystemTime::now().duration_since(lost.since()));
            println!("job: stopped, because {lost}");
            println!(
                "job: that was {after:.1?} after the kill, and {:.1?} after its deadline",
                late.unwrap_or_default()
            );
        }
        nodes(&client);
    } else {
        work(&lease, 7).await?;
        nodes(&client);
        lease.release().await?;
        println!("job: released");
    }
    client.close().await;
    Ok(())
}

/// Some steps of a job, which stops when its lease is lost.
async fn work(lease: &Lease, steps: u32) -> Result<(), Lost> {
    for _ in 0..steps {
        tokio::select! {
            biased;
            lost = lease.lost() => return Err(lost),
            () = sleep(STEP) => println!("job: {:?}, good for another {:.2?}", lease.status(), lease.remaining()),
        }
    }
    Ok(())
}

/// Prints the state of the nodes, as their answers have shown it.
fn nodes(client: &Client) {
    for node in client.nodes() {
        match node.state() {
            NodeState::Up => println!("  {} is up", node.address()),
            NodeState::Unreachable(why) => println!("  {} is unreachable: {why}", node.address()),
            state => println!("  {} {state:?}", node.address()),
        }
    }
}

/// Servers of our own, without anything on disk, which end when they are dropped.
struct Servers {
    running: Vec<Child>,
    ports: Vec<u16>,
    directory: PathBuf,
}

impl Servers {
    async fn start() -> Result<Self> {
        // All ports are bound at once, so that no two are the same.
        let listeners: Vec<TcpListener> =
            (0..NODES).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
        let ports: Vec<u16> =
            listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<io::Result<_>>()?;
        drop(listeners);
        let directory = env::temp_dir().join(format!("leasehold-quorum-{}", process::id()));
        fs::create_dir_all(&directory)?;
        let mut servers = Self { running: Vec::new(), ports, directory };
        for port in &servers.ports {
            let server = Command::new("redis-server")
                .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
                .arg("--dir")
                .arg(&servers.directory)
                .stdout(Stdio::null())
                .kill_on_drop(true)
                .spawn();
            servers.running.push(server.map_err(|error| {
                format!(
                    "redis-server cannot be started ({error}): install it, or set REDIS_URLS to 3, 5, 7 or 9 \
                     independent servers that are there, such as redis://a:6379,redis://b:6379,redis://c:6379"
                )
            })?);
        }
        // A refused connection is reported at once, and it takes a moment until the servers listen.
        for (port, server) in servers.ports.iter().zip(&mut servers.running) {
            while TcpStream::connect(("127.0.0.1", *port)).await.is_err() {
                if server.try_wait()?.is_some() {
                    return Err("a redis-server has ended before it listened".into());
                }
                sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(servers)
    }

    fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect()
    }

    /// Kills the last `servers` running ones, as abruptly as a crash.
    async fn kill(&mut self, servers: usize) -> Result<()> {
        for mut server in self.running.split_off(self.running.len().saturating_sub(servers)) {
            server.kill().await?;
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.running.clear();
        let _gone = fs::remove_dir_all(&self.directory);
    }
}

/// Completes when this process is asked to end.
async fn interrupted() {
    #[cfg(unix)]
    if let Ok(mut terminated) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ctrl_c = tokio::signal::ctrl_c() => {}
            _terminated = terminated.recv() => {}
        }
        return;
    }
    let _ctrl_c = tokio::signal::ctrl_c().await;
}
