//! One server's wall clock steps: rows F28 and F29 of the fault table. The rows of a quorum are in `quorum/fences.rs`,
//! those of a fair queue in `fair/lost.rs`.

use std::time::{Duration, Instant};

use leasehold::{Client, Fence, LossReason, Owner};
use support::{ClockShim, HANGS, Lag, SIGNAL, Server, Wire, seen, within};

use crate::common::Confirmed as _;

const TTL: Duration = Duration::from_millis(1_200);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

struct Rig {
    leases: Client,
    wire: Wire,
    // Dropped before the clock that it uses.
    server: Server,
    clock: ClockShim,
    lag: Lag,
}

impl Rig {
    async fn start() -> Self {
        let clock = ClockShim::new();
        let server = Server::builder().clock(&clock).start();
        let leases = Client::builder().url(server.url()).ttl(TTL).build().await.unwrap();
        Self { leases, wire: server.wire(), server, clock, lag: Lag::start() }
    }

    /// Acquires and releases a few times, from this program and a new one. Panics unless each fence is larger than the
    /// one before, starting from `last`. Returns the last fence.
    async fn fences_grow(&self, mut last: Fence, when: &str) -> Fence {
        let newcomer = Client::builder().url(self.server.url()).ttl(TTL).build().await.unwrap();
        for leases in [&self.leases, &newcomer, &self.leases] {
            let lease = within(HANGS, "the lock", leases.lock("job").acquire()).await.unwrap();
            assert!(lease.fence() > last, "{when}: {} after {last}", lease.fence());
            last = lease.fence();
            lease.release().await.unwrap().confirmed();
        }
        last
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_the_servers_clock_steps_forward_past_the_ttl() {
    let rig = Rig::start().await;
    // Past the TTL only; past the fence's TTL too, so that no floor is left; and past it again.
    for step in [HOUR, 2 * DAY, 2 * DAY] {
        let lease = rig.leases.lock("job").acquire().await.unwrap();
        let stepped = Instant::now();
        rig.clock.forward_past(step, &mut rig.server.wire(), "job");
        let lost = within(HANGS, "the signal of a loss", lease.lost()).await;
        let took = stepped.elapsed();
        assert_eq!(lost.reason(), LossReason::Deleted, "by the deadline it would be Expired");
        // By the next renewal, unless the server expires the key first.
        let limit = TTL / 3 + SIGNAL;
        seen::took("signal after the step", took, limit, &rig.lag);
        assert!(took <= limit + rig.lag.worst(), "{took:?}");
        let ahead = rig.fences_grow(lease.fence(), "ahead").await;
        drop(lease);
        rig.clock.back(HOUR);
        rig.fences_grow(ahead, "an hour back").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_the_servers_clock_steps_back_an_hour() {
    let mut rig = Rig::start().await;
    let lease = rig.leases.lock("job").acquire().await.unwrap();
    // The key of a holder that has died.
    rig.wire.must(&["SET", "dead", "somebody's", "PX", "1000"]);
    rig.clock.back(HOUR);
    // Long enough for the step to affect renewals.
    let lost = tokio::time::timeout(2 * TTL, lease.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(Duration::from_millis(rig.wire.pttl("job").try_into().unwrap()) <= TTL, "a renewal puts the TTL right");
    let fence = lease.fence();
    lease.release().await.expect("it was ours to the end").confirmed();
    rig.fences_grow(fence, "an hour back").await;

    let dead = rig.leases.lock("dead").owner(Owner::anonymous());
    assert!(dead.try_acquire().await.unwrap().is_none(), "the dead holder's key lives on");
    let left = dead.holder().await.unwrap().unwrap().remaining().unwrap();
    assert!(left + 4 * TTL + rig.lag.worst() > HOUR && left <= HOUR + TTL, "{left:?}");
    rig.clock.forward(HOUR);
    let next = within(HANGS, "the lock of the dead", dead.acquire()).await.unwrap();
    next.release().await.unwrap().confirmed();
}
