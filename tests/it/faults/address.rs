//! An address that resolves to another server while the old one still answers: F65 and F66. Each test is named after
//! its row of the fault table.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, LossReason};
use support::{Action, HANGS, Match, Proxy, Server, eventually_async, scripts::ACQUIRE, within};

use crate::common::{Confirmed as _, LONG, MEDIUM};

/// The pause between two address checks.
const PAUSE: Duration = Duration::from_millis(200);

fn program(proxy: &Proxy) -> Builder {
    Client::builder().url(proxy.url()).ttl(MEDIUM).label("program").check_address_every(PAUSE)
}

/// The number of our connections on a server.
fn connections(server: &Server) -> usize {
    roles(server).len()
}

/// The roles of our connections on a server. Those that only check the address come and go.
fn roles(server: &Server) -> Vec<String> {
    let all = server.wire().must(&["CLIENT", "LIST"]).text();
    let names = all.split_whitespace().filter_map(|field| field.strip_prefix("name=leasehold:program:"));
    names.map(ToOwned::to_owned).collect()
}

/// Whether all of a program's connections are on this server.
fn has_all(server: &Server) -> bool {
    let roles = roles(server);
    ["main", "keeper", "notifications"].iter().all(|role| roles.iter().any(|there| there == role))
}

/// The number of connections on which anything was sent.
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
    // The waiter may have acquired it on the new server first.
    assert!(matches!(lost.reason(), LossReason::Deleted | LossReason::Taken), "{lost} after {:?}", turned.elapsed());
    let next = within(HANGS, "the waiter", waiter).await.unwrap().unwrap();
    assert!(new.wire().exists("job"));
    next.check().unwrap();
    assert!(matches!(lease.release().await, Err(Error::Lost(_))));
    eventually_async(HANGS, "no connection is left", || connections(&old) == 0).await;
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
    new.wire().must(&["SET", "job", &value, "PX", "60000"]);
    proxy.turn_to(new.port());
    eventually_async(HANGS, "all are there", || connections(&old) == 0 && connections(&new) >= 2).await;
    // The old server's key no longer matters.
    old.wire().del("job");
    let until = Instant::now() + lease.remaining() + Duration::from_millis(1);
    eventually_async(HANGS, "it is renewed there", || Instant::now() + lease.remaining() > until).await;
    lease.check().unwrap();
    lease.release().await.unwrap().confirmed();
    assert!(!new.wire().exists("job"));
}

/// Requests that the old server has already read no longer count, even if it does not answer the identity query.
#[tokio::test]
async fn f65_the_server_that_was_left_is_not_heard() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&old);
    let silence = Duration::from_secs(10);
    let leases = program(&proxy).ttl(LONG).command_timeout(silence).build().await.unwrap();
    let held_up = proxy.on(Match::script(ACQUIRE), 1, Action::HoldReply);
    let began = Instant::now();
    let acquiring = tokio::spawn(leases.lock("job").acquire());
    eventually_async(HANGS, "it is granted there", || old.wire().exists("job")).await;
    proxy.turn_to(new.port());
    eventually_async(HANGS, "all are there", || connections(&old) == 0).await;
    held_up.release();
    let acquired = within(HANGS, "the acquire", acquiring).await.unwrap().unwrap();
    assert!(began.elapsed() < silence, "its link was left, and not given up for its silence");
    assert!(new.wire().exists("job"), "the grant of the old one does not count");
    acquired.release().await.unwrap().confirmed();
    assert!(!new.wire().exists("job"));
}

/// Over a slow link, the server of our connections is not yet known when the address is turned.
#[tokio::test]
async fn f65_connections_that_lead_nobody_knows_where_go_over_too() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&old);
    // Its connections are slow for longer than a shorter lease lasts on a busy machine.
    let leases = program(&proxy).ttl(LONG).build().await.unwrap();
    // In each direction, so no answer arrives within a quarter of the command time-out.
    proxy.delay(Duration::from_millis(300));
    let lease = leases.lock("job").acquire().await.unwrap();
    eventually_async(HANGS, "it asks on a fresh connection", || roles(&old).iter().any(|role| role == "question"))
        .await;
    proxy.delay(Duration::ZERO);
    proxy.turn_to(new.port());
    let lost = within(HANGS, "the signal", lease.lost()).await;
    assert!(matches!(lost.reason(), LossReason::Deleted), "{lost}");
    eventually_async(HANGS, "no connection is left", || connections(&old) == 0).await;
}

/// A name may briefly resolve to a replica while its servers change roles.
#[tokio::test]
async fn f65_a_replica_moves_nobody() {
    let [primary, replica] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&primary);
    let leases = program(&proxy).build().await.unwrap();
    let lease = leases.lock("job").acquire().await.unwrap();
    replica.wire().must(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    eventually_async(HANGS, "all is connected", || has_all(&primary)).await;
    proxy.turn_to(replica.port());
    let before = made(&proxy);
    eventually_async(HANGS, "it has looked three times", || made(&proxy) >= before + 4).await;
    lease.check().unwrap();
    assert!(has_all(&primary) && roles(&replica).iter().all(|role| role == "question"));
    lease.release().await.unwrap().confirmed();
}

/// The last lease may end meanwhile; then only calls that time out remain.
#[tokio::test]
async fn f66_each_connection_leads_to_another_server() {
    let [one, other] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&one);
    let leases = program(&proxy).build().await.unwrap();
    let lease = leases.lock("held").acquire().await.unwrap();
    eventually_async(HANGS, "all is connected", || has_all(&one)).await;
    proxy.turn_among(&[one.port(), other.port()]);
    let lock = leases.lock("job");
    let is_mixed = |error: &Error| error.to_string().contains("now to one server and now to another");
    within(HANGS, "nothing is granted", async {
        loop {
            match lock.try_acquire().await {
                Err(error) if is_mixed(&error) => return assert!(error.is_transient(), "{error}"),
                outcome => drop(outcome),
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let error = leases.health().await.unwrap_err();
    assert!(is_mixed(&error) && error.to_string().contains("check_address_every"), "{error}");
    drop(lease);
    let waiter = tokio::spawn(lock.clone().acquire());
    proxy.turn_among(&[one.port()]);
    let acquired = within(HANGS, "it leads to one again", waiter).await.unwrap().unwrap();
    assert!(one.wire().exists("job"));
    acquired.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f66_an_address_that_goes_there_and_back() {
    let [one, other] = [(); 2].map(|()| Server::start());
    let proxy = Proxy::to(&one);
    let leases = program(&proxy).build().await.unwrap();
    for (name, there) in [("there", &other), ("back", &one)] {
        let lease = leases.lock(name).acquire().await.unwrap();
        proxy.turn_to(there.port());
        let lost = within(HANGS, "the signal", lease.lost()).await;
        assert_eq!(lost.reason(), LossReason::Deleted);
    }
    let lease = within(HANGS, "it stays", leases.lock("job").acquire()).await.unwrap();
    assert!(one.wire().exists("job"));
    lease.release().await.unwrap().confirmed();
}

/// A program that only holds, but must never check the address, does not check either.
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
    let refused = Client::builder().url(server.url()).check_address_every(Duration::from_millis(99)).build().await;
    assert!(
        matches!(&refused, Err(Error::Config(text)) if text.to_string().contains("check_address_every")),
        "{refused:?}"
    );
}
