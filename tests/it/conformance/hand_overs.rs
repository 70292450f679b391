//! Hand-overs on every kind of node.

use std::time::Duration;

use leasehold::{Error, Lock, LossReason, Ticket};
use support::{HANGS, within};

use super::{Place, TTL};
use crate::common::{Confirmed as _, LONG, ending, is_ours};

/// Adopts the lease as another program would: from the ticket's text.
async fn adopt(lock: &Lock, ticket: &Ticket) -> Result<leasehold::Lease, Error> {
    let ticket = ticket.expose().parse().expect("it is a ticket");
    within(HANGS, "an adoption", lock.adopt(ticket)).await
}

pub(super) async fn a_lease_goes_on_in_another_program(place: Place) {
    let (one, two) = place.two_programs().await;
    let (mine, theirs) = (one.lock("job").ttl(LONG), two.lock("job").ttl(LONG).label("heir"));
    let mut before = mine.acquire().await.unwrap();
    for (next, other) in [(&theirs, &mine), (&mine, &theirs), (&theirs, &mine)] {
        let (handle, lost, fence) = (before.handle(), before.lost(), before.fence());
        is_ours(&before).await;
        let ticket = before.into_ticket().unwrap();
        // Before any observer looks, because a look would discover it.
        assert_eq!(within(HANGS, "the signal", lost).await.reason(), LossReason::HandedOver);
        assert_eq!(ending(handle.check()).reason(), LossReason::HandedOver, "before it is adopted");
        assert!(handle.remaining().is_zero() && ending(handle.renew().await).reason() == LossReason::HandedOver);
        assert!(other.try_acquire().await.unwrap().is_none(), "it is not free in between");
        assert_eq!((ticket.name(), ticket.fence()), ("job", fence));
        let lease = adopt(next, &ticket).await.unwrap();
        assert!(lease.fence() > fence, "{} after {fence}", lease.fence());
        assert_eq!((lease.hold_count(), lease.name()), (1, "job"));
        is_ours(&lease).await;
        let holder = other.holder().await.unwrap().unwrap();
        assert_eq!((holder.fence(), holder.label()), (Some(lease.fence()), Some(lease.label())));
        assert!(other.try_acquire().await.unwrap().is_none());
        before = lease;
    }
    let last = before.fence();
    before.release().await.unwrap().confirmed();
    let after = mine.acquire().await.unwrap();
    assert!(after.fence() > last);
    after.release().await.unwrap().confirmed();
}

pub(super) async fn a_ticket_is_adopted_once(place: Place) {
    let (one, two) = place.two_programs().await;
    let (mine, theirs) = (one.lock("job").ttl(LONG), two.lock("job").ttl(LONG));
    let ticket = mine.acquire().await.unwrap().into_ticket().unwrap();
    let (first, second) = tokio::join!(adopt(&mine, &ticket), adopt(&theirs, &ticket));
    let (lease, refused) = match (first, second) {
        (Ok(lease), refused) | (refused, Ok(lease)) => (lease, refused),
        both => panic!("one of them has it: {both:?}"),
    };
    let lost = ending(refused);
    assert_eq!((lost.reason(), lost.fence(), lost.name()), (LossReason::Taken, ticket.fence(), "job"));
    is_ours(&lease).await;
    assert_eq!(ending(adopt(&theirs, &ticket).await).reason(), LossReason::Taken, "used twice");
    lease.release().await.unwrap().confirmed();
    assert_eq!(ending(adopt(&theirs, &ticket).await).reason(), LossReason::Deleted, "nobody has it");
    let other = mine.acquire().await.unwrap();
    assert_eq!(ending(adopt(&theirs, &ticket).await).reason(), LossReason::Taken, "somebody else has it");
    other.release().await.unwrap().confirmed();
}

pub(super) async fn a_ticket_may_be_kept_for_a_crash(place: Place) {
    let (one, two) = place.two_programs().await;
    let lease = one.lock("job").ttl(TTL).acquire().await.unwrap();
    let ticket = lease.ticket();
    is_ours(&lease).await;
    let (heir, lost) = (adopt(&two.lock("job").ttl(LONG), &ticket).await.unwrap(), lease.lost());
    assert!(heir.fence() > lease.fence());
    assert_eq!(within(HANGS, "the loss", lost).await.reason(), LossReason::Taken);
    assert_eq!(ending(lease.release().await).reason(), LossReason::Taken);
    is_ours(&heir).await;
    heir.release().await.unwrap().confirmed();
}

pub(super) async fn an_interval_goes_on_with_the_heir(place: Place) {
    const INTERVAL: Duration = Duration::from_secs(30);
    let (one, two) = place.two_programs().await;
    let lock = |program: &leasehold::Client| program.lock("job").ttl(TTL);
    let ticket = lock(&one).once_per(INTERVAL).acquire().await.unwrap().into_ticket().unwrap();
    // An adoption is not an acquire, so its own interval does not count.
    let heir = adopt(&lock(&two).once_per(2 * INTERVAL), &ticket).await.unwrap();
    let fence = heir.fence();
    is_ours(&heir).await;
    heir.release().await.unwrap().confirmed();
    let kept = lock(&one).holder().await.unwrap().expect("the key stays for the interval");
    let left = kept.remaining().unwrap();
    assert!(left > TTL && left <= INTERVAL, "{left:?}");
    assert_eq!((kept.fence(), lock(&one).try_acquire().await.unwrap().is_none()), (Some(fence), true));
}

pub(super) async fn what_cannot_be_handed_over_is_refused(place: Place) {
    let one = place.program("one").await;
    let misuse = |error: Error, what: &str| match error {
        Error::Misuse(_) => assert!(error.to_string().contains(what), "{error}"),
        other => panic!("{other:?}"),
    };
    let lease = one.lock("job").acquire().await.unwrap();
    let ticket = lease.ticket();
    let shares = [lease.handle().share().unwrap(), lease.handle().share().unwrap()];
    misuse(lease.into_ticket().unwrap_err(), "2 other leases share this hold");
    let [first, second] = shares;
    misuse(first.into_ticket().unwrap_err(), "1 other lease shares this hold");
    is_ours(&second).await;
    misuse(one.lock("other").adopt(ticket.clone()).await.unwrap_err(), "\"job\" cannot be adopted as \"other\"");
    let tenant = one.prefix("tenant:");
    misuse(tenant.lock("job").adopt(ticket).await.unwrap_err(), "cannot be adopted as \"tenant:job\"");
    is_ours(&second).await;
    second.release().await.unwrap().confirmed();

    let kept = one.lock("kept").keep_for(Duration::from_secs(1)).acquire().await.unwrap();
    misuse(kept.into_ticket().unwrap_err(), "keep_for");
    let gone = one.lock("gone").acquire().await.unwrap();
    assert!(one.lock("gone").force_release().await.unwrap());
    within(HANGS, "the loss", gone.lost()).await;
    assert_eq!(ending(gone.into_ticket()).reason(), LossReason::Forced);
}
