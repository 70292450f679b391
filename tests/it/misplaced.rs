//! A key under a lock's name that is not a lock: how each kind of acquire recognises it.

use std::time::Duration;

use leasehold::{Builder, Client, Holder};
use support::Server;

use crate::common::in_vain;

/// The commands that make each key, and what kind of value it is.
const KEYS: [(&[&str], Option<&str>); 5] = [
    (&["RPUSH", "job", "value"], Some("list")),
    (&["SET", "job", "value"], Some("string without a TTL")),
    (&["SET", "job", "\u{fffd}\0"], Some("string without a TTL")),
    (&["SET", "job", "another-library", "PX", "60000"], None),
    (&["SET", "job", "list", "PX", "60000"], None),
];

async fn what_each_acquire_finds(leases: &Client) -> Vec<Option<String>> {
    let kind = |holder: &Holder| holder.not_a_lock().map(str::to_owned);
    let mut found = Vec::new();
    for fair in [false, true] {
        let lock = leases.lock("job").fair(fair);
        for limit in [Duration::ZERO, Duration::from_millis(30)] {
            found.push(kind(in_vain(&lock, limit).await.timed_out().expect("it is held")));
        }
        found.push(lock.holder().await.unwrap().as_ref().and_then(kind));
    }
    found
}

#[tokio::test]
async fn only_what_nobody_releases_is_no_lock() {
    let server = Server::start();
    let (leases, mut wire) = (Client::connect(server.url()).await.unwrap(), server.wire());
    for (make, kind) in KEYS {
        wire.must(make);
        let expected = vec![kind.map(str::to_owned); 6];
        assert_eq!(what_each_acquire_finds(&leases).await, expected, "{make:?}");
        wire.del("job");
    }
    leases.lock("job").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_types_learns_that_it_is_no_lock() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["ACL", "SETUSER", "worker", "on", ">secret", "allkeys", "allchannels", "allcommands", "-type"]);
    let url = format!("redis://worker:secret@127.0.0.1:{}", server.port());
    let leases = Client::connect(url).await.unwrap();
    wire.must(&["RPUSH", "job", "value"]);
    let expected = vec![Some("value of another type".to_owned()); 6];
    assert_eq!(what_each_acquire_finds(&leases).await, expected);
}

#[tokio::test]
async fn over_a_quorum_data_on_a_majority_is_no_lock() {
    let servers = [(); 3].map(|()| Server::start());
    let builder: Builder = Client::builder().quorum(servers.iter().map(Server::url)).restart_delay(Duration::ZERO);
    let leases = builder.build().await.unwrap();
    let lock = leases.lock("job");
    let rpush = |server: &Server| drop(server.wire().must(&["RPUSH", "job", "value"]));
    rpush(&servers[2]);
    lock.acquire().await.unwrap().release().await.unwrap();
    rpush(&servers[0]);
    let error = in_vain(&lock, Duration::ZERO).await;
    assert_eq!(error.timed_out().and_then(Holder::not_a_lock), Some("list"), "{error}");
}
