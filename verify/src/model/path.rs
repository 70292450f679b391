//! Descriptions of the actions, for people.

use std::fmt;

use super::{
    action::{Action, Memory, Notice, Place},
    frame::TIME_PASSES,
    state::Kind,
};

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str(TIME_PASSES),
            Self::Begin(me) => write!(f, "client {me} begins an attempt"),
            Self::HandOver(me, number) => write!(f, "client {me} hands {me}.{number} over"),
            Self::Adopt(me, (of, number)) => write!(f, "client {me} begins to adopt {of}.{number}"),
            Self::LetGo(me, number) => write!(f, "client {me} lets go of {me}.{number}"),
            Self::Check(me, number) => write!(f, "client {me} looks at {me}.{number}"),
            Self::Progress(me, number) => write!(f, "the work under {me}.{number} makes progress"),
            Self::Expire(me, number) => write!(f, "client {me} waits no longer for an answer about {me}.{number}"),
            Self::Arrive(place) if place.is_reply => write!(f, "{place} arrives at last"),
            Self::Arrive(place) => write!(f, "{place} arrives and is answered"),
            Self::ReplyIsLate(place, notice) => write!(f, "{place} arrives, the answer is late{notice}"),
            Self::RequestIsLate(place, notice) => write!(f, "{place} is late{notice}"),
            Self::ArriveTwice(place) => write!(f, "{place} arrives, and will once more"),
            Self::Die(me) => write!(f, "client {me} dies"),
            Self::Pause(me) => write!(f, "client {me} stands still"),
            Self::Resume(me) => write!(f, "client {me} goes on"),
            Self::Cut(me, nodes) => {
                write!(f, "client {me} is cut off from the nodes {:?}", nodes.iter().collect::<Vec<_>>())
            }
            Self::Restart(node, memory) => write!(f, "node {node} is restarted {memory}"),
            Self::Step(node) => write!(f, "the clock of node {node} is set"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (client, number) = self.owner;
        let kind = match self.kind {
            Kind::Acquire => "acquire",
            Kind::Raise => "raise",
            Kind::Renew => "renewal",
            Kind::Repair => "repair",
            Kind::Release => "release",
            Kind::Undo => "undoing",
        };
        let what = if self.is_reply { "the answer to " } else { "" };
        write!(f, "{what}the {kind} of {client}.{number} at node {}", self.node)
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "",
            Self::Reset => ", and the connection is reset",
        })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "with its data",
            Self::Lost => "and has forgotten everything",
        })
    }
}
