//! Batched requests, on real servers. A batch is certain here: a clock that stands still makes no request overdue, and
//! lone requests end when their test polls them.

mod batches;
mod faults;
mod members;

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use leasehold::{Builder, Client, Error, Lease, Released, SystemClock, testing::Clock};
use support::{
    HANGS, Match, Proxy, Server, eventually_async,
    scripts::{ACQUIRE, COMBINED, RELEASE, RENEW},
    within,
};

use crate::common::LONG;

/// The command timeout. A release has half of it, within which a batch must be answered on a busy machine too.
const COMMAND: Duration = Duration::from_secs(1);

/// The size of most batches here: too small for a flight of its own.
const MANY: usize = 24;

/// A clock that can be stopped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing(Arc<Mutex<Option<Duration>>>);

impl Standing {
    pub(crate) fn stand(&self) {
        *self.0.lock().unwrap() = Some(SystemClock.now());
    }

    fn go_on(&self) {
        *self.0.lock().unwrap() = None;
    }
}

impl Clock for Standing {
    fn now(&self) -> Duration {
        self.0.lock().unwrap().unwrap_or_else(|| SystemClock.now())
    }
}

type Request<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Requests that one task polls together. Completes with all their outcomes.
struct Crowd<T> {
    requests: Vec<Result<T, Request<T>>>,
}

impl<T: Unpin> Crowd<T> {
    fn of<F: Future<Output = T> + Send + 'static>(requests: impl IntoIterator<Item = F>) -> Self {
        let boxed = |request| Err(Box::pin(request) as Request<T>);
        Self { requests: requests.into_iter().map(boxed).collect() }
    }

    fn poll_all(&mut self, context: &mut Context<'_>) {
        for request in &mut self.requests {
            if let Err(pending) = request {
                if let Poll::Ready(outcome) = pending.as_mut().poll(context) {
                    *request = Ok(outcome);
                }
            }
        }
    }

    /// Polls each request once, without tokio's cooperative budget.
    async fn once(&mut self) {
        let all = poll_fn(|context| {
            self.poll_all(context);
            Poll::Ready(())
        });
        tokio::task::unconstrained(all).await;
    }

    /// All outcomes in the order of the requests, within the usual limit.
    async fn all(self) -> Vec<T> {
        within(HANGS, "everybody is answered", self.on_any()).await
    }

    /// Polls the requests until `many` of them have their outcomes.
    async fn until(&mut self, many: usize) {
        let some = poll_fn(|context| {
            self.poll_all(context);
            let answered = self.requests.iter().filter(|request| request.is_ok()).count();
            if answered >= many { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::task::unconstrained(some).await;
    }

    /// [`all`](Self::all) on any executor, without a limit.
    async fn on_any(mut self) -> Vec<T> {
        self.until(self.requests.len()).await;
        self.requests.into_iter().filter_map(Result::ok).collect()
    }
}

/// The lone requests that are under way while others wait.
type Fillers = Crowd<Result<Option<Lease>, Error>>;

/// A server, a proxy in front of it, and a client that connects through the proxy.
struct Rig {
    leases: Client,
    proxy: Proxy,
    server: Server,
    clock: Standing,
    fillers: AtomicUsize,
    /// The fillers' leases, kept because a release would join a batch.
    filled: Mutex<Vec<Lease>>,
}

impl Rig {
    async fn start() -> Self {
        Self::with(Server::start(), |builder| builder).await
    }

    async fn with(server: Server, change: impl FnOnce(Builder) -> Builder) -> Self {
        let proxy = Proxy::to(&server);
        let url = proxy.url();
        Self::at(server, proxy, &url, change).await
    }

    /// Builds the client on the current runtime; the url points to the proxy.
    async fn at(server: Server, proxy: Proxy, url: &str, change: impl FnOnce(Builder) -> Builder) -> Self {
        know_the_scripts(&server);
        let clock = Standing::default();
        let builder = Client::builder().url(url).ttl(LONG).command_timeout(COMMAND).clock(clock.clone());
        let leases = change(builder).build().await.expect("the server is there");
        Self { leases, proxy, server, clock, fillers: AtomicUsize::new(0), filled: Mutex::default() }
    }

    /// Starts lone requests. Later requests wait until these are polled or the clock continues.
    async fn fill(&self) -> Fillers {
        // The task of the previous batch runs on this runtime, and ends first.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.clock.stand();
        let number = self.fillers.fetch_add(1, Ordering::SeqCst);
        let mut fillers = Crowd::of([self.leases.lock(format!("filler:{number}")).try_acquire()]);
        fillers.once().await;
        fillers
    }

    /// Starts the clock again, and lets the requests under way end, whatever their outcome.
    async fn go_on(&self, fillers: Fillers) {
        self.clock.go_on();
        let leases = fillers.all().await.into_iter().filter_map(|outcome| outcome.ok().flatten());
        self.filled.lock().unwrap().extend(leases);
    }

    /// Queues these requests: they wait until the fillers are polled or the clock continues.
    async fn queued<T, F>(&self, requests: impl IntoIterator<Item = F>) -> (Fillers, Crowd<T>)
    where
        T: Unpin,
        F: Future<Output = T> + Send + 'static,
    {
        let fillers = self.fill().await;
        let mut crowd = Crowd::of(requests);
        crowd.once().await;
        (fillers, crowd)
    }

    /// Sends these requests in one batch. Its script has been sent when their crowd is polled, or soon after.
    async fn batch<T, F>(&self, requests: impl IntoIterator<Item = F>) -> Crowd<T>
    where
        T: Unpin,
        F: Future<Output = T> + Send + 'static,
    {
        let (fillers, crowd) = self.queued(requests).await;
        self.go_on(fillers).await;
        crowd
    }

    /// `many` leases, acquired by one batch.
    async fn hold(&self, many: usize) -> Vec<Lease> {
        let acquired = self.batch(names(many).map(|name| self.leases.lock(name).acquire())).await.all().await;
        acquired.into_iter().map(|lease| lease.expect("it is free")).collect()
    }

    async fn release(&self, leases: Vec<Lease>) -> Vec<Result<Released, Error>> {
        self.batch(leases.into_iter().map(Lease::release)).await.all().await
    }

    async fn try_all(&self, names: impl Iterator<Item = String>) -> Vec<Result<Option<Lease>, Error>> {
        self.batch(names.map(|name| self.leases.lock(name).try_acquire())).await.all().await
    }

    /// How many requests each batch had, without the fillers: a request that arrives before the previous flight has
    /// ended is batched too.
    fn batches(&self) -> Vec<usize> {
        let script = Match::script(COMBINED);
        let seen = self.proxy.seen().into_iter().filter(|seen| script.matches(&seen.args));
        let wanted = |seen: support::Seen| {
            let keys = String::from_utf8_lossy(&seen.args[2]).parse::<usize>().unwrap();
            let is_wanted = |key: &&Vec<u8>| !key.windows(7).any(|text| text == b"filler:");
            seen.args[3..3 + keys].iter().filter(is_wanted).count() / 2
        };
        seen.map(wanted).filter(|&many| many > 0).collect()
    }

    /// Checks that the keys of all jobs' locks are gone.
    async fn nothing_is_left(&self) {
        let mut wire = self.server.wire();
        eventually_async(HANGS, "no key is left", || wire.keys("job:*").is_empty()).await;
    }
}

/// Loads the scripts, so that each request is one command.
fn know_the_scripts(server: &Server) {
    let mut wire = server.wire();
    for script in [ACQUIRE, RENEW, RELEASE, COMBINED] {
        wire.must(&["SCRIPT", "LOAD", script]);
    }
}

fn names(many: usize) -> impl Iterator<Item = String> {
    (0..many).map(|number| format!("job:{number}"))
}
