//! Descriptions of what happens, for people.

use std::fmt;

use super::{
    action::Action,
    state::{Message, State},
};
use crate::model::{frame::TIME_PASSES, state::Kind};

impl State {
    pub(super) fn tell(&self, action: Action) -> String {
        let server = |connection: usize| self.connections[connection].leads;
        match action {
            Action::Pass => TIME_PASSES.into(),
            Action::Begin(me) => format!("client {me} begins an attempt"),
            Action::LetGo(me, number) => format!("client {me} lets go of {me}.{number}"),
            Action::Look(me, number) => format!("client {me} looks at {me}.{number}"),
            Action::GiveUp(me, number) => format!("client {me} waits no longer for replicas to have {me}.{number}"),
            Action::Arrive(at) => {
                format!("{} arrives at server {} and is answered", self.net[at], server(self.net[at].connection))
            }
            Action::Hear(at) => format!("the answer to {} is heard", self.net[at]),
            Action::Drive(at) => format!("connection {at} takes its next step, at server {}", server(at)),
            Action::Count(at) => format!("the WAIT of connection {at} is answered"),
            Action::HearCount(at) => format!("the answer to the WAIT of connection {at} is heard"),
            Action::Other(at) => format!("others write on connection {at}"),
            Action::GiveUpOther(at) => format!("others wait no longer for replicas, on connection {at}"),
            Action::Replicate(at) => format!("server {at} gets all"),
            Action::Promote(at, _) => format!("server {at} takes over"),
            Action::StepDown(at, _) => format!("server {at} becomes a replica"),
            Action::Follow(at) => format!("server {at} follows the new primary"),
            Action::Relink(at, how) => {
                let again = if how.is_repeated { ", and sends again" } else { "" };
                format!("connection {at} has another link{again}")
            }
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (client, number) = self.owner;
        let kind = match self.kind {
            Kind::Acquire => "bid",
            Kind::Renew => "renewal",
            Kind::Release => "release",
            Kind::Raise | Kind::Repair | Kind::Undo => "undoing",
        };
        write!(f, "the {kind} of {client}.{number}")
    }
}
