//! Eight processes take turns, first come, first served; one of them dies while it waits, another while it works.
//!
//! ```text
//! cargo run --example queue                                          # starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example queue
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may look at the clock; the library has one door for it")]

use std::{
    env,
    error::Error,
    io::{self, Read as _},
    net::TcpListener,
    process::{self, Stdio},
    time::{Duration, Instant},
};

use leasehold::{Client, Lock};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{sleep, timeout},
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Set in the workers, which are this program once more: their number.
const WORKER: &str = "QUEUE_WORKER";
const WORKERS: usize = 8;
/// This worker dies while it holds the lock.
const DIES_WORKING: usize = 3;
/// This worker dies while it waits.
const DIES_WAITING: usize = 5;

/// How long the others wait when the holder dies.
const TTL: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_millis(600);
/// The whole example takes about ten seconds.
const LIMIT: Duration = Duration::from_secs(25);

#[tokio::main]
async fn main() -> Result<()> {
    if let Ok(number) = env::var(WORKER) {
        return work(number.parse()?).await;
    }
    // Dropping this ends the workers, and the server if it is ours.
    tokio::select! {
        outcome = timeout(LIMIT, lead()) => outcome.map_err(|_| format!("not done after {LIMIT:?}"))?,
        () = interrupted() => Err("interrupted".into()),
    }
}

/// A worker: waits for its turn, works, passes the lock on.
async fn work(number: usize) -> Result<()> {
    end_with_parent()?;
    let client = client(&env::var("REDIS_URL")?, &format!("worker {number}")).await?;
    // `fair` is all it takes: other waiters come after this one, in any process.
    let lease = client.lock(env::var("QUEUE_LOCK")?).fair(true).acquire().await?;
    println!("has the lock, fence {}", lease.fence());
    tokio::select! {
        biased;
        lost = lease.lost() => return Err(lost.into()),
        () = sleep(TURN) => {}
    }
    lease.release().await?;
    println!("has passed it on");
    client.close().await;
    Ok(())
}

async fn client(url: &str, label: &str) -> Result<Client> {
    Ok(Client::builder().url(url).label(label).ttl(TTL).build().await?)
}

/// The first process lets the queue form, ends two of its members, and watches the others take their turns.
async fn lead() -> Result<()> {
    let (url, _server) = server().await?;
    let name = format!("examples:queue:{}", process::id());
    let client = client(&url, "the first process").await?;
    let lock = client.lock(&name);
    let story = Story { started: Instant::now() };

    // The gate is held until all workers wait in line.
    let gate = lock.acquire().await?;
    let (tell, mut told) = unbounded_channel();
    let (mut workers, mut readers) = (Vec::new(), JoinSet::new());
    for number in 1..=WORKERS {
        workers.push(start(number, &url, &name, &tell, &mut readers)?);
        // The workers come one after the other, so that their order is known.
        while lock.waiters().await?.len() < number {
            sleep(Duration::from_millis(10)).await;
        }
    }
    drop(tell);
    story.tell(&format!("{WORKERS} processes wait for one lock"));
    story.line(&lock).await?;
    story.tell("the lock is released, and goes from one to the next");
    gate.release().await?;

    let mut turns = Vec::new();
    while let Some((number, said)) = told.recv().await {
        story.tell(&format!("worker {number} {said}"));
        if !said.starts_with("has the lock") {
            continue;
        }
        turns.push(number);
        if number == 1 {
            kill(&mut workers, DIES_WAITING).await?;
            story.tell(&format!("worker {DIES_WAITING} is killed while it waits: its turn will be skipped"));
            story.line(&lock).await?;
        } else if number == DIES_WORKING {
            kill(&mut workers, number).await?;
            story.tell(&format!("worker {number} is killed while it holds the lock: its key expires within {TTL:?}"));
            story.line(&lock).await?;
        }
    }
    story.tell(&format!("nobody waits any more; the turns were {turns:?}"));
    client.close().await;

    let expected: Vec<usize> = (1..=WORKERS).filter(|number| *number != DIES_WAITING).collect();
    if turns == expected { Ok(()) } else { Err(format!("the turns should have been {expected:?}").into()) }
}

/// Prints what happens, and when.
struct Story {
    started: Instant,
}

impl Story {
    fn tell(&self, what: &str) {
        println!("{:5.1} s  {what}", self.started.elapsed().as_secs_f64());
    }

    /// Prints the waiters in line, as the server knows them.
    async fn line(&self, lock: &Lock) -> Result<()> {
        let line = lock.waiters().await?;
        let line: Vec<String> =
            line.iter().map(|waiting| format!("{} ({:.1?})", waiting.label(), waiting.waited())).collect();
        println!("         in line: {}", line.join(", "));
        Ok(())
    }
}

/// Starts a worker, whose output goes to `tell`.
fn start(
    number: usize,
    url: &str,
    name: &str,
    tell: &UnboundedSender<(usize, String)>,
    readers: &mut JoinSet<()>,
) -> Result<Child> {
    let mut worker = Command::new(env::current_exe()?)
        .env(WORKER, number.to_string())
        .env("REDIS_URL", url)
        .env("QUEUE_LOCK", name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(worker.stdout.take().ok_or("the worker's output is not ours")?).lines();
    let tell = tell.clone();
    readers.spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            if tell.send((number, line)).is_err() {
                break;
            }
        }
    });
    Ok(worker)
}

/// Kills a worker, as abruptly as a crash.
async fn kill(workers: &mut [Child], number: usize) -> Result<()> {
    Ok(workers.get_mut(number - 1).ok_or("no such worker")?.kill().await?)
}

/// Ends this worker when the first process has ended, for whatever reason: then the pipe to it is closed.
fn end_with_parent() -> Result<()> {
    std::thread::Builder::new().name("end-with-parent".into()).spawn(|| {
        let _gone = io::stdin().read_to_end(&mut Vec::new());
        process::exit(1);
    })?;
    Ok(())
}

/// Where the locks are: an existing server, or one of our own, which ends when it is dropped.
async fn server() -> Result<(String, Option<Child>)> {
    match env::var("REDIS_URL") {
        Ok(url) if url.starts_with("memory:") => {
            return Err("eight processes share no memory: REDIS_URL must name a server".into());
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
        format!(
            "redis-server cannot be started ({error}): install it, or set REDIS_URL to a server that is there, such as \
             redis://127.0.0.1:6379"
        )
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
