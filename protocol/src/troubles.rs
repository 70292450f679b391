//! Decides which troubles are reported, and how often: pure. Thousands of waiters meet the same outage, and one line
//! says it.
//!
//! # Invariants
//!
//! 1. A cause is reported when it is first met. Met again, it is reported again once [`PERIOD`] has passed since its
//!    last report, however often it was met or ended in between.
//! 2. A report says how often its cause was met since its last report. Of several causes at once it is the most.
//! 3. An end is reported once, and only if a cause was reported since the last end.
//! 4. At most [`MOST_CAUSES`] are kept. A cause gives its place up only a period after its report, so no more than that
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
pub struct Troubles {
    causes: Vec<Cause>,
    /// How often a cause was met that has no place here.
    others: u64,
    /// Whether a cause was reported since the last end.
    was_told: bool,
}

#[derive(Debug)]
struct Cause {
    name: String,
    told: Time,
    /// How often it was met since then.
    untold: u64,
}

impl Cause {
    fn is_due(&self, now: Time) -> bool {
        now.since(self.told) >= PERIOD
    }
}

impl Troubles {
    /// None so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Somebody has met these causes at once. If one of them is to be reported: how often it was met since its last
    /// report.
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
                // A place that has just been given to it.
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

    /// A place for a cause that has none, if there is one (invariant 4).
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

    /// An answer has come, so every trouble is over. If that is to be reported: how often causes were met without a
    /// report.
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

/// The same for a server, or a quorum, that could not be connected to.
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

/// A text without the words that have digits (slots, counts, durations), and their units.
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::holder::Holder;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn meet(troubles: &mut Troubles, seconds: u64, causes: &[&str]) -> Option<u64> {
        troubles.meet(at(seconds), causes.iter().map(|&cause| cause.to_owned()))
    }

    #[test]
    fn a_cause_is_told_at_once_and_then_once_a_period_with_its_count() {
        let mut troubles = Troubles::new();
        assert_eq!(meet(&mut troubles, 5, &["away"]), Some(1));
        let between: Vec<_> = (5..65).map(|second| meet(&mut troubles, second, &["away"])).collect();
        assert_eq!(between, [None; 60]);
        assert_eq!(meet(&mut troubles, 65, &["away"]), Some(61));
        assert_eq!(meet(&mut troubles, 124, &["away"]), None);
        assert_eq!(meet(&mut troubles, 125, &["away"]), Some(2));
    }

    #[test]
    fn another_cause_is_told_at_once() {
        let mut troubles = Troubles::new();
        assert_eq!(meet(&mut troubles, 0, &["away"]), Some(1));
        assert_eq!(meet(&mut troubles, 1, &["full"]), Some(1));
        assert_eq!(meet(&mut troubles, 2, &["away"]), None);
        assert_eq!(meet(&mut troubles, 60, &["away"]), Some(2), "each by its own time");
        assert_eq!(meet(&mut troubles, 60, &["full"]), None);
    }

    #[test]
    fn what_is_told_names_all_of_its_causes() {
        let mut troubles = Troubles::new();
        assert_eq!(meet(&mut troubles, 0, &["one", "two"]), Some(1));
        assert_eq!(meet(&mut troubles, 1, &["one"]), None);
        assert_eq!(meet(&mut troubles, 2, &["one", "three"]), Some(2), "the third is new");
        assert_eq!(meet(&mut troubles, 60, &["three"]), None);
        assert_eq!(meet(&mut troubles, 61, &["one", "three"]), None, "they were told at 2");
        assert_eq!(meet(&mut troubles, 62, &["one", "three"]), Some(3));
    }

    #[test]
    fn an_end_is_told_once_and_only_of_what_was_told() {
        let mut troubles = Troubles::new();
        assert_eq!((troubles.end(), troubles.are_told()), (None, false));
        assert_eq!(meet(&mut troubles, 0, &["away"]), Some(1));
        assert_eq!(meet(&mut troubles, 1, &["away"]), None);
        assert!(troubles.are_told());
        assert_eq!((troubles.end(), troubles.end()), (Some(1), None));
        assert_eq!(meet(&mut troubles, 2, &["away"]), None, "it comes and goes");
        assert_eq!((troubles.end(), troubles.are_told()), (None, false));
        assert_eq!(meet(&mut troubles, 60, &["away"]), Some(2));
        assert_eq!(troubles.end(), Some(0));
    }

    #[test]
    fn causes_without_a_place_are_counted_until_one_is_free() {
        let mut troubles = Troubles::new();
        for n in 0..MOST_CAUSES {
            assert_eq!(meet(&mut troubles, 0, &[&n.to_string()]), Some(1));
        }
        assert_eq!(meet(&mut troubles, 59, &["another"]), None);
        assert_eq!(meet(&mut troubles, 59, &["0"]), None);
        assert_eq!(meet(&mut troubles, 60, &["another"]), Some(3), "itself twice, and what its place had to tell");
        assert_eq!(meet(&mut troubles, 60, &["another"]), None);
    }

    #[test]
    fn a_servers_silence_is_one_cause_however_it_shows_and_its_replies_are_others() {
        let unknown = |text: &str| causes(&Failure::unknown(text));
        let silence = unknown("redis at h:1 gave no answer within 300 ms");
        assert_eq!(silence, ["silent"]);
        assert_eq!(silence, causes(&Failure::unsent("there is no connection to redis at h:1: Connection refused")));
        assert_eq!(silence, causes_of_absence("cannot connect to redis at h:1: Connection refused", None));
        let full = "redis at h:1 said \"OOM command not allowed\": the server's maxmemory is reached";
        assert_eq!(unknown(full), ["OOM command not allowed"]);
        assert_eq!(causes(&Failure::unavailable(full)), unknown(full));
        assert_eq!(causes_of_absence(full, None), unknown(full));
        let moved = |slot: u16| causes(&Failure::unavailable(format!("redis said \"MOVED {slot} h:2\"")));
        assert_eq!(moved(3999), moved(12));
    }

    #[test]
    fn durations_make_no_other_cause() {
        let recovering = |seconds| causes(&Failure::recovering("h:1", Duration::from_secs(seconds)));
        assert_eq!(recovering(7), recovering(29));
        assert_ne!(recovering(7), causes(&Failure::unavailable("the grant was confirmed late")));
        assert_eq!(lasting("within 2 min 5 s, or 1.25 s; s is a letter"), "within or s is a letter");
    }

    #[test]
    fn over_a_quorum_the_causes_are_the_nodes_that_gave_no_vote() {
        let of = |answers: [NodeAnswer; 4]| {
            let answers = answers.into_iter().enumerate().map(|(at, answer)| (format!("h:{at}"), answer));
            causes(&Failure::of_nodes(answers))
        };
        let unreachable = |text: &str| NodeAnswer::Unreachable(text.to_owned());
        let recovering = |seconds| NodeAnswer::Recovering { remaining: Duration::from_secs(seconds) };
        let (held, full) =
            (NodeAnswer::HeldBy(Holder::default()), unreachable("redis at h:3 said \"OOM no\": raise it"));
        let expected = ["h:1 silent", "h:2 recovering", "h:3 OOM no"];
        assert_eq!(of([NodeAnswer::Granted, unreachable("no answer"), recovering(7), full.clone()]), expected);
        assert_eq!(of([held, unreachable("not asked"), recovering(6), full]), expected);
        let (granted, none) = (NodeAnswer::Granted, NodeAnswer::NotOurs);
        assert_eq!(of([granted.clone(), granted.clone(), granted, none]), ["no majority"]);
    }

    proptest! {
        #[test]
        fn no_history_tells_more_than_a_line_a_period_and_cause_nor_loses_a_count(
            steps in prop::collection::vec((0_u64..40, 0_usize..20, any::<bool>()), 1..300),
        ) {
            let (mut troubles, mut now, mut met, mut told) = (Troubles::new(), 0, 0, 0);
            let (mut lines, mut ends) = (Vec::new(), 0);
            for (pause, cause, ends_now) in steps {
                now += pause;
                if ends_now {
                    let end = troubles.end();
                    told += end.unwrap_or_default();
                    ends += usize::from(end.is_some());
                }
                met += 1;
                if let Some(count) = meet(&mut troubles, now, &[&cause.to_string()]) {
                    told += count;
                    let recent = |&&(other, at): &&(usize, u64)| other == cause && now - at < 60;
                    prop_assert!(lines.iter().find(recent).is_none(), "{cause} at {now}");
                    lines.push((cause, now));
                    prop_assert!(lines.iter().filter(|(_, at)| now - at < 60).count() <= MOST_CAUSES);
                }
            }
            prop_assert!(ends <= lines.len());
            let untold = troubles.causes.iter().map(|cause| cause.untold).sum::<u64>() + troubles.others;
            prop_assert_eq!(told + untold, met);
        }
    }
}
