use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use tokio::runtime::Builder;
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

use crate::Client;

const HOUR: Duration = Duration::from_secs(3_600);

/// A subscriber that panics when a lease is logged.
struct Panics;

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.name() == "acquired"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        panic!("a subscriber that panics, as it is meant to");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn an_acquire_that_panics_when_its_lease_is_told_leaves_the_lock_free() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let leases = Client::in_memory();
    for reentrant in [false, true] {
        let lock = leases.lock("job").keep_for(HOUR).reentrant(reentrant);
        let acquire = AssertUnwindSafe(|| runtime.block_on(lock.acquire()));
        let outcome = tracing::subscriber::with_default(Panics, || catch_unwind(acquire));
        assert!(outcome.is_err(), "the premise");
        assert_eq!(runtime.block_on(lock.holder()), Ok(None), "nobody has had it, so nothing is kept");
        let lease = runtime.block_on(lock.try_acquire()).unwrap().expect("it is free");
        drop(runtime.block_on(lease.release()));
        runtime.block_on(leases.lock("job").force_release()).unwrap();
    }
}
