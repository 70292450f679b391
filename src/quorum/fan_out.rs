//! One request to many nodes, and their answers in the order in which they come.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use crate::node::Failure;

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// The answers that are still to come.
pub(crate) struct FanOut<T, E = Failure> {
    pending: Vec<(usize, Answer<T, E>)>,
}

impl<T, E> FanOut<T, E> {
    pub(crate) fn none() -> Self {
        Self { pending: Vec::new() }
    }

    pub(crate) fn push(&mut self, node: usize, answer: Answer<T, E>) {
        self.pending.push((node, answer));
    }

    /// The next answer, with its node's number; pending for ever when none is left.
    ///
    /// # Cancel safety
    ///
    /// No answer is lost.
    pub(crate) async fn next(&mut self) -> (usize, Result<T, E>) {
        poll_fn(|context| {
            for (at, (node, answer)) in self.pending.iter_mut().enumerate() {
                if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
                    let node = *node;
                    drop(self.pending.swap_remove(at));
                    return Poll::Ready((node, outcome));
                }
            }
            Poll::Pending
        })
        .await
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Those that have not come.
    pub(crate) fn take(&mut self) -> Vec<(usize, Answer<T, E>)> {
        std::mem::take(&mut self.pending)
    }
}

impl<T, E> FromIterator<(usize, Answer<T, E>)> for FanOut<T, E> {
    fn from_iter<I: IntoIterator<Item = (usize, Answer<T, E>)>>(answers: I) -> Self {
        Self { pending: answers.into_iter().collect() }
    }
}
