//! Descriptions of what happens and what it changes, for people.

use std::fmt;

use leasehold_protocol::acquisition::Acquisition;

use super::{
    Setup,
    action::Action,
    rules::Seen,
    state::{Asked, Content, Message, Session, State},
};
use crate::model::{
    action::Notice,
    frame::{TIME_PASSES, label, seconds},
    state::Owner,
};

fn held(seen: &Seen) -> String {
    let names = |owners: &[Owner]| owners.iter().map(|owner| label(*owner)).collect::<Vec<_>>().join(", ");
    let line = seen.line.iter().map(|(owner, _)| *owner).collect::<Vec<_>>();
    let line = if line.is_empty() { String::new() } else { format!(", {} in line", names(&line)) };
    match (seen.key, seen.alone) {
        (Some((fence, _)), Some(owner)) => format!("{} has it alone, fence {fence}{line}", label(owner)),
        (Some((fence, _)), None) => format!("shared by [{}], fence {fence}{line}", names(&seen.sharers)),
        (None, _) => format!("nobody has it{line}"),
    }
}

/// Describes what has changed for the clients and the server.
pub(super) fn news(setup: &Setup, before: &State, after: &State) -> Vec<String> {
    let mut news = Vec::new();
    let (was, is) = (held(&before.server.seen), held(&after.server.seen));
    if was != is {
        news.push(is);
    }
    for (me, session) in after.sessions() {
        let mut old = before.clients[me].sessions.iter();
        let old = old.find(|old| old.number == session.number);
        let (was, is) = (old.map(Session::believes_until).unwrap_or_default(), session.believes_until());
        if was != is && after.believes(setup, session) {
            let fence = session.acquisition().and_then(Acquisition::fence);
            let fence = fence.map_or(String::new(), |fence| format!(" with the fence {fence}"));
            let until = seconds(setup.clients.when(is));
            news.push(format!("{me}.{} believes until {until:.3} s{fence}", session.number));
        }
    }
    for (me, session) in before.sessions().filter(|(_, session)| before.believes(setup, session)) {
        let mut now = after.clients[me].sessions.iter();
        let now = now.find(|now| now.number == session.number);
        if !now.is_some_and(|now| after.believes(setup, now)) {
            news.push(format!("{me}.{} believes no more", session.number));
        }
    }
    news
}

impl State {
    pub(super) fn tell(&self, action: Action) -> String {
        let after = |notice| if notice == Notice::Reset { ", and the connection is reset" } else { "" };
        match action {
            Action::Pass => TIME_PASSES.into(),
            Action::Begin(me) => format!("client {me} begins"),
            Action::Cancel(me, number) => format!("{me}.{number} waits no more"),
            Action::Poll(me, number) => format!("it is time for {me}.{number} to poll"),
            Action::Look(me, number) => format!("client {me} looks at {me}.{number}"),
            Action::LetGo(me, number) => format!("client {me} lets go of {me}.{number}"),
            Action::Downgrade(me, number) => format!("client {me} goes on as a reader after {me}.{number}"),
            Action::Expire(me, number) => format!("client {me} waits no longer for an answer about {me}.{number}"),
            Action::Arrive(at) => format!("{} arrives", self.net[at]),
            Action::ReplyIsLate(at, notice) => {
                format!("{} arrives, and the answer is late{}", self.net[at], after(notice))
            }
            Action::IsLate(at, notice) => format!("{} is late{}", self.net[at], after(notice)),
            Action::ArriveTwice(at) => format!("{} arrives, and will once more", self.net[at]),
            Action::Die(me) => format!("client {me} dies"),
            Action::Pause(me) => format!("client {me} stands still"),
            Action::Resume(me) => format!("client {me} goes on"),
            Action::Restart(memory) => format!("the server is restarted {memory}"),
            Action::Step => "the server's clock is set".into(),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.content {
            Content::Reply(_) => "the answer to the request",
            Content::Call(None) => "the news of a grant",
            Content::Call(Some(_)) => "the news that it comes next",
            Content::Request(Asked::Poll { .. }) => "the poll",
            Content::Request(Asked::Renew { .. }) => "the renewal",
            Content::Request(Asked::Part { .. }) => "the release",
            Content::Request(Asked::Leave { .. }) => "the leaving",
            Content::Request(Asked::Downgrade(_)) => "the downgrade",
        };
        write!(f, "{what} of {}", label(self.owner))
    }
}
