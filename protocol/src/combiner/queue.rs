//! The requests that wait for a flight, in the order in which they arrived.
//!
//! An acquire can be withdrawn from any place in the queue. In a long queue that takes no search, because all requests
//! may be cancelled together when a server is away.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::Want;
use crate::{time::Time, token::Token};

/// A queue of at most this many entries is searched. A longer one keeps the places of its acquires.
const FEW: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Waiting<T> {
    pub(super) want: Want,
    pub(super) caller: T,
    pub(super) until: Time,
    pub(super) limit: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Queue<T> {
    /// `None` where an entry was withdrawn; never at the front, nor in most places of a long queue.
    entries: VecDeque<Option<Waiting<T>>>,
    /// How many entries are `None`.
    holes: usize,
    /// The weight of all entries together, in bytes.
    weight: usize,
    /// The number of the first entry. It increases while places are kept.
    first: usize,
    /// The numbers of acquires. Acquires that have left may still be listed.
    places: BTreeMap<Token, usize>,
    /// Entries before this number are listed in `places`.
    placed: usize,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), holes: 0, weight: 0, first: 0, places: BTreeMap::new(), placed: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.holes
    }

    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn push(&mut self, waiting: Waiting<T>) {
        self.weight += waiting.want.weight();
        self.entries.push_back(Some(waiting));
    }

    pub(super) fn front(&self) -> Option<&Waiting<T>> {
        self.entries.front()?.as_ref()
    }

    pub(super) fn pop(&mut self) -> Option<Waiting<T>> {
        let waiting = self.entries.front_mut()?.take();
        self.left(waiting.as_ref());
        waiting
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting<T>> {
        self.entries.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiting<T>> {
        self.entries.iter_mut().flatten()
    }

    /// Removes the entries for which `goes` is true, and returns them in order.
    pub(super) fn remove(&mut self, goes: impl Fn(&Waiting<T>) -> bool) -> Vec<Waiting<T>> {
        self.forget_places();
        self.holes = 0;
        let all = std::mem::take(&mut self.entries).into_iter().flatten();
        let (gone, stays): (Vec<_>, Vec<_>) = all.partition(goes);
        self.entries = stays.into_iter().map(Some).collect();
        self.weight -= gone.iter().map(|gone| gone.want.weight()).sum::<usize>();
        gone
    }

    /// Removes the acquire of this token.
    pub(super) fn withdraw(&mut self, token: &Token) -> Option<Waiting<T>> {
        let at = if self.entries.len() <= FEW {
            self.forget_places();
            self.entries.iter().rposition(|waiting| waiting.as_ref().and_then(acquires) == Some(token))
        } else {
            self.keep_places();
            self.places.remove(token).and_then(|number| number.checked_sub(self.first))
        };
        let waiting = self.entries.get_mut(at?)?.take();
        self.left(waiting.as_ref());
        waiting
    }

    /// Updates the queue after an entry was taken out.
    fn left(&mut self, waiting: Option<&Waiting<T>>) {
        let Some(waiting) = waiting else { return };
        self.weight -= waiting.want.weight();
        self.holes += 1;
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.holes -= 1;
            self.first += usize::from(self.placed > 0);
        }
        if self.entries.is_empty() {
            self.forget_places();
        } else if self.holes > FEW.max(self.entries.len() / 2) {
            self.entries.retain(Option::is_some);
            self.holes = 0;
            self.forget_places();
        }
    }

    fn keep_places(&mut self) {
        if self.places.len() > 2 * self.entries.len() {
            self.places.retain(|_, number| *number >= self.first);
        }
        let end = self.first + self.entries.len();
        let skipped = self.placed.saturating_sub(self.first);
        for (number, waiting) in (self.first + skipped..).zip(self.entries.iter().skip(skipped)) {
            if let Some(token) = waiting.as_ref().and_then(acquires) {
                self.places.insert(token.clone(), number);
            }
        }
        self.placed = end;
    }

    fn forget_places(&mut self) {
        (self.first, self.placed) = (0, 0);
        self.places.clear();
    }
}

fn acquires<T>(waiting: &Waiting<T>) -> Option<&Token> {
    match &waiting.want {
        Want::Acquire(request) => Some(&request.claim.token),
        Want::Release(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        key::Key,
        message::{AcquireRequest, Claim},
        mode::Mode,
    };

    fn waiting(token: &Token) -> Waiting<()> {
        let (ttl, fence_memory) = (Duration::from_secs(1), Duration::ZERO);
        let claim = Claim {
            key: Key::of_lock("job"),
            token: token.clone(),
            mode: Mode::Exclusive,
            ttl,
            life: ttl,
            fence_memory,
            fence: None,
        };
        let want = Want::Acquire(AcquireRequest { claim, voting: None, heir_of: None });
        Waiting { want, caller: (), until: Time::NEVER, limit: ttl }
    }

    fn tokens(queue: &Queue<()>) -> Vec<Token> {
        queue.iter().filter_map(acquires).cloned().collect()
    }

    proptest! {
        /// The others keep their order, however many are taken out, and from whatever places.
        #[test]
        fn it_is_a_queue_of_which_some_are_withdrawn(steps in prop::collection::vec((0..8_u8, any::<usize>()), 0..300)) {
            let (mut queue, mut gone) = (Queue::new(), vec![Token::random("")]);
            // Enough entries that most steps find places kept, with holes among them.
            let mut model: VecDeque<_> = (0..200).map(|_| Token::random("")).collect();
            for token in &model {
                queue.push(waiting(token));
            }
            for (step, which) in steps {
                match step {
                    0 => {
                        let first = model.pop_front();
                        gone.extend(first.clone());
                        let popped = queue.pop();
                        prop_assert_eq!(popped.as_ref().and_then(acquires), first.as_ref());
                    }
                    1 | 4 => for turn in 0..u32::try_from((which % 8).min(model.len())).unwrap() {
                        let token = model.remove(which.rotate_left(7 * turn) % model.len()).unwrap();
                        let withdrawn = queue.withdraw(&token);
                        prop_assert_eq!(withdrawn.as_ref().and_then(acquires), Some(&token));
                        gone.push(token);
                    }
                    2 => prop_assert_eq!(queue.withdraw(&gone[which % gone.len()]), None),
                    3 if which % 16 == 0 => {
                        let goes = |waiting: &Waiting<()>| acquires(waiting).is_some_and(|token| token.as_str().as_bytes()[39] % 2 == 0);
                        let (even, odd): (Vec<_>, Vec<_>) = model.drain(..).partition(|token| goes(&waiting(token)));
                        prop_assert_eq!(queue.remove(goes).len(), even.len());
                        (gone, model) = ([gone, even].concat(), odd.into());
                    }
                    _ => for _ in 0..which % 8 {
                        let token = Token::random("");
                        queue.push(waiting(&token));
                        model.push_back(token);
                    }
                }
                prop_assert_eq!(&tokens(&queue), model.make_contiguous());
                prop_assert_eq!(queue.front().and_then(acquires), model.front());
                prop_assert_eq!(queue.weight(), model.iter().map(|token| waiting(token).want.weight()).sum::<usize>());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
                prop_assert!(queue.entries.len() <= 2 * model.len() + FEW + 1, "{} for {}", queue.entries.len(), model.len());
                prop_assert!(queue.places.len() <= 2 * queue.entries.len().max(FEW) + 64);
            }
        }
    }

    #[test]
    fn of_many_the_places_are_kept() {
        let (mut queue, all) = (Queue::new(), (0..1_000).map(|_| Token::random("")).collect::<Vec<_>>());
        for token in &all {
            queue.push(waiting(token));
        }
        assert!(queue.places.is_empty(), "nothing is withdrawn: nobody pays for it");
        let mut kept = 0;
        // From both ends, so that those in the middle are the last.
        for (place, (one, other)) in all.iter().zip(all.iter().rev()).take(all.len() / 2).enumerate() {
            assert!(queue.withdraw(other).is_some() && queue.withdraw(one).is_some());
            let (left, known) = (all.len() - 2 * (place + 1), queue.places.len());
            assert!([0, left].contains(&known), "{known} of {left}: all that wait, and no others");
            kept += usize::from(known > 0);
        }
        assert!(queue.is_empty() && kept > 400, "few are searched: {kept}");
    }
}
