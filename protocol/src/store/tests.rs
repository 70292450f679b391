use super::*;
use crate::{forced, mode::Mode};

const TTL: Duration = Duration::from_millis(100);
const DAY: Duration = fence::MEMORY;

fn granted(acquired: &Acquired) -> Fence {
    match acquired {
        Acquired::Granted(fence) => *fence,
        other => panic!("{other:?}"),
    }
}

fn request(key: &Key, token: &Token, ttl: Duration) -> AcquireRequest {
    AcquireRequest { claim: claim(key, token, ttl), voting: None, heir_of: None }
}

fn claim(key: &Key, token: &Token, ttl: Duration) -> Claim {
    Claim {
        key: key.clone(),
        token: token.clone(),
        mode: Mode::Exclusive,
        ttl,
        life: ttl,
        fence: None,
        fence_memory: DAY,
    }
}

fn release_as(store: &mut Store, now: Micros, (key, token): (&Key, &Token), mode: &ReleaseMode) -> Owned {
    let process = Process { name: token.as_str(), hears: false };
    store.release(now, &claim(key, token, TTL), mode, process, &|_| true).0
}

fn release(store: &mut Store, now: Micros, key: &Key, token: &Token) -> Owned {
    release_as(store, now, (key, token), &ReleaseMode::Delete)
}

fn leave(store: &mut Store, now: Micros, key: &Key, token: &Token) -> Owned {
    release_as(store, now, (key, token), &ReleaseMode::leave())
}

fn retain(store: &mut Store, now: Micros, key: &Key, token: &Token, keep: Duration, stays: &Token) -> Owned {
    release_as(store, now, (key, token), &ReleaseMode::Retain(keep, stays.clone()))
}

fn raise(store: &mut Store, now: Micros, key: &Key, token: &Token, fence: Fence) -> Owned {
    store.raise(now, &claim(key, token, TTL), fence)
}

/// The request of a vote, with a restart delay of 3 s.
fn vote(key: &Key, token: &Token, proposal: u64) -> AcquireRequest {
    let voting = Voting { restart_delay: TTL * 30, proposal: Fence::try_from(proposal).ok() };
    AcquireRequest { voting: Some(voting), ..request(key, token, TTL) }
}

#[test]
fn who_was_started_lately_neither_votes_nor_is_healed() {
    let (_, key, one, _) = scene();
    let mut store = Store::started(1_000_000);
    let lease = claim(&key, &one, TTL);
    let (delay, fence) = (TTL * 30, Fence::try_from(9_000_000_u64).unwrap());
    let VoteReply { acquired, identity, .. } = store.acquire(2_500_000, &vote(&key, &one, 0));
    assert!(matches!(acquired, Acquired::Recovering(left) if left == Duration::from_secs(2)), "{acquired:?}");
    assert_eq!(identity.and_then(|identity| identity.time), Some(2_500_000));
    assert_eq!(store.repair(3_999_999, &lease, fence, delay), Repaired::Recovering(Duration::from_secs(1)));
    assert_eq!(store.holder(3_999_999, &key), None);
    assert_eq!(store.repair(4_000_000, &lease, fence, delay), Repaired::Done);
    assert_eq!(store.floors.get(4_000_000, &key), Some(fence));
    assert_eq!(raise(&mut store, 4_000_000, &key, &one, fence::ZERO), Ok(()));
    assert_eq!(store.floors.get(4_000_000, &key), Some(fence), "a floor is never lowered");
}

#[test]
fn a_restarted_store_keeps_its_locks_and_does_not_vote_yet() {
    let (mut store, key, one, two) = scene();
    granted(&store.acquire(9_900_000, &request(&key, &one, TTL * 2)).acquired);
    store.restarted(10_000_000);
    assert_eq!(store.holder(10_000_000, &key).unwrap().token, Some(one));
    let VoteReply { acquired, .. } = store.acquire(10_000_000, &vote(&key, &two, 0));
    assert!(matches!(acquired, Acquired::Recovering(left) if left == TTL * 30), "{acquired:?}");
}

#[test]
fn a_lock_changes_with_a_release_by_its_token_only() {
    let (mut store, key, one, two) = scene();
    granted(&store.acquire(0, &request(&key, &one, TTL)).acquired);
    let mut changes = |token: &Token| {
        let request = Request::Release { claim: claim(&key, token, TTL), mode: ReleaseMode::Delete };
        let Applied { changed, notified, .. } = store.apply(0, &request, Process { name: "", hears: false }, &|_| true);
        assert!(notified.is_empty());
        changed.is_some()
    };
    assert!(!changes(&two) && changes(&one) && !changes(&one));
}

#[test]
fn what_somebody_else_has_is_neither_raised_nor_healed() {
    let (mut store, key, one, two) = scene();
    granted(&store.acquire(1_000, &request(&key, &two, TTL)).acquired);
    let lease = claim(&key, &one, TTL);
    let fence = Fence::try_from(9_000_000_u64).unwrap();
    assert_eq!(raise(&mut store, 1_000, &key, &one, fence), Err(Denial::Taken));
    assert_eq!(store.repair(1_000, &lease, fence, Duration::ZERO), Repaired::Taken);
    assert!(store.floors.get(1_000, &key) < Some(fence));
}

#[test]
fn a_proposal_is_drawn_if_it_is_large_enough() {
    let (mut store, key, one, two) = scene();
    let now = 10_000_000;
    assert_eq!(u64::from(granted(&store.acquire(now, &vote(&key, &one, now + 50)).acquired)), now + 50);
    release(&mut store, now, &key, &one).unwrap();
    assert_eq!(u64::from(granted(&store.acquire(now, &vote(&key, &two, now + 50)).acquired)), now + 51);
    release(&mut store, now, &key, &two).unwrap();
    assert_eq!(u64::from(granted(&store.acquire(now + 60, &vote(&key, &one, 7)).acquired)), now + 60);
}

fn scene() -> (Store, Key, Token, Token) {
    (Store::default(), Key::new("", "job").unwrap(), Token::random("one"), Token::random("two"))
}

#[test]
fn a_lock_excludes_until_it_expires() {
    let (mut store, key, one, two) = scene();
    granted(&store.acquire(1_000, &request(&key, &one, TTL)).acquired);
    assert!(matches!(store.acquire(100_999, &request(&key, &two, TTL)).acquired, Acquired::Busy { .. }));
    granted(&store.acquire(101_000, &request(&key, &two, TTL)).acquired);
    assert_eq!(release(&mut store, 101_000, &key, &one), Err(Denial::Taken));
    assert_eq!(store.renew(201_000, &claim(&key, &two, TTL)), Err(Denial::Gone));
}

#[test]
fn fences_grow_when_the_clock_stands_still_or_goes_back() {
    let (mut store, key, one, two) = scene();
    let first = granted(&store.acquire(5_000_000, &request(&key, &one, TTL)).acquired);
    assert_eq!(
        granted(&store.acquire(5_000_001, &request(&key, &one, TTL)).acquired),
        first,
        "a replay issues nothing"
    );
    release(&mut store, 5_000_001, &key, &one).unwrap();
    let second = granted(&store.acquire(1_000, &request(&key, &two, TTL)).acquired);
    assert!(second > first, "{second} after {first}");
}

#[test]
fn a_fence_outlives_its_lock_by_a_day_and_no_longer() {
    let (mut store, key, one, _) = scene();
    let first = granted(&store.acquire(1_000, &request(&key, &one, TTL)).acquired);
    let day = micros(DAY);
    assert_eq!(store.floors.get(1_000 + day - 1, &key), Some(first));
    assert_eq!(store.floors.get(1_000 + day, &key), None);
}

#[test]
fn without_memory_a_floor_stays_until_the_clock_has_passed_it() {
    let (mut store, key, one, two) = scene();
    let drawn = |store: &mut Store, now, token: &Token, proposal: u64| {
        let claim = Claim { fence_memory: Duration::ZERO, ..claim(&key, token, TTL) };
        let voting = Some(Voting { restart_delay: Duration::ZERO, proposal: Fence::try_from(proposal).ok() });
        u64::from(granted(&store.acquire(now, &AcquireRequest { claim, voting, heir_of: None }).acquired))
    };
    for (token, fence) in [(&one, 5_000), (&two, 5_001)] {
        assert_eq!(drawn(&mut store, 5_000, token, 0), fence, "the clock stands");
        release(&mut store, 5_000, &key, token).unwrap();
    }
    assert_eq!(drawn(&mut store, 5_002, &one, 9_000), 9_000, "ahead of the clock");
    release(&mut store, 8_000, &key, &one).unwrap();
    assert_eq!(store.floors.get(9_000, &key).map(u64::from), Some(9_000));
    assert_eq!(store.floors.get(9_001, &key), None);
}

#[test]
fn the_holders_fence_outlives_its_floor() {
    let (mut store, key, one, _) = scene();
    let fence = granted(&store.acquire(1_000, &request(&key, &one, 2 * DAY)).acquired);
    let later = 1_000 + micros(DAY + TTL);
    assert_eq!(store.floors.get(later, &key), None, "the premise");
    assert_eq!(store.holder(later, &key).unwrap().fence, Some(fence));
    assert_eq!(granted(&store.acquire(later, &request(&key, &one, TTL)).acquired), fence, "a replay issues nothing");
}

#[test]
fn a_raise_and_a_repair_raise_the_holders_fence_and_never_lower_it() {
    let (mut store, key, one, _) = scene();
    let drawn = granted(&store.acquire(1_000, &request(&key, &one, TTL)).acquired);
    let seen = |store: &mut Store| store.holder(1_000, &key).unwrap().fence.unwrap();
    let fence = |number: u64| Fence::try_from(number).unwrap();
    assert_eq!(raise(&mut store, 1_000, &key, &one, fence(9_000)), Ok(()));
    assert_eq!((drawn, seen(&mut store)), (fence(1_000), fence(9_000)));
    assert_eq!(raise(&mut store, 1_000, &key, &one, fence(8_000)), Ok(()));
    assert_eq!(seen(&mut store), fence(9_000));
    let lease = claim(&key, &one, TTL);
    for (repaired, known) in [(8_500, 9_000), (9_500, 9_500)] {
        assert_eq!(store.repair(1_000, &lease, fence(repaired), Duration::ZERO), Repaired::Done);
        assert_eq!(seen(&mut store), fence(known));
    }
    store.locks.clear();
    assert_eq!(store.repair(1_000, &lease, fence(9_700), Duration::ZERO), Repaired::Done);
    assert_eq!(seen(&mut store), fence(9_700));
}

#[test]
fn what_is_retained_keeps_the_holders_fence() {
    let (mut store, key, one, two) = scene();
    let fence = granted(&store.acquire(1_000, &request(&key, &one, TTL)).acquired);
    assert_eq!(retain(&mut store, 1_000, &key, &one, DAY, &two), Ok(()));
    assert_eq!(
        store.holder(2_000, &key).unwrap(),
        Holder::of(Some(two), Some(Duration::from_micros(micros(DAY) - 1_000)), Some(fence))
    );
}

#[test]
fn what_has_expired_does_not_pile_up() {
    let mut store = Store::default();
    for day in 1..=10 {
        for n in 0..500 {
            let key = Key::new("", &format!("{day}:{n}")).unwrap();
            granted(&store.acquire(day * (micros(DAY) + 1), &request(&key, &Token::random("one"), TTL)).acquired);
        }
    }
    assert!(store.floors.len() <= 1_500 && store.locks.len() <= 1_500, "{}", store.floors.len());
}

#[test]
fn a_replayed_acquire_never_shortens() {
    let (mut store, key, one, _) = scene();
    granted(&store.acquire(0, &request(&key, &one, TTL * 10)).acquired);
    granted(&store.acquire(0, &request(&key, &one, TTL)).acquired);
    assert_eq!(store.holder(0, &key).unwrap().remaining, Some(TTL * 10));
}

fn poll(key: &Key, token: &Token) -> Poll {
    let (window, restart_delay) = (Duration::from_secs(60), Duration::ZERO);
    Poll { claim: claim(key, token, TTL), ticket: None, grant: TTL, window, enter: true, restart_delay }
}

/// The poll of a waiter that is alone in its process, and gets no notifications.
fn send(store: &mut Store, now: Micros, poll: &Poll) -> Polled {
    store.poll(now, poll, Process { name: poll.claim.token.as_str(), hears: false }, &|_| true).0
}

#[test]
fn who_was_started_lately_grants_nothing_to_a_queue_and_keeps_its_order() {
    let (_, key, one, two) = scene();
    let holder = Token::random("holder");
    let mut store = Store::started(1_000_000);
    let delayed = |token: &Token| Poll { restart_delay: TTL * 30, ..poll(&key, token) };
    let recovers = |store: &mut Store, now: Micros, poll: &Poll| match send(store, now, poll) {
        Polled::Waits { recovers_for, ticket, ahead, .. } => (recovers_for, ticket.is_some(), ahead),
        granted @ Polled::Granted(_) => panic!("{granted:?}"),
    };
    let look = Poll { enter: false, ..delayed(&two) };
    assert_eq!(recovers(&mut store, 2_500_000, &look), (Some(Duration::from_secs(2)), false, 0));
    assert_eq!(recovers(&mut store, 2_500_000, &delayed(&one)), (Some(Duration::from_secs(2)), true, 0));
    assert_eq!(recovers(&mut store, 3_999_999, &delayed(&two)), (Some(Duration::from_secs(1)), true, 1));
    assert_eq!(leave(&mut store, 3_999_999, &key, &holder), Err(Denial::Gone));
    assert_eq!(store.holder(3_999_999, &key), None);
    // The server restored a released lock from its disk, so the release may be repeated.
    let partings: [fn(&mut Store, &Key, &Token) -> bool; 3] = [
        |store, key, token| release(store, 3_999_999, key, token).is_ok(),
        |store, key, token| leave(store, 3_999_999, key, token).is_ok(),
        |store, key, _| store.force_release(3_999_999, key, &forced(), &|_| true).0,
    ];
    for parts in partings {
        granted(&store.acquire(3_999_999, &request(&key, &holder, TTL)).acquired);
        assert_eq!(recovers(&mut store, 3_999_999, &delayed(&two)), (None, true, 1), "somebody has it");
        assert!(parts(&mut store, &key, &holder));
        assert_eq!(store.holder(3_999_999, &key), None, "a lock that may be another's is not passed on");
    }
    assert!(matches!(send(&mut store, 4_000_000, &delayed(&one)), Polled::Granted(_)));
    release(&mut store, 4_000_000, &key, &one).unwrap();
    assert_eq!(store.holder(4_000_000, &key).unwrap().token, Some(two));
}

#[test]
fn those_who_wait_are_counted_and_the_first_are_listed_with_their_wait() {
    let (mut store, key, one, two) = scene();
    granted(&store.acquire(0, &request(&key, &Token::random("holder"), TTL)).acquired);
    send(&mut store, 10, &poll(&key, &one));
    let (mut reads, to_read) = (poll(&key, &two), crate::mode::of_limit(u32::MAX, two.permits()));
    reads.claim.mode = to_read;
    send(&mut store, 30, &reads);
    let (waiting, first) = store.queue(50, &key, 1);
    assert_eq!((waiting, first.len()), (2, 1));
    let waited = [(one, Duration::from_micros(40), Mode::Exclusive), (two, Duration::from_micros(20), to_read)];
    assert_eq!(store.waiters(50, &key, 9), waited);
}

#[test]
fn what_is_held_is_listed_until_it_expires() {
    let (mut store, key, one, _) = scene();
    granted(&store.acquire(0, &request(&key, &one, TTL)).acquired);
    let end = Micros::try_from(TTL.as_micros()).unwrap();
    assert_eq!(store.held(end - 1, "*"), [key.lock()]);
    assert_eq!(store.held(end, "*"), Vec::<String>::new());
    assert_eq!(store.holder(end, &key), None);
}

#[test]
fn what_is_held_or_waited_for_is_not_swept_away() {
    let (mut store, key, one, two) = scene();
    let crowd = |store: &mut Store, now: Micros| {
        for n in 0..3_000 {
            let key = Key::new("", &format!("{now}:{n}")).unwrap();
            granted(&store.acquire(now, &request(&key, &one, TTL)).acquired);
        }
    };
    granted(&store.acquire(0, &request(&key, &one, TTL)).acquired);
    send(&mut store, 0, &poll(&key, &two));
    crowd(&mut store, 1);
    assert_eq!(store.queue(1, &key, 9).0, 1);
    assert_eq!(store.renew(1, &claim(&key, &one, TTL)), Ok(()));
    crowd(&mut store, 2 * micros(DAY));
    assert!(store.queues.is_empty() && !store.floors.has(&key) && !store.locks.contains_key(&key));
}

fn forced() -> Arc<ForcedRelease> {
    Arc::new(forced::by("ops", Some("it is stuck")))
}

#[test]
fn who_held_it_hears_who_took_it_by_force_for_as_long_as_the_key_would_have_lived() {
    let (mut store, key, one, two) = scene();
    let lease = claim(&key, &one, TTL);
    granted(&store.acquire(0, &request(&key, &one, TTL)).acquired);
    assert!(!store.force_release(0, &Key::of_lock("other"), &forced(), &|_| true).0);
    assert!(store.force_release(1_000, &key, &forced(), &|_| true).0);
    let notified = Err(Denial::Forced(forced()));
    assert_eq!(store.renew(2_000, &lease), notified);
    granted(&store.acquire(3_000, &request(&key, &two, TTL)).acquired);
    assert_eq!(store.renew(4_000, &lease), notified, "whoever has it now");
    assert_eq!(release(&mut store, 4_000, &key, &one), notified);
    assert_eq!(retain(&mut store, 4_000, &key, &one, TTL, &Token::random("kept")), notified);
    let third = Token::random("third");
    assert_eq!(store.renew(4_000, &claim(&key, &third, TTL)), Err(Denial::Taken), "it was not taken from this one");
    store.renew(5_000, &claim(&key, &two, TTL)).unwrap();
    let over = micros(TTL);
    assert_eq!((store.renew(over - 1, &lease), store.renew(over, &lease)), (notified, Err(Denial::Taken)));
}

#[test]
fn what_is_kept_stays_for_its_time_however_often_that_is_said() {
    let (mut store, key, one, two) = scene();
    let stays = Token::random("kept");
    granted(&store.acquire(0, &request(&key, &one, TTL)).acquired);
    assert_eq!(retain(&mut store, 0, &key, &two, TTL, &stays), Err(Denial::Taken));
    assert_eq!(retain(&mut store, 0, &key, &one, TTL * 2, &stays), Ok(()));
    assert_eq!(retain(&mut store, 50_000, &key, &one, TTL * 2, &stays), Ok(()), "a replay");
    assert!(store.holder(199_999, &key).is_some() && store.holder(200_000, &key).is_none());
    assert_eq!(retain(&mut store, 200_000, &key, &one, TTL, &stays), Err(Denial::Gone));
}

#[test]
fn a_confirmed_grant_has_the_full_ttl() {
    let (mut store, key, one, _) = scene();
    let confirm = |store: &mut Store, now: Micros| send(store, now, &poll(&key, &one));
    let Polled::Granted(first) = confirm(&mut store, 0) else { panic!("it is free") };
    assert!(matches!(confirm(&mut store, 70_000), Polled::Granted(fence) if fence == first));
    assert!(store.holder(169_999, &key).is_some() && store.holder(170_000, &key).is_none());
}

#[test]
fn a_renewal_and_a_heal_give_the_full_ttl_from_now() {
    let (mut store, key, one, _) = scene();
    let lease = claim(&key, &one, TTL);
    let lives_until = |store: &mut Store, end: Micros| {
        assert!(store.holder(end - 1, &key).is_some() && store.holder(end, &key).is_none());
    };
    granted(&store.acquire(1_000, &request(&key, &one, TTL)).acquired);
    assert_eq!(store.renew(60_000, &lease), Ok(()));
    let check = Claim { life: Duration::ZERO, ..lease.clone() };
    assert_eq!(store.renew(100_000, &check), Ok(()));
    lives_until(&mut store, 160_000);
    assert_eq!(store.renew(160_000, &check), Err(Denial::Gone));
    assert_eq!(store.repair(200_000, &lease, fence::ZERO, Duration::ZERO), Repaired::Done);
    lives_until(&mut store, 300_000);
}

#[test]
fn a_renewal_is_of_the_grant_that_had_its_fence() {
    let (mut store, key, one, _) = scene();
    let first = granted(&store.acquire(0, &request(&key, &one, TTL)).acquired);
    let renew = |store: &mut Store, fence| store.renew(1_000, &Claim { fence, ..claim(&key, &one, TTL) });
    assert_eq!((renew(&mut store, Some(first)), renew(&mut store, None)), (Ok(()), Ok(())));
    store.delete(&key);
    let second = granted(&store.acquire(500, &request(&key, &one, TTL)).acquired);
    assert!(second > first);
    assert_eq!(renew(&mut store, Some(first)), Err(Denial::Gone));
    assert_eq!(store.holder(500, &key).unwrap().remaining(), Some(TTL), "it is not extended");
    assert_eq!(renew(&mut store, Some(second)), Ok(()));
    assert_eq!(store.holder(1_000, &key).unwrap().remaining(), Some(TTL));
}

#[test]
fn a_floor_is_lifted_and_stays_a_day_longer_than_its_fence_or_than_now() {
    let (mut store, key, one, _) = scene();
    let now = 1_000_000;
    granted(&store.acquire(now, &request(&key, &one, TTL)).acquired);
    for (fence, from) in [(now + 9, now + 9), (now + 20, now + 20)] {
        let fence = Fence::try_from(fence).unwrap();
        assert_eq!(raise(&mut store, now, &key, &one, fence), Ok(()));
        assert_eq!(store.floors.get(from + micros(DAY) - 1, &key), Some(fence));
    }
    let same = Fence::try_from(now + 20).unwrap();
    assert_eq!(raise(&mut store, now + 50, &key, &one, same), Ok(()), "it raises nothing");
    assert_eq!(store.floors.get(now + 20 + micros(DAY), &key), None);
    let old = Fence::try_from(5_u64).unwrap();
    assert_eq!(raise(&mut store, now, &key, &one, old), Ok(()));
    assert_eq!(store.floors.get(now + micros(DAY) - 1, &key), Some(old));
    assert_eq!(store.floors.get(now + micros(DAY), &key), None);
}

mod succession {
    use super::*;

    fn adopt(store: &mut Store, now: Micros, to: AcquireRequest, from: &[Token]) -> Acquired {
        store.acquire(now, &AcquireRequest { heir_of: Some(from.to_vec().into()), ..to }).acquired
    }

    #[test]
    fn an_adoption_is_a_change_of_the_key_for_who_watches_it() {
        let (mut store, key, giver, heir) = scene();
        let nobody = |_: &str| false;
        let mut changes = |request: AcquireRequest| {
            store.apply(10, &Request::Acquire(request), Process { name: "", hears: false }, &nobody).changed.is_some()
        };
        assert!(!changes(request(&key, &giver, TTL)));
        let heir_of = Some(vec![giver.clone()].into());
        assert!(changes(AcquireRequest { heir_of, ..request(&key, &heir, TTL) }));
        let too_late = Some(vec![giver].into());
        assert!(!changes(AcquireRequest { heir_of: too_late, ..request(&key, &Token::random("late"), TTL) }));
    }

    #[test]
    fn an_heir_takes_the_place_of_one_of_these_with_a_larger_fence() {
        let (mut store, key, giver, heir) = scene();
        let before = granted(&store.acquire(1_000, &request(&key, &giver, TTL * 2)).acquired);
        let from = [Token::random("x"), giver.clone()];
        // The clock is behind, and the floor is forgotten.
        store.floors.take(10, &key);
        let after = granted(&adopt(&mut store, 10, request(&key, &heir, TTL), &from));
        assert_eq!(u64::from(after), u64::from(before) + 1);
        let holder = store.holder(10, &key).unwrap();
        assert_eq!((holder.whole_token(), holder.fence()), (Some(&heir), Some(after)));
        assert_eq!(
            holder.remaining(),
            Some(Duration::from_micros(990) + TTL * 2),
            "the key lives for no less than before"
        );
        assert_eq!(store.floors.get(10, &key), Some(after));
        // The repeated adoption has the same result, and the giver has nothing.
        assert_eq!(granted(&adopt(&mut store, 20, request(&key, &heir, TTL), &from)), after);
        assert_eq!(release(&mut store, 20, &key, &giver), Err(Denial::Taken));
        assert_eq!(store.renew(20, &claim(&key, &giver, TTL)), Err(Denial::Taken));
        assert_eq!(release(&mut store, 20, &key, &heir), Ok(()));
        assert!(
            matches!(adopt(&mut store, 30, request(&key, &heir, TTL), &from), Acquired::Gone),
            "nothing is created"
        );
        assert!(store.holder(30, &key).is_none());
    }

    #[test]
    fn who_is_heir_of_nobody_here_finds_the_holder() {
        let (mut store, key, holder, heir) = scene();
        let _fence = granted(&store.acquire(1_000, &request(&key, &holder, TTL)).acquired);
        let from = [Token::random("x")];
        let Acquired::Busy { holder: found, .. } = adopt(&mut store, 1_000, request(&key, &heir, TTL), &from) else {
            panic!("it is held")
        };
        assert_eq!(found.whole_token(), Some(&holder));
    }

    #[test]
    fn a_node_hands_over_after_its_restart_delay_and_issues_what_is_proposed() {
        let (_, key, giver, heir) = scene();
        let start = 1_000_000;
        let mut store = Store::started(start);
        let fence = Fence::try_from(5_u64).unwrap();
        let has_it = |store: &mut Store, now| {
            assert_eq!(store.repair(now, &claim(&key, &giver, TTL), fence, Duration::ZERO), Repaired::Done);
        };
        // Its data may be older than an adoption that it has forgotten.
        has_it(&mut store, start);
        let proposed = start + 2 * micros(DAY);
        let adopted = adopt(&mut store, start + 10, vote(&key, &heir, proposed), std::slice::from_ref(&giver));
        assert!(matches!(adopted, Acquired::Recovering(_)), "{adopted:?}");
        let now = start + micros(DAY);
        has_it(&mut store, now);
        let adopted = adopt(&mut store, now, vote(&key, &heir, proposed), std::slice::from_ref(&giver));
        assert_eq!(u64::from(granted(&adopted)), proposed);
        // A replay, even on a node that has been started since.
        store.restarted(now);
        let again = adopt(&mut store, now, vote(&key, &heir, proposed), &[giver]);
        assert_eq!(u64::from(granted(&again)), proposed);
    }
}
