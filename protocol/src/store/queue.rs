//! The queue of one lock, pure: its order, and which of its waiters can still be notified.
//!
//! It knows no lock. [`Store`](super::store::Store) asks it whose turn it is whenever a lock is free, or about to be.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use crate::{
    message::{Claim, Poll},
    time::{Micros, micros},
    token::Token,
};

/// A notification to a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The lock is this token's; a poll confirms it.
    Granted {
        /// Where its process listens.
        channel: Arc<str>,
        /// Which of its waiters.
        token: Token,
    },
    /// This token comes next, and should poll when the grant before it may have lapsed.
    Next {
        /// Where its process listens.
        channel: Arc<str>,
        /// Which of its waiters.
        token: Token,
        /// How long until the grant before it lapses.
        within: Duration,
    },
}

/// The process of a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process<'a> {
    /// Its channel, which also names it, whether or not it listens there.
    pub name: &'a str,
    /// Whether a notification can reach it. If not, it polls.
    pub hears: bool,
}

/// The one whose turn it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Mine,
    Nobodys,
    /// This waiter, which is no longer in the queue.
    Granted {
        token: Token,
        grant: Duration,
        fence_memory: Duration,
    },
}

/// The waiters of one lock.
///
/// 1. The smallest ticket is first. A new ticket is larger than all in the queue.
/// 2. An unreachable waiter loses its place only when it is its turn, or when it is to be notified as the next. Its
///    ticket restores the place.
/// 3. A process has at most one unconfirmed grant. So a stopped process costs a single grant, and so does a killed one
///    that polled.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Queue {
    line: BTreeSet<(u64, Token)>,
    waiters: HashMap<Token, Waiter>,
    /// The processes that were granted the lock and have not said anything since.
    unconfirmed: HashSet<Arc<str>>,
    expires: Micros,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiter {
    ticket: u64,
    grant: Duration,
    alive_until: Micros,
    restart_delay: Duration,
    fence_memory: Duration,
    process: Arc<str>,
    hears: bool,
}

impl Queue {
    /// Enters a waiter, or renews its place. Returns whether it was not there before.
    pub(super) fn enter(&mut self, now: Micros, poll: &Poll, process: Process<'_>) -> bool {
        self.unconfirmed.remove(process.name);
        let window = micros(poll.window);
        self.expires = now + 2 * window;
        let known = self.waiters.get(&poll.claim.token).map(|waiter| waiter.ticket);
        // A clock that went back puts nobody before those who came first.
        let last = self.line.last().map_or(0, |&(ticket, _)| ticket);
        let ticket = known.or(poll.ticket).unwrap_or_else(|| now.max(last + 1));
        let Poll { grant, restart_delay, claim: Claim { fence_memory, .. }, .. } = *poll;
        let (Process { name, hears }, alive_until) = (process, now + window);
        let waiter = Waiter { ticket, grant, alive_until, restart_delay, fence_memory, process: name.into(), hears };
        self.waiters.insert(poll.claim.token.clone(), waiter);
        self.line.insert((ticket, poll.claim.token.clone()))
    }

    /// Takes a token out; its process has said something.
    pub(super) fn leave(&mut self, token: &Token, process: &str) {
        self.remove(token);
        self.unconfirmed.remove(process);
    }

    /// Finds whose turn it is on a node that has been `up` for this long. `reached` tells whether somebody listens on a
    /// channel. The notifications are added to `told`.
    pub(super) fn promote(
        &mut self,
        me: Option<&Token>,
        now: Micros,
        up: Duration,
        reached: &dyn Fn(&str) -> bool,
        told: &mut Vec<Told>,
    ) -> Turn {
        while let Some(token) = self.head() {
            if me == Some(&token) {
                return Turn::Mine;
            }
            // It keeps its place, even if the lock is being released: that may be the replay of a release. The node may
            // have forgotten that release, and the grant that came after it.
            if self.waiters.get(&token).is_some_and(|waiter| up < waiter.restart_delay) {
                return Turn::Nobodys;
            }
            let Some(waiter) = self.remove(&token).filter(|waiter| self.reaches(waiter, now, reached)) else {
                continue;
            };
            if waiter.hears {
                told.push(Told::Granted { channel: waiter.process.clone(), token: token.clone() });
            }
            // Before the process is marked: the mark keeps grants from it, but not this notification.
            self.tell_next(me, &waiter, now, reached, told);
            self.unconfirmed.insert(waiter.process);
            return Turn::Granted { token, grant: waiter.grant, fence_memory: waiter.fence_memory };
        }
        Turn::Nobodys
    }

    /// Notifies the next waiter, which should poll when the grant may have lapsed. If it is of the same process,
    /// notifies the next of another process too, at whatever place.
    fn tell_next(
        &mut self,
        me: Option<&Token>,
        granted: &Waiter,
        now: Micros,
        reached: &dyn Fn(&str) -> bool,
        told: &mut Vec<Told>,
    ) {
        let mut told_it = false;
        let mut place = self.line.first().cloned();
        while let Some(at) = place {
            place = self.line.range((Bound::Excluded(&at), Bound::Unbounded)).next().cloned();
            let (_, token) = at;
            if me == Some(&token) {
                return;
            }
            let Some(waiter) = self.waiters.get(&token) else { continue };
            let same = waiter.process == granted.process;
            if same && told_it {
                continue;
            }
            if !self.reaches(waiter, now, reached) {
                self.remove(&token);
                continue;
            }
            if waiter.hears {
                told.push(Told::Next { channel: waiter.process.clone(), token, within: granted.grant });
            }
            if !same {
                return;
            }
            told_it = true;
        }
    }

    fn reaches(&self, waiter: &Waiter, now: Micros, reached: &dyn Fn(&str) -> bool) -> bool {
        let is_there = if waiter.hears { reached(&waiter.process) } else { waiter.alive_until > now };
        is_there && !self.unconfirmed.contains(&waiter.process)
    }

    fn head(&self) -> Option<Token> {
        self.line.first().map(|(_, token)| token.clone())
    }

    fn remove(&mut self, token: &Token) -> Option<Waiter> {
        let waiter = self.waiters.remove(token)?;
        self.line.remove(&(waiter.ticket, token.clone()));
        Some(waiter)
    }

    /// A waiter's ticket, and how many are before it.
    pub(super) fn place(&self, token: &Token) -> Option<(u64, usize)> {
        let ticket = self.waiters.get(token)?.ticket;
        Some((ticket, self.line.range(..(ticket, token.clone())).count()))
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    /// The tokens and their tickets, the first one first.
    pub(super) fn line(&self) -> impl Iterator<Item = (&Token, u64)> {
        self.line.iter().map(|(ticket, token)| (token, *ticket))
    }

    /// Whether nothing of it needs to be kept.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        self.expires <= now || self.line.is_empty() && self.unconfirmed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fence, key::Key};

    const MINUTE: Micros = 60_000_000;

    fn poll(token: &Token) -> Poll {
        Poll {
            claim: Claim {
                key: Key::new("", "job").unwrap(),
                token: token.clone(),
                ttl: Duration::from_secs(30),
                fence: None,
                fence_memory: fence::MEMORY,
            },
            ticket: None,
            grant: Duration::from_secs(1),
            window: Duration::from_secs(60),
            enter: true,
            restart_delay: Duration::ZERO,
        }
    }

    fn hears(name: &str) -> Process<'_> {
        Process { name, hears: true }
    }

    fn polls(name: &str) -> Process<'_> {
        Process { name, hears: false }
    }

    fn tokens<const N: usize>() -> [Token; N] {
        std::array::from_fn(|n| Token::draw(&n.to_string()))
    }

    fn turn(queue: &mut Queue, now: Micros, silent: &str) -> (Option<Token>, Vec<Told>) {
        let mut told = Vec::new();
        match queue.promote(None, now, Duration::ZERO, &|channel| channel != silent, &mut told) {
            Turn::Granted { token, .. } => (Some(token), told),
            Turn::Mine | Turn::Nobodys => (None, told),
        }
    }

    #[test]
    fn a_clock_that_goes_back_changes_no_order() {
        let (mut queue, [a, b, c]) = (Queue::default(), tokens());
        assert!(queue.enter(10 * MINUTE, &poll(&a), hears("a")));
        assert!(queue.enter(5 * MINUTE, &poll(&b), hears("b")));
        assert!(!queue.enter(6 * MINUTE, &poll(&a), hears("a")), "it was there before");
        assert!(queue.enter(7 * MINUTE, &poll(&c), hears("c")));
        let line: Vec<_> = queue.line().collect();
        assert_eq!(line, [(&a, 10 * MINUTE), (&b, 10 * MINUTE + 1), (&c, 10 * MINUTE + 2)]);
        assert_eq!(queue.place(&c), Some((10 * MINUTE + 2, 2)));
    }

    #[test]
    fn a_ticket_gives_a_lost_place_back() {
        let (mut queue, [a, b]) = (Queue::default(), tokens());
        queue.enter(1, &poll(&a), hears("a"));
        queue.enter(2, &poll(&b), hears("b"));
        queue.leave(&a, "a");
        queue.enter(3, &Poll { ticket: Some(1), ..poll(&a) }, hears("a"));
        queue.enter(4, &Poll { ticket: Some(9), ..poll(&a) }, hears("a"));
        assert_eq!(queue.line().collect::<Vec<_>>(), [(&a, 1), (&b, 2)], "one place for each, the one it has");
    }

    #[test]
    fn who_cannot_be_reached_is_passed_over() {
        let (mut queue, [dead, poller, alive, next]) = (Queue::default(), tokens());
        queue.enter(1, &poll(&dead), hears("dead"));
        queue.enter(2, &Poll { window: Duration::ZERO, ..poll(&poller) }, polls("poller"));
        queue.enter(3, &poll(&alive), hears("alive"));
        queue.enter(4, &poll(&next), hears("next"));
        let within = Duration::from_secs(1);
        let expected = vec![
            Told::Granted { channel: "alive".into(), token: alive.clone() },
            Told::Next { channel: "next".into(), token: next, within },
        ];
        assert_eq!(turn(&mut queue, 5, "dead"), (Some(alive), expected));
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn a_poller_that_is_alive_gets_its_turn_and_no_message() {
        let (mut queue, [a, b, c]) = (Queue::default(), tokens());
        for (token, name) in [(&a, "poller"), (&b, "another")] {
            queue.enter(1, &poll(token), polls(name));
        }
        queue.enter(1, &poll(&c), hears("c"));
        assert_eq!(turn(&mut queue, MINUTE, ""), (Some(a), vec![]));
        assert_eq!(turn(&mut queue, 2 * MINUTE, "").0, Some(c), "the other one was not heard of for its window");
    }

    #[test]
    fn a_process_that_says_nothing_costs_one_grant() {
        let (mut queue, [s1, s2, s3, a]) = (Queue::default(), tokens());
        for token in [&s1, &s2, &s3] {
            queue.enter(1, &poll(token), hears("stopped"));
        }
        queue.enter(1, &poll(&a), hears("a"));
        assert_eq!(turn(&mut queue, 2, "").0, Some(s1));
        assert_eq!(turn(&mut queue, 3, "").0, Some(a));
        assert_eq!((turn(&mut queue, 4, "").0, queue.len()), (None, 0));
        assert!(!queue.is_over(5), "the mark is kept");

        queue.enter(5, &Poll { ticket: Some(1), ..poll(&s2) }, hears("stopped"));
        assert_eq!(turn(&mut queue, 6, "").0, Some(s2), "it has said something");
        queue.leave(&s3, "stopped");
        queue.leave(&s3, "a");
        assert!(queue.is_over(7));
    }

    #[test]
    fn a_process_that_polls_costs_one_grant_and_is_granted_to_again_once_it_says_something() {
        let (mut queue, [s1, s2, s3, a]) = (Queue::default(), tokens());
        for token in [&s1, &s2, &s3] {
            queue.enter(1, &poll(token), polls("killed"));
        }
        queue.enter(1, &poll(&a), polls("a"));
        assert_eq!(turn(&mut queue, 2, "").0, Some(s1));
        queue.enter(3, &poll(&s3), polls("killed"));
        assert_eq!(turn(&mut queue, 4, "").0, Some(s2), "it lives");
        assert_eq!(turn(&mut queue, 5, "").0, Some(a), "it does not any more");
    }

    #[test]
    fn the_first_of_another_process_is_notified_at_whatever_place() {
        let (mut queue, all, other) = (Queue::default(), tokens::<100>(), Token::draw("other"));
        for token in &all {
            queue.enter(1, &poll(token), hears("many"));
        }
        queue.enter(1, &poll(&other), hears("other"));
        let within = Duration::from_secs(1);
        let expected = vec![
            Told::Granted { channel: "many".into(), token: all[0].clone() },
            Told::Next { channel: "many".into(), token: all[1].clone(), within },
            Told::Next { channel: "other".into(), token: other, within },
        ];
        assert_eq!(turn(&mut queue, 2, ""), (Some(all[0].clone()), expected));
    }

    #[test]
    fn the_head_that_asks_is_told_that_it_is_its_turn() {
        let (mut queue, [a, b]) = (Queue::default(), tokens());
        queue.enter(1, &poll(&a), hears("gone"));
        queue.enter(1, &poll(&b), hears("gone"));
        let mut told = Vec::new();
        assert_eq!(queue.promote(Some(&b), 2, Duration::ZERO, &|_| false, &mut told), Turn::Mine);
        assert_eq!((queue.len(), told), (1, vec![]));
    }

    #[test]
    fn a_poller_is_alive_for_its_window_and_the_queue_for_two() {
        for (now, is_alive) in [(MINUTE + 4, true), (MINUTE + 5, false)] {
            let (mut queue, [a]) = (Queue::default(), tokens());
            queue.enter(5, &poll(&a), polls("poller"));
            assert_eq!(turn(&mut queue, now, "").0, is_alive.then_some(a), "{now}");
        }
        let (mut queue, [a]) = (Queue::default(), tokens());
        queue.enter(5, &poll(&a), hears("a"));
        assert!(!queue.is_over(2 * MINUTE + 4) && queue.is_over(2 * MINUTE + 5));
    }
}
