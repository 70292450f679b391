use std::{
    cell::{Cell, RefCell},
    pin::pin,
    rc::Rc,
    task::Waker,
};

use super::*;

/// The outcome that counts as a failure.
const FAILED: usize = 404;

/// An answer that counts its polls, and is ready once it was given.
#[derive(Clone, Default)]
struct Looked {
    /// Whether a pending poll wakes its task at once.
    wakes_itself: bool,
    times: Rc<Cell<usize>>,
    outcome: Rc<Cell<Option<usize>>>,
    waker: Rc<RefCell<Option<Waker>>>,
}

impl Looked {
    fn give(&self, outcome: usize) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Future for Looked {
    type Output = usize;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<usize> {
        self.times.set(self.times.get() + 1);
        *self.waker.borrow_mut() = Some(context.waker().clone());
        if self.wakes_itself {
            context.waker().wake_by_ref();
        }
        self.outcome.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl MayFail for usize {
    fn has_failed(&self) -> bool {
        *self == FAILED
    }
}

fn next(answers: &mut FanOut<Looked>) -> Poll<(usize, usize)> {
    pin!(answers.next()).poll(&mut Context::from_waker(Waker::noop()))
}

fn looks(all: &[Looked]) -> Vec<usize> {
    all.iter().map(|one| one.times.get()).collect()
}

#[tokio::test]
async fn everything_is_sent_before_any_answer_is_told() {
    let all: [Looked; 4] = Default::default();
    for node in [0, 2, 3] {
        all[node].give(7);
    }
    let mut answers: FanOut<Looked> = all.iter().cloned().enumerate().collect();
    assert_eq!(answers.next().await, (0, 7));
    assert_eq!(looks(&all), [1, 1, 1, 1]);
    assert_eq!(answers.next().await, (2, 7));
    let untold: Vec<(usize, bool)> =
        answers.take().map(|(node, untold)| (node, matches!(untold, Unreported::Come(_)))).collect();
    assert_eq!(untold, [(3, true), (1, false)], "one that has arrived, and one that may");
    assert!(answers.is_empty());
}

/// An answer that arrives during its first poll wakes itself too.
#[test]
fn everything_is_sent_before_any_answer_is_told_also_where_answers_wake_themselves() {
    let mut all: [Looked; 5] = Default::default();
    all[0].give(7);
    for node in [1, 2] {
        all[node].wakes_itself = true;
    }
    let mut answers: FanOut<Looked> = all.iter().cloned().enumerate().collect();
    // It yields between two polls.
    let told = (0..5).map(|_| next(&mut answers)).find(Poll::is_ready);
    assert_eq!(told, Some(Poll::Ready((0, 7))));
    assert!(looks(&all).iter().all(|&times| times > 0), "{:?}", looks(&all));
}

#[test]
fn failures_are_told_before_answers_that_come_at_the_same_time() {
    let all: [Looked; 4] = Default::default();
    for (node, outcome) in [(0, 7), (1, FAILED), (2, 8), (3, FAILED)] {
        all[node].give(outcome);
    }
    let mut answers: FanOut<Looked> = all.iter().cloned().enumerate().collect();
    let told = [(); 4].map(|()| next(&mut answers));
    assert_eq!(told, [(1, FAILED), (3, FAILED), (0, 7), (2, 8)].map(Poll::Ready));
}

#[test]
fn what_is_asked_later_is_sent_before_the_next_answer_is_told() {
    let all: [Looked; 3] = Default::default();
    let mut answers: FanOut<Looked> = [(0, all[0].clone())].into_iter().collect();
    assert_eq!(next(&mut answers), Poll::Pending);
    answers.push(1, all[1].clone());
    answers.push(2, all[2].clone());
    all[0].give(7);
    assert_eq!(next(&mut answers), Poll::Ready((0, 7)));
    assert!(looks(&all).iter().all(|&times| times > 0));
}

#[test]
fn only_the_answer_that_has_woken_us_is_looked_at() {
    let all: [Looked; 5] = Default::default();
    let mut answers: FanOut<Looked> = all.iter().cloned().enumerate().collect();
    assert_eq!(next(&mut answers), Poll::Pending);
    all[3].give(7);
    assert_eq!(next(&mut answers), Poll::Ready((3, 7)));
    assert_eq!(next(&mut answers), Poll::Pending);
    all[1].give(8);
    assert_eq!(next(&mut answers), Poll::Ready((1, 8)));
    assert_eq!(looks(&all), [1, 2, 1, 2, 1]);
}

#[test]
fn an_answer_that_has_come_with_another_is_still_to_be_told() {
    let all: [Looked; 2] = Default::default();
    let mut answers: FanOut<Looked> = all.iter().cloned().enumerate().collect();
    for one in &all {
        one.give(7);
    }
    assert_eq!(next(&mut answers), Poll::Ready((0, 7)));
    assert!(!answers.is_empty());
    assert_eq!(next(&mut answers), Poll::Ready((1, 7)));
    assert!(answers.is_empty());
}

#[tokio::test]
async fn a_lone_answer_is_told_and_then_there_is_none() {
    let one = Looked::default();
    let mut answers: FanOut<Looked> = [(4, one.clone())].into_iter().collect();
    assert!(next(&mut answers).is_pending() && !answers.is_empty());
    one.give(7);
    assert_eq!(answers.next().await, (4, 7));
    assert!(answers.is_empty() && next(&mut answers).is_pending());
    answers.push(4, one);
    let untold: Vec<usize> = answers.take().map(|(node, _)| node).collect();
    assert_eq!((untold, answers.is_empty()), (vec![4], true));
}
