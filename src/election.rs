//! Elections: a lock whose holder leads, and observers that only want to know the leader.

use std::{
    fmt,
    future::{Future, poll_fn},
    panic::{RefUnwindSafe, UnwindSafe},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use leasehold_protocol::{
    holder::Holder,
    observer::{Known, Leadership},
};
use tokio::sync::watch;

use crate::{
    engine::{Engine, LastReport},
    error::Error,
    foreign::relayed,
    lease::{Lease, LeaseHandle},
    lock::Lock,
    observers::observe,
};

/// An election: one of the candidates leads at a time, and anyone may observe which.
///
/// It is the [lock](Self::lock) of its name and nothing else. The leader's address is the label in the lock's own key:
/// it is set and deleted with the lock, so no record of the leader can disagree with who leads. A term is a [`Lease`],
/// with all that a lease has: [`fence`](Lease::fence) is the term's number.
///
/// Every option is an option of its lock: `Election::from(lock)` is the election with the options of this [`Lock`]. A
/// bad value makes [`campaign`](Self::campaign) and [`observe`](Self::observe) end with [`Error::Config`] before
/// anything is sent. Cheap to clone and to keep.
///
/// - [`ttl`](Lock::ttl): how long the others wait after a leader has died, and how long an outage may last before a
///   leader must stop. Give every candidate the same value.
/// - [`grace`](Lock::grace): how long before the end of its term [`lead`](Self::lead) asks the work to stop. Work that has tidied
///   up then awaits `std::future::pending`: if it ends by itself, `lead` ends too.
///
/// ```
/// # use leasehold::{Client, Error, Leadership};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let client = Client::in_memory();
/// let election = client.election("scheduler").candidate("10.0.0.7:8080");
/// let mut leaders = election.observe()?;
/// let term = election.campaign().await?;
/// while let Some(now) = leaders.next().await {
///     match now {
///         Leadership::Led(leader) => {
///             println!("{} leads in term {}", leader.label().unwrap_or("?"), term.fence());
///             break;
///         }
///         _ => println!("hold requests back"), // nobody leads, or nobody knows who
///     }
/// }
/// term.release().await?; // resigns
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "an election elects nobody until somebody campaigns"]
pub struct Election {
    lock: Lock,
}

/// An election with the options of this lock.
impl From<Lock> for Election {
    fn from(lock: Lock) -> Self {
        Self { lock }
    }
}

impl Election {
    /// The name of the election and its lock, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// The election's lock, whose holder leads.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The label by which observers see this candidate when it leads, such as its address: 1 to 128 bytes without
    /// control characters; the builder's [label](crate::Builder::label) unless set.
    pub fn candidate(self, label: impl Into<String>) -> Self {
        Self { lock: self.lock.label(label) }
    }

    /// Waits until this candidate leads, for as long as it takes. [`Lease::release`] resigns.
    ///
    /// A leader must stop when [`lost`](Lease::lost) completes: from then on another may lead. [`lead`](Self::lead)
    /// takes care of that.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub fn campaign(&self) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.lock.acquire()
    }

    /// Campaigns, runs `work` as the leader, and campaigns again when the term is lost. It ends when `work` ends by
    /// itself, and then resigns.
    ///
    /// `work` is called once per term. When the term is lost the work is dropped at its next `await`, whatever it was
    /// about to do: another candidate may lead from then on. Work that blocks its thread cannot be stopped from
    /// outside; let it call [`check`](LeaseHandle::check) now and then. Its requests to other systems should carry the
    /// term's [`fence`](LeaseHandle::fence), so that these refuse a former leader.
    ///
    /// ```
    /// # use leasehold::{Client, Error, LeaseHandle};
    /// # async fn schedule(term: LeaseHandle) -> u64 { term.fence().into() }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let client = Client::in_memory();
    /// let last = client.election("scheduler").candidate("10.0.0.7:8080").lead(schedule).await?;
    /// # assert!(last > 0); Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign). A lost term is not an error. During a [`shutdown`](crate::Client::shutdown) the
    /// work is notified through its handle, and continues until it ends by itself, or until the limit has passed; then
    /// this ends with [`Error::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, then resigns in the background.
    pub fn lead<F, T>(&self, mut work: F) -> impl Future<Output = Result<T, Error>> + use<F, T>
    where
        F: AsyncFnMut(LeaseHandle) -> T,
    {
        let lock = self.lock.clone();
        async move {
            loop {
                let term = lock.acquire().await?;
                let (mut output, job) = (None, &mut work);
                let led = term.run(async |handle| {
                    output = Some(job(handle).await);
                    Ok::<_, Error>(())
                });
                let outcome = led.await;
                match (output, outcome) {
                    (Some(output), _) => return Ok(output),
                    (None, Ok(()) | Err(Error::Lost(_))) => {}
                    (None, Err(error)) => return Err(error),
                }
            }
        }
    }

    /// The current leader, as the servers report it: see [`Lock::holder`]. `None` if there is no leader, or the name is
    /// shared.
    ///
    /// # Errors
    ///
    /// As [`Lock::holder`].
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn leader(&self) -> Result<Option<Holder>, Error> {
        Ok(Leadership::of(self.lock.holder().await?).leader().cloned())
    }

    /// Observes who leads, from now on. An observer need not be a candidate.
    ///
    /// All streams for an election in a process share one observer. It asks the server when the server notifies it of a
    /// change, so it sends one request for each renewal by the leader, however many streams there are. While there is
    /// no leader, or if a server sends no notifications, it asks about twice a second.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a bad name or label; [`Error::Closed`]. An outage or a refusal is not an error: the
    /// stream gives [`Unknown`](Leadership::Unknown), and the event `observe` reports the cause.
    pub fn observe(&self) -> Result<Leaders, Error> {
        let engine = &self.lock.scope.engine;
        engine.check_open()?;
        let key = self.lock.key()?;
        let told = observe(engine, &key);
        Ok(Leaders { engine: engine.clone(), name: self.lock.name().into(), told, last: None, waiting: None })
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("lock", &self.lock).finish()
    }
}

/// A stream of who leads, as it changes. You get the newest state only: changes between two calls are skipped.
///
/// **It says when it does not know.** A leader counts only for the time that its key had left, measured from the
/// sending of the request that found it, whatever the network does. Then the state is [`Unknown`](Leadership::Unknown)
/// until a request is answered. So a router that is cut off stops routing to a former leader by itself, just as a
/// leader that is cut off stops leading.
///
/// Between two leaders you may get `Unknown`, [`Vacant`](Leadership::Vacant), both or neither. After a leader has died
/// it is unknown for a moment who leads, and the next leader may be there before the observer has asked. A new term has
/// a larger [`fence`](Holder::fence). [`next`](Self::next) returns some milliseconds after a change, and
/// [`now`](Self::now) shows it at once.
///
/// A state was true when the servers were asked. The leader may have resigned since, so a request that must not reach a
/// former leader should carry the term's fence.
///
/// It is a [`Stream`], which ends when the [`Client`](crate::Client) is closed.
#[must_use = "call `next` to hear who leads"]
pub struct Leaders {
    pub(crate) engine: Arc<Engine>,
    name: Arc<str>,
    told: watch::Receiver<LastReport>,
    /// The state that was returned last.
    last: Option<Leadership>,
    /// The wait for the next change, from its first poll on.
    waiting: Option<Pin<Box<dyn Future<Output = Change> + Send + Sync>>>,
}

/// The outcome of a wait for a change; `None` at the end of the stream.
type Change = Option<watch::Receiver<LastReport>>;

// A wait that a panic cut off starts again, and has missed no change.
impl UnwindSafe for Leaders {}
impl RefUnwindSafe for Leaders {}

impl Leaders {
    /// The current state, as far as it is known. Sends nothing, and never returns a state that has expired.
    #[must_use]
    pub fn now(&self) -> Leadership {
        self.told.borrow().as_ref().unwrap_or(&Known::NOTHING).at(self.engine.now())
    }

    /// Waits for the next change; the first call waits for the first answer. `None` once the [`Client`](crate::Client)
    /// are closed.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses no change.
    pub async fn next(&mut self) -> Option<Leadership> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Leaders {
    type Item = Leadership;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Leadership>> {
        loop {
            let Self { told, waiting, .. } = &mut *self;
            let waiting_for = || {
                let mut told = told.clone();
                let changed = async move { told.changed().await.ok().map(|()| told) };
                Box::pin(async move { relayed!(changed) }) as Pin<Box<_>>
            };
            // Taken out while it is polled: after a panic of a waker the next call starts again.
            let mut wait = waiting.take().unwrap_or_else(waiting_for);
            let Poll::Ready(changed) = wait.as_mut().poll(context) else {
                *waiting = Some(wait);
                return Poll::Pending;
            };
            let Some(told) = changed else { return Poll::Ready(None) };
            self.told = told;
            let now = self.now();
            // A state that has changed back meanwhile is not reported.
            if !self.last.as_ref().is_some_and(|last| now.is_like(last)) {
                self.last = Some(now.clone());
                return Poll::Ready(Some(now));
            }
        }
    }
}

impl Clone for Leaders {
    fn clone(&self) -> Self {
        let Self { engine, name, told, last, .. } = self;
        let (engine, name, told, last) = (engine.clone(), name.clone(), told.clone(), last.clone());
        Self { engine, name, told, last, waiting: None }
    }
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").field("name", &self.name).field("now", &self.now()).finish_non_exhaustive()
    }
}
