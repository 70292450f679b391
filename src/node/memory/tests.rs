use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_protocol::{
    message::{AcquireRequest, Claim, ReleaseMode},
    mode::Mode,
    slot::Keys,
};

use super::*;
use crate::{clock::SystemClock, random};

fn named(name: &str) -> Arc<Memory> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Memory::named(name, &clock)
}

/// A listener that counts its notifications.
#[derive(Default)]
struct Told(AtomicUsize);

impl NodeListener for Told {
    fn changed(&self, _: &str) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn holds(&self, _: &str) -> bool {
        false
    }

    fn is_as_left(&self, _: &str, _: &str, _: Duration) -> bool {
        false
    }

    fn missed(&self, _: &Keys) {}

    fn is_needed(&self) -> bool {
        true
    }

    fn granted(&self, _: &str, _: &str) {}

    fn next(&self, _: &str, _: Duration) {}

    fn has_waiters(&self) -> bool {
        false
    }

    fn has_waiter(&self, _: &str) -> bool {
        false
    }
}

#[test]
fn everybody_who_listens_is_told_of_a_lock_that_is_let_go_of() {
    let (memory, limit) = (named("everybody is told"), Duration::from_secs(1));
    let both = [Arc::new(Told::default()), Arc::new(Told::default())];
    for told in &both {
        let listener: Arc<dyn NodeListener> = told.clone();
        memory.listen(Arc::downgrade(&listener));
    }
    let counts = || both.each_ref().map(|told| told.0.load(Ordering::Relaxed));
    let (key, token, stays) = (Key::new("", "job").unwrap(), random::token("one"), random::token("one"));
    let claim =
        Claim { key, token, mode: Mode::Exclusive, ttl: limit, life: limit, fence: None, fence_memory: Duration::ZERO };
    let send = |request| drop(memory.send(Route::Home, request, limit));
    let release = |claim: &Claim| send(Request::Release { claim: claim.clone(), mode: ReleaseMode::Delete });
    send(Request::Acquire(AcquireRequest { claim: claim.clone(), voting: None, heir_of: None }));
    assert_eq!(counts(), [0, 0]);
    send(Request::Release { claim: claim.clone(), mode: ReleaseMode::Retain(limit, stays.clone()) });
    assert_eq!(counts(), [1, 1], "it expires at another time than they knew");
    release(&claim);
    assert_eq!(counts(), [1, 1], "it is not this token's any more");
    let claim = Claim { token: stays, ..claim };
    release(&claim);
    assert_eq!(counts(), [2, 2]);
    release(&claim);
    assert_eq!(counts(), [2, 2], "nothing was there");
}

#[test]
fn it_watches_any_number_of_keys() {
    assert_eq!(named("any number of keys").tracking_capacity(), usize::MAX);
}

#[test]
fn a_name_is_one_store_for_as_long_as_anybody_uses_it() {
    let (one, other) = (named("a name of this test"), named("another of this test"));
    assert!(Arc::ptr_eq(&one, &named("a name of this test")) && !Arc::ptr_eq(&one, &other));
    let gone = Arc::downgrade(&one);
    drop(one);
    assert!(gone.upgrade().is_none(), "its name does not keep it alive");
}
