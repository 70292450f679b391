//! Answers that no caller waits for any more: those of nodes that were slower than the majority.
//!
//! Each has to be awaited to its end, but not at once: waking the keeper for every one of them would cost more than the
//! acquires do. So they are gathered for a moment, and then awaited on the keeper.

use std::{
    future::Future,
    mem::take,
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use crate::{
    keeper::Host,
    sync::{Mutex, catching_panics},
};

const GATHER: Duration = Duration::from_millis(20);

type LateReply = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The replies that are still awaited.
pub(crate) struct LateReplies {
    host: Host,
    gathered: Mutex<Vec<LateReply>>,
}

impl LateReplies {
    pub(super) fn new(host: Host) -> Arc<Self> {
        Arc::new(Self { host, gathered: Mutex::default() })
    }

    /// Awaits this one to its end. It must be bounded.
    pub(crate) fn hear(self: &Arc<Self>, late_reply: impl Future<Output = ()> + Send + 'static) {
        let mut gathered = self.gathered.lock();
        gathered.push(Box::pin(late_reply));
        if gathered.len() > 1 {
            return;
        }
        drop(gathered);
        let late_replies = self.clone();
        self.host.spawn(async move {
            late_replies.host.sleep(GATHER).await;
            // There may be more of them than tokio lets a task poll.
            tokio::task::unconstrained(async { late_replies.hear_gathered() }).await;
        });
    }

    /// Awaits the gathered replies without gathering more, because an acquire waits for one of them.
    pub(super) fn hear_now(&self) {
        let gathered = take(&mut *self.gathered.lock());
        for late_reply in gathered {
            self.host.spawn(late_reply);
        }
    }

    /// Polls the gathered replies. Most have arrived by now; only the others need a task that waits.
    fn hear_gathered(&self) {
        let gathered = take(&mut *self.gathered.lock());
        for mut late_reply in gathered {
            let mut poll = || late_reply.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            // One that panicked must not be polled again.
            if !catching_panics(&mut poll).unwrap_or(true) {
                self.host.spawn(late_reply);
            }
        }
    }
}

impl std::fmt::Debug for LateReplies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LateReplies").field("gathered", &self.gathered.lock().len()).finish_non_exhaustive()
    }
}
