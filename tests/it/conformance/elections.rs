//! Elections on every kind of node.

use leasehold::{Election, Error, Fence, Leaders, Leadership};
use support::{HANGS, within};
use tokio::sync::mpsc;

use super::Place;
use crate::common::Confirmed as _;

/// The next state that satisfies `is`; earlier states may be skipped.
async fn until(leaders: &mut Leaders, what: &str, is: impl Fn(&Leadership) -> bool) -> Leadership {
    within(HANGS, what, async {
        loop {
            let now = leaders.next().await.expect("it is open");
            if is(&now) {
                return now;
            }
        }
    })
    .await
}

fn is_led_by(label: &str) -> impl Fn(&Leadership) -> bool {
    move |now| now.leader().is_some_and(|leader| leader.label() == Some(label))
}

fn term(now: &Leadership) -> Option<Fence> {
    now.leader().and_then(leasehold::Holder::fence)
}

pub(super) async fn who_leads_is_told_as_it_changes(place: Place) {
    let (one, two) = place.two_programs().await;
    let router = place.program("router").await;
    let candidates = [one.election("job").candidate("host:1"), two.election("job").candidate("host:2")];
    // In a program of its own, in the first candidate's program, and in another candidate's.
    let elections = [router.election("job"), candidates[0].clone(), router.election("job")];
    let mut observing: Vec<Leaders> = elections.iter().map(|election| election.observe().unwrap()).collect();
    for leaders in &mut observing {
        until(leaders, "nobody leads", |now| *now == Leadership::Vacant).await;
    }
    let mut before = None;
    for (candidate, label) in candidates.iter().zip(["host:1", "host:2"]) {
        let lease = candidate.campaign().await.unwrap();
        assert!(before < Some(lease.fence()), "terms grow");
        before = Some(lease.fence());
        for leaders in &mut observing {
            let now = until(leaders, label, is_led_by(label)).await;
            assert_eq!(term(&now), before, "{now:?}");
            assert!(is_led_by(label)(&leaders.now()), "{leaders:?}");
        }
        let leader = router.election("job").leader().await.unwrap().unwrap();
        assert_eq!((leader.label(), leader.fence()), (Some(label), before));
        lease.release().await.unwrap().confirmed();
        for leaders in &mut observing {
            until(leaders, "it has resigned", |now| *now == Leadership::Vacant).await;
        }
    }
    let late = elections[0].observe().unwrap().next().await;
    assert_eq!(late, Some(Leadership::Vacant), "who comes later hears what is known");
    router.close().await;
    assert_eq!(within(HANGS, "the end", observing[0].next()).await, None);
    assert!(matches!(elections[0].observe().unwrap_err(), Error::Closed));
}

pub(super) async fn a_leader_campaigns_again_until_its_work_is_done(place: Place) {
    let (one, two) = place.two_programs().await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let election: Election = one.election("job");
    let mut terms = 0;
    let leading = election.lead(async move |term| {
        terms += 1;
        tell.send(term.fence()).unwrap();
        if terms < 3 {
            term.lost().await;
            // Nothing after this await runs.
            std::future::pending::<()>().await;
        }
        "done"
    });
    let leading = tokio::spawn(leading);
    let mut fences = Vec::new();
    for _ in 0..2 {
        fences.push(within(HANGS, "a term", told.recv()).await.unwrap());
        assert!(two.lock("job").force_release().await.unwrap());
    }
    fences.push(within(HANGS, "the last term", told.recv()).await.unwrap());
    assert_eq!(within(HANGS, "the work", leading).await.unwrap().unwrap(), "done");
    assert!(fences.windows(2).all(|two| two[0] < two[1]), "{fences:?}");
    assert!(two.lock("job").try_acquire().await.unwrap().is_some(), "it has resigned");
}
