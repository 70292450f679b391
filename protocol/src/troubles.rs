//! Decides which troubles are reported, and how often: pure. Thousands of waiters meet the same outage, and one line
//! reports it.
//!
//! # Invariants
//!
//! 1. A cause is reported when it is first met. Met again, it is reported again once [`PERIOD`] has passed since its
//!    last report, however often it was met or ended in between.
//! 2. A report says how often its cause was met since its last report; for several causes at once, the largest count.
//! 3. An end is reported once, and only if a cause was reported since the last end.
//! 4. At most [`MOST_CAUSES`] are kept. A cause gives up its place only a period after its report, so no more than that
//!    many are reported in a period.

use std::time::Duration;

use crate::{
    failure::Failure,
    time::Time,
    votes::{NodeAnswer, Vote, Votes},
};

/// How long a cause is not reported again.
pub const PERIOD: Duration = Duration::from_secs(60);

/// How many causes are distinguished. Further ones are counted with the next report.
pub const MOST_CAUSES: usize = 16;

/// The causes that keep callers from an answer, when many meet the same ones.
#[derive(Debug, Default)]
pub struct TroubleLog {
    causes: Vec<Cause>,
    /// How often a cause without a place here was met.
    others: u64,
    /// Whether a cause was reported since the last end.
    was_told: bool,
}

#[derive(Debug)]
struct Cause {
    name: String,
    told: Time,
    /// How often it was met since that report.
    untold: u64,
}

impl Cause {
    fn is_due(&self, now: Time) -> bool {
        now.since(self.told) >= PERIOD
    }
}

impl TroubleLog {
    /// A log without causes.
    pub fn new() -> Self {
        Self::default()
    }

    /// A caller has met these causes at once. If one of them is to be reported, returns how often it was met since its
    /// last report.
    pub fn meet(&mut self, now: Time, causes: impl IntoIterator<Item = String>) -> Option<u64> {
        let (mut is_due, mut met) = (false, Vec::new());
        for name in causes {
            let known = self.causes.iter().position(|cause| cause.name == name);
            let Some(at) = known.or_else(|| self.place(now, name)) else {
                self.others += 1;
                continue;
            };
            if let Some(cause) = self.causes.get_mut(at) {
                cause.untold += 1;
                // A cause that was just given its place is due.
                is_due |= known.is_none() || cause.is_due(now);
                met.push(at);
            }
        }
        if !is_due {
            return None;
        }
        // The report names them all.
        let mut count = 0;
        for at in met {
            if let Some(cause) = self.causes.get_mut(at) {
                count = count.max(std::mem::take(&mut cause.untold));
                cause.told = now;
            }
        }
        self.was_told = true;
        Some(count + std::mem::take(&mut self.others))
    }

    /// Finds a place for a cause that has none, if possible (invariant 4).
    fn place(&mut self, now: Time, name: String) -> Option<usize> {
        let new = |untold| Cause { name, told: now, untold };
        if self.causes.len() < MOST_CAUSES {
            self.causes.push(new(0));
            return Some(self.causes.len() - 1);
        }
        let (at, oldest) = self.causes.iter_mut().enumerate().min_by_key(|(_, cause)| cause.told)?;
        if !oldest.is_due(now) {
            return None;
        }
        self.others += oldest.untold;
        *oldest = new(0);
        Some(at)
    }

    /// An answer has arrived, so every trouble has ended. If that is to be reported, returns how often causes were met
    /// without a report.
    pub fn end(&mut self) -> Option<u64> {
        if !std::mem::take(&mut self.was_told) {
            return None;
        }
        let untold = self.causes.iter_mut().map(|cause| std::mem::take(&mut cause.untold)).sum::<u64>();
        Some(untold + std::mem::take(&mut self.others))
    }

    /// Whether an end would be reported.
    pub fn are_told(&self) -> bool {
        self.was_told
    }
}

/// The causes of a failure: the reply of each server, or its silence. No answer, no connection and a request that was
/// not sent are all silence. Over a quorum only the nodes that gave no vote count: the others may say something else
/// each time.
pub fn causes(failure: &Failure) -> Vec<String> {
    let text = failure.to_string();
    match failure.votes() {
        Some(votes) => of_nodes(votes),
        None if reply(&text).is_none() && !failure.is_silence() => vec![lasting(&text)],
        None => vec![of_text(&text)],
    }
}

/// The causes why a server, or a quorum, could not be connected to.
pub fn causes_of_absence(text: &str, votes: Option<&Votes>) -> Vec<String> {
    votes.map_or_else(|| vec![of_text(text)], of_nodes)
}

fn of_nodes(votes: &Votes) -> Vec<String> {
    let cause = |vote: &Vote| {
        let why = match vote.answer() {
            NodeAnswer::Granted | NodeAnswer::HeldBy(_) | NodeAnswer::NotOurs => return None,
            NodeAnswer::Recovering { .. } => "recovering".to_owned(),
            NodeAnswer::Refused(text) | NodeAnswer::Unreachable(text) => of_text(text),
        };
        Some(format!("{} {why}", vote.address()))
    };
    let nodes: Vec<_> = votes.nodes().iter().filter_map(cause).collect();
    if nodes.is_empty() { vec!["no majority".to_owned()] } else { nodes }
}

fn of_text(text: &str) -> String {
    reply(text).map_or_else(|| "silent".to_owned(), lasting)
}

/// A server's own reply, as far as a failure's text quotes it.
fn reply(text: &str) -> Option<&str> {
    text.split_once(" said \"")?.1.split('"').next()
}

/// A text without the words that contain digits (slots, counts, durations), and without their units.
fn lasting(text: &str) -> String {
    const UNITS: [&str; 6] = ["ns", "µs", "ms", "s", "min", "h"];
    let (mut words, mut after_number) = (Vec::new(), false);
    for word in text.split(' ') {
        let has_digits = word.contains(|c: char| c.is_ascii_digit());
        let is_unit = UNITS.contains(&word.trim_matches(|c: char| !c.is_alphabetic()));
        if !(has_digits || after_number && is_unit) {
            words.push(word);
        }
        after_number = has_digits;
    }
    words.join(" ")
}

#[cfg(test)]
mod tests;
