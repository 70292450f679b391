//! A lock that is shared or held alone, under random operations: its invariants, and the agreement of the memory node
//! and the scripts in everything that they leave. The server's clock stands still but for steps, so that each deadline
//! is the same to the millisecond.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{
    collections::{BTreeMap, HashSet},
    num::NonZeroU32,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    failure::Failure,
    fence::{self, Fence},
    forced,
    holder::Holder,
    key::Key,
    message::{
        AcquireRequest, Acquired, Claim, Denial, Downgraded, Owned, Poll, Polled, ReleaseMode, Reply, Request, Sharers,
        VoteReply, Waiters,
    },
    mode::{self, phase_of},
    queue_position,
    stepwise::{Single, SingleReply},
    store::{Applied, Notified, Process, Store},
    time::{Micros, micros},
    token::Token,
};
use proptest::prelude::*;
use support::{ClockShim, Server, Value, Wire, scripts};
use uuid::Uuid;

const GRANT: Duration = Duration::from_secs(60);
const WINDOW: Duration = Duration::from_secs(36_000);
/// An uptime that no test server has reached, by its own clock.
const DECADE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
const CHANNELS: [&str; 3] = ["red", "green", "blue"];
/// The limit of each token as scripts take it; 0 is for exclusive use.
const LIMITS: [u32; TOKENS] = [0, 0, 1, 2, 3, u32::MAX, 4, 0, u32::MAX, u32::MAX, 2, u32::MAX, 1];
/// How many permits each token takes.
const PERMITS: [u32; TOKENS] = [1, 1, 1, 1, 3, 1, 3, 1, 1, 1, 1, 1, 3];
/// The process of each token. The last of these names cannot be called.
const PROCESSES: [&str; TOKENS] =
    ["red", "green", "blue", "red", "grey", "red", "green", "grey", "red", "blue", "green", "red", "blue"];
/// The tokens that make requests come first. `SHARING` are the sharers among them.
const ASKING: usize = 8;
const SHARING: Range<usize> = 2..7;
/// With two tokens that take another's place, two that a downgrade creates, and one that takes the place of another with
/// several permits.
const TOKENS: usize = 13;
/// Takes the lock from any holder, as another program would.
const STRANGER: usize = 7;
const KEYS: [&str; 5] = ["job", "{job}:lh:fence", "{job}:lh:queue", "{job}:lh:wait", "{job}:lh:holders"];
/// In ms. No sum of a few of them, with or without steps back, equals a TTL, a grant or a window.
const STEPS: [u64; 8] = [20_003, 61_007, 151_011, 202_013, 303_023, 450_033, 601_017, 37_000_001];
/// The steps that exceed one TTL, but not another.
const PARTS: Range<usize> = 4..6;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Op {
    Poll(usize),
    Check(usize),
    /// An acquire outside the queue.
    Acquire(usize),
    Part(usize),
    Leave(usize, Option<usize>),
    /// A renewal, or one that only checks.
    Renew(usize, bool),
    /// A keep by another token, and for how long in s.
    Keep(usize, usize, u64),
    Downgrade(usize, usize),
    /// A renewal by two requests, as while the slot is being moved. The second one first, so that a late one does not
    /// extend a key without sharers. Or both only check.
    Extend(usize, bool),
    /// A release by one request, also as during a move.
    PartAlone(usize),
    ForceRelease,
    /// A repeated earlier call.
    Replay(usize),
    Forward(usize),
    Back,
    Kill(usize),
    Start(usize),
    /// Manual changes: deleting or overwriting the lock's key, and deleting the others.
    Delete,
    Overwrite,
    LosePlaces,
    LoseQueue,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Each call comes mostly from a token that it fits, and now and then from any.
    let (asks, shares) = (0..ASKING, prop_oneof![4 => SHARING, 1 => 0..TOKENS]);
    let is_alone = prop_oneof![4 => 0..SHARING.start, 1 => 0..ASKING];
    let keep = |at: usize| {
        let stays = if PERMITS[at] == 1 { 8..10 } else { 12..TOKENS };
        (Just(at), stays, prop_oneof![Just(20), Just(2_000)])
    };
    let one = prop_oneof![
        14 => asks.clone().prop_map(Op::Poll),
        2 => asks.clone().prop_map(Op::Check),
        // A token that takes several permits is never used for an exclusive acquire.
        1 => asks.clone().prop_filter_map("one permit", |at| (PERMITS[at] == 1).then_some(Op::Acquire(at))),
        7 => (0..TOKENS).prop_map(Op::Part),
        3 => (0..TOKENS, prop::option::of(0..TOKENS)).prop_map(|(at, with)| Op::Leave(at, with)),
        4 => (shares, prop::bool::weighted(0.2)).prop_map(|(at, checks)| Op::Renew(at, checks)),
        1 => asks.prop_flat_map(keep).prop_map(|(at, to, s)| Op::Keep(at, to, s)),
        2 => (is_alone, 10..12_usize).prop_map(|(at, to)| Op::Downgrade(at, to)),
        3 => (SHARING, prop::bool::weighted(0.2)).prop_map(|(at, checks)| Op::Extend(at, checks)),
        1 => SHARING.prop_map(Op::PartAlone),
        1 => Just(Op::ForceRelease),
        4 => (0..64_usize).prop_map(Op::Replay),
        3 => (0..STEPS.len()).prop_map(Op::Forward),
        1 => Just(Op::Back),
        1 => (0..3_usize).prop_map(Op::Kill),
        1 => (0..3_usize).prop_map(Op::Start),
        1 => prop_oneof![Just(Op::Delete), Just(Op::Overwrite), Just(Op::LosePlaces), Just(Op::LoseQueue)],
    ];
    // Two tokens that may share; one of them may expire then, while the other keeps the key alive.
    let after_its_end = (SHARING, SHARING, PARTS).prop_flat_map(move |(at, other, step)| {
        let calls = prop_oneof![
            3 => any::<bool>().prop_map(move |checks| Op::Renew(at, checks)),
            2 => any::<bool>().prop_map(move |checks| Op::Extend(at, checks)),
            2 => Just(Op::Poll(at)),
            1 => Just(Op::Part(at)),
            1 => Just(Op::Leave(at, None)),
            1 => keep(at).prop_map(|(at, to, s)| Op::Keep(at, to, s)),
        ];
        calls.prop_map(move |call| vec![Op::Poll(at), Op::Poll(other), Op::Forward(step), call])
    });
    let some = prop_oneof![24 => one.prop_map(|op| vec![op]), 1 => after_its_end];
    prop::collection::vec(some, 1..90).prop_map(|all| all.concat())
}

/// The fence of a lock; its sharers, and until when; its waiters, and their limits.
type Listed = (u64, Vec<(usize, u64)>, Vec<(usize, u32)>);

/// A call with all its parameters.
#[derive(Debug, Clone)]
struct Call {
    op: Op,
    ticket: u64,
}

fn ttl(at: usize) -> Duration {
    Duration::from_secs([450, 600, 300][at % 3])
}

fn token(at: usize) -> Token {
    Token::new(Uuid::from_u128(at as u128 + 1), &at.to_string()).taking(NonZeroU32::new(PERMITS[at]).unwrap())
}

fn index(token: &Token) -> usize {
    token.label().parse().unwrap()
}

fn process(at: usize) -> Process<'static> {
    let name = PROCESSES[at];
    Process { name, hears: CHANNELS.contains(&name) }
}

/// The reply to a call, its notifications, and the state after it.
#[derive(Debug, Clone, PartialEq, Default)]
struct Seen {
    reply: String,
    notified: Vec<String>,
    /// The value of the lock's key, and its end in ms.
    held: Option<(String, u64)>,
    /// The tokens with a place in it, and until when.
    places: BTreeMap<usize, u64>,
    line: Vec<(usize, u64)>,
    /// The answer to an observer: the remaining time of the last sharer and of each, and the mode of each waiter.
    listed: Listed,
}

impl Seen {
    fn fence(&self) -> Option<Fence> {
        self.held.as_ref().and_then(|(value, _)| Some(Token::read_value(value)?.1))
    }

    fn is_shared(&self) -> bool {
        self.held.as_ref().is_some_and(|(value, _)| leasehold_protocol::mode::phase_of(value).is_some())
    }

    /// The sharers at that moment.
    fn sharers(&self, now: Micros) -> HashSet<usize> {
        self.places.iter().filter(|(_, until)| **until >= now / 1_000).map(|(at, _)| *at).collect()
    }

    fn alone(&self) -> Option<usize> {
        let (value, _) = self.held.as_ref().filter(|_| !self.is_shared())?;
        Some(index(&Token::read_value(value)?.0))
    }
}

/// The memory node's store, and the participants.
struct Scene {
    store: Store,
    now: Micros,
    key: Key,
    listening: HashSet<&'static str>,
    trusting: usize,
}

impl Scene {
    fn new(now: Micros, trusting: usize) -> Self {
        let key = Key::new("", "job").unwrap();
        Self { store: Store::started(now), now, key, listening: CHANNELS.into(), trusting }
    }

    fn claim(&self, at: usize) -> Claim {
        let (key, token) = (self.key.clone(), token(at));
        let mode = mode::of_limit(LIMITS[at], token.permits());
        Claim { key, token, mode, ttl: Duration::ZERO, life: ttl(at), fence: None, fence_memory: fence::MEMORY }
    }

    fn ask<T: TryFrom<Reply, Error = Failure>>(&mut self, at: usize, request: &Request) -> (T, Vec<Notified>) {
        let reached = |channel: &str| self.listening.contains(channel);
        let Applied { reply, notified, .. } = self.store.apply(self.now, request, process(at), &reached);
        (reply.and_then(T::try_from).unwrap(), notified)
    }

    fn apply(&mut self, Call { op, ticket }: &Call) -> Seen {
        let (reply, notified) = match *op {
            Op::Poll(at) | Op::Check(at) => {
                let poll = Poll {
                    claim: self.claim(at),
                    ticket: Some(*ticket).filter(|ticket| *ticket != 0),
                    grant: GRANT,
                    window: WINDOW,
                    enter: matches!(op, Op::Poll(_)),
                    restart_delay: delay(at, self.trusting),
                };
                let (polled, notified) = self.ask(at, &Request::Poll(poll));
                (said(&polled), notified)
            }
            Op::Acquire(at) => {
                let request = AcquireRequest { claim: self.claim(at), voting: None, heir_of: None };
                let (vote, notified) = self.ask::<VoteReply>(at, &Request::Acquire(request));
                let is_granted = matches!(vote.acquired, Acquired::Granted(_));
                (if is_granted { "granted" } else { "busy" }.into(), notified)
            }
            Op::Part(at) => self.release(at, ReleaseMode::Delete),
            Op::Leave(at, with) => self.release(at, ReleaseMode::Leave(with.map(token).into_iter().collect())),
            Op::Keep(at, to, keep) => self.release(at, ReleaseMode::Retain(Duration::from_secs(keep), token(to))),
            Op::Renew(at, checks) => {
                let claim = self.claim(at);
                let life = if checks { Duration::ZERO } else { claim.life };
                let renew = Request::Renew([Claim { life, ..claim }].into());
                let (renewed, notified) = self.ask::<Vec<Result<Owned, Failure>>>(at, &renew);
                (owned(renewed[0].clone().unwrap()), notified)
            }
            Op::Downgrade(at, to) => {
                let request =
                    Request::Downgrade { claim: self.claim(to), from: token(at), restart_delay: Duration::ZERO };
                let (done, notified) = self.ask::<Downgraded>(to, &request);
                let said = match done {
                    Downgraded::Shared(fence) => format!("shares {fence}"),
                    Downgraded::Denied(denial) => owned(Err(denial)),
                    Downgraded::Recovering(left) => format!("recovers for {left:?}"),
                };
                (said, notified)
            }
            Op::Extend(at, checks) => {
                let extended = match self.phase() {
                    None => Err(Denial::Gone),
                    fence => {
                        let claim = Claim { fence, ..self.claim(at) };
                        let life = if checks { Duration::ZERO } else { claim.life };
                        let claim = Claim { life, ..claim };
                        self.single(&Single::ExtendShare(claim.clone()))
                            .and_then(|()| self.single(&Single::ExtendPhase(claim)))
                    }
                };
                (owned(extended), vec![])
            }
            Op::PartAlone(at) => {
                let parted = self.phase().ok_or(Denial::Gone);
                (owned(parted.and_then(|_| self.single(&Single::Part(self.claim(at))))), vec![])
            }
            Op::ForceRelease => {
                let by = Arc::new(forced::by("ops", None));
                let (held, notified) = self.ask::<bool>(0, &Request::ForceRelease { key: self.key.clone(), by });
                (held.to_string(), notified)
            }
            Op::Overwrite => {
                let claim = self.claim(STRANGER);
                self.store.take_over(self.now, claim);
                (String::new(), vec![])
            }
            Op::Delete => {
                self.store.delete(&self.key);
                (String::new(), vec![])
            }
            Op::LosePlaces => {
                self.store.lose_places(self.now, &self.key);
                (String::new(), vec![])
            }
            Op::LoseQueue => {
                self.store.lose_queue(&self.key);
                (String::new(), vec![])
            }
            Op::Forward(step) => {
                self.now += STEPS[step] * 1_000;
                (String::new(), vec![])
            }
            Op::Back => {
                self.now -= micros(BACK);
                (String::new(), vec![])
            }
            Op::Kill(at) => (self.listening.remove(CHANNELS[at]).to_string(), vec![]),
            Op::Start(at) => ((!self.listening.insert(CHANNELS[at])).to_string(), vec![]),
            Op::Replay(_) => unreachable!("it is another call"),
        };
        self.seen(reply, notified.into_iter().map(message).collect())
    }

    /// The fence of the current phase.
    fn phase(&mut self) -> Option<Fence> {
        self.store.holder(self.now, &self.key).filter(Holder::is_shared)?.fence()
    }

    fn single(&mut self, single: &Single) -> Owned {
        match self.store.single(self.now, single) {
            SingleReply::Owned(owned) => owned,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, at: usize, mode: ReleaseMode) -> (String, Vec<Notified>) {
        let (released, notified) = self.ask::<Owned>(at, &Request::Release { claim: self.claim(at), mode });
        (owned(released), notified)
    }

    fn seen(&mut self, reply: String, notified: Vec<String>) -> Seen {
        let sharers = Request::Sharers { key: self.key.clone(), most: 100 };
        let (sharers, _) = self.ask::<Option<Sharers>>(0, &sharers);
        let value = |holder: &Holder| holder.whole_token().unwrap().value(holder.fence().unwrap());
        let held = sharers.as_ref().map(|sharers| value(&sharers.holder));
        let (until, places) = self.store.ends(self.now, &self.key).unwrap_or_default();
        let places: BTreeMap<_, _> = places.iter().map(|(token, until)| (index(token), until / 1_000)).collect();
        let (waiters, _) = self.ask::<Waiters>(0, &Request::Waiters { key: self.key.clone(), most: 100 });
        let wants = waiters.iter().map(|(token, _, mode)| (index(token), mode::limit(*mode))).collect();
        let left = |holder: &Holder| u64::try_from(holder.remaining().unwrap().as_millis()).unwrap();
        let each = |one: &Holder| (index(one.whole_token().unwrap()), left(one));
        let listed = sharers.as_ref().map(|all| (left(&all.holder), all.first.iter().map(each).collect()));
        let (last, all) = listed.unwrap_or_default();
        let seen = Seen {
            reply,
            notified,
            listed: (last, all, wants),
            held: held.map(|value| (value, until / 1_000)),
            places,
            line: self.store.queue(self.now, &self.key, 100).1.iter().map(|(token, at)| (index(token), *at)).collect(),
        };
        if let Some(Sharers { holder, first }) = sharers {
            let first: HashSet<_> = first.iter().map(|one| index(one.whole_token().unwrap())).collect();
            assert_eq!(first, seen.sharers(self.now));
            let count = holder.sharers().map(|count| count as usize);
            assert_eq!((count, holder.is_shared()), (seen.is_shared().then_some(first.len()), seen.is_shared()));
        }
        seen
    }
}

const BACK: Duration = Duration::from_millis(410_019);

fn delay(at: usize, trusting: usize) -> Duration {
    if at < trusting { Duration::ZERO } else { DECADE }
}

fn said(polled: &Polled) -> String {
    match polled {
        Polled::Granted(fence) => format!("granted {fence}"),
        Polled::Waits { recovers_for: Some(_), ticket, ahead, entered, .. } => {
            format!("recovers {} {ahead} {entered}", ticket.unwrap_or(0))
        }
        Polled::Waits { holder, ticket, ahead, entered, .. } => {
            let (left, sharers) = (holder.remaining().unwrap().as_millis(), holder.sharers().unwrap_or(0));
            format!("waits {} {ahead} {entered} {left} {sharers}", ticket.unwrap_or(0))
        }
    }
}

fn owned(owned: Owned) -> String {
    match owned {
        Err(Denial::Forced(by)) => format!("forced by {}", forced::to_text(&by)),
        owned => format!("{owned:?}"),
    }
}

fn message(notified: Notified) -> String {
    match notified {
        Notified::Granted { token, .. } => format!("granted {} {}job", token.as_str().len(), token.as_str()),
        Notified::Next { token, within, .. } => format!("next {} {}", within.as_millis(), token.as_str()),
    }
}

/// A server that gets the same requests.
struct Scripts<'a> {
    wire: Wire,
    clock: &'a ClockShim,
    listeners: Wire,
    trusting: usize,
}

impl<'a> Scripts<'a> {
    fn new(server: &Server, clock: &'a ClockShim, trusting: usize) -> (Self, Micros) {
        let (mut wire, mut listeners) = (server.wire(), server.wire());
        wire.must(&["FLUSHALL"]);
        for channel in CHANNELS {
            listeners.must(&["SUBSCRIBE", channel]);
        }
        let mut scripts = Self { wire, clock, listeners, trusting };
        let now = scripts.now();
        (scripts, now)
    }

    fn now(&mut self) -> Micros {
        let time = self.wire.must(&["TIME"]);
        let [secs, rest] = [0, 1].map(|at| time.array()[at].text().parse::<Micros>().unwrap());
        secs * 1_000_000 + rest
    }

    fn eval(&mut self, script: &str, args: &[&str]) -> Value {
        let mut command = vec!["EVAL", script, "5"];
        command.extend(KEYS);
        command.extend(args);
        self.wire.must(&command)
    }

    fn single(&mut self, script: &str, key: &str, args: &[&str]) -> Value {
        self.wire.must(&[&["EVAL", script, "1", key], args].concat())
    }

    /// The fence of the current phase.
    fn phase(&mut self) -> Option<String> {
        let value = self.wire.must(&["GET", KEYS[0]]);
        let fence = if let Value::Bulk(_) = value { phase_of(&value.text()) } else { None };
        fence.map(|fence| fence.to_string())
    }

    fn owned(reply: &Value) -> String {
        match reply {
            Value::Array(forced) if forced.len() == 2 => format!("forced by {}", forced[1].text()),
            Value::Array(one) => Self::owned(&one[0]),
            Value::Int(1) => "Ok(())".into(),
            Value::Int(0) => "Err(Gone)".into(),
            _ => "Err(Taken)".into(),
        }
    }

    fn apply(&mut self, Call { op, ticket }: &Call) -> Seen {
        let text = |span: Duration| span.as_millis().to_string();
        let memory = text(fence::MEMORY);
        let reply = match *op {
            Op::Poll(at) | Op::Check(at) => {
                let Process { name, hears } = process(at);
                let channel = if hears { name.to_owned() } else { format!("~{name}") };
                let enter = if matches!(op, Op::Poll(_)) { "1" } else { "0" };
                let delay = delay(at, self.trusting).as_secs().to_string();
                let (token, ticket, life, limit) =
                    (token(at), ticket.to_string(), text(ttl(at)), LIMITS[at].to_string());
                let (grant, window) = (text(GRANT), text(WINDOW));
                let args = [token.as_str(), &life, &ticket, &grant, &window, &channel, enter, &delay, &memory, &limit];
                let script = if LIMITS[at] > 0 { scripts::JOIN } else { scripts::POLL };
                match self.eval(script, &args).array() {
                    [Value::Int(1), fence, ..] => format!("granted {}", fence.text()),
                    [Value::Int(2), _, _, ticket, rank, entered] => {
                        format!("recovers {} {} {}", ticket.text(), rank.int(), entered.int() == 1)
                    }
                    [Value::Int(0), left, _, ticket, rank, entered, sharers] => {
                        let (ticket, is_new, left) = (ticket.text(), entered.int() == 1, left.int());
                        format!("waits {ticket} {} {is_new} {left} {}", rank.int(), sharers.int())
                    }
                    other => panic!("{other:?}"),
                }
            }
            Op::Acquire(at) => self.acquire(at),
            Op::Part(at) if LIMITS[at] > 0 => Self::owned(&self.eval(scripts::PART, &[token(at).as_str()])),
            Op::Part(at) => Self::owned(&self.eval(scripts::RELEASE, &[token(at).as_str()])),
            Op::Leave(at, with) => {
                let (window, tokens) =
                    (text(queue_position::WINDOW), [Some(at), with].into_iter().flatten().map(token));
                let tokens: Vec<_> = tokens.collect();
                let count = tokens.len().to_string();
                let all = [PROCESSES[at], &window, &count].into_iter().chain(tokens.iter().map(Token::as_str));
                Self::owned(&self.eval(scripts::LEAVE, &all.collect::<Vec<_>>()))
            }
            Op::Keep(at, to, keep) => {
                let (one, stays, keep) = (token(at), token(to), (keep * 1_000).to_string());
                let args = [one.as_str(), &keep, stays.as_str()];
                if LIMITS[at] > 0 {
                    Self::owned(&self.eval(scripts::KEEP_SHARE, &args))
                } else {
                    Self::owned(&self.wire.must(&[&["EVAL", scripts::KEEP, "1", "job"][..], &args].concat()))
                }
            }
            Op::Renew(at, checks) => {
                let (one, life) = (token(at), if checks { "0".into() } else { text(ttl(at)) });
                let renewed = if LIMITS[at] > 0 {
                    self.wire.must(&["EVAL", scripts::RENEW_SHARES, "2", KEYS[0], KEYS[4], one.as_str(), &life, ""])
                } else {
                    self.wire.must(&["EVAL", scripts::RENEW, "1", KEYS[0], one.as_str(), &life])
                };
                Self::owned(&renewed.array()[0])
            }
            Op::Downgrade(at, to) => {
                let (one, other, life) = (token(to), token(at), text(ttl(to)));
                match self.eval(scripts::DOWNGRADE, &[one.as_str(), &life, other.as_str(), &memory, "0"]).array() {
                    [Value::Int(1), fence] => format!("shares {}", fence.text()),
                    denied => Self::owned(&Value::Array(denied.to_vec())),
                }
            }
            Op::Extend(at, checks) => {
                let (one, life) = (token(at), if checks { "0".into() } else { text(ttl(at)) });
                match self.phase() {
                    None => "Err(Gone)".into(),
                    Some(fence) => match self.single(scripts::EXTEND_SHARE, KEYS[4], &[one.as_str(), &life]) {
                        Value::Int(1) => Self::owned(&self.single(scripts::EXTEND_PHASE, KEYS[0], &[&fence, &life])),
                        denied => Self::owned(&denied),
                    },
                }
            }
            Op::PartAlone(at) => match self.phase() {
                None => "Err(Gone)".into(),
                Some(_) => Self::owned(&self.single(scripts::EXTEND_SHARE, KEYS[4], &[token(at).as_str(), "-1"])),
            },
            Op::ForceRelease => (self.eval(scripts::FORCE_RELEASE, &["{job}:lh:forced", "ops"]).int() == 1).to_string(),
            Op::Overwrite => {
                self.wire.del(KEYS[0]);
                self.acquire(STRANGER);
                String::new()
            }
            Op::Delete => self.delete(&[KEYS[0]]),
            Op::LosePlaces => self.delete(&[KEYS[4]]),
            Op::LoseQueue => self.delete(&[KEYS[2], KEYS[3]]),
            Op::Forward(step) => {
                self.clock.forward(Duration::from_millis(STEPS[step]));
                String::new()
            }
            Op::Back => {
                self.clock.back(BACK);
                String::new()
            }
            Op::Kill(at) => self.listen("UNSUBSCRIBE", CHANNELS[at]),
            Op::Start(at) => self.listen("SUBSCRIBE", CHANNELS[at]),
            Op::Replay(_) => unreachable!("it is another call"),
        };
        self.seen(reply)
    }

    fn acquire(&mut self, at: usize) -> String {
        let (one, life, memory) = (token(at), ttl(at).as_millis().to_string(), fence::MEMORY.as_millis().to_string());
        let acquired = self.wire.must(&["EVAL", scripts::ACQUIRE, "2", KEYS[0], KEYS[1], one.as_str(), &life, &memory]);
        if acquired.array().len() == 2 { "granted".into() } else { "busy".into() }
    }

    fn delete(&mut self, keys: &[&str]) -> String {
        self.wire.must(&[&["DEL"][..], keys].concat());
        String::new()
    }

    fn listed(&mut self) -> Listed {
        let number = |value: &Value| u64::try_from(value.int()).unwrap();
        let of = |value: &Value| index(&Token::parse(&value.text()).unwrap());
        let sharers = self.wire.must(&["EVAL", scripts::SHARERS, "2", KEYS[0], KEYS[4], "100"]);
        let (last, all) = match sharers.array() {
            [_, last, _, _, all @ ..] => {
                (number(last), all.chunks(2).map(|one| (of(&one[0]), number(&one[1]))).collect())
            }
            _ => (0, Vec::new()),
        };
        let waiters = self.wire.must(&["EVAL", scripts::QUEUE, "1", KEYS[2], "100", KEYS[3]]);
        let wants = waiters.array()[2..].chunks(3);
        (last, all, wants.map(|one| (of(&one[0]), u32::try_from(one[2].int()).unwrap())).collect())
    }

    /// Subscribes or unsubscribes, and returns whether there was a listener before.
    fn listen(&mut self, command: &str, channel: &str) -> String {
        let before = self.wire.must(&["PUBSUB", "NUMSUB", channel]).array()[1].int() == 1;
        self.listeners.must(&[command, channel]);
        before.to_string()
    }

    fn pairs(&mut self, key: &str) -> Vec<(usize, u64)> {
        let all = self.wire.must(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
        let of = |pair: &[Value]| (index(&Token::parse(&pair[0].text()).unwrap()), pair[1].text().parse().unwrap());
        all.array().chunks(2).map(of).collect()
    }

    /// The places of the sharers. What they take beyond one permit each is a member of its own.
    fn places(&mut self) -> BTreeMap<usize, u64> {
        let all = self.wire.must(&["ZRANGE", KEYS[4], "0", "-1", "WITHSCORES"]);
        let (mut more, mut beyond_one, mut places) = (0, 0, BTreeMap::new());
        for pair in all.array().chunks(2) {
            match &*pair[0].text() {
                "+" => more = pair[1].text().parse::<i64>().unwrap(),
                text => {
                    let token = Token::parse(text).unwrap();
                    beyond_one += i64::from(token.permits().get() - 1);
                    places.insert(index(&token), pair[1].text().parse().unwrap());
                }
            }
        }
        assert_eq!(more, -beyond_one, "{places:?}");
        assert!(all.array().len() == 2 * places.len() || more < 0, "nothing is left of it");
        places
    }

    fn seen(&mut self, reply: String) -> Seen {
        self.listeners.send(&["PING"]).unwrap();
        let mut notified = Vec::new();
        loop {
            match self.listeners.reply().unwrap() {
                Value::Array(parts) if parts[0].text() == "message" => notified.push(parts[2].text()),
                // The answer to the ping.
                _ => break,
            }
        }
        self.wire.must(&["EXISTS", KEYS[1], KEYS[3], KEYS[4], "{job}:lh:forced"]);
        let (left, now) = (self.wire.must(&["PTTL", KEYS[0]]).int(), self.now());
        let held = self.wire.get(KEYS[0]).map(|value| (value, now / 1_000 + u64::try_from(left).unwrap()));
        let line = self.pairs(KEYS[2]);
        let listed = self.listed();
        let mut seen = Seen { reply, notified, held, line, listed, ..Seen::default() };
        // Places of another phase do not count.
        if seen.is_shared() {
            seen.places = self.places();
        }
        seen
    }
}

/// Turns an operation into a call, with the ticket that its token has.
#[derive(Default)]
struct Calls {
    made: Vec<Call>,
    tickets: [u64; TOKENS],
}

impl Calls {
    fn next(&mut self, op: Op) -> Option<Call> {
        let call = match op {
            Op::Replay(_) if self.made.is_empty() => return None,
            Op::Replay(at) => return self.made.get(at % self.made.len()).cloned(),
            Op::Poll(at) => Call { op, ticket: self.tickets[at] },
            _ => Call { op, ticket: 0 },
        };
        if matches!(
            op,
            Op::Poll(_)
                | Op::Check(_)
                | Op::Part(_)
                | Op::Leave(..)
                | Op::Renew(..)
                | Op::Keep(..)
                | Op::Downgrade(..)
                | Op::Extend(..)
                | Op::PartAlone(_)
        ) {
            self.made.push(call.clone());
        }
        Some(call)
    }

    fn answered(&mut self, call: &Call, reply: &str) {
        match call.op {
            Op::Poll(at) => {
                let ticket = reply.split(' ').nth(1).filter(|_| !reply.starts_with("granted"));
                self.tickets[at] = ticket.and_then(|ticket| ticket.parse().ok()).unwrap_or(0);
            }
            Op::Leave(at, with) => [Some(at), with].into_iter().flatten().for_each(|at| self.tickets[at] = 0),
            Op::Part(at) | Op::Keep(at, ..) => self.tickets[at] = 0,
            _ => {}
        }
    }
}

#[test]
fn the_memory_node_and_the_scripts_agree_on_a_lock_that_is_shared() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    clock.gain(-1_000_000);
    let config = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
    let trusting = prop_oneof![4 => Just(TOKENS), 1 => 0..TOKENS];
    proptest!(config, |(ops in ops(), trusting in trusting)| {
        let (mut scripts, now) = Scripts::new(&server, &clock, trusting);
        let (mut scene, mut calls) = (Scene::new(now, trusting), Calls::default());
        for (step, op) in ops.into_iter().enumerate() {
            let Some(call) = calls.next(op) else { continue };
            let (memory, redis) = (scene.apply(&call), scripts.apply(&call));
            calls.answered(&call, &redis.reply);
            prop_assert_eq!(memory, redis, "memory and scripts, step {}: {:?}", step, call);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_let_in_beside_as_many_as_its_limit_nor_past_another_and_fences_grow(ops in ops()) {
        const NOW: Micros = 1_795_243_932_883_000;
        let (mut scene, mut calls) = (Scene::new(NOW, TOKENS), Calls::default());
        let (mut before, mut last_fence) = (Seen::default(), None);
        for op in ops {
            let Some(call) = calls.next(op) else { continue };
            let is_replay = matches!(op, Op::Replay(_));
            let after = scene.apply(&call);
            calls.answered(&call, &after.reply);
            let (was_in, is_in) = (before.sharers(scene.now), after.sharers(scene.now));
            let is_same_phase = before.is_shared() && before.fence() == after.fence();
            let has_come = |at: &usize| !was_in.contains(at) || !is_same_phase;
            let (own, own_ticket) = match call.op {
                Op::Poll(at) => (Some(at), call.ticket),
                Op::Check(at) | Op::Acquire(at) => (Some(at), 0),
                _ => (None, 0),
            };
            let ticket_of = |at: usize| {
                let known = before.line.iter().find(|(known, _)| *known == at).map(|(_, ticket)| *ticket);
                known.or(Some(own_ticket).filter(|ticket| own == Some(at) && *ticket != 0)).unwrap_or(u64::MAX)
            };
            let mut came: Vec<_> = is_in.iter().copied().filter(|at| has_come(at) && *at < ASKING).collect();
            came.sort_by_key(|at| (ticket_of(*at), *at));
            // A token that only replaced another, or changed its mode, was not admitted beside any other.
            if !matches!(call.op, Op::Keep(..)) {
                let mut others: u32 = is_in.iter().filter(|at| !has_come(at)).map(|at| PERMITS[*at]).sum();
                let is_new = |at: &usize| is_in.contains(at) && !was_in.contains(at);
                others += u32::from(matches!(&call.op, Op::Downgrade(_, to) if is_new(to)));
                for at in &came {
                    prop_assert!(LIMITS[*at] > 0, "{} shares, and wanted it alone", at);
                    let fits = others < LIMITS[*at];
                    prop_assert!(fits, "{} beside {}: {:?}\n{:?}\n{:?}", at, others, call, before, after);
                    others += PERMITS[*at];
                }
            }
            let is_by_hand = matches!(call.op, Op::Delete | Op::Overwrite | Op::ForceRelease | Op::LosePlaces);
            let alone = after.alone().filter(|_| before.alone() != after.alone());
            if alone.is_some() && !is_by_hand {
                let has_gone = |at: usize| match call.op {
                    Op::Part(gone) => gone == at,
                    Op::Leave(gone, with) => gone == at || with == Some(at),
                    _ => false,
                };
                let left: Vec<_> = was_in.iter().filter(|at| !has_gone(**at)).collect();
                prop_assert!(!before.is_shared() || left.is_empty(), "{:?} alone beside {:?}", alone, left);
            }
            // First come, first served: no reachable waiter is passed over, except by a request outside of the queue.
            let is_outside = matches!(call.op, Op::Acquire(_) | Op::Overwrite | Op::Keep(..));
            if let Some(latest) = came.iter().copied().chain(alone).map(ticket_of).max().filter(|_| !is_outside) {
                let waits = |at: usize| process(at).hears && scene.listening.contains(PROCESSES[at]);
                let mut stayed = after.line.iter().filter(|place| before.line.contains(place));
                let behind = stayed.find(|(at, ticket)| *ticket < latest && waits(*at));
                prop_assert_eq!(behind, None, "{:?}", call);
            }
            if let Some(fence) = after.fence().filter(|_| before.fence() != after.fence()) {
                prop_assert!(Some(fence) > last_fence || is_replay, "a larger one for each phase and holder");
                last_fence = last_fence.max(Some(fence));
            }
            before = after;
        }
    }
}
