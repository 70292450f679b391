//! A node inside the process: the same behaviour without a server, for tests, demos and first tries.
//!
//! [`Store`] is pure: each step is a function of what is stored, the time and the request. Around it stand a mutex and
//! the clock.

use std::{
    collections::HashMap,
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, UNIX_EPOCH},
};

use leasehold_protocol::{
    failure::Failure,
    fence::Fence,
    holder::Holder,
    key::Key,
    message::{AcquireRequest, Guarding, Owned, Poll, Polled, Renewal, Repaired, Route, ServerIdentity, Vote},
    store::{Process, Store, Told, identity},
    time::{Micros, micros},
    token::Token,
};

use super::{Answer, Line, Node, NodeListener, Page};
use crate::{
    capabilities::{Capabilities, Push},
    clock::{Clock, SystemClock, wall},
    sync::Mutex,
};

#[cfg(test)]
mod tests;

/// The store with its lock and its clock.
pub(crate) struct Memory {
    store: Mutex<Store>,
    listeners: Mutex<Vec<Weak<dyn NodeListener>>>,
    /// What the store's clock showed when the machine's clock showed zero.
    epoch: Duration,
    address: String,
}

impl Memory {
    /// One that nobody else sees.
    pub(crate) fn private() -> Arc<Self> {
        Self::at("")
    }

    fn at(name: &str) -> Arc<Self> {
        let since_1970 = wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        Arc::new(Self {
            store: Mutex::default(),
            listeners: Mutex::default(),
            epoch: since_1970.saturating_sub(SystemClock.now()),
            address: format!("memory://{name}"),
        })
    }

    /// The one that everybody in this process who says the same name sees, while anybody uses it.
    pub(crate) fn named(name: &str) -> Arc<Self> {
        static NAMED: OnceLock<Mutex<HashMap<String, Weak<Memory>>>> = OnceLock::new();
        let mut named = NAMED.get_or_init(Mutex::default).lock();
        named.retain(|_, memory| memory.strong_count() > 0);
        if let Some(memory) = named.get(name).and_then(Weak::upgrade) {
            return memory;
        }
        let memory = Self::at(name);
        named.insert(name.into(), Arc::downgrade(&memory));
        memory
    }

    fn step<T: Send + 'static>(&self, step: impl FnOnce(&mut Store, Micros) -> Result<T, Failure>) -> Answer<T> {
        Box::pin(ready(step(&mut self.store.lock(), micros(self.epoch + SystemClock.now()))))
    }

    /// A step that may change who has the lock; whether it did, it says. Everybody who listens is told, outside of the
    /// store's lock, for they run foreign code. Every waiter is a channel of its own, and reached while it is there.
    fn passing<T: Send + 'static>(
        &self,
        key: &Key,
        step: impl FnOnce(&mut Store, Micros, &dyn Fn(&str) -> bool) -> (Result<T, Failure>, bool, Vec<Told>),
    ) -> Answer<T> {
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        let reached = |token: &str| listeners.iter().any(|listener| listener.has_waiter(token));
        let (answer, changed, told) = step(&mut self.store.lock(), micros(self.epoch + SystemClock.now()), &reached);
        for listener in listeners.iter().filter(|_| changed || !told.is_empty()) {
            listener.changed(key.lock());
        }
        for told in told {
            let (Told::Granted { token, .. } | Told::Next { token, .. }) = &told;
            let Some(listener) = listeners.iter().find(|listener| listener.has_waiter(token.as_str())) else {
                continue;
            };
            match &told {
                Told::Granted { token, .. } => listener.granted(key.lock(), token.as_str()),
                Told::Next { token, within, .. } => listener.next(token.as_str(), *within),
            }
        }
        Box::pin(ready(answer))
    }

    fn changed(&self, key: &Key) {
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        for listener in listeners {
            listener.changed(key.lock());
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Node for Memory {
    fn route(&self) -> Route {
        Route::Home
    }

    fn listen(&self, listener: Weak<dyn NodeListener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    fn tracking_capacity(&self) -> usize {
        usize::MAX
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn acquire(&self, _: Route, request: &AcquireRequest, _: Duration) -> Answer<Vote> {
        self.step(|store, now| Ok(store.acquire(now, request)))
    }

    fn raise(&self, _: Route, key: &Key, token: &Token, fence: Fence, _: Duration) -> Answer<Owned> {
        self.step(|store, now| Ok(store.raise(now, key, token, fence)))
    }

    fn repair(&self, lease: &Renewal, fence: Fence, restart_delay: Duration, _: Duration) -> Answer<Repaired> {
        self.step(|store, now| Ok(store.repair(now, lease, fence, restart_delay)))
    }

    fn probe(&self, _: Duration) -> Answer<ServerIdentity> {
        self.step(|_, now| Ok(identity(now)))
    }

    fn renew(&self, _: Route, batch: &[Renewal], _: Duration) -> Answer<Vec<Result<Owned, Failure>>> {
        self.step(|store, now| Ok(batch.iter().map(|renewal| Ok(store.renew(now, renewal))).collect()))
    }

    fn release(&self, _: Route, key: &Key, token: &Token, _: Duration) -> Answer<Owned> {
        self.passing(key, |store, now, reached| {
            let (owned, told) = store.release(now, key, token, reached);
            (Ok(owned), owned.is_ok(), told)
        })
    }

    fn keep(&self, _: Route, key: &Key, token: &Token, keep: Duration, stays: &Token, _: Duration) -> Answer<Owned> {
        let answer = self.step(|store, now| Ok(store.keep(now, key, token, keep, stays)));
        self.changed(key);
        answer
    }

    fn poll(&self, _: Route, poll: &Poll, _: Duration) -> Answer<Polled> {
        self.passing(&poll.key, |store, now, reached| {
            let (polled, told) = store.poll(now, poll, Process { name: poll.token.as_str(), hears: true }, reached);
            let changed = matches!(polled, Polled::Granted(_));
            (Ok(polled), changed, told)
        })
    }

    fn leave(&self, _: Route, key: &Key, token: &Token, _: Duration) -> Answer<Owned> {
        self.passing(key, |store, now, reached| {
            let (owned, told) = store.leave(now, key, token, token.as_str(), reached);
            (Ok(owned), owned.is_ok(), told)
        })
    }

    fn line(&self, key: &Key, most: usize, _: Duration) -> Answer<Line> {
        self.step(|store, now| {
            let waited = |ticket| Duration::from_micros(now.saturating_sub(ticket));
            Ok(store.queue(now, key, most).1.into_iter().map(|(token, ticket)| (token, waited(ticket))).collect())
        })
    }

    fn holder(&self, key: &Key, _: Duration) -> Answer<Option<Holder>> {
        self.step(|store, now| Ok(store.holder(now, key)))
    }

    fn held(&self, pattern: &str, _: u64, _: Duration) -> Answer<Page> {
        self.step(|store, now| Ok((0, store.held(now, pattern))))
    }

    fn force_release(&self, key: &Key, _: Duration) -> Answer<bool> {
        self.passing(key, |store, now, reached| match store.force_release(now, key, reached) {
            Ok((held, told)) => (Ok(held), held, told),
            Err(failure) => (Err(failure), false, Vec::new()),
        })
    }

    fn guarded_set(&self, key: &Key, value: &[u8], fence: Fence, _: Duration) -> Answer<Guarding> {
        self.step(|store, now| store.guarded_set(now, key, value, fence))
    }

    fn guarded_get(&self, key: &Key, _: Duration) -> Answer<Option<(Vec<u8>, Fence)>> {
        self.step(|store, now| store.guarded_get(now, key))
    }

    fn capabilities(&self, _: Duration) -> Answer<Capabilities> {
        let server = Some("memory".into());
        Box::pin(ready(Ok(Capabilities { server, push: Push::On, calls: true, ..Capabilities::default() })))
    }

    fn reconnect(&self, _: Route) {}

    fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(ready(()))
    }
}
