//! A lock on a Redis Cluster of six servers: the primary that has it is killed, a replica takes over, and the job
//! continues.
//!
//! ```text
//! cargo run --example cluster     # starts six redis-servers of its own, and needs redis-cli
//! REDIS_URL=redis-cluster://a:6379,b:6379 cargo run --example cluster
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may look at the clock; the library has one door for it")]

use std::{
    env, error, fs, io,
    net::TcpListener,
    path::PathBuf,
    process::{self, Stdio},
    time::{Duration, Instant},
};

use leasehold::{Client, Lease, Lost, NodeState};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

type Result<T, E = Box<dyn error::Error + Send + Sync>> = std::result::Result<T, E>;

const SERVERS: u16 = 6;
const NAME: &str = "examples:cluster";
/// A failover of this cluster takes two to three seconds, so a lease must last longer.
const TTL: Duration = Duration::from_secs(12);
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(500);
/// The whole example takes about twenty seconds.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    // When this is dropped, the servers end, if they are ours, and their directory is deleted.
    tokio::select! {
        outcome = timeout(LIMIT, story()) => outcome.map_err(|_| format!("not done after {LIMIT:?}"))?,
        () = interrupted() => Err("interrupted".into()),
    }
}

async fn story() -> Result<()> {
    let (url, mut servers) = match env::var("REDIS_URL") {
        Ok(url) => (url, None),
        Err(_) => Servers::start().await.map(|servers| (servers.url(), Some(servers)))?,
    };
    let client = Client::builder().url(url).ttl(TTL).build().await?;
    let lease = client.lock(NAME).acquire_within(Duration::from_secs(10)).await?;
    println!("job: acquired {:?} with fence {}", lease.name(), lease.fence());
    nodes(&client);
    work(&lease, 2).await?;
    if let Some(servers) = &mut servers {
        let killed = servers.kill_the_one_with(NAME).await?;
        println!("the primary that has the lock, on port {killed}, is killed");
        let (began, until) = (Instant::now(), Instant::now() + lease.remaining());
        // Work until a renewal is confirmed by the replica that has taken over.
        while Instant::now() + lease.remaining() < until + STEP {
            work(&lease, 1).await?;
        }
        println!("job: {:?} after {:.1?}", lease.status(), began.elapsed());
        nodes(&client);
    }
    work(&lease, 2).await?;
    let fence = lease.fence();
    lease.release().await?;
    let next = client.lock(NAME).acquire_within(Duration::from_secs(10)).await?;
    println!("job: released; the next holder has the larger fence {} (it was {fence})", next.fence());
    next.release().await?;
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

/// Prints the state of the primaries, as their answers have shown it.
fn nodes(client: &Client) {
    for node in client.nodes() {
        let state = match node.state() {
            NodeState::Up => "is up".into(),
            NodeState::Unreachable(why) => format!("is unreachable: {why}"),
            state => format!("{state:?}"),
        };
        let (slots, replicas) = (node.slots().unwrap_or_default(), node.replicas().unwrap_or_default());
        println!("  {} {state}; it has {slots} slots and {replicas} replicas", node.address());
    }
}

/// A cluster of our own: three primaries with a replica each, which end when they are dropped.
struct Servers {
    running: Vec<(u16, Child)>,
    directory: PathBuf,
}

impl Servers {
    async fn start() -> Result<Self> {
        let directory = env::temp_dir().join(format!("leasehold-cluster-{}", process::id()));
        let mut servers = Self { running: Vec::new(), directory };
        for port in free_ports()? {
            let directory = servers.directory.join(port.to_string());
            fs::create_dir_all(&directory)?;
            let server = Command::new("redis-server")
                .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
                .args(["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"])
                .args(["--repl-diskless-sync-delay", "0"])
                .args(["--cluster-node-timeout", &NODE_TIMEOUT.as_millis().to_string()])
                .arg("--dir")
                .arg(directory)
                .stdout(Stdio::null())
                .kill_on_drop(true)
                .spawn();
            let server = server.map_err(|error| {
                format!(
                    "redis-server cannot be started ({error}): install it, or set REDIS_URL to a cluster that is there, such as \
                     redis-cluster://a:6379,b:6379"
                )
            })?;
            servers.running.push((port, server));
        }
        for (port, server) in &mut servers.running {
            while TcpStream::connect(("127.0.0.1", *port)).await.is_err() {
                if server.try_wait()?.is_some() {
                    return Err("a redis-server has ended before it listened".into());
                }
                sleep(Duration::from_millis(10)).await;
            }
        }
        let mut create: Vec<String> = ["--cluster", "create"].map(Into::into).into();
        create.extend(servers.running.iter().map(|(port, _)| format!("127.0.0.1:{port}")));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"].map(Into::into));
        cli(&create).await?;
        // A replica that has never been in contact with its primary does not take over from it.
        for (port, _) in &servers.running {
            let is_new = |info: &str| info.contains("role:slave") && !info.contains("master_link_status:up");
            while is_new(&cli(&["-p", &port.to_string(), "info", "replication"].map(Into::into)).await?) {
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(servers)
    }

    fn url(&self) -> String {
        let hosts: Vec<String> = self.running.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// Kills the server with this key, as abruptly as a crash. Returns its port.
    async fn kill_the_one_with(&mut self, key: &str) -> Result<u16> {
        for (port, server) in &mut self.running {
            // If a server does not have a key, it answers where the key is; a replica does so for every key.
            let answer = cli(&["-p", &port.to_string(), "exists", key].map(Into::into)).await?;
            if answer.trim() == "1" {
                server.kill().await?;
                return Ok(*port);
            }
        }
        Err("no server has the lock".into())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.running.clear();
        let _gone = fs::remove_dir_all(&self.directory);
    }
}

/// Ports that are free a moment before they are used. So are the ports of the cluster bus, 10,000 above.
fn free_ports() -> Result<Vec<u16>> {
    let (mut ports, mut kept) = (Vec::new(), Vec::new());
    let first = 10_000 + u16::try_from(process::id() % 10_000)?;
    for port in first..first + 1_000 {
        let both = [port, port + 10_000].map(|port| TcpListener::bind(("127.0.0.1", port)));
        if let [Ok(one), Ok(other)] = both {
            ports.push(port);
            kept.extend([one, other]);
        }
        if ports.len() == usize::from(SERVERS) {
            return Ok(ports);
        }
    }
    Err(io::Error::other("there are not enough free ports").into())
}

/// The output of redis-cli.
async fn cli(arguments: &[String]) -> Result<String> {
    let output = Command::new("redis-cli").args(arguments).stdin(Stdio::null()).output().await;
    let output = output.map_err(|error| format!("redis-cli cannot be started ({error}): install it"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("redis-cli failed: {}", String::from_utf8_lossy(&output.stderr)).into())
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
