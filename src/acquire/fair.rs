//! The fair way to acquire: with a place in the queue on the server, and no barging.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    attempt::{Attempt, Step, Verdict},
    backoff::Backoff,
    failure::Failure,
    look::Look,
    message::{Acquired, Knock, Knocked, Parting},
    tally::WakeCondition,
    time::Time,
    token::Token,
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Acquire, Told, seated};
use crate::{
    error::AcquireError,
    lease::Lease,
    node::{Answer, Lane, Node},
    owner::Seat,
    quorum::Undo,
    random,
    shared::{Outcome, Shared, Wanted},
    wait::{Called, LEAVES_FOR, Place, WINDOW},
};

impl Acquire {
    /// Takes a place in the queue, and knocks until the lock is ours.
    pub(super) async fn queue_up(&self, seat: Option<Arc<Seat>>) -> Result<Lease, AcquireError> {
        let shared = &self.shared;
        let node = shared.sole().map_err(|failure| AcquireError::Refused(failure.into()))?;
        let mut standing = Standing::new(shared, node, &self.wanted);
        let one_try = self.until == self.started;
        let mut seen = match self.knock(&mut standing, shared.quorum.lane(), !one_try).await? {
            Ok(won) => return Ok(seated(won, seat)),
            Err(look) => look,
        };
        if self.is_over() {
            return Err(self.over(seen));
        }
        let waiter = shared.queues.join(&self.wanted.key);
        // Whoever has the turn leads: it knocks for those of this process who only wait to be called.
        let mut turn = waiter.turn_now();
        let mut leader_is_deaf = false;
        let deaf = self.deaf_after();
        let (mut looks, mut backoff, mut told) = (waiter.looks(), Backoff::new(random::jitter()), Told::default());
        self.tell(&seen, &mut told);
        loop {
            let leads = turn.is_some() || leader_is_deaf;
            let knock_at = standing.looked_at + standing.next_knock(&seen, leads, &mut backoff);
            let knocks = loop {
                let now = shared.now();
                let pause = knock_at.min(standing.called.due()).since(now);
                if leads {
                    waiter.saw(seen.clone(), now, now + pause);
                }
                tokio::select! {
                    biased;
                    paused = self.pause(pause) => { paused?; break true }
                    () = standing.called.heard() => {}
                    got = waiter.turn(), if turn.is_none() => {
                        turn = Some(got);
                        break false;
                    }
                    Ok(()) = looks.changed(), if !leads => {
                        let look = looks.borrow_and_update().clone();
                        self.tell(&look, &mut told);
                        // That the leader had no answer is no reason to ask as well.
                        if matches!(look, Look::Held { .. }) {
                            seen = look;
                        }
                    }
                    () = shared.host.sleep(waiter.pause_until_late(shared.now(), deaf)), if !leads => {
                        if shared.now() > waiter.due() + deaf {
                            leader_is_deaf = true;
                            break false;
                        }
                    }
                }
            };
            if !knocks {
                continue;
            }
            if self.is_over() && !leads {
                return Err(self.over(seen));
            }
            let _slot = self.slot(leads.then_some(&waiter)).await;
            if leads {
                let now = shared.now();
                waiter.looks_by(now + self.limit(now));
            }
            let (lane, was_called, began) = (standing.lane(&seen), standing.called.is_granted(), shared.now());
            seen = match self.knock(&mut standing, lane, true).await? {
                Ok(won) => {
                    if !was_called {
                        // It had become free otherwise than by a release: perhaps the queue is gone, and who only waits
                        // to be called has to take its place again.
                        shared.calls.call_line(&self.wanted.key, shared.now());
                    }
                    return Ok(seated(won, seat));
                }
                Err(look) => self.unless_cut_off(look, &seen, began),
            };
            if standing.had_been_lost {
                shared.calls.call_line(&self.wanted.key, shared.now());
            }
            self.tell(&seen, &mut told);
            if self.is_over() {
                return Err(self.over(seen));
            }
        }
    }

    /// One knock. The inner error is what it saw instead of a lease; the outer one ends the acquire.
    async fn knock(
        &self,
        standing: &mut Standing<'_>,
        lane: Lane,
        enter: bool,
    ) -> Result<Result<Lease, Look>, AcquireError> {
        // Who stands is under way.
        self.may_begin()?;
        let limit = self.limit(self.shared.now());
        let outcome = tokio::select! {
            biased;
            outcome = standing.knock(lane, enter, limit) => outcome,
            () = self.shared.ended.cancelled() => return Err(self.shared.end()),
        };
        self.judge(outcome)
    }
}

/// What a fair acquire has on the server: one token from the first knock to the lease, and perhaps a place. Dropped
/// without a lease, it leaves in the background: a grant that is on its way passes on.
struct Standing<'a> {
    shared: &'a Arc<Shared>,
    node: &'a Arc<dyn Node>,
    wanted: &'a Wanted,
    token: Token,
    place: Place,
    called: Called,
    /// How the last knock went.
    lane: Lane,
    answer: Option<Answer<Knocked>>,
    looked_at: Time,
    had_been_lost: bool,
    may_be_there: bool,
    /// `close` waits for our leaving.
    _under_way: TaskTrackerToken,
}

impl<'a> Standing<'a> {
    fn new(shared: &'a Arc<Shared>, node: &'a Arc<dyn Node>, wanted: &'a Wanted) -> Self {
        let token = random::token(&shared.options.label);
        // Before the first knock, which may be answered by a call before it is answered.
        let called = shared.calls.listen(&wanted.key, &token);
        Self {
            shared,
            node,
            wanted,
            token,
            place: Place::default(),
            called,
            lane: Lane::Keeper,
            answer: None,
            looked_at: shared.now(),
            had_been_lost: false,
            may_be_there: false,
            _under_way: shared.host.token(),
        }
    }

    fn grant(&self) -> Duration {
        self.shared.options.grant.min(self.wanted.ttl)
    }

    /// Only the first has the lock watched: it takes what becomes free otherwise than by a release.
    fn is_first(&self) -> bool {
        self.place.ticket.is_some() && self.place.ahead == 0
    }

    fn lane(&self, seen: &Look) -> Lane {
        if self.called.is_granted() {
            return self.shared.quorum.lane();
        }
        if self.is_first() && !matches!(seen, Look::Failed(_)) { self.shared.watchdog.lane() } else { Lane::Keeper }
    }

    /// What a node that may have forgotten is to everybody else as well.
    fn recovering(&self, left: Duration) -> Failure {
        if let Some(member) = self.shared.quorum.member(0) {
            member.note_recovery(left);
        }
        Failure::recovering(self.node.address(), left)
    }

    /// When to knock without being called.
    fn next_knock(&self, seen: &Look, leads: bool, backoff: &mut Backoff) -> Duration {
        if self.lane(seen) == Lane::Watched && self.lane != Lane::Watched && self.shared.quorum.room() > 0 {
            return Duration::ZERO;
        }
        self.place.next_knock(seen, leads, self.grant(), backoff).unwrap_or(Duration::MAX)
    }

    /// A lease is believed from the sending of the knock that confirms it (rule 1), so a grant that is late for that is
    /// confirmed by the next one.
    async fn knock(&mut self, lane: Lane, enter: bool, limit: Duration) -> Outcome {
        let Wanted { key, ttl, .. } = self.wanted;
        let knock = Knock {
            key: key.clone(),
            token: self.token.clone(),
            ttl: *ttl,
            ticket: self.place.ticket,
            grant: self.grant(),
            window: WINDOW,
            enter,
            restart_delay: self.shared.quorum.restart_delay(),
        };
        self.called.knocks();
        self.lane = lane;
        let was_there = std::mem::replace(&mut self.may_be_there, true);
        let sent = self.shared.now();
        let answer = self.answer.insert(self.node.knock(lane, &knock, limit));
        let answered = answer.await;
        self.answer = None;
        self.looked_at = self.shared.now();
        match answered {
            Ok(Knocked::Granted(fence)) => {
                let granted = Ok(Acquired::Granted(fence));
                match Attempt::new(sent, *ttl, 1).answer(self.shared.now(), 0, granted) {
                    Step::Over(Verdict::Won { fence, tally }) => {
                        self.may_be_there = false;
                        let (hold, signal) = self.shared.hold(self.wanted, self.token.clone(), sent, fence, tally);
                        Outcome::Won(hold, signal)
                    }
                    _ => Outcome::Failed(Failure::unavailable("the grant was confirmed after its lease had run out")),
                }
            }
            Ok(Knocked::Waits { holder, recovers_for, ticket, ahead, entered, watched, called }) => {
                self.may_be_there = enter;
                self.had_been_lost = entered && self.place.ticket.is_some();
                self.place = Place { ticket, ahead, called, recovers_for };
                self.called.watches(watched && ahead == 0);
                match recovers_for {
                    Some(left) => Outcome::Failed(self.recovering(left)),
                    None => Outcome::Busy { holder, needs: WakeCondition::ANY, watched },
                }
            }
            Err(failure) => {
                self.place.recovers_for = None;
                self.may_be_there = was_there || failure.may_have_happened();
                Outcome::Failed(failure)
            }
        }
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if !self.may_be_there {
            return;
        }
        let Wanted { key, ttl, .. } = self.wanted;
        let undo = Undo {
            lane: self.lane,
            key: key.clone(),
            token: self.token.clone(),
            parting: Parting::Leave,
            for_at_most: LEAVES_FOR.max(*ttl),
            is_first: false,
            is_attempt: true,
        };
        let leaving = self.shared.watchdog.undoing(0, undo);
        let answer = self.answer.take();
        self.shared.host.spawn(async move {
            if let Some(answer) = answer {
                let _too_late = answer.await;
            }
            leaving.await;
        });
    }
}
