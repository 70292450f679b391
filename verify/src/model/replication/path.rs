//! A path through the states, for people: what happened when, and who believed what after it.

use std::fmt::{self, Write};

use leasehold_protocol::renewal::Phase;
use stateright::Path;

use super::{
    Setup,
    action::Action,
    state::{Message, State},
};
use crate::model::{path::seconds, state::Kind};

/// One line for everything that happened.
pub(super) fn told(setup: &Setup, path: Path<State, Action>) -> String {
    let steps = path.into_vec();
    let mut text = String::new();
    for pair in steps.windows(2) {
        let [(before, Some(action)), (after, _)] = pair else { continue };
        if *action == Action::Pass {
            continue;
        }
        let news = news(setup, before, after);
        let news = if news.is_empty() { String::new() } else { format!("  → {}", news.join("; ")) };
        let _ = writeln!(text, "{:>6.3} s  {}{news}", seconds(before.now), before.tell(*action));
    }
    if let Some((last, _)) = steps.last() {
        let believers = last.believers(setup);
        let _ = writeln!(text, "{:>6.3} s  clients that believe they hold the lock: {believers}", seconds(last.now));
    }
    text
}

/// The differences for the clients and the servers.
fn news(setup: &Setup, before: &State, after: &State) -> Vec<String> {
    let mut news = Vec::new();
    for server in 0..after.servers.len() {
        let key = |state: &State| state.key_at(setup, server).map(|(owner, _)| owner);
        match (key(before), key(after)) {
            (was, is) if was == is => {}
            (_, Some((client, number))) => news.push(format!("server {server} has the key of {client}.{number}")),
            (_, None) => news.push(format!("server {server} has no key")),
        }
    }
    for (me, client) in after.clients.iter().enumerate() {
        for session in &client.sessions {
            let was = before.clients[me].sessions.iter().find(|was| was.number == session.number);
            let (was, is) = (was.map(|was| &was.acquisition), &session.acquisition);
            let until = seconds(setup.clients.when(is.valid_until()));
            let has_moved = was.is_none_or(|was| was.valid_until() != is.valid_until());
            match is.phase() {
                Some(Phase::Held | Phase::AtRisk) if has_moved => {
                    let fence = is.fence().map(u64::from).unwrap_or_default();
                    news.push(format!("{me}.{} is held until {until:.3} s with the fence {fence}", session.number));
                }
                _ => {}
            }
        }
        for was in &before.clients[me].sessions {
            let is_there = client.sessions.iter().any(|session| session.number == was.number && session.is_on());
            if was.is_on() && !is_there {
                news.push(format!("{me}.{} is over", was.number));
            }
        }
    }
    news
}

impl State {
    fn tell(&self, action: Action) -> String {
        let server = |connection: usize| self.connections[connection].leads;
        match action {
            Action::Pass => "time passes".into(),
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
