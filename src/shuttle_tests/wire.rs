//! A server at the other end of two routes, and a process in front of it.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    slice,
    sync::{Arc, Weak},
    task::{self, Context, Waker},
    time::Duration,
};

use leasehold_protocol::{
    failure::Failure,
    forced,
    holder::Holder,
    key::Key,
    message::{Looked, ReleaseMode, Reply, Request, Route, Shard},
    slot::Keys,
    token::Token,
};
use parking_lot::Mutex;
use shuttle::future::{block_on, spawn, yield_now};
use tokio::sync::oneshot;

use super::time;
use crate::{
    clock::{Clock, SystemClock},
    engine::{Engine, Options},
    keeper::Host,
    lock::Lock,
    node::{Answer, Links, Node, NodeListener, memory::Memory},
    options::LockOptions,
    quorum::Quorum,
    scope::Scope,
    survey::{Inquiry, ServerSaid},
};

/// The kinds of request for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Acquire,
    Renew,
    Release,
    Leave,
    Poll,
}

/// A request on its way, and the channel for its answer.
type Delivery = (Request, oneshot::Sender<Result<Reply, Failure>>);

/// The guards of this mutex and of those below are never held across a step.
#[derive(Default, Clone)]
struct Way(Arc<Mutex<VecDeque<Delivery>>>);

/// A node behind routes: each route keeps the order in which requests were sent, and the schedule decides how the
/// routes interleave. As with a server, a request that was sent arrives, even if its caller does not wait any more.
pub(super) struct Wire {
    memory: Arc<Memory>,
    home: Way,
    keeper: Way,
    /// The requests that were sent, in order.
    sent: Arc<Mutex<Vec<(Asked, Token)>>>,
    couriers: Mutex<Vec<Arc<Courier>>>,
}

impl Wire {
    fn new(clock: &Arc<dyn Clock>) -> Arc<Self> {
        let (home, keeper, sent) = (Way::default(), Way::default(), Arc::default());
        Arc::new(Self { memory: Memory::private(clock), home, keeper, sent, couriers: Mutex::default() })
    }

    /// The requests for this token, in the order of sending.
    pub(super) fn asked(&self, token: &Token) -> Vec<Asked> {
        self.sent.lock().iter().filter(|(_, other)| other == token).map(|(asked, _)| *asked).collect()
    }

    /// The tokens of all attempts, in order.
    pub(super) fn tokens(&self) -> Vec<Token> {
        let mut tokens: Vec<Token> = Vec::new();
        for (_, token) in self.sent.lock().iter() {
            if !tokens.contains(token) {
                tokens.push(token.clone());
            }
        }
        tokens
    }

    pub(super) fn holder(&self, name: &str) -> Option<Holder> {
        self.now::<Looked>(Request::Holder(Key::of_lock(name))).holder
    }

    /// An operator takes the lock from its holder, if it has one.
    pub(super) fn take_by_force(&self, name: &str) {
        let _was_there: bool =
            self.now(Request::ForceRelease { key: Key::of_lock(name), by: Arc::new(forced::by("ops", None)) });
    }

    /// Executes a request at once, outside the routes.
    fn now<T: TryFrom<Reply, Error = Failure>>(&self, request: Request) -> T {
        let reply = ready(self.memory.send(Route::Home, request, Duration::MAX));
        reply.and_then(T::try_from).unwrap_or_else(|failure| panic!("the memory node fails in nothing: {failure}"))
    }
}

fn asked(request: &Request) -> Vec<(Asked, Token)> {
    let (asked, claims) = match request {
        Request::Acquire(acquire) => (Asked::Acquire, slice::from_ref(&acquire.claim)),
        Request::Renew(claims) => (Asked::Renew, &**claims),
        Request::Release { claim, mode: ReleaseMode::Delete } => (Asked::Release, slice::from_ref(claim)),
        Request::Release { claim, mode: ReleaseMode::Leave(_) } => (Asked::Leave, slice::from_ref(claim)),
        Request::Poll(poll) => (Asked::Poll, slice::from_ref(&poll.claim)),
        _ => return Vec::new(),
    };
    claims.iter().map(|claim| (asked, claim.token.clone())).collect()
}

/// The memory node answers at once.
fn ready<T>(mut answer: Answer<T>) -> Result<T, Failure> {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        task::Poll::Ready(answer) => answer,
        task::Poll::Pending => panic!("the memory node waits for nothing"),
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl Node for Wire {
    fn route(&self) -> Route {
        Route::Home
    }

    fn listen(&self, listener: Weak<dyn NodeListener>) {
        let courier = Arc::new(Courier(listener));
        self.memory.listen(Arc::downgrade(&courier) as Weak<dyn NodeListener>);
        self.couriers.lock().push(courier);
    }

    fn tracking_capacity(&self) -> usize {
        1_000
    }

    fn links(&self) -> Option<&dyn Links> {
        Some(self)
    }

    fn send(&self, route: Route, request: Request, limit: Duration) -> Answer<Reply> {
        let way = if route == Route::Home { &self.home } else { &self.keeper }.clone();
        let (memory, sent) = (self.memory.clone(), self.sent.clone());
        // Like a connection, it sends when it is first polled.
        Box::pin(async move {
            sent.lock().extend(asked(&request));
            let (tell, told) = oneshot::channel();
            way.0.lock().push_back((request, tell));
            drop(spawn(async move {
                let first = way.0.lock().pop_front();
                if let Some((request, tell)) = first {
                    let _nobody_waits_any_more = tell.send(ready(memory.send(route, request, limit)));
                }
            }));
            told.await.unwrap_or_else(|_| Err(Failure::unknown("the end of the execution")))
        })
    }

    fn survey(&self, shard: Shard, inquiry: Inquiry) -> Answer<ServerSaid> {
        self.memory.survey(shard, inquiry)
    }

    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.memory.close(limit)
    }
}

impl Links for Wire {}

/// Brings the notifications to fair waiters some time later. It brings no changes: a server does not notify a
/// connection of its own changes (NOLOOP), so this process has to wake its own waiters.
struct Courier(Weak<dyn NodeListener>);

impl Courier {
    fn bring(&self, call: impl FnOnce(&dyn NodeListener) + Send + 'static) {
        let listener = self.0.clone();
        drop(spawn(async move {
            if let Some(listener) = listener.upgrade() {
                call(&*listener);
            }
        }));
    }
}

impl NodeListener for Courier {
    fn changed(&self, _: &str) {}

    fn missed(&self, _: &Keys) {}

    fn is_needed(&self) -> bool {
        false
    }

    fn holds(&self, key: &str) -> bool {
        self.0.upgrade().is_some_and(|listener| listener.holds(key))
    }

    fn is_as_left(&self, key: &str, value: &str, left: Duration) -> bool {
        self.0.upgrade().is_some_and(|listener| listener.is_as_left(key, value, left))
    }

    fn granted(&self, key: &str, token: &str) {
        let (key, token) = (key.to_owned(), token.to_owned());
        self.bring(move |listener| listener.granted(&key, &token));
    }

    fn next(&self, token: &str, within: Duration) {
        let token = token.to_owned();
        self.bring(move |listener| listener.next(&token, within));
    }

    fn has_waiters(&self) -> bool {
        self.0.upgrade().is_some_and(|listener| listener.has_waiters())
    }

    fn has_waiter(&self, token: &str) -> bool {
        self.0.upgrade().is_some_and(|listener| listener.has_waiter(token))
    }
}

/// One process and its server.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) engine: Arc<Engine>,
    pub(super) wire: Arc<Wire>,
}

pub(super) const TTL: Duration = Duration::from_secs(3);

impl Scene {
    pub(super) fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (host, stop) = Host::start(&clock).unwrap();
        let options = Options {
            lock: LockOptions { ttl: TTL, ..LockOptions::default() },
            prefix: "".into(),
            label: "host:7".into(),
            command_timeout: Duration::from_secs(1),
            grant_timeout: Duration::from_millis(900),
            in_slots: false,
        };
        let wire = Wire::new(&clock);
        let quorum = Quorum::of_one("wire", wire.clone(), &clock, &host, options.command_timeout);
        Self { engine: Engine::new(options, clock, host, stop, quorum, None), wire }
    }

    pub(super) fn lock(&self) -> Lock {
        Lock::new(Scope::new(self.engine.clone()), "job").owner(crate::Owner::anonymous())
    }

    /// Lets time pass until nothing is under way, and checks that no lock is held and no waiter is left.
    pub(super) fn settle(&self) {
        drop(spawn(async {
            loop {
                time::pass();
                yield_now().await;
            }
        }));
        block_on(self.engine.host.finished());
        assert_eq!(self.wire.holder("job"), None, "the key is left");
        assert!(self.engine.watchdog.is_empty(), "a hold without an owner is still watched");
        assert!(self.engine.lines.is_empty() && self.engine.queues.is_empty() && self.engine.fair_waiters.is_empty());
    }
}
