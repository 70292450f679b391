use super::*;
use crate::{fence, key::Key, mode::Mode};

const SECOND: Micros = 1_000_000;
const MINUTE: Micros = 60 * SECOND;
const WINDOW: Duration = Duration::from_secs(60);

fn poll(token: &Token) -> Poll {
    Poll {
        claim: Claim {
            key: Key::new("", "job").unwrap(),
            token: token.clone(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(30),
            life: Duration::from_secs(30),
            fence: None,
            fence_memory: fence::MEMORY,
        },
        ticket: None,
        grant: Duration::from_secs(1),
        window: WINDOW,
        enter: true,
        restart_delay: Duration::ZERO,
    }
}

fn hears(name: &str) -> Process<'_> {
    Process { name, hears: true }
}

fn polls(name: &str) -> Process<'_> {
    Process { name, hears: false }
}

fn tokens<const N: usize>() -> [Token; N] {
    std::array::from_fn(|n| Token::random(&n.to_string()))
}

fn turn(queue: &mut WaitQueue, now: Micros, silent: &str) -> (Option<Token>, Vec<Notified>) {
    let mut notified = Vec::new();
    let Turn { let_in, .. } =
        queue.promote(None, (now, Duration::ZERO), 0, &|channel| channel != silent, &mut notified);
    (let_in.into_iter().next().map(|one| one.token), notified)
}

#[test]
fn a_clock_that_goes_back_changes_no_order() {
    let (mut queue, [a, b, c]) = (WaitQueue::default(), tokens());
    assert!(queue.enter(10 * MINUTE, &poll(&a), hears("a")));
    assert!(queue.enter(5 * MINUTE, &poll(&b), hears("b")));
    assert!(!queue.enter(6 * MINUTE, &poll(&a), hears("a")), "it was there before");
    assert!(queue.enter(7 * MINUTE, &poll(&c), hears("c")));
    let line: Vec<_> = queue.line().collect();
    assert_eq!(line, [(&a, 10 * MINUTE), (&b, 10 * MINUTE + 1), (&c, 10 * MINUTE + 2)]);
    assert_eq!(queue.place(&c), Some((10 * MINUTE + 2, 2)));
}

#[test]
fn a_ticket_gives_a_lost_place_back() {
    let (mut queue, [a, b]) = (WaitQueue::default(), tokens());
    queue.enter(1, &poll(&a), hears("a"));
    queue.enter(2, &poll(&b), hears("b"));
    queue.leave(2, &a, "a", WINDOW);
    queue.enter(3, &Poll { ticket: Some(1), ..poll(&a) }, hears("a"));
    queue.enter(4, &Poll { ticket: Some(9), ..poll(&a) }, hears("a"));
    assert_eq!(queue.line().collect::<Vec<_>>(), [(&a, 1), (&b, 2)], "one place for each, the one it has");
}

#[test]
fn who_cannot_be_reached_is_passed_over() {
    let (mut queue, [dead, poller, alive, next]) = (WaitQueue::default(), tokens());
    queue.enter(1, &poll(&dead), hears("dead"));
    queue.enter(2, &Poll { window: Duration::ZERO, ..poll(&poller) }, polls("poller"));
    queue.enter(3, &poll(&alive), hears("alive"));
    queue.enter(4, &poll(&next), hears("next"));
    let within = Duration::from_secs(1);
    let expected = vec![
        Notified::Granted { channel: "alive".into(), token: alive.clone() },
        Notified::Next { channel: "next".into(), token: next, within },
    ];
    assert_eq!(turn(&mut queue, 5, "dead"), (Some(alive), expected));
    assert_eq!(queue.len(), 1);
}

#[test]
fn a_poller_that_is_alive_gets_its_turn_and_no_message() {
    let (mut queue, [a, b, c]) = (WaitQueue::default(), tokens());
    for (token, name) in [(&a, "poller"), (&b, "another")] {
        queue.enter(1, &poll(token), polls(name));
    }
    queue.enter(2, &poll(&c), hears("c"));
    queue.enter(MINUTE, &poll(&c), hears("c"));
    let behind = Notified::Next { channel: "c".into(), token: c.clone(), within: Duration::from_secs(1) };
    assert_eq!(turn(&mut queue, MINUTE, ""), (Some(a), vec![behind]));
    assert_eq!(turn(&mut queue, 2 * MINUTE - 1, "").0, Some(c), "the other one was silent for its window");
}

#[test]
fn a_process_that_says_nothing_costs_one_grant() {
    let (mut queue, [s1, s2, s3, a]) = (WaitQueue::default(), tokens());
    for token in [&s1, &s2, &s3] {
        queue.enter(1, &poll(token), hears("stopped"));
    }
    queue.enter(1, &poll(&a), hears("a"));
    assert_eq!(turn(&mut queue, 2, "").0, Some(s1));
    assert_eq!(turn(&mut queue, 2 + SECOND, "").0, Some(a), "the grant has lapsed");
    assert!(!queue.is_over(3 + SECOND), "the mark is kept");
    queue.enter(4 + SECOND, &Poll { ticket: Some(1), ..poll(&s2) }, hears("stopped"));
    queue.enter(4 + SECOND, &poll(&s3), hears("stopped"));
    assert_eq!(turn(&mut queue, 5 + SECOND, "").0, Some(s2), "it has said something");
    assert_eq!(turn(&mut queue, 5 + 2 * SECOND, "").0, None, "and nothing since");
    assert!(queue.is_over(6 + 2 * SECOND), "without waiters the marks are not needed");
}

#[test]
fn a_process_with_two_grants_under_way_loses_no_waiter() {
    let (mut queue, [one, two, three, other]) = (WaitQueue::default(), tokens());
    for token in [&one, &two, &three] {
        queue.enter(1, &poll(token), hears("a"));
    }
    queue.enter(1, &poll(&other), hears("other"));
    assert_eq!(turn(&mut queue, 2, "").0, Some(one));
    assert_eq!(turn(&mut queue, 1 + SECOND, "").0, Some(two), "it may be on its way to confirm the first");
    assert_eq!(turn(&mut queue, 2 + SECOND, "").0, Some(other), "the second grant has not delayed that");
}

#[test]
fn who_leaves_has_said_something_for_the_others_of_its_process() {
    for (now, is_alive) in [(MINUTE + 1, true), (MINUTE + 2, false)] {
        let (mut queue, [one, two]) = (WaitQueue::default(), tokens());
        for token in [&one, &two] {
            queue.enter(1, &Poll { window: 2 * WINDOW, ..poll(token) }, hears("a"));
        }
        queue.leave(2, &one, "a", WINDOW);
        assert_eq!(turn(&mut queue, now, "").0, is_alive.then_some(two), "{now}");
    }
}

#[test]
fn marks_of_processes_that_have_gone_do_not_pile_up() {
    let (mut queue, all, me) = (WaitQueue::default(), tokens::<500>(), Token::random("me"));
    queue.enter(1, &poll(&me), hears("me"));
    for (at, token) in (1..).zip(&all) {
        let (now, process) = (at * SECOND, at.to_string());
        queue.enter(now, &poll(token), hears(&process));
        queue.leave(now, token, &process, WINDOW);
    }
    assert!(queue.marks.len() < 200, "{}", queue.marks.len());
    assert!(queue.marks.contains_key("500"));
}

#[test]
fn a_process_that_polls_costs_one_grant_and_is_granted_to_again_once_it_says_something() {
    let (mut queue, [s1, s2, s3, a]) = (WaitQueue::default(), tokens());
    for token in [&s1, &s2, &s3] {
        queue.enter(1, &poll(token), polls("killed"));
    }
    queue.enter(1, &poll(&a), polls("a"));
    assert_eq!(turn(&mut queue, 2, "").0, Some(s1));
    queue.enter(3, &poll(&s3), polls("killed"));
    assert_eq!(turn(&mut queue, 3 + SECOND, "").0, Some(s2), "it lives");
    assert_eq!(turn(&mut queue, 3 + 2 * SECOND, "").0, Some(a), "it does not any more");
}

#[test]
fn the_first_of_another_process_is_notified_at_whatever_place() {
    let (mut queue, all, other) = (WaitQueue::default(), tokens::<100>(), Token::random("other"));
    for token in &all {
        queue.enter(1, &poll(token), hears("many"));
    }
    queue.enter(1, &poll(&other), hears("other"));
    let within = Duration::from_secs(1);
    let expected = vec![
        Notified::Granted { channel: "many".into(), token: all[0].clone() },
        Notified::Next { channel: "many".into(), token: all[1].clone(), within },
        Notified::Next { channel: "other".into(), token: other, within },
    ];
    assert_eq!(turn(&mut queue, 2, ""), (Some(all[0].clone()), expected));
}

#[test]
fn the_head_that_asks_is_told_that_it_is_its_turn() {
    let (mut queue, [a, b]) = (WaitQueue::default(), tokens());
    queue.enter(1, &poll(&a), hears("gone"));
    queue.enter(1, &poll(&b), hears("gone"));
    let mut notified = Vec::new();
    assert_eq!(queue.promote(Some(&b), (2, Duration::ZERO), 0, &|_| false, &mut notified), Turn::default());
    assert_eq!((queue.len(), notified), (1, vec![]));
}

#[test]
fn a_poller_is_alive_for_its_window_and_the_queue_for_two() {
    for (now, is_alive) in [(MINUTE + 4, true), (MINUTE + 5, false)] {
        let (mut queue, [a]) = (WaitQueue::default(), tokens());
        queue.enter(5, &poll(&a), polls("poller"));
        assert_eq!(turn(&mut queue, now, "").0, is_alive.then_some(a), "{now}");
    }
    let (mut queue, [a]) = (WaitQueue::default(), tokens());
    queue.enter(5, &poll(&a), hears("a"));
    assert!(!queue.is_over(2 * MINUTE + 4) && queue.is_over(2 * MINUTE + 5));
}
