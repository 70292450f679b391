//! The behaviour of every deployment, in every detail: one function per behaviour, run against each kind of node.

use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use leasehold::{
    Client, Error, Fence, Holder, Lease, LeaseHandle, Lock, LossReason, Lost, Owner, Status, block_on, doctor::survey,
};
use support::{HANGS, Lag, eventually_async, two_workers, within};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::common::{Confirmed as _, ending, have_places, in_vain};

mod elections;
mod hand_overs;
mod multi_locks;
mod place;
mod sharing;

use self::{
    elections::{a_leader_campaigns_again_until_its_work_is_done, who_leads_is_told_as_it_changes},
    hand_overs::{
        a_lease_goes_on_in_another_program, a_ticket_is_adopted_once, a_ticket_may_be_kept_for_a_crash,
        an_interval_goes_on_with_the_heir, what_cannot_be_handed_over_is_refused,
    },
    multi_locks::{
        a_lost_one_of_several_is_told_and_the_others_stay_held,
        a_multi_lock_keeps_what_comes_before_the_lock_it_waits_for, each_lock_of_several_has_its_own_options,
        of_tries_for_several_locks_that_meet_one_wins, programs_that_want_the_same_locks_in_another_order_take_turns,
        several_locks_are_acquired_and_released_together,
    },
    place::{Place, Program},
};

const TTL: Duration = Duration::from_secs(1);

/// Runs a behaviour at a place, and then restores its servers.
fn run(place: Place, behaviour: fn(Place) -> Pin<Box<dyn Future<Output = ()>>>) {
    let (runtime, servers) = (two_workers(), place.servers.clone());
    runtime.block_on(behaviour(place));
    // With every task that the test has spawned.
    drop(runtime);
    Arc::into_inner(servers).expect("the behaviour drops its place").give_back();
}

/// The tests `place::behaviour`; those after `at_night` are run by `scripts/nightly` only.
macro_rules! at {
    (at_night $place:ident: $($behaviour:ident)*) => {
        mod $place { $( super::at! { @ [#[ignore = "scripts/nightly matrix"]] $place $behaviour } )* }
    };
    ($place:ident: $($behaviour:ident)*) => {
        mod $place { $( super::at! { @ [] $place $behaviour } )* }
    };
    (@ [$($ignored:tt)*] $place:ident $behaviour:ident) => {
        #[test]
        $($ignored)*
        fn $behaviour() {
            super::run(super::Place::$place(stringify!($behaviour)), |place| Box::pin(super::$behaviour(place)));
        }
    };
}
use at;

/// Every behaviour. The second list needs a lock with one holder, a label, a token, and a key that lives as long as its
/// lease.
macro_rules! every {
    (@ [of a share: $($place:tt)*] [$($shared:ident)*] [$($alone:ident)*]) => { at! { $($place)*: $($shared)* } };
    (@ [$($place:tt)*] [$($shared:ident)*] [$($alone:ident)*]) => { at! { $($place)*: $($shared)* $($alone)* } };
    ($($place:tt)*) => { every! { @ [$($place)*]
        [
            a_free_lock_is_acquired
            a_held_lock_is_busy_for_others
            a_wait_of_zero_is_one_try
            data_under_a_locks_name_is_told_as_such
            a_release_frees_the_lock
            a_drop_frees_the_lock
            waiters_of_one_process_come_in_order
            a_lease_outlives_many_ttls
            fences_grow
            renewing_by_hand_extends
            a_lock_taken_by_force_is_told_everywhere
            max_hold_tells_and_lets_the_key_run_out
            a_lease_whose_work_stalls_ends_by_its_deadline
            release_after_max_hold_deletes_and_is_ok
            a_release_is_told_as_such
            status_changes_end_with_the_last_status
            a_cancelled_child_cancels_nobody_else
            a_handle_outlives_its_lease_and_says_so
            busy_is_no_error_for_the_task_that_has_the_lock_either
            an_acquire_under_way_is_in_nobodys_way
            a_holder_knows_whether_it_is_one_of_ours
            re_entry_shares_the_acquisition
            re_entry_must_be_asked_for_both_times
            re_entrant_acquires_under_way_share_what_one_of_them_wins
            a_handle_shares_its_lease_by_value
            re_entry_after_a_loss_is_a_new_acquisition
            re_entry_lets_all_branches_of_a_join_in
            re_entry_lets_a_dispatcher_hand_out_many_leases
            the_owner_stays_when_the_lease_moves
            an_identity_spans_tasks
            the_anonymous_wait_even_for_themselves
            outside_a_task_the_thread_is_the_owner
            one_at_a_time
            force_release_takes_the_lock_from_whoever_has_it
            what_is_held_is_listed_by_its_name
            run_returns_what_the_work_returned
            work_that_fails_gives_its_own_error_and_releases
            run_fits_spawn_borrows_boxes_and_local_sets
            run_stops_the_work_when_the_lease_is_lost
            run_drops_the_work_before_the_lock_is_free
            run_that_could_not_acquire_never_starts_the_work
            work_with_a_grace_may_tidy_up_after_a_loss
            a_dropped_lease_is_free_for_the_next_line
            a_dropped_acquire_is_in_nobodys_way
            what_cannot_be_kept_is_refused
            who_leads_is_told_as_it_changes
            a_leader_campaigns_again_until_its_work_is_done
            an_interval_goes_on_with_the_heir
            several_locks_are_acquired_and_released_together
            programs_that_want_the_same_locks_in_another_order_take_turns
            of_tries_for_several_locks_that_meet_one_wins
            a_lost_one_of_several_is_told_and_the_others_stay_held
            a_release_frees_a_lock_with_a_delay_at_once
            a_prefix_keeps_programs_apart
            a_shutdown_waits_until_the_holder_has_tidied_up
            a_shutdown_cuts_short_who_does_not_stop
            a_shutdown_ends_waiters_and_lets_work_go_on
            closing_ends_waiters_and_leases
            nothing_works_after_closing
            what_the_server_can_do_is_told
            a_thread_waits_for_the_calls
        ] [
            a_try_that_finds_the_lock_held_tells_by_whom
            a_wait_that_ends_says_who_holds_it
            a_key_that_is_kept_ends_the_lease_but_not_the_lock
            a_waiter_gets_the_lock_and_was_told_whom_it_waits_for
            a_taken_key_is_left_to_its_taker
            holder_reads_what_the_key_says
            its_holder_hears_who_took_it_by_force_and_why
            run_skips_the_work_of_a_busy_lock_or_waits_for_a_while
            a_lock_is_kept_for_its_time_however_it_is_let_go_of
            a_lease_goes_on_in_another_program
            a_ticket_is_adopted_once
            a_ticket_may_be_kept_for_a_crash
            what_cannot_be_handed_over_is_refused
            a_multi_lock_keeps_what_comes_before_the_lock_it_waits_for
            each_lock_of_several_has_its_own_options
            a_lock_is_acquired_once_in_its_interval_however_it_is_let_go_of
            a_key_outlives_its_lease_by_the_delay
            a_key_cannot_outlive_its_lease_by_just_any_time
            debug_shows_state_and_no_secret
        ]
    } };
}

/// Behaviours that depend on how a connection is opened.
macro_rules! connection {
    ($place:ident) => {
        at! { $place:
                a_free_lock_is_acquired
                a_held_lock_is_busy_for_others
                a_drop_frees_the_lock
                a_lease_outlives_many_ttls
                renewing_by_hand_extends
                a_lock_taken_by_force_is_told_everywhere
                a_waiter_gets_the_lock_and_was_told_whom_it_waits_for
                what_is_held_is_listed_by_its_name
                what_the_server_can_do_is_told
                closing_ends_waiters_and_leases
                a_thread_waits_for_the_calls
        }
    };
}

/// Behaviours that a refused command could change.
macro_rules! rights {
    ($place:ident) => {
        at! { $place:
                a_free_lock_is_acquired
                a_lease_outlives_many_ttls
                a_lock_taken_by_force_is_told_everywhere
                a_waiter_gets_the_lock_and_was_told_whom_it_waits_for
                waiters_of_one_process_come_in_order
                one_at_a_time
                what_is_held_is_listed_by_its_name
                its_holder_hears_who_took_it_by_force_and_why
                data_under_a_locks_name_is_told_as_such
                who_leads_is_told_as_it_changes
                a_lease_goes_on_in_another_program
                what_the_server_can_do_is_told
        }
    };
}

/// Behaviours of queued waiters.
macro_rules! line {
    ($place:ident) => {
        at! { $place:
                a_wait_of_zero_is_one_try
                a_wait_that_ends_says_who_holds_it
                a_waiter_gets_the_lock_and_was_told_whom_it_waits_for
                waiters_of_one_process_come_in_order
                an_acquire_under_way_is_in_nobodys_way
                re_entrant_acquires_under_way_share_what_one_of_them_wins
                the_anonymous_wait_even_for_themselves
                one_at_a_time
                a_dropped_lease_is_free_for_the_next_line
                a_dropped_acquire_is_in_nobodys_way
                programs_that_want_the_same_locks_in_another_order_take_turns
                a_lock_is_kept_for_its_time_however_it_is_let_go_of
                a_shutdown_ends_waiters_and_lets_work_go_on
                closing_ends_waiters_and_leases
        }
    };
}

/// Behaviours of a share: how it is acquired, renewed, lost and released.
macro_rules! share {
    ($place:ident) => {
        at! { $place:
                a_free_lock_is_acquired
                a_held_lock_is_busy_for_others
                a_wait_of_zero_is_one_try
                data_under_a_locks_name_is_told_as_such
                a_drop_frees_the_lock
                waiters_of_one_process_come_in_order
                a_lease_outlives_many_ttls
                fences_grow
                renewing_by_hand_extends
                a_lock_taken_by_force_is_told_everywhere
                max_hold_tells_and_lets_the_key_run_out
                a_lease_whose_work_stalls_ends_by_its_deadline
                release_after_max_hold_deletes_and_is_ok
                re_entry_shares_the_acquisition
                a_handle_shares_its_lease_by_value
                one_at_a_time
                what_is_held_is_listed_by_its_name
                work_with_a_grace_may_tidy_up_after_a_loss
                a_dropped_lease_is_free_for_the_next_line
                a_dropped_acquire_is_in_nobodys_way
                an_interval_goes_on_with_the_heir
                several_locks_are_acquired_and_released_together
                a_lost_one_of_several_is_told_and_the_others_stay_held
        }
    };
}

/// Behaviours decided by a majority.
macro_rules! votes {
    ($place:ident) => {
        at! { $place:
                a_free_lock_is_acquired
                a_held_lock_is_busy_for_others
                a_drop_frees_the_lock
                a_lease_outlives_many_ttls
                fences_grow
                renewing_by_hand_extends
                a_lock_taken_by_force_is_told_everywhere
                a_waiter_gets_the_lock_and_was_told_whom_it_waits_for
                holder_reads_what_the_key_says
                what_is_held_is_listed_by_its_name
                a_lease_goes_on_in_another_program
                a_key_outlives_its_lease_by_the_delay
                several_locks_are_acquired_and_released_together
                who_leads_is_told_as_it_changes
        }
    };
}

/// Behaviours that a replica must confirm.
macro_rules! confirmed {
    ($place:ident) => {
        at! { $place:
                a_free_lock_is_acquired
                a_drop_frees_the_lock
                a_lease_outlives_many_ttls
                fences_grow
                renewing_by_hand_extends
                a_lock_taken_by_force_is_told_everywhere
                a_waiter_gets_the_lock_and_was_told_whom_it_waits_for
                a_lease_goes_on_in_another_program
                a_lock_is_kept_for_its_time_however_it_is_let_go_of
                a_key_outlives_its_lease_by_the_delay
                several_locks_are_acquired_and_released_together
                what_the_server_can_do_is_told
        }
    };
}

// Deployments of different kinds: every behaviour, on each change.
every! { memory }
every! { redis }
every! { redis_fair }
every! { quorum_of_three }
every! { cluster }

// Each other deployment differs from one of these in one layer. Each change runs the behaviours that layer can affect.
line! { memory_fair } // The queue of the in-memory node.
line! { redis_fair_without_push } // Grants without a notification.
line! { cluster_fair } // Channels for waiters on several servers.
share! { redis_writing } // A lock of the exclusive mode.
share! { redis_of_one_permit } // A share, whose limit keeps all other sharers out.
share! { memory_of_one_permit } // A share in the in-memory node.
connection! { redis_over_tls } // The stream.
connection! { redis_with_credentials } // The first command on a connection, which is repeated.
connection! { sentinel } // How the server is found.
rights! { redis_rented } // Commands that the server does not know.
rights! { cluster_rented } // Commands denied by each of several servers.
votes! { quorum_of_memory } // Nodes of the other kind.
votes! { quorum_of_five } // A majority that is not one node more than the minority.
confirmed! { replicated } // A second step of each request.
confirmed! { cluster_replicated } // A replica of a slot's primary.
confirmed! { sentinel_replicated } // Replicas of the primary that Sentinels announce.

/// Every behaviour in the places listed above.
mod whole {
    use super::*;

    every! { at_night memory_fair }
    every! { at_night redis_fair_without_push }
    every! { at_night cluster_fair }
    every! { at_night redis_writing }
    every! { of a share: at_night redis_of_one_permit }
    every! { of a share: at_night memory_of_one_permit }
    every! { at_night redis_over_tls }
    every! { at_night redis_with_credentials }
    every! { at_night sentinel }
    every! { at_night redis_rented }
    every! { at_night cluster_rented }
    every! { at_night quorum_of_memory }
    every! { at_night quorum_of_five }
    every! { at_night replicated }
    every! { at_night cluster_replicated }
    every! { at_night sentinel_replicated }
}

async fn a_free_lock_is_acquired(place: Place) {
    let leases = place.program("one").await;
    let lease = leases.lock("job").acquire().await.unwrap();
    assert_eq!((lease.name(), lease.label(), lease.hold_count()), ("job", "one", 1));
    assert_eq!(lease.status(), Status::Held);
    lease.check().unwrap();
    // Minus 1 % and 2 ms for the clocks.
    let valid = Duration::from_millis(988);
    assert!(lease.remaining() <= valid && !lease.remaining().is_zero(), "{:?}", lease.remaining());
    lease.release().await.unwrap().confirmed();
    assert!(leases.lock("job").try_acquire().await.unwrap().is_some());
}

async fn a_held_lock_is_busy_for_others(place: Place) {
    let (one, two) = place.two_programs().await;
    let _lease = one.lock("job").acquire().await.unwrap();
    assert!(two.lock("job").try_acquire().await.unwrap().is_none());
    assert!(two.lock("another job").try_acquire().await.unwrap().is_some());
}

async fn a_wait_of_zero_is_one_try(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire_within(Duration::ZERO).await.unwrap();
    let refused = two.lock("job").acquire_within(Duration::ZERO).await.unwrap_err();
    assert!(matches!(refused, Error::TimedOut { .. }), "{refused}");
    lease.release().await.unwrap().confirmed();
    drop(two.lock("job").acquire_within(Duration::ZERO).await.unwrap());
}

async fn a_try_that_finds_the_lock_held_tells_by_whom(place: Place) {
    let (one, two) = place.two_programs().await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let lock = two.lock("job").on_wait(move |holder: &Holder| tell.send(holder.label().map(str::to_owned)).unwrap());
    drop(lock.try_acquire().await.unwrap().unwrap());
    let lease = within(HANGS, "the lock", one.lock("job").acquire()).await.unwrap();
    assert!(told.try_recv().is_err(), "it was free");
    for what in ["try_acquire", "try_run", "a wait of zero"] {
        match what {
            "try_acquire" => assert!(lock.try_acquire().await.unwrap().is_none()),
            "try_run" => assert_eq!(lock.try_run(async |_| Ok::<_, Error>(())).await.unwrap(), None),
            _ => drop(lock.acquire_within(Duration::ZERO).await.unwrap_err()),
        }
        assert_eq!(told.try_recv().ok(), Some(Some("one".to_owned())), "{what}");
        assert!(told.try_recv().is_err(), "{what} tells once");
    }
    lease.release().await.unwrap();
}

async fn data_under_a_locks_name_is_told_as_such(place: Place) {
    // Locks in memory do not expose this.
    if place.is_in_memory() {
        return;
    }
    for server in place.servers_of("job") {
        server.wire().must(&["HSET", "job", "field", "value"]);
    }
    let leases = place.program("one").await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let kind = |holder: &Holder| holder.not_a_lock().map(str::to_owned);
    let lock = leases.lock("job").on_wait(move |holder| tell.send(kind(holder)).unwrap());
    let hash = Some("hash".to_owned());
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(told.try_recv().ok().as_ref(), Some(&hash), "try_acquire");
    assert_eq!(lock.try_run(async |_| Ok::<_, Error>(())).await.unwrap(), None);
    assert_eq!(told.try_recv().ok().as_ref(), Some(&hash), "try_run");
    for limit in [Duration::ZERO, Duration::from_millis(100)] {
        let error = in_vain(&lock, limit).await;
        assert_eq!(told.try_recv().ok().as_ref(), Some(&hash), "acquire_within {limit:?}");
        while told.try_recv().is_ok() {}
        let (text, holder) = (error.to_string(), error.timed_out().unwrap());
        assert_eq!(holder.not_a_lock(), Some("hash"));
        for part in ["\"job\"", "a hash under its key", "another name or a prefix, or delete the key"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let waiter = tokio::spawn(lock.acquire());
    assert_eq!(within(HANGS, "on_wait", told.recv()).await.as_ref(), Some(&hash), "acquire");
    waiter.abort();
    assert_eq!(lock.holder().await.unwrap().as_ref().map(kind), Some(hash));
    let held = leases.lock("another").acquire().await.unwrap();
    assert_eq!(leases.lock("another").holder().await.unwrap().as_ref().map(kind), Some(None), "that is a lock");
    held.release().await.unwrap();
    place.delete("job");
}

async fn a_wait_that_ends_says_who_holds_it(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    let patience = TTL / 2;

    let (lag, started) = (Lag::start(), Instant::now());
    let error = two.lock("job").acquire_within(patience).await.unwrap_err();
    let took = started.elapsed();
    assert!(took >= patience, "{took:?}");
    // Two timers in a row end it, if the machine leaves the last poll unanswered for its 15 ms.
    let exact = Duration::from_millis(20 + 15) + 2 * lag.worst();
    assert!(took <= patience + exact, "{took:?}, exact to {exact:?}");

    assert!(error.is_transient());
    let text = error.to_string();
    assert!(text.contains("\"job\"") && text.contains("one"), "{text}");
    let Error::TimedOut { waited, holder, .. } = error else { panic!("{error}") };
    assert!(waited >= patience && waited <= took);
    assert_eq!(holder.label(), Some("one"));
    // A quorum reports a fence only if a majority of the nodes that have answered by then agree on it.
    let certain = !place.is_quorum() || holder.fence().is_some();
    assert_eq!(holder.fence(), Some(lease.fence()).filter(|_| certain));
    assert!(holder.remaining().is_some_and(|remaining| remaining <= TTL));
}

async fn a_release_frees_the_lock(place: Place) {
    let (one, two) = place.two_programs().await;
    one.lock("job").acquire().await.unwrap().release().await.unwrap().confirmed();
    assert!(two.lock("job").try_acquire().await.unwrap().is_some());
}

async fn a_drop_frees_the_lock(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    its_drop_frees(lease, two.lock("job")).await;
}

/// Well before the TTL.
async fn its_drop_frees(lease: Lease, lock: Lock) {
    let (lag, dropped) = (Lag::start(), Instant::now());
    drop(lease);
    drop(within(HANGS, "the dropped lease's lock", lock.acquire()).await.unwrap());
    let took = dropped.elapsed();
    assert!(took <= TTL / 2 + lag.worst(), "{took:?}");
}

async fn a_key_that_is_kept_ends_the_lease_but_not_the_lock(place: Place) {
    let (one, two) = place.two_programs().await;
    let keep = TTL * 2;
    let lease = one.lock("job").acquire().await.unwrap();
    let lost = lease.lost();
    let released = Instant::now();
    lease.release_keeping(keep).await.unwrap().confirmed();
    assert_eq!(lost.await.reason(), LossReason::Released);
    assert!(one.lock("job").try_acquire().await.unwrap().is_none(), "not even for its former holder");
    let kept = two.lock("job").holder().await.unwrap().unwrap();
    assert_eq!(kept.label(), Some("one (released)"));
    let remaining = kept.remaining().unwrap();
    assert!(remaining > TTL && remaining <= keep, "{remaining:?}");
    drop(within(keep + HANGS, "the kept key's end", two.lock("job").acquire()).await.unwrap());
    assert!(released.elapsed() + Duration::from_millis(2) >= keep, "{:?}", released.elapsed());
}

async fn a_waiter_gets_the_lock_and_was_told_whom_it_waits_for(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let lock = two.lock("job").on_wait(move |holder: &Holder| tell.send(holder.label().map(str::to_owned)).unwrap());
    let waiter = tokio::spawn(lock.acquire());
    assert_eq!(within(HANGS, "on_wait", told.recv()).await, Some(Some("one".into())));

    let fence = lease.fence();
    lease.release().await.unwrap().confirmed();
    let second = within(HANGS, "the waiter", waiter).await.unwrap().unwrap();
    assert!(second.fence() > fence);
    assert!(told.try_recv().is_err(), "the same holder is told once");
}

async fn waiters_of_one_process_come_in_order(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let (came, mut order) = mpsc::unbounded_channel();
    for n in 0..5 {
        let (tell, came) = (tell.clone(), came.clone());
        let lock = two.lock("job").on_wait(move |_| tell.send(n).unwrap());
        tokio::spawn(async move {
            let lease = lock.acquire().await.unwrap();
            came.send(n).unwrap();
            lease.release().await.unwrap().confirmed();
        });
        assert_eq!(within(HANGS, "on_wait", told.recv()).await, Some(n), "it waits before the next one");
    }
    lease.release().await.unwrap().confirmed();
    for n in 0..5 {
        assert_eq!(within(HANGS, "the next waiter", order.recv()).await, Some(n));
    }
}

async fn a_lease_outlives_many_ttls(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    let mut changes = lease.status_changes();
    let ended = tokio::time::timeout(TTL * 4, lease.lost()).await;
    assert!(ended.is_err(), "held for four TTLs, not {ended:?}");
    lease.check().unwrap();
    assert!(two.lock("job").try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap().confirmed();
    // The lease was not lost, whatever else it reported.
    while let Some(status) = within(HANGS, "the last status", changes.next()).await {
        assert!(!matches!(status, Status::Lost(_)), "{status:?}");
    }
}

async fn fences_grow(place: Place) {
    let (one, two) = place.two_programs().await;
    let mut last = Fence::try_from(0_u64).unwrap();
    for _ in 0..20 {
        for leases in [&one, &two] {
            let lease = leases.lock("job").acquire().await.unwrap();
            assert!(lease.fence() > last, "{} after {last}", lease.fence());
            last = lease.fence();
            lease.release().await.unwrap().confirmed();
        }
    }
}

async fn renewing_by_hand_extends(place: Place) {
    let leases = place.program("one").await;
    // Its first third is far away, so the keeper does not renew it meanwhile.
    let lease = leases.lock("job").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let (passing, acquired) = (Duration::from_millis(20), lease.remaining());
    eventually_async(HANGS, "some time to pass", || lease.remaining() + passing < acquired).await;
    let deadline = || Instant::now() + lease.remaining();
    let before = deadline();
    lease.renew().await.unwrap();
    // However long the renewal took, it counts from its send, which was at least this much later. The two clocks are
    // not read at one instant.
    let (after, apart) = (deadline(), Duration::from_millis(5));
    assert!(after + apart > before + passing, "extended by {:?}", after.saturating_duration_since(before));
    let handle = lease.handle();
    lease.release().await.unwrap().confirmed();
    let error = handle.renew().await.unwrap_err();
    assert!(matches!(&error, Error::Lost(lost) if lost.reason() == LossReason::Released), "{error}");
}

async fn a_lock_taken_by_force_is_told_everywhere(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    let (lost, token, mut changes) = (tokio::spawn(lease.lost()), lease.cancellation_token(), lease.status_changes());

    assert!(two.lock("job").force_release().await.unwrap());
    let lost = within(HANGS, "lost()", lost).await.unwrap();
    assert_eq!((lost.reason(), lost.name(), lost.fence()), (LossReason::Forced, "job", lease.fence()));
    within(HANGS, "the cancellation", token.cancelled()).await;
    assert_eq!(within(HANGS, "the status", changes.next()).await, Some(Status::Lost(lost.clone())));
    assert_eq!(changes.next().await, None);

    assert_eq!(lease.check(), Err(lost.clone().into()));
    assert_eq!((lease.is_held(), lease.remaining()), (false, Duration::ZERO));
    assert_eq!(lease.status(), Status::Lost(lost.clone()));
    assert!(lease.cancellation_token().is_cancelled(), "asked for after the loss");
    assert_eq!(lease.lost().await, lost, "asked for after the loss");
    assert!(matches!(lease.renew().await, Err(Error::Lost(again)) if again == lost));
    assert!(matches!(lease.release().await, Err(Error::Lost(again)) if again == lost));

    // The client that forces the release knows at once that its own lease has ended.
    let lease = within(HANGS, "the lock", one.lock("job").acquire()).await.unwrap();
    assert!(one.lock("job").label("ops").force_release_because("stuck since noon").await.unwrap());
    let Err(Error::Lost(lost)) = lease.check() else { panic!("{lease:?}") };
    assert_eq!((lost.reason(), by(&lost)), (LossReason::Forced, ("ops".into(), Some("stuck since noon".into()))));
}

async fn a_taken_key_is_left_to_its_taker(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    two.lock("job").force_release().await.unwrap();
    let taker = two.lock("job").acquire().await.unwrap();

    let lost = within(HANGS, "lost()", lease.lost()).await;
    assert_eq!(lost.reason(), LossReason::Forced);
    assert!(matches!(lease.release().await, Err(Error::Lost(_))));
    let holder = one.lock("job").holder().await.unwrap().unwrap();
    assert_eq!((holder.label(), holder.fence()), (Some("two"), Some(taker.fence())));
    taker.check().unwrap();
    taker.release().await.unwrap().confirmed();
}

async fn max_hold_tells_and_lets_the_key_run_out(place: Place) {
    let (one, two) = place.two_programs().await;
    let max_hold = TTL * 2;
    let lease = one.lock("job").max_hold(max_hold).acquire().await.unwrap();
    let lost = within(HANGS, "lost()", lease.lost()).await;
    assert_eq!((lost.reason(), lost.held_for()), (LossReason::MaxHold, max_hold));
    assert!(lease.check().is_err());
    // The key stays until the deadline, to give the job time to stop.
    assert!(two.lock("job").try_acquire().await.unwrap().is_none(), "the key is still there");
    drop(within(TTL + HANGS, "the key's end", two.lock("job").acquire()).await.unwrap());
}

async fn a_lease_whose_work_stalls_ends_by_its_deadline(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").stall_after(TTL / 2).acquire().await.unwrap();
    let mut changes = lease.status_changes();
    assert_eq!(within(HANGS, "a slow step", changes.next()).await, Some(Status::AtRisk));
    lease.progress();
    assert_eq!(within(HANGS, "the next step", changes.next()).await, Some(Status::Held));
    let lost = within(HANGS, "lost()", lease.lost()).await;
    assert_eq!(lost.reason(), LossReason::Stalled);
    assert!(lease.check().is_err());
    drop(within(TTL + HANGS, "the key's end", two.lock("job").acquire()).await.unwrap());
}

async fn release_after_max_hold_deletes_and_is_ok(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").max_hold(TTL).acquire().await.unwrap();
    lease.renew().await.unwrap();
    within(HANGS, "lost()", lease.lost()).await;
    lease.release().await.unwrap().confirmed();
    assert!(two.lock("job").try_acquire().await.unwrap().is_some());

    let lease = one.lock("another").max_hold(TTL).acquire().await.unwrap();
    lease.renew().await.unwrap();
    within(HANGS, "lost()", lease.lost()).await;
    its_drop_frees(lease, two.lock("another")).await;
}

async fn a_release_is_told_as_such(place: Place) {
    let leases = place.program("one").await;
    let lease = leases.lock("job").acquire().await.unwrap();
    let (lost, token) = (lease.lost(), lease.cancellation_token());
    lease.release().await.unwrap().confirmed();
    assert_eq!(lost.await.reason(), LossReason::Released);
    assert!(token.is_cancelled());

    let lease = leases.lock("job").acquire().await.unwrap();
    let lost = lease.lost();
    drop(lease);
    assert_eq!(lost.await.reason(), LossReason::Released);
}

async fn status_changes_end_with_the_last_status(place: Place) {
    let leases = place.program("one").await;
    let lease = leases.lock("job").acquire().await.unwrap();
    let (mut early, handle) = (lease.status_changes(), lease.handle());
    lease.release().await.unwrap().confirmed();
    assert_eq!(early.next().await, Some(Status::Released));
    assert_eq!(early.next().await, None);
    assert_eq!(handle.status_changes().next().await, None, "nothing changes from here on");
}

async fn a_cancelled_child_cancels_nobody_else(place: Place) {
    let leases = place.program("one").await;
    let lease = leases.lock("job").acquire().await.unwrap();
    let (mine, yours) = (lease.cancellation_token(), lease.cancellation_token());
    mine.cancel();
    assert!(!yours.is_cancelled() && lease.is_held());
}

async fn a_handle_outlives_its_lease_and_says_so(place: Place) {
    let leases = place.program("one").await;
    let lease = leases.lock("job").acquire().await.unwrap();
    let handle = lease.handle();
    handle.clone().check().unwrap();
    assert_eq!((handle.name(), handle.fence(), handle.hold_count()), ("job", lease.fence(), 1));
    lease.release().await.unwrap().confirmed();
    assert_eq!(ending(handle.check()).reason(), LossReason::Released);
    assert_eq!((handle.status(), handle.remaining(), handle.hold_count()), (Status::Released, Duration::ZERO, 0));
}

async fn busy_is_no_error_for_the_task_that_has_the_lock_either(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job");
    let lease = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let Error::TimedOut { holder, .. } = in_vain(&lock, Duration::from_millis(30)).await else { panic!("it is held") };
    assert!(holder.is_ours() && holder.fence() == Some(lease.fence()), "{holder:?}");
    let mut waiting = Box::pin(lock.acquire());
    assert!(poll_once(&mut waiting).await.is_none());
    lease.release().await.unwrap().confirmed();
    drop(within(HANGS, "its turn", waiting).await.unwrap());
}

async fn an_acquire_under_way_is_in_nobodys_way(place: Place) {
    let (one, two) = place.two_programs().await;
    let held = one.lock("job").acquire().await.unwrap();
    for reentrant in [false, true] {
        let lock = two.lock("job").reentrant(reentrant);
        let mut waiting = Box::pin(lock.acquire());
        assert!(poll_once(&mut waiting).await.is_none());
        assert!(lock.try_acquire().await.unwrap().is_none(), "another holder has it");
        drop(waiting);
        assert!(lock.try_acquire().await.unwrap().is_none());
    }
    drop(held);
}

async fn a_holder_knows_whether_it_is_one_of_ours(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    for (leases, ours) in [(&one, true), (&two, false)] {
        let holder = leases.lock("job").holder().await.unwrap().unwrap();
        assert_eq!(holder.is_ours(), ours, "{holder:?}");
        assert_eq!(holder.fence(), Some(lease.fence()));
    }
    lease.release().await.unwrap().confirmed();
}

async fn re_entry_shares_the_acquisition(place: Place) {
    let (one, two) = place.two_programs().await;
    let lock = one.lock("job").reentrant(true);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.try_acquire().await.unwrap().unwrap();
    let third = lock.acquire_within(Duration::ZERO).await.unwrap();
    assert_eq!((inner.fence(), third.fence()), (outer.fence(), outer.fence()));
    assert_eq!((outer.hold_count(), inner.hold_count()), (3, 3));
    drop(third);
    assert_eq!(outer.hold_count(), 2);

    // Signals are per lease. The key is deleted with the last lease, in any order.
    let (outer_lost, inner_lost) = (outer.lost(), inner.lost());
    outer.release().await.unwrap().confirmed();
    assert_eq!(outer_lost.await.reason(), LossReason::Released);
    inner.check().unwrap();
    assert!(two.lock("job").try_acquire().await.unwrap().is_none());
    inner.release().await.unwrap().confirmed();
    assert_eq!(inner_lost.await.reason(), LossReason::Released);
    assert!(two.lock("job").try_acquire().await.unwrap().is_some());
}

async fn re_entry_must_be_asked_for_both_times(place: Place) {
    let leases = place.program("one").await;
    let (plain, reentrant) = (leases.lock("job"), leases.lock("job").reentrant(true));
    let held = plain.acquire().await.unwrap();
    assert!(reentrant.try_acquire().await.unwrap().is_none());
    held.release().await.unwrap().confirmed();
    let _held = reentrant.acquire().await.unwrap();
    assert!(plain.try_acquire().await.unwrap().is_none());
}

async fn re_entrant_acquires_under_way_share_what_one_of_them_wins(place: Place) {
    let (one, two) = place.two_programs().await;
    let lock = two.lock("job").reentrant(true);
    for _ in 0..3 {
        let held = one.lock("job").acquire().await.unwrap();
        let (mut first, mut second) = (Box::pin(lock.acquire()), Box::pin(lock.acquire()));
        assert!(poll_once(&mut first).await.is_none() && poll_once(&mut second).await.is_none());
        held.release().await.unwrap().confirmed();
        let (first, second) = within(HANGS, "both", async { tokio::join!(first, second) }).await;
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!((first.fence(), first.hold_count()), (second.fence(), 2));
        first.release().await.unwrap().confirmed();
        second.release().await.unwrap().confirmed();
    }
    // If the first request is not polled, the second does not wait for it.
    let held = one.lock("job").acquire().await.unwrap();
    let mut first = Box::pin(lock.acquire());
    assert!(poll_once(&mut first).await.is_none());
    held.release().await.unwrap().confirmed();
    let second = within(HANGS, "the second", lock.acquire()).await.unwrap();
    let first = within(HANGS, "the first", first).await.unwrap();
    assert_eq!(first.fence(), second.fence());
}

async fn a_handle_shares_its_lease_by_value(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    let handle = lease.handle();
    let shared = handle.share().unwrap();
    assert_eq!((shared.fence(), shared.hold_count(), lease.hold_count()), (lease.fence(), 2, 2));
    let lost = lease.lost();
    lease.release().await.unwrap().confirmed();
    assert_eq!(lost.await.reason(), LossReason::Released);
    shared.renew().await.unwrap();
    assert!(two.lock("job").try_acquire().await.unwrap().is_none(), "the other goes on");
    assert_eq!(ending(handle.share()).reason(), LossReason::Released, "its own lease has ended");
    let handle = shared.handle();
    shared.release().await.unwrap().confirmed();
    assert_eq!(ending(handle.share()).reason(), LossReason::Released);
    drop(two.lock("job").try_acquire().await.unwrap().unwrap());
}

async fn re_entry_after_a_loss_is_a_new_acquisition(place: Place) {
    let (one, two) = place.two_programs().await;
    let lock = one.lock("job").reentrant(true);
    let lost = lock.acquire().await.unwrap();
    two.lock("job").force_release().await.unwrap();
    within(HANGS, "lost()", lost.lost()).await;
    let again = lock.acquire().await.unwrap();
    assert!(again.fence() > lost.fence());
    assert_eq!((again.hold_count(), lost.hold_count()), (1, 1));
    drop(lost);
    again.renew().await.unwrap();
    assert!(matches!(lock.acquire().await, Ok(third) if third.fence() == again.fence()));
}

/// The documentation warns of this: branches of `join!` are one task.
async fn re_entry_lets_all_branches_of_a_join_in(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job").reentrant(true);
    let inside = tokio::sync::watch::Sender::new(0);
    // Each branch acquires once the one before it is inside, and stays until all are.
    let branch = async |n: u32| {
        let mut others = inside.subscribe();
        others.wait_for(|&count| count == n).await.unwrap();
        let lease = lock.acquire().await.unwrap();
        inside.send_modify(|count| *count += 1);
        others.wait_for(|&count| count == 3).await.unwrap();
        lease.fence()
    };
    let (a, b, c) = within(HANGS, "all inside at once", async { tokio::join!(branch(0), branch(1), branch(2)) }).await;
    assert_eq!((a, b), (b, c));
}

/// The documentation warns of this: a task that acquires and hands out leases is one owner, whichever task uses them.
async fn re_entry_lets_a_dispatcher_hand_out_many_leases(place: Place) {
    let leases = place.program("one").await;
    let careless = leases.lock("job").reentrant(true);
    let mut workers = Vec::new();
    for _ in 0..5 {
        let lease = careless.acquire().await.unwrap();
        workers.push(tokio::spawn(async move { lease.hold_count() }));
    }
    let careful = leases.lock("another job");
    let lease = careful.acquire().await.unwrap();
    assert!(careful.try_acquire().await.unwrap().is_none(), "unless it does not ask for it");
    drop(lease);
    for worker in workers {
        worker.await.unwrap();
    }
}

async fn the_owner_stays_when_the_lease_moves(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job");
    let lease = lock.acquire().await.unwrap();
    let (lock_there, done) = (lock.clone(), oneshot::channel::<()>());
    let worker = tokio::spawn(async move {
        let busy = lock_there.try_acquire().await.unwrap().is_none();
        done.1.await.unwrap();
        drop(lease);
        busy
    });
    assert!(lock.holder().await.unwrap().is_some_and(|holder| holder.is_ours()), "the lease is still ours");
    assert!(lock.clone().reentrant(true).try_acquire().await.unwrap().is_none(), "nor was it asked for the first time");
    done.0.send(()).unwrap();
    assert!(worker.await.unwrap(), "the task that has the lease is not its owner");
}

async fn an_identity_spans_tasks(place: Place) {
    let leases = place.program("one").await;
    let owner = Owner::unique();
    assert_eq!(owner, owner.clone());
    assert_ne!(owner, Owner::unique());
    let lock = leases.lock("job").owner(owner).reentrant(true);
    let outer = lock.acquire().await.unwrap();
    let there = lock.clone();
    let inner = tokio::spawn(async move { there.acquire().await }).await.unwrap().unwrap();
    assert_eq!((inner.fence(), inner.hold_count()), (outer.fence(), 2));
    assert!(leases.lock("job").owner(Owner::unique()).try_acquire().await.unwrap().is_none());
}

async fn the_anonymous_wait_even_for_themselves(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job").owner(Owner::anonymous()).reentrant(true);
    let lease = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let patience = Duration::from_millis(30);
    let error = in_vain(&lock, patience).await;
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    lease.release().await.unwrap().confirmed();
    drop(lock.acquire().await.unwrap());
}

async fn outside_a_task_the_thread_is_the_owner(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job").reentrant(true);
    let runtime = tokio::runtime::Handle::current();
    let there = lock.clone();
    let (first, second) = tokio::task::spawn_blocking(move || {
        let first = runtime.block_on(there.acquire());
        (first, runtime.block_on(there.try_acquire()))
    })
    .await
    .unwrap();
    assert_eq!(first.unwrap().fence(), second.unwrap().unwrap().fence(), "it is admitted again");
    let lease = lock.acquire().await.unwrap();
    let there = lock.clone();
    let other = tokio::task::spawn_blocking(move || tokio::runtime::Handle::current().block_on(there.try_acquire()));
    assert!(other.await.unwrap().unwrap().is_none(), "another owner finds it busy");
    drop(lease);
}

async fn one_at_a_time(place: Place) {
    let (one, two) = place.two_programs().await;
    let inside = Arc::new(AtomicBool::new(false));
    // An unreachable waiter polls every third of a grant timeout.
    let rounds = if place.fair && !place.pushes { 1 } else { 4 };
    let mut tasks = Vec::new();
    for n in 0..24 {
        let lock = if n % 2 == 0 { &one } else { &two }.lock("job");
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..rounds {
                let lease = lock.acquire().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two inside");
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                lease.release().await.unwrap().confirmed();
            }
        }));
    }
    for task in tasks {
        within(Duration::from_secs(60), "every task", task).await.unwrap();
    }
}

async fn holder_reads_what_the_key_says(place: Place) {
    let (one, two) = place.two_programs().await;
    assert_eq!(two.lock("job").holder().await.unwrap(), None);
    let lease = one.lock("job").acquire().await.unwrap();
    let holder = two.lock("job").holder().await.unwrap().unwrap();
    assert_eq!((holder.label(), holder.fence()), (Some("one"), Some(lease.fence())));
    assert!(holder.remaining().is_some_and(|remaining| remaining <= TTL));
    let token = holder.token().unwrap();
    assert!(token.starts_with("lh1:") && token.len() == 40, "{token}");
    let value = Some(format!("{token}:{}@one", lease.fence()));
    let servers = place.servers_of("job");
    let shows_it = servers.iter().filter(|server| server.wire().get("job") == value).count();
    assert!(2 * shows_it >= servers.len(), "a majority shows {value:?}");
    lease.release().await.unwrap().confirmed();
    assert_eq!(two.lock("job").holder().await.unwrap(), None);
}

async fn what_is_held_is_listed_by_its_name(place: Place) {
    let plain = place.program("one").await;
    let prefixed = place.builder().prefix("[a]*:").build().await.unwrap();
    let prefixed = Program { leases: prefixed, uses: place.uses };
    // A lock cannot have the name of a companion.
    let token = "lh1:0d9a60f5-51a8-4bd6-a02c-0123456789ab@copied";
    for (key, value) in [("foreign", "another library's"), ("{job}:lh:copy", token)] {
        for server in place.servers_of(key) {
            server.wire().must(&["SET", key, value, "PX", "60000"]);
        }
    }
    let mut leases = Vec::new();
    for (leases_of, name) in
        [(&plain, "job:1"), (&plain, "job:2"), (&plain, "a:job"), (&plain, "*"), (&prefixed, "own")]
    {
        leases.push(leases_of.lock(name).acquire().await.unwrap());
    }
    let listed = async |of: &Client, pattern: &str| {
        let locks = of.list(pattern).await.unwrap();
        locks.iter().map(|lock| lock.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&plain, "*").await, ["*", "[a]*:own", "a:job", "job:1", "job:2"]);
    assert_eq!(listed(&plain, "job:*").await, ["job:1", "job:2"]);
    assert_eq!(listed(&plain, "job:[^1]").await, ["job:2"]);
    assert_eq!(listed(&plain, "job:?x").await, Vec::<String>::new());
    assert_eq!(listed(&plain, r"\*").await, ["*"]);
    // As a pattern, the prefix would match another name.
    assert_eq!(listed(&prefixed, "*").await, ["own"]);
    let listing = plain.list("job:1").await.unwrap();
    let [one] = &listing[..] else { panic!("{listing:?}") };
    assert_eq!(
        one.holder().await.unwrap().and_then(|holder| holder.fence()),
        leases.first().map(leasehold::Lease::fence)
    );
    for lease in leases {
        lease.release().await.unwrap().confirmed();
    }
    // On a minority of the nodes it may remain for a moment.
    let asked = Instant::now();
    while !listed(&plain, "*").await.is_empty() {
        assert!(asked.elapsed() < HANGS, "it is listed still");
    }
}

async fn force_release_takes_the_lock_from_whoever_has_it(place: Place) {
    let (one, two) = place.two_programs().await;
    assert!(!two.lock("job").force_release().await.unwrap(), "it is free");
    let lease = one.lock("job").acquire().await.unwrap();
    assert!(two.lock("job").force_release().await.unwrap());
    assert!(two.lock("job").try_acquire().await.unwrap().is_some());
    drop(lease);
}

async fn its_holder_hears_who_took_it_by_force_and_why(place: Place) {
    let (one, two) = place.two_programs().await;
    for reason in ["", "two\nlines", &"x".repeat(257)] {
        let error = two.lock("job").force_release_because(reason).await.unwrap_err();
        assert!(matches!(&error, Error::Config(text) if text.to_string().contains("reason")), "{error}");
    }
    let lease = one.lock("job").acquire().await.unwrap();
    assert!(two.lock("job").label("ops").force_release_because("stuck since noon").await.unwrap());
    let next = two.lock("job").acquire().await.unwrap();
    let lost = within(HANGS, "lost()", lease.lost()).await;
    assert_eq!((lost.reason(), by(&lost)), (LossReason::Forced, ("ops".into(), Some("stuck since noon".into()))));
    assert!(lost.to_string().ends_with("it was taken away by force, by \"ops\" (\"stuck since noon\")"), "{lost}");
    assert!(matches!(lease.release().await, Err(Error::Lost(again)) if by(&again) == by(&lost)));
    next.release().await.unwrap().confirmed();

    // The releasing task may be the first to know.
    let lease = one.lock("job").acquire().await.unwrap();
    assert!(two.lock("job").force_release().await.unwrap());
    let lost = ending(lease.release().await);
    assert_eq!((lost.reason(), by(&lost)), (LossReason::Forced, ("two".into(), None)));
}

fn by(lost: &Lost) -> (String, Option<String>) {
    let forced = lost.forced().unwrap_or_else(|| panic!("{lost:?}"));
    (forced.label().to_owned(), forced.reason().map(ToOwned::to_owned))
}

async fn run_returns_what_the_work_returned(place: Place) {
    let (one, two) = place.two_programs().await;
    let work = |lease: leasehold::LeaseHandle| async move {
        lease.check()?;
        Ok::<Fence, Error>(lease.fence())
    };
    let fence = one.lock("job").run(work).await.unwrap();
    assert!(fence > Fence::try_from(0_u64).unwrap());
    assert!(two.lock("job").try_acquire().await.unwrap().is_some(), "released");
}

/// A program's own error.
#[derive(Debug)]
enum JobError {
    Lock(Error),
    NoRows(Fence),
}

impl From<Error> for JobError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

async fn no_rows(lease: LeaseHandle) -> Result<Infallible, JobError> {
    lease.check()?;
    Err(JobError::NoRows(lease.fence()))
}

async fn work_that_fails_gives_its_own_error_and_releases(place: Place) {
    let (one, two) = place.two_programs().await;
    let (lock, theirs) = (one.lock("job"), two.lock("job"));
    let grace = TTL / 4;
    for how in 0..6 {
        let outcome = match how {
            0 => lock.run(no_rows).await.map(drop),
            1 => lock.run_within(HANGS, no_rows).await.map(drop),
            2 => lock.try_run(no_rows).await.map(drop),
            3 => lock.clone().grace(grace).run(no_rows).await.map(drop),
            4 => lock.acquire().await.unwrap().run(no_rows).await.map(drop),
            _ => lock.clone().grace(grace).acquire().await.unwrap().run(no_rows).await.map(drop),
        };
        assert!(matches!(outcome, Err(JobError::NoRows(fence)) if u64::from(fence) > 0), "{how}: {outcome:?}");
        theirs.try_acquire().await.unwrap().expect("released").release().await.unwrap().confirmed();
    }
    // A failure of the lock has the same type.
    let outcome = one.lock("").run(no_rows).await;
    assert!(matches!(&outcome, Err(JobError::Lock(Error::Config(_)))), "{outcome:?}");
    let taken = async |_| {
        theirs.force_release().await?;
        pending::<Result<(), JobError>>().await
    };
    let outcome = within(HANGS, "the loss", lock.run(taken)).await;
    assert!(matches!(&outcome, Err(JobError::Lock(Error::Lost(_)))), "{outcome:?}");
}

type Work<'a> = Box<dyn FnOnce(LeaseHandle) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + 'a>> + 'a>;

async fn run_fits_spawn_borrows_boxes_and_local_sets(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job");

    let spawned = lock.clone();
    let spawned = tokio::spawn(async move { spawned.run(|lease| async move { Ok::<_, Error>(lease.fence()) }).await });
    spawned.await.unwrap().unwrap();

    let mut log = Vec::new();
    let push = async |lease: LeaseHandle| {
        log.push(lease.fence());
        Ok::<_, Error>(())
    };
    lock.run(push).await.unwrap();
    assert_eq!(log.len(), 1);

    let boxed: Work<'_> = Box::new(|lease| Box::pin(async move { Ok(lease.fence().into()) }));
    lock.run(boxed).await.unwrap();

    let local = tokio::task::LocalSet::new();
    let not_send = std::rc::Rc::new(7);
    let answer = local.run_until(lock.run(|_| async move { Ok::<_, Error>(*not_send) })).await.unwrap();
    assert_eq!(answer, 7);
}

async fn run_stops_the_work_when_the_lease_is_lost(place: Place) {
    let (one, two) = place.two_programs().await;
    let (started, running) = oneshot::channel();
    let lock = one.lock("job");
    let run = tokio::spawn(async move {
        lock.run(|_| async move {
            started.send(()).unwrap();
            std::future::pending::<Result<(), Error>>().await
        })
        .await
    });
    within(HANGS, "the work", running).await.unwrap();
    two.lock("job").force_release().await.unwrap();
    let error = within(HANGS, "the end of run", run).await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Lost(lost) if lost.reason() == LossReason::Forced), "{error}");
}

async fn run_drops_the_work_before_the_lock_is_free(place: Place) {
    struct Witness(Arc<AtomicBool>);
    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (one, two) = place.two_programs().await;
    let dropped = Arc::new(AtomicBool::new(false));
    let witness = Witness(dropped.clone());
    let (started, running) = oneshot::channel();
    let lock = one.lock("job").max_hold(TTL);
    let run = tokio::spawn(async move {
        lock.run(|_| async move {
            let _witness = witness;
            started.send(()).unwrap();
            std::future::pending::<Result<(), Error>>().await
        })
        .await
    });
    within(HANGS, "the work", running).await.unwrap();
    // The lease is lost by `max_hold`. The key is deleted only when the lease is dropped.
    let after = within(HANGS, "the lock", two.lock("job").acquire()).await.unwrap();
    assert!(dropped.load(Ordering::SeqCst), "the work was still there when the lock was free");
    drop(after);
    assert!(matches!(run.await.unwrap(), Err(Error::Lost(_))));
}

async fn run_that_could_not_acquire_never_starts_the_work(place: Place) {
    let leases = place.program("one").await;
    let started = AtomicBool::new(false);
    let work = async |_| {
        started.store(true, Ordering::SeqCst);
        Ok(())
    };
    let refused = leases.lock("").run(work).await;
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    assert!(!started.into_inner());
}

async fn run_skips_the_work_of_a_busy_lock_or_waits_for_a_while(place: Place) {
    let (one, two) = place.two_programs().await;
    let lock = two.lock("job");
    // Long enough for an answer, without which the holder is unknown.
    let limit = TTL / 2;
    let lease = one.lock("job").acquire().await.unwrap();
    let never = async |_| -> Result<(), Error> { panic!("it is busy") };
    assert_eq!(lock.try_run(never).await.unwrap(), None);
    let error = lock.run_within(limit, never).await.unwrap_err();
    assert_eq!(error.timed_out().and_then(Holder::label), Some("one"), "{error}");
    assert!(error.retry_after().is_some_and(|wait| wait <= TTL), "{error}");
    lease.release().await.unwrap().confirmed();
    // A fair lock may be granted to the wait that has just ended, until the grant is taken back.
    assert_eq!(lock.run_within(HANGS, async |_| Ok::<_, Error>(2)).await.unwrap(), 2);
    assert_eq!(lock.try_run(async |_| Ok::<_, Error>(1)).await.unwrap(), Some(1));
    assert!(one.lock("job").try_acquire().await.unwrap().is_some(), "released");
}

async fn work_with_a_grace_may_tidy_up_after_a_loss(place: Place) {
    let (one, two) = place.two_programs().await;
    let (grace, tidied) = (TTL / 4, Arc::new(AtomicBool::new(false)));
    let too_long = one.lock("job").grace(TTL / 2 + Duration::from_millis(1)).run(async |_| Ok(())).await;
    assert!(matches!(&too_long, Err(Error::Config(text)) if text.to_string().contains("grace")), "{too_long:?}");
    // An owner that re-enters gets the TTL of its first acquire.
    let lock = one.lock("again").owner(Owner::unique()).reentrant(true);
    let first = lock.acquire().await.unwrap();
    let too_long = lock.ttl(2 * TTL).grace(TTL).run(async |_| Ok(())).await;
    assert!(matches!(&too_long, Err(Error::Config(text)) if text.to_string().contains("grace")), "{too_long:?}");
    first.release().await.unwrap().confirmed();
    for stops in [true, false] {
        let (tidied, began) = (tidied.clone(), Arc::new(AtomicBool::new(false)));
        let (started, running) = oneshot::channel();
        let (lock, done) = (one.lock("job"), tidied.clone());
        let run = tokio::spawn(async move {
            let work = async |lease: LeaseHandle| {
                started.send(()).unwrap();
                assert_eq!(lease.lost().await.reason(), LossReason::Forced);
                began.store(true, Ordering::SeqCst);
                if stops {
                    tokio::task::yield_now().await;
                    done.store(true, Ordering::SeqCst);
                } else {
                    std::future::pending::<()>().await;
                }
                Ok(())
            };
            lock.clone().grace(grace).run(work).await
        });
        within(HANGS, "the work", running).await.unwrap();
        two.lock("job").force_release().await.unwrap();
        let lost = ending(within(HANGS, "the end of run", run).await.unwrap());
        assert_eq!(lost.reason(), LossReason::Forced, "it was not protected to its end: {lost:?}");
        assert!(tidied.load(Ordering::SeqCst));
    }
}

/// Wherever the acquire was dropped, its attempt is taken back before the next one.
async fn a_dropped_acquire_is_in_nobodys_way(place: Place) {
    let program = place.program("one").await;
    for round in 0..100 {
        let lock = program.lock(format!("dropped:{}", round % 10));
        {
            let mut acquiring = pin!(lock.acquire());
            for _ in 0..round % 8 {
                if poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context).is_ready())).await {
                    break;
                }
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
        let lease = lock.try_acquire().await.unwrap();
        assert!(lease.is_some(), "round {round}: busy by an attempt of its own");
    }
}

async fn a_dropped_lease_is_free_for_the_next_line(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job");
    let mut lease = lock.try_acquire().await.unwrap();
    for turn in 0..1_000 {
        assert!(lease.is_some(), "busy in turn {turn}");
        drop(lease);
        lease = lock.try_acquire().await.unwrap();
    }
    // Nor does it delay a waiter: no second is lost by waiting for a notification.
    drop(lease);
    drop(within(HANGS, "the lock", lock.acquire_within(Duration::ZERO)).await.unwrap());
    if place.is_in_memory() {
        assert!(lock.holder().await.unwrap().is_none(), "it is free at once for everybody");
    }
}

async fn a_lock_is_kept_for_its_time_however_it_is_let_go_of(place: Place) {
    let (one, two) = place.two_programs().await;
    let keep = TTL / 2;
    for how in 0..4 {
        let name = format!("job:{how}");
        let lock = one.lock(&name).keep_for(keep);
        let began = Instant::now();
        match how {
            0 => lock.acquire().await.unwrap().release().await.unwrap().confirmed(),
            1 => drop(lock.acquire().await.unwrap()),
            2 => lock.run(async |_| Ok::<_, Error>(())).await.unwrap(),
            // A shorter interval does not shorten the life of the key.
            _ => lock.acquire().await.unwrap().release_keeping(Duration::from_millis(1)).await.unwrap().confirmed(),
        }
        assert!(lock.try_acquire().await.unwrap().is_none(), "not even for its former holder");
        let holder = two.lock(&name).holder().await.unwrap().unwrap();
        assert_eq!(holder.label(), Some("one (released)"));
        drop(within(HANGS, "the kept key's end", two.lock(&name).acquire()).await.unwrap());
        assert!(began.elapsed() + Duration::from_millis(2) >= keep, "{how}: {:?}", began.elapsed());
    }
    // A late release keeps nothing.
    let lock = one.lock("job").keep_for(Duration::from_millis(1));
    let lease = lock.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    lease.release().await.unwrap().confirmed();
    assert!(two.lock("job").try_acquire().await.unwrap().is_some());
}

async fn what_cannot_be_kept_is_refused(place: Place) {
    const LONGEST: Duration = Duration::from_secs(31 * 24 * 60 * 60);
    let leases = place.program("one").await;
    let longer = LONGEST + Duration::from_nanos(1);
    let refused = leases.lock("job").keep_for(longer).acquire().await.unwrap_err();
    assert!(matches!(&refused, Error::Config(text) if text.to_string().contains("keep_for")), "{refused}");
    for keep in [longer, Duration::ZERO] {
        let lease = leases.lock("job").acquire().await.unwrap();
        let refused = lease.release_keeping(keep).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Config(text) if text.to_string().contains("from 1 ms to 31 days")),
            "{refused}"
        );
        assert!(leases.lock("job").try_acquire().await.unwrap().is_some(), "it is dropped");
    }
    leases.lock("job").keep_for(LONGEST).acquire().await.unwrap().release().await.unwrap().confirmed();
    let left = leases.lock("job").holder().await.unwrap().and_then(|holder| holder.remaining()).unwrap();
    assert!(left + HANGS > LONGEST, "{left:?}");
}

async fn a_lock_is_acquired_once_in_its_interval_however_it_is_let_go_of(place: Place) {
    let (one, two) = place.two_programs().await;
    let (lag, mut all) = (Arc::new(Lag::start()), JoinSet::new());
    // Longer than the TTL, and shorter: both a renewal and a release contribute to it.
    for (interval, hold) in [(TTL + TTL / 2, Duration::ZERO), (TTL / 2, Duration::ZERO), (TTL + TTL / 2, TTL / 2)] {
        for how in ["release", "drop", "run", "release_keeping", "close"] {
            let program = place.program("first").await;
            let name = format!("job:{how}:{interval:?}:{hold:?}");
            let (first, others) = (program.lock(&name).once_per(interval), [one.lock(&name), two.lock(&name)]);
            let lag = lag.clone();
            all.spawn(async move { is_acquired_once((first, interval, hold), (program, how), others, &lag).await });
        }
    }
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
    // A release after the interval keeps nothing.
    let lock = one.lock("job").once_per(Duration::from_millis(1));
    let lease = lock.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    lease.release().await.unwrap().confirmed();
    assert!(two.lock("job").try_acquire().await.unwrap().is_some());
}

async fn is_acquired_once(
    (lock, interval, hold): (Lock, Duration, Duration),
    (program, how): (Program, &str),
    [next, looks]: [Lock; 2],
    lag: &Lag,
) {
    // A server counts in whole milliseconds.
    const MILLIS: Duration = Duration::from_millis(2);
    let began = Instant::now();
    let lease = lock.acquire().await.unwrap();
    let acquired = Instant::now();
    assert!(lease.remaining() < TTL, "the deadline is that of the TTL");
    let lives = async || looks.holder().await.unwrap().and_then(|holder| holder.remaining()).unwrap() + MILLIS;
    assert!(lives().await + began.elapsed() >= interval, "acquired");
    tokio::time::sleep(hold).await;
    lease.renew().await.unwrap();
    assert!(lives().await + began.elapsed() >= interval, "renewed");
    match how {
        "release" => lease.release().await.unwrap().confirmed(),
        "drop" => drop(lease),
        "run" => lease.run(async |_| Ok::<_, Error>(())).await.unwrap(),
        // A shorter interval does not shorten the life of the key.
        "release_keeping" => lease.release_keeping(Duration::from_millis(1)).await.unwrap().confirmed(),
        _ => within(HANGS, "the close", program.close()).await,
    }
    if began.elapsed() < interval / 2 && how == "release" {
        assert_eq!(looks.holder().await.unwrap().unwrap().label(), Some("first (released)"));
        assert!(lock.try_acquire().await.unwrap().is_none(), "not even for its former holder");
    }
    let next = within(interval + HANGS, "the interval's end", next.acquire()).await.unwrap();
    let (from, to) = (began.elapsed(), acquired.elapsed());
    assert!(from + MILLIS >= interval, "{how}: {from:?} after an acquire of {interval:?}");
    assert!(to <= interval.max(hold) + TTL / 2 + lag.worst(), "{how}: {to:?} after an acquire of {interval:?}");
    next.release().await.unwrap().confirmed();
}

async fn a_key_outlives_its_lease_by_the_delay(place: Place) {
    const DELAY: Duration = Duration::from_secs(5);
    let leases = place.program("one").await;
    let acquire = leases.lock("job").lock_delay(DELAY).acquire();
    let lease = acquire.await.unwrap();
    for turn in ["acquired", "renewed", "renewed by itself"] {
        match turn {
            "acquired" => {}
            "renewed" => lease.renew().await.unwrap(),
            _ => {
                tokio::time::sleep(TTL).await;
                lease.check().unwrap();
            }
        }
        let key_lives = leases.lock("job").holder().await.unwrap().and_then(|holder| holder.remaining()).unwrap();
        let least = DELAY + TTL / 4;
        assert!(key_lives >= least && key_lives <= TTL + DELAY, "{turn}: {key_lives:?}");
        assert!(lease.remaining() < TTL, "{turn}: the deadline is that of the TTL");
    }
    // Simultaneous requests are batched.
    let locks: Vec<_> = (0..10).map(|n| leases.lock(format!("many:{n}")).lock_delay(DELAY)).collect();
    let acquires: Vec<_> = locks.iter().map(|lock| tokio::spawn(lock.acquire())).collect();
    for (lock, acquire) in locks.iter().zip(acquires) {
        let lease = acquire.await.unwrap().unwrap();
        let key_lives = lock.holder().await.unwrap().and_then(|holder| holder.remaining()).unwrap();
        assert!(key_lives >= DELAY + TTL / 4 && key_lives <= TTL + DELAY, "{key_lives:?}");
        lease.release().await.unwrap().confirmed();
    }
}

async fn a_release_frees_a_lock_with_a_delay_at_once(place: Place) {
    let (one, two) = place.two_programs().await;
    let lock = one.lock("job").lock_delay(Duration::from_secs(60 * 60));
    lock.acquire().await.unwrap().release().await.unwrap().confirmed();
    drop(two.lock("job").try_acquire().await.unwrap().expect("released"));
    within(HANGS, "the lock", lock.run(async |_| Ok::<_, Error>(()))).await.unwrap();
    its_drop_frees(within(HANGS, "the lock", lock.acquire()).await.unwrap(), two.lock("job")).await;
    // A lease past its `max_hold` is released too.
    let lease = within(HANGS, "the lock", lock.max_hold(TTL).acquire()).await.unwrap();
    assert_eq!(within(HANGS, "its end", lease.lost()).await.reason(), LossReason::MaxHold);
    lease.release().await.unwrap().confirmed();
    assert!(two.lock("job").try_acquire().await.unwrap().is_some(), "released");
}

async fn a_key_cannot_outlive_its_lease_by_just_any_time(place: Place) {
    const LONGEST: Duration = Duration::from_secs(31 * 24 * 60 * 60);
    const HOUR: Duration = Duration::from_secs(60 * 60);
    const NANO: Duration = Duration::from_nanos(1);
    let leases = place.program("one").await;
    let refused = async |lock: Lock, words: [&str; 2]| match lock.acquire().await {
        Err(Error::Config(text)) => {
            assert!(words.iter().all(|word| text.to_string().contains(word)), "{words:?} in {text}");
        }
        other => panic!("{lock:?}: {other:?}"),
    };
    for interval in [Duration::ZERO, LONGEST + NANO, LONGEST + HOUR, Duration::MAX] {
        // An error repeats the value that was given, not a converted one.
        refused(leases.lock("job").once_per(interval), [&format!("once_per is {interval:?}:"), "from 1 ms to 31 days"])
            .await;
    }
    for delay in [HOUR + NANO, Duration::MAX] {
        refused(leases.lock("job").lock_delay(delay), [&format!("lock_delay is {delay:?}:"), "at most 60 min"]).await;
        let built = place.builder().lock_delay(delay).build().await;
        assert!(
            matches!(&built, Err(Error::Config(text)) if text.to_string().contains(&format!("is {delay:?}"))),
            "{built:?}"
        );
    }
    for label in [String::new(), "x".repeat(129), "two\nlines".into(), "\u{1b}[2J".into()] {
        refused(leases.lock("job").label(label), ["label is ", "1 to 128 bytes"]).await;
    }
    // Nor is a text repeated that is too long.
    let long = "x".repeat(100_000);
    refused(leases.lock("job").label(&*long), ["label is 100000 bytes long", "1 to 128 bytes"]).await;
    let forced = leases.lock("job").force_release_because(&long).await;
    let Err(Error::Config(text)) = forced else { panic!("{forced:?}") };
    assert!(text.to_string().len() < 200 && text.to_string().contains("reason is 100000 bytes long"), "{text}");
    // The smallest and the largest valid values.
    let lock = leases.lock("job").lock_delay(HOUR).once_per(LONGEST).label("x".repeat(128));
    let lease = lock.acquire().await.unwrap();
    lease.renew().await.unwrap();
    lease.release().await.unwrap().confirmed();
    let left = lock.holder().await.unwrap().and_then(|holder| holder.remaining()).unwrap();
    assert!(left + HANGS > LONGEST && left <= LONGEST, "{left:?}");
    let least = leases.lock("little").lock_delay(Duration::ZERO).once_per(Duration::from_millis(1));
    least.acquire().await.unwrap().release().await.unwrap().confirmed();
}

async fn a_prefix_keeps_programs_apart(place: Place) {
    let test = place.builder().prefix("test:").build().await.unwrap();
    let live = place.builder().prefix("live:").build().await.unwrap();
    let bare = place.program("bare").await;
    let lease = test.lock("job").acquire().await.unwrap();
    assert_eq!(lease.name(), "job");
    assert!(live.lock("job").try_acquire().await.unwrap().is_some());
    assert!(bare.lock("job").try_acquire().await.unwrap().is_some());
    assert!(bare.lock("test:job").try_acquire().await.unwrap().is_none(), "the key is prefix and name");
}

async fn a_shutdown_waits_until_the_holder_has_tidied_up(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").acquire().await.unwrap();
    let shared = lease.as_handle().share().unwrap();
    let (token, running) = (lease.cancellation_token(), Arc::new(AtomicBool::new(true)));
    let job = {
        let running = running.clone();
        tokio::spawn(async move {
            assert_eq!(lease.lost().await.reason(), LossReason::Closing);
            let late = lease.handle().share().unwrap();
            assert_eq!(late.lost().await.reason(), LossReason::Closing, "a new lease is asked to stop too");
            drop((late, shared));
            // The job's cleanup takes longer than half a TTL: the lock has no other holder meanwhile.
            for _ in 0..50 {
                lease.check().unwrap();
                assert_eq!(lease.status(), Status::Held);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            lease.renew().await.unwrap();
            running.store(false, Ordering::SeqCst);
            lease.release().await
        })
    };
    let other = tokio::spawn({
        let acquire = two.lock("job").acquire();
        async move {
            let _lease = acquire.await.unwrap();
            assert!(!running.load(Ordering::SeqCst), "two believed in the lock at once");
        }
    });
    assert_eq!(within(HANGS, "the shutdown", one.shutdown(HANGS)).await, 0);
    assert!(token.is_cancelled());
    within(HANGS, "the job", job).await.unwrap().unwrap().confirmed();
    within(HANGS, "the other program", other).await.unwrap();
    assert!(matches!(one.lock("job").try_acquire().await, Err(Error::Closed)));
}

async fn a_shutdown_cuts_short_who_does_not_stop(place: Place) {
    let (one, two) = place.two_programs().await;
    let lock = one.lock("job").keep_for(Duration::ZERO);
    let (lease, other) = (lock.acquire().await.unwrap(), one.lock("other").acquire().await.unwrap());
    let limit = Duration::from_millis(300);
    let began = Instant::now();
    let stopping = tokio::spawn(async move {
        other.lost().await;
        other.release().await
    });
    assert_eq!(within(HANGS, "the shutdown", one.shutdown(limit)).await, 1);
    assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
    assert_eq!(lease.lost().await.reason(), LossReason::Closed);
    assert_eq!(ending(lease.check()).reason(), LossReason::Closed);
    within(HANGS, "the other job", stopping).await.unwrap().unwrap().confirmed();
    assert!(two.lock("job").try_acquire().await.unwrap().is_some(), "released");
}

async fn a_shutdown_ends_waiters_and_lets_work_go_on(place: Place) {
    let (one, two) = place.two_programs().await;
    let theirs = two.lock("theirs").acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let waiting = one.lock("theirs").on_wait(move |_| tell.send(()).unwrap());
    let waiter = tokio::spawn(waiting.acquire());
    within(HANGS, "the waiter to wait", told.recv()).await;
    let (started, running) = oneshot::channel();
    let (finish, finished) = oneshot::channel::<()>();
    let run = one.lock("job").run(|lease| async move {
        started.send(()).unwrap();
        lease.cancellation_token().cancelled().await;
        finished.await.unwrap();
        lease.check().map(|()| "to its end")
    });
    let run = tokio::spawn(run);
    within(HANGS, "the work", running).await.unwrap();
    let shutdown = tokio::spawn({
        let one = one.clone();
        async move { one.shutdown(HANGS).await }
    });
    assert!(matches!(within(HANGS, "the waiter", waiter).await.unwrap(), Err(Error::Closed)));
    assert!(matches!(one.lock("free").acquire().await, Err(Error::Closed)));
    assert!(one.lock("job").holder().await.unwrap().is_some_and(|holder| holder.is_ours()), "looking is allowed");
    assert!(two.lock("job").try_acquire().await.unwrap().is_none());
    finish.send(()).unwrap();
    assert_eq!(within(HANGS, "the run", run).await.unwrap().unwrap(), "to its end");
    assert_eq!(within(HANGS, "the shutdown", shutdown).await.unwrap(), 0);
    theirs.check().unwrap();
}

async fn closing_ends_waiters_and_leases(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("held").acquire().await.unwrap();
    let theirs = two.lock("theirs").acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let waiting = one.lock("theirs").on_wait(move |_| tell.send(()).unwrap());
    let waiter = tokio::spawn(waiting.acquire());
    within(HANGS, "the waiter to wait", told.recv()).await;

    within(HANGS, "close", one.close()).await;
    assert!(matches!(within(HANGS, "the waiter", waiter).await.unwrap(), Err(Error::Closed)));
    assert_eq!(ending(lease.check()).reason(), LossReason::Closed);
    assert_eq!(lease.lost().await.reason(), LossReason::Closed);
    assert!(two.lock("held").try_acquire().await.unwrap().is_some(), "released");
    assert!(matches!(lease.release().await, Err(Error::Lost(lost)) if lost.reason() == LossReason::Closed));
    theirs.check().unwrap();
}

async fn nothing_works_after_closing(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job");
    leases.close().await;
    within(HANGS, "a second close", leases.close()).await;
    assert!(matches!(lock.acquire().await, Err(Error::Closed)));
    assert!(matches!(lock.try_acquire().await, Err(Error::Closed)));
    let ran = lock.run(async |_| Ok::<_, Error>(())).await;
    let errors = [
        ran.unwrap_err(),
        lock.holder().await.map(drop).unwrap_err(),
        lock.force_release().await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Closed), "{error}");
    }
}

async fn debug_shows_state_and_no_secret(place: Place) {
    let leases = place.program("one").await;
    let lock = leases.lock("job");
    let lease = lock.acquire().await.unwrap();
    let holder = lock.holder().await.unwrap().unwrap();
    let token = holder.token().unwrap().to_owned();
    let secret = token.trim_start_matches("lh1:").split('@').next().unwrap().to_owned();
    let shown = format!("{leases:?} {lock:?} {lease:?} {:?} {holder:?} {holder}", lease.handle());
    assert!(!shown.contains(&secret), "{shown}");
    for part in ["job", "one", "Held", &lease.fence().to_string()] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}

async fn what_the_server_can_do_is_told(place: Place) {
    let leases = place.program("one").await;
    for _ in 0..2 {
        for (_, said) in survey(&leases).await.unwrap() {
            let said = said.unwrap();
            match &said.notifications {
                Some(Ok(())) => assert!(place.pushes, "{said:?}"),
                Some(Err(reason)) => assert!(!place.pushes && !reason.is_empty(), "{said:?}"),
                None => panic!("it has not said whether it notifies: {said:?}"),
            }
            assert_eq!(said.notifies_waiters, place.pushes, "{said:?}");
            if !place.tells || place.is_in_memory() {
                assert!(said.info.text.is_empty(), "{said:?}");
                continue;
            }
            let replicas = format!("connected_slaves:{}", place.replicas());
            for line in ["maxmemory_policy:noeviction", "aof_enabled:0", "role:master", &replicas] {
                assert!(said.info.text.lines().any(|told| told == line), "{line}: {said:?}");
            }
            assert!(said.info.text.contains("redis_version:"), "{said:?}");
            assert_eq!(said.settings.get("appendfsync").map(String::as_str), Some("always"), "{said:?}");
            assert!(!place.pushes || said.tracked_keys > 0, "{said:?}");
        }
    }
    leases.close().await;
    assert!(matches!(survey(&leases).await.unwrap_err(), Error::Closed));
}

async fn a_thread_waits_for_the_calls(place: Place) {
    let (one, two) = (place.builder().label("one"), place.builder().label("two"));
    let calls = move || -> Result<(), Error> {
        let (one, two) = (block_on(one.build())??, two.build_lazy()?);
        let lease = block_on(one.lock("job").acquire())??;
        lease.check()?;
        block_on(lease.renew())??;
        assert!(block_on(two.lock("job").try_acquire())??.is_none());
        let late = block_on(two.lock("job").acquire_within(Duration::from_millis(50)))?.unwrap_err();
        assert_eq!(late.timed_out().and_then(Holder::label), Some("one"), "{late}");
        let waits =
            std::thread::spawn(move || block_on(two.lock("job").run(async |lease| Ok::<_, Error>(lease.fence())))?);
        let before = lease.fence();
        block_on(lease.release())??.confirmed();
        assert!(waits.join().unwrap()? > before);
        let lease = block_on(one.lock("job").acquire())??;
        block_on(one.close())?;
        assert_eq!(ending(block_on(lease.release())?).reason(), LossReason::Closed);
        Ok(())
    };
    let thread = std::thread::spawn(calls);
    tokio::task::spawn_blocking(move || thread.join()).await.unwrap().unwrap().unwrap();
    drop(place);
}

/// Polls a future once, within this task.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
