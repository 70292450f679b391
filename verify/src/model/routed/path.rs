//! A path through the states, for people: what happened when, and who believed what after it.

use std::fmt::{self, Write};

use leasehold_protocol::{renewal::Phase, stepwise::Single};
use stateright::Path;

use super::{
    Handover, Setup,
    action::Action,
    state::{Message, Part, State},
};
use crate::model::{path::seconds, state::Kind};

/// One line for everything that happened.
pub(in crate::model) fn told<H: Handover>(setup: &Setup<H>, path: Path<State<H>, Action<H::Event>>) -> String {
    let steps = path.into_vec();
    let mut text = String::new();
    for pair in steps.windows(2) {
        let [(before, Some(action)), (after, _)] = pair else { continue };
        if *action == Action::Pass {
            continue;
        }
        let news = news(setup, before, after);
        let news = if news.is_empty() { String::new() } else { format!("  → {}", news.join("; ")) };
        let _ = writeln!(text, "{:>6.3} s  {}{news}", seconds(before.now), before.tell(action));
    }
    if let Some((last, _)) = steps.last() {
        let believers = last.all_believers(setup);
        let _ = writeln!(text, "{:>6.3} s  clients that believe they hold the lock: {believers}", seconds(last.now));
    }
    text
}

/// What is different for the clients and the servers.
fn news<H: Handover>(setup: &Setup<H>, before: &State<H>, after: &State<H>) -> Vec<String> {
    let mut news = Vec::new();
    for (at, (was, is)) in before.servers.iter().zip(&after.servers).enumerate() {
        match (was.key.map(|(owner, _)| owner), is.key.map(|(owner, _)| owner)) {
            (was, is) if was == is => {}
            (_, Some((client, number))) => news.push(format!("server {at} has the key of {client}.{number}")),
            (_, None) => news.push(format!("server {at} has no key")),
        }
    }
    for (me, client) in after.clients.iter().enumerate() {
        for session in &client.sessions {
            let was = before.clients[me].sessions.iter().find(|was| was.number == session.number);
            let (is, phase) = (&session.acquisition, session.acquisition.phase());
            if phase == was.and_then(|was| was.acquisition.phase()) {
                continue;
            }
            let until = || seconds(setup.clients.when(is.valid_until()));
            let said = match phase {
                Some(Phase::Over { .. }) | None => continue,
                Some(Phase::AtRisk) => format!("is at risk until {:.3} s", until()),
                Some(Phase::Held) => {
                    let fence = is.fence().map(u64::from).unwrap_or_default();
                    format!("is held until {:.3} s with the fence {fence}", until())
                }
            };
            news.push(format!("{me}.{} {said}", session.number));
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

impl<H: Handover> State<H> {
    fn tell(&self, action: &Action<H::Event>) -> String {
        match action {
            Action::Pass => "time passes".into(),
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
