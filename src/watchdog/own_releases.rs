//! The releases of dropped leases, and the undos of attempts, that this process has under way. An attempt at the same
//! lock waits for them, so that it is not refused because of a token of its own process.
//!
//! # Invariants
//!
//! 1. An attempt begins when a majority of the nodes have nothing of its lock left to take back, of any lease or
//!    attempt. A node that has released the last lease may still have the one before it.
//! 2. On a node that has not voted for the lease yet, its release counts as under way until that vote has arrived and,
//!    if it is a grant, been undone. The release uses the keeper's connection, and may overtake the acquire: the node
//!    then answers that it has nothing, and grants afterwards.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use leasehold_protocol::{hash::HashMap, key::Key, tally::Nodes, token::Token};

use crate::sync::{Mutex, Notify};

/// The releases of each lock that are under way.
#[derive(Debug, Default)]
pub(crate) struct OwnReleases {
    /// The number for all locks. Mostly zero, in which case an acquire need not lock `state`.
    all: AtomicUsize,
    state: Mutex<ReleaseTable>,
}

#[derive(Debug, Default)]
struct ReleaseTable {
    of: HashMap<Key, OfLock>,
    /// The nodes whose vote for a lease is still to come.
    votes: HashMap<Token, Nodes>,
}

#[derive(Debug, Default)]
struct OfLock {
    /// The number under way on each node. There may be thousands, of waiters that were cancelled at once.
    counts: Vec<usize>,
    /// The releases that end with the vote for a lease.
    with_votes: Vec<UnderWay>,
    /// Notifies of the end of the last one on a node. Present once something waits for that.
    ended: Option<Arc<Notify>>,
}

#[derive(Debug, PartialEq, Eq)]
struct UnderWay {
    node: usize,
    /// Ends with the vote for this lease.
    vote: Option<Token>,
}

/// One release under way on one node, until it is dropped.
#[derive(Debug)]
pub(crate) struct OwnRelease {
    releases: Arc<OwnReleases>,
    key: Key,
    node: usize,
}

/// A vote that arrives after its lease was won. Dropped once it has arrived and, if necessary, been undone.
#[derive(Debug)]
pub(crate) struct LateVote {
    releases: Arc<OwnReleases>,
    key: Key,
    token: Token,
    node: usize,
}

impl OwnReleases {
    pub(crate) fn begin(self: &Arc<Self>, key: &Key, node: usize) -> OwnRelease {
        self.state.lock().begins(key, UnderWay { node, vote: None });
        self.all.fetch_add(1, Ordering::AcqRel);
        OwnRelease { releases: self.clone(), key: key.clone(), node }
    }

    /// Notes that this node has not voted yet for a lease that is won.
    pub(crate) fn vote_to_come(self: &Arc<Self>, key: &Key, token: &Token, node: usize) -> LateVote {
        self.state.lock().votes.entry(token.clone()).or_insert(Nodes::NONE).insert(node);
        LateVote { releases: self.clone(), key: key.clone(), token: token.clone(), node }
    }

    /// Begins the release of a dropped lease on each node whose vote is pending, where it ends with that vote
    /// (invariant 2). Returns whether any vote is pending.
    pub(crate) fn begin_with_votes(&self, key: &Key, token: &Token) -> bool {
        let mut state = self.state.lock();
        let votes = state.votes.get(token).copied().unwrap_or(Nodes::NONE);
        for node in votes.iter() {
            state.begins(key, UnderWay { node, vote: Some(token.clone()) });
            self.all.fetch_add(1, Ordering::AcqRel);
        }
        !votes.is_empty()
    }

    /// Completes when releases of this lock are under way on at most `few` nodes.
    pub(crate) async fn over(&self, key: &Key, few: usize) {
        loop {
            let ended = self.state.lock().more_than(few, key);
            let Some(ended) = ended else { return };
            ended.await;
        }
    }

    /// Whether releases of this lock are under way on more than `few` nodes.
    pub(crate) fn are_on_more_than(&self, few: usize, key: &Key) -> bool {
        self.all.load(Ordering::Acquire) > 0 && self.state.lock().more_than(few, key).is_some()
    }

    fn one_is_over(&self, ended: Option<&Notify>) {
        self.all.fetch_sub(1, Ordering::AcqRel);
        if let Some(ended) = ended {
            ended.notify_waiters();
        }
    }
}

impl ReleaseTable {
    fn begins(&mut self, key: &Key, one: UnderWay) {
        let OfLock { counts, with_votes, .. } = self.of.entry(key.clone()).or_default();
        counts.resize(counts.len().max(one.node + 1), 0);
        counts.iter_mut().skip(one.node).take(1).for_each(|count| *count += 1);
        if one.vote.is_some() {
            with_votes.push(one);
        }
    }

    /// Ends a release. Returns `None` if it was not under way; otherwise, if it was the last one on its node, the
    /// notifier of the attempts that wait for it.
    fn ends(&mut self, key: &Key, one: &UnderWay) -> Option<Option<Arc<Notify>>> {
        let of_lock = self.of.get_mut(key)?;
        if one.vote.is_some() {
            let at = of_lock.with_votes.iter().position(|other| other == one)?;
            of_lock.with_votes.swap_remove(at);
        }
        let count = of_lock.counts.get_mut(one.node).filter(|count| **count > 0)?;
        *count -= 1;
        let ended = if *count == 0 { of_lock.ended.clone() } else { None };
        if of_lock.counts.iter().all(|count| *count == 0) {
            self.of.remove(key);
        }
        Some(ended)
    }

    /// The next end of a release of this lock, if they are under way on more than `few` nodes.
    fn more_than(&mut self, few: usize, key: &Key) -> Option<impl Future<Output = ()> + use<>> {
        let of_lock = self.of.get_mut(key)?;
        let nodes = of_lock.counts.iter().filter(|count| **count > 0).count();
        // Created in the same step as the check, so it is notified of every later end.
        (nodes > few).then(|| of_lock.ended.get_or_insert_default().clone().notified_owned())
    }
}

impl Drop for OwnRelease {
    fn drop(&mut self) {
        let one = UnderWay { node: self.node, vote: None };
        let ended = self.releases.state.lock().ends(&self.key, &one).flatten();
        self.releases.one_is_over(ended.as_deref());
    }
}

impl Drop for LateVote {
    fn drop(&mut self) {
        let Self { releases, key, token, node } = self;
        let mut state = releases.state.lock();
        if let Some(votes) = state.votes.get_mut(token) {
            votes.remove(*node);
            if votes.is_empty() {
                state.votes.remove(token);
            }
        }
        let ended = state.ends(key, &UnderWay { node: *node, vote: Some(token.clone()) });
        drop(state);
        if let Some(ended) = ended {
            releases.one_is_over(ended.as_deref());
        }
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Wake, Waker},
    };

    use super::*;

    fn is_any(releases: &OwnReleases) -> bool {
        releases.all.load(Ordering::Acquire) > 0
    }

    /// For a quorum of three.
    fn is_over(releases: &OwnReleases, key: &Key) -> bool {
        pin!(releases.over(key, 1)).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn it_is_over_when_a_majority_has_released() {
        let (releases, [key, other]) = (Arc::<OwnReleases>::default(), ["job", "other"].map(Key::of_lock));
        let [one, two, three] = [0, 1, 2].map(|node| releases.begin(&key, node));
        drop(one);
        assert!(!is_over(&releases, &key) && is_over(&releases, &other));
        drop(three);
        assert!(is_over(&releases, &key) && is_any(&releases));
        drop(two);
        assert!(is_over(&releases, &key) && !is_any(&releases) && releases.state.lock().of.is_empty());
    }

    #[test]
    fn the_end_of_one_wakes_those_who_wait_for_its_lock_and_nobody_else() {
        #[derive(Default)]
        struct Woken(AtomicUsize);

        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let (releases, [key, other]) = (Arc::<OwnReleases>::default(), ["job", "other"].map(Key::of_lock));
        let [one, two] = [&key, &other].map(|key| releases.begin(key, 0));
        let woken = Arc::<Woken>::default();
        let mut over = pin!(releases.over(&key, 0));
        assert!(over.as_mut().poll(&mut Context::from_waker(&woken.clone().into())).is_pending());
        drop(two);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        drop(one);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(over.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[test]
    fn a_majority_that_released_one_lease_is_not_enough_while_nodes_have_others() {
        let (releases, key) = (Arc::<OwnReleases>::default(), Key::of_lock("job"));
        let before = releases.begin(&key, 1);
        let [one, two, three] = [0, 1, 2].map(|node| releases.begin(&key, node));
        drop((one, two));
        // The second node still has the earlier lease, and the third the last one.
        let mut over = pin!(releases.over(&key, 1));
        assert!(over.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(before);
        assert!(over.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        drop(three);
        assert!(!is_any(&releases));
    }

    #[test]
    fn a_release_is_not_over_on_a_node_that_may_still_grant_the_lease() {
        let (releases, key) = (Arc::<OwnReleases>::default(), Key::of_lock("job"));
        let [one, other] = ["host:7", "host:8"].map(crate::random::token);
        let vote = releases.vote_to_come(&key, &one, 2);
        assert!(!is_any(&releases), "the lease is held");
        assert!(!releases.begin_with_votes(&key, &other) && releases.begin_with_votes(&key, &one));
        let [first, second, third] = [0, 1, 2].map(|node| releases.begin(&key, node));
        // The third has answered that it has nothing, and the first that it has nothing any more.
        drop((first, third));
        assert!(!is_over(&releases, &key));
        drop(vote);
        assert!(is_over(&releases, &key));
        drop(second);
        let state = releases.state.lock();
        assert!(!is_any(&releases) && state.of.is_empty() && state.votes.is_empty());
    }

    #[test]
    fn a_vote_that_comes_while_the_lease_is_held_leaves_nothing() {
        let (releases, key, token) =
            (Arc::<OwnReleases>::default(), Key::of_lock("job"), crate::random::token("host:7"));
        drop([1, 2].map(|node| releases.vote_to_come(&key, &token, node)));
        assert!(!releases.begin_with_votes(&key, &token) && !is_any(&releases));
        assert!(releases.state.lock().votes.is_empty());
    }
}
