//! Cycles of acquire and release of free locks, for the two programs that `scripts/guards` counts.

use std::{env, error::Error, time::Duration};

use leasehold::{Client, Lock};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

const USAGE: &str = "usage: plain|fair|shared|renewed CYCLES TASKS [URL...]";

const UNCONFIRMED: &str = "the release is not confirmed";

/// An error that ends a program.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The cycles that the arguments `KIND CYCLES TASKS [URL...]` ask for: on one server, over a quorum of several, or
/// without a URL on the memory node.
#[derive(Debug)]
pub struct Cycles {
    runtime: Runtime,
    client: Client,
    kind: Kind,
    tasks: usize,
    each: usize,
}

/// How the locks are held.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Fair,
    /// One of two permits.
    Shared,
    /// Acquired once, and renewed in each cycle.
    Renewed,
}

impl Cycles {
    /// Connects on a current-thread runtime, because what several workers do changes from run to run.
    ///
    /// # Errors
    ///
    /// The arguments are wrong, or the server does not answer.
    pub fn from_arguments() -> Result<Self> {
        let mut arguments = env::args().skip(1);
        let kind = match arguments.next().as_deref() {
            Some("plain") => Kind::Plain,
            Some("fair") => Kind::Fair,
            Some("shared") => Kind::Shared,
            Some("renewed") => Kind::Renewed,
            _ => return Err(USAGE.into()),
        };
        let mut number = || -> Result<usize> { Ok(arguments.next().ok_or(USAGE)?.parse()?) };
        let (each, tasks) = (number()?, number()?);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = match &*arguments.collect::<Vec<_>>() {
            [] => Client::in_memory(),
            [url] => runtime.block_on(Client::connect(url))?,
            // The servers were started for this.
            urls => runtime.block_on(Client::builder().quorum(urls).restart_delay(Duration::ZERO).build())?,
        };
        Ok(Self { runtime, client, kind, tasks, each })
    }

    /// Runs this many cycles in each task, every task with a lock of its own. Returns how many there were in all.
    ///
    /// # Errors
    ///
    /// A lock is not free, or the server does not answer.
    pub fn run(&self) -> Result<usize> {
        let mut running = JoinSet::new();
        self.runtime.block_on(async {
            for task in 0..self.tasks {
                let (name, each) = (format!("guard:{task}"), self.each);
                let lock = match self.kind {
                    Kind::Shared => self.client.semaphore(name, 2),
                    kind => self.client.lock(name).fair(matches!(kind, Kind::Fair)),
                };
                if let Kind::Renewed = self.kind {
                    running.spawn(renew(lock, each));
                } else {
                    running.spawn(acquire_and_release(lock, each));
                }
            }
            let mut all = 0;
            while let Some(each) = running.join_next().await {
                all += each??;
            }
            Ok(all)
        })
    }
}

async fn acquire_and_release(lock: Lock, each: usize) -> Result<usize> {
    for _ in 0..each {
        let released = lock.try_acquire().await?.ok_or("the lock is not free")?.release().await?;
        released.is_confirmed().then_some(()).ok_or(UNCONFIRMED)?;
    }
    Ok(each)
}

async fn renew(lock: Lock, each: usize) -> Result<usize> {
    let lease = lock.acquire().await?;
    for _ in 0..each {
        lease.renew().await?;
    }
    lease.release().await?.is_confirmed().then_some(each).ok_or_else(|| UNCONFIRMED.into())
}
