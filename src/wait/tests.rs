use std::time::Duration;

use leasehold_protocol::{holder::Holder, slot::Keys, token::Token};

use super::*;

fn key() -> Key {
    Key::new("", "job").unwrap()
}

#[tokio::test]
async fn the_turn_goes_in_order_and_past_those_who_left() {
    let lines = Lines::new(1);
    let (first, second, third) = (lines.join(&key()), lines.join(&key()), lines.join(&key()));
    let turn = first.turn().await;
    let mut leaves = Box::pin(second.turn());
    let mut stays = Box::pin(third.turn());
    assert!(futures_now(&mut leaves).is_none() && futures_now(&mut stays).is_none());
    drop(leaves);
    drop(turn);
    let _third_has_it = stays.await;
}

#[test]
fn an_empty_line_leaves_nothing() {
    let lines = Lines::new(1);
    let (one, two) = (lines.join(&key()), lines.join(&key()));
    drop(one);
    assert!(lines.has(&key()));
    drop(two);
    assert!(!lines.has(&key()));
}

#[test]
fn names_are_counted_and_not_their_waiters() {
    let lines = Lines::new(1);
    assert_eq!((lines.is_empty(), lines.len()), (true, 0));
    let (_one, _two) = (lines.join(&key()), lines.join(&key()));
    assert_eq!((lines.is_empty(), lines.len()), (false, 1));
    let _other = lines.join(&Key::new("", "another").unwrap());
    assert_eq!((lines.is_empty(), lines.len()), (false, 2));
}

#[test]
fn a_turn_is_had_at_once_unless_somebody_has_it() {
    let lines = Lines::new(1);
    let (first, second) = (lines.join(&key()), lines.join(&key()));
    let turn = first.turn_now();
    assert!(turn.is_some() && second.turn_now().is_none());
    drop(turn);
    assert!(second.turn_now().is_some());
}

#[test]
fn a_release_in_this_process_is_not_lost_on_a_busy_waiter() {
    let lines = Lines::new(1);
    let waiter = lines.join(&key());
    lines.notify("job", Time::ZERO);
    assert!(futures_now(&mut Box::pin(waiter.notified())).is_some());
}

#[test]
fn a_look_deals_with_the_alerts_before_it_and_keeps_those_after() {
    let lines = Lines::new(1);
    let waiter = lines.join(&key());
    lines.notify("job", Time::ZERO);
    waiter.checks_by(Time::NEVER);
    assert!(futures_now(&mut Box::pin(waiter.notified())).is_none());
    lines.notify_all(&Keys::All, Time::ZERO);
    assert!(futures_now(&mut Box::pin(waiter.notified())).is_some());
}

#[test]
fn an_alert_is_due_at_once() {
    let lines = Lines::new(1);
    let waiter = lines.join(&key());
    let later = Time::ZERO + Duration::from_secs(30);
    waiter.saw(Check::NotYet, Time::ZERO, later);
    assert_eq!(waiter.due(), later);
    lines.notify("another", Time::ZERO);
    assert_eq!(waiter.due(), later);
    lines.notify("job", Time::ZERO);
    assert_eq!(waiter.due(), Time::ZERO);
}

#[tokio::test]
async fn a_waiter_for_several_nodes_is_alerted_when_so_many_were_touched() {
    let lines = Lines::new(1);
    let waiter = lines.join(&key());
    let notified = || futures_now(&mut Box::pin(waiter.notified())).is_some();
    lines.changed("job", 2, Time::ZERO);
    waiter.checks_by(Time::NEVER);
    lines.changed("job", 0, Time::ZERO);
    assert!(!notified(), "it is looking");
    let needs = WakeCondition { count: 2, of: [0, 2, 4].into_iter().collect() };
    let held = || Check::Held { holder: Holder::default(), tracked: true, needs };
    waiter.saw(held(), Time::ZERO, Time::NEVER);
    lines.changed("job", 0, Time::ZERO);
    assert!(!notified(), "the same node twice");
    lines.changed("job", 3, Time::ZERO);
    assert!(!notified(), "one that it was granted");
    lines.changed("job", 4, Time::ZERO);
    assert!(notified(), "also by a change during the check");
    waiter.checks_by(Time::NEVER);
    lines.changed("job", 0, Time::ZERO);
    waiter.saw(held(), Time::ZERO, Time::NEVER);
    assert!(!notified(), "it has checked since");
    waiter.saw(
        Check::Split { holder: Holder::default(), answered: Duration::ZERO, took: Duration::ZERO },
        Time::ZERO,
        Time::NEVER,
    );
    lines.changed("job", 2, Time::ZERO);
    assert!(!notified(), "the others do the same");
}

#[test]
fn only_another_holder_is_news_to_those_in_line() {
    let lines = Lines::new(1);
    let waiter = lines.join(&key());
    let held = |label: &str, secs| Check::Held {
        holder: Holder::of(
            Token::parse(&format!("lh1:0d9a60f5-51a8-4bd6-a02c-0123456789ab@{label}")),
            Some(Duration::from_secs(secs)),
            None,
        ),
        tracked: true,
        needs: WakeCondition::ANY,
    };
    let mut looks = waiter.seen();
    waiter.saw(held("one", 3), Time::ZERO, Time::NEVER);
    assert!(looks.has_changed().unwrap());
    drop(looks.borrow_and_update());
    waiter.saw(held("one", 30), Time::ZERO, Time::NEVER);
    assert!(!looks.has_changed().unwrap(), "it has renewed");
    waiter.saw(held("two", 30), Time::ZERO, Time::NEVER);
    assert!(looks.has_changed().unwrap());
    let split = || Check::Split { holder: Holder::default(), answered: Duration::ZERO, took: Duration::ZERO };
    waiter.saw(split(), Time::ZERO, Time::NEVER);
    drop(looks.borrow_and_update());
    waiter.saw(split(), Time::ZERO, Time::NEVER);
    assert!(!looks.has_changed().unwrap(), "it still has no holder");
}

fn futures_now<F: std::future::Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
