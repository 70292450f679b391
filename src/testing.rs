use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{fence::Fence, holder::Holder, loss::LossReason};

use crate::{
    client::Client,
    clock::{self, SystemClock, wall},
    engine::Engine,
    error::Error,
    foreign::relayed,
    lock::Lock,
    lost::Lost,
    node::memory::Gate,
    random,
};

pub use crate::clock::{Clock, Jumps};

/// A clock that stands still until a test advances it. Clones are the same clock.
///
/// Pass it to [`Builder::clock`](crate::Builder::clock). Keys in memory expire by it too. When it moves, it wakes
/// everything that sleeps in the library, so a test waits only for the library's answer.
///
/// - [`advance`](Self::advance) jumps, as if the machine had been suspended. A lease is lost if the jump is longer than
///   its remaining time.
/// - [`pass`](Self::pass) lets time pass, as if the program were running: its leases are renewed.
///
/// While the clock stands still, a holder does not learn of a lost key until time moves on, because it asks the server
/// at most every 20 ms.
#[derive(Debug, Clone)]
pub struct ManualClock {
    /// In nanoseconds.
    now: Arc<AtomicU64>,
    jumps: Jumps,
}

impl ManualClock {
    /// Creates a clock that starts at what the machine's clock shows now.
    #[must_use]
    pub fn new() -> Self {
        Self { now: Arc::new(nanos(SystemClock.now()).into()), jumps: Jumps::new() }
    }

    /// Moves the clock forward, and wakes everything that sleeps by it.
    pub fn advance(&self, by: Duration) {
        let later = |now: u64| Some(now.saturating_add(nanos(by)));
        let _always_moves = self.now.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        self.jumps.notify();
    }

    /// Moves the clock forward through each moment at which the leases of this client have work due, and waits until it is done.
    /// Work that is due at the end is done too.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the clock stays where it is.
    pub async fn pass(&self, span: Duration, client: &Client) {
        relayed!(self.step_through(span, client));
    }

    async fn step_through(&self, span: Duration, client: &Client) {
        let (engine, end) = (&client.scope.engine, clock::now(self) + span);
        loop {
            let is_silent = gates(engine).into_iter().flatten().any(Gate::is_closed);
            engine.watchdog.settled(is_silent).await;
            let now = clock::now(self);
            if now >= end {
                return;
            }
            let next = engine.watchdog.next_tick().max(now + SHORTEST_STEP);
            self.advance(next.min(end).since(now));
        }
    }
}

/// The shortest step: time moves on, however often a lease is due for a check.
const SHORTEST_STEP: Duration = Duration::from_millis(1);

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::SeqCst))
    }

    fn jumps(&self) -> Option<Jumps> {
        Some(self.jumps.clone())
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A guard of [`silence`]: it keeps the in-memory nodes of a [`Client`] from answering it, until it is dropped.
#[derive(Debug)]
#[must_use = "the nodes answer again when it is dropped"]
pub struct Silence(Arc<Engine>);

/// Starts an outage: from now on the nodes of this [`Client`] do not answer it. Others with the same `memory://name`
/// are still answered.
///
/// Requests wait, for at most their limit, and are executed when the silence ends. The leases become
/// [`AtRisk`](crate::Status::AtRisk) after a third of their TTL plus a command time-out, and
/// [expire](LossReason::Expired) at their deadline.
///
/// # Errors
///
/// A node is not in memory.
pub fn silence(client: &Client) -> Result<Silence, Error> {
    gates(&client.scope.engine)?.into_iter().for_each(Gate::close);
    Ok(Silence(client.scope.engine.clone()))
}

impl Drop for Silence {
    fn drop(&mut self) {
        gates(&self.0).into_iter().flatten().for_each(Gate::open);
    }
}

/// Gives the lock to another holder from now on, for its TTL, whoever held it: the old holder's lease is
/// [`Taken`](LossReason::Taken).
///
/// # Errors
///
/// A node is not in memory, or the name is not valid.
pub fn take_over(lock: &Lock) -> Result<(), Error> {
    lock.scope.engine.check_open()?;
    let key = lock.key()?;
    for gate in gates(&lock.scope.engine)? {
        gate.take_over(&key, lock.scope.options.ttl);
    }
    Ok(())
}

/// Deletes the lock's key, as a `FLUSHALL` does: its holder's lease is [`Deleted`](LossReason::Deleted). For
/// [`Forced`](LossReason::Forced), use [`Lock::force_release`](crate::Lock::force_release).
///
/// # Errors
///
/// A node is not in memory, or the name is not valid.
pub fn delete(lock: &Lock) -> Result<(), Error> {
    lock.scope.engine.check_open()?;
    let key = lock.key()?;
    for gate in gates(&lock.scope.engine)? {
        gate.delete(&key);
    }
    Ok(())
}

fn gates(engine: &Engine) -> Result<Vec<&Gate>, Error> {
    let gates = engine.quorum.members().map(|(_, member)| member.gate());
    let elsewhere = || Error::misuse("this is for locks in memory: use a url such as memory://, or Client::in_memory");
    gates.collect::<Option<_>>().ok_or_else(elsewhere)
}

/// The loss of a lease that lasted no time and ended now, for a fake of your own.
#[must_use]
pub fn lost(name: &str, fence: Fence, reason: LossReason) -> Lost {
    Lost::new(name, fence, reason.into(), wall(), Duration::ZERO)
}

/// A holder with this label, for a fake of your own. Two of them are never equal, because they hold two locks.
#[must_use]
pub fn holder(label: &str, remaining: Duration, fence: Fence) -> Holder {
    Holder::of(Some(random::token(label)), Some(remaining), Some(fence))
}

/// The error of an [`acquire_within`](crate::Lock::acquire_within) that found the lock held, for a fake of your own.
#[must_use]
pub fn timed_out(name: &str, waited: Duration, holder: Holder) -> Error {
    Error::TimedOut { name: name.into(), waited, holder: Box::new(holder) }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests;
