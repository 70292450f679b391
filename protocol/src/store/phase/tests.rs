use std::num::NonZeroU32;

use super::*;
use crate::{
    failure::Failure,
    fence,
    message::{Downgraded, Poll, Polled, ReleaseMode, Reply, Request},
    mode::{Mode, token_of_a_phase},
    store::{Applied, Notified, Process},
};

const NOW: Micros = 1_000_000_000;
const TTL: Duration = Duration::from_millis(300);
const MS: Micros = 1_000;

struct Scene {
    store: Store,
    key: Key,
    now: Micros,
    fence_memory: Duration,
}

impl Scene {
    fn new() -> Self {
        Self { store: Store::default(), key: Key::of_lock("job"), now: NOW, fence_memory: fence::MEMORY }
    }

    fn claim(&self, token: &Token, limit: Option<u32>) -> Claim {
        let mode = match limit {
            Some(0) => Mode::Exclusive,
            limit => Mode::Shared { limit: limit.and_then(NonZeroU32::new), permits: token.permits() },
        };
        let (key, token) = (self.key.clone(), token.clone());
        Claim { key, token, mode, ttl: TTL, life: TTL, fence: None, fence_memory: self.fence_memory }
    }

    fn ask<T: TryFrom<Reply, Error = Failure>>(&mut self, request: &Request) -> (T, Vec<Notified>) {
        let process = Process { name: "p", hears: true };
        let Applied { reply, notified, .. } = self.store.apply(self.now, request, process, &|_| true);
        (reply.and_then(T::try_from).unwrap(), notified)
    }

    /// Polls with a limit: `Some(0)` for exclusive use, `None` to read.
    fn poll(&mut self, token: &Token, limit: Option<u32>) -> Polled {
        let poll = Poll {
            claim: self.claim(token, limit),
            ticket: None,
            grant: TTL / 3,
            window: Duration::from_secs(60),
            enter: true,
            restart_delay: Duration::ZERO,
        };
        self.ask(&Request::Poll(poll)).0
    }

    #[track_caller]
    fn comes_in(&mut self, token: &Token, limit: Option<u32>) -> Fence {
        match self.poll(token, limit) {
            Polled::Granted(fence) => fence,
            waits @ Polled::Waits { .. } => panic!("{waits:?}"),
        }
    }

    /// The number of sharers then, and how long the token has to wait.
    #[track_caller]
    fn waits(&mut self, token: &Token, limit: Option<u32>) -> (Option<u32>, Micros) {
        match self.poll(token, limit) {
            Polled::Waits { holder, .. } => (holder.sharers(), micros(holder.remaining().unwrap())),
            granted @ Polled::Granted(_) => panic!("{granted:?}"),
        }
    }

    fn release(&mut self, token: &Token, limit: Option<u32>, mode: ReleaseMode) -> (Owned, usize) {
        let claim = self.claim(token, limit);
        let (owned, notified) = self.ask(&Request::Release { claim, mode });
        (owned, notified.iter().filter(|notified| matches!(notified, Notified::Granted { .. })).count())
    }

    fn renew(&mut self, token: &Token, fence: Option<Fence>) -> Owned {
        let claim = Claim { fence, ..self.claim(token, None) };
        self.ask::<Vec<Result<Owned, Failure>>>(&Request::Renew([claim].into())).0.remove(0).unwrap()
    }

    fn sharers(&mut self) -> Option<Sharers> {
        self.ask(&Request::Sharers { key: self.key.clone(), most: 10 }).0
    }
}

fn tokens<const N: usize>() -> [Token; N] {
    std::array::from_fn(|n| Token::random(&n.to_string()))
}

#[test]
fn readers_share_a_phase_and_its_fence_and_the_writer_behind_them_comes_after_the_last() {
    let (mut scene, [one, two, writer, late]) = (Scene::new(), tokens());
    let fence = scene.comes_in(&one, None);
    scene.now += 50 * MS;
    assert_eq!(scene.comes_in(&two, None), fence);
    assert_eq!(scene.waits(&writer, Some(0)), (Some(2), micros(TTL)), "until the last of them would be over");
    assert_eq!(scene.waits(&late, None).0, Some(2), "nobody is overtaken");
    assert_eq!(scene.release(&one, None, ReleaseMode::Delete), (Ok(()), 0));
    assert_eq!(scene.release(&one, None, ReleaseMode::Delete), (Err(Denial::Gone), 0), "the same, come again");
    assert_eq!(scene.release(&two, None, ReleaseMode::Delete), (Ok(()), 1));
    assert!(scene.comes_in(&writer, Some(0)) > fence);
    assert_eq!(scene.release(&writer, Some(0), ReleaseMode::Delete), (Ok(()), 1));
    scene.comes_in(&late, None);
    assert_eq!(scene.release(&late, None, ReleaseMode::leave()), (Ok(()), 0));
    assert_eq!(scene.sharers(), None, "the last one takes the key with it");
}

#[test]
fn the_limit_is_that_of_the_one_who_asks() {
    let (mut scene, [one, two, three, four]) = (Scene::new(), tokens());
    scene.comes_in(&one, Some(2));
    scene.now += 100 * MS;
    scene.comes_in(&two, Some(2));
    assert_eq!(scene.waits(&three, Some(2)), (Some(2), 200 * MS), "until the first of them would be over");
    assert_eq!(scene.waits(&four, Some(9)).0, Some(2), "it fits, but is not the first");
    assert_eq!(scene.release(&three, Some(2), ReleaseMode::leave()), (Err(Denial::Gone), 1), "it was in the way");
    scene.comes_in(&four, Some(9));
    assert_eq!(scene.sharers().unwrap().holder.sharers(), Some(3));
}

#[test]
fn one_that_is_over_is_out_while_the_key_of_the_others_lives_on() {
    let (mut scene, [one, other]) = (Scene::new(), tokens());
    scene.comes_in(&one, None);
    scene.now += 100 * MS;
    scene.comes_in(&other, None);
    scene.now += micros(TTL) - 99 * MS;
    assert_eq!(scene.waits(&one, Some(1)), (Some(1), 99 * MS), "it is a newcomer");
    assert_eq!(scene.sharers().unwrap().first.len(), 1);
    assert_eq!((scene.renew(&one, None), scene.renew(&other, None)), (Err(Denial::Gone), Ok(())));
}

#[test]
fn one_that_is_over_makes_room_and_does_not_come_back() {
    // With the longer keep, the key need not be written when a sharer is admitted.
    for keep in [TTL, TTL * 10] {
        let (mut scene, [one, other, stays, two]) = (Scene::new(), tokens());
        let fence = scene.comes_in(&one, Some(2));
        scene.now += 100 * MS;
        scene.comes_in(&other, Some(2));
        assert_eq!(scene.release(&other, Some(2), ReleaseMode::Retain(keep, stays)).0, Ok(()));
        scene.now += micros(TTL) - 99 * MS;
        assert_eq!(scene.comes_in(&two, Some(2)), fence);
        scene.now -= 10 * MS;
        assert_eq!(scene.renew(&one, None), Err(Denial::Gone), "the clock went back");
        assert_eq!(scene.sharers().unwrap().first.len(), 2);
    }
}

#[test]
fn a_phase_whose_sharers_are_all_over_is_followed_by_another() {
    for limit in [None, Some(2), Some(1)] {
        let (mut scene, [one, two]) = (Scene::new(), tokens());
        let fence = scene.comes_in(&one, Some(1));
        assert_eq!(scene.comes_in(&one, Some(1)), fence);
        scene.now += micros(TTL) + MS;
        let next = scene.comes_in(&two, limit);
        assert!(next > fence, "{limit:?}: {next} after {fence}");
        scene.now -= 10 * MS;
        assert_eq!(scene.renew(&one, None), Err(Denial::Gone), "the clock went back");
    }
}

#[test]
fn the_key_outlives_each_one_who_shares_and_is_written_once_in_a_third_of_a_ttl() {
    let (mut scene, [one, two]) = (Scene::new(), tokens());
    scene.comes_in(&one, None);
    scene.comes_in(&two, None);
    let mut ends = std::collections::BTreeSet::new();
    for _ in 0..30 {
        scene.now += 30 * MS;
        for token in [&one, &two] {
            assert_eq!(scene.renew(token, None), Ok(()));
        }
        let (until, places) = scene.store.ends(scene.now, &scene.key.clone()).unwrap();
        assert!(places.iter().all(|(_, end)| *end <= until), "{until} {places:?}");
        ends.insert(until);
    }
    assert!(ends.len() <= 10, "900 ms are nine thirds: {ends:?}");
}

#[test]
fn a_renewal_goes_by_the_phase_of_its_lease() {
    let (mut scene, [one]) = (Scene::new(), tokens());
    let fence = scene.comes_in(&one, None);
    assert_eq!(scene.renew(&one, Some(fence)), Ok(()));
    let key = scene.key.clone();
    scene.store.delete(&key);
    assert_eq!(scene.renew(&one, Some(fence)), Err(Denial::Gone));
    let next = scene.comes_in(&one, None);
    assert!(next > fence);
    assert_eq!((scene.renew(&one, Some(fence)), scene.renew(&one, Some(next))), (Err(Denial::Gone), Ok(())));
    scene.store.lose_places(scene.now, &key);
    assert_eq!(scene.renew(&one, Some(next)), Err(Denial::Gone));
}

#[test]
fn what_stays_in_the_place_of_a_share_is_renewed_by_nobody() {
    let (mut scene, [one, stays, other]) = (Scene::new(), tokens());
    scene.comes_in(&one, Some(1));
    let keep = ReleaseMode::Retain(TTL * 10, stays.clone());
    assert_eq!(scene.release(&one, Some(1), keep.clone()).0, Ok(()));
    scene.now += 100 * MS;
    assert_eq!(scene.release(&one, Some(1), keep).0, Ok(()), "the same, come again");
    assert_eq!(scene.renew(&one, None), Err(Denial::Gone));
    assert_eq!(scene.waits(&other, Some(1)), (Some(1), micros(TTL) * 10 - 100 * MS));
    scene.now += micros(TTL) * 9;
    assert_eq!(scene.waits(&other, Some(1)), (Some(1), micros(TTL) - 100 * MS), "the key lives on for it");
}

#[test]
fn a_downgrade_leaves_no_moment_for_another_writer_and_lets_readers_in() {
    let (mut scene, [writer, reads, reader, other]) = (Scene::new(), tokens());
    let fence = scene.comes_in(&writer, Some(0));
    scene.waits(&reader, None);
    scene.waits(&other, Some(0));
    let request =
        Request::Downgrade { claim: scene.claim(&reads, None), from: writer.clone(), restart_delay: Duration::ZERO };
    let (Downgraded::Shared(phase), notified) = scene.ask::<Downgraded>(&request) else { panic!() };
    assert!(phase > fence && matches!(&notified[..], [Notified::Granted { token, .. }, ..] if *token == reader));
    assert_eq!(scene.ask::<Downgraded>(&request).0, Downgraded::Shared(phase), "the same, come again");
    assert_eq!(scene.comes_in(&reader, None), phase);
    assert_eq!(scene.release(&reads, None, ReleaseMode::Delete), (Ok(()), 0));
    assert_eq!(scene.ask::<Downgraded>(&request).0, Downgraded::Denied(Denial::Taken));
    assert_eq!(scene.release(&reader, None, ReleaseMode::Delete), (Ok(()), 1));
    assert_eq!(scene.ask::<Downgraded>(&request).0, Downgraded::Denied(Denial::Taken), "the other writer has it");
}

/// The node's data may be older than what it has forgotten.
#[test]
fn a_node_hands_over_to_be_shared_after_its_restart_delay() {
    let (mut scene, [giver, heir]) = (Scene::new(), tokens());
    scene.comes_in(&giver, Some(0));
    scene.store.restarted(scene.now);
    let restart_delay = Duration::from_secs(3);
    let request = |scene: &Scene| {
        let from = giver.clone();
        Request::Downgrade { claim: scene.claim(&heir, None), from, restart_delay }
    };
    let adoption = request(&scene);
    assert_eq!(scene.ask::<Downgraded>(&adoption).0, Downgraded::Recovering(restart_delay));
    assert!(
        scene.store.holder(scene.now, &scene.key.clone()).is_some_and(|holder| holder.whole_token() == Some(&giver))
    );
    let _fence = scene.renew(&giver, None);
    let continues =
        Request::Downgrade { claim: scene.claim(&heir, None), from: giver.clone(), restart_delay: Duration::ZERO };
    let Downgraded::Shared(phase) = scene.ask::<Downgraded>(&continues).0 else { panic!("it is its own") };
    assert_eq!(scene.ask::<Downgraded>(&adoption).0, Downgraded::Shared(phase), "a replay");
}

#[test]
fn a_downgrade_has_a_larger_fence_even_if_the_floor_is_forgotten_and_the_clock_is_behind() {
    let (mut scene, [writer, reads]) = (Scene::new(), tokens());
    scene.fence_memory = Duration::ZERO;
    let fence = scene.comes_in(&writer, Some(0));
    scene.now += MS;
    let key = scene.key.clone();
    assert!(scene.store.ends(scene.now, &key).is_some(), "its floor is gone by then");
    scene.now -= 10 * MS;
    let request = Request::Downgrade { claim: scene.claim(&reads, None), from: writer, restart_delay: Duration::ZERO };
    let Downgraded::Shared(phase) = scene.ask::<Downgraded>(&request).0 else { panic!() };
    assert!(phase > fence, "{phase} after {fence}");
}

#[test]
fn the_holder_of_a_lock_that_is_shared_is_nobody_by_name() {
    let (mut scene, [one, alone]) = (Scene::new(), tokens());
    scene.comes_in(&one, None);
    let Sharers { holder, first } = scene.sharers().unwrap();
    assert_eq!((holder.is_shared(), holder.sharers(), holder.label(), holder.token()), (true, Some(1), None, None));
    assert_eq!(holder.whole_token(), Some(&token_of_a_phase()));
    assert_eq!((first[0].label(), first[0].fence()), (Some(one.label()), holder.fence()));
    scene.release(&one, None, ReleaseMode::Delete).0.unwrap();
    scene.comes_in(&alone, Some(0));
    let Sharers { holder, first } = scene.sharers().unwrap();
    assert_eq!((holder.is_shared(), holder.sharers(), holder.label()), (false, None, Some(alone.label())));
    assert!(first.is_empty());
}
