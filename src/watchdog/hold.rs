//! One acquisition: what its leases, its watchdog and the table of owners share.

use std::{fmt, sync::Arc, time::Duration};

use super::core::{Answer, Core, Orders, Phase};
use crate::{
    clock::{Time, wall},
    fence::Fence,
    key::Key,
    lost::{LossReason, Lost},
    measures::Holding,
    node::{Lane, Renewal},
    status::{Signal, Status},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
        unshaken,
    },
    token::Token,
};

/// One acquisition, held by one or more leases of one owner.
pub(crate) struct Hold {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) fence: Fence,
    pub(crate) ttl: Duration,
    /// When the winning attempt was sent.
    acquired: Time,
    /// The lane of its release, once that has begun.
    parted: OnceLock<Lane>,
    /// A copy of the core's answer, so that `check` is one load and one look at the clock.
    believed_until: AtomicU64,
    state: Mutex<State>,
    measured: Holding,
}

struct State {
    core: Core,
    leases: Vec<Arc<Signal>>,
    end: Option<Lost>,
}

/// Whether a majority has denied the lease. What is left on the others stays until its last holder lets go: where those who
/// denied it do not vote yet, that keeps everybody else out while the job stops.
fn is_denial(reason: LossReason) -> bool {
    matches!(reason, LossReason::Deleted | LossReason::Taken)
}

/// What an owner that asks again finds.
pub(crate) enum Entry {
    /// Another lease on the same acquisition.
    Shared(Arc<Signal>),
    /// Not before a renewal has gone through.
    AtRisk,
    /// It has ended, or is being released.
    Over,
}

/// What a lease leaves behind when it lets go.
pub(crate) enum Leaving {
    /// Others hold on; or there is nothing left to release. The lease had been lost if there is a `Lost`.
    Nothing(Result<(), Lost>),
    /// The key has to be released, and it matters whether it was still there: the lease was believed until the moment
    /// given.
    Release { believed_until: Time },
    /// The key has to be released, and whatever the server says is fine (after `MaxHold`).
    Forgiven,
}

impl Hold {
    pub(crate) fn new(
        key: Key,
        token: Token,
        fence: Fence,
        ttl: Duration,
        acquired: Time,
        core: Core,
    ) -> (Arc<Self>, Arc<Signal>) {
        let signal = Signal::new();
        let believed_until = AtomicU64::new(core.believed_until().as_nanos());
        let state = Mutex::new(State { core, leases: vec![signal.clone()], end: None });
        let (parted, measured) = (OnceLock::new(), Holding::begins());
        (Arc::new(Self { key, token, fence, ttl, acquired, parted, believed_until, state, measured }), signal)
    }

    pub(crate) fn renewal(&self) -> Renewal {
        Renewal { key: self.key.clone(), token: self.token.clone(), ttl: self.ttl }
    }

    /// How long the holder may still believe in it: from the clock, so right even when every timer is late (rule 2).
    pub(crate) fn remaining(&self, now: Time) -> Duration {
        Time::from_nanos(self.believed_until.load(Ordering::Acquire)).since(now)
    }

    /// Whether a key with this value, which will live for so long, is as our last renewal left it: then nobody else has
    /// touched it since, or to no effect.
    pub(crate) fn is_as_left(&self, value: &str, left: Duration, now: Time) -> bool {
        // The server counts in whole milliseconds.
        value == self.token.as_str() && left >= self.remaining(now) && left < self.ttl + Duration::from_millis(1)
    }

    pub(crate) fn next_look(&self) -> Option<Time> {
        self.state.lock().core.next_look()
    }

    pub(crate) fn end(&self) -> Option<Lost> {
        self.state.lock().end.clone()
    }

    pub(crate) fn holds(&self) -> usize {
        self.state.lock().leases.len()
    }

    pub(crate) fn judge(&self, now: Time) -> Orders {
        self.feed(now, |core| core.judge(now))
    }

    pub(crate) fn hint(&self, at: Time) {
        self.state.lock().core.hint(at);
    }

    pub(crate) fn tick(&self, now: Time) -> Orders {
        self.feed(now, |core| core.tick(now))
    }

    pub(crate) fn answer(&self, now: Time, node: usize, sent: Time, answer: Answer) -> Orders {
        self.feed(now, |core| core.answer(now, node, sent, answer))
    }

    /// Whether a renewal that was sent at `sent` is confirmed by a majority.
    pub(crate) fn is_confirmed(&self, sent: Time) -> bool {
        self.state.lock().core.is_confirmed(sent)
    }

    /// Whether there may be anything to take off this node. Where there is not, a release that comes nowhere is not
    /// repeated: a node that is away for an hour would leave a task for every lease of that hour.
    pub(crate) fn may_be_on(&self, node: usize) -> bool {
        self.state.lock().core.may_be_on(node)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().core.next_look().is_none()
    }

    /// Its release goes out on this lane now.
    pub(crate) fn parts(&self, lane: Lane) {
        let _first = self.parted.set(lane);
    }

    /// The lane of its release, if that has begun.
    pub(crate) fn parted(&self) -> Option<Lane> {
        self.parted.get().copied()
    }

    /// `Leases::close`: every lease ends.
    pub(crate) fn close(&self, now: Time) -> Orders {
        self.feed(now, |core| core.finish(now, LossReason::Closed))
    }

    /// The owner of this hold asks again.
    pub(crate) fn enter(&self, now: Time) -> (Entry, Orders) {
        let orders = self.judge(now);
        let mut state = self.state.lock();
        let entry = match state.core.phase() {
            Phase::Held => {
                let signal = Signal::new();
                state.leases.push(signal.clone());
                Entry::Shared(signal)
            }
            Phase::AtRisk => Entry::AtRisk,
            Phase::Over { .. } => Entry::Over,
        };
        (entry, orders)
    }

    /// One lease lets go; a second time there is nothing to let go of. From here on no renewal goes out if it was the
    /// last (rule 8).
    pub(crate) fn leave(&self, now: Time, signal: &Arc<Signal>) -> (Leaving, Orders) {
        let mut orders = self.judge(now);
        let released = self.lost(now, now, LossReason::Released);
        let mut state = self.state.lock();
        let before = state.leases.len();
        state.leases.retain(|lease| !Arc::ptr_eq(lease, signal));
        let (gone, last) = (state.leases.len() == before, state.leases.is_empty());
        orders.undo |= !gone && last && state.end.as_ref().is_some_and(|end| is_denial(end.reason()));
        let mut turn = None;
        let leaving = match &state.end {
            _ if gone => Leaving::Nothing(Ok(())),
            Some(end) if end.reason() != LossReason::MaxHold => Leaving::Nothing(Err(end.clone())),
            Some(_) if last => Leaving::Forgiven,
            None if last => {
                let believed_until = state.core.believed_until();
                let _news_for_nobody = state.core.finish(now, LossReason::Released);
                self.believed_until.store(0, Ordering::Release);
                state.end = Some(released.clone());
                turn = Some(self.measured.is_over());
                Leaving::Release { believed_until }
            }
            Some(_) | None => Leaving::Nothing(Ok(())),
        };
        drop(state);
        signal.end(&released);
        if let Some(turn) = turn {
            turn.tell_end(LossReason::Released, now.since(self.acquired));
        }
        (leaving, orders)
    }

    pub(crate) fn lost(&self, now: Time, since: Time, reason: LossReason) -> Lost {
        let since_wall = wall().checked_sub(now.since(since)).unwrap_or(std::time::UNIX_EPOCH);
        Lost::new(self.key.name(), self.fence, reason, since_wall, since.since(self.acquired))
    }

    fn feed(&self, now: Time, event: impl FnOnce(&mut Core) -> Orders) -> Orders {
        let mut state = self.state.lock();
        let mut orders = event(&mut state.core);
        self.believed_until.store(state.core.believed_until().as_nanos(), Ordering::Release);
        if !orders.news {
            return orders;
        }
        let phase = state.core.phase();
        if let Phase::Over { reason, since } = phase {
            state.end = Some(self.lost(now, since, reason));
            orders.undo &= state.leases.is_empty() || !is_denial(reason);
        }
        let end = state.end.clone();
        let turn = if end.is_some() { self.measured.is_over() } else { self.measured.is_held(phase == Phase::AtRisk) };
        // Noted under the lock, so that news reach every signal in their order; waking runs foreign code, which may ask
        // this hold something, and logging may block: both after it, and waking first.
        for lease in &state.leases {
            match (&end, phase) {
                (Some(lost), _) => lease.note_end(lost),
                (None, Phase::AtRisk) => lease.note(Status::AtRisk),
                (None, _) => lease.note(Status::Held),
            }
        }
        let leases = state.leases.clone();
        drop(state);
        for lease in &leases {
            lease.wake();
        }
        // Whatever an exporter or a subscriber does, there are orders to be obeyed.
        let _told = unshaken(|| match &end {
            Some(lost) => turn.tell_end(lost.reason(), now.since(self.acquired)),
            None => turn.tell(),
        });
        let _logged = unshaken(|| self.log(phase, end.as_ref()));
        orders
    }

    fn log(&self, phase: Phase, end: Option<&Lost>) {
        let (lock, label) = (self.key.name(), self.token.label());
        match end {
            Some(lost) => {
                tracing::warn!(name: "lost", target: "leasehold", lock, label, reason = ?lost.reason(), "{lost}");
            }
            None if phase == Phase::AtRisk => {
                tracing::warn!(name: "at_risk", target: "leasehold", lock, label, "a renewal is not confirmed");
            }
            None => tracing::info!(name: "recovered", target: "leasehold", lock, label, "a renewal is confirmed again"),
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.key)
            .field("token", &self.token)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
