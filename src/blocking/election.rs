//! Elections, in the blocking API.

use std::{future::pending, time::Duration};

use leasehold_protocol::{holder::Holder, observer::Leadership};

use super::{Lease, LeaseHandle, Lock, wait, wait_within};
use crate::error::Error;

wrapper! {
    /// As [`leasehold::Election`](crate::Election). It has no [`grace`](crate::Election::grace), as a [`Lock`] here.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leadership, blocking::Leases};
    /// # fn main() -> Result<(), Error> {
    /// # let leases = Leases::in_memory();
    /// let election = leases.election("scheduler").candidate("10.0.0.7:8080");
    /// let leaders = election.observe()?;
    /// let term = election.campaign()?;
    /// for now in leaders {
    ///     match now? {
    ///         Leadership::Led(leader) => {
    ///             println!("{} leads in term {}", leader.label().unwrap_or("?"), term.fence());
    ///             break;
    ///         }
    ///         _ => println!("hold requests back"), // nobody leads, or nobody knows who
    ///     }
    /// }
    /// term.release()?; // resigns
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    #[must_use = "an election elects nobody until somebody campaigns"]
    Election
}

impl Election {
    setters! {
        Election:
        candidate(impl Into<String>);
        ttl(Duration);
        max_hold(impl Into<Option<Duration>>);
        fair(bool);
        lock_delay(Duration);
        fence_memory(Duration);
    }

    getters! {
        Election:
        name -> &str;
    }

    /// Its lock. The holder leads.
    pub fn lock(&self) -> Lock {
        Lock(self.0.lock().clone())
    }

    /// Waits until this candidate leads: [`Election::campaign`](crate::Election::campaign).
    pub fn campaign(&self) -> Result<Lease, Error> {
        wait(self.0.campaign())?.map(Lease)
    }

    /// Campaigns, does the work of a leader on this thread, and campaigns again when the term was lost. It ends when
    /// `work` returns while its term holds, and then resigns.
    ///
    /// **It cannot stop the work.** `work` asks [`is_held`](LeaseHandle::is_held) or [`check`](LeaseHandle::check)
    /// between two steps, and returns when the term is lost; what it returns then is dropped, and it is called again in
    /// its next term. When it is [asked to stop](super::Leases::shutdown) its term holds still.
    ///
    /// ```
    /// # use leasehold::{Error, blocking::Leases};
    /// # fn main() -> Result<(), Error> {
    /// # let leases = Leases::in_memory();
    /// let steps = leases.election("scheduler").lead(|term| {
    ///     let mut steps = 0;
    ///     while term.is_held() && steps < 3 {
    ///         steps += 1; // a step of the leader's work, with `term.fence()`
    ///     }
    ///     steps
    /// })?;
    /// # assert_eq!(steps, 3); Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign). That a term is lost is none.
    pub fn lead<T>(&self, mut work: impl FnMut(LeaseHandle) -> T) -> Result<T, Error> {
        wait(self.0.lead(|term| {
            let done = work(LeaseHandle(term.clone()));
            async move {
                match term.check() {
                    Ok(()) => done,
                    // The end of the term ends this.
                    Err(_lost) => pending().await,
                }
            }
        }))?
    }

    /// See [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Holder>, Error> {
        wait(self.0.leader())?
    }

    /// Observes who leads, from now on, without a wait: [`Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> Result<Leaders, Error> {
        self.0.observe().map(Leaders)
    }
}

wrapper! {
    /// The leader, as it changes: as [`leasehold::Leaders`](crate::Leaders).
    ///
    /// It is an [`Iterator`] that waits for the next change, and ends when the [`Leases`](super::Leases) are closed.
    /// Its only error is [`Error::Config`], on a runtime's thread.
    #[derive(Clone)]
    #[must_use = "iterate to hear who leads"]
    Leaders
}

impl Leaders {
    getters! {
        Leaders:
        now -> Leadership;
    }

    /// Waits for the next change for at most `limit`; `None` if there was none. Zero looks, and does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] once the [`Leases`](super::Leases) are closed; [`Error::Config`] on a runtime's thread.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Leadership>, Error> {
        let client = self.0.client.clone();
        match wait_within(&client.host, limit, self.0.next())? {
            Some(None) => Err(Error::Closed),
            Some(change) => Ok(change),
            None => Ok(None),
        }
    }
}

impl Iterator for Leaders {
    type Item = Result<Leadership, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        wait(self.0.next()).transpose()
    }
}
