//! Who waits for what, and who is woken. One waiter of a name polls for all of this process; the others stand in line
//! behind it, in order, and cost the server nothing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

use crate::{holder::Holder, key::Key, node::Failure};

mod backoff;

pub(crate) use self::backoff::{Backoff, LONGEST_PAUSE};

/// Every line of one `Leases`, by name.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<Key, (Arc<Line>, Waiters)>>);

/// How many stand in a line.
type Waiters = usize;

/// The waiters of one name.
#[derive(Debug)]
pub(crate) struct Line {
    /// Whose turn it is to ask the server. Tokio's semaphore is first come, first served, and a waiter that goes away
    /// passes it on.
    turn: Semaphore,
    /// Somebody in this process has let go of the lock.
    freed: Notify,
    seen: watch::Sender<Look>,
}

/// What the last look at the server found.
#[derive(Debug, Clone)]
pub(crate) enum Look {
    NotYet,
    Held(Holder),
    Failed(Failure),
}

impl Look {
    /// When the key that was seen expires, if nobody renews it.
    pub(crate) fn expires_in(&self) -> Option<Duration> {
        match self {
            Self::Held(holder) => holder.remaining(),
            Self::NotYet | Self::Failed(_) => None,
        }
    }
}

/// A place in a line; gone when dropped.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    lines: &'a Lines,
    key: Key,
    line: Arc<Line>,
}

impl Lines {
    /// Whether anybody waits for this name: then it is not for a newcomer to ask the server.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.0.lock().contains_key(key)
    }

    pub(crate) fn join(&self, key: &Key) -> Waiter<'_> {
        let mut lines = self.0.lock();
        let (line, waiters) = lines.entry(key.clone()).or_insert_with(|| {
            let line = Line { turn: Semaphore::new(1), freed: Notify::new(), seen: watch::Sender::new(Look::NotYet) };
            (Arc::new(line), 0)
        });
        *waiters += 1;
        let line = line.clone();
        Waiter { lines: self, key: key.clone(), line }
    }

    /// The lock was let go of in this process: whoever's turn it is looks at once.
    pub(crate) fn freed(&self, key: &Key) {
        let line = self.0.lock().get(key).map(|(line, _)| line.clone());
        if let Some(line) = line {
            line.freed.notify_one();
        }
    }
}

impl Waiter<'_> {
    /// Our turn, if nobody is before us.
    pub(crate) fn turn_now(&self) -> Option<SemaphorePermit<'_>> {
        self.line.turn.try_acquire().ok()
    }

    /// Completes when everybody before us has gone.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        match self.line.turn.acquire().await {
            Ok(permit) => permit,
            // Nobody closes it.
            Err(_closed) => std::future::pending().await,
        }
    }

    pub(crate) async fn freed(&self) {
        self.line.freed.notified().await;
    }

    /// Tells everybody in line what a look found.
    pub(crate) fn saw(&self, look: Look) {
        self.line.seen.send_replace(look);
    }

    pub(crate) fn looks(&self) -> watch::Receiver<Look> {
        self.line.seen.subscribe()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.0.lock();
        if let Some((_, waiters)) = lines.get_mut(&self.key) {
            *waiters -= 1;
            if *waiters == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new("", "job").unwrap()
    }

    #[tokio::test]
    async fn the_turn_goes_in_order_and_past_those_who_left() {
        let lines = Lines::default();
        let (first, second, third) = (lines.join(&key()), lines.join(&key()), lines.join(&key()));
        let turn = first.turn().await;
        let mut leaves = Box::pin(second.turn());
        let mut stays = Box::pin(third.turn());
        assert!(futures_now(&mut leaves).is_none() && futures_now(&mut stays).is_none());
        drop(leaves);
        drop(turn);
        let _third_has_it = stays.await;
    }

    #[test]
    fn an_empty_line_leaves_nothing() {
        let lines = Lines::default();
        let (one, two) = (lines.join(&key()), lines.join(&key()));
        drop(one);
        assert!(lines.has(&key()));
        drop(two);
        assert!(!lines.has(&key()));
    }

    #[tokio::test]
    async fn a_release_in_this_process_is_not_lost_on_a_busy_waiter() {
        let lines = Lines::default();
        let waiter = lines.join(&key());
        lines.freed(&key());
        waiter.freed().await;
    }

    fn futures_now<F: std::future::Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
