//! The same API without async, for any thread: each call that talks to a server waits, and gives its answer.
//!
//! For programs without a runtime, for threads that compute, and inside `spawn_blocking`. An async program uses
//! [`leasehold::Leases`](crate::Leases), and both convert into each other with `into()`, connections and all.
//!
//! ```
//! use leasehold::{Error, blocking::Leases};
//!
//! # fn compress(_part: u32) {}
//! fn main() -> Result<(), Error> {
//!     let leases = Leases::in_memory(); // or `Leases::connect("redis://127.0.0.1:6379")?`
//!     let lease = leases.lock("reports:nightly").acquire()?;
//!     for part in 0..100 {
//!         lease.check()?; // the next part only while the lease holds
//!         compress(part);
//!     }
//!     lease.release()?;
//!     Ok(())
//! }
//! ```
//!
//! # What is the same
//!
//! Names, options, errors and promises are those of the async API, to whose pages each call links. It is that API,
//! which the calling thread polls and parks for. The keeper renews leases and tells of losses, whatever your threads
//! do, and has all timers. There is no runtime besides its own, and no second way to wait.
//!
//! # What is not
//!
//! - **Nothing stops work from outside.** A loss is found by whoever looks: [`Lease::check`] between two steps,
//!   [`Lease::wait_lost`] on a thread beside the work, [`Lease::on_lost`], or a
//!   [token](Lease::cancellation_token). [`Lock::run`] says at the end that the lease was lost. So there is no `grace`.
//! - **A call that waits ends by itself only**, since a thread cannot be dropped as a future can. Bound the wait for a
//!   lock with [`Lock::acquire_within`]. [`Leases::close`] and [`Leases::shutdown`] on another thread end all waits for
//!   locks with [`Error::Closed`](crate::Error::Closed).
//! - **A lease that is dropped, by a panic too, never waits.** It is released in the background. A program that exits
//!   right after that may leave the key for a TTL: [`Lease::release`] waits, and so does [`Leases::close`].
//! - **The default [`Owner`](crate::Owner) of an acquire is the thread.**
//! - The keeper of a [`Builder`] here is always [a thread of its own](crate::Keeper::Thread).
//!
//! # On a runtime's thread
//!
//! A thread that runs the tasks of a Tokio runtime must not wait: the other tasks would stand still, and perhaps the
//! one that is waited for. There each call that could wait is an [`Error::Config`](crate::Error::Config), which names
//! the async API. That is so in every `async` block, `block_on` included. It is not so inside `spawn_blocking` and
//! `block_in_place`, where Tokio lets a thread wait, nor on a thread that has only
//! [entered](tokio::runtime::Handle::enter) a runtime. Calls that do not wait, such as [`Lease::check`], and drops are
//! allowed everywhere.
//!
//! A destructor of a thread's own values (`thread_local!`) cannot wait once Tokio's are gone: then a call that could
//! wait is an [`Error::Config`](crate::Error::Config) too. A lease that is dropped there is released.
//!
//! Inside of [`unconstrained`](tokio::task::unconstrained) Tokio does not tell the two apart, and a call waits.
//! Executors of others than Tokio are not noticed either.

use std::fmt;

/// A type of this module: one of the async API, whose calls wait.
macro_rules! wrapper {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        pub struct $name(pub(super) crate::$name);

        impl From<crate::$name> for $name {
            fn from(is_async: crate::$name) -> Self {
                Self(is_async)
            }
        }

        impl From<$name> for crate::$name {
            fn from(blocking: $name) -> Self {
                blocking.0
            }
        }

        impl super::fmt::Debug for $name {
            fn fmt(&self, f: &mut super::fmt::Formatter<'_>) -> super::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// Setters that the async type has too.
macro_rules! setters {
    ($type:ident: $($(#[$meta:meta])* $name:ident($argument:ty);)+) => {$(
        #[doc = concat!("See [`", stringify!($type), "::", stringify!($name), "`](crate::", stringify!($type), "::",
            stringify!($name), ").")]
        $(#[$meta])*
        pub fn $name(self, value: $argument) -> Self {
            Self(self.0.$name(value))
        }
    )+};
}

/// Calls of the async type that wait for nothing.
macro_rules! getters {
    ($type:ident: $($name:ident -> $answer:ty;)+) => {$(
        #[doc = concat!("See [`", stringify!($type), "::", stringify!($name), "`](crate::", stringify!($type), "::",
            stringify!($name), ").")]
        #[must_use]
        pub fn $name(&self) -> $answer {
            self.0.$name()
        }
    )+};
}

mod builder;
mod election;
mod guarded;
mod lease;
mod leases;
mod lock;
mod multi_lock;
mod on_lost;
mod rw_lock;
mod scope;
mod wait;

pub use self::{
    builder::Builder,
    election::{Election, Leaders},
    guarded::Guarded,
    lease::{Lease, LeaseHandle},
    leases::Leases,
    lock::Lock,
    multi_lock::{MultiLease, MultiLeaseHandle, MultiLock},
    rw_lock::RwLock,
    scope::Scope,
};
use self::{
    on_lost::on_lost,
    wait::{wait, wait_within},
};
