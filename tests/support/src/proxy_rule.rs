//! Which command a proxy interferes with, and how.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::scripts::{ACQUIRE, VOTES};
use super::sha1::sha1_hex;

/// The hashes of runs' votes, computed from the texts seen by proxies of this process.
static VOTES_OF_RUNS: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());

/// A description of commands, by name and arguments.
#[derive(Clone)]
pub struct Match(Arc<Predicate>);

type Predicate = dyn Fn(&[Vec<u8>]) -> bool + Send + Sync;

fn is_script(source: &str) -> impl Fn(&[Vec<u8>]) -> bool + Send + Sync + use<> {
    let (digest, source) = (sha1_hex(source), source.to_owned());
    move |args| {
        args.get(1).is_some_and(|script| {
            (is_named(args, "EVALSHA") && script.eq_ignore_ascii_case(digest.as_bytes()))
                || (is_named(args, "EVAL") && script == source.as_bytes())
        })
    }
}

/// Notes a command that has arrived. A text is sent before its hash, so that the hash is known by then.
pub(crate) fn note(args: &[Vec<u8>]) {
    if let Some(text) = args.get(1).filter(|text| is_named(args, "EVAL") && is_vote(text)) {
        let hash = sha1_hex(&String::from_utf8_lossy(text)).into_bytes();
        VOTES_OF_RUNS.lock().unwrap_or_else(PoisonError::into_inner).insert(hash);
    }
}

fn is_vote(text: &[u8]) -> bool {
    text.ends_with(VOTES.as_bytes())
}

fn is_vote_of_a_run(args: &[Vec<u8>]) -> bool {
    args.get(1).is_some_and(|script| {
        let is_known = || VOTES_OF_RUNS.lock().unwrap_or_else(PoisonError::into_inner).contains(script);
        (is_named(args, "EVAL") && is_vote(script)) || (is_named(args, "EVALSHA") && is_known())
    })
}

impl Match {
    /// Every command.
    pub fn any() -> Self {
        Self::with(|_| true)
    }

    /// Commands with this name, in any case.
    pub fn command(name: &str) -> Self {
        let name = name.to_owned();
        Self::with(move |args| is_named(args, &name))
    }

    /// Any way to run the Lua script `source`: `EVALSHA` with its digest, or `EVAL` with its text. (`SCRIPT LOAD` does
    /// not run it and does not match.) A vote has a text for each run of a server, and counts as [`ACQUIRE`].
    pub fn script(source: &str) -> Self {
        let (is_it, is_acquire) = (is_script(source), source == ACQUIRE);
        Self::with(move |args| is_it(args) || (is_acquire && is_vote_of_a_run(args)))
    }

    /// Commands with `text` somewhere in their name or an argument.
    pub fn containing(text: &str) -> Self {
        let text = text.as_bytes().to_owned();
        Self::with(move |args| {
            text.is_empty() || args.iter().any(|arg| arg.windows(text.len()).any(|part| part == text))
        })
    }

    /// One of `many` commands, at random, but the same ones in every run with the same seed.
    pub fn one_in(many: u64, seed: u64) -> Self {
        let state = AtomicU64::new(seed);
        // Knuth's generator; its upper bits are the random ones.
        let next = |state: u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Self::with(move |_| {
            let before = state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| Some(next(state)));
            // A small seed is not random itself.
            (next(before.expect("there is always a next one")) >> 33) % many == 0
        })
    }

    /// Commands for which `wanted` returns true. It runs inside the proxy, so it must be quick and must not call the
    /// proxy.
    pub fn with(wanted: impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(wanted))
    }

    /// Commands that match both descriptions.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::with(move |args| self.matches(args) && other.matches(args))
    }

    /// Whether the command matches.
    pub fn matches(&self, args: &[Vec<u8>]) -> bool {
        (self.0)(args)
    }
}

impl fmt::Debug for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Match(..)")
    }
}

fn is_named(args: &[Vec<u8>], name: &str) -> bool {
    args.first().is_some_and(|first| first.eq_ignore_ascii_case(name.as_bytes()))
}

/// The fault that a proxy injects at a matched command.
///
/// RESP tells replies apart only by their order. If one reply is lost and the connection stays, the next would be taken
/// for it, which no network does. So [`Action::SwallowReply`] and [`Action::DropRequest`] also swallow the replies to
/// everything sent later on that connection. Those later commands are still forwarded, and executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The server executes the command; the reply is lost, the connection stays.
    /// Hit when the reply has arrived from the server.
    SwallowReply,
    /// The command never reaches the server and the client is reset. Hit at once.
    CutBefore,
    /// The server executes the command, and the client is reset in place of
    /// getting the reply. Hit when the reply has arrived from the server.
    CutAfter,
    /// The command never reaches the server; the connection stays. Hit when the
    /// command has arrived from the client.
    DropRequest,
    /// The command never reaches the server, and later ones are answered, as by a server that omits an answer. Hit at
    /// once.
    Skip,
    /// The server gets an unknown command in its place, and reports that. Hit at once.
    Mangle,
    /// The command, and all behind it on that connection, wait for [`RuleHandle::release`]. Hit when it would have been
    /// forwarded.
    Hold,
    /// The server executes the command; the reply, and all behind it on that
    /// connection, wait for [`RuleHandle::release`]. Hit when it would have been
    /// delivered.
    HoldReply,
}

/// One rule of a proxy: reports when it took effect, and releases what it holds.
///
/// Dropping the handle leaves the rule in force.
#[derive(Clone, Debug)]
pub struct RuleHandle(pub(super) Arc<Rule>);

impl RuleHandle {
    /// How often the rule has taken effect.
    pub fn hits(&self) -> usize {
        self.0.hits()
    }

    /// Completes once the rule has taken effect. It has no limit of its own:
    /// use it inside [`within`](super::within).
    pub async fn hit(&self) {
        self.hit_times(1).await;
    }

    /// Completes once the rule has taken effect `times` times.
    pub async fn hit_times(&self, times: usize) {
        loop {
            let changed = self.0.fired_async.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.hits() >= times {
                return;
            }
            changed.await;
        }
    }

    /// Blocks until the rule has taken effect; false if it did not in time.
    pub fn wait_hit(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let mut hits = self.0.hits.lock().unwrap_or_else(PoisonError::into_inner);
        while *hits == 0 {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            hits = self.0.fired.wait_timeout(hits, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Releases the traffic that the rule holds, and lets later matches pass.
    pub fn release(&self) {
        self.0.released.store(true, Ordering::SeqCst);
        (self.0.wake)();
    }

    /// Ends the rule for later commands; held traffic stays held.
    pub fn disarm(&self) {
        self.0.disarmed.store(true, Ordering::SeqCst);
    }
}

/// The state of a rule, shared by its handle and the connections.
pub(crate) struct Rule {
    wanted: Match,
    /// Which match takes effect, counted from 1; `None` for every match.
    nth: Option<usize>,
    /// The action for that match.
    pub action: Action,
    seen: Mutex<usize>,
    hits: Mutex<usize>,
    fired: Condvar,
    fired_async: Notify,
    released: AtomicBool,
    disarmed: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Rule {
    /// A rule without matches yet; `wake` resumes held traffic.
    pub(crate) fn new(
        wanted: Match,
        nth: Option<usize>,
        action: Action,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            wanted,
            nth,
            action,
            seen: Mutex::new(0),
            hits: Mutex::new(0),
            fired: Condvar::new(),
            fired_async: Notify::new(),
            released: AtomicBool::new(false),
            disarmed: AtomicBool::new(false),
            wake: Box::new(wake),
        }
    }

    /// Counts the command if it matches, and returns whether the rule acts on it.
    pub(crate) fn takes(&self, args: &[Vec<u8>]) -> bool {
        if self.disarmed.load(Ordering::SeqCst) || !self.wanted.matches(args) {
            return false;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen += 1;
        self.nth.is_none_or(|nth| nth == *seen)
    }

    /// Records that the rule has taken effect.
    pub(crate) fn fire(&self) {
        *self.hits.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.fired.notify_all();
        self.fired_async.notify_waiters();
    }

    /// Whether held traffic may continue.
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::SeqCst)
    }

    fn hits(&self) -> usize {
        *self.hits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("action", &self.action)
            .field("nth", &self.nth)
            .field("hits", &self.hits())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::{RENEW, REPAIR};
    use super::*;

    fn evaluates(how: &str, text: &str, rest: &[&str]) -> Vec<Vec<u8>> {
        let script = if how == "EVALSHA" { sha1_hex(text) } else { text.to_owned() };
        [how, &script].into_iter().chain(rest.iter().copied()).map(|arg| arg.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_vote_of_a_run_counts_as_an_acquire_with_a_witness_and_without() {
        let acquires = Match::script(ACQUIRE);
        let text = format!("local function may_vote() return '0a1b', 0 end\n{VOTES}");
        let (least, witness) = (["2", "job", "{job}:lh:fence", "lh1:", "30", "86400000", "0", "7"], ["0a1b", "31"]);
        for arguments in [least.to_vec(), [&least[..], &witness].concat()] {
            for how in ["EVAL", "EVALSHA"] {
                note(&evaluates("EVAL", &text, &arguments));
                assert!(acquires.matches(&evaluates(how, &text, &arguments)), "{how} {arguments:?}");
                assert!(!Match::script(REPAIR).matches(&evaluates(how, &text, &arguments)), "{how} {arguments:?}");
            }
        }
    }

    #[test]
    fn a_renewal_of_two_keys_that_are_to_be_tracked_is_no_vote() {
        let arguments = ["2", "one", "two", "lh1:", "30", "lh1:", "30", "watch"];
        for how in ["EVAL", "EVALSHA"] {
            let renewal = evaluates(how, RENEW, &arguments);
            note(&renewal);
            assert!(!Match::script(ACQUIRE).matches(&renewal) && Match::script(RENEW).matches(&renewal), "{how}");
        }
    }
}
