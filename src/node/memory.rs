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
    message::{AcquireRequest, Guarding, Healed, Knock, Knocked, Owned, Renewal, Route, ServerIdentity, Vote},
    store::{Process, Store, Told, identity},
    time::{Micros, micros},
    token::Token,
};

use super::{Answer, Ear, Line, Node, Page};
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
    ears: Mutex<Vec<Weak<dyn Ear>>>,
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
            ears: Mutex::default(),
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
        let ears: Vec<_> = self.ears.lock().iter().filter_map(Weak::upgrade).collect();
        let reached = |token: &str| ears.iter().any(|ear| ear.has_waiter(token));
        let (answer, changed, told) = step(&mut self.store.lock(), micros(self.epoch + SystemClock.now()), &reached);
        for ear in ears.iter().filter(|_| changed || !told.is_empty()) {
            ear.touched(key.lock());
        }
        for told in told {
            let (Told::Granted { token, .. } | Told::Next { token, .. }) = &told;
            let Some(ear) = ears.iter().find(|ear| ear.has_waiter(token.as_str())) else { continue };
            match &told {
                Told::Granted { token, .. } => ear.granted(key.lock(), token.as_str()),
                Told::Next { token, within, .. } => ear.next(token.as_str(), *within),
            }
        }
        Box::pin(ready(answer))
    }

    fn touched(&self, key: &Key) {
        let ears: Vec<_> = self.ears.lock().iter().filter_map(Weak::upgrade).collect();
        for ear in ears {
            ear.touched(key.lock());
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

    fn listen(&self, ear: Weak<dyn Ear>) {
        let mut ears = self.ears.lock();
        ears.retain(|ear| ear.strong_count() > 0);
        ears.push(ear);
    }

    fn room(&self) -> usize {
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

    fn heal(&self, lease: &Renewal, fence: Fence, restart_delay: Duration, _: Duration) -> Answer<Healed> {
        self.step(|store, now| Ok(store.heal(now, lease, fence, restart_delay)))
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
        self.touched(key);
        answer
    }

    fn knock(&self, _: Route, knock: &Knock, _: Duration) -> Answer<Knocked> {
        self.passing(&knock.key, |store, now, reached| {
            let (knocked, told) = store.knock(now, knock, Process { name: knock.token.as_str(), hears: true }, reached);
            let changed = matches!(knocked, Knocked::Granted(_));
            (Ok(knocked), changed, told)
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
