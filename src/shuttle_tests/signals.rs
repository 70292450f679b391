//! The signals of holders and waiters, on their own.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use leasehold_protocol::{
    acquisition::{Acquisition, Ask, Config, Said, Sent},
    failure::Failure,
    fence,
    jitter::Jitter,
    key::Key,
    message::{Claim, Route},
    mode::Mode,
    outliving::Outliving,
    renewal::LeaseConfig,
    time::Time,
};
use shuttle::{future::block_on, thread};

use super::{explore, wire::TTL};
use crate::{
    LossReason, Owner, Status,
    held::{Hold, SharedEntry},
    lost::Lost,
    metrics::Group,
    random,
    reentry::{self, Owners},
    status::{Board, Signal, StatusChanges},
    wait::FairWaiters,
};

fn lost(reason: LossReason) -> Lost {
    Lost::new("job", fence::ZERO, reason.into(), SystemTime::UNIX_EPOCH, Duration::ZERO)
}

#[test]
fn of_two_ends_the_first_stands_and_everybody_hears_of_it() {
    explore(|| {
        let signal = Signal::More(Arc::new(Board::new()));
        let ending = [LossReason::Taken, LossReason::Released].map(|reason| {
            let signal = signal.clone();
            thread::spawn(move || {
                signal.note(Status::AtRisk);
                signal.end(&lost(reason));
            })
        });
        let mut changes = StatusChanges::new(signal.clone());
        let (heard, seen) = (
            block_on(signal.clone().lost()),
            block_on(async {
                let mut last = None;
                while let Some(status) = changes.next().await {
                    last = Some(status);
                }
                last
            }),
        );
        let expected = if heard.reason() == LossReason::Taken { Status::Lost(heard.clone()) } else { Status::Released };
        assert_eq!(seen.unwrap_or_else(|| signal.status()), expected);
        for ended in ending {
            ended.join().unwrap();
        }
        assert_eq!(signal.ended(), Some(heard));
    });
}

#[test]
fn a_token_that_is_taken_while_the_lease_ends_is_cancelled() {
    explore(|| {
        let signal = Signal::More(Arc::new(Board::new()));
        let taking = {
            let signal = signal.clone();
            thread::spawn(move || signal.cancellation_token())
        };
        signal.end(&lost(LossReason::Deleted));
        block_on(taking.join().unwrap().cancelled());
    });
}

#[test]
fn a_call_is_heard_or_known_to_be_for_nobody() {
    explore(|| {
        let (fair_waiters, key, token) = (Arc::<FairWaiters>::default(), Key::of_lock("job"), random::token("host:7"));
        let waiter = fair_waiters.listen(&key, &token);
        let calling = {
            let (fair_waiters, token) = (fair_waiters.clone(), token.clone());
            thread::spawn(move || {
                let notified = fair_waiters.notify(token.as_str(), Time::NEVER, Duration::ZERO);
                (notified, fair_waiters.grant(token.as_str(), Time::ZERO))
            })
        };
        let hearing = thread::spawn(move || {
            while waiter.due() > Time::ZERO {
                block_on(waiter.heard());
            }
            assert!(waiter.is_granted(), "a waiter that is granted the lock knows it");
        });
        hearing.join().unwrap();
        let (_, granted) = calling.join().unwrap();
        assert!(granted && fair_waiters.is_empty() && !fair_waiters.grant(token.as_str(), Time::ZERO));
    });
}

fn hold() -> Arc<Hold> {
    let lease = LeaseConfig { ttl: TTL, max_hold: None, patience: TTL / 3, stall_after: None };
    let (route, jitter) = (Route::Home, Jitter::from_seed(1));
    let config = Config { lease, outliving: Outliving::NOTHING, nodes: 1, route, renew_first_after: None, jitter };
    let won = Acquisition::granted(config, Time::ZERO, Time::ZERO, fence::ZERO).expect("it is in time");
    let (key, token, fence_memory) = (Key::of_lock("job"), random::token("host:7"), fence::MEMORY);
    Hold::new(
        Claim { key, token, mode: Mode::Exclusive, ttl: TTL, life: TTL, fence: None, fence_memory },
        fence::ZERO,
        None,
        won,
        Group::default(),
    )
    .0
}

#[test]
fn news_reach_a_lease_in_the_order_in_which_they_came() {
    explore(|| {
        let hold = hold();
        let (SharedEntry::Shared(signal), _) = hold.enter(Time::ZERO) else { panic!("it is held") };
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        let answering = [(1, Err(Failure::unknown("no answer"))), (2, Ok(Said::Owned(Ok(()))))].map(|(sent, said)| {
            let hold = hold.clone();
            thread::spawn(move || hold.on_reply(at(3), Sent { node: 0, ask: Ask::Renew, at: at(sent) }, said))
        });
        for answered in answering {
            let _reaction = answered.join().unwrap();
        }
        assert!(matches!(hold.enter(at(3)), (SharedEntry::Shared(_), _)), "the newer round was confirmed");
        assert_eq!(signal.status(), Status::Held);
    });
}

#[test]
fn a_seat_that_is_given_up_elsewhere_is_in_nobodys_way() {
    explore(|| {
        let (owners, key) = (Arc::<Owners>::default(), Key::of_lock("job"));
        let id = Owner::unique().resolve().unwrap();
        let reentry::Reentry::Free(owner_slot) = owners.enter(id, &key, Time::ZERO) else { panic!("nobody has it") };
        let hold = hold();
        owner_slot.hold(&hold);
        let long_after = Time::ZERO + TTL * 2;
        let leaving = thread::spawn(move || drop(owner_slot));
        let claiming = [(); 2].map(|()| {
            let (owners, key) = (owners.clone(), key.clone());
            thread::spawn(move || drop(owners.enter(id, &key, long_after)))
        });
        leaving.join().unwrap();
        for claimed in claiming {
            claimed.join().unwrap();
        }
        assert!(owners.is_empty());
    });
}
