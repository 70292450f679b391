//! Unintended harm to locks by other programs on the same server: large values under their names, a full table of
//! tracked keys, queues of dead waiters.

use std::time::{Duration, Instant};

use leasehold::{Error, Owner};
use support::{
    HANGS, Lag, Server, Value, Wire,
    scripts::{ACQUIRE, COMBINED, HOLDER, LOOK, POLL, QUEUE},
    within,
};

use crate::common::{LONG, program, program_with, told};

const TOKEN: &str = "lh1:00000000-0000-4000-8000-000000000000@one";
const KEYS: [&str; 4] = ["job", "{job}:lh:fence", "{job}:lh:queue", "{job}:lh:wait"];

/// The length of a reply's contents, in bytes.
fn length(reply: &Value) -> usize {
    match reply {
        Value::Array(values) => values.iter().map(length).sum(),
        Value::Bulk(text) => text.len(),
        _ => 8,
    }
}

fn each_script(wire: &mut Wire) -> Vec<(&'static str, Value)> {
    let [lock, fence, queue, wait] = KEYS;
    let poll = [TOKEN, "30000", "0", "1000", "9000", "~process", "1", "0", "86400000", "0"];
    let poll = [&["EVAL", POLL, "5", lock, fence, queue, wait, "{job}:lh:holders"][..], &poll].concat();
    [
        ("acquire", vec!["EVAL", ACQUIRE, "2", lock, fence, TOKEN, "30000", "86400000"]),
        ("combined", vec!["EVAL", COMBINED, "2", fence, lock, "0", "86400000", "", TOKEN, "30000"]),
        ("holder", vec!["EVAL", HOLDER, "1", lock]),
        ("look", vec!["EVAL", LOOK, "1", lock]),
        ("poll", poll),
        ("queue", vec!["EVAL", QUEUE, "1", queue, "10", wait]),
    ]
    .map(|(name, command)| (name, wire.must(&command)))
    .into()
}

#[test]
fn no_script_answers_with_more_of_a_value_than_ours_can_have() {
    let server = Server::start();
    let mut wire = server.wire();
    let large = "x".repeat(1_000_000);
    for value in [large.as_str(), &format!("lh1:00000000-0000-4000-8000-000000000001:7@{large}")] {
        wire.must(&["FLUSHALL"]);
        wire.set("job", value);
        wire.must(&["ZADD", KEYS[2], "1", &large]);
        for (script, reply) in each_script(&mut wire) {
            assert!(length(&reply) < 1_000, "{script}: {}", length(&reply));
        }
        assert_eq!(wire.get("job").as_deref(), Some(value), "it is left alone");
    }
    // An empty value is a value too; a missing key is not reported.
    wire.must(&["FLUSHALL"]);
    wire.set("job", "");
    let replies = each_script(&mut wire);
    assert!(replies[..2].iter().all(|(_, busy)| length(busy) > 0), "{replies:?}");
    assert_eq!(replies[2].1.array()[0].int(), 1, "{replies:?}");
    wire.del("job");
    assert_eq!(wire.must(&["EVAL", HOLDER, "1", "job"]).array().len(), 1);
}

/// A large cache entry under a lock's name: many tries at once, and a neighbouring key with a short TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_value_under_a_locks_name_is_busy_and_costs_nobody_a_lease() {
    let server = Server::start();
    let mut wire = server.wire();
    let leases = program_with(server.url(), Duration::from_secs(3)).await;
    let other = leases.lock("other").acquire().await.unwrap();
    wire.must(&["CONFIG", "SET", "proto-max-bulk-len", "64mb"]);
    wire.must(&["SETRANGE", "job", "5000000", "x"]);
    wire.must(&["CONFIG", "RESETSTAT"]);
    for _ in 0..3 {
        let tries: Vec<_> =
            (0..300).map(|_| tokio::spawn(leases.lock("job").owner(Owner::anonymous()).try_acquire())).collect();
        for one in tries {
            assert!(within(HANGS, "a try", one).await.unwrap().unwrap().is_none());
        }
    }
    other.check().unwrap();
    // At 5 MB each, this would be gigabytes.
    let sent: u64 = wire.info_field("stats", "total_net_output_bytes").unwrap().parse().unwrap();
    assert!(sent < 5_000_000, "{sent} bytes");
}

/// Another program's client-side caching fills the server's table of tracked keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_full_tracking_table_waiters_poll() {
    const TABLE: usize = 100;
    const WAITED_FOR: usize = 50;
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["CONFIG", "SET", "tracking-table-max-keys", &TABLE.to_string()]);
    let mut neighbour = server.wire();
    // Its pushes go to a connection that is never read.
    let mut sink = server.wire();
    let id = sink.must(&["CLIENT", "ID"]).int().to_string();
    neighbour.must(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]);
    for number in 0..TABLE {
        neighbour.cmd(&["GET", &format!("cached:{number}")]);
    }
    assert!(wire.tracked_keys() >= TABLE - 1);

    let [holders, waiters] = [program_with(server.url(), LONG).await, program_with(server.url(), LONG).await];
    assert_eq!(told(&waiters).await.tracked_keys, 0);
    let lag = Lag::start();
    let mut held = Vec::new();
    for number in 0..WAITED_FOR {
        held.push(holders.lock(format!("job:{number}")).acquire().await.unwrap());
    }
    let handed: Vec<_> = (0..WAITED_FOR)
        .map(|number| {
            let acquire = waiters.lock(format!("job:{number}")).acquire();
            tokio::spawn(async move { (acquire.await, Instant::now()) })
        })
        .collect();
    // By then the pauses between two checks have reached their maximum.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (lease, handed) in held.into_iter().zip(handed) {
        let released = Instant::now();
        let _confirmed = lease.release().await.unwrap();
        let (next, at) = within(HANGS, "the next holder", handed).await.unwrap();
        let took = at.saturating_duration_since(released);
        assert!(took <= Duration::from_millis(1_100) + lag.worst(), "{took:?}");
        drop(next.unwrap());
    }
}

/// The queue holds more dead waiters than one call removes: the lock is free, but cannot be acquired yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_behind_a_queue_of_the_dead_is_held_by_nobody() {
    let server = Server::start();
    let mut wire = server.wire();
    let fill = "for i = 1, 200000 do redis.call('ZADD', KEYS[1], i, 'dead:' .. i) end";
    wire.must(&["EVAL", fill, "1", "{job}:lh:queue"]);
    let leases = program(server.url()).await;
    let lock = leases.lock("job").fair(true);
    // A busy machine does not answer within the first limits.
    let mut limit = Duration::from_millis(20);
    let error = loop {
        match lock.acquire_within(limit).await.unwrap_err() {
            Error::Unavailable(_) if limit < HANGS => limit *= 2,
            error => break error,
        }
    };
    assert!(error.to_string().contains("held by nobody: its queue is being cleared"), "{error}");
    // Once the queue is cleared, the lock is acquired.
    drop(within(3 * HANGS, "the lock", lock.acquire()).await.unwrap());
}
