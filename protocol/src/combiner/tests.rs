use std::sync::Arc;

use super::*;
use crate::{fence, key::Key, message::Voting, mode::Mode};

const PACE: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_secs(1);
const LIMITS: BatchLimits = BatchLimits { flights: 2, crowd: 8, pace: PACE, batch: 3, weight: 4_000 };

fn at(micros: u64) -> Time {
    Time::ZERO + Duration::from_micros(micros)
}

fn claim(name: &str) -> Claim {
    let (key, token) = (Key::of_lock(name), Token::random("host:7"));
    Claim { key, token, mode: Mode::Exclusive, ttl: LIMIT, life: LIMIT, fence: None, fence_memory: fence::MEMORY }
}

fn acquire(name: &str) -> Want {
    Want::Acquire(AcquireRequest { claim: claim(name), voting: None, heir_of: None })
}

/// Callers are known by their numbers.
fn enter(combiner: &mut Combiner<u32>, now: Time, caller: u32) -> Entry {
    combiner.enter(now, LIMIT, || (acquire("job"), caller))
}

/// A combiner with a lone flight under way, and these callers waiting.
fn busy(waiting: impl IntoIterator<Item = u32>) -> Combiner<u32> {
    let mut combiner = Combiner::new(LIMITS);
    assert_eq!(enter(&mut combiner, at(0), 100), Entry::Alone);
    for caller in waiting {
        assert!(matches!(enter(&mut combiner, at(1), caller), Entry::Queued(_)));
    }
    combiner
}

fn taken(combiner: &mut Combiner<u32>, now: Time) -> Option<Batch> {
    let (batch, late) = combiner.take(now, |_| true);
    assert!(late.is_empty(), "{late:?}");
    batch
}

#[test]
fn a_request_goes_alone_while_none_is_under_way() {
    let mut combiner = busy([1]);
    assert!(!combiner.is_idle() && !busy([]).is_idle() && Combiner::<u32>::new(LIMITS).is_idle());
    assert_eq!(combiner.sweep(at(2)).next, Some(at(0) + PACE), "the flight began at 0");
    assert!(combiner.goes_on(at(3)), "it takes the waiting requests");
    assert_eq!(taken(&mut combiner, at(3)).map(|batch| combiner.landed(&batch)), Some(vec![Some(1)]));
    assert!(!combiner.goes_on(at(4)), "nothing is left: it ends");
    assert_eq!(enter(&mut combiner, at(5), 2), Entry::Alone);
    assert!(matches!(enter(&mut combiner, at(6), 3), Entry::Queued(_)));
}

#[test]
fn what_waits_has_a_flight_of_its_own_when_nothing_moves() {
    let mut combiner = busy([1]);
    assert!(!combiner.sweep(at(999)).flies);
    let swept = combiner.sweep(at(1_000));
    assert!(swept.flies && swept.unsent.is_empty());
    // A flight that was requested takes all requests that come until it runs.
    assert!(matches!(enter(&mut combiner, at(5_000), 2), Entry::Queued(by) if by == at(5_000) + LIMIT));
    assert!(!combiner.sweep(at(5_000)).flies);
    let batch = taken(&mut combiner, at(6_000)).unwrap();
    assert!(matches!(enter(&mut combiner, at(6_500), 3), Entry::Queued(by) if by == at(7_000)));
    assert!(!combiner.sweep(at(6_999)).flies);
    assert_eq!(combiner.landed(&batch), [Some(1), Some(2)]);
    assert!(combiner.goes_on(at(6_999)), "it carries the third");
    assert!(!combiner.sweep(at(7_998)).flies && combiner.sweep(at(7_999)).flies);
}

#[test]
fn who_came_after_a_flight_began_to_wait_is_not_turned_away_with_it() {
    let mut combiner = busy([1]);
    assert!(combiner.goes_on(at(2)));
    let _queued = enter(&mut combiner, at(3), 2);
    assert_eq!(combiner.turn_away(at(2)), [1]);
    assert!(!combiner.sweep(at(9_000)).flies, "the other has this flight");
    assert!(combiner.goes_on(at(4)), "it goes on for the other");
    assert_eq!(combiner.turn_away(at(4)), [2]);
    assert_eq!(combiner.waiting.weight(), 0);
}

#[test]
fn who_has_just_come_waits_for_a_connection_with_the_same_flight() {
    let mut combiner = busy([1]);
    assert!(combiner.sweep(at(1_000)).flies);
    assert!(matches!(enter(&mut combiner, at(2_000), 2), Entry::Queued(_)));
    assert_eq!(combiner.turn_away(at(1_000)), [1]);
    assert!(combiner.goes_on(at(3_000)), "the second has time left");
    let swept = combiner.sweep(at(9_000));
    assert!(!swept.flies && swept.next == Some(at(2_000) + LIMIT), "it needs no other flight");
    assert_eq!(combiner.turn_away(at(3_000)), [2]);
    assert!(!combiner.goes_on(at(9_001)));
    assert_eq!(combiner.waiting.weight(), 0);
}

#[test]
fn what_a_full_batch_leaves_behind_is_looked_at_too() {
    let mut combiner = busy(1..=4);
    assert!(combiner.sweep(at(1_000)).flies);
    assert_eq!(combiner.looks_at(), Some(Time::NEVER), "a flight is requested");
    assert_eq!(taken(&mut combiner, at(1_100)).map(|batch| batch.wants.len()), Some(3));
    assert_eq!(combiner.looks_at(), Some(at(1_100) + PACE));
    assert_eq!(taken(&mut combiner, at(1_200)).map(|batch| batch.wants.len()), Some(1));
    assert_eq!(combiner.looks_at(), None);
}

#[test]
fn a_flight_that_was_called_for_in_vain_leaves_room_for_the_next_one() {
    let mut combiner = busy([1]);
    assert!(combiner.sweep(at(1_000)).flies);
    let _queued = enter(&mut combiner, at(1_001), 2);
    assert_eq!(combiner.turn_away(at(1_000)), [1], "the second waits for the same flight");
    let swept = combiner.sweep(at(1_001) + LIMIT);
    assert_eq!(swept.unsent, [(2, LIMIT)]);
    assert!(!combiner.goes_on(at(1_002) + LIMIT));
    let later = at(2_000) + LIMIT;
    let _queued = enter(&mut combiner, later, 3);
    let _queued = enter(&mut combiner, later, 4);
    let _queued = enter(&mut combiner, later, 5);
    assert!(combiner.sweep(later + PACE).flies);
}

#[test]
fn who_comes_later_does_not_overtake_what_waits() {
    let mut combiner = busy([1]);
    assert!(matches!(enter(&mut combiner, at(2_000), 2), Entry::Queued(_)), "a flight is due, but for the first");
    assert!(combiner.sweep(at(2_000)).flies);
    let batch = taken(&mut combiner, at(2_000)).unwrap();
    assert_eq!(combiner.landed(&batch), [Some(1), Some(2)]);
}

#[test]
fn a_batch_has_no_more_requests_than_it_may() {
    let mut combiner = busy(0..7);
    for expected in [vec![Some(0), Some(1), Some(2)], vec![Some(3), Some(4), Some(5)], vec![Some(6)]] {
        assert!(combiner.goes_on(at(10)));
        let batch = taken(&mut combiner, at(10)).unwrap();
        assert_eq!(combiner.landed(&batch), expected);
    }
    assert!(!combiner.goes_on(at(10)));
}

#[test]
fn the_queue_is_full_when_it_weighs_what_it_may() {
    let Claim { key, token, .. } = claim("job");
    let each = EACH + key.lock().len() + token.as_str().len();
    assert_eq!(acquire("job").weight(), each);
    let mut combiner = Combiner::new(BatchLimits { flights: 1, weight: 2 * each, ..LIMITS });
    assert_eq!(enter(&mut combiner, at(0), 0), Entry::Alone);
    for caller in [1, 2] {
        assert!(matches!(enter(&mut combiner, at(1), caller), Entry::Queued(_)));
    }
    assert_eq!(enter(&mut combiner, at(1), 3), Entry::Full);
}

#[test]
fn the_queue_weighs_no_more_than_it_may() {
    let mut combiner = busy([]);
    let mut entered = 0;
    while enter(&mut combiner, at(1), entered) != Entry::Full {
        entered += 1;
        assert!(entered < 100);
    }
    assert!(entered > 5, "{entered}");
    let mut left = entered;
    while let Some(batch) = taken(&mut combiner, at(2)) {
        left -= u32::try_from(batch.wants.len()).unwrap();
    }
    assert_eq!((left, combiner.waiting.weight()), (0, 0), "requests taken out weigh nothing");
}

#[test]
fn fences_of_another_memory_wait_for_the_next_batch() {
    let mut combiner = busy([1]);
    let claim_of_other = Claim { fence_memory: Duration::ZERO, ..claim("job") };
    let other = Want::Acquire(AcquireRequest { claim: claim_of_other, voting: None, heir_of: None });
    let _queued = combiner.enter(at(1), LIMIT, || (other, 2));
    let _queued = combiner.enter(at(1), LIMIT, || (Want::Release(claim("job")), 3));
    for expected in [vec![Some(1)], vec![Some(2), Some(3)]] {
        let batch = taken(&mut combiner, at(2)).unwrap();
        assert_eq!(combiner.landed(&batch), expected);
    }
}

#[test]
fn what_is_over_its_time_is_not_sent() {
    let mut combiner = busy([1]);
    let _queued = combiner.enter(at(1), LIMIT / 2, || (acquire("job"), 2));
    let (half, end) = (at(1) + LIMIT / 2, at(1) + LIMIT);
    let swept = combiner.sweep(half);
    assert_eq!((swept.unsent, swept.unknown), (vec![(2, LIMIT / 2)], vec![]));
    let (batch, late) = combiner.take(end, |_| true);
    assert!(batch.is_none());
    assert_eq!((late, combiner.waiting.weight()), (vec![(1, LIMIT)], 0));
}

#[test]
fn what_is_in_the_air_is_unknown_when_its_time_is_over_and_not_sent_again() {
    let mut combiner = busy([1]);
    let _queued = combiner.enter(at(1), LIMIT / 2, || (acquire("other"), 2));
    let mut batch = taken(&mut combiner, at(2)).unwrap();
    let half = at(1) + LIMIT / 2;
    assert_eq!(combiner.sweep(at(3)).next, Some(half));
    let swept = combiner.sweep(half);
    assert_eq!((swept.unsent, swept.unknown), (vec![], vec![(2, LIMIT / 2)]));
    assert!(combiner.keep_unanswered(&mut batch));
    let left: Vec<_> = batch.wants.iter().map(|want| want.claim().key.lock().to_owned()).collect();
    assert_eq!(left, ["job"]);
    assert_eq!(combiner.landed(&batch), [Some(1)]);
    assert!(!combiner.keep_unanswered(&mut batch), "it has come down");
}

#[test]
fn a_caller_that_was_swept_out_of_the_air_is_told_nothing_more() {
    let mut combiner = busy([1, 2]);
    let batch = taken(&mut combiner, at(2)).unwrap();
    let swept = combiner.sweep(at(1) + LIMIT);
    assert_eq!(swept.unknown.len(), 2);
    assert_eq!((swept.next, combiner.landed(&batch)), (None, vec![None, None]));
}

#[test]
fn whose_caller_has_gone_is_not_sent() {
    let mut combiner = busy([1, 2, 3, 4]);
    let (batch, late) = combiner.take(at(2), |caller| caller % 2 == 0);
    let batch = batch.unwrap();
    assert_eq!((combiner.landed(&batch), late), (vec![Some(2), Some(4)], vec![]));
    assert_eq!(combiner.waiting.weight(), 0);
}

#[test]
fn an_acquire_that_is_taken_back_is_not_sent() {
    let mut combiner = busy([1]);
    let (mine, release) = (claim("mine"), claim("released"));
    let wanted = AcquireRequest { claim: mine.clone(), voting: None, heir_of: None };
    let _queued = combiner.enter(at(1), LIMIT, || (Want::Acquire(wanted), 2));
    let _queued = combiner.enter(at(1), LIMIT, || (Want::Release(release.clone()), 3));
    assert_eq!(combiner.withdraw(&mine.token), Some(2));
    assert_eq!(combiner.withdraw(&mine.token), None);
    assert_eq!(combiner.withdraw(&release.token), None, "a release is not taken back");
    let batch = taken(&mut combiner, at(2)).unwrap();
    assert_eq!(combiner.landed(&batch), [Some(1), Some(3)]);
}

#[test]
fn a_flight_that_crashes_leaves_nobody_behind() {
    let mut combiner = busy([1, 2, 3]);
    let batch = taken(&mut combiner, at(2)).unwrap();
    let _queued = enter(&mut combiner, at(3), 4);
    assert_eq!(combiner.crash(Some(&batch)), (vec![4], vec![1, 2, 3]));
    assert!(!combiner.goes_on(at(4)), "the other flight finds nothing");
    assert!(combiner.is_idle());
}

#[test]
fn a_flight_that_was_called_for_and_crashes_leaves_room_for_the_next_one() {
    let mut combiner = busy([1]);
    assert!(combiner.sweep(at(1_000)).flies);
    assert_eq!(combiner.crash(None), (vec![1], vec![]));
    assert!(matches!(enter(&mut combiner, at(1_100), 2), Entry::Queued(by) if by == at(1_000) + PACE));
    assert!(combiner.sweep(at(1_000) + PACE).flies);
}

#[test]
fn what_knows_no_fence_or_keeps_the_key_goes_alone() {
    let claim = claim("job");
    let voting = Some(Voting { restart_delay: Duration::ZERO, proposal: None });
    let known = Claim { fence: Some(fence::ZERO), ..claim.clone() };
    let acquire = |voting| Request::Acquire(AcquireRequest { claim: claim.clone(), voting, heir_of: None });
    let release = |claim: &Claim, mode| Request::Release { claim: claim.clone(), mode };
    for voting in [None, voting] {
        assert!(matches!(Want::of(&acquire(voting)), Some(Want::Acquire(request)) if request.voting == voting));
    }
    assert!(matches!(Want::of(&release(&known, ReleaseMode::Delete)), Some(Want::Release(_))));
    let retain = ReleaseMode::Retain(LIMIT, Token::random("stays"));
    let heir_of = Some(Arc::new(vec![Token::random("gives")]));
    for alone in [
        Request::Acquire(AcquireRequest { claim: claim.clone(), voting: None, heir_of }),
        release(&claim, ReleaseMode::Delete),
        release(&known, ReleaseMode::leave()),
        release(&known, retain),
        Request::Holder(claim.key.clone()),
    ] {
        assert!(Want::of(&alone).is_none(), "{alone:?}");
    }
    for votes in [false, true] {
        assert_eq!(Want::undone_by(&release(&claim, ReleaseMode::Delete), votes), Some(&claim.token));
        let of_known = votes.then_some(&claim.token);
        assert_eq!(Want::undone_by(&release(&known, ReleaseMode::Delete), votes), of_known, "a majority has answered");
    }
}

#[test]
fn votes_of_another_delay_wait_for_the_next_batch() {
    let mut combiner = busy([1]);
    let vote = |restart_delay| {
        let voting = Some(Voting { restart_delay, proposal: None });
        Want::Acquire(AcquireRequest { claim: claim("job"), voting, heir_of: None })
    };
    for (caller, delay) in [(2, LIMIT), (3, LIMIT), (4, Duration::ZERO)] {
        let _queued = combiner.enter(at(1), LIMIT, || (vote(delay), caller));
    }
    for expected in [vec![Some(1)], vec![Some(2), Some(3)], vec![Some(4)]] {
        let batch = taken(&mut combiner, at(2)).unwrap();
        assert_eq!(combiner.landed(&batch), expected);
    }
}

#[test]
fn who_looks_for_no_answer_holds_up_nobody() {
    let mut combiner = Combiner::new(LIMITS);
    let token = Token::random("host:7");
    assert_eq!(enter(&mut combiner, at(0), 0), Entry::Alone);
    combiner.may_set_aside(token.clone());
    assert!(matches!(enter(&mut combiner, at(1), 1), Entry::Queued(_)));
    assert!(!combiner.set_aside(&Token::random("host:7")), "no lone request goes for it");
    assert!(combiner.set_aside(&token) && combiner.goes_on(at(2)), "the queue goes in its place");
    assert_eq!(taken(&mut combiner, at(2)).map(|batch| combiner.landed(&batch)), Some(vec![Some(1)]));
    assert!(!combiner.set_aside(&token), "when its answer comes, no flight ends");
    assert!(!combiner.goes_on(at(3)), "the batch's flight has ended");
    assert_eq!(enter(&mut combiner, at(4), 2), Entry::Alone);
}

/// Invariant 1: a crowd need not wait for the pace, while fewer than the maximum of flights are under way.
#[test]
fn a_crowd_gets_one_more_flight() {
    let mut combiner = busy(1..8);
    assert!(!combiner.sweep(at(2)).flies);
    assert_eq!(enter(&mut combiner, at(2), 8), Entry::Queued(at(0)), "the eighth that waits");
    assert!(combiner.sweep(at(2)).flies);
    assert_eq!(enter(&mut combiner, at(3), 9), Entry::Queued(at(3) + LIMIT), "one is requested");
    let batch = taken(&mut combiner, at(4)).unwrap();
    assert_eq!(batch.wants.len(), 3);
    for caller in 10..16 {
        assert!(matches!(enter(&mut combiner, at(5), caller), Entry::Queued(_)));
    }
    assert!(!combiner.sweep(at(5)).flies, "two are the most");
    assert_eq!(combiner.landed(&batch), [Some(1), Some(2), Some(3)]);
    assert!(combiner.goes_on(at(6)), "a crowd still waits");
}

/// Invariant 1: flights that follow each other closely become one.
#[test]
fn a_flight_that_lands_right_after_another_began_ends() {
    let flies = |later: Time| {
        let mut combiner = busy([1]);
        assert!(combiner.sweep(at(1_000)).flies, "the lone flight is held up");
        let first = taken(&mut combiner, at(1_000)).unwrap();
        let _queued = enter(&mut combiner, at(1_001), 2);
        assert!(combiner.goes_on(at(2_100)), "the lone flight has landed, and takes the queue");
        let second = taken(&mut combiner, later).unwrap();
        let _queued = enter(&mut combiner, later, 3);
        assert_eq!(combiner.landed(&first), [Some(1)]);
        let goes_on = combiner.goes_on(at(3_200));
        (combiner, second, goes_on)
    };
    let (_, _, goes_on) = flies(at(2_100));
    assert!(goes_on, "the other began a while ago, and may be held up");
    let (mut combiner, second, goes_on) = flies(at(2_900));
    assert!(!goes_on, "the queue goes with the other");
    assert_eq!(combiner.landed(&second), [Some(2)]);
    assert!(combiner.goes_on(at(3_300)), "no other is under way");
    assert_eq!(taken(&mut combiner, at(3_300)).map(|batch| combiner.landed(&batch)), Some(vec![Some(3)]));
    assert!(!combiner.goes_on(at(3_400)) && combiner.is_idle());
}

#[test]
fn an_error_of_the_whole_is_nobodys_and_silence_is_everybodys() {
    assert_eq!(after_failure(Failure::refused("NOPERM")), BatchVerdict::Alone);
    assert_eq!(after_failure(Failure::unavailable("LOADING")), BatchVerdict::Alone);
    assert_eq!(after_failure(Failure::refused("NOPERM").halfway()), BatchVerdict::Alone, "nothing was written by then");
    for failure in [Failure::unsent("down"), Failure::unknown("silent")] {
        assert_eq!(after_failure(failure.clone()), BatchVerdict::Failed(failure));
    }
}

#[test]
fn whose_time_ended_while_nothing_ran_has_it_once_more() {
    let mut combiner = busy([1]);
    let mut batch = taken(&mut combiner, at(2)).unwrap();
    let _queued = combiner.enter(at(3), LIMIT, || (acquire("job"), 2));
    let _queued = combiner.enter(at(3), 10 * LIMIT, || (acquire("job"), 3));
    let now = at(0) + 5 * LIMIT;
    combiner.stood_still(now);
    let swept = combiner.sweep(now);
    assert!(swept.unsent.is_empty() && swept.unknown.is_empty(), "{swept:?}");
    assert!(combiner.keep_unanswered(&mut batch));
    assert_eq!(combiner.landed(&batch), [Some(1)]);
    let swept = combiner.sweep(now + LIMIT);
    assert_eq!(swept.unsent, [(2, LIMIT)], "once");
    let swept = combiner.sweep(at(3) + 10 * LIMIT);
    assert_eq!(swept.unsent, [(3, 10 * LIMIT)], "its time had not ended");
}
