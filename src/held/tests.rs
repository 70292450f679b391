use leasehold_protocol::{
    acquisition::{Ask, Config},
    fence,
    jitter::Jitter,
    key::Key,
    message::Denial,
    mode::Mode,
    outliving::Outliving,
    renewal::LeaseConfig,
};

use super::*;

const TTL: Duration = Duration::from_secs(3);

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn held() -> (Arc<Hold>, Signal) {
    held_for(Outliving::NOTHING)
}

/// A hold whose key outlives its lease by this.
fn held_for(outliving: Outliving) -> (Arc<Hold>, Signal) {
    held_by(LeaseConfig { ttl: TTL, max_hold: Some(TTL), patience: TTL / 3, stall_after: None }, outliving)
}

fn held_by(lease: LeaseConfig, outliving: Outliving) -> (Arc<Hold>, Signal) {
    let (route, jitter) = (Route::Home, Jitter::from_seed(1));
    let config = Config { lease, outliving, nodes: 1, route, renew_first_after: None, jitter };
    let Some(acquisition) = Acquisition::granted(config, Time::ZERO, Time::ZERO, fence::ZERO) else {
        panic!("it is granted in time")
    };
    let (key, fence_memory, life) = (Key::of_lock("job"), fence::MEMORY, outliving.life(TTL, Duration::ZERO));
    let claim =
        Claim { key, token: random::token("host:7"), mode: Mode::Exclusive, ttl: TTL, life, fence: None, fence_memory };
    Hold::new(claim, fence::ZERO, None, acquisition, Group::default())
}

fn renewed(hold: &Arc<Hold>, millis: u64, owned: Result<(), Denial>) -> Actions {
    let sent = Sent { node: 0, ask: Ask::Renew, at: at(millis) };
    hold.on_reply(at(millis), sent, Ok(Said::Owned(owned))).actions
}

/// Releases a lease after `close`, when nothing is left to do. Returns the outcome of its release.
fn leaves(hold: &Arc<Hold>, signal: &Signal) -> Result<(), LossReason> {
    let (leaving, Reaction { actions, news }) = hold.leave(at(3_100), signal);
    assert!(actions.undo.is_none() && news.is_none());
    let AfterLast::Nothing(outcome) = leaving else { panic!("it would ask on a closed connection") };
    outcome.map_err(|lost| lost.reason())
}

fn closes(hold: &Arc<Hold>, millis: u64) -> bool {
    hold.close(at(millis)).actions.undo.is_some()
}

#[test]
fn a_key_is_as_our_last_renewal_left_it_while_it_lives_for_as_long() {
    let ((hold, _signal), now, milli) = (held(), at(100), Duration::from_millis(1));
    let value = hold.claim.token.value(fence::ZERO);
    let is_as_left = |left| hold.is_as_left(&value, left, now);
    let least = hold.remaining(now);
    assert!(is_as_left(least) && is_as_left(TTL), "{least:?}");
    assert!(!is_as_left(least.saturating_sub(milli)), "somebody shortened it");
    assert!(!is_as_left(TTL + milli), "somebody lengthened it");
    assert!(!hold.is_as_left(&random::token("host:7").value(fence::ZERO), least, now), "it is another's");
}

#[test]
fn a_key_that_outlives_its_lease_is_as_our_last_renewal_left_it_for_longer() {
    let (delay, interval, milli) = (Duration::from_secs(2), Duration::from_secs(60), Duration::from_millis(1));
    for (outliving, most) in [
        (Outliving::new(delay, Duration::ZERO), TTL + delay),
        // Longer than at the last renewal, because the extension changed nothing.
        (Outliving::new(Duration::ZERO, interval), interval),
    ] {
        let ((hold, _signal), now) = (held_for(outliving), at(100));
        let value = hold.claim.token.value(fence::ZERO);
        assert!(hold.is_as_left(&value, hold.remaining(now), now) && hold.is_as_left(&value, most, now));
        assert!(!hold.is_as_left(&value, most + milli, now), "somebody lengthened it");
    }
}

/// Its request may arrive after that of an earlier renewal whose answer is read later.
#[test]
fn a_check_leaves_the_key_the_life_that_an_unanswered_renewal_gives_it() {
    let lease = LeaseConfig { ttl: TTL, max_hold: None, patience: TTL / 3, stall_after: Some(TTL / 2) };
    let (hold, _signal) = held_by(lease, Outliving::NOTHING);
    let life = |millis| hold.renewed_claim(at(millis), at(millis)).life;
    // At half of the span, at a third of the TTL, and at the end of the span.
    assert_eq!([750, 1_000, 1_500].map(|millis| hold.tick(at(millis)).actions.renew), [false, true, false]);
    assert_eq!(life(1_000), TTL);
    hold.hint(at(1_600));
    assert!(hold.tick(at(1_600)).actions.renew, "stalled work is checked");
    assert_eq!(life(1_600), Duration::ZERO);
    let _nothing = renewed(&hold, 1_000, Ok(()));
    assert!(hold.remaining(at(1_600)) > TTL * 3 / 4, "the renewal counts");
}

#[test]
fn each_request_has_what_is_left_of_the_life() {
    let secs = Duration::from_secs;
    let lives = |outliving| [0, 1_000, 9_000].map(|millis| held_for(outliving).0.claim_at(at(millis)).life);
    assert_eq!(lives(Outliving::NOTHING), [TTL; 3]);
    assert_eq!(lives(Outliving::new(secs(2), Duration::ZERO)), [TTL + secs(2); 3]);
    assert_eq!(lives(Outliving::new(Duration::ZERO, secs(10))), [secs(10), secs(9), TTL]);
    let (hold, _signal) = held_for(Outliving::new(secs(2), secs(10)));
    assert_eq!(hold.remaining(at(0)), held().0.remaining(at(0)), "no deadline depends on it");
    hold.try_out();
    assert_eq!(hold.claim_at(at(1_000)).life, TTL + secs(2), "on trial the interval does not count");
    let life = || hold.claim_at(at(1_000)).life;
    let lengthening = hold.lengthen();
    assert_eq!((life(), hold.is_short(at(1_000))), (secs(9), true));
    drop(lengthening);
    assert_eq!((life(), hold.is_short(at(1_000))), (TTL + secs(2), true), "it was not confirmed");
    let first = hold.lengthen();
    drop(hold.lengthen());
    assert_eq!((life(), hold.is_short(at(1_000))), (secs(9), true), "another one is under way");
    first.confirm();
    assert_eq!((life(), hold.is_short(at(1_000))), (secs(9), false));
    assert_eq!(hold.release_mode(at(1_000), Duration::ZERO), ReleaseMode::Delete, "no work has begun");
    hold.try_out_again();
    assert_eq!((life(), hold.is_short(at(1_000))), (TTL + secs(2), true), "another lock was lost");
    hold.begin();
    hold.try_out_again();
    assert_eq!((life(), hold.is_short(at(1_000))), (secs(9), false), "its work has begun");
}

#[test]
fn a_release_retains_the_key_for_what_is_left_of_the_interval() {
    let (secs, none) = (Duration::from_secs, Duration::ZERO);
    let kept = |hold: &Hold, millis, keep| match hold.release_mode(at(millis), keep) {
        ReleaseMode::Retain(rest, stays) => {
            assert_eq!(stays.label(), "host:7 (released)");
            rest
        }
        mode => {
            assert_eq!(mode, ReleaseMode::Delete);
            none
        }
    };
    let (hold, _signal) = held_for(Outliving::new(secs(5), secs(10)));
    assert_eq!(
        [0, 1_000, 9_999, 10_000].map(|millis| kept(&hold, millis, none)),
        [secs(10), secs(9), Duration::from_millis(1), none]
    );
    assert_eq!([1, 20].map(|keep| kept(&hold, 1_000, secs(keep))), [9, 20].map(secs), "the longer of both");
    hold.keep_for(at(0), secs(30));
    assert_eq!(kept(&hold, 1_000, none), secs(29));
    // After a loss, a `keep_for` does not apply any more, but the whole interval does.
    let _reaction = hold.tick(at(3_000));
    assert_eq!(hold.end().unwrap().reason(), LossReason::Expired);
    assert_eq!(kept(&hold, 4_000, none), secs(6));
    let (delayed, _signal) = held_for(Outliving::new(secs(5), none));
    assert_eq!(kept(&delayed, 1_000, none), none, "a release under a delay frees at once");
}

#[test]
fn close_leaves_what_a_loss_has_left() {
    let (hold, _signal) = held_for(Outliving::new(Duration::from_secs(5), Duration::ZERO));
    assert!(hold.tick(at(2_990)).actions.undo.is_none() && !closes(&hold, 2_995));
    let (hold, _signal) = held_for(Outliving::new(Duration::ZERO, Duration::from_secs(60)));
    let undo = hold.close(at(1)).actions.undo.unwrap();
    assert!(matches!(undo.mode, ReleaseMode::Retain(rest, _) if rest == Duration::from_millis(59_999)), "{undo:?}");
}

#[test]
fn close_releases_a_held_lease_once() {
    let (hold, signal) = held();
    assert!(closes(&hold, 1) && !closes(&hold, 2));
    assert_eq!(leaves(&hold, &signal), Err(LossReason::Closed));
}

#[test]
fn close_releases_a_lease_that_has_reached_its_max_hold() {
    let (hold, signal) = held();
    let _renewed = renewed(&hold, 1_000, Ok(()));
    let _reaction = hold.tick(at(3_000));
    assert_eq!(hold.end().unwrap().reason(), LossReason::MaxHold);
    assert!(closes(&hold, 3_050) && !closes(&hold, 3_060));
    assert_eq!(leaves(&hold, &signal), Ok(()));
}

#[test]
fn close_releases_a_lease_that_was_denied() {
    let (hold, signal) = held();
    let denied = renewed(&hold, 1_000, Err(Denial::Gone));
    assert!(denied.undo.is_none(), "what is left of it stays while it is held");
    assert!(closes(&hold, 3_050) && !closes(&hold, 3_060));
    assert_eq!(leaves(&hold, &signal), Err(LossReason::Deleted));
}

#[test]
fn a_lease_lets_go_once() {
    let (hold, signal) = held();
    let (SharedEntry::Shared(other), _) = hold.enter(Time::ZERO) else { panic!("it is held") };
    for _ in 0..2 {
        assert!(matches!(hold.leave(at(1), &signal).0, AfterLast::Nothing(Ok(()))));
        assert_eq!(hold.holds(), 1, "the other one holds on");
    }
    assert!(matches!(hold.leave(at(2), &other).0, AfterLast::Release { .. }));
    let (leaving, Reaction { actions, news }) = hold.leave(at(3), &other);
    assert!(matches!(leaving, AfterLast::Nothing(Ok(()))), "a drop after the release is not a loss");
    assert!(actions.undo.is_none() && news.is_none());
}

#[test]
fn close_releases_nothing_that_is_released_already() {
    let (hold, signal) = held();
    let (leaving, _) = hold.leave(at(1), &signal);
    assert!(matches!(leaving, AfterLast::Release { .. }) && !closes(&hold, 2));
    let (hold, signal) = held();
    // The release was already ordered when the lease ended.
    assert!(hold.tick(at(2_990)).actions.undo.is_some() && !closes(&hold, 2_995));
    assert_eq!(leaves(&hold, &signal), Err(LossReason::Expired));
}
