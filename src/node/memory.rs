//! A node inside the process: the same behaviour without a server, for tests, demos and first tries.
//!
//! [`Store`] is pure: each step is a function of what is stored, the time and the request. Around it are a mutex, the
//! clock and the listeners.

use std::{
    cell::OnceCell,
    collections::HashMap,
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, UNIX_EPOCH},
};

use leasehold_protocol::{
    key::Key,
    message::{Reply, Request, Route, Shard},
    store::{Applied, Notified, Process, Store},
    time::micros,
};

use super::{Answer, Node, NodeListener};
use crate::{
    clock::{Clock, wall},
    keeper::Host,
    survey::{Inquiry, ServerSaid},
    sync::Mutex,
};

#[cfg(feature = "testing")]
mod gate;
#[cfg(test)]
mod tests;

#[cfg(feature = "testing")]
pub(crate) use self::gate::Gate;

/// The store with its lock and its clock.
pub(crate) struct Memory {
    store: Mutex<Store>,
    /// Replaced as a whole, because every release iterates over them with no lock held.
    listeners: Mutex<Arc<[Weak<dyn NodeListener>]>>,
    clock: Arc<dyn Clock>,
    /// The store's time when that clock showed zero.
    epoch: Duration,
}

impl Memory {
    /// A store of its own, which is not shared.
    pub(crate) fn private(clock: &Arc<dyn Clock>) -> Arc<Self> {
        let since_1970 = wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        Arc::new(Self {
            store: Mutex::default(),
            listeners: Mutex::new(Arc::new([])),
            clock: clock.clone(),
            epoch: since_1970.saturating_sub(clock.now()),
        })
    }

    /// The store that all users of this name in this process share, for as long as there is one. Its time is that of
    /// the clock that it was made with.
    pub(crate) fn named(name: &str, clock: &Arc<dyn Clock>) -> Arc<Self> {
        static NAMED: OnceLock<Mutex<HashMap<String, Weak<Memory>>>> = OnceLock::new();
        let mut named = NAMED.get_or_init(Mutex::default).lock();
        named.retain(|_, memory| memory.strong_count() > 0);
        if let Some(memory) = named.get(name).and_then(Weak::upgrade) {
            return memory;
        }
        let memory = Self::private(clock);
        named.insert(name.into(), Arc::downgrade(&memory));
        memory
    }
}

/// The node for one `Client`.
#[cfg_attr(not(feature = "testing"), allow(unused_variables, reason = "only tests keep an answer back"))]
pub(crate) fn node(memory: Arc<Memory>, host: &Host) -> Arc<dyn Node> {
    #[cfg(feature = "testing")]
    let memory = Arc::new(Gate::new(memory, host.clone()));
    memory
}

impl Memory {
    /// The listeners that still exist. Dropping one runs foreign code, and so does notifying it, so no lock of ours may
    /// be held then.
    fn listeners(&self) -> impl Iterator<Item = Arc<dyn NodeListener>> + use<> {
        let listeners = self.listeners.lock().clone();
        (0..listeners.len()).filter_map(move |at| listeners.get(at)?.upgrade())
    }

    /// Notifies every listener of the change.
    fn changed(&self, key: &Key) {
        self.listeners().for_each(|listener| listener.changed(key.lock()));
    }

    fn apply<'a>(&self, store: &mut Store, request: &'a Request, reached: &dyn Fn(&str) -> bool) -> Applied<'a> {
        // Every waiter counts as a process of its own, and is reached while it exists.
        let name = request.claim().map_or("", |claim| claim.token.as_str());
        let now = micros(self.epoch + self.clock.now());
        store.apply(now, request, Process { name, hears: true }, reached)
    }
}

fn has_waiter(listeners: &[Arc<dyn NodeListener>], token: &str) -> bool {
    listeners.iter().any(|listener| listener.has_waiter(token))
}

/// Notifies each waiter of what concerns it.
fn notify(listeners: &[Arc<dyn NodeListener>], key: &Key, notifications: &[Notified]) {
    for notified in notifications {
        let (Notified::Granted { token, .. } | Notified::Next { token, .. }) = notified;
        let Some(listener) = listeners.iter().find(|listener| listener.has_waiter(token.as_str())) else {
            continue;
        };
        match notified {
            Notified::Granted { token, .. } => listener.granted(key.lock(), token.as_str()),
            Notified::Next { token, within, .. } => listener.next(token.as_str(), *within),
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
        let there = listeners.iter().filter(|listener| listener.strong_count() > 0).cloned();
        *listeners = there.chain([listener]).collect();
    }

    fn tracking_capacity(&self) -> usize {
        usize::MAX
    }

    fn send(&self, _: Route, request: Request, _: Duration) -> Answer<Reply> {
        // Upgraded once, if a queue has waiters, and dropped last, when the store is not locked.
        let upgraded = OnceCell::new();
        let listeners = || upgraded.get_or_init(|| self.listeners().collect::<Vec<_>>());
        let reached = |token: &str| has_waiter(listeners(), token);
        let Applied { reply, changed, notified } = self.apply(&mut self.store.lock(), &request, &reached);
        if let Some(key) = changed {
            self.changed(key);
            if !notified.is_empty() {
                notify(listeners(), key, &notified);
            }
        }
        Box::pin(ready(reply))
    }

    fn survey(&self, _: Shard, _: Inquiry) -> Answer<ServerSaid> {
        Box::pin(ready(Ok(ServerSaid {
            notifications: Some(Ok(())),
            notifies_waiters: true,
            tracked_keys: usize::MAX,
            ..ServerSaid::default()
        })))
    }

    fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(ready(()))
    }
}
