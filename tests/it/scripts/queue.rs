//! The fair queue's scripts, at the wire: the keys that each leaves on the server, and its notifications.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use support::{
    ClockShim, Server, Value, Wire,
    scripts::{ACQUIRE, FORCE_RELEASE, JOIN, LEAVE, PART, POLL, QUEUE, RELEASE},
};

use super::{FENCE, LOCK, MEMORY, TTL, fence_in, labels, owner, token};

const LINE: &str = "{job}:lh:queue";
const WAIT: &str = "{job}:lh:wait";
const HOLDERS: &str = "{job}:lh:holders";
const KEYS: [&str; 5] = [LOCK, FENCE, LINE, WAIT, HOLDERS];

const GRANT: &str = "5000";
const WINDOW: &str = "60000";

/// The answer to a poll.
#[derive(Debug, Clone, PartialEq)]
enum Polled {
    Granted(i64),
    Waits { pttl: i64, value: Option<String>, fence: Option<i64>, ticket: String, rank: i64, entered: i64 },
}

impl Polled {
    #[track_caller]
    fn fence(&self) -> i64 {
        match self {
            Self::Granted(fence) => *fence,
            waits @ Self::Waits { .. } => panic!("not granted: {waits:?}"),
        }
    }

    /// The ticket, the rank and whether the place is new.
    #[track_caller]
    fn place(&self) -> (String, i64, i64) {
        match self {
            Self::Waits { ticket, rank, entered, .. } => (ticket.clone(), *rank, *entered),
            granted @ Self::Granted(_) => panic!("{granted:?}"),
        }
    }
}

/// A poll, with the usual value for everything else.
#[derive(Debug, Clone, Copy)]
struct Poll<'a> {
    label: &'a str,
    channel: &'a str,
    ticket: &'a str,
    grant: &'a str,
    window: &'a str,
    enter: bool,
    restart_delay: &'a str,
}

/// A poll of a waiter whose process has the channel's name.
fn poll<'a>(label: &'a str, channel: &'a str) -> Poll<'a> {
    Poll { label, channel, ticket: "0", grant: GRANT, window: WINDOW, enter: true, restart_delay: "0" }
}

impl Poll<'_> {
    fn raw(&self, wire: &mut Wire) -> Value {
        let enter = if self.enter { "1" } else { "0" };
        let Self { label, channel, ticket, grant, window, restart_delay, .. } = *self;
        eval(wire, POLL, &[&token(label), TTL, ticket, grant, window, channel, enter, restart_delay, MEMORY, "0"])
    }

    #[track_caller]
    fn send(&self, wire: &mut Wire) -> Polled {
        let reply = self.raw(wire);
        let some = |value: &Value| match value {
            Value::Array(of_type) => Some(format!("of type {}", of_type[1].text())),
            value => (!value.is_nil()).then(|| value.text()),
        };
        match reply.array() {
            [Value::Int(1), fence, ..] => Polled::Granted(fence.int()),
            [Value::Int(0), Value::Int(pttl), value, ticket @ Value::Bulk(_), Value::Int(rank), Value::Int(new), _] => {
                Polled::Waits {
                    pttl: *pttl,
                    value: some(value).map(|value| labels(&value)),
                    fence: some(value).and_then(|value| fence_in(&value)),
                    ticket: ticket.text(),
                    rank: *rank,
                    entered: *new,
                }
            }
            other => panic!("the poll of {} was answered {other:?}", self.label),
        }
    }
}

fn eval(wire: &mut Wire, script: &str, args: &[&str]) -> Value {
    let mut command = vec!["EVAL", script, "5"];
    command.extend(KEYS);
    command.extend(args);
    wire.cmd(&command)
}

/// The arguments of a forced release.
const TAKEN: [&str; 2] = ["{job}:lh:forced", "ops"];

/// Gives up the lock by this script.
fn part(wire: &mut Wire, script: &str, label: &str) -> Value {
    match script {
        FORCE_RELEASE => eval(wire, script, &TAKEN),
        LEAVE => eval(wire, script, &["", WINDOW, "1", &token(label)]),
        _ => eval(wire, script, &[&token(label), ""]),
    }
}

/// The holder's value as the library knows it: all of it.
fn known(wire: &mut Wire, label: &str) -> String {
    wire.get(LOCK).filter(|value| labels(value) == label).unwrap_or_else(|| token(label))
}

#[track_caller]
fn release(wire: &mut Wire, label: &str) -> i64 {
    let known = known(wire, label);
    eval(wire, RELEASE, &[&known]).int()
}

#[track_caller]
fn leave(wire: &mut Wire, label: &str, channel: &str) -> i64 {
    eval(wire, LEAVE, &[channel, WINDOW, "1", &token(label)]).int()
}

/// The call to a waiter that is granted the lock.
fn call_of(label: &str) -> String {
    format!("granted {} {label}{LOCK}", token(label).len())
}

fn acquire(wire: &mut Wire, label: &str) -> Value {
    wire.cmd(&["EVAL", ACQUIRE, "2", LOCK, FENCE, &token(label), TTL, MEMORY])
}

/// Whether it has a mark: the time until which a silent process counts as alive.
fn has_mark(wire: &mut Wire, process: &str) -> bool {
    wire.must(&["HEXISTS", WAIT, &format!("!{process}")]).int() == 1
}

/// The waiters in line, in order.
#[track_caller]
fn line(wire: &mut Wire) -> Vec<String> {
    wire.must(&["ZRANGE", LINE, "0", "-1"]).array().iter().map(|token| labels(&token.text())).collect()
}

/// A process that listens on a channel. Dropping it is its death.
struct Process(Wire);

impl Process {
    #[track_caller]
    fn start(server: &Server, channel: &str) -> Self {
        let mut wire = server.wire();
        wire.must(&["SUBSCRIBE", channel]);
        Self(wire)
    }

    /// The notifications that the process has received until now.
    #[track_caller]
    fn told(&mut self) -> Vec<String> {
        // The answer to a ping comes behind everything that was published before it.
        self.0.send(&["PING"]).unwrap();
        let mut told = Vec::new();
        loop {
            let reply = self.0.reply().unwrap();
            match reply.array() {
                [kind, _, message] if kind.text() == "message" => told.push(labels(&message.text())),
                [kind, _] if kind.text() == "pong" => return told,
                other => panic!("{other:?}"),
            }
        }
    }

    fn die(self, wire: &mut Wire, channel: &str) {
        drop(self);
        support::eventually(Duration::from_secs(5), "the server sees it", || {
            wire.must(&["PUBSUB", "NUMSUB", channel]).array()[1].int() == 0
        });
    }
}

/// A lock held by "holder", without a queue.
fn held() -> (Server, Wire) {
    held_on(Server::start())
}

fn held_on(server: Server) -> (Server, Wire) {
    let mut wire = server.wire();
    poll("holder", "").send(&mut wire).fence();
    (server, wire)
}

#[test]
fn a_release_deletes_its_own_lock_only_and_once() {
    let server = Server::start();
    let mut wire = server.wire();
    assert_eq!(release(&mut wire, "mine"), 0, "it is gone");
    acquire(&mut wire, "another's");
    assert_eq!((release(&mut wire, "mine"), owner(&mut wire).as_deref()), (-1, Some("another's")));
    assert_eq!((release(&mut wire, "another's"), wire.exists(LOCK)), (1, false));
    assert_eq!(release(&mut wire, "another's"), 0, "the same, come again");
}

#[test]
fn a_release_by_token_or_by_value_passes_the_lock_on_to_its_queue() {
    for is_whole in [false, true] {
        let (server, mut wire) = held();
        let _a = Process::start(&server, "a");
        poll("a", "a").send(&mut wire);
        let known = if is_whole { known(&mut wire, "holder") } else { token("holder") };
        assert_eq!(known.len() > token("holder").len(), is_whole, "{known}");
        assert_eq!(eval(&mut wire, RELEASE, &[&known]), Value::Int(1));
        assert_eq!(owner(&mut wire).as_deref(), Some("a"), "{known}");
        assert_eq!(eval(&mut wire, RELEASE, &[&known]), Value::Int(-1), "the same, come again: {known}");
        assert_eq!(owner(&mut wire).as_deref(), Some("a"), "{known}");
    }
}

#[test]
fn a_key_of_another_type_is_no_lock_to_release() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["HSET", LOCK, "a", "b"]);
    assert_eq!((eval(&mut wire, RELEASE, &[&token("mine")]), wire.exists(LOCK)), (Value::Int(-1), true));
}

#[test]
fn waiters_get_the_lock_in_their_order_and_it_is_never_free_in_between() {
    let (server, mut wire) = held();
    let mut processes = ["a", "b", "c"].map(|channel| Process::start(&server, channel));
    for (rank, channel) in ["a", "b", "c"].into_iter().enumerate() {
        let (_, place, entered) = poll(channel, channel).send(&mut wire).place();
        assert_eq!((place, entered), (i64::try_from(rank).unwrap(), 1));
    }
    let (mut holder, mut last) = ("holder", wire.get(FENCE).unwrap().parse::<i64>().unwrap());
    for (at, next) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(release(&mut wire, holder), 1);
        assert_eq!(owner(&mut wire).as_deref(), Some(next), "a grant at the release");
        let pttl = wire.pttl(LOCK);
        assert!((4_000..=5_000).contains(&pttl), "for its grant, not its TTL: {pttl}");
        let drawn: i64 = wire.get(FENCE).unwrap().parse().unwrap();
        assert!(drawn > last, "a fence is drawn at the grant");
        assert!(matches!(acquire(&mut wire, "barger").array(), [Value::Int(0), ..]), "an acquire outside of the queue");
        assert_eq!(processes[at].told().last().unwrap(), &call_of(next));
        assert_eq!(poll(next, next).send(&mut wire), Polled::Granted(drawn), "the confirmation");
        assert!(wire.pttl(LOCK) > 25_000, "confirmed for the TTL");
        (holder, last) = (next, drawn);
    }
    assert_eq!(leave(&mut wire, "c", "c"), 1);
    assert_eq!(wire.keys("*"), [FENCE], "an empty queue leaves the fence only");
}

#[test]
fn a_replay_of_any_script_changes_nothing_more() {
    let (server, mut wire) = held();
    let mut a = Process::start(&server, "a");
    let state = |wire: &mut Wire| {
        let held = (owner(wire), wire.get(FENCE), line(wire));
        let mut wait: Vec<String> = wire.must(&["HKEYS", WAIT]).array().iter().map(Value::text).collect();
        wait.sort();
        (held, wait)
    };
    let place = poll("a", "a").send(&mut wire).place();
    let queued = state(&mut wire);
    assert_eq!(poll("a", "a").send(&mut wire).place(), (place.0, 0, 0), "the same ticket, not entered again");
    assert_eq!(state(&mut wire), queued);
    poll("b", "~b").send(&mut wire);

    assert_eq!(release(&mut wire, "holder"), 1);
    let granted = state(&mut wire);
    assert_eq!(release(&mut wire, "holder"), -1);
    assert_eq!(leave(&mut wire, "holder", "a"), -1);
    assert_eq!(state(&mut wire), granted);
    assert_eq!(a.told(), [call_of("a")]);

    let fence = poll("a", "a").send(&mut wire).fence();
    let confirmed = state(&mut wire);
    assert_eq!(poll("a", "a").send(&mut wire).fence(), fence);
    assert_eq!(poll("a", "a").send(&mut wire).fence(), fence);
    assert_eq!(state(&mut wire), confirmed);

    assert_eq!((leave(&mut wire, "a", "a"), leave(&mut wire, "a", "a")), (1, -1));
    assert_eq!(owner(&mut wire).as_deref(), Some("b"));
    assert_eq!((leave(&mut wire, "b", "b"), leave(&mut wire, "b", "b")), (1, 0));
    assert_eq!(eval(&mut wire, FORCE_RELEASE, &TAKEN).int(), 0);
}

/// A clock that is set back within the step: keys that were to live for a while expire at once.
#[test]
fn a_queue_that_expires_within_a_poll_is_entered_again() {
    let (_server, mut wire) = held();
    let at_once = Poll { window: "0", ..poll("a", "one") };
    assert_eq!(at_once.send(&mut wire).place(), ("0".into(), 0, 1));
    let (ticket, rank, entered) = poll("a", "one").send(&mut wire).place();
    assert!(ticket != "0" && (rank, entered) == (0, 1), "{ticket} {rank} {entered}");
}

#[test]
fn an_unreachable_waiter_is_skipped_and_keeps_its_place() {
    let (server, mut wire) = held();
    let killed = Process::start(&server, "killed");
    let _alive = Process::start(&server, "alive");
    let (ticket, ..) = poll("a", "killed").send(&mut wire).place();
    Poll { window: "1", ..poll("b", "~b") }.send(&mut wire);
    for token in ["c", "d"] {
        poll(token, "alive").send(&mut wire);
    }
    // Two waiters without an entry, as if `wait` had been evicted.
    wire.must(&["ZADD", LINE, "1", &token("z")]);
    killed.die(&mut wire, "killed");
    sleep(Duration::from_millis(2));
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("c"));
    assert_eq!(line(&mut wire), ["d"]);
    let again = Poll { ticket: &ticket, ..poll("a", "killed") }.send(&mut wire);
    assert_eq!(again.place(), (ticket, 0, 1));
    assert_eq!(line(&mut wire), ["a", "d"]);
}

#[test]
fn a_killed_process_costs_one_message_and_a_stopped_one_a_single_grant() {
    let (server, mut wire) = held();
    let mut stopped = Process::start(&server, "stopped");
    let mut alive = Process::start(&server, "alive");
    for token in ["k1", "k2", "k3"] {
        poll(token, "killed").send(&mut wire);
    }
    for token in ["s1", "s2", "s3"] {
        Poll { grant: "100", ..poll(token, "stopped") }.send(&mut wire);
    }
    poll("a1", "alive").send(&mut wire);
    poll("a2", "alive").send(&mut wire);

    wire.must(&["CONFIG", "RESETSTAT"]);
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("s1"), "it looks like a healthy one");
    let stats = wire.must(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_publish:calls=4,"), "killed, granted, next, and next of another process: {stats}");
    support::eventually(Duration::from_secs(5), "the grant lapses", || !wire.exists(LOCK));
    let fence = poll("a1", "alive").send(&mut wire).fence();
    assert!(fence > 0);
    assert_eq!(line(&mut wire), ["a2"]);
    assert_eq!(stopped.told(), [call_of("s1"), "next 100 s2".into()]);
    // The one before may be stopped with the one that has the grant. Whoever becomes the first is asked to poll.
    assert_eq!(alive.told(), ["next 100 a1", "next 0 a2"]);

    // The process runs again, and polls for each of its waiters.
    assert_eq!(Poll { ticket: "1", ..poll("s2", "stopped") }.send(&mut wire).place().1, 0);
    assert_eq!(leave(&mut wire, "a1", "alive"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("s2"), "a process that polls gets grants again");
}

#[test]
fn a_process_with_two_grants_under_way_loses_no_waiter() {
    let (server, mut wire) = held();
    let mut a = Process::start(&server, "a");
    let _b = Process::start(&server, "b");
    for (token, channel) in [("a1", "a"), ("a2", "a"), ("b", "b")] {
        poll(token, channel).send(&mut wire);
    }
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("a1"));
    // The lock is taken from it before it confirms its grant.
    assert_eq!(eval(&mut wire, FORCE_RELEASE, &TAKEN).int(), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("a2"), "at once, and not when it polls for its place");
    assert_eq!(a.told(), [call_of("a1"), format!("next {GRANT} a2"), call_of("a2")]);
    poll("a2", "a").send(&mut wire).fence();
    assert_eq!(line(&mut wire), ["b"]);
}

#[test]
fn a_process_that_has_said_nothing_for_its_window_is_passed_over() {
    let shim = ClockShim::new();
    let (server, mut wire) = held_on(Server::builder().clock(&shim).start());
    let _all = ["stopped", "quiet", "a"].map(|channel| Process::start(&server, channel));
    for (label, channel) in [("s1", "stopped"), ("s2", "stopped"), ("q", "quiet")] {
        Poll { window: "10000", ..poll(label, channel) }.send(&mut wire);
    }
    poll("a", "a").send(&mut wire);
    shim.forward(Duration::from_secs(9));
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("s1"));
    shim.forward(Duration::from_secs(2));
    assert_eq!(eval(&mut wire, FORCE_RELEASE, &TAKEN).int(), 1);
    assert_eq!(
        (owner(&mut wire).as_deref(), line(&mut wire)),
        (Some("a"), vec![]),
        "that is sooner than its grant lapses"
    );
}

#[test]
fn whatever_says_something_for_a_process_has_its_words_forgotten_in_time() {
    let (_server, mut wire) = held();
    poll("a", "a").send(&mut wire);
    poll("b", "b").send(&mut wire);
    wire.del(WAIT);
    assert_eq!(leave(&mut wire, "a", "a"), -1);
    assert!(has_mark(&mut wire, "a") && wire.pttl(WAIT) > 0, "a leave");
    wire.del(WAIT);
    poll("holder", "h").send(&mut wire).fence();
    assert!(has_mark(&mut wire, "h") && wire.pttl(WAIT) > 0, "a confirmation");
    poll("b", "b").send(&mut wire);
    assert!(has_mark(&mut wire, "b") && wire.pttl(WAIT) > 0, "a poll");
}

#[test]
fn the_understudy_is_notified_when_to_check() {
    let (server, mut wire) = held();
    let (mut a, mut c) = (Process::start(&server, "a"), Process::start(&server, "c"));
    for (token, channel) in [("a", "a"), ("dead", "dead"), ("c", "c")] {
        poll(token, channel).send(&mut wire);
    }
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(a.told(), [call_of("a")]);
    assert_eq!(c.told(), [format!("next {GRANT} c")]);
    assert_eq!(line(&mut wire), ["c"], "an unreachable waiter is not called as next");
}

#[test]
fn an_understudy_of_a_silent_process_is_skipped() {
    let (server, mut wire) = held();
    let _stopped = Process::start(&server, "stopped");
    let (mut a, mut b) = (Process::start(&server, "a"), Process::start(&server, "b"));
    for token in ["s1", "s2"] {
        Poll { grant: "100", ..poll(token, "stopped") }.send(&mut wire);
    }
    assert_eq!(release(&mut wire, "holder"), 1);
    support::eventually(Duration::from_secs(5), "the grant lapses", || !wire.exists(LOCK));
    acquire(&mut wire, "barger");
    for (token, channel, ticket) in [("a", "a", "1"), ("b", "b", "0")] {
        Poll { ticket, ..poll(token, channel) }.send(&mut wire);
    }
    assert_eq!(eval(&mut wire, FORCE_RELEASE, &TAKEN).int(), 1);
    assert_eq!(a.told(), [call_of("a")]);
    assert_eq!(b.told(), [format!("next {GRANT} b")]);
}

#[test]
fn a_waiter_that_gives_up_at_the_instant_of_its_grant_passes_it_on() {
    let (server, mut wire) = held();
    let (_a, _b) = (Process::start(&server, "a"), Process::start(&server, "b"));
    poll("a", "a").send(&mut wire);
    poll("b", "b").send(&mut wire);
    poll("c", "b").send(&mut wire);
    poll("d", "b").send(&mut wire);
    assert_eq!(leave(&mut wire, "c", "b"), -1, "one that only waited");
    assert_eq!(line(&mut wire), ["a", "b", "d"]);
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(leave(&mut wire, "a", "a"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("b"));
    assert_eq!(leave(&mut wire, "b", "b"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("d"), "its process is not silent: it has just said so");
    assert_eq!(leave(&mut wire, "d", "b"), 1);
    assert!(!wire.exists(LOCK), "no waiter is left");
    assert_eq!(leave(&mut wire, "d", "b"), 0);
}

#[test]
fn an_unconfirmed_mark_outlives_the_queue_only_for_a_while() {
    let (server, mut wire) = held();
    let _a = Process::start(&server, "a");
    poll("a", "a").send(&mut wire);
    assert_eq!(release(&mut wire, "holder"), 1);
    assert!(has_mark(&mut wire, "a"));
    assert!(wire.pttl(WAIT) > 0, "a key without an expiry would stay for ever");
}

#[test]
fn a_check_never_enters_the_queue_and_never_overtakes() {
    let (server, mut wire) = held();
    let look = Poll { enter: false, ..poll("look", "look") };
    let fence = wire.get(FENCE).unwrap().parse().unwrap();
    match look.send(&mut wire) {
        Polled::Waits { pttl, value, fence: seen, ticket, rank: 0, entered: 0 } => {
            assert_eq!((value.as_deref(), seen, ticket.as_str()), (Some("holder"), Some(fence), "0"));
            assert!(pttl > 25_000);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(wire.keys("*"), [LOCK, FENCE]);

    let _a = Process::start(&server, "a");
    poll("a", "a").send(&mut wire);
    poll("b", "a").send(&mut wire);
    assert_eq!(look.send(&mut wire).place(), ("0".into(), 2, 0));
    wire.del(LOCK);
    match look.send(&mut wire) {
        Polled::Waits { value, rank: 1, fence: Some(drawn), .. } => {
            assert_eq!(value.as_deref(), Some("a"), "it grants to the waiter ahead of it");
            assert!(drawn > fence);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(leave(&mut wire, "b", "a"), -1);
    assert_eq!(leave(&mut wire, "a", "a"), 1);
    look.send(&mut wire).fence();
}

#[test]
fn tickets_restore_a_queue_that_was_deleted() {
    let (server, mut wire) = held();
    let _all = Process::start(&server, "all");
    let tickets = ["a", "b", "c"].map(|token| poll(token, "all").send(&mut wire).place().0);
    wire.del(LINE);
    wire.del(WAIT);
    for (at, token) in [(2, "c"), (0, "a"), (1, "b")] {
        let again = Poll { ticket: &tickets[at], ..poll(token, "all") }.send(&mut wire).place();
        assert_eq!((&again.0, again.2), (&tickets[at], 1));
    }
    assert_eq!(line(&mut wire), ["a", "b", "c"]);

    let listed = wire.must(&["EVAL", QUEUE, "1", LINE, "2", WAIT]);
    let listed = listed.array();
    assert!(matches!(listed[0], Value::Int(now) if now > tickets[2].parse().unwrap()), "{:?}", listed[0]);
    assert_eq!(listed[1], Value::Int(3));
    let line: Vec<_> = listed[2..].chunks(3).map(|one| (labels(&one[0].text()), one[1].text(), one[2].int())).collect();
    assert_eq!(line, [("a".into(), tickets[0].clone(), 0), ("b".into(), tickets[1].clone(), 0)]);
    let none = wire.must(&["EVAL", QUEUE, "1", "{other}:lh:queue", "2", "{other}:lh:wait"]);
    assert!(matches!(none.array(), [Value::Int(_), Value::Int(0)]));
    assert_eq!(wire.must(&["EVAL", QUEUE, "1", LINE, "0", WAIT]).array().len(), 2);
}

#[test]
fn a_newly_started_server_grants_nothing_to_a_queue_and_keeps_its_order() {
    const DELAY: i64 = 31;
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let (mut wire, mut a) = (server.wire(), Process::start(&server, "a"));
    let delayed = |token| Poll { restart_delay: "31", ..poll(token, "a") };
    for (poll, place) in [
        (Poll { enter: false, ..delayed("look") }, ("0", 0, 0)),
        (delayed("first"), ("", 0, 1)),
        (delayed("second"), ("", 1, 1)),
        (delayed("first"), ("", 0, 0)),
        (Poll { enter: false, ..delayed("look") }, ("0", 2, 0)),
    ] {
        let reply = poll.raw(&mut wire);
        let [Value::Int(2), Value::Int(1..=DELAY), run, ticket, Value::Int(rank), Value::Int(entered)] = reply.array()
        else {
            panic!("{poll:?}: {reply:?}")
        };
        assert_eq!(Some(run.text()), wire.try_info_field("server", "run_id").unwrap());
        assert_eq!((ticket.text() == "0", *rank, *entered), (place.0 == "0", place.1, place.2), "{poll:?}");
    }
    assert_eq!(leave(&mut wire, "nobody", "a"), 0, "a lock that is found free");
    assert!(!wire.exists(LOCK) && !wire.exists(FENCE));
    // The server restored a lock from its disk that was released before, and then granted to another holder: the
    // release is sent again.
    for script in [RELEASE, LEAVE, FORCE_RELEASE] {
        acquire(&mut wire, "holder");
        assert_eq!(delayed("second").send(&mut wire).place().1, 1, "somebody has it");
        assert_eq!(part(&mut wire, script, "holder"), Value::Int(1));
        assert!(!wire.exists(LOCK), "a lock that may be another's is not passed on");
    }
    assert_eq!((line(&mut wire), a.told()), (vec!["first".into(), "second".into()], vec![]));

    clock.forward(Duration::from_secs(32));
    assert!(matches!(delayed("second").send(&mut wire), Polled::Waits { value: Some(first), .. } if first == "first"));
    assert_eq!(a.told().first(), Some(&call_of("first")));
    delayed("first").send(&mut wire).fence();
    assert_eq!(release(&mut wire, "first"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("second"));
}

#[test]
fn without_the_right_to_info_no_request_that_needs_the_uptime_is_granted() {
    let server = Server::start();
    server.wire().must(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", "-info"]);
    let mut wire = server.wire();
    wire.must(&["AUTH", "worker", "secret"]);
    let delayed = Poll { restart_delay: "31", ..poll("a", "") };
    let refused = delayed.raw(&mut wire);
    assert!(refused.error().is_some_and(|error| error.contains("INFO")), "{refused:?}");
    assert!(wire.keys("*").is_empty());
    poll("holder", "").send(&mut wire).fence();
    assert_eq!(delayed.send(&mut wire).place().1, 0, "a held lock is not checked");
    assert_eq!(release(&mut wire, "holder"), 1);
    assert!(!wire.exists(LOCK), "nor is it known, at a release, that it may be granted");
}

#[test]
fn a_stepped_server_clock_changes_nobodys_place() {
    const HOUR: Duration = Duration::from_secs(3_600);

    let shim = ClockShim::new();
    let (server, mut wire) = held_on(Server::builder().clock(&shim).start());
    let _all = Process::start(&server, "all");
    let mut tickets = Vec::new();
    let mut enter = |wire: &mut Wire, token: &'static str| {
        let ticket = poll(token, "all").send(wire).place().0;
        tickets.push((token, ticket));
    };
    enter(&mut wire, "a");
    enter(&mut wire, "b");
    let before: i64 = wire.get(FENCE).unwrap().parse().unwrap();
    shim.forward(HOUR);
    assert_eq!(wire.keys("*"), [FENCE], "the step has ended every other key");
    let holder = acquire(&mut wire, "holder");
    assert!(holder.array()[1].int() > before);
    enter(&mut wire, "c");
    shim.back(HOUR);
    enter(&mut wire, "d");
    // The first two are not notified that their places are lost; their next poll restores them.
    for (token, ticket) in &tickets[..2] {
        Poll { ticket, ..poll(token, "all") }.send(&mut wire);
    }
    let (mut holder, mut last) = ("holder", holder.array()[1].int());
    for next in ["a", "b", "c", "d"] {
        assert_eq!(leave(&mut wire, holder, "all"), 1);
        assert_eq!(owner(&mut wire).as_deref(), Some(next));
        let fence = poll(next, "all").send(&mut wire).fence();
        assert!(fence > last, "{fence} after {last}");
        (holder, last) = (next, fence);
    }
}

#[test]
fn keys_that_hold_something_else_are_named_before_any_write() {
    let (_server, mut wire) = held();
    for (key, says) in [
        (LINE, "ERR the queue key {job}:lh:queue holds another type: delete it to go on"),
        (WAIT, "ERR the queue key {job}:lh:wait holds another type: delete it to go on"),
        (FENCE, "ERR the fence key {job}:lh:fence holds no fence: delete it to go on"),
    ] {
        wire.set(key, "nonsense");
        let before = wire.keys("*");
        for token in ["holder", "a"] {
            for enter in [true, false] {
                let reply = Poll { enter, ..poll(token, "a") }.raw(&mut wire);
                assert_eq!(reply.error(), Some(says));
            }
        }
        assert_eq!(wire.keys("*"), before);
        wire.del(key);
    }
    wire.set(LINE, "nonsense");
    let listed = wire.cmd(&["EVAL", QUEUE, "1", LINE, "2", WAIT]);
    assert_eq!(listed.error(), Some("ERR the queue key {job}:lh:queue holds another type: delete it to go on"));
    wire.del(LINE);

    wire.del(LOCK);
    wire.must(&["LPUSH", LOCK, "data"]);
    match poll("a", "").send(&mut wire) {
        Polled::Waits { pttl: -1, value: Some(value), rank: 0, entered: 1, .. } if value == "of type list" => {}
        other => panic!("another type is busy: {other:?}"),
    }
    assert_eq!(leave(&mut wire, "a", ""), -1);
    assert!(eval(&mut wire, FORCE_RELEASE, &TAKEN).error().unwrap().contains("WRONGTYPE"));
}

#[test]
fn a_release_works_whatever_is_wrong_with_the_queue() {
    let server = Server::start();
    let mut wire = server.wire();
    let mut a = Process::start(&server, "a");
    for spoil in [
        &["SET", LINE, "x"][..],
        &["SET", WAIT, "x"],
        &["SET", FENCE, "x"],
        &["LPUSH", FENCE, "x"],
        &["HSET", WAIT, &token("a"), "x"],
    ] {
        for script in [RELEASE, LEAVE, FORCE_RELEASE] {
            wire.must(&["FLUSHALL"]);
            poll("holder", "").send(&mut wire).fence();
            poll("a", "a").send(&mut wire);
            wire.del(spoil[1]);
            wire.must(spoil);
            let known = known(&mut wire, "holder");
            let parted = if script == RELEASE {
                eval(&mut wire, script, &[&known, ""])
            } else {
                part(&mut wire, script, "holder")
            };
            assert_eq!(parted, Value::Int(1), "{spoil:?}");
            assert!(!wire.exists(LOCK), "{spoil:?}");
            if spoil[1] == FENCE {
                assert_eq!(line(&mut wire), ["a"], "no waiter loses its place for it");
                assert!(a.told().is_empty());
            }
        }
    }
}

#[test]
fn a_user_without_rights_to_the_queue_can_release() {
    const BASE: &str = "+eval +get +getrange +exists +set +del +pttl +pexpire +time";

    let server = Server::start();
    let mut wire = server.wire();
    let mut a = Process::start(&server, "a");
    for (rights, granted) in [
        ("~*", false),
        ("~* +zcard", false),
        ("~* +zcard +zrange", false),
        // Without a channel it counts as notified.
        ("~* +zcard +zrange +zrem +hget +hset +hdel", true),
        ("~* &* +zcard +zrange +zrem +hget +hset +hdel +publish", true),
    ] {
        wire.must(&["FLUSHALL"]);
        poll("holder", "").send(&mut wire).fence();
        poll("a", "a").send(&mut wire);
        let mut set = vec!["ACL", "SETUSER", "worker", "reset", "on", ">secret", "-@all", "resetchannels"];
        set.extend(BASE.split(' ').chain(rights.split(' ')));
        wire.must(&set);
        let mut worker = server.wire();
        worker.must(&["AUTH", "worker", "secret"]);
        assert_eq!(release(&mut worker, "holder"), 1, "{rights}");
        assert_eq!(owner(&mut wire).as_deref(), granted.then_some("a"), "{rights}");
        assert_eq!(a.told().len(), usize::from(rights.contains("publish")), "{rights}");
    }
}

#[test]
fn exhausted_memory_stops_no_release_and_leaves_nothing_of_a_poll() {
    for script in [RELEASE, LEAVE, FORCE_RELEASE] {
        let (server, mut wire) = held();
        let _a = Process::start(&server, "a");
        poll("a", "a").send(&mut wire);
        wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
        let refused = poll("b", "b").raw(&mut wire);
        assert!(refused.error().unwrap().contains("OOM"), "{refused:?}");
        assert_eq!(line(&mut wire), ["a"]);
        assert_eq!(part(&mut wire, script, "holder"), Value::Int(1));
        assert_eq!(owner(&mut wire).as_deref(), Some("a"));
        poll("a", "a").send(&mut wire).fence();
        assert_eq!(leave(&mut wire, "a", "a"), 1);
        let refused = poll("b", "b").raw(&mut wire);
        assert!(refused.error().unwrap().contains("OOM"), "{refused:?}");
        wire.del(TAKEN[0]);
        assert_eq!(wire.keys("*"), [FENCE]);
    }
}

/// Adds thousands of waiters, without a poll of each.
fn crowd(wire: &mut Wire, count: usize, channel: &str) {
    let entry = format!("{GRANT}|9|0|{MEMORY}|{channel}");
    let script = "for i = 2, #ARGV do redis.call('ZADD', KEYS[1], i - 1, ARGV[i]) \
                  redis.call('HSET', KEYS[2], ARGV[i], ARGV[1]) end";
    let tokens: Vec<String> = (1..=count).map(|n| token(&format!("crowd{n}"))).collect();
    let mut command = vec!["EVAL", script, "2", LINE, WAIT, &entry];
    command.extend(tokens.iter().map(String::as_str));
    wire.must(&command);
}

/// The processor time that the server has used: on a busy machine less than the elapsed time.
fn computed(wire: &mut Wire) -> Duration {
    let info = wire.must(&["INFO", "cpu"]).text();
    let of = |part: &str| info.lines().find_map(|line| line.strip_prefix(part)).unwrap().parse::<f64>().unwrap();
    Duration::from_secs_f64(of("used_cpu_user:") + of("used_cpu_sys:"))
}

#[test]
fn a_lock_with_ten_thousand_waiters_is_passed_on_at_once() {
    let (server, mut wire) = held();
    let mut all = Process::start(&server, "all");
    crowd(&mut wire, 10_000, "all");
    let before = computed(&mut wire);
    assert_eq!(release(&mut wire, "holder"), 1);
    // The first run includes the compilation of the script.
    let took = computed(&mut wire).saturating_sub(before);
    assert!(took < Duration::from_millis(50), "{took:?}");
    assert_eq!(owner(&mut wire).as_deref(), Some("crowd1"));
    assert_eq!(all.told(), [call_of("crowd1"), format!("next {GRANT} crowd2")]);
}

#[test]
fn ten_thousand_dead_waiters_are_skipped() {
    let (server, mut wire) = held();
    let mut alive = Process::start(&server, "alive");
    for channel in ["~dead", "dead"] {
        wire.must(&["FLUSHALL"]);
        poll("holder", "").send(&mut wire).fence();
        crowd(&mut wire, 10_000, channel);
        // A waiter near the end.
        let told = token("told");
        wire.must(&["ZADD", LINE, "9995.5", &told]);
        wire.must(&["HSET", WAIT, &told, &format!("{GRANT}|0|0|{MEMORY}|alive")]);
        let start = Instant::now();
        assert_eq!(release(&mut wire, "holder"), 1);
        assert!(start.elapsed() < Duration::from_secs(1), "one call is bounded: {:?}", start.elapsed());
        assert!(!wire.exists(LOCK), "no waiter was found yet");
        assert_eq!(line(&mut wire).len(), 5_801, "a thousand, and a hundred pages to find one to notify");
        assert_eq!(alive.told(), ["next 0 told"]);
        assert_eq!(leave(&mut wire, "told", "alive"), 0);
        assert_eq!(line(&mut wire).len(), 1_600, "leaving a free lock checks as many");

        let mut polls = 0;
        let fence = loop {
            polls += 1;
            assert!(polls <= 2, "a thousand in each, and the rest");
            match poll("me", "alive").send(&mut wire) {
                Polled::Granted(fence) => break fence,
                Polled::Waits { pttl: -2, value: None, entered, .. } => assert_eq!(entered, i64::from(polls == 1)),
                waits @ Polled::Waits { .. } => panic!("{waits:?}"),
            }
        };
        assert_eq!(polls, 2, "one call is bounded");
        assert!(fence > 0);
        assert_eq!(wire.keys("*"), [LOCK, FENCE]);
    }
}

/// The dead are more than one call passes over, and others of them are behind the one that is alive.
#[test]
fn behind_the_dead_the_first_that_is_alive_is_asked_to_continue() {
    let server = Server::start();
    let (mut wire, mut alive) = (server.wire(), Process::start(&server, "alive"));
    for (dead, is_shared) in [(1_500, false), (1_500, true), (3_900, true)] {
        wire.must(&["FLUSHALL"]);
        // Alone, or beside a sharer that stays, so that the line has to go on by its head.
        let shares = |wire: &mut Wire, label: &str| {
            let args = [&token(label), TTL, "0", GRANT, WINDOW, "", "1", "0", MEMORY, "2"];
            assert_eq!(eval(wire, JOIN, &args).array()[0], Value::Int(1), "{label}");
        };
        if is_shared {
            // The one that stays is in for at least as long, so nobody has to hear of an earlier end.
            shares(&mut wire, "holder");
            shares(&mut wire, "stays");
        } else {
            poll("holder", "").send(&mut wire).fence();
        }
        crowd(&mut wire, dead + 50, if is_shared { "2*dead" } else { "dead" });
        let told = token("told");
        wire.must(&["ZADD", LINE, &format!("{dead}.5"), &told]);
        let limit = if is_shared { "2*" } else { "" };
        wire.must(&["HSET", WAIT, &told, &format!("{GRANT}|0|0|{MEMORY}|{limit}alive")]);
        if is_shared {
            assert_eq!(eval(&mut wire, PART, &[&token("holder")]), Value::Int(1));
        } else {
            assert_eq!(release(&mut wire, "holder"), 1);
        }
        assert_eq!(alive.told(), ["next 0 told"], "{dead}, shared: {is_shared}");
    }
}

#[test]
fn the_first_waiter_of_another_process_is_notified_at_any_position() {
    let (server, mut wire) = held();
    let mut stopped = Process::start(&server, "stopped");
    let (mut a, mut b) = (Process::start(&server, "a"), Process::start(&server, "b"));
    // Less than a page of waiters before it, a page with and without the granted one, and many.
    for count in [3, 31, 32, 33, 34, 40, 65, 3_000] {
        wire.must(&["FLUSHALL"]);
        poll("holder", "").send(&mut wire).fence();
        crowd(&mut wire, count, "stopped");
        poll("a", "a").send(&mut wire);
        poll("b", "b").send(&mut wire);
        assert_eq!(release(&mut wire, "holder"), 1);
        assert_eq!(stopped.told(), [call_of("crowd1"), format!("next {GRANT} crowd2")], "behind {count}");
        assert_eq!(a.told(), [format!("next {GRANT} a")], "behind {count}");
        assert_eq!(b.told(), [format!("next {GRANT} b")], "behind {count}");
    }
    // One call is bounded, and the next one continues from there.
    wire.must(&["FLUSHALL"]);
    poll("holder", "").send(&mut wire).fence();
    crowd(&mut wire, 9_000, "stopped");
    poll("a", "a").send(&mut wire);
    let mut holder = "holder".to_owned();
    for grant in 1..=3 {
        assert_eq!(release(&mut wire, &holder), 1);
        assert_eq!(a.told().len(), usize::from(grant == 3), "grant {grant}");
        holder = owner(&mut wire).unwrap();
        poll(&holder, "stopped").send(&mut wire).fence();
    }
    // Polling waiters are not notified.
    wire.must(&["FLUSHALL"]);
    stopped.told();
    poll("holder", "").send(&mut wire).fence();
    crowd(&mut wire, 40, "stopped");
    for token in ["dead", "p1", "p2"] {
        poll(token, if token == "dead" { "dead" } else { "~polls" }).send(&mut wire);
    }
    poll("a", "a").send(&mut wire);
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(line(&mut wire)[38..], ["crowd40", "p1", "p2", "a"], "an unreachable waiter is passed over");
    assert_eq!(a.told(), [format!("next {GRANT} a")], "behind one who polls, which may be dead");
}

/// The one that was granted the lock and the next one may both be stopped.
#[test]
fn the_first_waiters_of_twelve_more_processes_are_notified_and_others_once_fewer_than_six_are_left() {
    const ALL: usize = 30;
    let (server, mut wire) = held();
    let mut all: Vec<_> = (0..ALL).map(|n| Process::start(&server, &format!("p{n}"))).collect();
    let enter = |wire: &mut Wire, waiter: &str, n: usize| poll(&format!("{waiter}{n}"), &format!("p{n}")).send(wire);
    // Returns the waiters that are notified to poll.
    let mut pass = |wire: &mut Wire, from: &str, to: usize| {
        assert_eq!(release(wire, from), 1);
        poll(&format!("w{to}"), &format!("p{to}")).send(wire).fence();
        let mut next = Vec::new();
        for (n, process) in all.iter_mut().enumerate() {
            for told in process.told() {
                if n == to {
                    assert_eq!(told, call_of(&format!("w{to}")));
                } else {
                    assert_eq!(told, format!("next {GRANT} w{n}"), "only the first waiter of each");
                    next.push(n);
                }
            }
        }
        next
    };
    for n in 0..20 {
        enter(&mut wire, "w", n);
    }
    enter(&mut wire, "v", 19);
    assert_eq!(pass(&mut wire, "holder", 0), (1..=13).collect::<Vec<_>>());
    for n in 1..=6 {
        assert_eq!(pass(&mut wire, &format!("w{}", n - 1), n), [n + 1], "w8 to w13 are behind the next one");
    }
    // Fewer than six are left. The others of the page follow.
    assert_eq!(pass(&mut wire, "w6", 7), [8, 14, 15, 16, 17, 18, 19]);
    // Later waiters are notified as well, once each.
    for n in 20..ALL {
        enter(&mut wire, "w", n);
    }
    let mut told = Vec::new();
    for n in 8..=14 {
        told.extend(pass(&mut wire, &format!("w{}", n - 1), n).into_iter().filter(|told| *told != n + 1));
    }
    assert_eq!(told, (20..ALL).collect::<Vec<_>>());

    // The time has gone by; or the clock was set back, and the value means nothing.
    let text = wire.must(&["HGET", WAIT, ">>"]).text();
    let (until, rest) = text.split_once('|').unwrap();
    let until: u64 = until.parse().unwrap();
    for (n, until) in [(15, until - 100_000_000), (16, until + 100_000_000)] {
        wire.must(&["HSET", WAIT, ">>", &format!("{until}|{rest}")]);
        let told = pass(&mut wire, &format!("w{}", n - 1), n);
        assert_eq!(told, (n + 1..=n + 13).filter(|n| *n < ALL).collect::<Vec<_>>());
    }
}

#[test]
fn behind_sixty_waiters_of_one_process_another_is_notified() {
    let (server, mut wire) = held();
    let (_stopped, mut live) = (Process::start(&server, "stopped"), Process::start(&server, "live"));
    let _first = Process::start(&server, "first");
    poll("one", "first").send(&mut wire);
    for n in 0..60 {
        poll(&format!("s{n}"), "stopped").send(&mut wire);
    }
    poll("live", "live").send(&mut wire);
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(live.told(), [format!("next {GRANT} live")]);
}

/// As many as one call admits; then the next one, which is to go on with it, may be stopped.
#[test]
fn behind_as_many_as_one_call_admits_more_than_one_process_is_notified() {
    let (server, mut wire) = held();
    let (_many, _stopped) = (Process::start(&server, "many"), Process::start(&server, "stopped"));
    let mut live = Process::start(&server, "live");
    for n in 0..34 {
        let label = format!("r{n}");
        let channel = ["many", "stopped", "live"][usize::from(n > 31) + usize::from(n > 32)];
        let args = [&token(&label), TTL, "0", GRANT, WINDOW, channel, "1", "0", MEMORY, "4294967295"];
        assert_eq!(eval(&mut wire, JOIN, &args).array()[0], Value::Int(0), "{label}");
    }
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(live.told(), [format!("next {GRANT} r33")], "it goes on when a grant has lapsed");
}

/// Two processes with many waiters each: what has been read is not read again for each grant.
#[test]
fn waiters_behind_the_next_one_are_read_once() {
    let (server, mut wire) = held();
    let _all = [Process::start(&server, "one"), Process::start(&server, "two")];
    for n in 0..200 {
        poll(&format!("w{n}"), ["one", "two"][n % 2]).send(&mut wire);
    }
    let mut read = Vec::new();
    for n in 0..20 {
        wire.must(&["CONFIG", "RESETSTAT"]);
        assert_eq!(release(&mut wire, &if n == 0 { "holder".to_owned() } else { format!("w{}", n - 1) }), 1);
        read.push(wire.calls("hget"));
        poll(&format!("w{n}"), ["one", "two"][n % 2]).send(&mut wire).fence();
    }
    assert!(read[0] > 64, "as far ahead as waiters are notified: {read:?}");
    assert!(read[1..].iter().all(|read| *read < 12), "one more each: {read:?}");
}

#[test]
fn a_long_queue_of_one_process_is_walked_once_and_again_when_another_process_enters_it() {
    let (server, mut wire) = held();
    let _all = Process::start(&server, "all");
    let (mut a, mut b) = (Process::start(&server, "a"), Process::start(&server, "b"));
    crowd(&mut wire, 1_000, "all");
    let mut holder = "holder".to_owned();
    // Passes the lock on and confirms it. Returns the notifications, and how many waiters were read.
    let mut pass = |wire: &mut Wire, ears: &mut Process| {
        wire.must(&["CONFIG", "RESETSTAT"]);
        assert_eq!(release(wire, &holder), 1);
        let read = wire.calls("hget");
        holder = owner(wire).unwrap();
        poll(&holder, "all").send(wire).fence();
        (ears.told(), read)
    };
    let (told, read) = pass(&mut wire, &mut a);
    assert!(told.is_empty() && read >= 1_000, "each may be of another process: {read}");
    let (told, read) = pass(&mut wire, &mut a);
    assert!(told.is_empty() && read < 10, "{read}");

    poll("a", "a").send(&mut wire);
    for _ in 0..2 {
        let (told, read) = pass(&mut wire, &mut a);
        assert!(told == [format!("next {GRANT} a")] && read < 10, "{told:?}, {read}");
    }
    // Back with an old ticket, as after a stop: ahead of the others.
    Poll { ticket: "500", ..poll("b", "b") }.send(&mut wire);
    let (told, read) = pass(&mut wire, &mut b);
    assert_eq!(told, [format!("next {GRANT} b")]);
    assert!((400..590).contains(&read), "{read}");
    assert_eq!(a.told().len(), 0);
    let (told, read) = pass(&mut wire, &mut b);
    assert!(told == [format!("next {GRANT} b")] && read < 10, "{told:?}, {read}");
}

#[test]
fn a_ticket_issued_twice_after_the_clock_was_set_back_is_not_skipped() {
    let shim = ClockShim::new();
    let (server, mut wire) = held_on(Server::builder().clock(&shim).start());
    let (_all, mut a) = (Process::start(&server, "all"), Process::start(&server, "a"));
    let many: Vec<String> = (0..60).map(|n| format!("many{n}")).collect();
    let tickets: Vec<_> = many.iter().map(|token| poll(token, "all").send(&mut wire).place().0).collect();
    assert_eq!(release(&mut wire, "holder"), 1);
    poll("many0", "all").send(&mut wire).fence();
    // All waiters up to the last are of one process. Then those at the end leave.
    for token in &many[50..] {
        assert_eq!(leave(&mut wire, token, "all"), -1);
    }
    shim.back(Duration::from_secs(3_600));
    let (ticket, ..) = poll("a", "a").send(&mut wire).place();
    assert!(ticket < tickets[59], "{ticket} {}", tickets[59]);
    assert_eq!(release(&mut wire, "many0"), 1);
    assert_eq!(a.told(), [format!("next {GRANT} a")]);
}

#[test]
fn nothing_is_left_of_a_long_queue_in_which_nobody_waits() {
    let (server, mut wire) = held();
    let all = Process::start(&server, "all");
    let fill = |wire: &mut Wire| {
        wire.must(&["FLUSHALL"]);
        poll("holder", "").send(wire).fence();
        crowd(wire, 50, "all");
        assert_eq!(release(wire, "holder"), 1);
        assert_eq!(poll("crowd1", "all").send(wire).fence() > 0, wire.must(&["HEXISTS", WAIT, ">"]).int() == 1);
    };
    // By giving up, starting from the back.
    fill(&mut wire);
    for n in (2..=50).rev() {
        assert_eq!(leave(&mut wire, &format!("crowd{n}"), "all"), -1);
    }
    assert_eq!(leave(&mut wire, "crowd1", "all"), 1);
    assert_eq!(wire.keys("*"), [FENCE]);
    // By passing the lock on.
    fill(&mut wire);
    for n in 1..=50 {
        poll(&format!("crowd{n}"), "all").send(&mut wire).fence();
        assert_eq!(release(&mut wire, &format!("crowd{n}")), 1);
    }
    assert_eq!(wire.keys("*"), [FENCE]);
    // By dying: the next poll or release notices it.
    fill(&mut wire);
    all.die(&mut wire, "all");
    assert_eq!(release(&mut wire, "crowd1"), 1);
    assert_eq!(wire.keys("*"), [FENCE]);
}

#[test]
fn a_process_that_polls_and_was_killed_costs_a_single_grant() {
    let (server, mut wire) = held();
    let _other = Process::start(&server, "other");
    let lapses =
        |wire: &mut Wire| support::eventually(Duration::from_secs(5), "the grant lapses", || !wire.exists(LOCK));
    for token in ["k1", "k2", "k3"] {
        Poll { grant: "100", ..poll(token, "~killed") }.send(&mut wire);
    }
    // It could be called once, and the server knows it by the same name.
    Poll { grant: "100", ..poll("k4", "other") }.send(&mut wire);
    Poll { grant: "100", ..poll("k5", "~other") }.send(&mut wire);
    poll("me", "~me").send(&mut wire);
    assert_eq!(release(&mut wire, "holder"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("k1"));
    assert!(has_mark(&mut wire, "killed"));
    lapses(&mut wire);
    let looks = Poll { enter: false, ..poll("look", "~look") };
    looks.send(&mut wire);
    assert_eq!((owner(&mut wire).as_deref(), line(&mut wire)), (Some("k4"), vec!["k5".into(), "me".into()]));
    lapses(&mut wire);
    looks.send(&mut wire);
    assert_eq!((owner(&mut wire).as_deref(), line(&mut wire)), (Some("me"), vec![]));
}

#[test]
fn a_process_that_polls_and_lives_loses_nothing() {
    let (_server, mut wire) = held();
    let polls = |token, ticket| Poll { grant: "100", ticket, ..poll(token, "~polls") };
    let tickets = ["a", "b", "c"].map(|token| polls(token, "0").send(&mut wire).place().0);
    poll("other", "~other").send(&mut wire);
    assert_eq!(release(&mut wire, "holder"), 1);
    // It was too late for the grant, and the process's other waiters poll.
    support::eventually(Duration::from_secs(5), "the grant lapses", || !wire.exists(LOCK));
    match polls("c", &tickets[2]).send(&mut wire) {
        Polled::Waits { value, rank, entered: 0, .. } => assert_eq!((value.as_deref(), rank), (Some("b"), 0)),
        other => panic!("{other:?}"),
    }
    polls("b", &tickets[1]).send(&mut wire).fence();
    assert_eq!(polls("a", &tickets[0]).send(&mut wire).place(), (tickets[0].clone(), 0, 1), "its place, too");
    assert_eq!(line(&mut wire), ["a", "c", "other"]);
    assert_eq!(leave(&mut wire, "b", "polls"), 1);
    assert_eq!(owner(&mut wire).as_deref(), Some("a"));
    assert_eq!(leave(&mut wire, "a", "polls"), 1, "leaving is a sign of life too");
    assert_eq!(owner(&mut wire).as_deref(), Some("c"));
}

/// The marks in `wait`.
fn marks(wire: &mut Wire) -> usize {
    wire.must(&["HKEYS", WAIT]).array().iter().filter(|field| field.text().starts_with('!')).count()
}

#[test]
fn marks_of_processes_that_have_gone_do_not_pile_up() {
    const MANY: usize = 300;
    let (server, mut wire) = held();
    // The marks expire two windows after a poll. That is not what deletes them here.
    let me = Poll { window: "60000", ..poll("me", "~me") };
    // An hour old, as if their processes were killed when they were granted the lock.
    let old = "local t = redis.call('TIME') local old = string.format('%.0f', (t[1] - 3600) * 1000000) \
               for i = 1, tonumber(ARGV[1]) do redis.call('HSET', KEYS[1], '!gone' .. i, old) end";
    me.send(&mut wire);
    wire.must(&["EVAL", old, "1", WAIT, "64"]);
    me.send(&mut wire);
    assert_eq!(marks(&mut wire), 65, "so few are not checked");
    wire.must(&["EVAL", old, "1", WAIT, &MANY.to_string()]);
    wire.must(&["CONFIG", "RESETSTAT"]);
    me.send(&mut wire);
    assert!(wire.calls("publish") <= 16, "a poll checks only some");
    let mut polls = 1;
    // The last mark is its own.
    while marks(&mut wire) > 65 {
        polls += 1;
        assert!(polls < 1_000, "{} are left", marks(&mut wire));
        me.send(&mut wire);
    }
    println!("{polls} polls");
    // The marks of listening processes stay because these may continue one day, also if they polled before the clock
    // was set back. So do those of a process that polled within a window, because it may have other waiters.
    for (listening, age) in [(true, 3_600), (true, -3_600), (false, 0)] {
        let names: Vec<String> = (0..100).map(|n| format!("{listening}{age}{n}")).collect();
        let mut ears = server.wire();
        for name in &names {
            if listening {
                ears.must(&["SUBSCRIBE", name]);
            }
            let mark = "local t = redis.call('TIME') \
                        redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', (t[1] - ARGV[2]) * 1000000))";
            wire.must(&["EVAL", mark, "1", WAIT, &format!("!{name}"), &age.to_string()]);
        }
        for _ in 0..50 {
            me.send(&mut wire);
        }
        let kept = names.iter().filter(|name| has_mark(&mut wire, name)).count();
        assert_eq!(kept, 100, "{listening} {age}");
    }
    // A user without the right to check skips the check.
    server.wire().must(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", "-hrandfield"]);
    let mut worker = server.wire();
    worker.must(&["AUTH", "worker", "secret"]);
    wire.must(&["EVAL", old, "1", WAIT, &MANY.to_string()]);
    assert_eq!(me.send(&mut worker).place().2, 0);
}
