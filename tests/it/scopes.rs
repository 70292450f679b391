//! Tenants and requests on the connections of one `Client`: names under a further prefix, with labels of their own.

use leasehold::{Client, Error};
use support::{Server, alone, two_workers};

use crate::common::{Confirmed as _, NAME, program, told};

#[tokio::test]
async fn a_scope_has_names_and_a_label_of_its_own() {
    let server = Server::start();
    let leases = Client::builder().url(server.url()).prefix("app:").label("program").build().await.unwrap();
    let tenants = leases.prefix("tenant:");
    let (seven, eight) = (tenants.prefix("7:").label("req-91"), tenants.prefix("8:"));
    let held = seven.lock(NAME).acquire().await.unwrap();
    assert_eq!((held.name(), held.label()), (NAME, "req-91"));
    assert!(server.wire().get("app:tenant:7:job").is_some(), "all prefixes are before it");
    let theirs = eight.lock(NAME).acquire().await.expect("another tenant's lock of that name is free");
    assert_eq!(theirs.label(), "program");
    let ours = leases.lock(NAME).label("10.0.0.7:8080").acquire().await.unwrap();
    assert_eq!(leases.lock(NAME).holder().await.unwrap().unwrap().label(), Some("10.0.0.7:8080"));

    let names = async |scope: &Client| {
        let mut names: Vec<_> = scope.list("*").await.unwrap().iter().map(|lock| lock.name().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&seven).await, [NAME]);
    assert_eq!(names(&leases).await, ["job", "tenant:7:job", "tenant:8:job"]);
    let listed = seven.list("j*").await.unwrap().remove(0);
    assert_eq!(listed.holder().await.unwrap().unwrap().label(), Some("req-91"), "a lock of the list is the scope's");

    for lease in [held, theirs, ours] {
        lease.release().await.unwrap().confirmed();
    }
}

/// A server like those with a word that is not taken as a pattern.
#[tokio::test]
async fn a_prefix_with_the_signs_of_a_pattern_is_that_prefix() {
    let leases = Client::in_memory();
    let (scope, other) = (leases.prefix("a*[b]?:"), leases.prefix("aXb!:"));
    let _held = (scope.lock(NAME).acquire().await.unwrap(), other.lock(NAME).acquire().await.unwrap());
    assert_eq!(scope.list("*").await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_wrong_in_a_scope_is_said_before_anything_is_sent() {
    let leases = Client::builder().url("memory://").prefix("p".repeat(200)).build().await.unwrap();
    for (scope, says) in [
        (leases.prefix("p".repeat(57)), "prefix is 257 bytes long: 256 is the most"),
        (leases.label(""), "label is \"\""),
        (leases.label("a\nb"), "label is \"a\\nb\""),
        (leases.label("l".repeat(129)), "1 to 128 bytes"),
    ] {
        let error = scope.lock(NAME).try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Config(_)) && error.to_string().contains(says), "{error}");
    }
    let error = leases.prefix("p".repeat(57)).list("*").await.unwrap_err();
    assert!(error.to_string().contains("256 is the most"), "{error}");
    let long = leases.prefix("p".repeat(57)).lock(NAME);
    assert!(long.holder().await.is_err() && long.force_release().await.is_err());
    let error = leases.lock(NAME).label("\u{7f}").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("no control characters"), "{error}");
}

/// This process's threads, and its connections to the server.
#[cfg(target_os = "linux")]
#[test]
fn a_thousand_scopes_cost_no_thread_and_no_connection() {
    alone(|| {
        two_workers().block_on(async {
            let server = Server::start();
            let leases = program(server.url()).await;
            told(&leases).await;
            let mut wire = server.wire();
            let mut cost = || {
                // Other threads of this process may run tests of their own.
                let name = |task: std::io::Result<std::fs::DirEntry>| {
                    std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
                };
                let is_ours = |name: &String| {
                    ["leasehold-keep", "leasehold-tran", "leasehold-asks"].iter().any(|ours| name.starts_with(ours))
                };
                let threads = std::fs::read_dir("/proc/self/task").unwrap().map(name).filter(is_ours).count();
                (threads, wire.must(&["CLIENT", "LIST"]).text().lines().count())
            };
            leases.lock(NAME).acquire().await.unwrap().release().await.unwrap().confirmed();
            let before = cost();
            let mut held = Vec::new();
            for tenant in 0..1_000 {
                let scope = leases.prefix(format!("tenant{tenant}:")).label(format!("request-{tenant}"));
                held.push(scope.lock(NAME).acquire().await.unwrap());
            }
            assert_eq!(cost(), before);
        });
    });
}
