//! One request on its way through a cluster: where it goes, and whether an answer counts.
//!
//! # Invariants
//!
//! 1. It is sent again only after an answer that says that nothing was executed. What may have happened is the caller's
//!    to deal with (rule 6).
//! 2. It is sent `MOST` times at most; from the third redirection on after a pause, which doubles.
//! 3. An answer counts only if its server has the key's slot when the answer is heard, or the one that sent the request
//!    on to it (rule 11). It may be that of a primary which another has replaced.
//! 4. A server that sends one request on (`ASK`) has the slot still. That holds for one sending.
//! 5. Nothing is sent to a server that has said that its cluster is down.

use std::time::Duration;

use crate::{
    failure::{Failure, Redirection},
    place::{Place, Shard},
    topology::Topology,
};

/// How often a request is sent at most.
const MOST: u32 = 6;

/// The pause before the fourth sending; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trip {
    slot: u16,
    sendings: u32,
    /// Where it was sent on to.
    on_to: Option<Place>,
}

/// The next step of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send it to this server.
    Send(Shard),
    /// Send it there, and say that this server, which has the slot, has sent it on (`ASKING`).
    Ask(Shard, Place),
    /// The slot has no owner that serves it: wait until the topology is another.
    Await,
    /// It was sent often enough.
    Enough,
}

/// The outcome of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is the answer.
    Counts,
    /// Another server has the slot by now: nobody knows whether it happened there.
    Void,
    /// Nothing was executed: [`next`](Trip::next) after this pause.
    Again(Duration),
}

impl Trip {
    /// Of a request for a key in this slot.
    pub fn new(slot: u16) -> Self {
        Self { slot, sendings: 0, on_to: None }
    }

    /// Where it goes now.
    pub fn next(&mut self, topology: &Topology) -> Step {
        match topology.owner(self.slot) {
            _ if self.sendings >= MOST => Step::Enough,
            Some(owner) if !topology.is_down(owner) => {
                self.sendings += 1;
                // The slot may be there by now.
                self.on_to.take_if(|place| topology.place(owner) == Some(place));
                self.on_to.clone().map_or(Step::Send(owner), |place| Step::Ask(owner, place))
            }
            _ => Step::Await,
        }
    }

    /// Whether it was sent more than once, so that later requests may have overtaken it.
    pub fn was_repeated(&self) -> bool {
        self.sendings > 1
    }

    /// A server has answered, or failed to; or the one that it has sent the request on to. The topology has taken in
    /// what it said of the slot.
    pub fn heard(&mut self, from: Shard, failure: Option<&Failure>, topology: &Topology) -> Heard {
        let redirection = failure.and_then(Failure::redirection);
        let asked = self.on_to.take();
        let owner = topology.owner(self.slot);
        let is_there_now = asked.is_some() && owner.and_then(|owner| topology.place(owner)) == asked.as_ref();
        let is_elsewhere = owner != Some(from) && !is_there_now;
        match (redirection, failure) {
            (Some(Redirection::Moved { .. }), _) => Heard::Again(self.pause()),
            (Some(Redirection::Moving { to: Some(place) }), _) => {
                if asked.is_none() && !is_elsewhere {
                    self.on_to = Some(place.clone());
                }
                Heard::Again(self.pause())
            }
            // It was handed to a link that ended; another server may have the slot by now.
            (None, Some(failure)) if failure.is_unsent() && is_elsewhere => Heard::Again(self.pause()),
            (None, Some(failure)) if failure.is_silence() => Heard::Counts,
            _ if is_elsewhere => Heard::Void,
            _ => Heard::Counts,
        }
    }

    fn pause(&self) -> Duration {
        match self.sendings {
            0..=2 => Duration::ZERO,
            sendings => FIRST_PAUSE * 2_u32.saturating_pow(sendings - 3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        time::Time,
        topology::{Primary, View},
    };

    fn place(port: u16) -> Place {
        Place { host: "h".into(), port }
    }

    fn view(port: u16, epoch: u64) -> View {
        let id = format!("{port}").into();
        let primary = Primary { id, place: Some(place(port)), epoch, slots: vec![0..=99], replicas: Vec::new() };
        View { by: None, primaries: vec![primary], known: ["1".into(), "2".into()].into(), begins_anew: None }
    }

    fn moved(to: Option<Place>) -> Failure {
        Failure::refused("MOVED").redirected(Some(Redirection::Moved { slot: 7, to }))
    }

    #[test]
    fn a_redirected_request_goes_on_with_pauses_and_not_for_ever() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let (mut trip, mut pauses, mut port) = (Trip::new(7), Vec::new(), 1);
        while let Step::Send(to) = trip.next(&topology) {
            port += 1;
            let _changes = topology.moved(to, 7, Some(place(port)));
            let Heard::Again(pause) = trip.heard(to, Some(&moved(Some(place(port)))), &topology) else {
                panic!("{port}")
            };
            pauses.push(pause.as_millis());
        }
        assert_eq!(pauses, [0, 0, 5, 10, 20, 40]);
        assert!(trip.was_repeated() && trip.next(&topology) == Step::Enough);
    }

    #[test]
    fn an_answer_counts_from_the_owner_only() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(old) = trip.next(&topology) else { panic!("it has an owner") };
        let unknown = Failure::unknown("silence");
        assert_eq!(trip.heard(old, None, &topology), Heard::Counts);
        assert!(!trip.was_repeated());
        let _changes = topology.merge(&view(2, 2), Time::ZERO);
        assert_eq!(trip.heard(old, None, &topology), Heard::Void);
        assert_eq!(trip.heard(old, Some(&Failure::refused("no")), &topology), Heard::Void);
        assert_eq!(trip.heard(old, Some(&unknown), &topology), Heard::Counts, "it is unknown as it is");
        assert_eq!(trip.heard(old, Some(&Failure::unsent("no link")), &topology), Heard::Again(Duration::ZERO));
    }

    #[test]
    fn what_was_never_sent_stays_so_while_the_owner_is_the_same() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(owner) = trip.next(&topology) else { panic!("it has an owner") };
        assert_eq!(trip.heard(owner, Some(&Failure::unsent("no link")), &topology), Heard::Counts);
        let moving = Failure::unavailable("TRYAGAIN").redirected(Some(Redirection::Moving { to: None }));
        assert_eq!(trip.heard(owner, Some(&moving), &topology), Heard::Counts);
    }

    fn sent_on(port: u16) -> Failure {
        Failure::refused("ASK").redirected(Some(Redirection::Moving { to: Some(place(port)) }))
    }

    #[test]
    fn a_request_that_is_sent_on_goes_there_once_and_its_answer_counts_while_the_slot_is_here_or_there() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(owner) = trip.next(&topology) else { panic!("it has an owner") };
        assert_eq!(trip.heard(owner, Some(&sent_on(2)), &topology), Heard::Again(Duration::ZERO));
        assert_eq!(topology.owner(7), Some(owner), "the slot is not there yet");
        assert_eq!(trip.next(&topology), Step::Ask(owner, place(2)));
        assert_eq!(trip.heard(owner, None, &topology), Heard::Counts);
        assert!(trip.was_repeated());
        assert_eq!(trip.next(&topology), Step::Send(owner), "it was for one sending");
        // The slot has arrived before the answer is heard.
        let _again = trip.heard(owner, Some(&sent_on(2)), &topology);
        assert_eq!(trip.next(&topology), Step::Ask(owner, place(2)));
        let _changes = topology.merge(&view(2, 2), Time::ZERO);
        assert_eq!(trip.heard(owner, None, &topology), Heard::Counts);
        // A third server has it.
        let (mut trip, there) = (Trip::new(7), topology.owner(7).unwrap());
        assert_eq!(trip.next(&topology), Step::Send(there));
        let _again = trip.heard(there, Some(&sent_on(1)), &topology);
        assert_eq!(trip.next(&topology), Step::Ask(there, place(1)));
        let _changes = topology.merge(&view(3, 3), Time::ZERO);
        assert_eq!(trip.heard(there, None, &topology), Heard::Void);
    }

    #[test]
    fn who_was_sent_on_to_a_server_that_knows_nothing_of_it_begins_again() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(owner) = trip.next(&topology) else { panic!("it has an owner") };
        let _again = trip.heard(owner, Some(&sent_on(2)), &topology);
        assert_eq!(trip.next(&topology), Step::Ask(owner, place(2)));
        assert_eq!(trip.heard(owner, Some(&moved(Some(place(1)))), &topology), Heard::Again(Duration::ZERO));
        assert_eq!(trip.next(&topology), Step::Send(owner));
        // It was replaced when it sent the request on: nothing of that counts.
        let _changes = topology.merge(&view(2, 2), Time::ZERO);
        let Heard::Again(_) = trip.heard(owner, Some(&sent_on(3)), &topology) else { panic!("nothing was executed") };
        assert_eq!(trip.next(&topology), Step::Send(topology.owner(7).unwrap()));
    }

    #[test]
    fn a_server_whose_cluster_is_down_is_not_asked() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(owner) = trip.next(&topology) else { panic!("it has an owner") };
        let down = Failure::unknown("CLUSTERDOWN").redirected(Some(Redirection::Down));
        topology.is_down_now(owner);
        assert_eq!(trip.heard(owner, Some(&down), &topology), Heard::Counts, "it may have happened");
        assert_eq!((trip.next(&topology), topology.down()), (Step::Await, vec![owner]));
        assert!(topology.serves_again(owner) && !topology.serves_again(owner));
        assert_eq!(trip.next(&topology), Step::Send(owner));
        topology.is_down_now(owner);
        let _changes = topology.merge(&view(2, 2), Time::ZERO);
        assert_eq!(topology.down(), [], "another has its slots");
    }

    #[test]
    fn a_slot_without_an_owner_is_waited_for() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        assert_eq!(Trip::new(100).next(&topology), Step::Await);
    }
}
