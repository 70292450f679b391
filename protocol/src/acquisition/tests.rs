#![allow(clippy::unnecessary_wraps, reason = "they stand beside answers that are none")]

use std::sync::Arc;

mod outliving;

use super::*;
use crate::{attempt::Verdict, forced, release_tally::ReleaseEnd};
use crate::{holder::Holder, tally::WakeCondition, token::Token};
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(3);

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn fence(number: u64) -> Fence {
    Fence::try_from(number).unwrap_or(crate::fence::ZERO)
}

fn config(nodes: usize) -> Config {
    let lease = LeaseConfig { ttl: TTL, max_hold: None, patience: TTL / 3, stall_after: None };
    Config {
        lease,
        outliving: Outliving::NOTHING,
        nodes,
        route: Route::Home,
        renew_first_after: None,
        jitter: Jitter::from_seed(1),
    }
}

fn attempt(nodes: usize) -> Acquisition {
    Acquisition::new(config(nodes), at(0))
}

fn sent(node: usize, ask: Ask, millis: u64) -> Sent {
    Sent { node, ask, at: at(millis) }
}

fn vote(acquired: Acquired) -> Result<Said, Failure> {
    Ok(Said::Vote { acquired, overtaken: false })
}

fn granted(number: u64) -> Result<Said, Failure> {
    vote(Acquired::Granted(fence(number)))
}

fn busy() -> Result<Said, Failure> {
    vote(Acquired::Busy { holder: Holder::default(), tracked: false })
}

fn unanswered() -> Failure {
    Failure::unknown("no answer")
}

fn unsent() -> Failure {
    Failure::unsent("no connection")
}

fn voted(acquisition: &mut Acquisition, millis: u64, node: usize, said: Result<Said, Failure>) -> Actions {
    acquisition.on_reply(at(millis), sent(node, Ask::Acquire, 0), said)
}

fn owned(owned: Owned) -> Result<Said, Failure> {
    Ok(Said::Owned(owned))
}

/// A lease with the fence 7: on three nodes, of which the last has not voted; or on one.
fn held(nodes: usize) -> Acquisition {
    let mut acquisition = attempt(nodes);
    for node in 0..nodes.min(2) {
        let _wait = voted(&mut acquisition, 1, node, granted(7));
    }
    assert!(acquisition.is_held(), "a majority has granted");
    acquisition
}

/// A lease on two of three nodes. The third cannot have it.
fn held_on_two() -> Acquisition {
    let mut acquisition = attempt(3);
    let _wait = voted(&mut acquisition, 1, 2, Err(unsent()));
    for node in 0..2 {
        let _wait = voted(&mut acquisition, 1, node, granted(7));
    }
    acquisition
}

fn renewed(acquisition: &mut Acquisition, millis: u64, node: usize, said: Result<Said, Failure>) -> Actions {
    acquisition.on_reply(at(millis), sent(node, Ask::Renew, millis), said)
}

/// A lease on three nodes that is being released, on this route.
fn releasing(route: Route, mode: ReleaseMode) -> Acquisition {
    let mut acquisition = held_on_two();
    let (leaving, _) = acquisition.let_go(at(10));
    assert_eq!(leaving, Leaving::Release { is_forgiven: false });
    assert!(acquisition.release(route, mode).release && acquisition.is_releasing());
    acquisition
}

const FIRST: Ask = Ask::Release { only_sending: true, is_last: false };

fn released(acquisition: &mut Acquisition, node: usize, ask: Ask, said: Result<Said, Failure>) -> Actions {
    acquisition.on_reply(at(20), sent(node, ask, 11), said)
}

fn nodes(nodes: &[usize]) -> Nodes {
    nodes.iter().copied().collect()
}

fn token() -> Token {
    Token::new(Uuid::from_u128(7), "host:7")
}

fn undo(nodes: Nodes, route: Route, is_attempt: bool) -> Option<Undo> {
    Some(Undo { nodes, route, mode: ReleaseMode::Delete, is_attempt })
}

#[test]
fn a_release_after_a_failover_says_what_has_lost_the_key() {
    for taken_over in [false, true] {
        let mut acquisition = held(1);
        if taken_over {
            acquisition.note_takeover(at(5));
        }
        let (_leaving, _) = acquisition.let_go(at(10));
        let _sent = acquisition.release(Route::Home, ReleaseMode::Delete);
        let told = released(&mut acquisition, 0, FIRST, Ok(Said::Owned(Err(Denial::Gone)))).news;
        let reason = if taken_over { LossReason::FailedOver } else { LossReason::Deleted };
        assert!(matches!(&told, Some(News::Released(ReleaseEnd::Lost(loss))) if loss.reason == reason), "{told:?}");
    }
}

/// Whether there is nothing to do.
fn is_idle(actions: &Actions) -> bool {
    let Actions { raise, renew, repair, reconnect, release, release_again, undo, news } = actions;
    raise.is_none()
        && !renew
        && repair.is_empty()
        && reconnect.is_empty()
        && !release
        && release_again.is_none()
        && undo.is_none()
        && news.is_none()
}

#[test]
fn a_majority_of_votes_is_a_lease() {
    let mut acquisition = attempt(3);
    assert!(acquisition.is_attempting() && !acquisition.is_held() && acquisition.fence().is_none());
    assert_eq!((acquisition.valid_until(), acquisition.next_tick(), acquisition.phase()), (Time::ZERO, None, None));
    assert!(is_idle(&voted(&mut acquisition, 1, 0, granted(7))));
    let actions = voted(&mut acquisition, 2, 1, granted(7));
    assert!(matches!(actions.news, Some(News::Acquired(won)) if won == fence(7)));
    assert!(acquisition.is_held() && !acquisition.is_attempting() && !acquisition.is_over());
    assert_eq!((acquisition.fence(), acquisition.sent()), (Some(fence(7)), at(0)));
    assert_eq!(acquisition.phase(), Some(Phase::Held));
    assert!(acquisition.valid_until() > at(2_900) && acquisition.valid_until() < at(3_000));
    assert!(acquisition.is_confirmed(at(0)) && !acquisition.is_confirmed(at(1)));
    assert!(acquisition.next_tick().is_some_and(|tick| tick > at(800) && tick < at(1_001)));
}

#[test]
fn a_lease_counts_from_when_its_attempt_was_sent() {
    let mut acquisition = Acquisition::new(config(1), at(100));
    let _won = voted(&mut acquisition, 101, 0, granted(7));
    assert_eq!(acquisition.sent(), at(100));
    assert!(acquisition.is_confirmed(at(100)) && !acquisition.is_confirmed(at(101)));
    assert!(acquisition.valid_until() > at(3_000) && acquisition.valid_until() < at(3_100));
}

#[test]
fn different_fences_are_raised_before_it_is_won() {
    let mut acquisition = attempt(3);
    let _wait = voted(&mut acquisition, 1, 0, granted(7));
    let actions = voted(&mut acquisition, 1, 1, granted(9));
    assert_eq!(actions.raise, Some((fence(9), nodes(&[0]))));
    let actions = acquisition.on_reply(at(2), sent(0, Ask::Raise, 1), owned(Ok(())));
    assert!(matches!(actions.news, Some(News::Acquired(won)) if won == fence(9)));
    assert!(is_idle(&acquisition.on_reply(at(2), sent(1, Ask::Raise, 1), owned(Ok(())))), "too late");
}

#[test]
fn a_lease_is_renewed_early_where_that_tells_of_changes() {
    let mut acquisition = Acquisition::new(Config { renew_first_after: Some(TTL / 10), ..config(1) }, at(0));
    let _won = voted(&mut acquisition, 1, 0, granted(7));
    assert_eq!(acquisition.next_tick(), Some(at(300)));
}

#[test]
fn a_lease_of_stalled_work_is_checked_until_there_is_progress() {
    let mut watched = config(1);
    watched.lease.stall_after = Some(Duration::from_millis(500));
    let mut acquisition = Acquisition::new(watched, at(0));
    assert_eq!(acquisition.stall_after(), None, "it is not held yet");
    let _won = voted(&mut acquisition, 1, 0, granted(7));
    assert_eq!((acquisition.stall_after(), held(1).stall_after()), (Some(Duration::from_millis(500)), None));
    assert!(!acquisition.awaits_progress() && !acquisition.is_check(at(0)));
    // The process runs all the time.
    for now in (50..=1_000).step_by(50) {
        let _slow = acquisition.on_tick(at(now));
    }
    assert!(acquisition.awaits_progress() && acquisition.is_check(at(1_000)), "a third of the TTL has passed");
    acquisition.progressed(at(1_001));
    let _renewal = acquisition.on_tick(at(1_001));
    assert!(!acquisition.awaits_progress() && !acquisition.is_check(at(1_001)));
}

#[test]
fn a_lease_of_stalled_work_is_undone_when_its_holder_lets_go() {
    let mut watched = config(1);
    watched.lease.stall_after = Some(Duration::from_millis(500));
    let mut acquisition = Acquisition::new(watched, at(0));
    let _won = voted(&mut acquisition, 1, 0, granted(7));
    for now in (50..=2_950).step_by(50) {
        assert!(acquisition.on_tick(at(now)).undo.is_none(), "the job has the rest of its TTL to stop");
    }
    let actions = acquisition.expire_if_due(at(2_990));
    assert!(matches!(actions.news, Some(News::Phase)) && actions.undo.is_none());
    let (leaving, actions) = acquisition.let_go(at(2_991));
    assert_eq!((leaving, actions.undo), (Leaving::Nothing, undo(nodes(&[0]), Route::Keeper, false)));
}

#[test]
fn an_attempt_that_is_not_won_is_undone_where_it_was_granted_or_may_have_been() {
    let mut acquisition = attempt(5);
    let _wait = voted(&mut acquisition, 1, 0, granted(7));
    let _wait = voted(&mut acquisition, 1, 1, Err(unanswered()));
    let _wait = voted(&mut acquisition, 1, 2, busy());
    let actions = voted(&mut acquisition, 1, 3, busy());
    assert!(actions.news.is_none(), "the last one may know who has it");
    let actions = voted(&mut acquisition, 1, 4, busy());
    assert!(matches!(actions.news, Some(News::NotAcquired(Verdict::Busy { .. }))));
    assert_eq!(actions.undo, undo(nodes(&[0, 1]), Route::Home, true));
    assert!(acquisition.is_over());
    assert!(is_idle(&acquisition.abandon(ReleaseMode::Delete)), "once");
}

#[test]
fn an_abandoned_attempt_is_undone_and_so_are_the_votes_that_come_after() {
    let mut acquisition = attempt(3);
    let _wait = voted(&mut acquisition, 1, 0, granted(7));
    let actions = acquisition.abandon(ReleaseMode::leave());
    assert_eq!(actions.undo, undo(nodes(&[0]), Route::Home, true));
    assert_eq!(Some(acquisition.undo_of_vote(1)), undo(nodes(&[1]), Route::Home, true));
    assert_eq!(voted(&mut acquisition, 2, 1, granted(7)).undo, undo(nodes(&[1]), Route::Home, true));
    assert_eq!(voted(&mut acquisition, 2, 2, Err(unanswered())).undo, undo(nodes(&[2]), Route::Home, true));
    for said in [busy(), Err(unsent()), vote(Acquired::Recovering(TTL))] {
        assert!(is_idle(&voted(&mut acquisition, 2, 2, said)), "nothing can be there");
    }
    assert!(is_idle(&attempt(3).abandon(ReleaseMode::Delete)), "nobody has answered");
}

#[test]
fn a_late_grant_counts_for_the_lease_and_is_raised() {
    let mut acquisition = held(3);
    let actions = voted(&mut acquisition, 5, 2, granted(6));
    assert_eq!(actions.raise, Some((fence(7), nodes(&[2]))));
    assert!(actions.undo.is_none());
    for number in [7, 8] {
        let mut acquisition = held(3);
        assert!(is_idle(&voted(&mut acquisition, 5, 2, granted(number))), "its floor is high enough");
    }
}

#[test]
fn a_late_vote_is_a_word_on_the_key() {
    for (said, reason) in [(busy(), LossReason::Taken), (vote(Acquired::Recovering(TTL)), LossReason::Deleted)] {
        let mut acquisition = held(3);
        let _denied = renewed(&mut acquisition, 4, 0, owned(Err(Denial::Gone)));
        let actions = voted(&mut acquisition, 5, 2, said);
        assert!(matches!(actions.news, Some(News::Phase)));
        assert_eq!(acquisition.phase(), Some(Phase::Over { reason, since: at(5) }));
    }
    let mut acquisition = held(3);
    assert!(is_idle(&voted(&mut acquisition, 5, 2, Err(unanswered()))), "the next renewal finds out");
}

#[test]
fn a_late_vote_counts_from_when_the_attempt_was_sent() {
    let mut acquisition = held(3);
    let until = acquisition.valid_until();
    let _counted = acquisition.on_reply(at(900), sent(2, Ask::Acquire, 800), granted(7));
    assert_eq!(acquisition.valid_until(), until);
}

#[test]
fn a_vote_that_comes_after_the_end_is_undone() {
    let mut acquisition = held(3);
    let actions = acquisition.on_tick(at(2_999));
    assert!(matches!(actions.news, Some(News::Phase)) && acquisition.next_tick().is_none());
    assert_eq!(voted(&mut acquisition, 3_000, 2, granted(7)).undo, undo(nodes(&[2]), Route::Home, false));
}

#[test]
fn a_vote_on_the_route_of_the_release_was_there_before_it() {
    let mut acquisition = releasing(Route::Home, ReleaseMode::Delete);
    assert!(is_idle(&voted(&mut acquisition, 20, 2, granted(7))));
    let overtaken = Ok(Said::Vote { acquired: Acquired::Granted(fence(7)), overtaken: true });
    assert_eq!(voted(&mut acquisition, 20, 2, overtaken).undo, undo(nodes(&[2]), Route::Home, false));
    let unanswered = voted(&mut acquisition, 20, 2, Err(unanswered())).undo;
    assert_eq!(unanswered, undo(nodes(&[2]), Route::Home, false), "it may come still");
    let mut acquisition = releasing(Route::Keeper, ReleaseMode::Delete);
    assert_eq!(voted(&mut acquisition, 20, 2, granted(7)).undo, undo(nodes(&[2]), Route::Home, false));
}

/// The release may never have been sent: its callers may have timed out before their turn.
#[test]
fn a_vote_that_comes_after_a_release_that_may_not_have_been_sent_is_undone() {
    let undone = undo(nodes(&[2]), Route::Home, false);
    let mut dropped = releasing(Route::Home, ReleaseMode::Delete);
    let _undone = dropped.abandon(ReleaseMode::Delete);
    assert_eq!(voted(&mut dropped, 20, 2, granted(7)).undo, undone);
    for failure in [unanswered(), Failure::unsent("its time was over")] {
        let mut unanswered = releasing(Route::Home, ReleaseMode::Delete);
        let again = released(&mut unanswered, 2, FIRST, Err(failure)).release_again;
        assert!(again.is_some());
        assert_eq!(voted(&mut unanswered, 20, 2, granted(7)).undo, undone);
    }
}

#[test]
fn a_lease_that_was_lost_is_undone_on_every_node() {
    let mut acquisition = held(3);
    let actions = acquisition.on_tick(at(2_999));
    assert_eq!(actions.undo, undo(Nodes::all(3), Route::Keeper, false));
    let (leaving, actions) = acquisition.let_go(at(3_000));
    assert!(leaving == Leaving::Nothing && is_idle(&actions) && acquisition.is_over());
    assert!(is_idle(&acquisition.release(Route::Home, ReleaseMode::Delete)), "there is nothing to release");
}

#[test]
fn a_lease_that_was_denied_stays_until_its_holder_lets_go() {
    let by = Arc::new(forced::by("ops", None));
    for denial in [Denial::Gone, Denial::Taken, Denial::Forced(by)] {
        let mut acquisition = held(3);
        let _one = renewed(&mut acquisition, 4, 0, owned(Err(denial.clone())));
        assert_eq!(acquisition.loss(), None);
        let actions = renewed(&mut acquisition, 5, 1, owned(Err(denial.clone())));
        assert_eq!(acquisition.loss(), Some(Loss::from(&denial)));
        assert!(matches!(actions.news, Some(News::Phase)) && actions.undo.is_none());
        assert!(!acquisition.is_over());
        let (leaving, actions) = acquisition.let_go(at(6));
        assert_eq!((leaving, actions.undo), (Leaving::Nothing, undo(Nodes::all(3), Route::Keeper, false)));
        assert!(acquisition.is_over());
    }
}

#[test]
fn a_lease_that_has_reached_its_max_hold_is_released_and_that_is_forgiven() {
    let mut limited = config(1);
    limited.lease.max_hold = Some(TTL / 2);
    let mut acquisition = Acquisition::new(limited, at(0));
    let _won = voted(&mut acquisition, 1, 0, granted(7));
    assert_eq!((acquisition.hold_ends(), held(1).hold_ends()), (at(1_500), Time::NEVER));
    let actions = acquisition.expire_if_due(at(1_500));
    assert!(matches!(actions.news, Some(News::Phase)) && actions.undo.is_none());
    let (leaving, actions) = acquisition.let_go(at(1_600));
    assert!(leaving == Leaving::Release { is_forgiven: true } && is_idle(&actions) && !acquisition.is_over());
    let _release = acquisition.release(Route::Home, ReleaseMode::Delete);
    let again = Ask::Release { only_sending: false, is_last: true };
    let actions = acquisition.on_reply(at(1_700), sent(0, again, 1_650), owned(Err(Denial::Gone)));
    assert!(
        matches!(actions.news, Some(News::Released(ReleaseEnd::Lost(Loss { reason: LossReason::Expired, .. })))),
        "it was not valid when it was released: {actions:?}"
    );
}

#[test]
fn after_close_nobody_releases_a_lease_that_has_reached_its_max_hold() {
    let mut limited = config(1);
    limited.lease.max_hold = Some(TTL / 2);
    let mut acquisition = Acquisition::new(limited, at(0));
    let _won = voted(&mut acquisition, 1, 0, granted(7));
    let _over = acquisition.expire_if_due(at(1_500));
    assert_eq!(acquisition.close(at(1_550)).undo, undo(nodes(&[0]), Route::Keeper, false));
    let (leaving, actions) = acquisition.let_go(at(1_600));
    assert!(leaving == Leaving::Nothing && is_idle(&actions));
}

#[test]
fn who_lets_go_too_late_has_lost_it() {
    let mut acquisition = held(3);
    let (leaving, actions) = acquisition.let_go(at(2_999));
    assert!(matches!(actions.news, Some(News::Phase)));
    assert_eq!((leaving, actions.undo), (Leaving::Nothing, undo(Nodes::all(3), Route::Keeper, false)));
}

#[test]
fn what_is_let_go_is_not_renewed_any_more() {
    let mut acquisition = held(3);
    let _leaving = acquisition.let_go(at(10));
    assert!(!acquisition.is_held() && !acquisition.is_over() && acquisition.next_tick().is_none());
    assert!(!acquisition.is_releasing() && !acquisition.is_confirmed(at(0)));
    acquisition.hint(at(11));
    assert!(is_idle(&acquisition.on_tick(at(2_000))) && is_idle(&renewed(&mut acquisition, 12, 0, owned(Ok(())))));
    let (again, actions) = acquisition.let_go(at(12));
    assert!(again == Leaving::Nothing && is_idle(&actions), "once");
    assert!(acquisition.release(Route::Home, ReleaseMode::Delete).release);
}

#[test]
fn a_release_that_nobody_waits_for_is_an_undo_where_anything_may_be() {
    let mut acquisition = held_on_two();
    let _leaving = acquisition.let_go(at(10));
    let retain = ReleaseMode::Retain(TTL, token());
    let actions = acquisition.abandon(retain.clone());
    let expected = Undo { nodes: nodes(&[0, 1]), route: Route::Keeper, mode: retain, is_attempt: false };
    assert_eq!(actions.undo, Some(expected));
    assert!(acquisition.is_over());
    let actions = voted(&mut acquisition, 20, 2, granted(7));
    assert_eq!(actions.undo, undo(nodes(&[2]), Route::Home, false), "it went out on another route");
}

#[test]
fn a_vote_on_the_route_of_a_release_in_the_background_was_there_before_it() {
    let mut acquisition = Acquisition::new(Config { route: Route::Keeper, ..config(3) }, at(0));
    for node in 0..2 {
        let _wait = voted(&mut acquisition, 1, node, granted(7));
    }
    let _leaving = acquisition.let_go(at(10));
    let _undone = acquisition.abandon(ReleaseMode::Delete);
    assert!(is_idle(&voted(&mut acquisition, 20, 2, granted(7))));
}

#[test]
fn a_release_that_is_dropped_goes_on_as_an_undo() {
    let mut acquisition = releasing(Route::Home, ReleaseMode::leave());
    let actions = acquisition.abandon(ReleaseMode::Delete);
    let expected = Undo { nodes: nodes(&[0, 1]), route: Route::Keeper, mode: ReleaseMode::leave(), is_attempt: false };
    assert_eq!(actions.undo, Some(expected));
}

#[test]
fn a_majority_that_confirms_ends_a_release() {
    let mut acquisition = releasing(Route::Home, ReleaseMode::Delete);
    assert!(is_idle(&released(&mut acquisition, 0, FIRST, owned(Ok(())))));
    let actions = released(&mut acquisition, 1, FIRST, owned(Ok(())));
    assert!(matches!(actions.news, Some(News::Released(ReleaseEnd::Released))) && actions.undo.is_none());
    assert!(acquisition.is_over() && !acquisition.is_releasing());
    assert!(is_idle(&released(&mut acquisition, 2, FIRST, owned(Err(Denial::Gone)))));
}

#[test]
fn a_node_that_does_not_answer_is_asked_twice() {
    for (failure, only_sending, waits) in [(unanswered(), false, [true; 2]), (unsent(), true, [true, false])] {
        for (node, waits) in [0, 2].into_iter().zip(waits) {
            let mut acquisition = releasing(Route::Home, ReleaseMode::Delete);
            let actions = released(&mut acquisition, node, FIRST, Err(failure.clone()));
            let again = actions.release_again.unwrap();
            assert_eq!(again, ReleaseAgain { node, only_sending, waits, failure: failure.clone() });
            assert_eq!(again.ask(), Ask::Release { only_sending, is_last: true });
            let actions = released(&mut acquisition, node, again.ask(), Err(failure.clone()));
            assert!(is_idle(&actions), "not a third time");
        }
    }
}

#[test]
fn a_node_that_refuses_is_not_asked_twice() {
    let mut acquisition = releasing(Route::Home, ReleaseMode::Delete);
    assert!(is_idle(&released(&mut acquisition, 0, FIRST, Err(Failure::refused("NOPERM")))));
}

#[test]
fn what_a_release_leaves_is_undone_in_the_same_way() {
    let mut acquisition = releasing(Route::Home, ReleaseMode::leave());
    let last = Ask::Release { only_sending: false, is_last: true };
    let _wait = released(&mut acquisition, 0, last, Err(unanswered()));
    let _wait = released(&mut acquisition, 2, last, Err(unanswered()));
    let actions = released(&mut acquisition, 1, last, Err(unanswered()));
    assert!(matches!(actions.news, Some(News::Released(ReleaseEnd::Unknown(_)))));
    let expected = Undo { nodes: nodes(&[0, 1]), route: Route::Keeper, mode: ReleaseMode::leave(), is_attempt: false };
    assert_eq!(actions.undo, Some(expected), "the third node never had it");
}

#[test]
fn a_release_that_fails_after_the_end_is_undone_too() {
    let mut acquisition = releasing(Route::Home, ReleaseMode::leave());
    let _late_vote = voted(&mut acquisition, 11, 2, granted(7));
    let mut acquisition = held(3);
    let _third = voted(&mut acquisition, 5, 2, granted(7));
    let _leaving = acquisition.let_go(at(10));
    let _release = acquisition.release(Route::Home, ReleaseMode::leave());
    for node in 0..2 {
        let _done = released(&mut acquisition, node, FIRST, owned(Ok(())));
    }
    let again = released(&mut acquisition, 2, FIRST, Err(unanswered())).release_again.unwrap();
    let actions = released(&mut acquisition, 2, again.ask(), Err(unanswered()));
    let expected = Undo { nodes: nodes(&[2]), route: Route::Keeper, mode: ReleaseMode::leave(), is_attempt: false };
    assert_eq!(actions.undo, Some(expected));
}

#[test]
fn a_repair_counts_as_a_renewal() {
    let lost = |acquisition: &mut Acquisition| {
        let _third = voted(acquisition, 2, 2, granted(7));
        let _denied = renewed(acquisition, 10, 2, owned(Err(Denial::Gone)));
        let _one = renewed(acquisition, 10, 0, owned(Ok(())));
        assert_eq!(renewed(acquisition, 10, 1, owned(Ok(()))).repair, nodes(&[2]));
    };
    let mut acquisition = held(3);
    lost(&mut acquisition);
    let until = acquisition.valid_until();
    let repair = |acquisition: &mut Acquisition, said| acquisition.on_reply(at(30), sent(2, Ask::Repair, 20), said);
    assert!(is_idle(&repair(&mut acquisition, Ok(Said::Repaired(Repaired::Done)))));
    let _one = acquisition.on_reply(at(30), sent(1, Ask::Renew, 20), owned(Ok(())));
    assert!(acquisition.valid_until() > until && acquisition.is_confirmed(at(20)), "two of three have it since then");

    for said in [Ok(Said::Repaired(Repaired::Recovering(TTL))), Err(unanswered())] {
        let mut acquisition = held(3);
        lost(&mut acquisition);
        assert!(is_idle(&repair(&mut acquisition, said)));
    }
    let mut acquisition = held(3);
    lost(&mut acquisition);
    let _taken = repair(&mut acquisition, Ok(Said::Repaired(Repaired::Taken)));
    let _taken = renewed(&mut acquisition, 40, 0, owned(Err(Denial::Gone)));
    assert_eq!(acquisition.phase(), Some(Phase::Over { reason: LossReason::Taken, since: at(40) }));
}

#[test]
fn a_repair_that_comes_after_the_end_is_undone() {
    let over = || {
        let mut acquisition = held(3);
        let _leaving = acquisition.let_go(at(10));
        acquisition
    };
    for said in [Ok(Said::Repaired(Repaired::Done)), Err(unanswered())] {
        let actions = over().on_reply(at(20), sent(2, Ask::Repair, 5), said);
        assert_eq!(actions.undo, undo(nodes(&[2]), Route::Keeper, false));
    }
    for said in [Ok(Said::Repaired(Repaired::Taken)), Ok(Said::Repaired(Repaired::Recovering(TTL))), Err(unsent())] {
        assert!(is_idle(&over().on_reply(at(20), sent(2, Ask::Repair, 5), said)));
    }
}

#[test]
fn close_ends_the_lease_and_takes_the_release_upon_itself() {
    let mut acquisition = held_on_two();
    let actions = acquisition.close(at(10));
    assert!(matches!(actions.news, Some(News::Phase)));
    assert_eq!(actions.undo, undo(nodes(&[0, 1]), Route::Keeper, false));
    assert!(is_idle(&acquisition.close(at(11))), "once");
    let (leaving, actions) = acquisition.let_go(at(12));
    assert!(leaving == Leaving::Nothing && is_idle(&actions) && acquisition.is_over());
}

#[test]
fn close_releases_what_waits_for_its_holder_and_nothing_that_is_gone() {
    let mut denied = held_on_two();
    for node in 0..2 {
        let _denied = renewed(&mut denied, 4, node, owned(Err(Denial::Taken)));
    }
    assert_eq!(denied.close(at(10)).undo, undo(nodes(&[0, 1]), Route::Keeper, false));
    let (leaving, actions) = denied.let_go(at(11));
    assert!(leaving == Leaving::Nothing && is_idle(&actions), "close has released it");
    let mut expired = held_on_two();
    let _undone = expired.on_tick(at(2_999));
    assert!(is_idle(&expired.close(at(3_000))));
    let mut released = releasing(Route::Home, ReleaseMode::Delete);
    assert!(is_idle(&released.close(at(20))));
}

#[test]
fn a_lease_that_nobody_can_look_after_ends() {
    let mut acquisition = held(1);
    let actions = acquisition.finish(at(10), LossReason::KeeperEnded);
    assert!(matches!(actions.news, Some(News::Phase)) && actions.undo.is_none());
    assert_eq!(acquisition.phase(), Some(Phase::Over { reason: LossReason::KeeperEnded, since: at(10) }));
}

#[test]
fn a_tick_renews_and_a_hint_brings_one() {
    let mut acquisition = held(1);
    acquisition.hint(at(50));
    assert_eq!(acquisition.next_tick(), Some(at(50)));
    acquisition.hint_of(0, at(40));
    assert_eq!(acquisition.next_tick(), Some(at(40)), "its only node has it, so it is asked");
    assert!(is_idle(&acquisition.expire_if_due(at(50))));
    assert!(acquisition.on_tick(at(50)).renew);
    let actions = renewed(&mut acquisition, 60, 0, Err(unanswered()));
    assert!(matches!(actions.news, Some(News::Phase)) && acquisition.phase() == Some(Phase::AtRisk));
    assert!(acquisition.is_held());
}

#[test]
fn a_renewal_that_is_nearly_due_goes_along_with_others() {
    let mut acquisition = held(1);
    assert!(is_idle(&acquisition.go_along(at(500), None)));
    assert!(acquisition.go_along(at(950), None).renew);
    assert!(is_idle(&acquisition.on_tick(at(1_000))), "it was renewed with others");
}

#[test]
fn a_round_that_is_never_answered_makes_the_connections_suspect() {
    let mut acquisition = held(3);
    let mut suspects = Nodes::NONE;
    while let Some(tick) = acquisition.next_tick().filter(|_| suspects.is_empty()) {
        suspects = acquisition.on_tick(tick).reconnect;
    }
    assert_eq!(suspects, Nodes::all(3));
}

#[test]
fn a_grant_to_a_waiter_is_a_lease_if_it_comes_in_time() {
    let acquisition = Acquisition::granted(config(1), at(0), at(2_900), fence(7)).unwrap();
    assert!(acquisition.is_held() && acquisition.fence() == Some(fence(7)));
    assert!(Acquisition::granted(config(1), at(0), at(2_999), fence(7)).is_none());
}

#[test]
fn the_answer_to_another_request_is_none() {
    let vote = || granted(7);
    let repaired = || Ok(Said::Repaired(Repaired::Done));
    let mut acquisition = attempt(1);
    let actions = voted(&mut acquisition, 1, 0, owned(Ok(())));
    assert!(matches!(actions.news, Some(News::NotAcquired(Verdict::Failed(_)))));
    assert_eq!(actions.undo, undo(nodes(&[0]), Route::Home, true), "whatever it has done");
    for odd in [vote(), repaired()] {
        let mut acquisition = held(1);
        let _unclear = renewed(&mut acquisition, 10, 0, odd);
        assert_eq!(acquisition.phase(), Some(Phase::AtRisk));
    }
    for odd in [vote(), owned(Ok(()))] {
        let mut acquisition = held(3);
        assert!(is_idle(&acquisition.on_reply(at(10), sent(2, Ask::Repair, 5), odd)));
    }
}

#[test]
fn answers_that_no_stage_waits_for_change_nothing() {
    let mut acquisition = attempt(3);
    assert!(is_idle(&released(&mut acquisition, 0, FIRST, owned(Ok(())))));
    assert!(is_idle(&acquisition.on_tick(at(5_000))) && acquisition.is_attempting());
    let (leaving, actions) = acquisition.let_go(at(10));
    assert!(leaving == Leaving::Nothing && is_idle(&actions) && acquisition.is_attempting());
    let mut acquisition = held(3);
    assert!(is_idle(&released(&mut acquisition, 0, FIRST, Err(unanswered()))));
    assert!(is_idle(&acquisition.abandon(ReleaseMode::Delete)), "a lease is let go first");
    assert!(acquisition.is_held());
}

#[test]
fn who_is_in_the_way_is_told() {
    let mut acquisition = attempt(1);
    let actions = voted(&mut acquisition, 1, 0, busy());
    let Some(News::NotAcquired(Verdict::Busy { needs, .. })) = actions.news else { panic!("{actions:?}") };
    assert_eq!(needs, WakeCondition { count: 1, of: nodes(&[0]) });
    assert!(actions.undo.is_none());
}

#[test]
fn what_is_handed_over_is_over_and_stays() {
    for mut acquisition in [held(1), held(3), held_on_two()] {
        assert!(acquisition.is_held() && acquisition.hand_over());
        assert!(acquisition.is_over() && !acquisition.is_held() && acquisition.next_tick().is_none());
        assert_eq!((acquisition.valid_until(), acquisition.fence()), (Time::ZERO, Some(fence(7))));
        // Votes, renewals and repairs that were under way are left to the heir: their answers order nothing.
        for node in 0..3 {
            assert!(is_idle(&voted(&mut acquisition, 20, node, granted(7))));
            assert!(is_idle(&voted(&mut acquisition, 20, node, Err(unanswered()))));
            assert!(is_idle(&renewed(&mut acquisition, 20, node, owned(Err(Denial::Taken)))));
            for repaired in [Ok(Said::Repaired(Repaired::Done)), Err(unanswered())] {
                assert!(is_idle(&acquisition.on_reply(at(20), sent(node, Ask::Repair, 10), repaired)));
            }
        }
        assert!(is_idle(&acquisition.on_tick(at(9_000))) && is_idle(&acquisition.close(at(9_000))));
        let (leaving, actions) = acquisition.let_go(at(9_000));
        assert_eq!((leaving, is_idle(&actions)), (Leaving::Nothing, true));
        assert!(is_idle(&acquisition.abandon(ReleaseMode::Delete)) && !acquisition.hand_over(), "once");
    }
}

#[test]
fn what_is_not_held_is_not_handed_over() {
    assert!(!attempt(3).hand_over());
    let mut lost = held(1);
    let _lost = lost.finish(at(10), LossReason::Expired);
    assert!(!lost.hand_over());
    let mut released = releasing(Route::Home, ReleaseMode::Delete);
    assert!(!released.hand_over());
}
