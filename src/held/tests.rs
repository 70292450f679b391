use leasehold_protocol::{
    acquisition::{Ask, Config},
    fence,
    jitter::Jitter,
    key::Key,
    message::Denial,
    renewal::LeaseConfig,
};

use super::*;

const TTL: Duration = Duration::from_secs(3);

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn held() -> (Arc<Hold>, Signal) {
    let lease = LeaseConfig { ttl: TTL, max_hold: Some(TTL), patience: TTL / 3 };
    let (route, jitter) = (Route::Home, Jitter::from_seed(1));
    let config = Config { lease, nodes: 1, route, renew_first_after: None, jitter };
    let Some(acquisition) = Acquisition::granted(config, Time::ZERO, Time::ZERO, fence::ZERO) else {
        panic!("it is granted in time")
    };
    let (key, fence_memory) = (Key::of_lock("job"), fence::MEMORY);
    let claim = Claim { key, token: random::token("host:7"), ttl: TTL, fence: None, fence_memory };
    Hold::new(claim, fence::ZERO, None, acquisition, Group::default())
}

fn renewed(hold: &Arc<Hold>, millis: u64, owned: Result<(), Denial>) -> Actions {
    let sent = Sent { node: 0, ask: Ask::Renew, at: at(millis) };
    hold.on_reply(at(millis), sent, Ok(Said::Owned(owned))).actions
}

/// Lets a lease go after `close`: nothing is left to do, and its release says this.
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
fn close_releases_nothing_that_is_released_already() {
    let (hold, signal) = held();
    let (leaving, _) = hold.leave(at(1), &signal);
    assert!(matches!(leaving, AfterLast::Release { .. }) && !closes(&hold, 2));
    let (hold, signal) = held();
    // Its end has ordered the release.
    assert!(hold.tick(at(2_990)).actions.undo.is_some() && !closes(&hold, 2_995));
    assert_eq!(leaves(&hold, &signal), Err(LossReason::Expired));
}
