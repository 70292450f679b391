//! One request to many nodes, and their answers in the order in which they come.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn, ready},
    pin::Pin,
    task::Poll,
};

use leasehold_protocol::failure::Failure;

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// The answers that are still to come.
///
/// # Invariant
///
/// Whatever was asked before an answer is told has been sent by then: a request is sent by the first look at its answer,
/// so every one is looked at before any is told. What is sent after a decision, such as a release of what was acquired,
/// would otherwise overtake it.
pub(crate) struct FanOut<T, E = Failure> {
    pending: Vec<(usize, Answer<T, E>)>,
    come: VecDeque<(usize, Result<T, E>)>,
}

impl<T: Send + 'static, E: Send + 'static> FanOut<T, E> {
    pub(crate) fn none() -> Self {
        Self { pending: Vec::new(), come: VecDeque::new() }
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
            let come = &mut self.come;
            self.pending.retain_mut(|(node, answer)| match answer.as_mut().poll(context) {
                Poll::Ready(outcome) => {
                    come.push_back((*node, outcome));
                    false
                }
                Poll::Pending => true,
            });
            come.pop_front().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.come.is_empty()
    }

    /// Those that have not been told.
    pub(crate) fn take(&mut self) -> Vec<(usize, Answer<T, E>)> {
        let come = self.come.drain(..).map(|(node, outcome)| (node, Box::pin(ready(outcome)) as Answer<T, E>));
        come.chain(self.pending.drain(..)).collect()
    }
}

impl<T: Send + 'static, E: Send + 'static> FromIterator<(usize, Answer<T, E>)> for FanOut<T, E> {
    fn from_iter<I: IntoIterator<Item = (usize, Answer<T, E>)>>(answers: I) -> Self {
        Self { pending: answers.into_iter().collect(), ..Self::none() }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::*;

    #[tokio::test]
    async fn everything_is_sent_before_any_answer_is_told() {
        let sent = Arc::new(AtomicUsize::new(0));
        let ask = |node: usize| {
            let sent = sent.clone();
            let answer: Answer<usize, Failure> = Box::pin(async move {
                sent.fetch_add(1, Ordering::SeqCst);
                if node == 1 { pending().await } else { Ok(node) }
            });
            (node, answer)
        };
        let mut answers: FanOut<usize> = (0..4).map(ask).collect();
        assert!(matches!(answers.next().await, (0, Ok(0))));
        assert_eq!(sent.load(Ordering::SeqCst), 4);
        assert!(matches!(answers.next().await, (2, Ok(2))));
        let nodes: Vec<usize> = answers.take().into_iter().map(|(node, _)| node).collect();
        assert_eq!(nodes, [3, 1], "one that has come, and one that may");
        assert!(answers.is_empty());
    }
}
