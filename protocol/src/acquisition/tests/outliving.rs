//! Leases whose key outlives them (rule 14).

use super::*;
use crate::forced;

const DELAY: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(60);

/// Both ways in which a key outlives its lease.
fn both() -> [Outliving; 2] {
    [Outliving::new(DELAY, Duration::ZERO), Outliving::new(Duration::ZERO, INTERVAL)]
}

/// Like `held`, with a key that outlives its lease by this.
fn held_for(nodes: usize, outliving: Outliving) -> Acquisition {
    let mut acquisition = Acquisition::new(Config { outliving, ..config(nodes) }, at(0));
    for node in 0..nodes.min(2) {
        let _wait = voted(&mut acquisition, 1, node, granted(7));
    }
    assert!(acquisition.is_held(), "a majority has granted");
    acquisition
}

#[test]
fn no_deadline_depends_on_it() {
    for outliving in both() {
        let mut acquisition = held_for(3, outliving);
        assert_eq!((acquisition.outliving(), acquisition.valid_until()), (outliving, held(3).valid_until()));
        for node in 0..2 {
            let _confirmed = renewed(&mut acquisition, 1_000, node, owned(Ok(())));
        }
        let mut other = held(3);
        for node in 0..2 {
            let _confirmed = renewed(&mut other, 1_000, node, owned(Ok(())));
        }
        assert_eq!(acquisition.valid_until(), other.valid_until());
    }
}

#[test]
fn a_loss_deletes_nothing_neither_at_once_nor_when_its_holder_lets_go() {
    for outliving in both() {
        for nodes in [1, 3] {
            let mut acquisition = held_for(nodes, outliving);
            let lost = acquisition.expire_if_due(at(2_999));
            assert!(matches!(lost.news, Some(News::Phase)) && lost.undo.is_none(), "{lost:?}");
            let (leaving, actions) = acquisition.let_go(at(3_500));
            assert!(leaving == Leaving::Nothing && is_idle(&actions), "{actions:?}");
            // The holder notices by itself.
            let (leaving, actions) = held_for(nodes, outliving).let_go(at(2_999));
            assert!(leaving == Leaving::Nothing && actions.undo.is_none(), "{actions:?}");
        }
    }
}

#[test]
fn a_denial_deletes_nothing_where_the_key_is_left() {
    for outliving in both() {
        for denial in [Denial::Gone, Denial::Taken] {
            let mut acquisition = held_for(3, outliving);
            for node in 0..2 {
                let _denied = renewed(&mut acquisition, 5, node, owned(Err(denial.clone())));
            }
            let (leaving, actions) = acquisition.let_go(at(6));
            assert!(leaving == Leaving::Nothing && is_idle(&actions), "{denial:?}: {actions:?}");
        }
    }
}

#[test]
fn what_an_operator_took_is_taken_off_everywhere() {
    let forced = Denial::Forced(Arc::new(forced::by("ops", None)));
    for outliving in both() {
        let mut acquisition = held_for(3, outliving);
        for node in 0..2 {
            let _denied = renewed(&mut acquisition, 5, node, owned(Err(forced.clone())));
        }
        let (_leaving, actions) = acquisition.let_go(at(6));
        assert_eq!(actions.undo, undo(Nodes::all(3), Route::Keeper, false));
    }
}

#[test]
fn votes_and_repairs_that_come_after_a_loss_stay() {
    for outliving in both() {
        for lets_go in [false, true] {
            let mut acquisition = held_for(3, outliving);
            let _lost = acquisition.expire_if_due(at(2_999));
            if lets_go {
                let _nothing = acquisition.let_go(at(3_000));
            }
            assert!(is_idle(&voted(&mut acquisition, 3_100, 2, granted(7))));
            let repaired =
                acquisition.on_reply(at(3_100), sent(2, Ask::Repair, 2_900), Ok(Said::Repaired(Repaired::Done)));
            assert!(is_idle(&repaired));
        }
    }
}

#[test]
fn an_attempt_is_undone_as_ever() {
    for outliving in both() {
        let mut acquisition = Acquisition::new(Config { outliving, ..config(3) }, at(0));
        let _wait = voted(&mut acquisition, 1, 0, granted(7));
        let _wait = voted(&mut acquisition, 1, 1, busy());
        let actions = voted(&mut acquisition, 1, 2, busy());
        assert_eq!(actions.undo, undo(nodes(&[0]), Route::Home, true), "nobody has begun to work");
        assert_eq!(voted(&mut acquisition, 2, 2, granted(7)).undo, undo(nodes(&[2]), Route::Home, true));
    }
}

#[test]
fn a_release_and_a_close_say_themselves_how_they_leave_the_key() {
    for outliving in both() {
        let mut acquisition = held_for(3, outliving);
        assert_eq!(acquisition.close(at(10)).undo, undo(Nodes::all(3), Route::Keeper, false));
        let mut acquisition = held_for(3, outliving);
        assert_eq!(acquisition.let_go(at(10)).0, Leaving::Release { is_forgiven: false });
        let _release = acquisition.release(Route::Home, ReleaseMode::Delete);
        let actions = voted(&mut acquisition, 20, 2, vote(Acquired::Granted(fence(7))));
        assert!(is_idle(&actions), "the release has arrived after it");
    }
}

#[test]
fn a_close_finds_a_loss_and_deletes_nothing() {
    for outliving in both() {
        let mut acquisition = held_for(3, outliving);
        let actions = acquisition.close(at(2_999));
        assert!(acquisition.loss().is_some_and(|loss| loss.reason == LossReason::Expired));
        assert!(actions.undo.is_none());
        let mut acquisition = held_for(3, outliving);
        for node in 0..2 {
            let _denied = renewed(&mut acquisition, 5, node, owned(Err(Denial::Gone)));
        }
        assert!(acquisition.close(at(10)).undo.is_none());
    }
}

#[test]
fn a_lease_that_has_reached_its_max_hold_ends_as_ever() {
    for outliving in both() {
        let mut limited = Config { outliving, ..config(1) };
        limited.lease.max_hold = Some(TTL / 2);
        let mut acquisition = Acquisition::new(limited, at(0));
        let _won = voted(&mut acquisition, 1, 0, granted(7));
        let _over = acquisition.expire_if_due(at(1_500));
        assert_eq!(acquisition.let_go(at(1_600)).0, Leaving::Release { is_forgiven: true });
    }
}

#[test]
fn once_the_interval_is_over_a_loss_is_undone() {
    let mut acquisition = held_for(1, Outliving::new(Duration::ZERO, Duration::from_secs(2)));
    assert_eq!(acquisition.expire_if_due(at(2_999)).undo, undo(nodes(&[0]), Route::Keeper, false));
}

#[test]
fn a_keeper_that_ends_leaves_the_key() {
    for outliving in both() {
        let mut acquisition = held_for(1, outliving);
        let ended = acquisition.finish(at(10), LossReason::KeeperEnded);
        assert!(matches!(ended.news, Some(News::Phase)) && ended.undo.is_none());
        assert!(acquisition.let_go(at(11)).0 == Leaving::Nothing);
    }
}
