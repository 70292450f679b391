//! A process of many tasks that hold a name, or wait for it, on command.

use std::{io::stdin, time::Duration};

use leasehold::{Lease, Lock, Owner};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc::{self, Receiver, Sender},
    task::JoinSet,
};

use crate::{
    Result,
    contestant::leases_at,
    peer::{Peer, monotonic},
};

/// Long enough that no lease is renewed.
const TTL: Duration = Duration::from_hours(1);
/// How many acquires of free locks run at once: more would be one burst.
const AT_ONCE: usize = 256;

/// Another process of this program, as such a crowd.
#[derive(Debug)]
pub struct Crowd(Peer);

impl Crowd {
    pub fn start(url: &str) -> Result<Self> {
        Ok(Self(Peer::start(["crowd", url])?))
    }

    /// Makes `count` tasks read a name, which no other task wants to write.
    pub fn read(&mut self, name: &str, count: usize) -> Result<()> {
        self.0.order(&format!("read {count} {name}"))?;
        self.0.report().map(drop)
    }

    /// Makes `count` tasks wait for a name, to read it, or each to have it alone.
    pub fn wait(&mut self, name: &str, count: usize, reads: bool) -> Result<()> {
        self.0.order(&format!("{} {count} {name}", if reads { "wait-to-read" } else { "wait-alone" }))
    }

    /// When the last waiting reader was admitted, by [`monotonic`].
    pub fn all_in(&mut self) -> Result<i128> {
        self.0.report()
    }

    /// Makes all its tasks release their names, and stop waiting.
    pub fn leave(&mut self) -> Result<()> {
        self.0.order("leave 0 all")?;
        self.0.report().map(drop)
    }
}

/// Acts as such a process.
pub fn serve(url: &str) -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let leases = runtime.block_on(leases_at(url, TTL, true))?;
    println!("{}", monotonic());
    let mut crowd = Members { runtime, waiting: JoinSet::new(), held: Vec::new() };
    for order in stdin().lines() {
        let order = order?;
        let mut words = order.splitn(3, ' ');
        let (Some(what), Some(count), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err("an order without a name".into());
        };
        let (count, lock) = (count.parse()?, leases.rw_lock(name).read());
        match what {
            "read" => crowd.read(&lock, count)?,
            "wait-to-read" => {
                let mut came_in = crowd.wait(&lock, count);
                let last = crowd.runtime.block_on(async {
                    let mut last = 0;
                    for _ in 0..count {
                        let (lease, at) = came_in.recv().await.ok_or("a reader has ended")?;
                        crowd.held.push(lease);
                        last = last.max(at);
                    }
                    Ok::<_, crate::Error>(last)
                })?;
                println!("{last}");
                continue;
            }
            "wait-alone" => {
                // A task that is admitted has the lock until the crowd leaves.
                let mut came_in = crowd.wait(&leases.lock(name), count);
                crowd.waiting.spawn_on(
                    async move {
                        let _first = came_in.recv().await;
                        std::future::pending().await
                    },
                    crowd.runtime.handle(),
                );
                continue;
            }
            _ => crowd.leave()?,
        }
        println!("{}", monotonic());
    }
    Ok(())
}

struct Members {
    runtime: Runtime,
    waiting: JoinSet<Result<()>>,
    held: Vec<Lease>,
}

impl Members {
    fn read(&mut self, lock: &Lock, count: usize) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let some = left.min(AT_ONCE);
            let mut came_in = self.wait(lock, some);
            for _ in 0..some {
                self.held.push(came_in.blocking_recv().ok_or("a reader has ended")?.0);
            }
            left -= some;
        }
        Ok(())
    }

    fn wait(&mut self, lock: &Lock, count: usize) -> Receiver<(Lease, i128)> {
        let (sender, came_in) = mpsc::channel(count);
        for _ in 0..count {
            let (lock, sender): (Lock, Sender<_>) = (lock.clone().owner(Owner::anonymous()), sender.clone());
            let wait = async move {
                let lease = lock.acquire().await?;
                let at = monotonic();
                Ok(sender.send((lease, at)).await?)
            };
            self.waiting.spawn_on(wait, self.runtime.handle());
        }
        came_in
    }

    fn leave(&mut self) -> Result<()> {
        let (runtime, waiting, held) = (&self.runtime, &mut self.waiting, &mut self.held);
        runtime.block_on(async {
            waiting.shutdown().await;
            let mut releases = JoinSet::new();
            for lease in held.drain(..) {
                releases.spawn(lease.release());
            }
            while let Some(released) = releases.join_next().await {
                released??;
            }
            Ok(())
        })
    }
}
