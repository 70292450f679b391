//! The user and password of a connection, requested from the program's provider.
//!
//! # Invariants
//!
//! 1. A provider is foreign code, and runs on a thread of its own: if it blocks, it blocks only that thread.
//! 2. Callers that ask while a question is under way share its answer, so a provider is asked once for all connections
//!    that are made at one moment. It is asked again at most once in [`ASK_EVERY`], except for one question that may
//!    follow at once. A question that has no answer after the time to connect is given up: the next one is asked on
//!    another thread, of which there are at most [`MOST_THREADS`].
//! 3. A new connection takes the last answer while that is fresh: it is still valid, or a second old at most, and no
//!    server has refused it. Otherwise it asks, and waits for the answer for a quarter of a command's time. After that
//!    it takes the last answer anyway, if there is one, and the server decides.
//! 4. No text contains a password.

use std::{
    fmt, fs,
    future::{Future, pending, ready},
    io,
    panic::{RefUnwindSafe, UnwindSafe},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{doubling::Doubling, rounded::Rounded, time::Time};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    endpoint::{Endpoint, Limits, mistake},
    failure::is_wrong_password,
    target::Target,
    trust::explained,
};
use crate::{
    credentials::Credentials,
    foreign::{self, Event, Worker},
    node::redis::wire::{Config, Error as WireError, ErrorKind as WireKind},
};

/// The most threads that a provider may have blocked.
const MOST_THREADS: usize = 4;

/// The pause before a provider that has failed is asked again for an open connection, and before an AUTH is tried again;
/// it doubles up to the longest.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long an answer without a stated validity is fresh. During an outage, a connection is tried twice a second.
const FRESH: Duration = Duration::from_secs(1);

/// The least time between questions, except for a second one at once, which may bring a new password. Each try to
/// connect wants an answer, and a vault that fails must not be asked by all of them.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// The beginning of an error about credentials that the server rejects.
const REJECTED: &str = "what its provider of credentials gives is not taken: ";

/// The program's closure, and a question to it.
type Ask = Box<dyn Fn() -> Asking + Send + Sync>;
type Asking = Pin<Box<dyn Future<Output = Result<Credentials, String>> + Send>>;

/// An answer of the provider.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) credentials: Credentials,
    /// Later ones have larger numbers.
    number: u64,
    /// When it was asked for.
    asked: Time,
}

type Outcome = Option<Result<Login, String>>;

/// The program's provider of credentials, and its last answer.
#[derive(Clone)]
pub(crate) struct Provider(Arc<CredentialsCache>);

struct CredentialsCache {
    /// Present until this is dropped.
    ask: Option<Ask>,
    /// Whether a failure is a mistake in the settings, at the first connection.
    is_file: bool,
    questions: Mutex<Questions>,
    last: watch::Sender<Option<Login>>,
    /// The largest number of an answer that a server has refused.
    refused: AtomicU64,
    fails: AtomicBool,
}

#[derive(Default)]
struct Questions {
    worker: Option<Worker>,
    /// One clone for each living thread.
    running: Arc<()>,
    asked: u64,
    /// Whether the next question may follow at once.
    at_once: bool,
    /// The last question, and when it began.
    last: Option<(Time, watch::Receiver<Outcome>)>,
}

impl Provider {
    pub(crate) fn new<Fut>(ask: impl Fn() -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<Credentials, String>> + Send + 'static,
    {
        Self::asking(move || Box::pin(ask()), false)
    }

    /// A provider that reads the user's password from this file.
    pub(crate) fn of_file(user: Option<String>, file: PathBuf) -> Self {
        let read = move || {
            let read = password_in(&file);
            let user = user.clone();
            let credentials = read.map(|password| Credentials { user, password, valid_for: None });
            Box::pin(ready(credentials)) as Asking
        };
        Self::asking(read, true)
    }

    fn asking(ask: impl Fn() -> Asking + Send + Sync + 'static, is_file: bool) -> Self {
        Self(Arc::new(CredentialsCache {
            ask: Some(Box::new(ask)),
            is_file,
            questions: Mutex::default(),
            last: watch::Sender::new(None),
            refused: AtomicU64::new(0),
            fails: AtomicBool::new(false),
        }))
    }

    /// The answer to a question that is asked now, is under way, or was answered just now.
    fn question(&self, endpoint: &Endpoint) -> io::Result<watch::Receiver<Outcome>> {
        let now = endpoint.now();
        let mut questions = self.0.questions.lock();
        let Questions { worker, running, asked, at_once, last } = &mut *questions;
        if let Some((began, outcome)) = last {
            let is_under_way = outcome.borrow().is_none() && outcome.has_changed().is_ok();
            let is_given_up = now.since(*began) >= endpoint.limits.connect;
            if is_under_way && (!is_given_up || Arc::strong_count(running) > MOST_THREADS) {
                return Ok(outcome.clone());
            }
            if is_under_way {
                *worker = None;
            } else if now.since(*began) < ASK_EVERY && !std::mem::take(at_once) {
                return Ok(outcome.clone());
            }
        }
        if last.as_ref().is_none_or(|(began, _)| now.since(*began) >= FRESH) {
            *at_once = true;
        }
        let worker = match worker {
            Some(worker) if !worker.has_ended() => worker,
            _ => worker.insert(Worker::start(running)?),
        };
        let (tell, outcome) = watch::channel(None);
        *asked += 1;
        // A provider that hangs must not keep its own thread alive.
        let (provider, number, node) = (Arc::downgrade(&self.0), *asked, endpoint.target.to_string());
        worker.run(Box::new(move || {
            let asking = provider.upgrade().map(|provider| provider.ask());
            Box::pin(async move {
                let Some(asking) = asking else { return };
                let answer = asking.await.and_then(check);
                let login = answer.map(|credentials| Login { credentials, number, asked: now });
                let provider = provider.upgrade();
                if let (Some(provider), Ok(login)) = (&provider, &login) {
                    provider.keep(login);
                }
                tell.send_replace(Some(login.clone()));
                if let Some(provider) = provider {
                    match login {
                        Ok(_) => provider.gives_again(&node),
                        Err(reason) => provider.has_failed(&node, &reason),
                    }
                }
            })
        }));
        *last = Some((now, outcome.clone()));
        Ok(outcome)
    }

    /// Credentials for a new connection (invariant 3).
    async fn ask(&self, endpoint: &Endpoint) -> Result<Login, WireError> {
        let known = self.0.last.borrow().clone();
        if let Some(known) = known.clone().filter(|known| self.is_fresh(known, endpoint.now())) {
            return Ok(known);
        }
        // Without known credentials the next try shares the question, and a caller that gives up knows why.
        let Limits { connect, command, .. } = endpoint.limits;
        let patience = if known.is_some() { command.min(connect) / 4 } else { connect / 2 };
        match self.answer(endpoint, patience).await {
            Ok(login) => Ok(login),
            Err(reason) => known.ok_or_else(|| self.no_credentials(&reason)),
        }
    }

    async fn answer(&self, endpoint: &Endpoint, patience: Duration) -> Result<Login, String> {
        let mut outcome = self
            .question(endpoint)
            .map_err(|error| format!("the thread for its provider cannot be started ({error})"))?;
        let answered = match tokio::time::timeout(patience, outcome.wait_for(Option::is_some)).await {
            Ok(Ok(answer)) => (*answer).clone().unwrap_or_else(|| Err("their provider gave none".into())),
            Ok(Err(_dropped)) => Err("their provider has panicked, or its thread has ended".into()),
            Err(_elapsed) => Err(format!("their provider gave none within {}", Rounded(patience))),
        };
        if let Err(reason) = &answered {
            self.0.has_failed(&endpoint.target.to_string(), reason);
        }
        answered
    }

    fn is_fresh(&self, login: &Login, now: Time) -> bool {
        let is_young = now.since(login.asked) < FRESH;
        !self.is_refused(login) && login.rest(now).map_or(is_young, |rest| !rest.is_zero())
    }

    /// Notes a server's error for these credentials: if it refuses them, the provider is asked again.
    pub(super) fn note(&self, login: &Login, error: &WireError) {
        if is_wrong_password(error) {
            self.0.refused.fetch_max(login.number, Ordering::Relaxed);
        }
    }

    fn no_credentials(&self, reason: &str) -> WireError {
        let text = format!("there are no credentials: {reason}");
        if self.0.is_file { mistake(text) } else { WireError::new(WireKind::Other, text) }
    }

    /// Completes with other credentials that are valid for a while, once the provider gives some. Asks for them when
    /// the known ones are about to expire, or a server has refused them.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(super) async fn renewed(&self, endpoint: &Endpoint, known: &Login) -> Login {
        let mut last = self.0.last.subscribe();
        let mut pauses = Doubling::from(FIRST_PAUSE);
        let mut pause = Duration::ZERO;
        loop {
            let login = last.borrow_and_update().clone();
            let rest = match login.as_ref().and_then(|login| Some((login, login.rest(endpoint.now())?))) {
                Some((login, _)) if self.is_refused(login) => pause,
                Some((login, _)) if login.number > known.number && !login.is_same(known) => return login.clone(),
                Some((_, rest)) => rest.max(pause),
                // It does not say how long it is valid.
                None => Duration::MAX,
            };
            tokio::select! {
                biased;
                _changed = last.changed() => continue,
                () = tokio::time::sleep(rest) => {}
            }
            let answered = self.answer(endpoint, endpoint.limits.connect).await;
            pause = if answered.is_err() { pauses.next(LONGEST_PAUSE) } else { FIRST_PAUSE };
        }
    }

    fn is_refused(&self, login: &Login) -> bool {
        login.number <= self.0.refused.load(Ordering::Relaxed)
    }
}

impl Login {
    /// Whether they are the same user and password.
    fn is_same(&self, other: &Self) -> bool {
        let Credentials { user, password, .. } = &self.credentials;
        *user == other.credentials.user && *password == other.credentials.password
    }

    /// The time until these credentials are to be renewed, if they say how long they are valid.
    fn rest(&self, now: Time) -> Option<Duration> {
        let valid_for = self.credentials.valid_for?;
        Some((self.asked + valid_for / 3 * 2).since(now))
    }
}

impl CredentialsCache {
    fn ask(&self) -> Asking {
        match &self.ask {
            Some(ask) => ask(),
            None => Box::pin(pending()),
        }
    }

    fn keep(&self, login: &Login) {
        self.last.send_if_modified(|last| {
            let is_newer = last.as_ref().is_none_or(|last| last.number < login.number);
            if is_newer {
                *last = Some(login.clone());
            }
            is_newer
        });
    }

    fn gives_again(&self, node: &str) {
        if self.fails.swap(false, Ordering::Relaxed) {
            foreign::queue(Event::CredentialsAgain { node: node.into() });
        }
    }

    fn has_failed(&self, node: &str, reason: &str) {
        if !self.fails.swap(true, Ordering::Relaxed) {
            foreign::queue(Event::NoCredentials { node: node.into(), reason: reason.into() });
        }
    }
}

/// A closure's drop is foreign code too.
impl Drop for CredentialsCache {
    fn drop(&mut self) {
        let ask = self.ask.take();
        foreign::off_the_keeper(move || drop(ask));
    }
}

/// The password in a file, without the line end that most editors append.
fn password_in(file: &Path) -> Result<String, String> {
    let shown = file.display();
    let text = fs::read_to_string(file).map_err(|error| {
        format!(
            "password_file {shown} cannot be read ({error}): name a file with the password that this program may read"
        )
    })?;
    let password = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if password.is_empty() {
        return Err(format!("password_file {shown} is empty: write the password into it"));
    }
    Ok(password.into())
}

/// Checks for a provider's mistakes.
fn check(credentials: Credentials) -> Result<Credentials, String> {
    if credentials.password.is_empty() {
        return Err("their provider gave an empty password".into());
    }
    if credentials.user.as_deref() == Some("") {
        return Err("their provider gave an empty user: Credentials::of_default_user is for a password alone".into());
    }
    match credentials.valid_for {
        Some(span) if span < Duration::from_secs(1) => {
            Err(format!("their provider says that they are valid for {span:?}, and a second is the least"))
        }
        _ => Ok(credentials),
    }
}

/// Whether the server has rejected the credentials of the provider.
pub(super) fn is_rejected(error: &WireError) -> bool {
    error.details().starts_with(REJECTED)
}

/// Connects with the current credentials. If they are wrong, the provider is asked again: they may just have changed.
pub(crate) async fn connected<T, Fut>(
    endpoint: &Endpoint,
    connect: impl Fn(Config, Option<Login>) -> Fut,
) -> Result<T, WireError>
where
    Fut: Future<Output = Result<T, WireError>>,
{
    let Target { provider, tls, .. } = &endpoint.target;
    let config = endpoint.config().await?;
    let connect = async |config, login| connect(config, login).await.map_err(|error| explained(error, tls));
    let Some(provider) = provider else { return connect(config, None).await };
    let connect_as = async |login: &Login| {
        let (mut config, Credentials { user, password, .. }) = (config.clone(), &login.credentials);
        config.log_in(user.clone(), Some(password.clone()));
        let outcome = connect(config, Some(login.clone())).await;
        outcome.inspect_err(|error| provider.note(login, error))
    };
    let login = provider.ask(endpoint).await?;
    let mut outcome = connect_as(&login).await;
    if outcome.as_ref().is_err_and(is_wrong_password) {
        if let Some(again) = provider.ask(endpoint).await.ok().filter(|again| !again.is_same(&login)) {
            outcome = connect_as(&again).await;
        }
    }
    outcome.map_err(|error| if is_wrong_password(&error) { rejected(&error) } else { error })
}

fn rejected(error: &WireError) -> WireError {
    let text = format!("{REJECTED}\"{}\"; see that both know the same user and password", error.details());
    WireError::new(WireKind::Other, text)
}

impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Provider {}

// A panic of the program's provider ends on its own thread.
impl UnwindSafe for Provider {}
impl RefUnwindSafe for Provider {}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").finish_non_exhaustive()
    }
}
