//! Ten processes read at once, and one writes in its turn, without a reader beside it. One of the readers is killed:
//! the writer waits until that reader's share has expired, and no longer.
//!
//! Two traps. A writer that takes a plain `lock` does not wait in line, so readers that never pause would keep it out.
//! And a reader that was stopped for longer than its TTL may continue while another process writes. So its effects on
//! other systems must carry the fence, which is smaller than the writer's.
//!
//! ```text
//! cargo run --example readers                                          # starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example readers
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may look at the clock; the library has one door for it")]

use std::{
    env,
    error::Error,
    io,
    net::TcpListener,
    process::{self, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{Client, RwLock};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Notify,
    time::{sleep, timeout},
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Set in the readers, which are this program once more: their number.
const READER: &str = "READERS_READER";
const READERS: usize = 10;
/// This reader dies while it reads.
const DIES: usize = 4;

/// How long the writer waits for a reader that has died.
const TTL: Duration = Duration::from_secs(2);
/// The whole example takes a few seconds.
const LIMIT: Duration = Duration::from_secs(25);

#[tokio::main]
async fn main() -> Result<()> {
    if let Ok(number) = env::var(READER) {
        return read(&number).await;
    }
    // Dropping this ends the readers, and the server if it is ours.
    timeout(LIMIT, lead()).await.map_err(|_| format!("not done after {LIMIT:?}"))?
}

async fn index(url: &str, label: &str) -> Result<(Client, RwLock)> {
    let client = Client::builder().url(url).label(label).ttl(TTL).build().await?;
    let index = client.rw_lock(env::var("READERS_LOCK").unwrap_or_else(|_| format!("examples:{}", process::id())));
    Ok((client, index))
}

/// A reader: reads twice, each time until the first process tells it that it has read enough.
async fn read(number: &str) -> Result<()> {
    let enough = enough()?;
    let (client, index) = index(&env::var("REDIS_URL")?, &format!("reader {number}")).await?;
    for _ in 0..2 {
        let lease = index.read().acquire().await?;
        println!("{}", lease.fence());
        tokio::select! {
            biased;
            lost = lease.lost() => return Err(lost.into()),
            () = enough.notified() => {}
        }
        lease.release().await?;
    }
    client.close().await;
    Ok(())
}

/// Signals each line from the first process, which means that this process has read enough. If the pipe ends, for any
/// reason, this process ends too.
fn enough() -> Result<Arc<Notify>> {
    let enough = Arc::<Notify>::default();
    let tell = enough.clone();
    std::thread::Builder::new().name("first-process".into()).spawn(move || {
        io::stdin().lines().map_while(io::Result::ok).for_each(|_| tell.notify_one());
        process::exit(1);
    })?;
    Ok(enough)
}

/// The first process starts the readers, kills one of them, and writes.
async fn lead() -> Result<()> {
    let (url, _server) = server().await?;
    let (client, index) = index(&url, "the writer").await?;
    let started = Instant::now();
    let tell = |what: &str| println!("{:5.1} s  {what}", started.elapsed().as_secs_f64());

    let mut readers = Vec::new();
    for number in 1..=READERS {
        readers.push(Reader::start(number, &url, index.name())?);
    }
    let first = fences(&mut readers).await?;
    tell(&format!("{READERS} processes read at once, all with fence {first}"));

    let write = index.write().on_wait({
        let name = index.name().to_owned();
        move |holders| println!("         the writer waits: {name:?} is held by {holders}")
    });
    let writing = tokio::spawn(write.acquire());
    while write.waiters().await?.is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    readers.remove(DIES - 1).process.kill().await?;
    tell(&format!("reader {DIES} is killed: its share is over within {TTL:?}"));
    for reader in &mut readers {
        reader.has_read_enough().await?;
    }
    let writing = writing.await??;
    tell(&format!("nobody reads any more: the writer has fence {}", writing.fence()));
    if writing.fence() <= first {
        return Err("the writer's fence is not above that of the readers before it".into());
    }
    let waiting = write.waiters().await?;
    if let [first, ..] = &*waiting {
        tell(&format!("behind it {} wait, the first of them {}", waiting.len(), first.mode()));
    }
    let fence = writing.fence();
    writing.release().await?;

    let second = fences(&mut readers).await?;
    tell(&format!("all others read again, with fence {second}"));
    for reader in &mut readers {
        reader.has_read_enough().await?;
    }
    for reader in &mut readers {
        if !reader.process.wait().await?.success() {
            return Err("a reader has failed".into());
        }
    }
    client.close().await;
    if second > fence { Ok(()) } else { Err("the readers' fence is not above that of the writer before them".into()) }
}

/// A process that reads, and reports its fence.
struct Reader {
    process: Child,
    tells: tokio::io::Lines<BufReader<ChildStdout>>,
    hears: ChildStdin,
}

impl Reader {
    fn start(number: usize, url: &str, name: &str) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .env(READER, number.to_string())
            .env("REDIS_URL", url)
            .env("READERS_LOCK", name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (tells, hears) = (process.stdout.take(), process.stdin.take());
        let (tells, hears) = tells.zip(hears).ok_or("the reader's pipes are not ours")?;
        Ok(Self { process, tells: BufReader::new(tells).lines(), hears })
    }

    async fn has_read_enough(&mut self) -> Result<()> {
        Ok(self.hears.write_all(b"\n").await?)
    }
}

/// The fence that all of them read with.
async fn fences(readers: &mut [Reader]) -> Result<leasehold::Fence> {
    let mut fences = Vec::new();
    for reader in readers {
        let told = reader.tells.next_line().await?.ok_or("a reader has ended")?;
        fences.push(told.parse::<leasehold::Fence>()?);
    }
    fences.dedup();
    match *fences {
        [one] => Ok(one),
        _ => Err(format!("they read at one time, with different fences: {fences:?}").into()),
    }
}

/// Where the lock is: an existing server, or one of our own, which ends when it is dropped.
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
