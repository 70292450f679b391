//! One request to many nodes, and their answers in the order in which they arrive.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use futures_util::stream::FuturesUnordered;

/// The pending answers of a request to many nodes.
///
/// # Invariants
///
/// 1. Every request made before an answer is reported has been sent by then. The first poll of an answer sends its
///    request, so all answers are polled before any is reported. Otherwise a request after a decision, such as the
///    release of an acquired lock, would overtake it.
/// 2. If failures and other answers are ready at the same time, the failures are reported first. A node that is known
///    to be unreachable fails at the first poll. If the others were reported before it, they might decide without it.
///    It would then count as asked, and would have to be asked to undo.
/// 3. After its first poll, an answer is polled only when it has woken us. The answers of a round arrive one by one,
///    and otherwise each would make us poll all the others.
pub(crate) struct FanOut<A: Future + Unpin> {
    /// The only answer, if there is one: it needs no bookkeeping, and most deployments have one node.
    lone: Option<Numbered<A>>,
    pending: Option<FuturesUnordered<Numbered<A>>>,
    come: VecDeque<(usize, A::Output)>,
}

/// An answer with the number of its node.
struct Numbered<A> {
    node: usize,
    answer: A,
    was_looked_at: bool,
}

impl<A: Future + Unpin> Future for Numbered<A> {
    type Output = (usize, A::Output);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.was_looked_at = true;
        let outcome = ready!(Pin::new(&mut self.answer).poll(context));
        Poll::Ready((self.node, outcome))
    }
}

/// An outcome that may be a failure.
pub(crate) trait MayFail {
    fn has_failed(&self) -> bool;
}

impl<T, E> MayFail for Result<T, E> {
    fn has_failed(&self) -> bool {
        self.is_err()
    }
}

/// An answer that has not been reported.
pub(crate) enum Unreported<A: Future + Unpin> {
    /// It has arrived. `None` once it was reported.
    Come(Option<A::Output>),
    Coming(A),
}

/// The outcome is only ever moved out.
impl<A: Future + Unpin> Unpin for Unreported<A> {}

impl<A: Future + Unpin> Future for Unreported<A> {
    type Output = A::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<A::Output> {
        match &mut *self {
            Self::Come(outcome) => outcome.take().map_or(Poll::Pending, Poll::Ready),
            Self::Coming(answer) => Pin::new(answer).poll(context),
        }
    }
}

impl<A: Future + Unpin> FanOut<A> {
    pub(crate) fn none() -> Self {
        Self { lone: None, pending: None, come: VecDeque::new() }
    }

    pub(crate) fn push(&mut self, node: usize, answer: A) {
        let answer = Numbered { node, answer, was_looked_at: false };
        if self.is_empty() {
            self.lone = Some(answer);
        } else {
            self.pending.get_or_insert_default().extend(self.lone.take().into_iter().chain([answer]));
        }
    }

    /// The next answer, with its node's number; pending for ever when none is left.
    ///
    /// # Cancel safety
    ///
    /// No answer is lost.
    pub(crate) async fn next(&mut self) -> (usize, A::Output)
    where
        A::Output: MayFail,
    {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<(usize, A::Output)>
    where
        A::Output: MayFail,
    {
        if let Some(lone) = &mut self.lone {
            let outcome = ready!(Pin::new(lone).poll(context));
            self.lone = None;
            return Poll::Ready(outcome);
        }
        if let Some(pending) = &mut self.pending {
            while let Poll::Ready(Some(outcome)) = Pin::new(&mut *pending).poll_next(context) {
                self.come.push_back(outcome);
            }
            // `FuturesUnordered` stops early if answers wake themselves, and then has us called again (invariant 1).
            if !pending.iter().all(|answer| answer.was_looked_at) {
                return Poll::Pending;
            }
        }
        // Invariant 2.
        let failed = self.come.iter().position(|(_, outcome)| outcome.has_failed());
        self.come.remove(failed.unwrap_or_default()).map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lone.is_none() && self.pending.as_ref().is_none_or(FuturesUnordered::is_empty) && self.come.is_empty()
    }

    /// Takes the answers that have not been reported.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (usize, Unreported<A>)> + use<A> {
        let come =
            std::mem::take(&mut self.come).into_iter().map(|(node, outcome)| (node, Unreported::Come(Some(outcome))));
        let pending = self.pending.take().into_iter().flatten().chain(self.lone.take());
        come.chain(pending.map(|Numbered { node, answer, .. }| (node, Unreported::Coming(answer))))
    }
}

impl<A: Future + Unpin> FromIterator<(usize, A)> for FanOut<A> {
    fn from_iter<I: IntoIterator<Item = (usize, A)>>(answers: I) -> Self {
        let mut all = Self::none();
        for (node, answer) in answers {
            all.push(node, answer);
        }
        all
    }
}

#[cfg(test)]
mod tests;
