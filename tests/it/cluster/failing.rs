//! Primaries that fail, and replicas that take over.

use std::{
    cell::Cell,
    collections::HashSet,
    time::{Duration, Instant},
};

use leasehold::{Error, LossReason, NodeState, Status};
use support::{
    ClockShim, Cluster, HANGS, Lag, SIGNAL, Server, alone, eventually, eventually_async, eventually_but_for, seen,
    two_workers, within,
};
use tokio::task::JoinSet;

use super::{TAKEN_OVER, acquire, connect};
use crate::common::{COMMAND, Confirmed as _, LONG, is_ours};

/// Kills or stops a primary.
fn end(primary: &Server, killed: bool) {
    if killed { primary.kill() } else { primary.stop() }
}

/// Completes when a replica has become a primary. The returned moment is that of the check that found it.
async fn takes_over(replica: &Server) -> Instant {
    let mut looked = Instant::now();
    eventually_async(TAKEN_OVER, "the replica takes over", || {
        looked = Instant::now();
        replica.wire().info_field("replication", "role").as_deref() == Some("master")
    })
    .await;
    looked
}

/// A replica takes over, and the lease that it had continues. It is renewed there as soon as any server names the new
/// primary, long before its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44b_a_lease_that_was_replicated_outlives_its_primary() {
    for killed in [true, false] {
        let (cluster, lag) = (Cluster::start(3, 1), Lag::start());
        let leases = connect(&cluster.url()).await.unwrap();
        let name = cluster.name_at(1, "job");
        let lease = acquire(&leases, &name, Duration::from_secs(60)).await;
        let (primary, replica) = (&cluster.primaries()[1], cluster.replica_of(1));
        let mut at_the_replica = replica.wire();
        at_the_replica.must(&["READONLY"]);
        eventually(HANGS, "it is replicated", || at_the_replica.exists(&name));
        let until = Instant::now() + lease.remaining();
        end(primary, killed);
        takes_over(replica).await;
        // The old primary gets no other requests meanwhile, so the next check may be five seconds away.
        let limit = Duration::from_secs(6);
        let is_renewed = || Instant::now() + lease.remaining() > until + Duration::from_secs(1);
        eventually_but_for(&lag, limit, "it is renewed there", is_renewed).await;
        lease.check().unwrap();
        let fence = lease.fence();
        lease.release().await.unwrap().confirmed();
        let next = acquire(&leases, &name, LONG).await;
        assert!(next.fence() > fence);
        assert!(replica.wire().exists(&name));
        if !killed {
            primary.cont();
        }
        next.release().await.unwrap().confirmed();
    }
}

/// A write confirmed by the dead primary was on no replica, so the lease is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44b_a_lease_that_was_not_replicated_is_told_as_lost_in_the_failover() {
    let (cluster, lag) = (Cluster::start(3, 1), Lag::start());
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(1, "job");
    let (primary, replica) = (&cluster.primaries()[1], cluster.replica_of(1));
    replica.stop();
    primary.wire().must(&["CLIENT", "KILL", "TYPE", "replica"]);
    let held = acquire(&leases, &name, Duration::from_secs(60)).await;
    // A lease of the same age whose key is deleted by hand is not a failover.
    let deleted = acquire(&leases, &cluster.name_at(0, "job"), Duration::from_secs(60)).await;
    cluster.primaries()[0].wire().del(deleted.name());
    assert_eq!(within(HANGS, "the signal", deleted.lost()).await.reason(), LossReason::Deleted);
    primary.kill();
    replica.cont();
    takes_over(replica).await;
    let promoted = Instant::now();
    let lost = within(HANGS, "the signal", held.lost()).await;
    assert_eq!(lost.reason(), LossReason::FailedOver, "{lost}");
    let (took, bound) = (promoted.elapsed(), Duration::from_secs(6) + lag.worst());
    assert!(took <= bound, "told {took:?} after the promotion, the bound is {bound:?}");
    let next = acquire(&leases, &name, LONG).await;
    assert!(next.fence() > held.fence());
    next.release().await.unwrap().confirmed();
}

/// While locks are requested, the first one is granted by the new primary soon after the promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44b_locks_of_a_dead_primary_are_granted_again_soon_after_its_replica_took_over() {
    for killed in [true, false] {
        let (cluster, lag) = (Cluster::start(3, 1), Lag::start());
        let leases = connect(&cluster.url()).await.unwrap();
        let name = cluster.name_at(1, "job");
        acquire(&leases, &name, LONG).await.release().await.unwrap().confirmed();
        let (primary, replica) = (&cluster.primaries()[1], cluster.replica_of(1));
        end(primary, killed);
        let lock = leases.lock(&name).ttl(LONG);
        let granted = tokio::spawn(async move { lock.acquire().await.map(|lease| (lease, Instant::now())) });
        let promoted = takes_over(replica).await;
        let (lease, at) = within(HANGS, "the lock", granted).await.unwrap().unwrap();
        // An attempt at the old primary may have to time out first.
        let (took, bound) =
            (at.saturating_duration_since(promoted), COMMAND + Duration::from_millis(500) + lag.worst());
        assert!(took <= bound, "killed: {killed}; {took:?} after the promotion, the bound is {bound:?}");
        if !killed {
            primary.cont();
        }
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44c_a_shard_that_stands_still_holds_up_no_other() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let names = [0, 1, 2].map(|primary| cluster.name_at(primary, "job"));
    let ttl = Duration::from_secs(1);
    let [frozen, one, two] = [
        acquire(&leases, &names[0], ttl).await,
        acquire(&leases, &names[1], ttl).await,
        acquire(&leases, &names[2], ttl).await,
    ];
    // Renewed together with the first.
    let another = acquire(&leases, &cluster.name_at(0, "another"), ttl).await;
    cluster.primaries()[0].stop();
    for frozen in [&frozen, &another] {
        let lost = within(HANGS, "the signal", frozen.lost()).await;
        assert_eq!(lost.reason(), LossReason::Expired);
    }
    let states = || leases.nodes().iter().map(|node| *node.state() == NodeState::Up).collect::<Vec<_>>();
    eventually_async(HANGS, "unanswered renewals are noticed", || states() == [false, true, true]).await;
    for lease in [&one, &two] {
        lease.check().unwrap();
        // It is renewed as usual.
        assert!(lease.remaining() > ttl / 3, "{:?}", lease.remaining());
    }
    within(COMMAND * 2, "health", leases.health()).await.expect("two of three are there");
    assert_eq!(states(), [false, true, true]);
    let error = leases.list("*").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    cluster.primaries()[0].cont();
    one.release().await.unwrap().confirmed();
    two.release().await.unwrap().confirmed();
}

/// Each answer that counts is followed by a query to another server; without leases there is none (rule 11).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_is_asked_who_has_the_key_while_there_is_a_reason() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(1, "job");
    // The query is refused there with MOVED.
    let asked = || [0, 2].map(|other| cluster.primaries()[other].wire().refused("get")).iter().sum::<usize>();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked(), 0, "there was no reason to ask");
    let lease = acquire(&leases, &name, LONG).await;
    eventually_async(Duration::from_secs(2), "it is asked after the first answer", || asked() >= 1).await;
    let before = asked();
    eventually_async(Duration::from_secs(7), "and while something is held", || asked() > before).await;
    lease.release().await.unwrap().confirmed();
    // The release's own answer is followed by a query.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = asked();
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    assert_eq!(asked(), before, "nothing is held any more");
}

/// A primary that was stopped while another took over continues, but its answers do not count (rule 11). Its lease,
/// which was never replicated, is reported as lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f49_a_replaced_primary_that_goes_on_grants_nothing() {
    let (cluster, lag) = (Cluster::start(3, 1), Lag::start());
    let [one, two] = [connect(&cluster.url()).await.unwrap(), connect(&cluster.url()).await.unwrap()];
    let name = cluster.name_at(1, "job");
    // In the same slot, and free at the old primary while that continues.
    let free = format!("{{{name}}}free");
    let (primary, replica) = (&cluster.primaries()[1], cluster.replica_of(1));
    replica.stop();
    // Otherwise it would find the write in its socket when it continues.
    primary.wire().must(&["CLIENT", "KILL", "TYPE", "replica"]);
    let held = acquire(&one, &name, Duration::from_secs(60)).await;
    primary.stop();
    replica.cont();
    let waiting = tokio::spawn(two.lock(&name).ttl(LONG).acquire());
    let promoted = takes_over(replica).await;
    let lost = within(HANGS, "the signal", held.lost()).await;
    assert!(matches!(lost.reason(), LossReason::FailedOver | LossReason::Taken), "{lost}");
    let (took, bound) = (promoted.elapsed(), Duration::from_secs(6) + lag.worst());
    assert!(took <= bound, "told {took:?} after the promotion, the bound is {bound:?}");
    let next = within(HANGS, "the next lease", waiting).await.unwrap().unwrap();
    assert!(next.fence() > held.fence());
    let other = acquire(&two, &free, LONG).await;
    primary.cont();
    for _ in 0..200 {
        let lock = one.lock(&free).owner(leasehold::Owner::anonymous());
        assert!(lock.try_acquire().await.unwrap().is_none(), "the old one is believed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    next.check().unwrap();
    other.release().await.unwrap().confirmed();
    next.release().await.unwrap().confirmed();
}

/// A cluster that is down because one primary is dead is not asked repeatedly; neither is a slot without an owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_a_cluster_that_is_down_is_named_and_served_again() {
    let cluster = Cluster::start(3, 0);
    for server in cluster.servers() {
        server.wire().must(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    let leases = connect(&cluster.url()).await.unwrap();
    let names = [0, 1, 2].map(|primary| cluster.name_at(primary, "job"));
    let slot = cluster.slot_of(&names[1]);
    let held = acquire(&leases, &names[1], LONG).await;
    cluster.primaries()[0].kill();
    let down = |server: &Server| server.wire().cmd(&["CLUSTER", "INFO"]).text().contains("cluster_state:fail");
    eventually_async(TAKEN_OVER, "the others are down", || cluster.primaries()[1..].iter().all(down)).await;
    let error = leases.lock(&names[2]).acquire_within(Duration::from_secs(1)).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable(_)) && text.contains("says that its cluster is down"), "{text}");
    held.check().unwrap();
    for server in &cluster.primaries()[1..] {
        server.wire().must(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let lease = acquire(&leases, &names[2], LONG).await;
    lease.release().await.unwrap().confirmed();
    held.release().await.unwrap().confirmed();
    let error = leases.lock(&names[0]).acquire_within(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    // The server reports the slot without an owner at first, and then each view does. The cluster is not down: it
    // serves all others.
    cluster.delete_slot(slot, &cluster.primaries()[1..]);
    let is_named = async || {
        let error = leases.lock(&names[1]).acquire_within(Duration::from_millis(500)).await.unwrap_err();
        let text = error.to_string();
        assert!(!text.contains("cluster is down") && !text.contains("full-coverage"), "{text}");
        text.contains(&format!("slot {slot} "))
    };
    let until = Instant::now() + HANGS;
    while !is_named().await {
        assert!(Instant::now() < until, "the slot is named");
    }
}

/// Servers that forget everything form another cluster: locks held there are lost, and new ones are granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f58_a_cluster_that_is_made_again_of_the_same_servers() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(1, "job");
    let held = acquire(&leases, &name, Duration::from_secs(60)).await;
    cluster.make_again();
    let lost = within(Duration::from_secs(30), "the signal", held.lost()).await;
    assert_eq!(lost.reason(), LossReason::Deleted, "no replica has taken over");
    for primary in 0..3 {
        let lease = acquire(&leases, &cluster.name_at(primary, "job"), LONG).await;
        assert!(lease.fence() > held.fence());
        lease.release().await.unwrap().confirmed();
    }
    leases.health().await.unwrap();
}

/// A replica is taken out of the cluster without effect, although it is the one asked about the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f58_a_replica_that_is_reset() {
    let cluster = Cluster::start(1, 1);
    let leases = connect(&cluster.url()).await.unwrap();
    let held = acquire(&leases, "job", Duration::from_millis(900)).await;
    let replica = cluster.replica_of(0);
    replica.wire().must(&["CLUSTER", "RESET", "HARD"]);
    let asked = || replica.wire().refused("get") + replica.wire().calls("get");
    let before = asked();
    let is_asked = Instant::now() + HANGS;
    while asked() <= before {
        assert!(Instant::now() < is_asked, "it is asked");
        acquire(&leases, "other", LONG).await.release().await.unwrap().confirmed();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Its view of its own cluster comes with that, and does not count.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        assert_eq!(leases.nodes().len(), 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    acquire(&leases, "other", LONG).await.release().await.unwrap().confirmed();
    held.check().unwrap();
}

/// A shard that is stopped for two TTLs costs only its own leases. Each loss takes up to a third of a millisecond in a
/// debug build, so there are few here. For more: `LEASEHOLD_LEASES=3000 scripts/faults F45`.
#[test]
fn f45_leases_of_which_a_third_stand_still() {
    alone(|| {
        two_workers().block_on(async {
            let many = std::env::var("LEASEHOLD_LEASES").map_or(90, |many| many.parse().expect("a number of leases"));
            // A busy machine renews that many in a third of it, even in a debug build.
            let ttl = Duration::from_secs(6).max(Duration::from_micros(300) * many);
            let cluster = Cluster::start(3, 0);
            let leases = connect(&cluster.url()).await.unwrap();
            let mut acquires: JoinSet<_> = JoinSet::new();
            let mut held = Vec::new();
            for number in 0..many {
                acquires.spawn(leases.lock(format!("job-{number}")).ttl(ttl).acquire());
                // As many at once as a program may have tasks.
                if acquires.len() > 500 {
                    held.push(acquires.join_next().await.expect("one").unwrap().unwrap());
                }
            }
            held.extend(acquires.join_all().await.into_iter().map(Result::unwrap));
            let keys = cluster.primaries()[0].wire().keys("job-*");
            let frozen: HashSet<&str> = keys.iter().map(String::as_str).collect();
            assert!(frozen.len() > held.len() / 4, "{} of {}", frozen.len(), held.len());
            let (memory, lag) = (resident(), Lag::start());
            cluster.primaries()[0].stop();
            let (mut late, until) = (Duration::ZERO, Instant::now() + ttl * 2);
            // The length of the stop is the fault: by its end the last answer from there has arrived, and no deadline
            // moves.
            tokio::time::sleep(ttl / 6).await;
            let mut told = JoinSet::new();
            for lease in held.iter().filter(|lease| frozen.contains(lease.name())) {
                let (lost, deadline) = (lease.lost(), Instant::now() + lease.remaining());
                told.spawn(async move {
                    let lost = lost.await;
                    (lost.reason(), Instant::now().saturating_duration_since(deadline))
                });
            }
            while let Some(end) = within(ttl * 2, "all are told", told.join_next()).await {
                let (reason, after) = end.unwrap();
                assert_eq!(reason, LossReason::Expired);
                late = late.max(after);
            }
            seen::took("a cluster: the last of many signals after its deadline", late, SIGNAL, &lag);
            assert!(late <= SIGNAL + lag.worst(), "{late:?} after the deadline; the machine lagged {:?}", lag.worst());
            tokio::time::sleep_until(until.into()).await;
            let more = resident().saturating_sub(memory);
            let others = || held.iter().filter(|lease| !frozen.contains(lease.name()));
            assert!(others().all(|lease| lease.status() == Status::Held), "the others are well");
            seen::at_most("a cluster: MiB more while a third of all leases stand still", more >> 20, 150);
            assert!(more >> 20 <= 150, "{} MiB more", more >> 20);
            cluster.primaries()[0].cont();
            leases.close().await;
        });
    });
}

/// The resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status of this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line on memory");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1_024
}

/// The promoted server's clock is ahead by more than a TTL, so the key has expired there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f60_the_clock_of_the_next_primary_is_ahead() {
    const TTL: Duration = Duration::from_secs(3);
    let (ahead, servers) = (ClockShim::new(), Cell::new(0));
    // A cluster steps its own clock by three seconds when it is set up.
    ahead.forward(Duration::from_secs(3) + TTL * 2);
    let cluster = Cluster::with(3, 1, |server| {
        servers.set(servers.get() + 1);
        if servers.get() == 5 { server.clock(&ahead) } else { server }
    });
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(1, "job");
    let lease = acquire(&leases, &name, TTL).await;
    let replica = cluster.replica_of(1);
    replica.wire().must(&["CLUSTER", "FAILOVER"]);
    takes_over(replica).await;
    let before = lease.fence();
    if Server::version().at_least(7, 0) {
        let lost = within(HANGS, "the signal", lease.lost()).await;
        assert_eq!(lost.reason(), LossReason::FailedOver, "{lost}");
    } else {
        // An older server sends its replicas the time left of a key, not the moment when it expires.
        is_ours(&lease).await;
        lease.release().await.unwrap().confirmed();
        // It also answers nothing for some seconds when it is replaced and takes over again.
        return;
    }
    let next = acquire(&leases, &name, TTL).await;
    assert!(next.fence() > before);
    next.check().unwrap();
    // Back to the slower clock: fences grow all the same.
    let is_a_replica = || cluster.primaries()[1].wire().info_field("replication", "master_link_status");
    eventually_async(HANGS, "the old one is a replica", || is_a_replica().as_deref() == Some("up")).await;
    cluster.primaries()[1].wire().must(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    takes_over(&cluster.primaries()[1]).await;
    // Until the other one hears of it there are two primaries with different answers.
    let is_replaced = || replica.wire().info_field("replication", "role");
    eventually_async(HANGS, "there is one", || is_replaced().as_deref() == Some("slave")).await;
    let fence = next.fence();
    next.release().await.unwrap().confirmed();
    let last = acquire(&leases, &name, TTL).await;
    assert!(last.fence() > fence, "{} after {fence}", last.fence());
    last.release().await.unwrap().confirmed();
}
