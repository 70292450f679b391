//! The second half of a client: from the win until no node can have the token any more.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::{Ask, Leaving, News, Said, Sent, Undo},
    failure::Failure,
    fence::Fence,
    loss::LossReason,
    message::{Owned, ReleaseMode, Reply, Request, Route},
    release_tally::ReleaseEnd,
    renewal::Phase,
    tally::Nodes,
    time::Time,
    undo::{Next, UndoOutcome, Undoing},
};

use super::{
    chance::Real,
    client::Client,
    event::{About, Alarm},
    session::{Held, Session},
    world::{Event, World},
};
use crate::seeded::SeededBug;

impl Client {
    pub(super) fn told(&mut self, world: &mut World, session: &mut Session, news: News) {
        match news {
            News::Acquired(fence) => self.won(world, session, fence),
            News::NotAcquired(verdict) => self.failed(world, session, verdict),
            News::Phase => {
                if let Some(Phase::Over { reason, .. }) = session.acquisition.phase() {
                    world.note(|| format!("client {} has lost {}: {reason:?}", self.me, session.id));
                    world.history.counts.lost += usize::from(reason != LossReason::MaxHold);
                    if world.bug == Some(SeededBug::LossDeletes) && reason != LossReason::MaxHold {
                        let undo = session.acquisition.undo_of_vote(0);
                        self.undo(world, session, &Undo { nodes: Nodes::all(world.nodes()), ..undo });
                    }
                    // The job notices, and stops.
                    let notices = self.now(world) + world.dice.between(Duration::ZERO, session.ttl);
                    self.wake(world, notices, Alarm::LetGo(session.id));
                }
            }
            News::Released(end) => {
                world.history.counts.released += usize::from(matches!(end, ReleaseEnd::Released));
            }
        }
    }

    fn won(&mut self, world: &mut World, session: &mut Session, fence: Fence) {
        let now = self.now(world);
        match (world.bug, session.resent) {
            (Some(SeededBug::DeadlineFromReply), _) => self.pretend(world, session, now),
            (Some(SeededBug::DeadlineFromRetry), Some(resent)) => self.pretend(world, session, resent),
            _ => {}
        }
        let (dice, is_sly) = (&mut world.dice, world.faults.is_sly);
        let ttls = [session.ttl / 4, session.ttl / 4, session.ttl * 3 / 2, session.ttl * 4];
        let most = ttls[usize::try_from(dice.below(4)).unwrap_or_default()];
        let hold = dice.between(Duration::ZERO, if is_sly { session.ttl * 4 } else { most });
        let hint = dice.percent(30).then(|| dice.between(Duration::ZERO, session.ttl));
        let until = session.acquisition.valid_until();
        world.note(|| format!("client {} has {} with {fence:?} until {until:?}", self.me, session.id));
        world.check_shown(&session.token, fence);
        let lease = world.history.acquired(world.now, fence);
        world.outlives_by(session, lease);
        session.held = Some(Held { lease, seen: world.now, tick_at: None });
        world.stall(self.me);
        let ends = (now + hold).min(self.clock.shows(world.closes).max(now));
        self.wake(world, ends, Alarm::LetGo(session.id));
        if let Some(hint) = hint {
            self.wake(world, now + hint, Alarm::Hint(session.id));
        }
    }

    /// Part of a seeded bug: the lease counts from another moment than that of its attempt.
    fn pretend(&self, world: &World, session: &mut Session, at: Time) {
        for node in 0..world.nodes() {
            let renewed = Sent { node, ask: Ask::Renew, at };
            let _held = session.acquisition.on_reply(self.now(world), renewed, Ok(Said::Owned(Ok(()))));
        }
    }

    /// Makes sure that a held lease ticks no later than it asks for.
    pub(super) fn plan(&self, world: &mut World, session: &mut Session) {
        let id = session.id;
        let (Some(held), Some(next)) = (&mut session.held, session.acquisition.next_tick()) else { return };
        if held.tick_at.is_none_or(|planned| self.clock.when(next) < planned) {
            let at = self.clock.when(next).max(world.now) + world.dice.below(1_000_000);
            held.tick_at = Some(at);
            world.at(at, Event::Rings { client: self.me, alarm: Alarm::Tick(id, at) });
        }
    }

    pub(super) fn tick(&mut self, world: &mut World, session: &mut Session, at: Real) {
        let now = self.now(world);
        if let Some(held) = session.held.as_mut().filter(|held| held.tick_at == Some(at)) {
            held.tick_at = None;
            let actions = session.acquisition.on_tick(now);
            self.carry_out(world, session, actions);
        }
    }

    pub(super) fn hint(&mut self, world: &mut World, session: &mut Session) {
        let now = self.now(world);
        if world.dice.percent(50) {
            session.acquisition.hint(now);
        } else {
            let node = usize::try_from(world.dice.below(9)).unwrap_or_default() % world.nodes();
            session.acquisition.hint_of(node, now);
        }
    }

    /// The job is done, or has noticed that it must stop.
    pub(super) fn let_go(&mut self, world: &mut World, session: &mut Session) {
        if session.acquisition.phase().is_none() {
            return;
        }
        let (leaving, actions) = session.acquisition.let_go(self.now(world));
        self.carry_out(world, session, actions);
        world.note(|| format!("client {} lets go of {}", self.me, session.id));
        if let Leaving::Release { .. } = leaving {
            if let Some(held) = &session.held {
                world.history.let_go(held.lease);
            }
            let mode = session.mode(world, self.now(world));
            let actions = if world.dice.percent(30) {
                // A dropped lease is released in the background.
                session.acquisition.abandon(mode)
            } else {
                session.acquisition.release(Route::Home, mode)
            };
            self.carry_out(world, session, actions);
        }
        // It waits until it wants the lock again.
        let pause = world.dice.between(Duration::ZERO, session.ttl / 4);
        self.try_after(world, pause);
    }

    pub(super) fn release(&mut self, world: &mut World, session: &mut Session, node: usize, ask: Ask) {
        let now = self.now(world);
        let release = Request::Release { claim: session.claim(world, now), mode: session.mode(world, now) };
        self.ask(world, session, (node, release, About::Token(ask)), world.command_timeout / 2);
    }

    pub(super) fn undo(&mut self, world: &mut World, session: &mut Session, undo: &Undo) {
        let now = self.now(world);
        for node in undo.nodes.iter() {
            let undoing = Undoing::new(now, session.claim(world, now).life, undo.route, !undo.is_attempt);
            self.undo_on(world, session, node, (undoing, undo.mode.clone()));
        }
    }

    pub(super) fn undo_on(
        &mut self,
        world: &mut World,
        session: &mut Session,
        node: usize,
        (mut undoing, mode): (Undoing, ReleaseMode),
    ) {
        let now = self.now(world);
        let release = Request::Release { claim: session.claim(world, now), mode: mode.clone() };
        let (_route, limit) = undoing.ask(now, world.command_timeout);
        self.ask(world, session, (node, release, About::Undo(undoing, mode)), limit);
    }

    /// A node has answered an undo, or will not.
    pub(super) fn undone(
        &mut self,
        world: &mut World,
        session: &mut Session,
        (node, mut undoing, mode): (usize, Undoing, ReleaseMode),
        said: Result<Reply, Failure>,
    ) {
        let now = self.now(world);
        let answer = said.and_then(Owned::try_from);
        match undoing.answered(now, &answer) {
            Next::Over(UndoOutcome::Undone { .. }) => {}
            Next::Over(UndoOutcome::Refused | UndoOutcome::Unanswered) => session.nodes[node].is_given_up = true,
            Next::After(pause) => {
                session.nodes[node].open += 1;
                self.wake(world, now + pause, Alarm::UndoAgain(session.id, node, undoing, mode));
            }
        }
    }
}
