//! The steps of an acquire and of a release while their slot is being moved, under random operations: the store, which
//! plays them in the models, and the scripts agree.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    failure::Failure,
    fence::{self, Fence},
    forced,
    holder::Holder,
    key::Key,
    message::{AcquireRequest, Acquired, Claim, Denial, Owned, Reply, Request, VoteReply},
    mode::Mode,
    stepwise::{Single, SingleReply},
    store::{Process, Store},
    time::{Micros, micros},
    token::Token,
};
use proptest::prelude::*;
use support::{Server, Value, Wire, scripts};
use uuid::Uuid;

/// A run of the test takes less than the shorter one, and less than their difference.
const TTLS: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(6_000)];

#[derive(Debug, Clone, Copy)]
enum Op {
    Take(usize, usize),
    Issue,
    /// The third step, with the fence that was issued last.
    Confirm(usize, usize),
    Release(usize),
    /// An acquire in one step, as before the slot is moved.
    Acquire(usize, usize),
    ForceRelease,
    Expire,
    /// Another program stores data under the lock's name.
    Misplace,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (token, ttl) = (0..3_usize, 0..TTLS.len());
    let op = prop_oneof![
        8 => (token.clone(), ttl.clone()).prop_map(|(token, ttl)| Op::Take(token, ttl)),
        4 => Just(Op::Issue),
        6 => (token.clone(), ttl.clone()).prop_map(|(token, ttl)| Op::Confirm(token, ttl)),
        4 => token.clone().prop_map(Op::Release),
        2 => (token, ttl).prop_map(|(token, ttl)| Op::Acquire(token, ttl)),
        1 => Just(Op::ForceRelease),
        1 => Just(Op::Expire),
        1 => Just(Op::Misplace),
    ];
    prop::collection::vec(op, 1..40)
}

/// An answer, and the content of the lock's key after it. Clocks differ, so fences and times are reduced to their kind.
#[derive(Debug, PartialEq)]
struct Seen {
    reply: String,
    holder: Option<String>,
}

fn shown(holder: &Holder, issued: Fence) -> String {
    let fence = match holder.fence() {
        None => "no fence",
        Some(fence) if fence == issued => "the fence issued last",
        Some(_) => "another fence",
    };
    match (holder.whole_token(), holder.remaining()) {
        (Some(token), Some(left)) => {
            format!("{}, {fence}, {} TTLs", token.as_str(), (left + TTLS[0] / 2).as_secs() / 600)
        }
        _ if holder.not_a_lock().is_some() => "data".into(),
        other => panic!("{other:?}"),
    }
}

fn tokens() -> [Token; 3] {
    std::array::from_fn(|n| Token::new(Uuid::from_u128(n as u128 + 1), &n.to_string()))
}

struct Memory {
    store: Store,
    now: Micros,
    key: Key,
    tokens: [Token; 3],
    issued: Fence,
    /// Whether another program has stored data under the lock's name, where the store has only locks.
    has_data: bool,
}

impl Memory {
    fn new() -> Self {
        let (store, key) = (Store::default(), Key::new("", "job").unwrap());
        Self { store, now: 1_000_000, key, tokens: tokens(), issued: fence::ZERO, has_data: false }
    }

    /// A key lives for its life, whatever the TTL of its lease.
    fn claim(&self, token: usize, ttl: usize) -> Claim {
        let (key, token) = (self.key.clone(), self.tokens[token].clone());
        Claim {
            key,
            token,
            mode: Mode::Exclusive,
            ttl: Duration::ZERO,
            life: TTLS[ttl],
            fence: Some(self.issued),
            fence_memory: fence::MEMORY,
        }
    }

    fn single(&mut self, single: &Single) -> String {
        match self.store.single(self.now, single) {
            SingleReply::Taken => "taken".into(),
            SingleReply::Busy(holder) => format!("busy: {}", shown(&holder, self.issued)),
            SingleReply::Issued(fence) => {
                assert!(fence > self.issued, "fences grow");
                self.issued = fence;
                "issued".into()
            }
            // The data is another program's.
            SingleReply::Owned(Err(Denial::Gone)) if self.has_data => told(&Err(Denial::Taken)),
            SingleReply::Owned(owned) => told(&owned),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, Failure> {
        self.store.apply(self.now, request, Process { name: "", hears: false }, &|_| false).reply
    }

    fn apply(&mut self, op: Op) -> Seen {
        self.now += 1_000;
        let reply = match op {
            Op::Take(..) | Op::Acquire(..) if self.has_data => "busy: data".into(),
            Op::ForceRelease if self.has_data => false.to_string(),
            Op::Take(token, ttl) => self.single(&Single::Take(self.claim(token, ttl))),
            Op::Issue => self.single(&Single::Issue(self.claim(0, 0))),
            Op::Confirm(token, ttl) => self.single(&Single::Confirm(self.claim(token, ttl))),
            Op::Release(token) => self.single(&Single::Release(self.claim(token, 0))),
            Op::Acquire(token, ttl) => {
                let request = AcquireRequest { claim: self.claim(token, ttl), voting: None, heir_of: None };
                match VoteReply::try_from(self.ask(&Request::Acquire(request)).unwrap()).unwrap().acquired {
                    Acquired::Granted(fence) => {
                        self.issued = self.issued.max(fence);
                        "granted".into()
                    }
                    Acquired::Busy { holder, .. } => format!("busy: {}", shown(&holder, self.issued)),
                    Acquired::Recovering(_) => "recovers".into(),
                    Acquired::Gone => "gone".into(),
                }
            }
            Op::ForceRelease => {
                let by = Arc::new(forced::by("ops", None));
                self.ask(&Request::ForceRelease { key: self.key.clone(), by }).is_ok().to_string()
            }
            Op::Expire => {
                self.now += micros(TTLS[1]);
                String::new()
            }
            Op::Misplace => {
                self.store.delete(&self.key);
                self.has_data = true;
                String::new()
            }
        };
        let holder = self.store.holder(self.now, &self.key).map(|holder| shown(&holder, self.issued));
        Seen { reply, holder: if self.has_data { Some("data".into()) } else { holder } }
    }
}

fn told(owned: &Owned) -> String {
    match owned {
        Ok(()) => "done".into(),
        Err(Denial::Gone) => "gone".into(),
        Err(Denial::Taken) => "taken by another".into(),
        Err(Denial::Forced(by)) => format!("forced by {}", forced::to_text(by)),
    }
}

/// A server that gets the same requests.
struct Scripts {
    wire: Wire,
    tokens: [Token; 3],
    issued: Fence,
}

impl Scripts {
    fn new(server: &Server) -> Self {
        let mut wire = server.wire();
        wire.must(&["FLUSHALL"]);
        Self { wire, tokens: tokens(), issued: fence::ZERO }
    }

    fn eval(&mut self, script: &str, keys: &[&str], args: &[&str]) -> Value {
        self.wire.cmd(&[&["EVAL", script, &keys.len().to_string()], keys, args].concat())
    }

    fn found(&self, value: &Value, pttl: i64) -> String {
        match value {
            Value::Bulk(_) => shown(&Holder::read(Some(&value.text()), pttl), self.issued),
            _ => shown(&Holder::of_type(Some("hash"), pttl), self.issued),
        }
    }

    fn owned(reply: &Value) -> String {
        match reply {
            Value::Array(forced) => format!("forced by {}", forced[1].text()),
            Value::Int(1) => "done".into(),
            Value::Int(0) => "gone".into(),
            _ => "taken by another".into(),
        }
    }

    fn apply(&mut self, op: Op) -> Seen {
        const FENCE: &str = "{job}:lh:fence";
        let tokens = self.tokens.clone();
        let token = |at: usize| tokens[at].as_str();
        let millis = |ttl: usize| TTLS[ttl].as_millis().to_string();
        let memory = fence::MEMORY.as_millis().to_string();
        let reply = match op {
            Op::Take(at, ttl) => match self.eval(scripts::TAKE, &["job"], &[token(at), &millis(ttl)]) {
                Value::Array(busy) => format!("busy: {}", self.found(&busy[2], busy[1].int())),
                taken => {
                    assert_eq!(taken, Value::Int(1));
                    "taken".into()
                }
            },
            Op::Issue => {
                let fence = self.eval(scripts::ISSUE_ALONE, &[FENCE], &[&memory]).int();
                let fence = Fence::try_from(fence).unwrap();
                assert!(fence > self.issued, "fences grow");
                self.issued = fence;
                "issued".into()
            }
            Op::Confirm(at, ttl) => {
                let issued = self.issued.to_string();
                Self::owned(&self.eval(scripts::CONFIRM, &["job"], &[token(at), &issued, &millis(ttl)]))
            }
            Op::Release(at) => Self::owned(&self.eval(scripts::RELEASE_ALONE, &["job"], &[token(at)])),
            Op::Acquire(at, ttl) => {
                let acquired = self.eval(scripts::ACQUIRE, &["job", FENCE], &[token(at), &millis(ttl), &memory]);
                match acquired.array() {
                    [_, fence] => {
                        self.issued = self.issued.max(Fence::try_from(fence.int()).unwrap());
                        "granted".into()
                    }
                    [_, pttl, value, ..] => format!("busy: {}", self.found(value, pttl.int())),
                    other => panic!("{other:?}"),
                }
            }
            Op::ForceRelease => {
                let keys = ["job", FENCE, "{job}:lh:queue", "{job}:lh:wait"];
                let reply = self.eval(scripts::FORCE_RELEASE, &keys, &["{job}:lh:forced", "ops"]);
                reply.error().is_none().to_string()
            }
            Op::Expire => {
                if self.wire.must(&["TYPE", "job"]).text() == "string" {
                    self.wire.del("job");
                }
                self.wire.del("{job}:lh:forced");
                String::new()
            }
            Op::Misplace => {
                self.wire.del("job");
                self.wire.must(&["HSET", "job", "field", "data"]);
                String::new()
            }
        };
        let pttl = self.wire.must(&["PTTL", "job"]).int();
        let holder = match self.wire.must(&["TYPE", "job"]).text().as_str() {
            "none" => None,
            "string" => Some(self.wire.must(&["GET", "job"])),
            _ => Some(Value::Nil),
        };
        Seen { reply, holder: holder.map(|value| self.found(&value, pttl)) }
    }
}

#[test]
fn the_store_and_the_scripts_of_single_steps_agree() {
    let server = Server::start();
    let config = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(ops in ops())| {
        let (mut memory, mut scripts) = (Memory::new(), Scripts::new(&server));
        for (step, op) in ops.into_iter().enumerate() {
            let (store, redis) = (memory.apply(op), scripts.apply(op));
            prop_assert_eq!(store, redis, "store and scripts, step {}: {:?}", step, op);
        }
    });
}
