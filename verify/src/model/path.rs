//! A path through the states, for people: what happened when, and who believed what after it.

use std::fmt::{self, Write};

use leasehold_protocol::{acquisition::Acquisition, renewal::Phase};
use stateright::Path;

use super::{
    Setup,
    action::Action,
    state::{Kind, State},
};
/// One line for everything that happened.
pub(super) fn told(setup: &Setup, path: Path<State, Action>) -> String {
    let steps = path.into_vec();
    let mut text = String::new();
    for pair in steps.windows(2) {
        let [(before, Some(action)), (after, _)] = pair else { continue };
        if *action == Action::Pass {
            continue;
        }
        let news: Vec<_> = news(setup, before, after);
        let news = if news.is_empty() { String::new() } else { format!("  → {}", news.join("; ")) };
        let _ = writeln!(text, "{:>6.3} s  {action}{news}", seconds(before.now));
    }
    if let Some((last, _)) = steps.last() {
        let _ = writeln!(
            text,
            "{:>6.3} s  clients that believe they hold the lock: {}",
            seconds(last.now),
            last.believers(setup)
        );
    }
    text
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds are read")]
pub(super) fn seconds(real: u64) -> f64 {
    real as f64 / 1e9
}

/// What is different for the clients and the nodes.
fn news(setup: &Setup, before: &State, after: &State) -> Vec<String> {
    let mut news = Vec::new();
    for (node, (was, is)) in before.servers.iter().zip(&after.servers).enumerate() {
        match (was.key.map(|(owner, _)| owner), is.key.map(|(owner, _)| owner)) {
            (was, is) if was == is => {}
            (_, Some((client, number))) => news.push(format!("node {node} has the key of {client}.{number}")),
            (_, None) => news.push(format!("node {node} has no key")),
        }
    }
    for (me, client) in after.clients.iter().enumerate() {
        for session in &client.sessions {
            let was = before.clients[me].sessions.iter().find(|was| was.number == session.number);
            let name = format!("{me}.{}", session.number);
            let (is, was) = (&session.acquisition, was.map(|was| &was.acquisition));
            let until = || seconds(setup.clients.when(is.valid_until()));
            let fence = is.fence().map(u64::from).unwrap_or_default();
            let (phase, before) = (is.phase(), was.and_then(Acquisition::phase));
            match phase {
                _ if phase == before => {}
                Some(Phase::AtRisk) => news.push(format!("{name} is at risk until {:.3} s", until())),
                Some(_) if before.is_some() => news.push(format!("{name} is held again until {:.3} s", until())),
                Some(_) => news.push(format!("{name} is won until {:.3} s with the fence {fence}", until())),
                None if is.is_releasing() => {}
                None => news.push(format!("{name} is lost")),
            }
            if !session.is_on() && was.is_some_and(Acquisition::is_attempting) {
                news.push(format!("{name} has failed"));
            }
            if !session.is_on() && was.is_some_and(Acquisition::is_releasing) {
                news.push(format!("{name} is released"));
            }
        }
    }
    news
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("time passes"),
            Self::Begin(me) => write!(f, "client {me} begins an attempt"),
            Self::HandOver(me, number) => write!(f, "client {me} hands {me}.{number} over"),
            Self::Adopt(me, (of, number)) => write!(f, "client {me} begins to adopt {of}.{number}"),
            Self::LetGo(me, number) => write!(f, "client {me} lets go of {me}.{number}"),
            Self::Check(me, number) => write!(f, "client {me} looks at {me}.{number}"),
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

impl fmt::Display for super::action::Place {
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

impl fmt::Display for super::action::Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "",
            Self::Reset => ", and the connection is reset",
        })
    }
}

impl fmt::Display for super::action::Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "with its data",
            Self::Lost => "and has forgotten everything",
        })
    }
}
