//! The queue of one lock, pure: its order, and which of its waiters can still be notified.
//!
//! It knows no lock. [`Store`](super::Store) asks it whose turn it is whenever a lock is given up or polled for.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use super::{
    hash_sorted,
    phase::{Entrant, fits},
};
use crate::{
    hash::HashMap,
    message::{Claim, Poll},
    mode::{self, Mode},
    time::{Micros, micros},
    token::Token,
};

/// A notification to a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notified {
    /// The token has the lock; a poll confirms it.
    Granted {
        /// The channel on which its process listens.
        channel: Arc<str>,
        /// Which of the process's waiters.
        token: Token,
    },
    /// This token comes next, and should poll when the grant before it may have lapsed, or a place that stays has
    /// ended.
    Next {
        /// The channel on which its process listens.
        channel: Arc<str>,
        /// Which of the process's waiters.
        token: Token,
        /// How long until then.
        within: Duration,
    },
}

/// How many marks of processes without a waiter may be kept before useless ones are removed.
const MARKS: usize = 64;

/// How many processes behind the next one are notified of a grant at once, and how many of them have to be left.
const MORE: usize = 12;
const RESERVE: usize = 6;
/// How many waiters are read for that.
const AHEAD: usize = 64;

/// How far processes behind the next one were notified of a grant.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Spread {
    until: Micros,
    /// Enough are notified until this ticket is the next one's.
    enough: u64,
    /// The last ticket that was read.
    last: u64,
}

/// The process of a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process<'a> {
    /// Its channel, which also names it, whether or not it listens there.
    pub name: &'a str,
    /// Whether a notification can reach it. If not, the waiter polls.
    pub hears: bool,
}

/// The waiters whose turn it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Whether a waiter is still ahead of the one that asks.
    pub(super) is_ahead: bool,
    /// The waiters that are admitted, in this order. They are no longer in the queue.
    pub(super) let_in: Vec<Entrant>,
}

/// The waiters of one lock.
///
/// 1. The smallest ticket is first. A new ticket is larger than all in the queue.
/// 2. An unreachable waiter loses its place only when it is its turn, even if it does not fit, or when it is to be
///    notified as the next. So it does not hold up the waiters behind it. A ticket restores the place.
/// 3. A process that says nothing after a grant is passed over once that grant has lapsed. So a stopped process costs
///    the time of a single grant, and so does a killed one that polled. A healthy process may have several grants under
///    way.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct WaitQueue {
    line: BTreeSet<(u64, Token)>,
    waiters: HashMap<Token, QueuedWaiter>,
    /// Until when a silent process counts as alive: for a window after it has spoken, and for a grant after it was
    /// granted something. A process without a mark is alive.
    marks: HashMap<Arc<str>, Micros>,
    spread: Spread,
    expires: Micros,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct QueuedWaiter {
    ticket: u64,
    grant: Duration,
    alive_until: Micros,
    restart_delay: Duration,
    fence_memory: Duration,
    limit: u32,
    process: Arc<str>,
    hears: bool,
}

impl WaitQueue {
    /// Enters a waiter, or renews its place. Returns whether it was not in the queue before.
    pub(super) fn enter(&mut self, now: Micros, poll: &Poll, process: Process<'_>) -> bool {
        let known = self.waiters.get(&poll.claim.token).map(|waiter| waiter.ticket);
        // A clock that went back puts no waiter ahead of earlier ones.
        let last = self.line.last().map_or(0, |&(ticket, _)| ticket);
        let ticket = known.or(poll.ticket).unwrap_or_else(|| now.max(last + 1));
        let Poll { grant, restart_delay, claim: Claim { fence_memory, mode, .. }, .. } = *poll;
        let (Process { name, hears }, alive_until) = (process, now + micros(poll.window));
        let waiter = QueuedWaiter {
            ticket,
            grant,
            alive_until,
            restart_delay,
            fence_memory,
            limit: mode::limit(mode),
            process: name.into(),
            hears,
        };
        self.waiters.insert(poll.claim.token.clone(), waiter);
        self.spoke(now, name, poll.window);
        self.line.insert((ticket, poll.claim.token.clone()))
    }

    /// Removes a token, and notes that its process has spoken.
    pub(super) fn leave(&mut self, now: Micros, token: &Token, process: &str, window: Duration) {
        self.remove(token);
        if self.line.is_empty() {
            self.clear();
        } else {
            self.spoke(now, process, window);
        }
    }

    /// Drops what is not needed without waiters.
    fn clear(&mut self) {
        self.marks.clear();
        self.spread = Spread::default();
    }

    fn spoke(&mut self, now: Micros, process: &str, window: Duration) {
        if self.marks.len() > self.line.len() + MARKS {
            self.marks.retain(|_, until| *until + micros(window) > now);
        }
        self.marks.insert(process.into(), now + micros(window));
        self.expires = now + 2 * micros(window);
    }

    /// Finds whose turn it is on a node that has been `up` for this long, while `count` permits are taken.
    /// `reached` reports whether a channel has a listener. The notifications are added to `told`.
    pub(super) fn promote(
        &mut self,
        me: Option<&Token>,
        (now, up): (Micros, Duration),
        count: u32,
        reached: &dyn Fn(&str) -> bool,
        notified: &mut Vec<Notified>,
    ) -> Turn {
        let (mut count, mut let_in, mut last) = (Some(count), Vec::new(), None);
        let is_ahead = loop {
            let Some(token) = self.head() else {
                self.clear();
                break false;
            };
            // The waiter keeps its place, even if the lock is being released. That may be the replay of a release that
            // the node has forgotten, together with the grant that came after it.
            let Some(waiter) =
                self.waiters.get(&token).filter(|waiter| me != Some(&token) && up >= waiter.restart_delay)
            else {
                break false;
            };
            let (is_there, limit) = (self.reaches(waiter, now, reached), waiter.limit);
            if is_there && !fits(count, limit) {
                break true;
            }
            let Some(waiter) = self.remove(&token).filter(|_| is_there) else { continue };
            if waiter.hears {
                notified.push(Notified::Granted { channel: waiter.process.clone(), token: token.clone() });
            }
            let lapses = now + micros(waiter.grant);
            let mark = self.marks.entry(waiter.process.clone()).or_insert(lapses);
            *mark = lapses.min(*mark);
            count = count.filter(|_| limit > 0).map(|count| count.saturating_add(token.permits().get()));
            let_in.push(Entrant { token, span: waiter.grant, fence_memory: waiter.fence_memory, limit });
            last = Some(waiter);
            if limit == 0 {
                break true;
            }
        };
        if let Some(last) = last {
            self.tell_next(me, &last, now, reached, notified);
        }
        Turn { is_ahead, let_in }
    }

    /// Notifies the next waiter, which should poll when the grant may have lapsed. If it is of the same process, also
    /// notifies the next waiter of another process, wherever that is in the queue.
    fn tell_next(
        &mut self,
        me: Option<&Token>,
        granted: &QueuedWaiter,
        now: Micros,
        reached: &dyn Fn(&str) -> bool,
        notified: &mut Vec<Notified>,
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
                let (channel, token) = (waiter.process.clone(), token.clone());
                notified.push(Notified::Next { channel, token, within: granted.grant });
            }
            if !same {
                let known = vec![granted.process.clone(), waiter.process.clone()];
                let next = (waiter.ticket, token);
                return notified.extend(self.spread(me, &next, known, granted.grant, now, reached));
            }
            told_it = true;
        }
    }

    /// Notifies the first waiters of further processes behind the next one, unless enough have been notified. The one
    /// that was granted the lock and the next one may both be stopped.
    fn spread(
        &mut self,
        me: Option<&Token>,
        next: &(u64, Token),
        mut told: Vec<Arc<str>>,
        grant: Duration,
        now: Micros,
        reached: &dyn Fn(&str) -> bool,
    ) -> Vec<Notified> {
        // A time that is too far ahead is from before the clock was set back.
        let is_fresh = self.spread.until > now && self.spread.until - now <= micros(grant);
        let mut spread =
            if is_fresh { self.spread } else { Spread { until: now + micros(grant) / 10 * 9, ..Spread::default() } };
        let (mut notified, mut tickets) = (Vec::new(), Vec::new());
        if next.0 < spread.enough {
            return notified;
        }
        let from = spread.last.max(next.0);
        let behind = self.line.range((Bound::Excluded(next), Bound::Unbounded)).skip_while(|(at, _)| *at == next.0);
        let mut is_read = false;
        for (ticket, token) in behind.take(AHEAD).skip_while(|(ticket, _)| *ticket <= from) {
            if me == Some(token) || tickets.len() == MORE {
                break;
            }
            (is_read, spread.last) = (true, *ticket);
            let Some(waiter) = self.waiters.get(token) else { continue };
            if told.contains(&waiter.process) || !self.reaches(waiter, now, reached) {
                continue;
            }
            told.push(waiter.process.clone());
            tickets.push(*ticket);
            if waiter.hears {
                let (channel, token) = (waiter.process.clone(), token.clone());
                notified.push(Notified::Next { channel, token, within: grant });
            }
        }
        if is_read {
            let enough = tickets.len().checked_sub(RESERVE).and_then(|at| tickets.get(at));
            self.spread = Spread { enough: enough.copied().unwrap_or(0), ..spread };
        }
        notified
    }

    /// Asks the first waiter, if it listens, to poll after a time.
    pub(super) fn call_first(&self, within: Duration, reached: &dyn Fn(&str) -> bool) -> Option<Notified> {
        let (_, token) = self.line.first()?;
        let waiter = self.waiters.get(token).filter(|waiter| waiter.hears && reached(&waiter.process))?;
        Some(Notified::Next { channel: waiter.process.clone(), token: token.clone(), within })
    }

    /// Asks the first waiter to poll at once, if it is not `first`, which left or was admitted.
    pub(super) fn call_another(&self, first: &Token, reached: &dyn Fn(&str) -> bool) -> Option<Notified> {
        self.head().filter(|head| head != first)?;
        self.call_first(Duration::ZERO, reached)
    }

    fn reaches(&self, waiter: &QueuedWaiter, now: Micros, reached: &dyn Fn(&str) -> bool) -> bool {
        let is_there = if waiter.hears { reached(&waiter.process) } else { waiter.alive_until > now };
        is_there && self.marks.get(&waiter.process).is_none_or(|until| *until > now)
    }

    pub(super) fn head(&self) -> Option<Token> {
        self.line.first().map(|(_, token)| token.clone())
    }

    fn remove(&mut self, token: &Token) -> Option<QueuedWaiter> {
        let waiter = self.waiters.remove(token)?;
        self.line.remove(&(waiter.ticket, token.clone()));
        Some(waiter)
    }

    /// A waiter's ticket, and how many waiters are ahead of it.
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

    /// How a waiter wants the lock.
    pub(super) fn mode(&self, token: &Token) -> Mode {
        self.waiters.get(token).map_or(Mode::Exclusive, |waiter| mode::of_limit(waiter.limit, token.permits()))
    }

    /// Whether the queue need not be kept.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        self.expires <= now || self.line.is_empty() && self.marks.is_empty()
    }
}

impl Hash for WaitQueue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.line, self.spread, self.expires).hash(state);
        hash_sorted(&self.waiters, state);
        hash_sorted(&self.marks, state);
    }
}

#[cfg(test)]
mod tests;
