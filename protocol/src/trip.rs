//! One request on its way through a cluster: where it goes, whether an answer counts, and what follows from it.
//!
//! # Invariants
//!
//! 1. The request is sent again only after an answer that nothing was executed. The caller deals with what may have
//!    happened (rule 6).
//! 2. It is sent at most `MOST` times; from the third redirection on, after a pause that doubles.
//! 3. An answer counts only if, when it arrives, its server has the key's slot, or the server that sent the request on
//!    to it has (rule 11). Otherwise it may come from a primary that was replaced.
//! 4. A server that sends one request on (`ASK`) still has the slot. The redirection is for one sending.
//! 5. Nothing is sent to a server that has reported that its cluster is down.
//! 6. Only the slot's owner, as we know it, is believed when it reports where the slot is, or that its cluster is down.
//!    Another server's report about that counts only in a view.

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
    /// The server to which it was sent on.
    on_to: Option<Place>,
}

/// The next step of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send it to this server.
    Send(Shard),
    /// Send it there with `ASKING`, which says that this server, the slot's owner, has sent it on.
    Ask(Shard, Place),
    /// The slot has no owner that serves it: wait until the topology changes.
    Await,
    /// It was sent as often as it may be.
    Enough,
}

/// The outcome of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum TripOutcome {
    /// The answer counts.
    Counts,
    /// Another server has the slot by now: it is unknown whether the request was executed there.
    Void,
    /// Nothing was executed: [`next`](Trip::next) after this pause.
    Again(Duration),
}

/// The driver's orders after an answer.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct TripOrders {
    /// The outcome for the request, once the rest is done.
    pub outcome: TripOutcome,
    /// The owner has sent the request there, or nowhere: report it to the topology with [`moved`](Topology::moved).
    pub moved: Option<Option<Place>>,
    /// The owner's cluster is down: report it to the topology with [`is_down_now`](Topology::is_down_now).
    pub is_down: bool,
    /// Request views: the topology may have changed.
    pub doubt: bool,
    /// The server that was asked has answered.
    pub is_heard: bool,
    /// The owner has answered as such, so another server is asked about that (rule 11).
    pub is_counted: bool,
}

impl Trip {
    /// A request for a key in this slot.
    pub fn new(slot: u16) -> Self {
        Self { slot, sendings: 0, on_to: None }
    }

    /// Where the request goes now.
    pub fn next(&mut self, topology: &Topology) -> Step {
        match topology.owner(self.slot) {
            _ if self.sendings >= MOST => Step::Enough,
            Some(owner) if !topology.is_down(owner) => {
                self.sendings += 1;
                // The slot may have moved there by now.
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

    /// A server, or the one to which it sent the request on, has answered or failed to.
    pub fn heard(&mut self, from: Shard, failure: Option<&Failure>, topology: &Topology) -> TripOrders {
        let redirection = failure.and_then(Failure::redirection);
        let is_moving = matches!(redirection, Some(Redirection::Moving { .. }));
        let asked = self.on_to.take();
        let is_of_owner = asked.is_none();
        let outcome = self.outcome(from, failure, asked.as_ref(), topology);
        let is_counted = match outcome {
            TripOutcome::Counts => failure.is_none(),
            // By sending a request on, a server says that the slot is its own.
            TripOutcome::Again(_) => is_moving,
            TripOutcome::Void => false,
        };
        let moved = match redirection {
            Some(Redirection::Moved { to, .. }) if is_of_owner => Some(to.clone()),
            _ => None,
        };
        // Another server would refuse as well. A slot that is being moved is no reason for a doubt.
        let is_telling = failure.is_some_and(|failure| !failure.is_refusal() || redirection.is_some());
        TripOrders {
            outcome,
            moved,
            is_down: is_of_owner && redirection == Some(&Redirection::Down),
            doubt: is_telling && !is_moving,
            is_heard: !failure.is_some_and(Failure::is_silence),
            is_counted: is_of_owner && is_counted,
        }
    }

    /// The outcome of an answer of `from`; or of `asked`, the server to which it sent the request on.
    fn outcome(
        &mut self,
        from: Shard,
        failure: Option<&Failure>,
        asked: Option<&Place>,
        topology: &Topology,
    ) -> TripOutcome {
        let owner = topology.owner(self.slot);
        let is_there_now = asked.is_some() && owner.and_then(|owner| topology.place(owner)) == asked;
        let is_elsewhere = owner != Some(from) && !is_there_now;
        match (failure.and_then(Failure::redirection), failure) {
            (Some(Redirection::Moved { .. }), _) => TripOutcome::Again(self.pause()),
            (Some(Redirection::Moving { to: Some(place) }), _) => {
                if asked.is_none() && !is_elsewhere {
                    self.on_to = Some(place.clone());
                }
                TripOutcome::Again(self.pause())
            }
            // It was handed to a link that ended; another server may have the slot by now.
            (None, Some(failure)) if failure.is_unsent() && is_elsewhere => TripOutcome::Again(self.pause()),
            (None, Some(failure)) if failure.is_silence() => TripOutcome::Counts,
            _ if is_elsewhere => TripOutcome::Void,
            _ => TripOutcome::Counts,
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
            let TripOutcome::Again(pause) = trip.heard(to, Some(&moved(Some(place(port)))), &topology).outcome else {
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
        assert_eq!(trip.heard(old, None, &topology).outcome, TripOutcome::Counts);
        assert!(!trip.was_repeated());
        let _changes = topology.merge(&view(2, 2), Time::ZERO);
        assert_eq!(trip.heard(old, None, &topology).outcome, TripOutcome::Void);
        assert_eq!(trip.heard(old, Some(&Failure::refused("no")), &topology).outcome, TripOutcome::Void);
        assert_eq!(trip.heard(old, Some(&unknown), &topology).outcome, TripOutcome::Counts, "it is unknown as it is");
        assert_eq!(
            trip.heard(old, Some(&Failure::unsent("no link")), &topology).outcome,
            TripOutcome::Again(Duration::ZERO)
        );
    }

    #[test]
    fn what_was_never_sent_stays_so_while_the_owner_is_the_same() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(owner) = trip.next(&topology) else { panic!("it has an owner") };
        assert_eq!(trip.heard(owner, Some(&Failure::unsent("no link")), &topology).outcome, TripOutcome::Counts);
        let moving = Failure::unavailable("TRYAGAIN").redirected(Some(Redirection::Moving { to: None }));
        assert_eq!(trip.heard(owner, Some(&moving), &topology).outcome, TripOutcome::Counts);
    }

    fn sent_on(port: u16) -> Failure {
        Failure::refused("ASK").redirected(Some(Redirection::Moving { to: Some(place(port)) }))
    }

    /// A request for slot 7 that was sent to its owner, or to the server to which the owner sends it on.
    fn asked(of_the_owner: bool) -> (Trip, Shard, Topology) {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(owner) = trip.next(&topology) else { panic!("it has an owner") };
        if !of_the_owner {
            let _again = trip.heard(owner, Some(&sent_on(2)), &topology);
            assert_eq!(trip.next(&topology), Step::Ask(owner, place(2)));
        }
        (trip, owner, topology)
    }

    fn orders(of_the_owner: bool, failure: Option<&Failure>) -> TripOrders {
        let (mut trip, owner, topology) = asked(of_the_owner);
        trip.heard(owner, failure, &topology)
    }

    #[test]
    fn only_the_owner_says_where_the_slot_is_and_whether_its_cluster_is_down() {
        let down = Failure::unknown("CLUSTERDOWN").redirected(Some(Redirection::Down));
        for to in [Some(place(2)), None] {
            assert_eq!(orders(true, Some(&moved(to.clone()))).moved, Some(to.clone()));
            assert_eq!(orders(false, Some(&moved(to))).moved, None);
        }
        assert!(orders(true, Some(&down)).is_down && !orders(false, Some(&down)).is_down);
        for other in [None, Some(sent_on(2)), Some(Failure::refused("no"))] {
            let orders = orders(true, other.as_ref());
            assert!(orders.moved.is_none() && !orders.is_down, "{orders:?}");
        }
    }

    #[test]
    fn the_topology_is_doubted_after_silence_and_redirections_but_not_for_a_slot_that_is_being_moved() {
        let try_again = Failure::unavailable("TRYAGAIN").redirected(Some(Redirection::Moving { to: None }));
        let down = Failure::unknown("CLUSTERDOWN").redirected(Some(Redirection::Down));
        for of_the_owner in [true, false] {
            let doubts = |failure: Option<&Failure>| orders(of_the_owner, failure).doubt;
            for failure in [Failure::unknown("no answer"), Failure::unsent("no link"), Failure::unavailable("LOADING")]
            {
                assert!(doubts(Some(&failure)), "{failure}");
            }
            assert!(doubts(Some(&moved(None))) && doubts(Some(&down)));
            assert!(!doubts(Some(&sent_on(2))) && !doubts(Some(&try_again)));
            assert!(!doubts(Some(&Failure::refused("no"))) && !doubts(None), "another server would say the same");
        }
    }

    #[test]
    fn an_answer_is_heard_from_whoever_gives_it_and_counted_from_the_owner() {
        let silence = [Failure::unknown("no answer"), Failure::unsent("no link")];
        let refusal = Failure::refused("no");
        let of = |of_the_owner, failure: Option<&Failure>| {
            let orders = orders(of_the_owner, failure);
            (orders.is_heard, orders.is_counted)
        };
        assert_eq!((of(true, None), of(false, None)), ((true, true), (true, false)));
        assert_eq!(of(true, Some(&sent_on(2))), (true, true), "it says that the slot is its own");
        assert_eq!(of(false, Some(&sent_on(2))), (true, false));
        assert_eq!(of(true, Some(&moved(Some(place(2))))), (true, false));
        assert_eq!(of(true, Some(&refusal)), (true, false), "it may have looked at nothing");
        for silence in &silence {
            assert_eq!(of(true, Some(silence)), (false, false));
        }
        let (mut trip, owner, mut topology) = asked(true);
        let _changes = topology.merge(&view(2, 2), Time::ZERO);
        let orders = trip.heard(owner, None, &topology);
        assert_eq!((orders.outcome, orders.is_counted), (TripOutcome::Void, false), "it was replaced");
    }

    #[test]
    fn a_request_that_is_sent_on_goes_there_once_and_its_answer_counts_while_the_slot_is_here_or_there() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(owner) = trip.next(&topology) else { panic!("it has an owner") };
        assert_eq!(trip.heard(owner, Some(&sent_on(2)), &topology).outcome, TripOutcome::Again(Duration::ZERO));
        assert_eq!(topology.owner(7), Some(owner), "the slot is not there yet");
        assert_eq!(trip.next(&topology), Step::Ask(owner, place(2)));
        assert_eq!(trip.heard(owner, None, &topology).outcome, TripOutcome::Counts);
        assert!(trip.was_repeated());
        assert_eq!(trip.next(&topology), Step::Send(owner), "it was for one sending");
        // The slot has arrived before the answer is heard.
        let _again = trip.heard(owner, Some(&sent_on(2)), &topology);
        assert_eq!(trip.next(&topology), Step::Ask(owner, place(2)));
        let _changes = topology.merge(&view(2, 2), Time::ZERO);
        assert_eq!(trip.heard(owner, None, &topology).outcome, TripOutcome::Counts);
        // A third server has it.
        let (mut trip, there) = (Trip::new(7), topology.owner(7).unwrap());
        assert_eq!(trip.next(&topology), Step::Send(there));
        let _again = trip.heard(there, Some(&sent_on(1)), &topology);
        assert_eq!(trip.next(&topology), Step::Ask(there, place(1)));
        let _changes = topology.merge(&view(3, 3), Time::ZERO);
        assert_eq!(trip.heard(there, None, &topology).outcome, TripOutcome::Void);
    }

    #[test]
    fn who_was_sent_on_to_a_server_that_knows_nothing_of_it_begins_again() {
        let mut topology = Topology::default();
        let _changes = topology.merge(&view(1, 1), Time::ZERO);
        let mut trip = Trip::new(7);
        let Step::Send(owner) = trip.next(&topology) else { panic!("it has an owner") };
        let _again = trip.heard(owner, Some(&sent_on(2)), &topology);
        assert_eq!(trip.next(&topology), Step::Ask(owner, place(2)));
        assert_eq!(
            trip.heard(owner, Some(&moved(Some(place(1)))), &topology).outcome,
            TripOutcome::Again(Duration::ZERO)
        );
        assert_eq!(trip.next(&topology), Step::Send(owner));
        // The owner was replaced when it sent the request on, so none of that counts.
        let _changes = topology.merge(&view(2, 2), Time::ZERO);
        let TripOutcome::Again(_) = trip.heard(owner, Some(&sent_on(3)), &topology).outcome else {
            panic!("nothing was executed")
        };
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
        assert_eq!(trip.heard(owner, Some(&down), &topology).outcome, TripOutcome::Counts, "it may have happened");
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
