//! A server at the other end of two routes, and a process in front of it.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{self, Context, Waker},
    time::Duration,
};

use leasehold_protocol::{
    failure::Failure,
    fence::Fence,
    holder::Holder,
    key::Key,
    message::{AcquireRequest, Guarding, Owned, Poll, Polled, Renewal, Repaired, Route, ServerIdentity, Vote},
    token::Token,
};
use parking_lot::Mutex;
use shuttle::future::{block_on, spawn, yield_now};
use tokio::sync::oneshot;

use super::time;
use crate::{
    capabilities::Capabilities,
    client::{Client, Options},
    clock::{Clock, SystemClock},
    keeper::{Host, Keeper},
    lock::Lock,
    node::{Answer, Line, Node, NodeListener, Page, memory::Memory},
    quorum::Quorum,
};

/// What a request wants of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Acquire,
    Renew,
    Release,
    Leave,
    Poll,
}

type Request = Box<dyn FnOnce(&Memory) + Send>;

/// The locks of this mutex and of those below are never kept across a step.
#[derive(Default, Clone)]
struct Way(Arc<Mutex<VecDeque<Request>>>);

/// A node whose requests travel: each route keeps the order in which they were handed over, and what the other route does
/// meanwhile is up to the schedule. As to fred, what was handed over arrives, whoever has stopped to wait for it.
pub(super) struct Wire {
    memory: Arc<Memory>,
    home: Way,
    keeper: Way,
    /// What was handed over, in order.
    sent: Arc<Mutex<Vec<(Asked, Token)>>>,
    couriers: Mutex<Vec<Arc<Courier>>>,
}

impl Wire {
    fn new() -> Arc<Self> {
        let (home, keeper, sent) = (Way::default(), Way::default(), Arc::default());
        Arc::new(Self { memory: Memory::private(), home, keeper, sent, couriers: Mutex::default() })
    }

    /// What was asked for this token, in the order of sending.
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
        now(self.memory.holder(&Key::of_lock(name), Duration::MAX))
    }

    /// Somebody deletes the key by hand, if it is there.
    pub(super) fn delete(&self, name: &str) {
        let _was_there = now(self.memory.force_release(&Key::of_lock(name), Duration::MAX));
    }

    fn send<T: Send + 'static>(
        &self,
        route: Route,
        asked: Vec<(Asked, Token)>,
        request: impl FnOnce(&Memory) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let way = if route == Route::Home { &self.home } else { &self.keeper }.clone();
        let (memory, sent) = (self.memory.clone(), self.sent.clone());
        // As fred does, it sends when it is first looked at.
        Box::pin(async move {
            sent.lock().extend(asked);
            let (tell, told) = oneshot::channel();
            way.0.lock().push_back(Box::new(move |memory: &Memory| {
                let _nobody_waits_any_more = tell.send(ready(request(memory)));
            }));
            drop(spawn(async move {
                let first = way.0.lock().pop_front();
                if let Some(request) = first {
                    request(&memory);
                }
            }));
            told.await.unwrap_or_else(|_| Err(Failure::unknown("the end of the execution")))
        })
    }
}

/// The memory node answers at once.
fn ready<T>(mut answer: Answer<T>) -> Result<T, Failure> {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        task::Poll::Ready(answer) => answer,
        task::Poll::Pending => panic!("the memory node waits for nothing"),
    }
}

fn now<T>(answer: Answer<T>) -> T {
    ready(answer).unwrap_or_else(|failure| panic!("the memory node fails in nothing: {failure}"))
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

    fn address(&self) -> &'static str {
        "wire"
    }

    fn acquire(&self, route: Route, request: &AcquireRequest, limit: Duration) -> Answer<Vote> {
        let request = request.clone();
        self.send(route, vec![(Asked::Acquire, request.token.clone())], move |memory| {
            memory.acquire(route, &request, limit)
        })
    }

    fn renew(&self, route: Route, batch: &[Renewal], limit: Duration) -> Answer<Vec<Result<Owned, Failure>>> {
        let batch = batch.to_vec();
        let asked = batch.iter().map(|renewal| (Asked::Renew, renewal.token.clone())).collect();
        self.send(route, asked, move |memory| memory.renew(route, &batch, limit))
    }

    fn release(&self, route: Route, key: &Key, token: &Token, limit: Duration) -> Answer<Owned> {
        let (key, token) = (key.clone(), token.clone());
        self.send(route, vec![(Asked::Release, token.clone())], move |memory| {
            memory.release(route, &key, &token, limit)
        })
    }

    fn poll(&self, route: Route, poll: &Poll, limit: Duration) -> Answer<Polled> {
        let poll = poll.clone();
        self.send(route, vec![(Asked::Poll, poll.token.clone())], move |memory| memory.poll(route, &poll, limit))
    }

    fn leave(&self, route: Route, key: &Key, token: &Token, limit: Duration) -> Answer<Owned> {
        let (key, token) = (key.clone(), token.clone());
        self.send(route, vec![(Asked::Leave, token.clone())], move |memory| memory.leave(route, &key, &token, limit))
    }

    fn raise(&self, route: Route, key: &Key, token: &Token, fence: Fence, limit: Duration) -> Answer<Owned> {
        self.memory.raise(route, key, token, fence, limit)
    }

    fn repair(&self, lease: &Renewal, fence: Fence, restart_delay: Duration, limit: Duration) -> Answer<Repaired> {
        self.memory.repair(lease, fence, restart_delay, limit)
    }

    fn probe(&self, limit: Duration) -> Answer<ServerIdentity> {
        self.memory.probe(limit)
    }

    fn keep(
        &self,
        route: Route,
        key: &Key,
        token: &Token,
        keep: Duration,
        stays: &Token,
        limit: Duration,
    ) -> Answer<Owned> {
        self.memory.keep(route, key, token, keep, stays, limit)
    }

    fn line(&self, key: &Key, most: usize, limit: Duration) -> Answer<Line> {
        self.memory.line(key, most, limit)
    }

    fn holder(&self, key: &Key, limit: Duration) -> Answer<Option<Holder>> {
        self.memory.holder(key, limit)
    }

    fn held(&self, pattern: &str, cursor: u64, limit: Duration) -> Answer<Page> {
        self.memory.held(pattern, cursor, limit)
    }

    fn force_release(&self, key: &Key, limit: Duration) -> Answer<bool> {
        self.memory.force_release(key, limit)
    }

    fn guarded_set(&self, key: &Key, value: &[u8], fence: Fence, limit: Duration) -> Answer<Guarding> {
        self.memory.guarded_set(key, value, fence, limit)
    }

    fn guarded_get(&self, key: &Key, limit: Duration) -> Answer<Option<(Vec<u8>, Fence)>> {
        self.memory.guarded_get(key, limit)
    }

    fn capabilities(&self, limit: Duration) -> Answer<Capabilities> {
        self.memory.capabilities(limit)
    }

    fn reconnect(&self, _: Route) {}

    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.memory.close(limit)
    }
}

/// Brings the calls to fair waiters some time later. What a connection does itself it is not told of (NOLOOP), so of
/// changes it brings nothing: this process has to wake its own waiters.
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

    fn missed(&self) {}

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
    pub(super) client: Arc<Client>,
    pub(super) wire: Arc<Wire>,
}

pub(super) const TTL: Duration = Duration::from_secs(3);

impl Scene {
    pub(super) fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (host, stop) = Host::start(Keeper::Thread).unwrap();
        let options = Options {
            ttl: TTL,
            max_hold: None,
            prefix: String::new(),
            label: "host:7".into(),
            command_timeout: Duration::from_secs(1),
            fair: false,
            grant_timeout: Duration::from_millis(900),
        };
        let wire = Wire::new();
        let quorum = Quorum::of_one(wire.clone(), &clock, &host, options.command_timeout);
        Self { client: Client::new(options, clock, host, stop, quorum), wire }
    }

    pub(super) fn lock(&self) -> Lock {
        Lock::new(self.client.clone(), "job").owner(crate::Owner::anonymous())
    }

    /// Lets time pass until nothing is under way any more; then nobody holds anything, and nobody waits.
    pub(super) fn settle(&self) {
        drop(spawn(async {
            loop {
                time::pass();
                yield_now().await;
            }
        }));
        block_on(self.client.host.finished());
        assert_eq!(self.wire.holder("job"), None, "the key is left");
        assert!(self.client.watchdog.is_empty(), "a hold that nobody owns is looked after");
        assert!(self.client.lines.is_empty() && self.client.queues.is_empty() && self.client.calls.is_empty());
    }
}
