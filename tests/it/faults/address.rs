//! An address that leads to another server while the old one still answers: F65 and F66. Each test is named after its row
//! of the fault table.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use leasehold::{Builder, Error, Leases, LossReason};
use support::{HANGS, Match, Proxy, Server, eventually_async, within};

use crate::common::{Confirmed as _, MEDIUM};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

fn program(proxy: &Proxy) -> Builder {
    Leases::builder().url(proxy.url()).ttl(MEDIUM).label("program").check_address_every(PAUSE)
}

/// How many connections of ours a server has.
fn connections(server: &Server) -> usize {
    let all = server.wire().must(&["CLIENT", "LIST"]).text();
    all.lines().filter(|line| line.contains("name=leasehold:program:")).count()
}

/// How many connections there were, as far as anything was sent on them.
fn made(proxy: &Proxy) -> usize {
    proxy.seen().iter().map(|seen| seen.connection).collect::<BTreeSet<_>>().len()
}

#[tokio::test]
async fn f65_the_address_leads_to_another_server_without_the_key() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&old);
    let (leases, waiting) = (program(&proxy).build().await.unwrap(), program(&proxy).build().await.unwrap());
    let lease = leases.lock("job").acquire().await.unwrap();
    let waiter = tokio::spawn(waiting.lock("job").acquire());
    eventually_async(HANGS, "it waits", || connections(&old) == 6).await;
    proxy.turn_to(new.port());
    let turned = Instant::now();

    let lost = within(HANGS, "the signal", lease.lost()).await;
    // The waiter may have been there before.
    assert!(matches!(lost.reason(), LossReason::Deleted | LossReason::Taken), "{lost} after {:?}", turned.elapsed());
    let next = within(HANGS, "the waiter", waiter).await.unwrap().unwrap();
    assert!(new.wire().exists("job"));
    next.check().unwrap();
    assert!(matches!(lease.release().await, Err(Error::Lost(_))));
    eventually_async(HANGS, "nobody is left there", || connections(&old) == 0).await;
    next.release().await.unwrap().confirmed();
    assert!(!new.wire().exists("job"));
}

#[tokio::test]
async fn f65_the_address_leads_to_another_server_with_the_key() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&old);
    let leases = program(&proxy).build().await.unwrap();
    let lease = leases.lock("job").acquire().await.unwrap();
    let value = old.wire().get("job").unwrap();
    let ttl = i64::try_from(MEDIUM.as_millis()).unwrap();
    new.wire().must(&["SET", "job", &value, "PX", &ttl.to_string()]);
    proxy.turn_to(new.port());
    eventually_async(HANGS, "all are there", || connections(&old) == 0 && connections(&new) >= 2).await;
    // What the old server has is nobody's business any more.
    old.wire().del("job");
    let until = Instant::now() + lease.remaining() + Duration::from_millis(1);
    eventually_async(HANGS, "it is renewed there", || Instant::now() + lease.remaining() > until).await;
    lease.check().unwrap();
    lease.release().await.unwrap().confirmed();
    assert!(!new.wire().exists("job"));
}

/// What the server that was left does with what it has read already counts for nothing.
#[tokio::test]
async fn f65_the_server_that_was_left_is_not_heard() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&old);
    let leases = program(&proxy).build().await.unwrap();
    let lease = leases.lock("held").acquire().await.unwrap();
    let value = old.wire().get("held").unwrap();
    let ttl = i64::try_from(MEDIUM.as_millis()).unwrap();
    new.wire().must(&["SET", "held", &value, "PX", &ttl.to_string()]);
    let held_up = proxy.on(Match::script(support::scripts::ACQUIRE), 1, support::Action::HoldReply);
    let acquiring = tokio::spawn(leases.lock("job").acquire());
    eventually_async(HANGS, "it is granted there", || old.wire().exists("job")).await;
    proxy.turn_to(new.port());
    eventually_async(HANGS, "all are there", || connections(&old) == 0).await;
    held_up.release();
    let acquired = within(HANGS, "the acquire", acquiring).await.unwrap().unwrap();
    assert!(new.wire().exists("job"), "the grant of the old one does not count");
    acquired.release().await.unwrap().confirmed();
    lease.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f66_each_connection_leads_to_another_server() {
    let [one, other] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&one);
    let leases = program(&proxy).build().await.unwrap();
    let lease = leases.lock("held").acquire().await.unwrap();
    proxy.turn_among(&[one.port(), other.port()]);
    let lock = leases.lock("job");
    let error = within(HANGS, "it is refused", async {
        loop {
            match lock.try_acquire().await {
                Ok(Some(granted)) => drop(granted),
                Ok(None) => {}
                Err(error @ Error::Refused(_)) => return error,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(error.to_string().contains("another server with each connection"), "{error}");
    assert!(leases.health().await.is_err());
    // Whoever holds a lock does so until its server says otherwise.
    let held = lease.check().is_ok();
    proxy.turn_among(&[one.port()]);
    within(HANGS, "it leads to one again", async {
        while lock.try_acquire().await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(lease.check().is_ok(), held);
}

/// Neither does one that only holds, and was told never to look.
#[tokio::test]
async fn a_program_that_holds_nothing_and_waits_for_nothing_does_not_look() {
    let server = Server::start();
    for (pause, holds) in [(PAUSE, false), (Duration::ZERO, true)] {
        let proxy = Proxy::to(&server);
        let leases = program(&proxy).ttl(Duration::from_secs(60)).check_address_every(pause).build().await.unwrap();
        let held = if holds { Some(leases.lock("job").acquire().await.unwrap()) } else { None };
        eventually_async(HANGS, "all is connected", || made(&proxy) == 2 + usize::from(holds)).await;
        tokio::time::sleep(PAUSE * 6).await;
        assert_eq!(made(&proxy), 2 + usize::from(holds));
        drop(held);
    }
    let refused = Leases::builder().url(server.url()).check_address_every(Duration::from_millis(99)).build().await;
    assert!(
        matches!(&refused, Err(Error::Config(text)) if text.to_string().contains("check_address_every")),
        "{refused:?}"
    );
}
