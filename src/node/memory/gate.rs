//! The control of tests over a memory node: the feature `testing`.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_protocol::{
    failure::Failure,
    fence,
    key::Key,
    message::{Claim, Reply, Request, Route, Shard},
    mode::Mode,
    time::micros,
};
use tokio::sync::watch;

use super::Memory;
use crate::{
    keeper::Host,
    node::{Answer, Node, NodeListener},
    random,
    survey::{Inquiry, ServerSaid},
};

/// The access of one `Client` to a memory node, which can be closed.
pub(crate) struct Gate {
    memory: Arc<Memory>,
    host: Host,
    /// How often it is closed. It is open at zero.
    closed: watch::Sender<usize>,
}

impl Gate {
    pub(super) fn new(memory: Arc<Memory>, host: Host) -> Self {
        Self { memory, host, closed: watch::Sender::new(0) }
    }

    pub(crate) fn close(&self) {
        self.closed.send_modify(|closed| *closed += 1);
    }

    pub(crate) fn open(&self) {
        self.closed.send_modify(|closed| *closed = closed.saturating_sub(1));
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow() > 0
    }

    /// Gives this lock to another holder, whoever had it before.
    pub(crate) fn take_over(&self, key: &Key, ttl: Duration) {
        self.memory.take_over(key, ttl);
    }

    /// Deletes this lock, and the knowledge of who had it.
    pub(crate) fn delete(&self, key: &Key) {
        self.memory.delete(key);
    }

    /// Asks when the gate is open, within the limit. A request that is dropped before that is never sent.
    fn ask<T: 'static>(&self, limit: Duration, ask: impl FnOnce(&Memory) -> Answer<T> + Send + 'static) -> Answer<T> {
        if !self.is_closed() {
            return ask(&self.memory);
        }
        let (memory, mut closed, too_late) = (self.memory.clone(), self.closed.subscribe(), self.host.sleep(limit));
        Box::pin(async move {
            // A gate that is gone counts as open.
            let open = async { drop(closed.wait_for(|closed| *closed == 0).await) };
            tokio::select! {
                biased;
                () = open => {}
                () = too_late => return Err(Failure::unknown("the test keeps this node silent")),
            }
            ask(&memory).await
        })
    }
}

impl Memory {
    /// Done in one step, because its holder must not find the key gone.
    fn take_over(&self, key: &Key, ttl: Duration) {
        let (token, fence_memory) = (random::token("somebody else"), fence::MEMORY);
        let claim = Claim { key: key.clone(), token, mode: Mode::Exclusive, ttl, life: ttl, fence: None, fence_memory };
        self.store.lock().take_over(micros(self.epoch + self.clock.now()), claim);
        self.changed(key);
    }

    fn delete(&self, key: &Key) {
        self.store.lock().delete(key);
        self.changed(key);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("memory", &self.memory).field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Node for Gate {
    fn route(&self) -> Route {
        self.memory.route()
    }

    fn listen(&self, listener: Weak<dyn NodeListener>) {
        self.memory.listen(listener);
    }

    fn tracking_capacity(&self) -> usize {
        self.memory.tracking_capacity()
    }

    fn send(&self, route: Route, request: Request, limit: Duration) -> Answer<Reply> {
        self.ask(limit, move |memory| memory.send(route, request, limit))
    }

    fn survey(&self, shard: Shard, inquiry: Inquiry) -> Answer<ServerSaid> {
        self.ask(inquiry.limit, move |memory| memory.survey(shard, inquiry))
    }

    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.memory.close(limit)
    }

    fn gate(&self) -> Option<&Gate> {
        Some(self)
    }
}
