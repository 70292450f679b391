//! Hand-overs over a quorum: rows F74 and F75.

use leasehold::{Client, Error, Lease, LossReason, Ticket};
use support::{Action, Match, eventually_async, scripts::SUCCEED, within};

use super::scene::{HANGS, Scene, Share, at_once};
use crate::common::{Confirmed as _, LONG, MEDIUM, NAME, ending, is_ours};

async fn adopt(leases: &Client, ticket: &Ticket) -> Result<Lease, Error> {
    within(HANGS, "an adoption", leases.lock(NAME).ttl(LONG).adopt(ticket.clone())).await
}

/// The ticket of a handed-over lease that every node has.
async fn handed_over(scene: &Scene) -> Ticket {
    scene.acquire_everywhere(LONG).await.into_ticket().unwrap()
}

/// Nobody gets it while the nodes are away, and all of them have the heir's token in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_a_majority_is_enough_for_an_adoption() {
    for lacks in [true, false] {
        let scene = Scene::of(3).await;
        let ticket = handed_over(&scene).await;
        let minority = scene.faulty(Share::Minority);
        if lacks {
            at_once(minority, &["DEL", NAME]);
        } else {
            minority[0].server.stop();
        }
        let lease = adopt(&scene.leases, &ticket).await.unwrap();
        assert!(lease.fence() > ticket.fence());
        minority[0].server.cont();
        scene.is_everywhere(&lease, LONG).await;
        lease.release().await.unwrap().confirmed();
        scene.is_taken_away(NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_what_a_majority_has_forgotten_is_not_adopted() {
    let scene = Scene::of(3).await;
    let ticket = handed_over(&scene).await;
    at_once(scene.faulty(Share::Majority), &["DEL", NAME]);
    assert_eq!(ending(adopt(&scene.leases, &ticket).await).reason(), LossReason::Deleted);
    scene.is_taken_away(NAME).await;
}

/// All answers to the first attempt are lost. The second adopts what the first left on each node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_the_answers_to_an_adoption_are_lost() {
    for action in [Action::SwallowReply, Action::CutAfter] {
        let scene = Scene::of(3).await;
        let giver = scene.other().await;
        let lease = giver.lock(NAME).ttl(LONG).acquire().await.unwrap();
        scene.is_everywhere(&lease, LONG).await;
        let ticket = lease.into_ticket().unwrap();
        let lost = scene.nodes.iter().map(|node| node.proxy.on(Match::script(SUCCEED), 1, action));
        let lost: Vec<_> = lost.collect();
        let adopting = tokio::spawn({
            let (heir, ticket) = (scene.leases.clone(), ticket.clone());
            async move { adopt(&heir, &ticket).await }
        });
        for rule in &lost {
            within(HANGS, "the first attempt", rule.hit()).await;
        }
        assert!(giver.lock(NAME).try_acquire().await.unwrap().is_none(), "{action:?}: it is never free");
        let lease = within(HANGS, "the second", adopting).await.unwrap().unwrap();
        assert!(lease.fence() > ticket.fence());
        scene.is_everywhere(&lease, LONG).await;
        is_ours(&lease).await;
        assert!(giver.lock(NAME).try_acquire().await.unwrap().is_none());
        lease.release().await.unwrap().confirmed();
        scene.is_taken_away(NAME).await;
    }
}

/// If too few nodes answer, the adoption waits until they do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_a_majority_that_is_away_is_waited_for() {
    let scene = Scene::of(3).await;
    let ticket = handed_over(&scene).await;
    for node in scene.faulty(Share::Majority) {
        node.server.stop();
    }
    let adopting = tokio::spawn({
        let (heir, ticket) = (scene.leases.clone(), ticket.clone());
        async move { adopt(&heir, &ticket).await }
    });
    let first = &scene.nodes[0];
    eventually_async(HANGS, "two attempts", || first.proxy.count(Match::script(SUCCEED)) >= 2).await;
    for node in scene.faulty(Share::Majority) {
        node.server.cont();
    }
    let lease = within(HANGS, "the adoption", adopting).await.unwrap().unwrap();
    scene.is_everywhere(&lease, LONG).await;
    lease.release().await.unwrap().confirmed();
    scene.is_taken_away(NAME).await;
}

/// A majority shows a larger fence than the ticket and any clock: the heir's is larger still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_the_heirs_fence_is_larger_than_what_a_majority_shows() {
    let scene = Scene::of(3).await;
    let ticket = handed_over(&scene).await;
    let tomorrow = 5_000_000_000_000_000_u64;
    for node in scene.faulty(Share::Majority) {
        let mut wire = node.server.wire();
        let value = wire.get(NAME).unwrap();
        let (identity, label) = (&value[..40], &value[value.find('@').unwrap()..]);
        wire.must(&["SET", NAME, &format!("{identity}:{tomorrow}{label}"), "KEEPTTL"]);
    }
    let lease = adopt(&scene.leases, &ticket).await.unwrap();
    scene.is_everywhere(&lease, LONG).await;
    let fence = u64::from(lease.fence());
    lease.release().await.unwrap().confirmed();
    scene.is_taken_away(NAME).await;
    let next = scene.acquire(LONG).await;
    assert!(u64::from(next.fence()) > fence && fence > tomorrow, "{fence}, then {}", next.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f75_a_ticket_is_adopted_while_its_holder_has_lost_the_quorum() {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(MEDIUM).await;
    let (ticket, heir) = (lease.ticket(), scene.other().await);
    scene.nodes.iter().for_each(|node| node.proxy.black_hole(true));
    let theirs = adopt(&heir, &ticket).await.unwrap();
    let lost = within(HANGS, "the loss", lease.lost()).await;
    assert!(matches!(lost.reason(), LossReason::NoQuorum | LossReason::Expired), "{lost:?}");
    scene.nodes.iter().for_each(|node| node.proxy.black_hole(false));
    drop(lease);
    is_ours(&theirs).await;
    scene.is_everywhere(&theirs, LONG).await;
    theirs.release().await.unwrap().confirmed();
    scene.is_taken_away(NAME).await;
}
