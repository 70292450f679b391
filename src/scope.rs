//! A part of a program, or a tenant of it, with names and a label of its own on the same connections.

use std::{fmt, sync::Arc};

use leasehold_protocol::{glob, key::Key};

use crate::{
    client::{Client, Options},
    election::Election,
    error::Error,
    foreign::{Relay, relayed},
    guarded::Guarded,
    lock::Lock,
    multi_lock::MultiLock,
    options::{Access, LockOptions, Names, check_label, check_prefix},
    rw_lock::RwLock,
};

/// A view of a [`Leases`](crate::Leases): the locks under a further prefix, held under a label of their own. It has the
/// connections and the keeper of the `Leases`, and none of its own, so make one for each tenant, or for each request.
///
/// The setters never fail: a bad value makes what is done with it end with [`Error::Config`], before anything is sent.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = leasehold::Leases::in_memory();
/// let tenant = leases.scope().prefix("tenant7:").label("req-91");
/// let lease = tenant.lock("invoice:12").acquire().await?; // the key tenant7:invoice:12
/// let held = tenant.list("*").await?;
/// assert_eq!((held.len(), held[0].name(), lease.label()), (1, "invoice:12", "req-91"));
/// # lease.release().await?; Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "it is there for its locks"]
pub struct Scope {
    pub(crate) client: Arc<Client>,
    /// Its own; those of the builder, if there are none.
    names: Option<Arc<Names>>,
    /// Those of a lock that sets none of its own.
    pub(crate) options: LockOptions,
}

impl Scope {
    /// All of it.
    pub(crate) fn new(client: Arc<Client>) -> Self {
        let options = client.options.lock;
        Self { client, names: None, options }
    }

    /// A prefix of its names, behind those that are there: the builder's, and that of the scope that it was cloned from.
    /// Together they have at most 256 bytes.
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        let names = self.own_names();
        names.prefix = format!("{}{}", names.prefix, prefix.as_ref()).into();
        self
    }

    /// How others see who holds its locks, 1 to 128 bytes without control characters; the builder's unless set.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.own_names().label = label.into().into();
        self
    }

    /// Counts its locks in a group of this name, unless the lock [says otherwise](Lock::metrics_group).
    #[cfg(feature = "metrics")]
    pub fn metrics_group(mut self, name: impl AsRef<str>) -> Self {
        self.options.metrics_group = crate::metrics::Group::named(name.as_ref());
        self
    }

    /// The lock of this name; see [`Leases::lock`](crate::Leases::lock).
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.clone(), name.as_ref())
    }

    /// The name that many may read and one may write; see [`Leases::rw_lock`](crate::Leases::rw_lock).
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.lock(name))
    }

    /// The name that so many may hold at a time; see [`Leases::semaphore`](crate::Leases::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        self.lock(name).with_access(Access::Permit(permits))
    }

    /// The election of this name; see [`Leases::election`](crate::Leases::election).
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.lock(name))
    }

    /// These locks, acquired together; see [`Leases::multi_lock`](crate::Leases::multi_lock).
    pub fn multi_lock(&self, locks: impl IntoIterator<Item = Lock>) -> MultiLock {
        MultiLock::new(&self.client, locks)
    }

    /// A value that refuses writers from the past; see [`Leases::guarded`](crate::Leases::guarded).
    #[must_use]
    pub fn guarded(&self, key: impl AsRef<str>) -> Guarded {
        Guarded::new(self.clone(), key.as_ref())
    }

    /// Its locks that anybody holds now, by their names without the prefixes; see [`Leases::list`](crate::Leases::list).
    ///
    /// # Errors
    ///
    /// The server, or a majority, cannot be reached or says no; [`Error::Config`] for a prefix that is too long.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn list(&self, pattern: impl AsRef<str>) -> Result<Vec<Lock>, Error> {
        match self.list_reachable(pattern).await? {
            (locks, None) => Ok(locks),
            (_some, Some(missing)) => Err(missing),
        }
    }

    /// The same without the primaries of a cluster that are away; see
    /// [`Leases::list_reachable`](crate::Leases::list_reachable).
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list), but for a cluster of which some primaries answer.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn list_reachable(&self, pattern: impl AsRef<str>) -> Result<(Vec<Lock>, Option<Error>), Error> {
        self.check()?;
        self.client.ready().await?;
        let limit = self.client.options.command_timeout;
        let prefix = self.whole_prefix();
        let pattern = glob::literally(prefix) + pattern.as_ref();
        let held = relayed!(Relay::of_answers(), self.client.quorum.held(&pattern, limit)).map_err(Error::of)?;
        // Somebody may have copied a token of ours to where no lock can be.
        let is_lock = |name: &&str| self.key(name).is_ok();
        let names = held.locks.iter().filter_map(|lock| lock.strip_prefix(prefix)).filter(is_lock);
        Ok((names.map(|name| self.lock(name)).collect(), held.missing.map(Error::of)))
    }

    /// The key of this name, if all is within its bounds.
    pub(crate) fn key(&self, name: &str) -> Result<Key, Error> {
        self.check()?;
        let key = Key::new(self.whole_prefix(), name).map_err(Error::of_name);
        if self.client.options.in_slots { key.and_then(in_one_slot) } else { key }
    }

    fn whole_prefix(&self) -> &str {
        self.names.as_ref().map_or(&self.client.options.prefix, |names| &names.prefix)
    }

    /// The label of its holders.
    pub(crate) fn label_in_use(&self) -> &str {
        self.names.as_ref().map_or(&self.client.options.label, |names| &names.label)
    }

    fn own_names(&mut self) -> &mut Names {
        let Options { prefix, label, .. } = &self.client.options;
        let of_builder = || Arc::new(Names { prefix: prefix.clone(), label: label.clone() });
        Arc::make_mut(self.names.get_or_insert_with(of_builder))
    }

    /// Its own names; none, if they are the builder's.
    pub(crate) fn into_names(self) -> Option<Arc<Names>> {
        self.names
    }

    /// Whether its settings are within their bounds.
    fn check(&self) -> Result<(), Error> {
        // The builder has checked its own.
        let Some(names) = &self.names else { return Ok(()) };
        check_prefix(&names.prefix)?;
        check_label(&names.label)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, label) = (self.whole_prefix(), self.label_in_use());
        f.debug_struct("Scope").field("prefix", &prefix).field("label", &label).finish_non_exhaustive()
    }
}

/// On a cluster all keys of a lock have to be in one slot.
fn in_one_slot(key: Key) -> Result<Key, Error> {
    if key.is_in_one_slot() {
        return Ok(key);
    }
    Err(Error::config(format!(
        "the name {:?} has a }} and no hash tag: on a cluster its fence would be in another slot; leave out the }}, or put a \
         tag {{…}} before it",
        key.lock()
    )))
}
