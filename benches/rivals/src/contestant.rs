//! Who is compared: each with its library's defaults, and the TTL in common.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use fred::{
    clients::Client,
    interfaces::{ClientLike as _, KeysInterface as _},
    types::{ClusterHash, CustomCommand, Expiration, SetOptions, Value},
};
use leasehold::{Lease, Leases};
use rlock::{
    AcquireOptions,
    async_lock::{RLock, RLockGuard},
};
use rslock::{LockGuard, LockManager};

use crate::{Result, Server, TTL, rounds::Rounds};

/// Boxed, so that the libraries are compiled into this one and not again into each benchmark. The allocation is the
/// same for all of them.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The library under test, on the calling runtime.
///
/// # Errors
///
/// The server cannot be reached.
#[must_use]
pub fn leases(server: &Server) -> Boxed<'static, Leases> {
    leases_at(server.url(), TTL, false)
}

/// The library under test, in another process too.
///
/// # Errors
///
/// The server cannot be reached.
#[must_use]
pub fn leases_at(url: impl Into<String>, ttl: Duration, fair: bool) -> Boxed<'static, Leases> {
    let builder = Leases::builder().url(url).ttl(ttl).fair(fair);
    Box::pin(async { Ok(builder.build().await?) })
}

/// The library under test over a quorum. Its servers were started for this and have nothing to forget, so they vote at
/// once.
///
/// # Errors
///
/// Too few of the servers can be reached.
#[must_use]
pub fn leases_over(servers: &[Server]) -> Boxed<'static, Leases> {
    let urls = servers.iter().map(Server::url);
    let builder = Leases::builder().quorum(urls).restart_delay(Duration::ZERO).ttl(TTL);
    Box::pin(async { Ok(builder.build().await?) })
}

/// One way to take a lock, connected on the runtime that made it.
#[derive(Clone)]
pub enum Contestant {
    Leasehold(Leases),
    Fair(Leases),
    InMemory(Leases),
    Rslock(LockManager),
    Rlock(RLock, AcquireOptions),
    /// No library: `SET NX PX`, and a script that compares and deletes, sent by the same client on the same runtime.
    Plain(Client, String),
    /// The same on several servers at once, and a majority's answer.
    PlainRounds(Rounds, String),
    /// Not even a lock: two rounds of `PING`, and a majority's answer.
    Pings(Rounds),
}

/// A lock taken.
pub enum Guard {
    Leasehold(Lease),
    Rslock(LockGuard),
    Rlock(RLockGuard),
    Plain(String),
    None,
}

const COMPARE_AND_DELETE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// A plain lock needs some value to compare with; drawing a random one is no round trip.
const VALUE: &str = "lh1:00000000-0000-4000-8000-000000000000:1795243932883512@the-host-name:12345";

impl Contestant {
    /// All of them, in the order of the tables: ours, ours without a server, the rivals, the baseline.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub fn all(server: &Server) -> Boxed<'_, Vec<Self>> {
        Box::pin(async {
            Ok(vec![
                Self::leasehold(&server.url()).await?,
                Self::InMemory(Leases::in_memory()),
                Self::rslock(&server.url()),
                Self::rlock(&server.url()).await?,
                Self::plain(server).await?,
            ])
        })
    }

    /// Those that wait for a lock, in the order of the tables: ours, ours in a fair queue, the rivals.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub fn waiting(url: &str) -> Boxed<'_, Vec<Self>> {
        Box::pin(async move {
            Ok(vec![Self::leasehold(url).await?, Self::fair(url).await?, Self::rslock(url), Self::rlock(url).await?])
        })
    }

    /// # Errors
    ///
    /// The server cannot be reached.
    pub fn leasehold(url: &str) -> Boxed<'_, Self> {
        Box::pin(async move { Ok(Self::Leasehold(leases_at(url, TTL, false).await?)) })
    }

    /// # Errors
    ///
    /// The server cannot be reached.
    pub fn fair(url: &str) -> Boxed<'_, Self> {
        Box::pin(async move { Ok(Self::Fair(leases_at(url, TTL, true).await?)) })
    }

    #[must_use]
    pub fn rslock(url: &str) -> Self {
        Self::Rslock(LockManager::new(vec![url]))
    }

    /// # Errors
    ///
    /// The server cannot be reached.
    pub fn rlock(url: &str) -> Boxed<'_, Self> {
        Box::pin(async move {
            let options = AcquireOptions::builder().ttl(TTL).build().map_err(|error| format!("{error:?}"))?;
            Ok(Self::Rlock(RLock::new(url).await?, options))
        })
    }

    /// # Errors
    ///
    /// The server cannot be reached.
    pub async fn plain(server: &Server) -> Result<Self> {
        let client = server.client().await?;
        let hash = load(&client).await?;
        Ok(Self::Plain(client, hash))
    }

    /// Those that can take a lock on several servers, in the order of the tables: ours, the rival, the baselines.
    ///
    /// # Errors
    ///
    /// A server cannot be reached.
    pub fn quorum(servers: &[Server]) -> Boxed<'_, Vec<Self>> {
        Box::pin(async move {
            let rounds = Rounds::connect(servers).await?;
            let hash = rounds.load().await?;
            Ok(vec![
                Self::Leasehold(leases_over(servers).await?),
                Self::Rslock(LockManager::new(servers.iter().map(Server::url).collect())),
                Self::PlainRounds(rounds.clone(), hash),
                Self::Pings(rounds),
            ])
        })
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leasehold(_) => "leasehold",
            Self::Fair(_) => "leasehold, fair",
            Self::InMemory(_) => "leasehold in memory",
            Self::Rslock(_) => "rslock",
            Self::Rlock(..) => "rlock",
            Self::Plain(..) => "two plain round trips",
            Self::PlainRounds(..) => "two plain rounds",
            Self::Pings(..) => "two rounds of `PING`",
        }
    }

    /// Waits for the lock as the library does it by default.
    ///
    /// # Errors
    ///
    /// Whatever the library says.
    pub fn acquire<'a>(&'a self, name: &'a str) -> Boxed<'a, Guard> {
        Box::pin(self.acquire_now(name))
    }

    async fn acquire_now(&self, name: &str) -> Result<Guard> {
        Ok(match self {
            Self::Leasehold(leases) | Self::Fair(leases) | Self::InMemory(leases) => {
                Guard::Leasehold(leases.lock(name).acquire().await?)
            }
            Self::Rslock(manager) => Guard::Rslock(manager.acquire(name, TTL).await?),
            Self::Rlock(locks, options) => Guard::Rlock(locks.acquire_mutex_with_options(name, options.clone()).await?),
            Self::Plain(client, _) => {
                let ttl = i64::try_from(TTL.as_millis())?;
                let set: Value =
                    client.set(name, VALUE, Some(Expiration::PX(ttl)), Some(SetOptions::NX), false).await?;
                if set.is_null() {
                    return Err("the plain lock does not wait".into());
                }
                Guard::Plain(name.to_owned())
            }
            Self::PlainRounds(rounds, _) => {
                rounds.set(name, VALUE, i64::try_from(TTL.as_millis())?).await?;
                Guard::Plain(name.to_owned())
            }
            Self::Pings(rounds) => {
                rounds.ping().await?;
                Guard::None
            }
        })
    }

    /// # Errors
    ///
    /// Whatever the library says.
    pub fn release(&self, guard: Guard) -> Boxed<'_, ()> {
        Box::pin(self.release_now(guard))
    }

    async fn release_now(&self, guard: Guard) -> Result<()> {
        match (self, guard) {
            (_, Guard::Leasehold(lease)) => lease.release().await?,
            (_, Guard::Rslock(guard)) => guard.release().await,
            (_, Guard::Rlock(mut guard)) => guard.release().await?,
            (Self::Plain(client, hash), Guard::Plain(name)) => {
                let evalsha = CustomCommand::new_static("EVALSHA", ClusterHash::FirstKey, false);
                let deleted: i64 = client.custom(evalsha, vec![hash.as_str(), "1", &name, VALUE]).await?;
                if deleted != 1 {
                    return Err("the plain lock was lost".into());
                }
            }
            (Self::PlainRounds(rounds, hash), Guard::Plain(name)) => rounds.delete(hash, &name, VALUE).await?,
            (Self::Pings(rounds), Guard::None) => rounds.ping().await?,
            (_, Guard::Plain(..) | Guard::None) => return Err("another contestant's guard".into()),
        }
        Ok(())
    }

    /// One acquire and one release.
    ///
    /// # Errors
    ///
    /// Whatever the library says.
    pub async fn cycle(&self, name: &str) -> Result<()> {
        let guard = self.acquire(name).await?;
        self.release(guard).await
    }
}

impl fmt::Debug for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Makes the script of a plain release known; its hash.
pub(crate) async fn load(client: &Client) -> Result<String> {
    let load = CustomCommand::new_static("SCRIPT", ClusterHash::FirstKey, false);
    Ok(client.custom(load, vec!["LOAD", COMPARE_AND_DELETE]).await?)
}
