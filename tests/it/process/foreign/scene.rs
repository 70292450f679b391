//! Foreign code that blocks or panics, and leases that must not be affected.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, Lease, LeaseHandle, LossReason, Lost, Status};
use tokio::sync::oneshot;
use tracing::{Event, Level, Metadata, Subscriber, span};

use support::{Cluster, Lag, Nodes, Proxy, SIGNAL, Server, Stamped, Value, eventually_async, seen, stamped, within};

pub(super) const TTL: Duration = Duration::from_secs(3);
pub(super) const COMMAND: Duration = Duration::from_millis(200);
pub(super) const HANGS: Duration = Duration::from_secs(20);
/// The longest that foreign code blocks here: for its test, this is forever.
const BLOCKS: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Blocks,
    Panics,
}

/// The points where foreign code goes wrong. One for the process, because a subscriber is the process's.
pub(super) struct Trap {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    armed: Vec<(String, Fault)>,
    /// The faults that happened, each with its thread.
    sprung: Vec<(String, String)>,
    /// All foreign code that ran on a thread of the library, each with its thread.
    met: Vec<(String, String)>,
}

pub(super) static TRAP: Trap = Trap {
    state: Mutex::new(State { armed: Vec::new(), sprung: Vec::new(), met: Vec::new() }),
    changed: Condvar::new(),
};

impl Trap {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arm(&self, name: &str, fault: Fault) {
        self.lock().armed.push((name.to_owned(), fault));
    }

    /// Lets code that is blocked at this point continue.
    pub(super) fn disarm(&self, name: &str) {
        self.lock().armed.retain(|(armed, _)| armed != name);
        self.changed.notify_all();
    }

    /// Foreign code of this name runs here. It does not go wrong on the test's own threads.
    pub(super) fn meet(&self, name: &str) {
        let thread = thread::current().name().unwrap_or_default().to_owned();
        if !thread.starts_with("leasehold") {
            return;
        }
        self.spring(name, &thread);
    }

    /// [`meet`](Self::meet) on any thread.
    pub(super) fn meet_anywhere(&self, name: &str) {
        self.spring(name, thread::current().name().unwrap_or_default());
    }

    fn spring(&self, name: &str, thread: &str) {
        let mut state = self.lock();
        state.met.push((name.to_owned(), thread.to_owned()));
        let fault = |state: &State| state.armed.iter().find(|(armed, _)| armed == name).map(|(_, fault)| *fault);
        let Some(armed) = fault(&state) else { return };
        state.sprung.push((name.to_owned(), thread.to_owned()));
        if armed == Fault::Panics {
            drop(state);
            panic!("foreign code that panics, as it is meant to: {name}");
        }
        let began = Instant::now();
        while fault(&state).is_some() && began.elapsed() < BLOCKS {
            let (next, _) = self.changed.wait_timeout(state, BLOCKS).unwrap_or_else(PoisonError::into_inner);
            state = next;
        }
    }

    pub(super) fn has_sprung(&self, name: &str) -> bool {
        self.lock().sprung.iter().any(|(sprung, _)| sprung == name)
    }

    pub(super) fn has_sprung_on_the_keeper(&self, name: &str) -> bool {
        self.lock().sprung.iter().any(|(sprung, thread)| sprung == name && thread == "leasehold-keeper")
    }

    /// Panics if foreign code ever ran on the keeper's thread.
    #[track_caller]
    pub(super) fn spared_the_keeper(&self) {
        let met = &self.lock().met;
        let on_keeper: Vec<_> = met.iter().filter(|(_, thread)| thread == "leasehold-keeper").collect();
        assert!(on_keeper.is_empty(), "on the keeper's thread: {on_keeper:?}");
    }
}

/// The program's subscriber, which may go wrong at each event.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "leasehold" && *metadata.level() <= Level::DEBUG
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        TRAP.meet(event.metadata().name());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

pub(super) fn subscribe() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| tracing::subscriber::set_global_default(Log).expect("there is no other"));
}

/// A waker of a foreign executor, which may go wrong when it is called and when it is dropped.
pub(super) struct Foreign {
    name: &'static str,
    when_dropped: bool,
}

impl Foreign {
    pub(super) fn waker(name: &'static str) -> Waker {
        Waker::from(Arc::new(Self { name, when_dropped: false }))
    }

    pub(super) fn waker_with_a_drop(name: &'static str) -> Waker {
        Waker::from(Arc::new(Self { name, when_dropped: true }))
    }
}

impl Wake for Foreign {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.when_dropped {
            TRAP.meet_anywhere(self.name);
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if self.when_dropped {
            TRAP.meet(self.name);
        }
    }
}

/// Polls once with this waker; it must not be ready.
#[track_caller]
pub(super) fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>, waker: &Waker) {
    assert!(future.poll(&mut Context::from_waker(waker)).is_pending());
}

/// The servers of a scene.
pub(super) enum Servers {
    One(Server),
    Quorum(Nodes),
    Cluster(Cluster),
}

impl Servers {
    pub(super) fn all(&self) -> Vec<&Server> {
        match self {
            Self::One(server) => vec![server],
            Self::Quorum(nodes) => nodes.iter().collect(),
            Self::Cluster(cluster) => cluster.servers().iter().collect(),
        }
    }

    pub(super) fn stop(&self) {
        self.all().into_iter().for_each(Server::stop);
    }

    pub(super) fn cont(&self) {
        self.all().into_iter().for_each(Server::cont);
    }

    fn have(&self, key: &str) -> bool {
        let all = self.all();
        // A server of a cluster redirects requests for another server's keys.
        let has = |server: &&&Server| matches!(server.wire().cmd(&["EXISTS", key]), Value::Int(1));
        let with = all.iter().filter(has).count();
        with > if matches!(self, Self::Cluster(_)) { 0 } else { all.len() / 2 }
    }
}

/// A client with leases that do not depend on the foreign code.
pub(super) struct Scene {
    pub(super) others: Others,
    pub(super) leases: Client,
    pub(super) proxy: Option<Proxy>,
    pub(super) servers: Servers,
    pub(super) lag: Lag,
}

impl Scene {
    pub(super) async fn of_one() -> Self {
        Self::on(Servers::One(Server::start())).await
    }

    pub(super) async fn on(servers: Servers) -> Self {
        let urls: Vec<_> = servers.all().into_iter().map(Server::url).collect();
        let builder = match &servers {
            Servers::One(_) => Client::builder().url(&*urls[0]),
            Servers::Quorum(_) => Client::builder().quorum(urls).restart_delay(Duration::ZERO),
            Servers::Cluster(cluster) => Client::builder().url(cluster.url()),
        };
        Self::with(servers, None, builder).await
    }

    pub(super) async fn with(servers: Servers, proxy: Option<Proxy>, builder: Builder) -> Self {
        let builder = builder.ttl(TTL).command_timeout(COMMAND);
        let leases = within(HANGS, "build", builder.build()).await.expect("the servers are there");
        let others = Others::hold(&leases).await;
        Self { others, leases, proxy, servers, lag: Lag::start() }
    }

    pub(super) async fn acquire(&self, name: &str) -> Lease {
        within(HANGS, "the lock", self.leases.lock(name).acquire()).await.expect("it is free")
    }

    /// Checks that the other leases are renewed for longer than a TTL, and are reported lost by their deadlines during
    /// an outage.
    pub(super) async fn others_do_not_notice(self) {
        self.others.are_renewed(&self.servers).await;
        self.servers.stop();
        self.others.are_told(&self.lag).await;
        self.servers.cont();
    }
}

/// The promises that holders rely on.
pub(super) struct Others {
    leases: Vec<Lease>,
    lost: Vec<oneshot::Receiver<Stamped<Lost>>>,
    cancelled: oneshot::Receiver<Stamped<()>>,
    run: oneshot::Receiver<Stamped<Result<(), Error>>>,
    running: LeaseHandle,
}

impl Others {
    async fn hold(leases: &Client) -> Self {
        let mut held = Vec::new();
        for name in ["other:0", "other:1", "other:2"] {
            held.push(within(HANGS, "a lock", leases.lock(name).acquire()).await.expect("it is free"));
        }
        let lost = held.iter().map(|lease| stamped(lease.lost())).collect();
        let token = held[0].cancellation_token();
        let cancelled = stamped(token.cancelled_owned());
        let (begins, began) = oneshot::channel();
        let run = leases.lock("other:run").run(move |lease| async move {
            begins.send(lease).ok();
            std::future::pending::<Result<(), Error>>().await
        });
        let run = stamped(run);
        let running = within(HANGS, "the work begins", began).await.expect("it began");
        Self { leases: held, lost, cancelled, run, running }
    }

    fn handles(&self) -> Vec<LeaseHandle> {
        self.leases.iter().map(Lease::handle).chain([self.running.clone()]).collect()
    }

    /// Checks that the leases' deadlines show renewals sent later than a quarter of a TTL from now.
    async fn are_renewed(&self, servers: &Servers) {
        let handles = self.handles();
        let began = Instant::now();
        eventually_async(HANGS, "each is renewed", || {
            for lease in &handles {
                assert_eq!(lease.check(), Ok(()), "{} after {:?}", lease.name(), began.elapsed());
            }
            handles.iter().all(|lease| began.elapsed() + lease.remaining() > TTL * 5 / 4)
        })
        .await;
        for lease in handles {
            assert!(servers.have(lease.name()), "{} has a key", lease.name());
        }
    }

    /// Checks that each loss is reported by its deadline once the servers are silent.
    async fn are_told(self, lag: &Lag) {
        // A renewal under way may extend the deadlines once more. They are final when a later one fails.
        let mut deadlines: Vec<Instant> = Vec::new();
        for lease in self.handles() {
            eventually_async(HANGS, "a renewal fails", || lease.status() == Status::AtRisk).await;
            let before = Instant::now();
            deadlines.push(before + lease.remaining());
        }
        let on_time = |what: &str, at: Instant, deadline: Instant| {
            let late = at.saturating_duration_since(deadline);
            seen::took(what, late, SIGNAL, lag);
            assert!(late <= SIGNAL + lag.worst(), "{what} came {late:?} late; the machine lagged {:?}", lag.worst());
        };
        for (lost, deadline) in self.lost.into_iter().zip(&deadlines) {
            let Stamped { output, woken, .. } = within(HANGS, "lost()", lost).await.expect("it completes");
            assert!(matches!(output.reason(), LossReason::Expired | LossReason::NoQuorum), "{output:?}");
            on_time("lost()", woken, *deadline);
        }
        let cancelled = within(HANGS, "the token", self.cancelled).await.expect("it is cancelled");
        on_time("the cancellation", cancelled.woken, deadlines[0]);
        let Stamped { output, woken, .. } = within(HANGS, "run stops its work", self.run).await.expect("it stops");
        assert!(matches!(output, Err(Error::Lost(_))), "{output:?}");
        on_time("the stop of run", woken, deadlines[3]);
    }
}
