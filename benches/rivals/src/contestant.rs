//! The contestants: each has its library's defaults, and all have the same TTL.

use std::{fmt, future::pending, sync::Arc, time::Duration};

use distkit::lock::{LockOptions, Mutex, MutexGuard};
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use fred::{
    clients::Client as Fred,
    interfaces::{ClientLike as _, KeysInterface as _},
    types::{ClusterHash, CustomCommand, Expiration, SetOptions, Value, config::ServerConfig},
};
use leasehold::{Client, Lease, Lock, Released};
use redis::{
    aio::{ConnectionLike, ConnectionManager, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
};
use rlock::{
    AcquireOptions,
    async_lock::{RLock, RLockGuard},
};
use rslock::{LockGuard, LockManager};
use support::{Cluster, Replicated};

use crate::{
    Result, Server, TTL, plain,
    rounds::Rounds,
    server::{client_at, client_of},
};

/// The library under test, on the calling runtime.
pub async fn leases(server: &Server) -> Result<Client> {
    leases_at(server.url(), TTL, false).await
}

/// The library under test, for another process too.
pub async fn leases_at(url: impl Into<String>, ttl: Duration, fair: bool) -> Result<Client> {
    Ok(Client::builder().url(url).ttl(ttl).fair(fair).build().await?)
}

/// The library under test, where `replicas` replicas must confirm each write.
pub async fn leases_that_replicas_have(url: String, ttl: Duration, replicas: u8) -> Result<Client> {
    Ok(Client::builder().url(url).ttl(ttl).min_replicas(replicas).build().await?)
}

/// The library under test over a quorum. Its servers are new and have nothing to forget, so they vote at once.
pub async fn leases_over(servers: &[Server]) -> Result<Client> {
    let urls = servers.iter().map(Server::url);
    Ok(Client::builder().quorum(urls).restart_delay(Duration::ZERO).ttl(TTL).build().await?)
}

/// One way to take a lock, connected on the runtime that made it.
#[derive(Clone)]
pub enum Contestant {
    Leasehold(Client),
    Fair(Client),
    InMemory(Client),
    /// The library on one server, compared with others on a cluster.
    OneServer(Client),
    /// A title, and the lock of ours for each name.
    Locks(&'static str, LockOf),
    /// The library with a replica that must confirm each lock.
    Replicated(Client),
    /// The library without such a replica, and a `WAIT` of the task's own for each lock.
    ByHand(Client, MultiplexedConnection),
    Rslock(LockManager, Duration),
    Rlock(RLock, AcquireOptions),
    DistributedLock(Arc<RedisLockProvider>),
    Distkit(ConnectionManager, Duration),
    /// No library: `SET NX PX`, and a script that compares and deletes, sent by the same client on the same runtime.
    Plain(Fred, String),
    /// Plain locks with a fence, by the hash of [`plain::SET_WITH_FENCE`]: the limit of what leasehold could do by fred.
    Fenced(Fred, String, String),
    /// Plain locks by redis-rs, the client of rlock, rslock and distkit.
    PlainRedisRs(MultiplexedConnection, String),
    /// Plain locks by redis-rs on a cluster.
    PlainRedisRsCluster(ClusterConnection, String),
    /// Plain locks by redis-rs with a `WAIT` behind each `SET`.
    Waits(MultiplexedConnection, String),
    /// Plain locks by redis-rs with a `WAIT` behind each `SET`, and a connection for each task.
    WaitsApart(Arc<[MultiplexedConnection]>, String),
    /// Plain locks on several servers at once, which wait for a majority's answer.
    PlainRounds(Rounds, String),
    /// No lock at all: two rounds of `PING`, and a majority's answer.
    Pings(Rounds),
}

/// Builds a lock of ours for a name.
pub type LockOf = Arc<dyn Fn(&str) -> Lock + Send + Sync>;

/// An acquired lock.
pub enum Guard {
    Leasehold(Lease),
    Rslock(LockGuard),
    Rlock(RLockGuard),
    DistributedLock(RedisLockHandle),
    Distkit(MutexGuard),
    Plain(String),
    None,
}

/// The value that a plain lock compares with. Drawing a random one takes no round trip.
const VALUE: &str = "lh1:00000000-0000-4000-8000-000000000000:1795243932883512@the-host-name:12345";

impl Contestant {
    /// All contestants, in the order of the tables: ours, the rivals, the baselines, ours without a server.
    pub async fn all(server: &Server) -> Result<Vec<Self>> {
        let mut all = Self::holding(&server.url(), TTL).await?;
        all.extend([Self::plain(server).await?, Self::fenced(server).await?, Self::plain_redis_rs(server).await?]);
        all.push(Self::InMemory(Client::in_memory()));
        Ok(all)
    }

    /// How many renew what they hold.
    pub const HOLDING: usize = 5;

    /// The contestants that renew what they hold, in the order of the tables: ours, the rivals.
    pub async fn holding(url: &str, ttl: Duration) -> Result<Vec<Self>> {
        let mut all = vec![Self::leasehold(url, ttl).await?];
        all.extend(Self::waiting_rivals(url, ttl).await?);
        all.insert(3, Self::distributed_lock(vec![url.to_owned()], ttl).await?);
        Ok(all)
    }

    /// The contestants that wait for a lock, in the order of the tables: ours, ours in a fair queue, the rivals.
    ///
    /// distributed-lock-redis is not one of them: its `acquire` fails at once if another holder has the lock.
    pub async fn waiting(url: &str) -> Result<Vec<Self>> {
        let mut all = vec![Self::leasehold(url, TTL).await?, Self::Fair(leases_at(url, TTL, true).await?)];
        all.extend(Self::waiting_rivals(url, TTL).await?);
        Ok(all)
    }

    async fn waiting_rivals(url: &str, ttl: Duration) -> Result<Vec<Self>> {
        let options = AcquireOptions::builder().ttl(ttl).build().map_err(|error| format!("{error:?}"))?;
        let distkit = redis::Client::open(url)?.get_connection_manager().await?;
        Ok(vec![
            Self::Rslock(LockManager::new(vec![url]), ttl),
            Self::Rlock(RLock::new(url).await?, options),
            Self::Distkit(distkit, ttl),
        ])
    }

    async fn leasehold(url: &str, ttl: Duration) -> Result<Self> {
        Ok(Self::Leasehold(leases_at(url, ttl, false).await?))
    }

    /// distributed-lock-redis with its defaults for a TTL of 30 s: extended at each third, and relied on for nine
    /// tenths.
    async fn distributed_lock(urls: Vec<String>, ttl: Duration) -> Result<Self> {
        let builder = RedisLockProvider::builder().urls(&urls);
        let builder = builder.expiry(ttl).extension_cadence(ttl / 3).min_validity(ttl * 9 / 10);
        Ok(Self::DistributedLock(Arc::new(builder.build().await?)))
    }

    async fn plain(server: &Server) -> Result<Self> {
        let client = server.client().await?;
        let hash = plain::load(&client).await?;
        Ok(Self::Plain(client, hash))
    }

    async fn fenced(server: &Server) -> Result<Self> {
        let client = server.client().await?;
        let set = plain::load_script(&client, plain::SET_WITH_FENCE).await?;
        let hash = plain::load(&client).await?;
        Ok(Self::Fenced(client, set, hash))
    }

    async fn plain_redis_rs(server: &Server) -> Result<Self> {
        let (connection, hash) = redis_rs(server.url()).await?;
        Ok(Self::PlainRedisRs(connection, hash))
    }

    /// The contestants that can lock several servers, in the order of the tables: ours, the rivals, the baselines.
    pub async fn quorum(servers: &[Server]) -> Result<Vec<Self>> {
        let rounds = Rounds::connect(servers).await?;
        let hash = rounds.load().await?;
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        Ok(vec![
            Self::Leasehold(leases_over(servers).await?),
            Self::Rslock(LockManager::new(urls.clone()), TTL),
            Self::distributed_lock(urls, TTL).await?,
            Self::PlainRounds(rounds.clone(), hash),
            Self::Pings(rounds),
        ])
    }

    /// The contestants that can lock a cluster, in the order of the tables: ours, the rival, the baselines.
    pub async fn cluster(cluster: &Cluster) -> Result<Vec<Self>> {
        let urls: Vec<String> = cluster.primaries().iter().map(support::Server::url).collect();
        let mut hash = String::new();
        // A replica that is promoted knows only the scripts that were loaded there.
        for server in cluster.servers() {
            hash = plain::load(&client_at(server.port()).await?).await?;
        }
        let hosts = cluster.primaries().iter().map(|server| ("127.0.0.1", server.port())).collect();
        let fred = client_of(ServerConfig::new_clustered(hosts)).await?;
        let redis_rs = ClusterClient::new(urls.clone())?.get_async_connection().await?;
        Ok(vec![
            Self::leasehold(&cluster.url(), TTL).await?,
            Self::Rslock(LockManager::new_cluster(urls)?, TTL),
            Self::Plain(fred, hash.clone()),
            Self::PlainRedisRsCluster(redis_rs, hash),
        ])
    }

    /// The contestants whose locks a replica must confirm, after ours without a replica: ours, and by hand.
    pub async fn replicated(servers: &Replicated, tasks: usize) -> Result<Vec<Self>> {
        let url = servers.primary().url();
        let (shared, hash) = redis_rs(url.clone()).await?;
        let mut own = Vec::with_capacity(tasks);
        for _ in 0..tasks {
            own.push(redis_rs(url.clone()).await?.0);
        }
        Ok(vec![
            Self::leasehold(&url, TTL).await?,
            Self::Replicated(leases_that_replicas_have(url.clone(), TTL, 1).await?),
            Self::ByHand(leases_at(url, TTL, false).await?, shared.clone()),
            Self::Waits(shared, hash.clone()),
            Self::WaitsApart(own.into(), hash),
        ])
    }

    /// Whether it is another library, and not a baseline.
    pub fn is_rival(&self) -> bool {
        matches!(self, Self::Rslock(..) | Self::Rlock(..) | Self::DistributedLock(_) | Self::Distkit(..))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Leasehold(_) => "leasehold",
            Self::Fair(_) => "leasehold, fair",
            Self::InMemory(_) => "leasehold in memory",
            Self::OneServer(_) => "leasehold on one server",
            Self::Locks(name, _) => name,
            Self::Replicated(_) => "leasehold with `min_replicas(1)`",
            Self::Rslock(..) => "rslock",
            Self::Rlock(..) => "rlock",
            Self::DistributedLock(_) => "distributed-lock-redis",
            Self::Distkit(..) => "distkit",
            Self::Plain(..) => "plain fred",
            Self::Fenced(..) => "fred, with a fence",
            Self::PlainRedisRs(..) | Self::PlainRedisRsCluster(..) => "plain redis-rs",
            Self::ByHand(..) => "leasehold and `WAIT` by hand",
            Self::Waits(..) => "plain redis-rs with `WAIT`",
            Self::WaitsApart(..) => "the same, a connection for each task",
            Self::PlainRounds(..) => "two plain rounds",
            Self::Pings(..) => "two rounds of `PING`",
        }
    }

    /// Waits for the lock in the library's default way.
    pub async fn acquire(&self, name: &str) -> Result<Guard> {
        Ok(match self {
            Self::Leasehold(leases)
            | Self::Fair(leases)
            | Self::InMemory(leases)
            | Self::OneServer(leases)
            | Self::Replicated(leases) => Guard::Leasehold(leases.lock(name).acquire().await?),
            Self::Locks(_, lock_of) => Guard::Leasehold(lock_of(name).acquire().await?),
            Self::Rslock(manager, ttl) => Guard::Rslock(manager.acquire(name, *ttl).await?),
            Self::Rlock(locks, options) => Guard::Rlock(locks.acquire_mutex_with_options(name, options.clone()).await?),
            Self::DistributedLock(locks) => Guard::DistributedLock(locks.create_lock(name).acquire(None).await?),
            Self::Distkit(connection, ttl) => {
                // distkit allows no colon in a name.
                let name = name.replace(':', "-").try_into()?;
                let options = LockOptions::builder(name, connection.clone()).ttl(*ttl).build();
                Guard::Distkit(Mutex::new(options).lock().await?)
            }
            Self::Plain(client, _) => {
                let ttl = i64::try_from(TTL.as_millis())?;
                let set: Value =
                    client.set(name, VALUE, Some(Expiration::PX(ttl)), Some(SetOptions::NX), false).await?;
                if set.is_null() {
                    return Err("the plain lock does not wait".into());
                }
                Guard::Plain(name.to_owned())
            }
            Self::Fenced(client, set, _) => {
                let (floor, ttl) = (format!("{{{name}}}:floor"), TTL.as_millis().to_string());
                let fence: Option<String> =
                    client.custom(evalsha(), vec![set.as_str(), "2", name, &floor, VALUE, &ttl]).await?;
                fence.ok_or("the plain lock does not wait")?;
                Guard::Plain(name.to_owned())
            }
            Self::PlainRedisRs(connection, _) => set_by_redis_rs(&mut connection.clone(), name).await?,
            Self::PlainRedisRsCluster(connection, _) => set_by_redis_rs(&mut connection.clone(), name).await?,
            Self::ByHand(leases, connection) => {
                let lease = leases.lock(name).acquire().await?;
                // A `WAIT` covers the writes of its own connection, so it needs a write that is newer than the lock.
                let mut mark = redis::cmd("SET");
                wait_behind(mark.arg("mark").arg(1), &mut connection.clone()).await?;
                Guard::Leasehold(lease)
            }
            Self::Waits(connection, _) => set_and_wait(&mut connection.clone(), name).await?,
            Self::WaitsApart(connections, _) => set_and_wait(&mut of_task(connections, name), name).await?,
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

    /// Takes a lock and holds it forever, renewed in the library's way.
    pub async fn hold(&self, name: &str) -> Result<()> {
        if let Self::Rslock(manager, ttl) = self {
            return manager.using(name.as_bytes(), *ttl, async || pending().await).await?;
        }
        let _guard = self.acquire(name).await?;
        pending().await
    }

    pub async fn release(&self, guard: Guard) -> Result<()> {
        match (self, guard) {
            (_, Guard::Leasehold(lease)) => confirmed(&lease.release().await?)?,
            (_, Guard::Rslock(guard)) => guard.release().await,
            (_, Guard::Rlock(mut guard)) => guard.release().await?,
            (_, Guard::DistributedLock(handle)) => handle.release().await?,
            (_, Guard::Distkit(guard)) => {
                guard.release().await?;
            }
            (Self::Plain(client, hash) | Self::Fenced(client, _, hash), Guard::Plain(name)) => {
                let deleted: i64 = client.custom(evalsha(), vec![hash.as_str(), "1", &name, VALUE]).await?;
                if deleted != 1 {
                    return Err("the plain lock was lost".into());
                }
            }
            (Self::PlainRedisRs(connection, hash) | Self::Waits(connection, hash), Guard::Plain(name)) => {
                delete_by_redis_rs(&mut connection.clone(), hash, &name).await?;
            }
            (Self::PlainRedisRsCluster(connection, hash), Guard::Plain(name)) => {
                delete_by_redis_rs(&mut connection.clone(), hash, &name).await?;
            }
            (Self::WaitsApart(connections, hash), Guard::Plain(name)) => {
                delete_by_redis_rs(&mut of_task(connections, &name), hash, &name).await?;
            }
            (Self::PlainRounds(rounds, hash), Guard::Plain(name)) => rounds.delete(hash, &name, VALUE).await?,
            (Self::Pings(rounds), Guard::None) => rounds.ping().await?,
            (_, Guard::Plain(..) | Guard::None) => return Err("another contestant's guard".into()),
        }
        Ok(())
    }

    /// One acquire and one release.
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

/// A connection of redis-rs, and the hash of the script of a plain release.
pub async fn redis_rs(url: String) -> Result<(MultiplexedConnection, String)> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let load = redis::cmd("SCRIPT").arg("LOAD").arg(plain::COMPARE_AND_DELETE).query_async(&mut connection).await?;
    Ok((connection, load))
}

fn evalsha() -> CustomCommand {
    CustomCommand::new_static("EVALSHA", ClusterHash::Offset(2), false)
}

fn set(name: &str) -> Result<redis::Cmd> {
    let mut set = redis::cmd("SET");
    set.arg(name).arg(VALUE).arg("NX").arg("PX").arg(u64::try_from(TTL.as_millis())?);
    Ok(set)
}

async fn set_by_redis_rs(connection: &mut impl ConnectionLike, name: &str) -> Result<Guard> {
    if set(name)?.query_async::<redis::Value>(connection).await? == redis::Value::Nil {
        return Err("the plain lock does not wait".into());
    }
    Ok(Guard::Plain(name.to_owned()))
}

async fn set_and_wait(connection: &mut impl ConnectionLike, name: &str) -> Result<Guard> {
    if wait_behind(&set(name)?, connection).await? == redis::Value::Nil {
        return Err("the plain lock does not wait".into());
    }
    Ok(Guard::Plain(name.to_owned()))
}

/// The answer to a write, once a replica has the write.
async fn wait_behind(write: &redis::Cmd, connection: &mut impl ConnectionLike) -> Result<redis::Value> {
    let mut both = redis::pipe();
    both.add_command(write.clone()).cmd("WAIT").arg(1).arg(500);
    let (answer, replicas) = both.query_async::<(redis::Value, u32)>(connection).await?;
    if replicas == 0 { Err("no replica has it".into()) } else { Ok(answer) }
}

/// The connection of the task whose number ends this name.
fn of_task(connections: &[MultiplexedConnection], name: &str) -> MultiplexedConnection {
    let task: usize = name.rsplit('-').next().and_then(|task| task.parse().ok()).unwrap_or_default();
    connections[task % connections.len()].clone()
}

async fn delete_by_redis_rs(connection: &mut impl ConnectionLike, hash: &str, name: &str) -> Result<()> {
    let mut delete = redis::cmd("EVALSHA");
    delete.arg(hash).arg(1).arg(name).arg(VALUE);
    if delete.query_async::<i64>(connection).await? == 1 { Ok(()) } else { Err("the plain lock was lost".into()) }
}

/// Refuses to count a cycle whose release was not confirmed.
pub fn confirmed(released: &Released) -> Result<()> {
    if released.is_confirmed() { Ok(()) } else { Err(format!("{released:?}").into()) }
}
