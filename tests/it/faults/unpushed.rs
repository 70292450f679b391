//! Faults of the key on a server without push: the next renewal finds out, before the deadline. Rows F13 to F15 and
//! F17; with push they are in `keys.rs`.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, LossReason};
use support::{HANGS, Lag, SIGNAL, Server, seen, within};

const TTL: Duration = Duration::from_millis(900);

/// Runs the commands while a lease is held, and panics unless the next renewal reports its loss, for this reason.
async fn is_told_by_the_next_renewal(faults: &[&[&[&str]]], reason: LossReason) {
    let (server, lag) = (Server::start(), Lag::start());
    let mut wire = server.wire();
    let url = server.url_without_push(server.port());
    let leases = Client::builder().url(url).ttl(TTL).build().await.unwrap();
    for commands in faults {
        let lease = leases.lock("job").acquire().await.unwrap();
        let fault = Instant::now();
        for command in *commands {
            wire.must(command);
        }
        let lost = within(HANGS, "the signal of a loss", lease.lost()).await;
        let took = fault.elapsed();
        assert_eq!(lost.reason(), reason, "by the deadline it would be Expired");
        assert!(wire.trackers().is_empty(), "it was pushed");
        seen::took("signal after the fault, without push", took, TTL / 3 + SIGNAL, &lag);
        assert!(took <= TTL / 3 + SIGNAL + lag.worst(), "{commands:?}: {took:?}");
        let released = lease.release().await;
        assert!(matches!(&released, Err(Error::Lost(lost)) if lost.reason() == reason), "{released:?}");
        assert_eq!(wire.exists("job"), reason == LossReason::Taken, "what is another's is left alone");
        wire.must(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn f13_key_deleted_by_hand_without_notifications() {
    is_told_by_the_next_renewal(&[&[&["DEL", "job"]], &[&["UNLINK", "job"]]], LossReason::Deleted).await;
}

#[tokio::test]
async fn f14_key_overwritten_without_notifications() {
    let faults: &[&[&[&str]]] =
        &[&[&["SET", "job", "somebody-else", "PX", "60000"]], &[&["SET", "job", "somebody-else"]]];
    is_told_by_the_next_renewal(faults, LossReason::Taken).await;
}

#[tokio::test]
async fn f15_flushed_without_notifications() {
    is_told_by_the_next_renewal(&[&[&["FLUSHALL"]], &[&["FLUSHDB"]]], LossReason::Deleted).await;
}

#[tokio::test]
async fn f17_key_of_another_type_without_notifications() {
    // In one step, so that no renewal finds the key missing.
    let faults: &[&[&[&str]]] = &[
        &[&["HSET", "made", "field", "value"], &["RENAME", "made", "job"]],
        &[&["RPUSH", "made", "value"], &["RENAME", "made", "job"]],
    ];
    is_told_by_the_next_renewal(faults, LossReason::Taken).await;
}
