//! A TCP proxy that a test puts between a client and a server to lose, hold,
//! delay or cut the traffic at a chosen command.
//!
//! The faults that matter to a lock fall between "the server did it" and "the client knows". So the proxy reads RESP2,
//! pairs each reply with its command (even when pipelined) and acts on one of them. Anything else, such as TLS, is
//! passed on as bytes. Rules do not apply to those, but all other controls do.
//!
//! It runs on a thread of its own. A test that blocks its runtime, or pauses
//! tokio's clock, does not stop its network.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use super::proxy_conn::{self, reset};
use super::proxy_rule::{self, Action, Match, Rule, RuleHandle};
use super::server::Server;

/// How many commands are recorded; the count continues beyond it.
const RECORD_LIMIT: usize = 100_000;
/// How long [`Proxy::cut`] waits for the proxy's thread.
const CUT_LIMIT: Duration = Duration::from_secs(5);

/// A proxy in front of one server; ends with all its connections on drop.
///
/// Every control may be called from sync and async code, and holds for each
/// byte that has not been delivered when the call returns.
///
/// Clients are accepted before the server is called, so with no server there a
/// connection succeeds and is then reset.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The fate of messages that a server sends unasked, on connections that have subscribed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Messages {
    /// Messages pass.
    #[default]
    Pass,
    /// Messages are lost; replies to commands pass.
    Lose,
    /// Each message is delivered twice.
    Twice,
    /// Each message is delayed by this much, and so is everything behind it.
    Late(Duration),
}

/// A command that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number of its connection, from 0 in the order of connecting.
    pub connection: u64,
    /// When the proxy read it.
    pub at: Instant,
    /// Its name and arguments.
    pub args: Vec<Vec<u8>>,
}

impl Proxy {
    /// A proxy in front of `server`.
    pub fn to(server: &Server) -> Self {
        Self::to_port(server.port())
    }

    /// A proxy in front of a port of this machine, whose server need not be up yet.
    pub fn to_port(upstream: u16) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port for the proxy");
        listener.set_nonblocking(true).expect("the proxy's listener does not block");
        let port = listener.local_addr().expect("the proxy's address").port();
        let upstream = SocketAddr::from(([127, 0, 0, 1], upstream));
        let shared = Arc::new(Shared::new());
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .expect("a runtime for the proxy");
                    runtime.block_on(async {
                        tokio::select! {
                            () = accept(&shared, listener, upstream) => {}
                            _ = ended => {}
                        }
                    });
                }
            })
            .expect("a thread for the proxy");
        Self { shared, port, end: Some(end), thread: Some(thread) }
    }

    /// The proxy's url, `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port the proxy listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects later connections to another port of this machine, as if the address now belonged to another server.
    pub fn turn_to(&self, upstream: u16) {
        self.turn_among(&[upstream]);
    }

    /// Connects later connections to each of several ports in turn, as a balancer does.
    pub fn turn_among(&self, upstreams: &[u16]) {
        let upstreams = upstreams.iter().map(|&port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        self.shared.change(|state| state.turned_to = upstreams);
    }

    /// Delays every byte, in each direction.
    pub fn delay(&self, each_way: Duration) {
        self.shared.change(|state| state.delay = each_way);
    }

    /// Loses everything silently: no byte, end or reset passes in either direction.
    ///
    /// This is a peer that vanished, so it does not heal. Connections that are open during it stay silent for ever;
    /// only those made afterwards work. A connection made during it succeeds (a proxy cannot keep the kernel from
    /// accepting) and is silent. Commands that arrive are recorded, but no rule applies to them.
    pub fn black_hole(&self, on: bool) {
        self.shared.change(|state| state.black_hole = on);
    }

    /// Swaps two texts of equal length in everything that the server sends from now on.
    pub fn swap(&self, one: impl Into<Vec<u8>>, other: impl Into<Vec<u8>>) {
        let (one, other) = (one.into(), other.into());
        assert!(one.len() == other.len() && one != other, "so that lengths stay true");
        self.shared.change(|state| state.swaps.push((one, other)));
    }

    /// Sets what happens to messages that arrive from the server from now on.
    pub fn messages(&self, fate: Messages) {
        self.shared.change(|state| state.messages = fate);
    }

    /// How many messages the server has sent, whether or not they were delivered.
    pub fn messages_seen(&self) -> usize {
        self.shared.lock().messages_seen
    }

    /// Holds everything back, ends and resets included, and delivers it in order when turned off.
    pub fn freeze(&self, on: bool) {
        self.shared.change(|state| state.frozen = on);
    }

    /// Resets new connections as soon as they are accepted; existing ones stay.
    pub fn refuse(&self, on: bool) {
        self.shared.change(|state| state.refuse = on);
    }

    /// Resets every client connected so far, and returns when that is done. The
    /// server's side is closed, so it still executes what was forwarded.
    #[track_caller]
    pub fn cut(&self) {
        let mut state = self.shared.lock();
        state.cut_wanted += 1;
        let wanted = state.cut_wanted;
        self.shared.wake();
        let start = Instant::now();
        while state.cut_done < wanted || state.live.iter().any(|live| live.epoch < wanted) {
            let left = CUT_LIMIT.saturating_sub(start.elapsed());
            assert!(!left.is_zero(), "the proxy did not cut its connections");
            state = self.shared.settled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Interferes with the `nth` command (from 1) that matches from now on, on any connection, and with no other. If
    /// several rules match a command, the oldest one acts.
    pub fn on(&self, wanted: Match, nth: usize, action: Action) -> RuleHandle {
        assert!(nth > 0, "matches are counted from 1");
        self.add(wanted, Some(nth), action)
    }

    /// Interferes with every command that matches from now on.
    pub fn on_each(&self, wanted: Match, action: Action) -> RuleHandle {
        self.add(wanted, None, action)
    }

    /// The number of commands from clients since the start or [`Proxy::forget`]. A client library sends some by itself.
    pub fn commands(&self) -> usize {
        self.shared.lock().commands
    }

    /// The number of recorded commands that match.
    #[allow(clippy::needless_pass_by_value)] // reads better at the call
    pub fn count(&self, wanted: Match) -> usize {
        let state = self.shared.lock();
        let matching = state.record.iter().filter(|seen| wanted.matches(&seen.args));
        matching.count()
    }

    /// The recorded commands, oldest first: at most 100 000 of them.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.lock().record.clone()
    }

    /// Empties the record and its count.
    pub fn forget(&self) {
        let mut state = self.shared.lock();
        state.record.clear();
        state.commands = 0;
    }

    /// The number of connected clients.
    pub fn connections(&self) -> usize {
        self.shared.lock().live.len()
    }

    fn add(&self, wanted: Match, nth: Option<usize>, action: Action) -> RuleHandle {
        let wake = {
            let shared = Arc::downgrade(&self.shared);
            move || {
                if let Some(shared) = shared.upgrade() {
                    shared.wake();
                }
            }
        };
        let rule = Arc::new(Rule::new(wanted, nth, action, wake));
        self.shared.lock().rules.push(Arc::clone(&rule));
        RuleHandle(rule)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The state shared by the test's threads and the proxy's.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// A counter rather than a notification, which a busy connection could miss.
    changes: watch::Sender<u64>,
    /// Signalled when connections end, for [`Proxy::cut`].
    settled: Condvar,
}

/// The controls, the rules and the record.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// See [`Proxy::delay`].
    pub delay: Duration,
    /// See [`Proxy::black_hole`].
    pub black_hole: bool,
    /// See [`Proxy::freeze`].
    pub frozen: bool,
    /// See [`Proxy::messages`].
    pub messages: Messages,
    /// See [`Proxy::messages_seen`].
    pub messages_seen: usize,
    /// See [`Proxy::swap`].
    pub swaps: Vec<(Vec<u8>, Vec<u8>)>,
    /// Connections of an earlier epoch than this have been cut.
    pub cut_done: u64,
    cut_wanted: u64,
    refuse: bool,
    turned_to: Vec<SocketAddr>,
    rules: Vec<Arc<Rule>>,
    record: Vec<Seen>,
    commands: usize,
    live: Vec<Live>,
}

#[derive(Debug)]
struct Live {
    connection: u64,
    epoch: u64,
}

impl State {
    /// Records a command.
    pub(crate) fn note(&mut self, connection: u64, args: &[Vec<u8>]) {
        self.commands += 1;
        proxy_rule::note(args);
        if self.record.len() < RECORD_LIMIT {
            self.record.push(Seen { connection, at: Instant::now(), args: args.to_vec() });
        }
    }

    /// The rule that acts on the command. All rules count it.
    pub(crate) fn rule_for(&self, args: &[Vec<u8>]) -> Option<Arc<Rule>> {
        let mut taking = None;
        for rule in &self.rules {
            if rule.takes(args) && taking.is_none() {
                taking = Some(Arc::clone(rule));
            }
        }
        taking
    }
}

impl Shared {
    fn new() -> Self {
        Self { state: Mutex::default(), changes: watch::Sender::new(0), settled: Condvar::new() }
    }

    /// The state, which must not be held over an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A receiver that is notified of changed controls and released rules.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.wake();
    }

    fn wake(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// Unregisters a connection, however its task ends.
struct Registration {
    shared: Arc<Shared>,
    connection: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.live.retain(|live| live.connection != self.connection);
        self.shared.settled.notify_all();
    }
}

async fn accept(shared: &Arc<Shared>, listener: std::net::TcpListener, upstream: SocketAddr) {
    let backlog = listener.try_clone().expect("a second handle to the proxy's listener");
    let listener = TcpListener::from_std(listener).expect("the proxy's listener joins its runtime");
    let mut changes = shared.subscribe();
    let mut connection = 0;
    loop {
        changes.borrow_and_update();
        cut_if_wanted(shared, &backlog);
        tokio::select! {
            // The branch for connections comes second, so that one made before a
            // cut is not served after it.
            biased;
            _ = changes.changed() => {}
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let turned_to = shared.lock().turned_to.clone();
                let turn = usize::try_from(connection).unwrap_or(usize::MAX).checked_rem(turned_to.len());
                let upstream = turn.and_then(|turn| turned_to.get(turn)).copied().unwrap_or(upstream);
                serve(shared, client, connection, upstream);
                connection += 1;
            }
        }
    }
}

/// Carries out a requested cut: resets the clients that the kernel has accepted and the proxy has not yet, then marks
/// all older connections as cut.
fn cut_if_wanted(shared: &Shared, backlog: &std::net::TcpListener) {
    let wanted = {
        let state = shared.lock();
        if state.cut_wanted == state.cut_done {
            return;
        }
        state.cut_wanted
    };
    while let Ok((client, _)) = backlog.accept() {
        reset(client);
    }
    shared.lock().cut_done = wanted;
    shared.settled.notify_all();
    shared.wake();
}

fn serve(shared: &Arc<Shared>, client: TcpStream, connection: u64, upstream: SocketAddr) {
    let epoch = {
        let mut state = shared.lock();
        if state.refuse {
            drop(state);
            reset(client);
            return;
        }
        let epoch = state.cut_done;
        state.live.push(Live { connection, epoch });
        epoch
    };
    let registration = Registration { shared: Arc::clone(shared), connection };
    tokio::spawn(async move {
        let shared = &registration.shared;
        proxy_conn::run(shared, client, connection, epoch, upstream).await;
    });
}
