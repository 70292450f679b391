//! F95: each member of a batch meets another obstacle, and each caller gets its own answer.

use std::time::Duration;

use leasehold::{Error, Lease, LossReason, Owner, Released};
use support::{HANGS, Proxy, Server, Wire, eventually_async, within};

use super::{MANY, Rig, names};
use crate::common::{Confirmed as _, LONG, assert_says_lost, program_with, unconfirmed};

/// The request of a member.
#[derive(Debug)]
enum Outcome {
    Acquired(Result<Option<Lease>, Error>),
    Released(Result<Released, Error>),
}

async fn acquired(asked: impl Future<Output = Result<Option<Lease>, Error>>) -> Outcome {
    Outcome::Acquired(asked.await)
}

async fn released(lease: Lease) -> Outcome {
    Outcome::Released(lease.release().await)
}

/// The server's time in microseconds, plus `more`.
fn time_and(wire: &mut Wire, more: Duration) -> u64 {
    let time = wire.must(&["TIME"]);
    let part = |at: usize| time.array()[at].text().parse::<u64>().unwrap();
    part(0) * 1_000_000 + part(1) + u64::try_from(more.as_micros()).unwrap()
}

#[tokio::test]
async fn f95_each_member_of_a_batch_fails_in_its_own_way() {
    const TO_ACQUIRE: [&str; 7] = ["held", "hash", "odd fence", "no fence", "huge fence", "ahead", "mine"];
    const TO_RELEASE: [&str; 6] = ["gone", "taken", "changed", "queued", "raised", "released"];
    let rig = Rig::start().await;
    let (stranger, mut wire) = (program_with(rig.server.url(), LONG).await, rig.server.wire());
    let theirs = stranger.lock("job:held").acquire().await.expect("it is free");
    let mut leases = Vec::new();
    for name in TO_RELEASE {
        leases.push(rig.leases.lock(format!("job:{name}")).acquire().await.expect("it is free"));
    }
    let raised = leases[4].fence().to_string();
    let waiter = tokio::spawn(stranger.lock("job:queued").fair(true).acquire());
    eventually_async(HANGS, "it is queued", || wire.exists("{job:queued}:lh:queue")).await;

    let of_acquires =
        TO_ACQUIRE.map(|name| Box::pin(acquired(rig.leases.lock(format!("job:{name}")).try_acquire())) as _);
    let of_releases = leases.into_iter().map(|lease| Box::pin(released(lease)) as super::Request<Outcome>);
    let others = names(MANY).map(|name| Box::pin(acquired(rig.leases.lock(name).try_acquire())) as _);
    let (fillers, crowd) = rig.queued(of_acquires.into_iter().chain(of_releases).chain(others)).await;
    // Their waiters find this.
    wire.must(&["HSET", "job:hash", "field", "value"]);
    wire.must(&["HSET", "{job:odd fence}:lh:fence", "field", "value"]);
    wire.set("{job:no fence}:lh:fence", "none");
    wire.set("{job:huge fence}:lh:fence", "9007199254740992");
    let ahead = time_and(&mut wire, Duration::from_secs(60 * 60));
    wire.set("{job:ahead}:lh:fence", &ahead.to_string());
    assert!(wire.del("job:gone"));
    wire.set("job:taken", "somebody's");
    wire.del("job:changed");
    wire.must(&["HSET", "job:changed", "field", "value"]);
    let value = wire.get("job:raised").expect("it is held");
    let more = raised.parse::<u64>().unwrap() + 1;
    wire.must(&["SET", "job:raised", &value.replace(&raised, &more.to_string()), "KEEPTTL"]);
    rig.go_on(fillers).await;

    let mut outcomes = crowd.all().await.into_iter();
    assert_eq!(rig.batches(), [TO_ACQUIRE.len() + TO_RELEASE.len() + MANY]);
    let mut next = || outcomes.next().unwrap();
    let mut kept = Vec::new();
    for name in TO_ACQUIRE {
        match (name, next()) {
            ("held" | "hash", Outcome::Acquired(Ok(None))) => {}
            ("odd fence", Outcome::Acquired(Err(Error::Refused(error)))) => {
                let key = "the fence key {job:odd fence}:lh:fence holds another type: delete it to go on";
                assert!(error.to_string().contains(key), "{error}");
            }
            ("no fence" | "huge fence", Outcome::Acquired(Err(Error::Refused(error)))) => {
                let key = format!("the fence key {{job:{name}}}:lh:fence holds no fence");
                assert!(error.to_string().contains(&key), "{error}");
            }
            ("ahead", Outcome::Acquired(Ok(Some(lease)))) => {
                assert_eq!(lease.fence().to_string(), (ahead + 1).to_string());
                kept.push(lease);
            }
            ("mine", Outcome::Acquired(Ok(Some(lease)))) => kept.push(lease),
            (name, other) => panic!("{name}: {other:?}"),
        }
    }
    for name in TO_RELEASE {
        match (name, next()) {
            ("gone", Outcome::Released(outcome)) => assert_says_lost(outcome, LossReason::Deleted),
            ("taken" | "changed", Outcome::Released(outcome)) => assert_says_lost(outcome, LossReason::Taken),
            ("queued" | "raised" | "released", Outcome::Released(Ok(Released::Confirmed))) => {}
            (name, other) => panic!("{name}: {other:?}"),
        }
    }
    for outcome in outcomes {
        match outcome {
            Outcome::Acquired(Ok(Some(lease))) => kept.push(lease),
            other => panic!("nothing was wrong with it: {other:?}"),
        }
    }
    // Other holders' keys were left alone, and the lock with a queue was passed on.
    assert_eq!(wire.get("job:taken").as_deref(), Some("somebody's"));
    assert!(wire.exists("job:changed") && wire.exists("job:hash"));
    assert!(!wire.exists("job:raised") && !wire.exists("job:released"));
    within(HANGS, "the queue's first has it", waiter).await.unwrap().unwrap().release().await.unwrap().confirmed();
    theirs.release().await.expect("it was theirs to the end").confirmed();
    for lease in kept {
        lease.release().await.expect("it was ours to the end").confirmed();
    }
    let mut left = wire.keys("job:*");
    left.sort();
    assert_eq!(left, ["job:changed", "job:hash", "job:taken"]);
}

/// Its user has all rights except those denied by these rules.
async fn worker_rig(rules: &[&str]) -> Rig {
    let server = Server::start();
    let all = ["ACL", "SETUSER", "worker", "reset", "on", ">secret", "allcommands", "allchannels", "allkeys"];
    server.wire().must(&[&all, rules].concat());
    let proxy = Proxy::to(&server);
    let url = format!("redis://worker:secret@127.0.0.1:{}", proxy.port());
    Rig::at(server, proxy, &url, |builder| builder).await
}

#[tokio::test]
async fn f95_one_name_of_a_batch_is_not_ours_to_touch() {
    let rig = worker_rig(&[]).await;
    let mut wire = rig.server.wire();
    let forbidden = rig.leases.lock("their:job").acquire().await.expect("it is free");
    wire.must(&["ACL", "SETUSER", "worker", "resetkeys", "~*job:*", "~filler:*", "~{filler:*"]);

    let asked = [Box::pin(acquired(rig.leases.lock("their:other").try_acquire())) as super::Request<Outcome>];
    let ours = names(MANY).map(|name| Box::pin(acquired(rig.leases.lock(name).try_acquire())) as _);
    let all = asked.into_iter().chain(ours).chain([Box::pin(released(forbidden)) as _]);
    let mut outcomes = rig.batch(all).await.all().await;
    assert_eq!(rig.batches(), [MANY + 2]);
    for outcome in [outcomes.remove(0), outcomes.pop().unwrap()] {
        let text = match outcome {
            Outcome::Acquired(Err(error)) => error.to_string(),
            Outcome::Released(outcome) => unconfirmed(outcome).to_string(),
            outcome @ Outcome::Acquired(Ok(_)) => panic!("{outcome:?}"),
        };
        assert!(text.contains("NOPERM"), "{text}");
    }
    for outcome in outcomes {
        let Outcome::Acquired(Ok(Some(lease))) = outcome else { panic!("it is ours to touch: {outcome:?}") };
        lease.release().await.expect("it was ours").confirmed();
    }
    assert_eq!((wire.keys("job:*"), wire.keys("their:*")), (vec![], vec!["their:job".to_owned()]));
}

/// A user with the rights for a lone acquire, but not for the other commands of a batch.
#[tokio::test]
async fn f95_a_user_without_the_rights_of_a_batch_has_its_locks_one_by_one() {
    for missing in ["-mget", "-exists"] {
        let rig = worker_rig(&[missing]).await;
        let leases = rig.hold(MANY).await;
        for outcome in rig.release(leases).await {
            outcome.unwrap_or_else(|error| panic!("{missing}: {error}")).confirmed();
        }
        assert_eq!(rig.batches(), [MANY, MANY], "{missing}");
        assert_eq!(rig.server.wire().keys("job:*"), [""; 0], "{missing}");
    }
}

#[tokio::test]
async fn f95_a_batch_that_the_server_does_not_serve_now_is_nobodys_and_each_hears_why() {
    let rig = Rig::start().await;
    let mut wire = rig.server.wire();
    let held = rig.hold(MANY).await;
    wire.must(&["REPLICAOF", "127.0.0.1", "1"]);
    for outcome in rig.try_all((0..MANY).map(|number| format!("job:free:{number}"))).await {
        let Err(Error::Unavailable(error)) = outcome else { panic!("a replica granted: {outcome:?}") };
        assert!(error.to_string().contains("READONLY"), "{error}");
    }
    for outcome in rig.release(held).await {
        let why = unconfirmed(outcome);
        assert!(why.to_string().contains("READONLY"), "{why}");
    }
    assert_eq!(rig.batches(), [MANY; 3]);
    wire.must(&["REPLICAOF", "NO", "ONE"]);
    rig.nothing_is_left().await;
}

/// Of many tries for one name, one wins, and the others learn the holder.
#[tokio::test]
async fn f95_one_name_many_times_in_a_batch_is_granted_once() {
    let rig = Rig::start().await;
    let tries = (0..MANY).map(|_| rig.leases.lock("job:one").owner(Owner::anonymous()).try_acquire());
    let outcomes = rig.batch(tries).await.all().await;
    assert_eq!(rig.batches(), [MANY]);
    let leases: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.expect("it is served")).collect();
    let [lease] = &leases[..] else { panic!("{} hold it", leases.len()) };
    assert!(lease.remaining() > LONG / 2);
    lease.renew().await.expect("it is ours");
}
