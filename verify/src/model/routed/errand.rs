//! A request on its way: [`Trip`] says where it goes, and [`Stepwise`] in which steps.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::Said,
    failure::{Failure, Redirection},
    stepwise::{Next, Single, SingleReply, Stepwise},
    trip::{Step, Trip, TripOutcome},
};

use super::{
    Handover, Run,
    atlas::News,
    server_at,
    state::{Answer, Content, Errand, Ground, Message, Part, Session, Told},
};
use crate::{
    model::state::{About, Kind},
    seeded::SeededBug,
};

/// Whether an errand continues with another step, or has ended.
enum Progress {
    Step(Single),
    Over(Result<Said, Failure>),
}

impl<H: Handover> Run<'_, H> {
    /// Starts an errand, whose answer is awaited for `limit`.
    pub(super) fn start(&mut self, me: usize, session: &mut Session, about: About, limit: Duration) {
        let at = self.now();
        session.asked += 1;
        let (trip, until) = (Trip::new(self.setup.slot), at + limit);
        let nth = session.asked;
        let errand = Errand { nth, leg: 0, about, at, until, trip, steps: None, part: Part::Whole, early: None };
        self.travel(me, session, errand);
    }

    /// Sends an errand where its trip leads.
    fn travel(&mut self, me: usize, session: &mut Session, mut errand: Errand) {
        let topology = self.topology(me);
        let (shard, place, is_asking) = match errand.trip.next(&topology) {
            Step::Send(owner) => (owner, topology.place(owner).cloned(), false),
            Step::Ask(owner, place) => (owner, Some(place), true),
            Step::Await | Step::Enough => {
                let failure = Failure::unavailable("the servers do not agree who has the slot");
                return self.concluded(me, session, errand, Err(failure), Ground::Kept, 0);
            }
        };
        errand.leg += 1;
        let owner = (u8::try_from(me).unwrap(), session.number);
        self.state.net.push(Message {
            owner,
            nth: errand.nth,
            leg: errand.leg,
            server: server_at(&place.unwrap()),
            shard,
            is_asking,
            kind: errand.about.kind(),
            part: errand.part.clone(),
            content: Content::Request { is_late: false },
        });
        session.errands.push(errand);
    }

    /// A server has answered, or the connection to it has broken.
    pub(super) fn hear(&mut self, message: &Message, answer: Answer, ground: Ground) {
        let (me, number) = message.owner;
        self.with(usize::from(me), number, |run, me, session| {
            let is_it = |errand: &Errand| (errand.nth, errand.leg) == (message.nth, message.leg);
            if let Some(place) = session.errands.iter().position(is_it) {
                let errand = session.errands.remove(place);
                run.answered(me, session, errand, message, answer, ground);
            }
        });
    }

    fn answered(
        &mut self,
        me: usize,
        session: &mut Session,
        mut errand: Errand,
        message: &Message,
        answer: Answer,
        ground: Ground,
    ) {
        let topology = self.topology(me);
        let mut orders = errand.trip.heard(message.shard, answer.as_ref().err(), &topology);
        if orders.outcome == TripOutcome::Void && self.setup.bug == Some(SeededBug::ReplacedCounts) {
            (orders.outcome, orders.is_counted) = (TripOutcome::Counts, answer.is_ok() && !message.is_asking);
        }
        if let Some(to) = orders.moved {
            self.learn(me, Some(session), &News::Moved(message.shard, self.setup.slot, to));
        }
        if orders.is_counted {
            self.count(me, ground);
        }
        match orders.outcome {
            TripOutcome::Counts => self.concluded(me, session, errand, answer, ground, message.server),
            TripOutcome::Void => {
                let failure = Failure::unknown("another server had the slot when the answer was heard");
                self.concluded(me, session, errand, Err(failure), ground, message.server);
            }
            TripOutcome::Again(_) => self.travel(me, session, errand),
        }
    }

    /// A part of an errand has its answer.
    pub(super) fn concluded(
        &mut self,
        me: usize,
        session: &mut Session,
        mut errand: Errand,
        answer: Answer,
        ground: Ground,
        server: usize,
    ) {
        match self.progress((u8::try_from(me).unwrap(), session.number), &mut errand, answer) {
            Progress::Step(single) => {
                (errand.part, errand.trip) = (Part::Single(single), Trip::new(self.setup.slot));
                self.travel(me, session, errand);
            }
            Progress::Over(said) => self.ended(me, session, &errand, said, (ground, server)),
        }
    }

    fn progress(&mut self, owner: (u8, u8), errand: &mut Errand, answer: Answer) -> Progress {
        if errand.steps.is_some() {
            return self.next_step(errand, answer);
        }
        match answer {
            Err(failure) if matches!(failure.redirection(), Some(Redirection::Moving { .. })) => {
                let claim = self.setup.claim(owner);
                match errand.about.kind() {
                    Kind::Acquire => {
                        let steps = Stepwise::new(claim.clone());
                        let first = steps.first();
                        errand.steps = Some(steps);
                        let is_early = self.setup.bug == Some(SeededBug::FloorBeforeTake);
                        Progress::Step(if is_early { Single::Issue(claim) } else { first })
                    }
                    Kind::Release | Kind::Undo if errand.part == Part::Whole => Progress::Step(Single::Release(claim)),
                    _ => Progress::Over(Err(failure)),
                }
            }
            Err(failure) => Progress::Over(Err(failure)),
            Ok(Told::Said(said)) => Progress::Over(Ok(said)),
            Ok(Told::Single(SingleReply::Owned(owned))) => Progress::Over(Ok(Said::Owned(owned))),
            Ok(Told::Single(other)) => panic!("a release is answered with {other:?}"),
        }
    }

    fn next_step(&mut self, errand: &mut Errand, answer: Answer) -> Progress {
        let Some(steps) = &mut errand.steps else { panic!("it has steps") };
        let reply = answer.map(|told| match told {
            Told::Single(reply) => reply,
            Told::Said(said) => panic!("a step is answered with {said:?}"),
        });
        let next = match (self.setup.bug, reply) {
            (Some(SeededBug::FloorBeforeTake), Ok(SingleReply::Issued(fence))) => {
                errand.early = Some(fence);
                return Progress::Step(steps.first());
            }
            (_, reply) => steps.heard(reply),
        };
        let next = match (self.setup.bug, next) {
            (Some(SeededBug::FloorBeforeTake), Next::Ask(Single::Issue(_))) => {
                let fence = errand.early.expect("it was issued first");
                steps.heard(Ok(SingleReply::Issued(fence)))
            }
            (Some(SeededBug::StepUnconfirmed), Next::Ask(Single::Confirm(_))) => {
                steps.heard(Ok(SingleReply::Owned(Ok(()))))
            }
            (_, next) => next,
        };
        match next {
            Next::Ask(single) => Progress::Step(single),
            Next::Over(outcome) => Progress::Over(outcome.map(|acquired| Said::Vote { acquired, overtaken: true })),
        }
    }
}
