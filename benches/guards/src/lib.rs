//! Cycles of acquire and release of free locks, for the two programs that `scripts/guards` counts.

use std::{env, error::Error, time::Duration};

use leasehold::Client;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// An error that ends a program.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The cycles that the arguments `CYCLES TASKS [URL...]` ask for: on one server, over a quorum of several, or without a
/// URL on the memory node.
#[derive(Debug)]
pub struct Cycles {
    runtime: Runtime,
    client: Client,
    tasks: usize,
    each: usize,
}

impl Cycles {
    /// Connects on a current-thread runtime, because what several workers do changes from run to run.
    ///
    /// # Errors
    ///
    /// The arguments are wrong, or the server does not answer.
    pub fn from_arguments() -> Result<Self> {
        let mut arguments = env::args().skip(1);
        let mut number = || -> Result<usize> { Ok(arguments.next().ok_or("usage: CYCLES TASKS [URL...]")?.parse()?) };
        let (each, tasks) = (number()?, number()?);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = match &*arguments.collect::<Vec<_>>() {
            [] => Client::in_memory(),
            [url] => runtime.block_on(Client::connect(url))?,
            // The servers were started for this.
            urls => runtime.block_on(Client::builder().quorum(urls).restart_delay(Duration::ZERO).build())?,
        };
        Ok(Self { runtime, client, tasks, each })
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
                let (lock, each) = (self.client.lock(format!("guard:{task}")), self.each);
                running.spawn(async move {
                    for _ in 0..each {
                        lock.try_acquire()
                            .await?
                            .ok_or("the lock is not free")?
                            .release()
                            .await?
                            .is_confirmed()
                            .then_some(())
                            .ok_or("the release is not confirmed")?;
                    }
                    Result::Ok(each)
                });
            }
            let mut all = 0;
            while let Some(each) = running.join_next().await {
                all += each??;
            }
            Ok(all)
        })
    }
}
