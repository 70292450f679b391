//! Which auto traits the public types have: losing one would break programs, and no other test would notice.

use std::{
    panic::{RefUnwindSafe, UnwindSafe, catch_unwind},
    time::Duration,
};

use leasehold::{
    Builder, Client, Credentials, Details, Error, Fence, Holder, Lease, LeaseHandle, Lock, Lost, MultiLease,
    MultiLeaseHandle, MultiLock, NodeStatus, Owner, Released, Server, Status, StatusChanges, Tls, Votes, Waiter,
};

fn may_go_everywhere<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe + 'static>() {}

fn may_be_spawned<F: Future + Send + 'static>(future: F) {
    drop(future);
}

#[test]
fn every_type_may_go_to_another_thread_and_through_a_panic() {
    may_go_everywhere::<(Client, Builder, Server, Credentials, Tls, Lock)>();
    may_go_everywhere::<(Lease, LeaseHandle, StatusChanges, Status, Lost, Released)>();
    may_go_everywhere::<(MultiLock, MultiLease, MultiLeaseHandle)>();
    may_go_everywhere::<(Error, Details, Votes, Holder, Waiter, Fence, Owner, NodeStatus)>();
}

#[tokio::test]
async fn every_call_may_run_in_a_task_of_its_own() {
    const SECOND: Duration = Duration::from_secs(1);
    let leases = Client::in_memory();
    let lock = leases.lock("job");
    let work = |lease: LeaseHandle| async move { lease.check() };
    may_be_spawned(lock.acquire());
    may_be_spawned(lock.acquire_within(SECOND));
    may_be_spawned(lock.try_acquire());
    may_be_spawned(lock.run(work));
    may_be_spawned(lock.run_within(SECOND, work));
    may_be_spawned(lock.try_run(work));
    let lease = lock.acquire().await.unwrap();
    may_be_spawned(lease.lost());
    may_be_spawned(lease.release());
    let several = leases.multi_lock([leases.lock("one"), leases.lock("other")]);
    let work = |held: MultiLeaseHandle| async move { held.check() };
    may_be_spawned(several.acquire());
    may_be_spawned(several.acquire_within(SECOND));
    may_be_spawned(several.try_acquire());
    may_be_spawned(several.run(work));
    may_be_spawned(several.run_within(SECOND, work));
    may_be_spawned(several.try_run(work));
    let held = several.acquire().await.unwrap();
    may_be_spawned(held.lost());
    may_be_spawned(held.release());
}

#[tokio::test]
async fn a_lease_goes_on_after_a_panic_beside_it() {
    let lease = Client::in_memory().lock("job").acquire().await.unwrap();
    let panicked = catch_unwind(|| {
        lease.check().unwrap();
        panic!("in the middle of the work");
    });
    assert!(panicked.is_err() && lease.is_held());
}

#[test]
fn what_is_printed_of_a_leases_fits_a_line() {
    let leases = Client::in_memory();
    let shown = format!("{leases:?}");
    assert!(shown.len() < 100 && shown.contains("memory"), "{shown}");
    assert!(format!("{:?}", leases.lock("job")).len() < 250);
}
