//! One request to many nodes, and their answers in the order in which they come.

use std::{future::poll_fn, task::Poll};

use crate::node::{Answer, Failure};

/// The answers that are still to come.
pub(crate) struct FanOut<T> {
    pending: Vec<(usize, Answer<T>)>,
}

impl<T> FanOut<T> {
    pub(crate) fn none() -> Self {
        Self { pending: Vec::new() }
    }

    pub(crate) fn push(&mut self, node: usize, answer: Answer<T>) {
        self.pending.push((node, answer));
    }

    /// The next answer, with its node's number; pending for ever when none is left.
    ///
    /// # Cancel safety
    ///
    /// No answer is lost.
    pub(crate) async fn next(&mut self) -> (usize, Result<T, Failure>) {
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
    pub(crate) fn take(&mut self) -> Vec<(usize, Answer<T>)> {
        std::mem::take(&mut self.pending)
    }
}

impl<T> FromIterator<(usize, Answer<T>)> for FanOut<T> {
    fn from_iter<I: IntoIterator<Item = (usize, Answer<T>)>>(answers: I) -> Self {
        Self { pending: answers.into_iter().collect() }
    }
}
