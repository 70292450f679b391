//! The contents of the fence key, and how a lock uses them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::Error;
use support::Server;

use crate::common::{Confirmed as _, program};

const KEY: &str = "{job}:lh:fence";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros().try_into().unwrap()
}

#[tokio::test]
async fn a_fence_is_the_servers_time_in_microseconds_and_stays_a_day() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let before = now_us();
    let lease = leases.lock("job").acquire().await.unwrap();
    let fence = u64::from(lease.fence());
    assert!((before..=now_us()).contains(&fence), "{fence} after {before}");
    assert_eq!(server.wire().get(KEY), Some(fence.to_string()), "every digit");
    let lives = Duration::from_millis(server.wire().pttl(KEY).try_into().unwrap());
    assert!(lives <= DAY && lives > DAY.checked_sub(Duration::from_secs(60)).unwrap(), "{lives:?}");
    lease.release().await.unwrap().confirmed();
    assert!(server.wire().exists(KEY), "it outlives the lock");
}

#[tokio::test]
async fn a_fence_from_the_future_is_incremented_and_stays_a_day_longer_than_itself() {
    let server = Server::start();
    let leases = program(server.url()).await;
    // This was drawn by a server whose clock was a day ahead.
    let ahead = now_us() + u64::try_from(DAY.as_micros()).unwrap();
    server.wire().set(KEY, &ahead.to_string());
    for n in 1..=3 {
        let lease = leases.lock("job").acquire().await.unwrap();
        assert_eq!(u64::from(lease.fence()), ahead + n);
        assert_eq!(server.wire().get(KEY), Some((ahead + n).to_string()), "every digit");
        let lives = Duration::from_millis(server.wire().pttl(KEY).try_into().unwrap());
        assert!(lives <= DAY * 2 && lives > (DAY * 2).checked_sub(Duration::from_secs(60)).unwrap(), "{lives:?}");
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test]
async fn a_server_that_forgot_everything_issues_a_larger_fence() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let first = leases.lock("job").acquire().await.unwrap();
    let fence = first.fence();
    first.release().await.unwrap().confirmed();
    server.wire().must(&["FLUSHALL"]);
    assert!(leases.lock("job").acquire().await.unwrap().fence() > fence);
}

#[tokio::test]
async fn an_invalid_fence_is_refused_and_leaves_the_lock_free() {
    let server = Server::start();
    let leases = program(server.url()).await;
    // From 9007199254740992 on, consecutive doubles differ by two.
    for no_fence in ["", "x", "-1", "1.5", "nan", "-nan", "inf", "1e300", "9007199254740992", "9223372036854775807"] {
        server.wire().set(KEY, no_fence);
        let refused = leases.lock("job").try_acquire().await.unwrap_err();
        let Error::Refused(error) = refused else { panic!("{no_fence:?}: {refused}") };
        assert!(error.to_string().contains(KEY), "{error}");
        assert!(!server.wire().exists("job"), "{no_fence:?}");
    }
    server.wire().del(KEY);
    server.wire().must(&["RPUSH", KEY, "1"]);
    let refused = leases.lock("job").try_acquire().await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(error) if error.to_string().contains(KEY)), "{refused}");
    assert!(!server.wire().exists("job"));
}
