//! The second half of a client: from the win until no node can have the token any more. It carries orders out as
//! `watchdog`, `shared::release` and `quorum::undo` do.

use std::time::Duration;

use leasehold_protocol::{
    failure::Failure,
    fence::{self, Fence},
    loss::LossReason,
    message::{Denial, Owned, ReleaseMode, Repaired, Reply, Request, only},
    release_tally::{End, ReleaseAnswer, ReleaseTally},
    renewal::{Answer, Core, LeaseConfig, Orders, Phase},
    tally::{Nodes, Tally},
    time::Time,
};

use super::{
    Bug,
    chance::Real,
    client::Client,
    session::{About, Alarm, Sent, Session, Stage},
    world::World,
};
/// A lease that acts on a timer of its own early, as `Shared::hold` has it do.
const TRACK_AFTER: Duration = Duration::from_millis(250);

/// The pauses of an undo that goes unanswered.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A lease that is held.
pub(super) struct Held {
    pub(super) core: Core,
    /// Its number in the history.
    pub(super) lease: usize,
    /// Until when its belief is in the history.
    pub(super) seen: Real,
    /// When the next look is planned.
    look_at: Option<Real>,
}

/// An undoing under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Undoing {
    until: Time,
    pause: Duration,
}

impl Client {
    pub(super) fn won(&mut self, world: &mut World, session: &mut Session, fence: Fence, tally: Tally, sent: Time) {
        let (dice, is_sly) = (&mut world.dice, world.profile.is_sly);
        let max_hold = dice.percent(10).then(|| session.ttl * 3 / 2);
        let config = LeaseConfig { ttl: session.ttl, max_hold, patience: world.command_timeout };
        let mut core = Core::new(config, tally, dice.jitter());
        core.hint(sent + TRACK_AFTER);
        let ttls = [session.ttl / 4, session.ttl / 4, session.ttl * 3 / 2, session.ttl * 4];
        let most = ttls[usize::try_from(dice.below(4)).unwrap_or_default()];
        let hold = dice.between(Duration::ZERO, if is_sly { session.ttl * 4 } else { most });
        let hint = dice.percent(30).then(|| dice.between(Duration::ZERO, session.ttl));

        let now = self.now(world);
        world.note(|| format!("client {} has {} with {fence:?} until {:?}", self.me, session.id, core.valid_until()));
        let lease = world.history.acquired(world.now, fence);
        session.fence = Some(fence);
        session.stage = Stage::Held(Held { core, lease, seen: world.now, look_at: None });
        world.stall(self.me);
        let ends = (now + hold).min(self.clock.shows(world.closes).max(now));
        self.wake(world, ends, Alarm::LetGo(session.id));
        if let Some(hint) = hint {
            self.wake(world, now + hint, Alarm::Hint(session.id));
        }
    }

    /// Sees to it that a held lease is looked at no later than it asks for.
    pub(super) fn plan(&self, world: &mut World, session: &mut Session) {
        let id = session.id;
        let Stage::Held(held) = &mut session.stage else { return };
        let Some(next) = held.core.next_tick() else { return };
        if held.look_at.is_none_or(|planned| self.clock.when(next) < planned) {
            let at = self.clock.when(next).max(world.now) + world.dice.below(1_000_000);
            held.look_at = Some(at);
            world.at(at, super::world::Event::Rings { client: self.me, alarm: Alarm::Check(id, at) });
        }
    }

    pub(super) fn look(&mut self, world: &mut World, session: &mut Session, at: Real) {
        let now = self.now(world);
        let Stage::Held(held) = &mut session.stage else { return };
        if held.look_at == Some(at) {
            held.look_at = None;
            let orders = held.core.tick(now);
            self.execute(world, session, orders);
        }
    }

    pub(super) fn hint(&mut self, world: &mut World, session: &mut Session) {
        let now = self.now(world);
        if let Stage::Held(held) = &mut session.stage {
            held.core.hint(now);
        }
    }

    pub(super) fn answer(&mut self, world: &mut World, session: &mut Session, node: usize, sent: Time, answer: Answer) {
        let now = self.now(world);
        let Stage::Held(held) = &mut session.stage else { return };
        let sent = if world.bug == Bug::DeadlineFromReply { now } else { sent };
        let orders = held.core.answer(now, node, sent, answer);
        self.execute(world, session, orders);
    }

    fn execute(&mut self, world: &mut World, session: &mut Session, orders: Orders) {
        let now = self.now(world);
        let Stage::Held(held) = &session.stage else { return };
        let remaining = held.core.valid_until().since(now);
        let claim = world.claim(&session.token, session.ttl);
        let fence = session.fence.unwrap_or(fence::ZERO);
        let phase = held.core.phase();
        if !remaining.is_zero() {
            let restart_delay = if world.bug == Bug::HealUnchecked { Duration::ZERO } else { world.restart_delay };
            for node in orders.repair.iter().filter(|&node| now >= self.recovers_until[node]).collect::<Vec<_>>() {
                let repair = Request::Repair { claim: claim.clone(), fence, restart_delay };
                self.ask(world, session, (node, repair, About::Repair), remaining.min(world.command_timeout));
            }
            for node in Nodes::all(if orders.renew { world.nodes() } else { 0 }).iter() {
                let renew = Request::Renew([claim.clone()].into());
                self.ask(world, session, (node, renew, About::Renew), remaining);
            }
        }
        if let Phase::Over { reason, .. } = phase {
            world.note(|| format!("client {} has lost {}: {reason:?}", self.me, session.id));
            if reason == LossReason::MaxHold {
                session.stage = Stage::HeldTooLong;
                let notices = now + world.dice.between(Duration::ZERO, session.ttl);
                self.wake(world, notices, Alarm::LetGo(session.id));
            } else {
                world.history.counts.lost += 1;
                session.stage = Stage::Over;
                self.rest(world, session);
            }
        }
        if orders.undo {
            self.undo(world, session, Nodes::all(world.nodes()));
        }
    }

    /// Until it wants the lock again.
    fn rest(&mut self, world: &mut World, session: &Session) {
        let pause = world.dice.between(Duration::ZERO, session.ttl / 4);
        self.try_after(world, pause);
    }

    /// The job is done.
    pub(super) fn let_go(&mut self, world: &mut World, session: &mut Session) {
        let now = self.now(world);
        let valid_until = match &mut session.stage {
            Stage::Held(held) => {
                let orders = held.core.expire_if_due(now);
                let valid_until = held.core.valid_until();
                if orders.news {
                    return self.execute(world, session, orders);
                }
                let _news_for_nobody = held.core.finish(now, LossReason::Released);
                valid_until
            }
            Stage::HeldTooLong => now,
            Stage::Attempting(_) | Stage::Releasing { .. } | Stage::Over => return,
        };
        world.note(|| format!("client {} lets go of {}", self.me, session.id));
        if world.dice.percent(30) {
            // Dropped: in the background.
            session.stage = Stage::Over;
            self.undo(world, session, Nodes::all(world.nodes()));
        } else {
            let parting = ReleaseTally::new(world.nodes(), valid_until);
            session.stage = Stage::Releasing { parting, unconfirmed: Nodes::NONE };
            for node in 0..world.nodes() {
                self.release(world, session, node, About::Release { only_sending: true, is_last: false });
            }
        }
        self.rest(world, session);
    }

    fn release(&mut self, world: &mut World, session: &mut Session, node: usize, about: About) {
        let claim = world.claim(&session.token, session.ttl);
        let release = Request::Release { claim, mode: ReleaseMode::Delete };
        self.ask(world, session, (node, release, about), world.command_timeout / 2);
    }

    /// A node's last word on a release, or its last silence.
    fn parted(&mut self, world: &mut World, session: &mut Session, node: usize, said: Result<ReleaseAnswer, Failure>) {
        let (now, failed) = (self.now(world), said.is_err());
        let alone: Nodes = [node].into_iter().collect();
        let Stage::Releasing { parting, unconfirmed } = &mut session.stage else {
            if failed {
                self.undo(world, session, alone);
            }
            return;
        };
        if failed {
            unconfirmed.insert(node);
        }
        if let Some(end) = parting.answer(now, node, said) {
            world.history.counts.released += usize::from(matches!(end, End::Released));
            let unconfirmed = *unconfirmed;
            session.stage = Stage::Over;
            self.undo(world, session, unconfirmed);
        }
    }

    pub(super) fn undo(&mut self, world: &mut World, session: &mut Session, nodes: Nodes) {
        let undoing = Undoing { until: self.now(world) + session.ttl, pause: FIRST_PAUSE };
        for node in nodes.iter() {
            self.undo_on(world, session, node, undoing);
        }
    }

    pub(super) fn undo_on(&mut self, world: &mut World, session: &mut Session, node: usize, undoing: Undoing) {
        let claim = world.claim(&session.token, session.ttl);
        let release = Request::Release { claim, mode: ReleaseMode::Delete };
        self.ask(world, session, (node, release, About::Undo(undoing)), world.command_timeout);
    }

    /// The answer to what keeps a lease, or takes it away.
    pub(super) fn heard(
        &mut self,
        world: &mut World,
        session: &mut Session,
        sent: &Sent,
        said: Result<Reply, Failure>,
    ) {
        let (now, node) = (self.now(world), sent.node);
        match (sent.about, said) {
            (About::Renew, said) => {
                let said = said.and_then(TryFrom::try_from).and_then(only);
                world.history.counts.renewed += usize::from(matches!(said, Ok(Ok(()))));
                self.answer(world, session, node, sent.at, Answer::read(&said));
            }
            (About::Repair, said) => self.repaired(world, session, sent, &said.and_then(Repaired::try_from)),
            (About::Release { is_last: false, .. }, Err(failure)) if !failure.is_refusal() => {
                let again = About::Release { only_sending: !failure.may_have_happened(), is_last: true };
                self.release(world, session, node, again);
            }
            (About::Release { only_sending, .. }, said) => {
                let said = said.and_then(Owned::try_from).map(|owned| ReleaseAnswer { owned, only_sending });
                self.parted(world, session, node, said);
            }
            (About::Undo(Undoing { until, pause }), Err(failure)) => {
                if failure.is_refusal() || now >= until {
                    session.nodes[node].is_given_up = true;
                    return;
                }
                session.nodes[node].open += 1;
                let pause_after = (pause * 2).min(LONGEST_PAUSE);
                self.wake(
                    world,
                    now + pause,
                    Alarm::UndoAgain(session.id, node, Undoing { until, pause: pause_after }),
                );
            }
            (About::Undo(_) | About::Acquire | About::Raise, _) => {}
        }
    }

    fn repaired(
        &mut self,
        world: &mut World,
        session: &mut Session,
        sent: &Sent,
        repaired: &Result<Repaired, Failure>,
    ) {
        let node = sent.node;
        if !matches!(session.stage, Stage::Held(_)) {
            let may_be_there = match repaired {
                Ok(repaired) => *repaired == Repaired::Done,
                Err(failure) => failure.may_have_happened(),
            };
            if may_be_there {
                self.undo(world, session, [node].into_iter().collect());
            }
            return;
        }
        match repaired {
            Ok(Repaired::Done) => {
                world.history.counts.repaired += 1;
                self.answer(world, session, node, sent.at, Answer::Confirmed);
            }
            Ok(Repaired::Taken) => self.answer(world, session, node, sent.at, Answer::Denied(Denial::Taken)),
            Ok(Repaired::Recovering(left)) => {
                world.history.counts.recovering += 1;
                self.recovers_until[node] = self.now(world) + *left;
            }
            Err(_) => {}
        }
    }
}
