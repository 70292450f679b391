//! The table of the observers of one `Client`.

use std::sync::Arc;

use leasehold_protocol::{hash::HashMap, key::Key, observer::Known};
use tokio::sync::watch;

use crate::{sync::Mutex, troubles::Troubles};

/// The last report of an observer; `None` before its first look.
pub(crate) type LastReport = Option<Known>;

/// Every observer of one `Client`, by the lock that it observes.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    all: Mutex<HashMap<Key, Arc<watch::Sender<LastReport>>>>,
    /// Why their looks fail.
    pub(crate) troubles: Troubles,
}

impl Observers {
    /// Subscribes to this lock's observer. For a new one, also returns its sender; the caller then has to start it.
    pub(crate) fn join(&self, key: &Key) -> (watch::Receiver<LastReport>, Option<Arc<watch::Sender<LastReport>>>) {
        let mut all = self.all.lock();
        if let Some(telling) = all.get(key) {
            let mut told = telling.subscribe();
            if told.borrow().is_some() {
                // A new subscriber has not received what is known.
                told.mark_changed();
            }
            return (told, None);
        }
        let (telling, told) = watch::channel(None);
        let telling = Arc::new(telling);
        all.insert(key.clone(), telling.clone());
        (told, Some(telling))
    }

    /// Removes this observer if it has no subscriber left, and returns whether it did.
    pub(crate) fn ends(&self, key: &Key, telling: &watch::Sender<LastReport>) -> bool {
        let mut all = self.all.lock();
        let is_over = telling.receiver_count() == 0;
        if is_over {
            all.remove(key);
        }
        is_over
    }

    /// Forgets an observer that has ended. Another one may observe the lock by now.
    pub(crate) fn forget(&self, key: &Key, telling: &Arc<watch::Sender<LastReport>>) {
        let mut all = self.all.lock();
        if all.get(key).is_some_and(|other| Arc::ptr_eq(other, telling)) {
            all.remove(key);
        }
    }
}
