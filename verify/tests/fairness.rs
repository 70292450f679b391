//! The queue under random operations: its invariants, and the agreement of the memory node and the scripts.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    failure::Failure,
    fence::{self, Fence},
    forced,
    key::Key,
    message::{AcquireRequest, Acquired, Claim, Denial, Owned, Poll, Polled, ReleaseMode, Reply, Request, VoteReply},
    mode::Mode,
    queue_position,
    store::{Applied, Notified, Process, Store},
    time::{Micros, micros},
    token::Token,
};
use proptest::prelude::*;
use support::{ClockShim, Server, Value, Wire, scripts};
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(600);
const GRANT: Duration = Duration::from_secs(60);
const WINDOW: Duration = Duration::from_secs(36_000);
/// Longer than the TTL and the grant, so that nothing ends at the very moment.
const STEP: Duration = Duration::from_secs(601);
/// An uptime that no test server has reached, by its own clock.
const DECADE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
const CHANNELS: [&str; 3] = ["red", "green", "blue"];
/// The process of each token. The first has enough tokens to fill pages; the last cannot be called.
const PROCESSES: [&str; 8] = ["red", "green", "blue", "grey", "red", "red", "red", "grey"];

#[derive(Debug, Clone, Copy)]
enum Op {
    Poll(usize),
    Check(usize),
    /// An acquire outside the queue.
    Acquire(usize),
    Release(usize),
    Leave(usize, Option<usize>),
    ForceRelease,
    /// Time passes: the holder does not renew the lock, and a grant lapses.
    Expire,
    Kill(usize),
    Start(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0..8_usize).prop_map(Op::Poll),
        1 => (0..8_usize).prop_map(Op::Check),
        1 => (0..8_usize).prop_map(Op::Acquire),
        4 => (0..8_usize).prop_map(Op::Release),
        2 => (0..8_usize, prop::option::of(0..8_usize)).prop_map(|(at, with)| Op::Leave(at, with)),
        1 => Just(Op::ForceRelease),
        2 => Just(Op::Expire),
        1 => (0..3_usize).prop_map(Op::Kill),
        1 => (0..3_usize).prop_map(Op::Start),
    ];
    prop::collection::vec(op, 1..80)
}

/// The reply to an operation, the notifications, and the state after it, without times and tickets.
#[derive(Debug, PartialEq)]
struct Seen {
    reply: String,
    notified: Vec<String>,
    holder: Option<String>,
    line: Vec<String>,
}

/// The memory node's store, and the participants.
struct Scene {
    store: Store,
    now: Micros,
    key: Key,
    tokens: [Token; 8],
    listening: HashSet<&'static str>,
    tickets: [Option<u64>; 8],
    /// How many tokens ask for no restart delay. The others ask for a long one.
    trusting: usize,
    last_fence: Option<Fence>,
}

impl Scene {
    fn new() -> Self {
        Self {
            store: Store::default(),
            now: 1_000_000,
            key: Key::new("", "job").unwrap(),
            tokens: std::array::from_fn(|n| Token::new(Uuid::from_u128(n as u128 + 1), &n.to_string())),
            listening: CHANNELS.into(),
            tickets: [None; 8],
            trusting: 8,
            last_fence: None,
        }
    }

    fn process(token: usize) -> Process<'static> {
        let name = PROCESSES[token];
        Process { name, hears: CHANNELS.contains(&name) }
    }

    fn restart_delay(token: usize, trusting: usize) -> Duration {
        if token < trusting { Duration::ZERO } else { DECADE }
    }

    /// The index in a token's label.
    fn index(&self, token: &Token) -> usize {
        self.tokens.iter().position(|known| known == token).unwrap()
    }

    fn holder(&mut self) -> Option<(usize, Fence)> {
        let holder = self.store.holder(self.now, &self.key)?;
        Some((self.index(holder.whole_token()?), holder.fence()?))
    }

    /// The waiters, with their tickets.
    fn line(&mut self) -> Vec<(usize, u64)> {
        let (length, line) = self.store.queue(self.now, &self.key, 100);
        assert_eq!(length, line.len());
        line.iter().map(|(token, ticket)| (self.index(token), *ticket)).collect()
    }

    fn claim(&self, at: usize) -> Claim {
        let (key, token) = (self.key.clone(), self.tokens[at].clone());
        Claim {
            key,
            token,
            mode: Mode::Exclusive,
            ttl: Duration::ZERO,
            life: TTL,
            fence: None,
            fence_memory: fence::MEMORY,
        }
    }

    /// The reply to a request of this token's process, and the notifications.
    fn ask<T: TryFrom<Reply, Error = Failure>>(&mut self, at: usize, request: &Request) -> (T, Vec<Notified>) {
        let reached = |channel: &str| self.listening.contains(channel);
        let Applied { reply, notified, .. } = self.store.apply(self.now, request, Self::process(at), &reached);
        (reply.and_then(T::try_from).unwrap(), notified)
    }

    /// Releases the lock. The token begins anew, behind the others.
    fn release(&mut self, at: usize, mode: ReleaseMode) -> (String, Vec<Notified>) {
        self.tickets[at] = None;
        let (owned, notified) = self.ask::<Owned>(at, &Request::Release { claim: self.claim(at), mode });
        let reply = match owned {
            Err(Denial::Forced(by)) => format!("forced by {}", forced::to_text(&by)),
            owned => format!("{owned:?}"),
        };
        (reply, notified)
    }

    fn poll(&self, at: usize, enter: bool) -> Poll {
        Poll {
            claim: self.claim(at),
            ticket: self.tickets[at],
            grant: GRANT,
            window: WINDOW,
            enter,
            restart_delay: Self::restart_delay(at, self.trusting),
        }
    }

    fn apply(&mut self, op: Op) -> Seen {
        self.now += 1_000;
        let (reply, notified) = match op {
            Op::Poll(at) | Op::Check(at) => {
                let enter = matches!(op, Op::Poll(_));
                let (polled, notified) = self.ask(at, &Request::Poll(self.poll(at, enter)));
                let reply = match polled {
                    Polled::Granted(fence) => {
                        assert_eq!(self.holder(), Some((at, fence)));
                        "granted".into()
                    }
                    Polled::Waits { recovers_for, ticket, ahead, entered, .. } => {
                        assert_eq!(ticket.is_some(), enter);
                        self.tickets[at] = ticket.or(self.tickets[at]);
                        format!("{} {ahead} {entered}", if recovers_for.is_some() { "recovers" } else { "waits" })
                    }
                };
                (reply, notified)
            }
            Op::Acquire(at) => {
                let request = AcquireRequest { claim: self.claim(at), voting: None, heir_of: None };
                let (vote, notified) = self.ask::<VoteReply>(at, &Request::Acquire(request));
                let reply = match vote.acquired {
                    Acquired::Granted(_) => "granted",
                    Acquired::Busy { .. } => "busy",
                    Acquired::Recovering(_) => "recovers",
                    Acquired::Gone => "gone",
                };
                (reply.into(), notified)
            }
            Op::Release(at) => self.release(at, ReleaseMode::Delete),
            Op::Leave(at, with) => {
                if let Some(with) = with {
                    self.tickets[with] = None;
                }
                let others = with.map(|with| self.tokens[with].clone()).into_iter().collect();
                self.release(at, ReleaseMode::Leave(others))
            }
            Op::ForceRelease => {
                let (held, notified) = self.ask::<bool>(
                    0,
                    &Request::ForceRelease { key: self.key.clone(), by: Arc::new(forced::by("ops", None)) },
                );
                (held.to_string(), notified)
            }
            Op::Expire => {
                self.now += micros(STEP);
                (String::new(), vec![])
            }
            Op::Kill(at) => (self.listening.remove(CHANNELS[at]).to_string(), vec![]),
            Op::Start(at) => ((!self.listening.insert(CHANNELS[at])).to_string(), vec![]),
        };
        let notified = notified.into_iter().map(|notified| self.message(notified)).collect();
        let holder = self.holder().map(|(at, _)| self.tokens[at].as_str().to_owned());
        let line = self.line().into_iter().map(|(at, _)| self.tokens[at].as_str().to_owned()).collect();
        Seen { reply, notified, holder, line }
    }

    fn message(&self, notified: Notified) -> String {
        let (channel, token, message) = match notified {
            Notified::Granted { channel, token } => {
                (channel, token.clone(), format!("granted {} {}job", token.as_str().len(), token.as_str()))
            }
            Notified::Next { channel, token, within } => {
                (channel, token.clone(), format!("next {} {}", within.as_millis(), token.as_str()))
            }
        };
        assert_eq!(PROCESSES[self.index(&token)], &*channel, "notified where it listens");
        assert!(self.listening.contains(&*channel));
        message
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_can_be_reached_is_served_in_order_and_fences_grow(ops in ops()) {
        let mut scene = Scene::new();
        // Until when a silent process counts as alive.
        let mut alive_until = HashMap::new();
        for op in ops {
            let (before, line, tickets) = (scene.holder(), scene.line(), scene.tickets);
            let seen = scene.apply(op);
            if let Op::Poll(at) | Op::Leave(at, _) = op {
                let window = if matches!(op, Op::Poll(_)) { WINDOW } else { queue_position::WINDOW };
                alive_until.insert(PROCESSES[at], scene.now + micros(window));
            }
            let (after, left) = (scene.holder(), scene.line());
            let waits = |at: &usize| {
                let Process { name, hears } = Scene::process(*at);
                let reached = !hears || scene.listening.contains(name);
                reached && alive_until.get(name).is_none_or(|until| *until > scene.now) && !matches!(op, Op::Leave(gone, with) if gone == *at || with == Some(*at))
            };
            let is_new = |at: &usize| line.iter().all(|(known, _)| known != at);
            let entered = left.into_iter().map(|(at, _)| at).find(is_new);
            prop_assert!(entered.is_none_or(|new| matches!(op, Op::Poll(at) if at == new)), "{:?} entered", entered);
            match after {
                _ if after == before => {}
                Some((holder, fence)) => {
                    prop_assert!(Some(fence) > scene.last_fence, "a fence for each holder, and a larger one");
                    scene.last_fence = Some(fence);
                    // An acquire outside of the queue may take a free lock.
                    if !matches!(op, Op::Acquire(_)) {
                        let known = line.iter().find(|(at, _)| *at == holder).map(|(_, ticket)| *ticket);
                        let own = known.or(tickets[holder].filter(|_| matches!(op, Op::Poll(_)))).unwrap_or(u64::MAX);
                        let overtaken = line.iter().find(|(at, ticket)| *ticket < own && waits(at));
                        prop_assert_eq!(overtaken, None, "{:?}", op);
                    }
                }
                None if matches!(op, Op::Expire) => {}
                None => {
                    prop_assert_eq!(line.iter().find(|(at, _)| waits(at)), None, "free at {:?}", op);
                }
            }
            match (op, &*seen.reply, after) {
                // A process that takes a lock itself is not silent, and an acquire does not concern the queue.
                (Op::Poll(at) | Op::Check(at), "granted", _) => {
                    alive_until.insert(PROCESSES[at], scene.now + micros(WINDOW));
                }
                (Op::Acquire(_), ..) => {}
                (.., Some((holder, _))) if after != before => {
                    let lapses = scene.now + micros(GRANT);
                    alive_until.entry(PROCESSES[holder]).and_modify(|until| *until = lapses.min(*until)).or_insert(lapses);
                }
                _ => {}
            }
        }
    }
}

/// A server that gets the same requests.
struct Scripts<'a> {
    tokens: [Token; 8],
    wire: Wire,
    clock: &'a ClockShim,
    listeners: Wire,
    tickets: [String; 8],
    trusting: usize,
    /// How many waiters the scripts read at a time.
    page: usize,
}

impl<'a> Scripts<'a> {
    fn new(server: &Server, clock: &'a ClockShim, tokens: [Token; 8], trusting: usize, page: usize) -> Self {
        let (mut wire, mut listeners) = (server.wire(), server.wire());
        wire.must(&["FLUSHALL"]);
        for channel in CHANNELS {
            listeners.must(&["SUBSCRIBE", channel]);
        }
        Self { tokens, wire, clock, listeners, tickets: std::array::from_fn(|_| "0".into()), trusting, page }
    }

    fn eval(&mut self, script: &str, args: &[&str]) -> Value {
        let paged = script.replace("local PAGE = 32\n", &format!("local PAGE = {}\n", self.page));
        assert_eq!(paged == script, self.page == 32);
        let mut command = vec!["EVAL", &*paged, "5", "job"];
        command.extend(["{job}:lh:fence", "{job}:lh:queue", "{job}:lh:wait", "{job}:lh:holders"]);
        command.extend(args);
        self.wire.must(&command)
    }

    fn owned(&mut self, script: &str, args: &[&str]) -> String {
        match self.eval(script, args) {
            Value::Array(forced) => format!("forced by {}", forced[1].text()),
            Value::Int(1) => "Ok(())".into(),
            Value::Int(0) => "Err(Gone)".into(),
            _ => "Err(Taken)".into(),
        }
    }

    fn apply(&mut self, op: Op) -> Seen {
        let text = |span: Duration| span.as_millis().to_string();
        let tokens = self.tokens.clone();
        let token = |at: usize| tokens[at].as_str();
        let channel = |at: usize| {
            let Process { name, hears } = Scene::process(at);
            if hears { name.to_owned() } else { format!("~{name}") }
        };
        let reply = match op {
            Op::Poll(at) | Op::Check(at) => {
                let (enter, ticket) = (matches!(op, Op::Poll(_)), self.tickets[at].clone());
                let (ttl, grant, window) = (text(TTL), text(GRANT), text(WINDOW));
                let (enters, delay) = (if enter { "1" } else { "0" }, Scene::restart_delay(at, self.trusting));
                let delay = delay.as_secs().to_string();
                let memory = text(fence::MEMORY);
                let args = [token(at), &ttl, &ticket, &grant, &window, &channel(at), enters, &delay, &memory, "0"];
                match self.eval(scripts::POLL, &args).array() {
                    [Value::Int(1), ..] => "granted".into(),
                    [code, _, _, ticket, rank, entered, ..] => {
                        if enter {
                            self.tickets[at] = ticket.text();
                        }
                        let found = if code.int() == 2 { "recovers" } else { "waits" };
                        format!("{found} {} {}", rank.int(), entered.int() == 1)
                    }
                    other => panic!("{other:?}"),
                }
            }
            Op::Acquire(at) => {
                let (ttl, memory) = (text(TTL), text(fence::MEMORY));
                let args = ["2", "job", "{job}:lh:fence", token(at), &ttl, &memory];
                let acquired = self.wire.must(&[&["EVAL", scripts::ACQUIRE][..], &args].concat());
                if acquired.array().len() == 2 { "granted".into() } else { "busy".into() }
            }
            Op::Release(at) => {
                self.tickets[at] = "0".into();
                self.owned(scripts::RELEASE, &[token(at)])
            }
            Op::Leave(at, with) => {
                let (mut tokens, window) = (vec![token(at)], text(queue_position::WINDOW));
                tokens.extend(with.map(token));
                for at in [Some(at), with].into_iter().flatten() {
                    self.tickets[at] = "0".into();
                }
                let count = tokens.len().to_string();
                self.owned(scripts::LEAVE, &[&[PROCESSES[at], &window, &count], &tokens[..]].concat())
            }
            Op::ForceRelease => (self.eval(scripts::FORCE_RELEASE, &["{job}:lh:forced", "ops"]).int() == 1).to_string(),
            Op::Expire => {
                self.clock.forward(STEP);
                String::new()
            }
            Op::Kill(at) => self.listen("UNSUBSCRIBE", CHANNELS[at]),
            Op::Start(at) => self.listen("SUBSCRIBE", CHANNELS[at]),
        };
        self.listeners.send(&["PING"]).unwrap();
        let mut notified = Vec::new();
        loop {
            match self.listeners.reply().unwrap() {
                Value::Array(parts) if parts[0].text() == "message" => notified.push(parts[2].text()),
                // The answer to the ping.
                _ => break,
            }
        }
        let line = self.wire.must(&["ZRANGE", "{job}:lh:queue", "0", "-1"]);
        let line = line.array().iter().map(Value::text).collect();
        let holder = self.wire.get("job").and_then(|value| Token::read_value(&value));
        Seen { reply, notified, holder: holder.map(|(token, _)| token.as_str().to_owned()), line }
    }

    /// Subscribes or unsubscribes, and returns whether there was a listener before.
    fn listen(&mut self, command: &str, channel: &str) -> String {
        let before = self.wire.must(&["PUBSUB", "NUMSUB", channel]).array()[1].int() == 1;
        self.listeners.must(&[command, channel]);
        before.to_string()
    }
}

#[test]
fn the_memory_node_and_the_scripts_agree() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let config = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(ops in ops(), trusting in prop_oneof![Just(8), 0..8_usize], page in prop_oneof![1..4_usize, Just(32)])| {
        let mut scene = Scene { trusting, ..Scene::new() };
        let mut scripts = Scripts::new(&server, &clock, scene.tokens.clone(), trusting, page);
        for (step, op) in ops.into_iter().enumerate() {
            let (memory, redis) = (scene.apply(op), scripts.apply(op));
            prop_assert_eq!(memory, redis, "memory and scripts, step {}: {:?}", step, op);
        }
    });
}

/// In a long line of one process, the scripts skip the waiters that the memo covers, and the asking waiter may be one
/// of them.
#[test]
fn who_asks_ends_the_walk_where_the_memo_covers_it_too() {
    let (clock, mut scene) = (ClockShim::new(), Scene::new());
    let server = Server::builder().clock(&clock).start();
    let mut scripts = Scripts::new(&server, &clock, scene.tokens.clone(), scene.trusting, 1);
    let enters = [6, 2, 0, 5, 4].map(Op::Poll);
    let then = [Op::Leave(6, None), Op::Poll(6), Op::Leave(2, None), Op::Poll(1), Op::Expire, Op::Poll(6)];
    for (step, op) in enters.into_iter().chain(then).enumerate() {
        let (memory, redis) = (scene.apply(op), scripts.apply(op));
        assert_eq!(memory, redis, "memory and scripts, step {step}: {op:?}");
    }
}
