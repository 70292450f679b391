//! What happens, for people.

use std::fmt;

use leasehold_protocol::stepwise::Single;

use super::{
    Handover,
    action::Action,
    state::{Message, Part, State},
};
use crate::model::{frame::TIME_PASSES, state::Kind};

impl<H: Handover> State<H> {
    pub(super) fn tell(&self, action: &Action<H::Event>) -> String {
        match action {
            Action::Pass => TIME_PASSES.into(),
            Action::Begin(me) => format!("client {me} begins an attempt"),
            Action::LetGo(me, number) => format!("client {me} lets go of {me}.{number}"),
            Action::Look(me, number) => format!("client {me} looks at {me}.{number}"),
            Action::Expire(me, number) => format!("client {me} waits no longer for an answer about {me}.{number}"),
            Action::Arrive(at) if self.net[*at].is_reply() => {
                format!("the answer to {} arrives at last", self.net[*at])
            }
            Action::Arrive(at) => format!("{} arrives and is answered", self.net[*at]),
            Action::Ask(me) => format!("client {me} asks others, and sees view {}", self.handover.view()),
            Action::Doubt(me) => format!("client {me} sees view {}", self.handover.view()),
            Action::Hear(at) => format!("client {} sees view {}, which is late", self.views[*at].0, self.views[*at].1),
            Action::Befall(event) => event.to_string(),
            Action::ReplyIsLate(at, notice) => format!("{} arrives, the answer is late{notice}", self.net[*at]),
            Action::RequestIsLate(at, notice) => format!("{} is late{notice}", self.net[*at]),
            Action::ViewIsLate(me) => format!("client {me} asks others, and their answer is late"),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (client, number) = self.owner;
        let kind = match (&self.part, self.kind) {
            (Part::Single(Single::Take(_)), _) => "first step",
            (Part::Single(Single::Issue(_)), _) => "second step",
            (Part::Single(Single::Confirm(_)), _) => "third step",
            (_, Kind::Acquire) => "bid",
            (_, Kind::Renew) => "renewal",
            (_, Kind::Release) => "release",
            (_, Kind::Raise | Kind::Repair | Kind::Undo) => "undoing",
        };
        write!(f, "the {kind} of {client}.{number} at server {}", self.server)
    }
}
