//! Which touches of what we hold are news.
//!
//! Up to Redis 6.2 a server tells a connection of what its own scripts do, `NOLOOP` or not: each renewal that has its key
//! watched would be told as a touch, and a touch asks for a renewal. So the key is looked at first.

use std::{mem, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::super::{connection::Connection, reply, request::LOOK};
use crate::{keeper::Host, node::NodeListener};

/// So many keys are looked at by one command. Up to Redis 7.0 the server's work grows with the square of it: each read of a
/// script has all its keys tracked.
const AT_ONCE: usize = 64;

/// The locks that we hold and that were touched, by us or by somebody else.
pub(super) struct OwnInvalidations {
    keys: Mutex<Vec<String>>,
    keeper: Arc<Connection>,
    host: Host,
    limit: Duration,
}

impl OwnInvalidations {
    pub(super) fn new(keeper: Arc<Connection>, host: Host, limit: Duration) -> Arc<Self> {
        Arc::new(Self { keys: Mutex::default(), keeper, host, limit })
    }

    /// Looks at this key, and at those that come before the look begins; tells the ear of what is not as it was left.
    pub(super) fn add(self: &Arc<Self>, key: &str, listener: &Arc<dyn NodeListener>) {
        let mut keys = self.keys.lock();
        keys.push(key.to_owned());
        if keys.len() == 1 {
            self.host.spawn(self.clone().settle(listener.clone()));
        }
    }

    async fn settle(self: Arc<Self>, listener: Arc<dyn NodeListener>) {
        let doubted = mem::take(&mut *self.keys.lock());
        for keys in doubted.chunks(AT_ONCE) {
            self.look(keys, &*listener).await;
        }
    }

    /// The look watches again what it reads: a touch after it is told as any other.
    async fn look(&self, keys: &[String], listener: &dyn NodeListener) {
        let mut arguments = |all: &mut Vec<_>| {
            all.extend(keys.iter().map(|key| key.as_str().into()));
            Some(keys.len())
        };
        let found = match self.keeper.run(&LOOK, &mut arguments, self.limit, || true).await {
            Ok((reply, way)) if way.tracked => reply::looked(&reply),
            _ => Vec::new(),
        };
        let mut found = found.into_iter();
        for key in keys {
            let as_left = |(value, left): (String, Duration)| listener.is_as_left(key, &value, left);
            if !found.next().flatten().is_some_and(as_left) {
                listener.changed(key);
            }
        }
    }
}
