//! A long outage of the server: F90.
//!
//! The client is a process of its own, so that its memory is only the library's and a few tasks'. An outage lasts some
//! seconds here and minutes in `scripts/faults`, or as many seconds as `LEASEHOLD_OUTAGE` says.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Error};
use support::{Child, Lag, Part, Proxy, Server, eventually, seen};
use tokio::time::MissedTickBehavior;

use crate::common::Confirmed as _;

/// The number of waiters: half wait for a lock each, the others in lines of five.
const WAITERS: usize = 100;
const IN_LINES: usize = 50;
const LINE: usize = 5;

/// The pause between two tries that fail.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// How much the memory may grow between two measurements, in KiB.
const GROWTH: usize = 4 * 1024;

/// Shorter than the outage: a stopped server then executes what it had not read yet.
const TTL: Duration = Duration::from_secs(5);

/// All waiters have had their locks within this time of the server's return.
const SERVED: Duration = Duration::from_secs(2);

/// A dropped lease is free within this time.
const FREE: Duration = Duration::from_millis(100);

/// The length of the outage, and when the memory is first measured in it.
fn outage() -> (Duration, Duration) {
    let set = std::env::var("LEASEHOLD_OUTAGE").ok().and_then(|seconds| seconds.parse().ok());
    match set {
        Some(seconds) => (Duration::from_secs(seconds), Duration::from_secs(30)),
        None => (Duration::from_secs(24), Duration::from_secs(8)),
    }
}

/// One way for a server to be unavailable.
struct Outage {
    what: &'static str,
    server: Server,
    /// A proxy in front of the server, if the link fails.
    proxy: Option<Proxy>,
    child: Child,
}

impl Outage {
    fn begin(what: &'static str) -> Self {
        let server = Server::start();
        let proxy = (what == "black-holed").then(|| Proxy::to(&server));
        let url = proxy.as_ref().map_or_else(|| server.url(), Proxy::url);
        let life = outage().0 + Duration::from_secs(60);
        let child = Child::start_for(life, f90_an_outage_of_minutes_under_waiters_and_failing_tries, what, &url);
        child.says("connected");
        let mut outage = Self { what, server, proxy, child };
        match (what, &outage.proxy) {
            (_, Some(proxy)) => proxy.black_hole(true),
            ("stopped", None) => outage.server.stop(),
            _ => outage.server.kill(),
        }
        outage.child.tell("wait");
        outage
    }

    fn memory(&mut self) -> usize {
        self.child.tell("memory");
        self.child.says("memory").parse().expect("a number of KiB")
    }

    /// Runs the rest of the test, once the server is back.
    fn end(mut self, lag: &Lag) {
        match (self.what, &self.proxy) {
            (_, Some(proxy)) => proxy.black_hole(false),
            ("stopped", None) => self.server.cont(),
            _ => self.server.restart(),
        }
        self.child.tell("back");
        let served = Duration::from_micros(self.child.says("served").parse().expect("a number of microseconds"));
        assert!(served <= SERVED + lag.worst(), "{}: {served:?}, the machine lagged {:?}", self.what, lag.worst());
        seen::took("all waiters served", served, SERVED, lag);

        self.child.says("dropped");
        let mut wire = self.server.wire();
        let dropped = Instant::now();
        eventually(FREE + Duration::from_secs(10), "the dropped lease is free", || !wire.exists("afterwards"));
        let free = dropped.elapsed();
        assert!(free <= FREE + lag.worst(), "{}: {free:?}, the machine lagged {:?}", self.what, lag.worst());
        seen::took("a dropped lease free", free, FREE, lag);

        let failed: usize = self.child.says("failed").parse().expect("a number of tries");
        assert!(failed > 0, "no try failed: the premise");
        self.child.tell("end");
        self.child.ends();
    }
}

#[test]
fn f90_an_outage_of_minutes_under_waiters_and_failing_tries() {
    if let Some(part) = Part::mine() {
        return client(&part);
    }
    let lag = Lag::start();
    let (length, first_look) = outage();
    let mut outages: Vec<_> = ["killed", "stopped", "black-holed"].into_iter().map(Outage::begin).collect();
    thread::sleep(first_look);
    let before: Vec<_> = outages.iter_mut().map(Outage::memory).collect();
    thread::sleep(length.saturating_sub(first_look));
    for (mut outage, before) in outages.into_iter().zip(before) {
        let after = outage.memory();
        let grown = after.saturating_sub(before);
        assert!(grown <= GROWTH, "{}: {before} KiB and then {after} KiB", outage.what);
        seen::at_most("memory grown, KiB", grown, GROWTH);
        outage.end(&lag);
    }
}

/// The client's part of the test.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn client(part: &Part) {
    let leases = Client::builder().url(&part.url).ttl(TTL).build().await.expect("the server is there");
    // The connection for notifications is open as well.
    leases.lock("before").acquire().await.expect("the server is there").release().await.expect("as it was").confirmed();
    part.say("connected");

    assert_eq!(part.hear(), "wait");
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..WAITERS {
        let name = if n < IN_LINES { format!("line:{}", n / LINE) } else { format!("lock:{n}") };
        let lock = leases.lock(name);
        waiters.spawn(async move {
            let lease = lock.acquire().await.expect("an outage is no reason to give up");
            let acquired = Instant::now();
            lease.release().await.expect("it is there").confirmed();
            acquired
        });
    }
    let (away, failed) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let tries = tokio::spawn(try_again_and_again(leases.clone(), away.clone(), failed.clone()));

    // Hearing from the parent blocks, so it must not occupy the runtime's threads.
    let mut back = None;
    while back.is_none() {
        let heard = tokio::task::block_in_place(|| part.hear());
        match &*heard {
            "memory" => part.say(format!("memory {}", memory())),
            _ => back = Some(Instant::now()),
        }
    }
    let back = back.expect("the parent reported it");
    away.store(false, Ordering::Relaxed);
    let mut last = back;
    while let Some(acquired) = waiters.join_next().await {
        last = last.max(acquired.expect("a waiter that does not panic"));
    }
    part.say(format!("served {}", last.duration_since(back).as_micros()));

    let lease = leases.lock("afterwards").acquire().await.expect("the server is back");
    drop(lease);
    part.say("dropped");
    tries.await.expect("tries that do not panic");
    part.say(format!("failed {}", failed.load(Ordering::Relaxed)));
    assert_eq!(tokio::task::block_in_place(|| part.hear()), "end");
}

async fn try_again_and_again(leases: Client, away: Arc<AtomicBool>, failed: Arc<AtomicUsize>) {
    let mut at = tokio::time::interval(TRY_EVERY);
    // On a late machine the missed tries would come all at once, and take more memory than ever before.
    at.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tries = tokio::task::JoinSet::new();
    while away.load(Ordering::Relaxed) {
        at.tick().await;
        while tries.try_join_next().is_some() {}
        let (lock, failed) = (leases.lock("tried"), failed.clone());
        tries.spawn(async move {
            match lock.try_acquire().await {
                Err(Error::Unavailable(_)) => failed.fetch_add(1, Ordering::Relaxed),
                Err(other) => panic!("{other}"),
                // The server is back, or not unavailable yet.
                Ok(_) => 0,
            };
        });
    }
    tries.join_all().await;
}

/// Our resident memory, in KiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has this line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
