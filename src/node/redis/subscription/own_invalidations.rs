//! A filter of notifications about locks that we hold: only changes by others are reported.
//!
//! Up to Redis 6.2 a server notifies a connection of changes by its own scripts, even with `NOLOOP`. Each renewal that
//! has its key tracked would cause a notification, and that another renewal. So the key is checked first.

use std::{mem, sync::Arc, time::Duration};

use futures_util::future::join_all;
use leasehold_protocol::slot;
use parking_lot::Mutex;

use crate::{
    keeper::Host,
    node::{
        NodeListener,
        redis::{
            reply,
            script::LOOK,
            transport::{Before, Connection},
        },
    },
};

/// The most keys that one command checks. Up to Redis 7.0 the server's work grows with the square of this number,
/// because each read of a script has all its keys tracked.
const AT_ONCE: usize = 64;

/// The held locks that were changed, by us or by another client.
pub(super) struct OwnInvalidations {
    keys: Mutex<Vec<String>>,
    keeper: Arc<Connection>,
    host: Host,
    limit: Duration,
    /// Whether a script may use the keys of one slot only.
    in_slots: bool,
}

impl OwnInvalidations {
    pub(super) fn new(keeper: Arc<Connection>, host: Host, limit: Duration, in_slots: bool) -> Arc<Self> {
        Arc::new(Self { keys: Mutex::default(), keeper, host, limit, in_slots })
    }

    /// Checks this key, together with those added before the check begins. Notifies the listener of keys that are not
    /// as we left them.
    pub(super) fn add(self: &Arc<Self>, key: &str, listener: &Arc<dyn NodeListener>) {
        let mut keys = self.keys.lock();
        keys.push(key.to_owned());
        if keys.len() == 1 {
            self.host.spawn(self.clone().settle(listener.clone()));
        }
    }

    async fn settle(self: Arc<Self>, listener: Arc<dyn NodeListener>) {
        let mut suspects = mem::take(&mut *self.keys.lock());
        if self.in_slots {
            suspects.sort_by_cached_key(|key| slot::of(key));
        }
        for keys in suspects.chunks(AT_ONCE) {
            let together = |one: &String, other: &String| !self.in_slots || slot::of(one) == slot::of(other);
            join_all(keys.chunk_by(together).map(|keys| self.look(keys, &*listener))).await;
        }
    }

    /// Checks these keys. The reads have them tracked again: the server notifies us of later changes.
    async fn look(&self, keys: &[String], listener: &dyn NodeListener) {
        let mut arguments = |all: &mut Vec<_>| {
            all.extend(keys.iter().map(|key| key.as_str().into()));
            Some(keys.len())
        };
        let found = match self.keeper.run(&LOOK, &mut arguments, self.limit, || Before::Tracking).await {
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
