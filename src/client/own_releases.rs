//! The releases of dropped leases that are under way: an acquire of the same lock comes after them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use leasehold_protocol::key::Key;

use crate::sync::{Mutex, Notify};

/// How many releases of which lock are under way.
#[derive(Debug, Default)]
pub(crate) struct OwnReleases {
    /// Of all locks: an acquire mostly finds none, and takes no lock for that.
    all: AtomicUsize,
    of: Mutex<HashMap<Key, usize>>,
    over: Notify,
}

/// One release under way, until enough nodes have answered, or until it is dropped.
#[derive(Debug)]
pub(super) struct OwnRelease {
    releases: Arc<OwnReleases>,
    key: Key,
    answers_needed: AtomicUsize,
}

impl OwnReleases {
    pub(super) fn begin(self: &Arc<Self>, key: &Key, answers_needed: usize) -> Arc<OwnRelease> {
        *self.of.lock().entry(key.clone()).or_default() += 1;
        self.all.fetch_add(1, Ordering::AcqRel);
        let answers_needed = AtomicUsize::new(answers_needed);
        Arc::new(OwnRelease { releases: self.clone(), key: key.clone(), answers_needed })
    }

    /// Completes when no release of this lock is under way.
    pub(crate) async fn over(&self, key: &Key) {
        while self.is_any() {
            // Made before the look, it hears of every end after it.
            let over = self.over.notified();
            if !self.of.lock().contains_key(key) {
                return;
            }
            over.await;
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        self.all.load(Ordering::Acquire) > 0
    }

    fn end(&self, key: &Key) {
        let mut of = self.of.lock();
        if let Some(count) = of.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                of.remove(key);
            }
        }
        drop(of);
        self.all.fetch_sub(1, Ordering::AcqRel);
        self.over.notify_waiters();
    }
}

impl OwnRelease {
    /// One more node has answered, or will not.
    pub(super) fn answered(&self) {
        let needed = |left: usize| left.checked_sub(1);
        if self.answers_needed.fetch_update(Ordering::AcqRel, Ordering::Acquire, needed) == Ok(1) {
            self.releases.end(&self.key);
        }
    }
}

impl Drop for OwnRelease {
    fn drop(&mut self) {
        if *self.answers_needed.get_mut() > 0 {
            self.releases.end(&self.key);
        }
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    fn is_over(releases: &OwnReleases, key: &Key) -> bool {
        pin!(releases.over(key)).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn it_is_over_when_enough_nodes_have_answered() {
        let (releases, [key, other]) = (Arc::<OwnReleases>::default(), ["job", "other"].map(Key::of_lock));
        let release = releases.begin(&key, 2);
        release.answered();
        assert!(!is_over(&releases, &key) && is_over(&releases, &other));
        release.answered();
        assert!(is_over(&releases, &key) && !releases.is_any());
        // The last node, and the end of the release, say nothing new of one that begins meanwhile.
        let next = releases.begin(&key, 2);
        release.answered();
        drop(release);
        assert!(!is_over(&releases, &key));
        // One that is given up is over as well.
        drop(next);
        assert!(is_over(&releases, &key) && !releases.is_any());
    }

    #[test]
    fn an_acquire_comes_after_every_release_of_its_lock() {
        let (releases, key) = (Arc::<OwnReleases>::default(), Key::of_lock("job"));
        let under_way = [0, 1, 2].map(|_| releases.begin(&key, 1));
        let mut over = pin!(releases.over(&key));
        for release in &under_way {
            assert!(over.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            release.answered();
        }
        assert!(over.poll(&mut Context::from_waker(Waker::noop())).is_ready() && releases.of.lock().is_empty());
    }
}
