//! Servers that refuse, and servers that cannot be reached: the error that the caller gets. Each test is named after
//! its row of the fault table.

use std::{
    fmt::{Debug, Display},
    time::{Duration, Instant},
};

use crate::common::{Confirmed as _, unconfirmed};
use futures_util::{
    FutureExt,
    future::{try_join, try_join_all},
};
use leasehold::{Builder, Client, Error, Lease, LossReason, Released, Status, StatusChanges};
use support::{HANGS, Lag, Match, Proxy, Seen, Server, Value, Wire, eventually_async, scripts::RENEW, within};

/// The secrets that no error and no `Debug` may contain.
const SECRET: &str = "open-s3same";
const WRONG: &str = "guessed-s3same";

/// A TTL that no test waits for.
const TTL: Duration = Duration::from_secs(60);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

fn builder(url: impl Into<String>) -> Builder {
    let builder = Client::builder().url(url).ttl(TTL);
    builder.command_timeout(COMMAND_TIMEOUT).connect_timeout(CONNECT_TIMEOUT)
}

async fn connect(url: impl Into<String>) -> Client {
    let leases = within(HANGS, "build", builder(url).build()).await.unwrap();
    keeps_secrets(&format!("{leases:?} {leases:#?}"));
    leases
}

/// The error of a build that must fail.
async fn turned_down(builder: Builder) -> Error {
    keeps_secrets(&format!("{builder:?} {builder:#?}"));
    let error = within(HANGS, "build", builder.build()).await.expect_err("the server should have refused us");
    said(&error);
    error
}

/// The text of an error; panics if any of its forms contains a secret.
#[track_caller]
fn said<E: Display + Debug>(error: &E) -> String {
    let text = error.to_string();
    keeps_secrets(&format!("{text} {error:?} {error:#?}"));
    text
}

#[track_caller]
fn keeps_secrets(text: &str) {
    assert!(!text.contains(SECRET) && !text.contains(WRONG), "{text}");
}

/// Panics unless `text` has each of `words`: the server's own words, and the remedy.
#[track_caller]
fn names(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

fn url_of(user: &str, password: &str, port: u16) -> String {
    format!("redis://{user}:{password}@127.0.0.1:{port}")
}

/// The error of an acquire that a server refused for now.
#[track_caller]
fn unavailable<T: Debug>(outcome: Result<T, Error>) -> Error {
    match outcome {
        Err(error @ Error::Unavailable(_)) => {
            assert!(error.is_transient());
            said(&error);
            error
        }
        other => panic!("the server cannot serve now, but we got {other:?}"),
    }
}

/// The error of an acquire that a server refused for good.
#[track_caller]
fn refused<T: Debug>(outcome: Result<T, Error>) -> Error {
    match outcome {
        Err(error @ Error::Refused(_)) => {
            assert!(!error.is_transient());
            said(&error);
            error
        }
        other => panic!("the server refused us, but we got {other:?}"),
    }
}

/// Asserts that while the server cannot serve, every call names its `words`, and none reports "busy".
async fn every_call_says(leases: &Client, words: &[&str]) {
    let lock = leases.lock("every-call");
    for error in [
        unavailable(within(HANGS, "try_acquire", lock.try_acquire()).await),
        unavailable(within(HANGS, "one check", lock.acquire_within(Duration::ZERO)).await),
    ] {
        assert!(matches!(error, Error::Unavailable(_)));
        names(&said(&error), words);
    }
    // Its last check is short, and may be too short for a slow machine's answer.
    unavailable(within(HANGS, "acquire_within", lock.acquire_within(Duration::from_millis(100))).await);
}

#[tokio::test]
async fn f22_readonly_replica() {
    let server = Server::start();
    let (leases, mut wire) = (connect(server.url()).await, server.wire());
    let words = ["READONLY You can't write against a read only replica", "the url must name a primary"];
    let lease = leases.lock("held").acquire().await.unwrap();
    let kept = leases.lock("kept").acquire().await.unwrap();

    // A replica whose primary does not exist keeps its data, answers, and refuses writes.
    wire.must(&["REPLICAOF", "127.0.0.1", "1"]);
    every_call_says(&leases, &words).await;
    let error = leases.lock("free").force_release().await;
    assert!(matches!(error, Ok(false)), "nothing was there to be written: {error:?}");
    let error = leases.lock("held").force_release().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    names(&said(&error), &words);
    assert!(leases.lock("held").holder().await.unwrap().is_some(), "reading goes on");
    match lease.renew().await {
        Err(Error::Unconfirmed(error)) => names(&said(&error), &words),
        other => panic!("a replica renewed: {other:?}"),
    }
    lease.check().expect("an unanswered renewal is not a loss");
    names(&said(&unconfirmed(lease.release().await)), &words);

    // `acquire` waits until the error ends.
    let waiting = tokio::spawn(leases.lock("later").acquire());
    tokio::task::yield_now().await;
    wire.must(&["REPLICAOF", "NO", "ONE"]);
    within(HANGS, "the lock of a primary", waiting).await.unwrap().unwrap().release().await.unwrap().confirmed();
    kept.renew().await.unwrap();
    kept.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f22_masterdown() {
    let server = Server::builder().arg("--replica-serve-stale-data", "no").start();
    let (leases, mut wire) = (connect(server.url()).await, server.wire());
    let lease = leases.lock("held").acquire().await.unwrap();

    wire.must(&["REPLICAOF", "127.0.0.1", "1"]);
    let words = ["MASTERDOWN Link with MASTER is down", "the url must name a primary"];
    every_call_says(&leases, &words).await;
    let error = leases.lock("held").holder().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    names(&said(&error), &words);
    let error = leases.lock("held").force_release().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    match lease.renew().await {
        Err(Error::Unconfirmed(error)) => names(&said(&error), &words),
        other => panic!("a stale replica renewed: {other:?}"),
    }
    lease.check().expect("an unanswered renewal is not a loss");

    let waiting = tokio::spawn(leases.lock("later").acquire());
    tokio::task::yield_now().await;
    wire.must(&["REPLICAOF", "NO", "ONE"]);
    within(HANGS, "the lock of a primary", waiting).await.unwrap().unwrap().release().await.unwrap().confirmed();
    lease.renew().await.unwrap();
    lease.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f22_loading() {
    // It serves its clients every few keys, and needs at least 4 s to load all.
    let server = Server::builder().arg("--loading-process-events-interval-bytes", "1024").start();
    let (leases, mut wire) = (connect(server.url()).await, server.wire());
    let lease = leases.lock("held").acquire().await.unwrap();
    wire.must(&["DEBUG", "POPULATE", "20000", "filler", "100"]);
    wire.must(&["CONFIG", "SET", "key-load-delay", "200"]);
    let mut loader = server.wire();
    loader.set_patience(Duration::from_secs(30)).unwrap();
    loader.send(&["DEBUG", "RELOAD"]).unwrap();
    let loading = |wire: &mut Wire| wire.cmd(&["GET", "held"]).error().is_some_and(|text| text.starts_with("LOADING"));
    eventually_async(HANGS, "the server loads", || loading(&mut wire)).await;

    let words = ["LOADING", "loading the dataset in memory", "once its data is loaded"];
    every_call_says(&leases, &words).await;
    for error in
        [leases.lock("held").holder().await.unwrap_err(), leases.lock("held").force_release().await.unwrap_err()]
    {
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        names(&said(&error), &words);
    }
    match lease.renew().await {
        Err(Error::Unconfirmed(error)) => names(&said(&error), &words),
        other => panic!("a loading server renewed: {other:?}"),
    }
    lease.check().expect("an unanswered renewal is not a loss");
    let waiting = tokio::spawn(leases.lock("later").acquire());
    tokio::task::yield_now().await;
    assert!(loading(&mut wire), "it finished loading before every call was made");

    wire.must(&["CONFIG", "SET", "key-load-delay", "0"]);
    assert!(loader.reply().unwrap().is_ok());
    within(HANGS, "the lock of a loaded server", waiting).await.unwrap().unwrap().release().await.unwrap().confirmed();
    lease.renew().await.unwrap();
    lease.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f22_noauth_and_wrongpass_are_distinct() {
    let server = Server::builder().arg("--requirepass", SECRET).start();
    let port = server.port();
    let start = Instant::now();
    let lag = Lag::start();

    let error = turned_down(builder(server.url())).await;
    assert!(matches!(error, Error::Refused(_)));
    names(&said(&error), &["NOAUTH", "give the url a password"]);
    for url in [url_of("", WRONG, port), url_of("default", WRONG, port), url_of("nobody", SECRET, port)] {
        let error = turned_down(builder(url)).await;
        assert!(matches!(error, Error::Refused(_)));
        names(&said(&error), &["WRONGPASS", "check the user and password in the url"]);
    }
    // Four errors, none of which is retried.
    assert!(start.elapsed() < CONNECT_TIMEOUT + lag.worst() * 4, "it was tried until {:?}", start.elapsed());

    connect(url_of("", SECRET, port)).await.lock("job").acquire().await.unwrap().release().await.unwrap().confirmed();
    // A password for a server without one is a configuration error too.
    let open = Server::start();
    let error = turned_down(builder(url_of("worker", SECRET, open.port()))).await;
    names(&said(&error), &["WRONGPASS"]);
}

#[tokio::test]
async fn f22_password_rotated_while_connected() {
    let server = Server::builder().arg("--requirepass", SECRET).start();
    let leases = connect(url_of("", SECRET, server.port())).await;
    let lease = leases.lock("held").acquire().await.unwrap();
    let mut wire = server.wire();
    wire.must(&["AUTH", SECRET]);

    wire.must(&["CONFIG", "SET", "requirepass", "another"]);
    wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    // The first calls find the connection broken or silent, before its successor has been refused.
    let mut last = String::new();
    let start = Instant::now();
    let lock = leases.lock("job");
    let error = loop {
        assert!(start.elapsed() < HANGS, "the reason was not reported: {last}");
        match within(HANGS, "try_acquire", lock.try_acquire()).await {
            Err(Error::Unavailable(error)) => last = said(&error),
            outcome => break refused(outcome),
        }
    };
    assert!(matches!(error, Error::Refused(_)));
    names(&said(&error), &["WRONGPASS", "check the user and password in the url"]);
    // An unbounded wait ends too.
    let error = refused(within(HANGS, "acquire", lock.acquire()).await);
    names(&said(&error), &["WRONGPASS"]);
    match within(HANGS, "renew", lease.renew()).await {
        Err(Error::Unconfirmed(error)) => names(&said(&error), &["WRONGPASS"]),
        other => panic!("renewed without a password: {other:?}"),
    }
    lease.check().expect("an unanswered renewal is not a loss");

    // Once the password is right again, the client recovers by itself.
    wire.must(&["CONFIG", "SET", "requirepass", SECRET]);
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < HANGS, "it did not recover");
        if lease.renew().await.is_ok() {
            break;
        }
    }
    lease.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f22_password_introduced_while_connected() {
    let server = Server::start();
    let (leases, mut wire) = (connect(server.url()).await, server.wire());
    wire.must(&["CONFIG", "SET", "requirepass", SECRET]);
    wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let (mut last, start, lock) = (String::new(), Instant::now(), leases.lock("job"));
    let error = loop {
        assert!(start.elapsed() < HANGS, "the reason was not reported: {last}");
        match within(HANGS, "try_acquire", lock.try_acquire()).await {
            Err(Error::Unavailable(error)) => last = said(&error),
            outcome => break refused(outcome),
        }
    };
    names(&said(&error), &["NOAUTH", "give the url a password"]);
}

/// All rights that the library needs on a server: a user of the key prefix `app:` with no other right. A companion key
/// begins with a brace unless the name has a hash tag of its own.
pub(crate) const LEAST_ACL: &str = "resetchannels ~app:* ~{app:* -@all +eval +evalsha +get +getrange +mget +exists +set +del +pexpire \
                         +pttl +time";
/// The rights for notifications. Without them waiters poll, and the server's ACL log lists the attempts.
pub(crate) const FOR_PUSH: &str = "+client|id +client|caching +client|tracking +subscribe +ping +publish +config|get +info \
                        &__redis__:invalidate &leasehold:*";
/// The additional rights for fair locks.
pub(crate) const FOR_FAIR: &str = "+hget +hset +zcard +zadd +zrange +zrank +zscore +zrem +hlen +hdel +hrandfield";
/// The additional rights for shared locks, besides those for fair locks.
pub(crate) const FOR_SHARES: &str = "+zcount +zrangebyscore";
/// The right to ask whether the first waiter that does not fit is still alive. Without an answer it counts as alive for
/// as long as its process may be silent.
pub(crate) const TO_PASS_OVER_THE_DEAD: &str = "+pubsub|numsub";
/// Rights for commands that may stay unanswered: the client library's on connecting, a release's query for a queue, and
/// the name of each connection.
pub(crate) const FOR_A_QUIET_LOG: &str = "+info +zcard +client|setname";
/// One more such right, except on Redis 7.0, which does not know it and does not need it.
pub(crate) const BUT_ON_7_0: &str = "+client|setinfo";

fn for_a_quiet_log() -> String {
    let version = Server::version();
    let more = if version.at_least(7, 2) || !version.at_least(7, 0) { BUT_ON_7_0 } else { "" };
    format!("{FOR_A_QUIET_LOG} {more}")
}
/// The right for a URL with a database number.
pub(crate) const FOR_A_DATABASE: &str = "+select";

/// How servers report that the user lacks a right; inside a script it depends on their version.
pub(crate) const NO_RIGHT: [&str; 3] = ["NOPERM", "The user executing the script can't", "ACL failure in script"];

fn set_user(wire: &mut Wire, rules: &str) {
    let password = format!(">{SECRET}");
    let mut command = vec!["ACL", "SETUSER", "worker", "reset", "on", &password];
    command.extend(rules.split_whitespace());
    wire.must(&command);
}

/// Turns an unconfirmed release into an error with the reason.
fn is_confirmed(released: Released) -> Result<(), Error> {
    match released {
        Released::Unconfirmed(why) => Err(Error::Unconfirmed(why)),
        _ => Ok(()),
    }
}

/// Connects and makes every call, starting from an empty script cache.
async fn do_everything(server: &Server) -> Result<(), Error> {
    let mut wire = server.wire();
    wire.must(&["FLUSHALL"]);
    let url = url_of("worker", SECRET, server.port());
    let leases = builder(url).prefix("app:").build().await?;
    for name in ["job", "{tag}job"] {
        wire.must(&["SCRIPT", "FLUSH"]);
        let lock = leases.lock(name);
        let lease = lock.try_acquire().await?.expect("it is free");
        assert!(lock.holder().await?.is_some());
        lease.renew().await?;
        assert!(leases.lock(name).owner(leasehold::Owner::anonymous()).try_acquire().await?.is_none());
        is_confirmed(lease.release().await?)?;
        drop(lock.try_acquire().await?);
        is_confirmed(lock.acquire().await?.release().await?)?;
        let left = lock.try_acquire().await?.expect("it is free again");
        assert!(lock.force_release().await?);
        match left.renew().await {
            Err(Error::Lost(lost)) => assert_eq!(lost.reason(), leasehold::LossReason::Forced),
            outcome => outcome?,
        }
        let left = lock.try_acquire().await?.expect("it is free again");
        wire.del(&format!("app:{name}"));
        match left.renew().await {
            Err(Error::Lost(lost)) => assert_eq!(lost.reason(), leasehold::LossReason::Deleted),
            outcome => outcome?,
        }
    }
    leases.close().await;
    Ok(())
}

#[tokio::test]
async fn f22_the_least_acl_line_is_enough_and_nothing_outside_it_is_tried() {
    let server = Server::start();
    let mut wire = server.wire();
    set_user(&mut wire, LEAST_ACL);
    within(HANGS, "everything", do_everything(&server)).await.unwrap();

    let denied = |wire: &mut Wire| -> Vec<String> {
        // A list of names and values; the denied command is the value of "object".
        let text = |value: &Value| if let Value::Bulk(_) = value { value.text() } else { String::new() };
        let log = wire.must(&["ACL", "LOG"]);
        let entry =
            |entry: &Value| entry.array().windows(2).find(|two| text(&two[0]) == "object").map(|two| text(&two[1]));
        let mut objects: Vec<String> = log.array().iter().filter_map(entry).collect();
        assert_eq!(objects.len(), log.array().len(), "{log:?}");
        objects.sort();
        objects.dedup();
        objects
    };
    let version = Server::version();
    let of_client: &[&str] = match (version.at_least(7, 0), version.at_least(7, 2)) {
        (false, _) => &["client"],
        (true, false) => &["client|id", "client|setname"],
        (true, true) => &["client|id", "client|setinfo", "client|setname"],
    };
    let unanswered = [of_client, &["info", "ping", "publish", "subscribe", "zcard"]].concat();
    assert_eq!(denied(&mut wire), unanswered, "commands that may stay unanswered");

    wire.must(&["ACL", "LOG", "RESET"]);
    set_user(&mut wire, &format!("{LEAST_ACL} {FOR_PUSH} {}", for_a_quiet_log()));
    within(HANGS, "everything", do_everything(&server)).await.unwrap();
    assert!(denied(&mut wire).is_empty(), "{:?}", denied(&mut wire));
}

/// Leases that the server will refuse to renew, and others that it will not, all due at once.
struct Mixed {
    wire: Wire,
    proxy: Proxy,
    bad: Vec<Lease>,
    good: Vec<Lease>,
    changes: Vec<StatusChanges>,
    _server: Server,
}

impl Mixed {
    const EACH: usize = 12;

    async fn start(ttl: Duration) -> Self {
        let server = Server::start();
        let (mut wire, proxy) = (server.wire(), Proxy::to(&server));
        set_user(&mut wire, &format!("{LEAST_ACL} {FOR_PUSH} {}", for_a_quiet_log()));
        let builder = builder(url_of("worker", SECRET, proxy.port())).prefix("app:").ttl(ttl);
        let leases = builder.build().await.unwrap();
        let locks = |kind| (0..Self::EACH).map(move |number| format!("{kind}-{number}"));
        let acquire = |kind| try_join_all(locks(kind).map(|name| leases.lock(name).acquire()));
        // Acquired at once, so no renewal is due before the last is granted.
        let (bad, good) = try_join(acquire("bad"), acquire("good")).await.unwrap();
        let changes = good.iter().map(Lease::status_changes).collect();
        wire.must(&["ACL", "SETUSER", "worker", "resetkeys", "~app:good-*", "~{app:good-*"]);
        proxy.forget();
        Self { wire, proxy, bad, good, changes, _server: server }
    }

    /// The locks of each renewal so far.
    fn renewals(&self) -> Vec<Vec<String>> {
        let renew = Match::script(RENEW);
        let locks = |seen: Seen| {
            let texts = seen.args.into_iter().filter_map(|arg| String::from_utf8(arg).ok());
            texts.filter(|text| text.starts_with("app:")).collect()
        };
        self.proxy.seen().into_iter().filter(|seen| renew.matches(&seen.args)).map(locks).collect()
    }

    /// The number of locks in each renewal of this lease.
    fn renewals_of(&self, lease: &Lease) -> Vec<usize> {
        let lock = format!("app:{}", lease.name());
        self.renewals().iter().filter(|locks| locks.contains(&lock)).map(Vec::len).collect()
    }

    fn assert_good_ones_are_held(&mut self) {
        for changes in &mut self.changes {
            if let Some(change) = changes.next().now_or_never() {
                panic!("{change:?}");
            }
        }
    }
}

/// Renewals due together are sent as one command, which is refused as a whole.
#[tokio::test]
async fn a_key_that_is_refused_travels_alone_and_puts_no_other_lease_at_risk() {
    let mut mixed = Mixed::start(Duration::from_millis(1_500)).await;
    for bad in &mixed.bad {
        assert_eq!(within(HANGS, "the loss", bad.lost()).await.reason(), LossReason::Expired);
        let renewals = mixed.renewals_of(bad);
        let alone = renewals.iter().position(|locks| *locks == 1).expect("a refusal of its own");
        assert!(renewals[alone..].iter().all(|locks| *locks == 1), "{renewals:?}");
        // Each pause is at least a twelfth of the TTL, and two thirds of the TTL are left.
        assert!(renewals.len() - alone <= 9, "{renewals:?}");
    }
    mixed.assert_good_ones_are_held();
}

#[tokio::test]
async fn a_lease_that_is_not_refused_any_more_travels_with_the_others_again() {
    let mut mixed = Mixed::start(Duration::from_secs(3)).await;
    let refused = || mixed.bad.iter().all(|bad| mixed.renewals_of(bad).contains(&1));
    eventually_async(HANGS, "each is refused alone", refused).await;
    mixed.wire.must(&["ACL", "SETUSER", "worker", "~app:*", "~{app:*"]);
    let held = || mixed.bad.iter().all(|bad| bad.status() == Status::Held);
    eventually_async(HANGS, "all are held again", held).await;
    mixed.proxy.forget();
    let together = || mixed.bad.iter().any(|bad| mixed.renewals_of(bad).iter().any(|locks| *locks > 1));
    eventually_async(HANGS, "some travel with others", together).await;
    mixed.assert_good_ones_are_held();
    for lease in mixed.bad.into_iter().chain(mixed.good) {
        lease.release().await.unwrap().confirmed();
    }
}

/// One client waits for the other in a fair queue, and gives up; then it waits again, and gets its turn.
async fn queue_up(server: &Server) -> Result<(), Error> {
    let url = url_of("worker", SECRET, server.port());
    let (one, two) = (builder(&url).prefix("app:").build().await?, builder(&url).prefix("app:").build().await?);
    let (mine, theirs) = (one.lock("job").fair(true), two.lock("job").fair(true));
    let lease = mine.acquire().await?;
    assert!(theirs.acquire_within(Duration::from_millis(100)).await.is_err());
    let (waiter, released) = tokio::join!(theirs.acquire(), async {
        while mine.waiters().await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        lease.release().await
    });
    released?.confirmed();
    waiter?.release().await?.confirmed();
    Ok(())
}

#[tokio::test]
async fn f22_a_fair_lock_needs_its_own_rights_and_says_so() {
    let server = Server::start();
    let mut wire = server.wire();
    let all = format!("{LEAST_ACL} {FOR_PUSH} {FOR_FAIR} {}", for_a_quiet_log());
    set_user(&mut wire, &all);
    within(HANGS, "the queue", queue_up(&server)).await.unwrap();
    let log = wire.must(&["ACL", "LOG"]);
    assert!(log.array().is_empty(), "{log:?}");

    set_user(&mut wire, LEAST_ACL);
    let error = within(HANGS, "a refusal", queue_up(&server)).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)));
    names(&said(&error), &["give the user the rights"]);
}

/// A missing right that would later lose or leak a lease is found before one is acquired.
#[tokio::test]
async fn f22_health_tries_the_rights_of_renewals_and_releases_too() {
    let server = Server::start();
    let mut wire = server.wire();
    set_user(&mut wire, &format!("{LEAST_ACL} {FOR_PUSH} {}", for_a_quiet_log()));
    let leases = builder(url_of("worker", SECRET, server.port())).prefix("app:").build().await.unwrap();
    leases.health().await.unwrap();
    let of_locks = LEAST_ACL.split_whitespace().filter_map(|rule| rule.strip_prefix('+'));
    // This connection has sent the text before.
    for right in of_locks.filter(|right| *right != "eval") {
        wire.must(&["ACL", "SETUSER", "worker", &format!("-{right}")]);
        let refused = leases.health().await.unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "without {right}: {refused}");
        wire.must(&["ACL", "SETUSER", "worker", &format!("+{right}")]);
        leases.health().await.unwrap();
    }
}

/// A share that could not be released is not acquired, and keeps no other holder out.
#[tokio::test]
async fn f22_a_shared_lock_without_the_right_to_delete_leaves_no_key() {
    let server = Server::start();
    let mut wire = server.wire();
    set_user(&mut wire, &format!("{LEAST_ACL} {FOR_PUSH} {FOR_FAIR} {FOR_SHARES} -del {}", for_a_quiet_log()));
    let leases = builder(url_of("worker", SECRET, server.port())).prefix("app:").build().await.unwrap();
    let refused = leases.rw_lock("shared").read().try_acquire().await.unwrap_err();
    assert!(NO_RIGHT.iter().any(|words| refused.to_string().contains(words)), "{refused}");
    assert!(!wire.exists("app:shared"), "it is free");
}

#[tokio::test]
async fn f22_a_database_number_needs_one_right_more() {
    let server = Server::start();
    let mut wire = server.wire();
    let url = format!("{}/3", url_of("worker", SECRET, server.port()));
    set_user(&mut wire, LEAST_ACL);
    let error = turned_down(builder(&url)).await;
    assert!(matches!(error, Error::Refused(_)));
    names(&said(&error), &["NOPERM", "select", "give the user the rights"]);
    set_user(&mut wire, &format!("{LEAST_ACL} {FOR_A_DATABASE}"));
    connect(&url).await.lock("app:job").acquire().await.unwrap().release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f22_noperm_is_refused_at_once_and_each_right_of_the_least_acl_line_is_needed() {
    let server = Server::start();
    let mut wire = server.wire();
    for missing in LEAST_ACL.split_whitespace().filter(|right| right.starts_with(['+', '~'])) {
        let rights: Vec<&str> = LEAST_ACL.split_whitespace().filter(|right| *right != missing).collect();
        set_user(&mut wire, &rights.join(" "));
        let error = match within(HANGS, "everything", do_everything(&server)).await {
            Ok(()) => panic!("{missing} is not needed"),
            Err(error) => error,
        };
        let text = said(&error);
        // The reason for an unconfirmed renewal or release is part of its text.
        assert!(matches!(error, Error::Refused(_) | Error::Unconfirmed(_)), "without {missing}: {error:?}");
        assert!(NO_RIGHT.iter().any(|words| text.contains(words)), "without {missing}: {text}");
        names(&text, &["give the user the rights"]);
    }
}

#[tokio::test]
async fn f22_noperm_ends_acquire_after_one_try_and_is_never_busy() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut wire = server.wire();
    set_user(&mut wire, LEAST_ACL);
    let leases = connect(url_of("worker", SECRET, proxy.port())).await;
    // A lock outside the prefix is held, but the user may not see it, so the error must not be "busy".
    wire.set("other", "somebody-else");
    for name in ["other", "free"] {
        proxy.forget();
        let lock = leases.lock(name);
        for outcome in [
            within(HANGS, "acquire", lock.acquire()).await.map(Some),
            within(HANGS, "acquire_within", lock.acquire_within(HANGS)).await.map(Some),
            within(HANGS, "try_acquire", lock.try_acquire()).await,
        ] {
            let error = refused(outcome);
            assert!(matches!(error, Error::Refused(_)));
            names(&said(&error), &["NOPERM", "give the user the rights"]);
        }
        let sent = proxy.count(Match::script(support::scripts::ACQUIRE));
        assert_eq!(sent, 3, "{:?}", proxy.seen());
        for error in [lock.holder().await.unwrap_err(), lock.force_release().await.unwrap_err()] {
            assert!(matches!(error, Error::Refused(_)));
            names(&said(&error), &["NOPERM", "give the user the rights"]);
        }
    }
    assert_eq!(wire.get("other").as_deref(), Some("somebody-else"));
}

#[tokio::test]
async fn f22_rights_taken_away_put_a_lease_at_risk_and_are_named() {
    let server = Server::start();
    let mut wire = server.wire();
    set_user(&mut wire, LEAST_ACL);
    let url = url_of("worker", SECRET, server.port());
    let leases = builder(url).prefix("app:").build().await.unwrap();
    let lease = leases.lock("job").acquire().await.unwrap();
    wire.must(&["ACL", "SETUSER", "worker", "-pexpire"]);
    match lease.renew().await {
        Err(Error::Unconfirmed(error)) => {
            let text = said(&error);
            assert!(NO_RIGHT.iter().any(|words| text.contains(words)), "{text}");
            names(&text, &["give the user the rights"]);
        }
        other => panic!("renewed without the right to: {other:?}"),
    }
    lease.check().expect("an unanswered renewal is not a loss");
    wire.must(&["ACL", "SETUSER", "worker", "+pexpire", "-del"]);
    lease.renew().await.unwrap();
    names(&said(&unconfirmed(lease.release().await)), &["give the user the rights"]);
}

#[tokio::test]
async fn f22_url_typos_name_what_is_wrong_without_any_io() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let port = proxy.port();
    for (url, says) in [
        (format!("127.0.0.1:{port}"), "URL"),
        (format!("redis:127.0.0.1:{port}"), "host"),
        (format!("http://{SECRET}@127.0.0.1:{port}"), "\"http\""),
        (format!("redid://:{SECRET}@127.0.0.1:{port}"), "\"redid\""),
        (format!("redis://:{SECRET}@127.0.0.1:{port}/one"), "\"one\""),
        (format!("redis://:{SECRET}@127.0.0.1:{port}/0?db=1"), "\"db\""),
        (format!("redis://:{SECRET}#@127.0.0.1:{port}"), "URL"),
        (format!("redis://:{SECRET}@127.0.0.1:{port}0000"), "port"),
        (format!("redis-sentinel://:{SECRET}@127.0.0.1:{port}"), "redis-sentinel"),
        (format!("redis-cluster://:{SECRET}@127.0.0.1:{port}/3"), "no databases"),
        (format!("unix:///?password={SECRET}"), "no socket"),
    ] {
        let error = turned_down(builder(url)).await;
        assert!(matches!(error, Error::Config(_)), "{error}");
        names(&said(&error), &[says]);
    }
    assert_eq!((proxy.commands(), proxy.connections()), (0, 0));
}

#[tokio::test]
async fn f22_closed_port_and_unknown_host_are_distinct_within_connect_timeout() {
    // Bound, so that no other program gets the port, but never listened on.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let closed = taken.local_addr().unwrap();
    for (url, place, reason) in [
        (format!("redis://:{SECRET}@{closed}"), closed.to_string(), "refused"),
        (format!("redis://:{SECRET}@nonexistent.invalid"), "nonexistent.invalid:6379".into(), "lookup"),
        (format!("unix:///nonexistent/redis.sock?password={SECRET}"), "/nonexistent/redis.sock".into(), "No such file"),
    ] {
        let (lag, start) = (Lag::start(), Instant::now());
        let error = turned_down(builder(url)).await;
        let took = start.elapsed();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert!(error.is_transient());
        names(&said(&error), &[&place, reason]);
        let bound = CONNECT_TIMEOUT + Duration::from_millis(50) + lag.worst();
        assert!(took <= bound, "{place}: took {took:?}, the bound is {bound:?}");
    }
}

#[tokio::test]
async fn f22_silent_server_is_given_up_after_connect_timeout() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    proxy.black_hole(true);
    let (lag, start) = (Lag::start(), Instant::now());
    let error = turned_down(builder(proxy.url())).await;
    let (took, bound) = (start.elapsed(), CONNECT_TIMEOUT + Duration::from_millis(50) + lag.worst());
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(took <= bound, "took {took:?}, the bound is {bound:?}");
}

#[tokio::test]
async fn f22_unix_socket_with_a_database_and_password_works() {
    let server = Server::builder().unix_socket(true).arg("--requirepass", SECRET).start();
    let url = format!("unix://{}?db=2&password={SECRET}", server.socket_path().display());
    let leases = connect(url).await;
    let lease = leases.lock("job").acquire().await.unwrap();
    let mut wire = server.wire();
    wire.must(&["AUTH", SECRET]);
    assert!(wire.keys("*").is_empty());
    wire.must(&["SELECT", "2"]);
    assert_eq!(wire.keys("*"), ["job", "{job}:lh:fence"]);
    lease.renew().await.unwrap();
    lease.release().await.unwrap().confirmed();
    assert_eq!(wire.keys("*"), ["{job}:lh:fence"]);

    let wrong = format!("unix://{}?password={WRONG}", server.socket_path().display());
    let error = turned_down(builder(wrong)).await;
    assert!(matches!(error, Error::Refused(_)));
    names(&said(&error), &["WRONGPASS"]);
}

#[tokio::test]
async fn f22_database_number_is_where_the_key_is_also_after_a_reconnection() {
    let server = Server::start();
    let leases = connect(format!("{}/3", server.url())).await;
    let mut wire = server.wire();
    let lease = leases.lock("job").acquire().await.unwrap();
    assert!(wire.keys("*").is_empty());
    wire.must(&["SELECT", "3"]);
    assert_eq!(wire.keys("*"), ["job", "{job}:lh:fence"]);

    wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let start = Instant::now();
    while lease.renew().await.is_err() {
        lease.check().expect("it is in database 3");
        assert!(start.elapsed() < HANGS, "it did not reconnect");
    }
    lease.release().await.unwrap().confirmed();
    assert_eq!(wire.keys("*"), ["{job}:lh:fence"]);

    // A server has 16 of them unless configured otherwise.
    let error = turned_down(builder(format!("{}/99", server.url()))).await;
    assert!(matches!(error, Error::Refused(_)), "{error}");
    names(&said(&error), &["DB index is out of range"]);
}

#[tokio::test]
async fn f22_a_lease_ends_by_itself_when_the_server_refuses_us_for_longer_than_its_ttl() {
    let ttl = Duration::from_millis(600);
    let server = Server::builder().arg("--requirepass", SECRET).start();
    let leases = builder(url_of("", SECRET, server.port())).ttl(ttl).build().await.unwrap();
    let mut wire = server.wire();
    wire.must(&["AUTH", SECRET]);
    let lag = Lag::start();
    let lease = leases.lock("job").acquire().await.unwrap();
    wire.must(&["CONFIG", "SET", "requirepass", "another"]);
    wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let killed = Instant::now();
    let lost = within(HANGS, "the signal", lease.lost()).await;
    let (took, bound) = (killed.elapsed(), ttl + Duration::from_millis(50) + lag.worst());
    assert_eq!(lost.reason(), LossReason::Expired);
    assert!(took <= bound, "took {took:?}, the bound is {bound:?}");
}

mod tls {
    use std::process::Command;

    use support::test_name;

    use super::*;

    /// Marks a test run as the child, and names the server to connect to.
    const URL: &str = "LEASEHOLD_TEST_TLS_URL";

    /// Runs the test again in a process of its own, which trusts only the certificates in `ca`, because the variable
    /// that names them applies to the whole process. Returns its output.
    fn again_trusting(ca: &std::path::Path, test: impl Fn(), url: &str) -> String {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test_name(test), "--nocapture"])
            .env("SSL_CERT_FILE", ca)
            .env_remove("SSL_CERT_DIR")
            .env(URL, url)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}");
        assert!(printed.contains("1 passed"), "no such test was run: {printed}");
        printed.into_owned()
    }

    /// The child's part: prints how connecting and one lease went.
    async fn tell(url: &str) {
        let (start, lag) = (Instant::now(), Lag::start());
        match within(HANGS, "build", builder(url).connect_timeout(Duration::from_secs(2)).build()).await {
            Ok(leases) => {
                let lease = leases.lock("job").acquire().await.unwrap();
                lease.renew().await.unwrap();
                println!("held: {}", leases.lock("job").holder().await.unwrap().is_some());
                lease.release().await.unwrap().confirmed();
                leases.close().await;
            }
            Err(error) => {
                let is_at_once = start.elapsed() < Duration::from_secs(1) + lag.worst();
                let when = if is_at_once { "at once" } else { "late" };
                let kind = match error {
                    Error::Refused(_) => "Refused",
                    Error::Unavailable(_) => "Unavailable",
                    Error::Config(_) => "Config",
                    _ => "another error",
                };
                println!("{kind}: {}, {when}", said(&error));
            }
        }
    }

    fn with_password(server: &Server, host: &str) -> String {
        format!("rediss://:{SECRET}@{host}:{}", server.tls_port())
    }

    #[tokio::test]
    async fn f22_tls_works_with_the_servers_authority_and_names_the_certificate_without() {
        if let Ok(url) = std::env::var(URL) {
            return tell(&url).await;
        }
        let server = Server::builder().tls(true).arg("--requirepass", SECRET).start();
        let stranger = Server::builder().tls(true).start();
        let (ours, theirs) = (server.ca_pem_path(), stranger.ca_pem_path());
        let none = server.directory().join("none.pem");
        std::fs::write(&none, "").unwrap();

        for host in ["127.0.0.1", "localhost"] {
            names(
                &again_trusting(
                    &ours,
                    f22_tls_works_with_the_servers_authority_and_names_the_certificate_without,
                    &with_password(&server, host),
                ),
                &["held: true"],
            );
        }
        let printed = again_trusting(
            &theirs,
            f22_tls_works_with_the_servers_authority_and_names_the_certificate_without,
            &with_password(&server, "127.0.0.1"),
        );
        names(
            &printed,
            &[
                "Refused: ",
                "authority of its certificate is not in",
                "into this file, at once",
                &server.tls_port().to_string(),
            ],
        );
        let printed = again_trusting(
            &none,
            f22_tls_works_with_the_servers_authority_and_names_the_certificate_without,
            &with_password(&server, "127.0.0.1"),
        );
        // OpenSSL counts an empty file as one authority fewer.
        let says: &[&str] =
            if cfg!(feature = "tls-rustls") { &["Config: ", "root certificates"] } else { &["Refused: ", "none.pem"] };
        names(&printed, &[says, &["SSL_CERT_FILE"]].concat());
        let printed = again_trusting(
            &server.directory().join("missing.pem"),
            f22_tls_works_with_the_servers_authority_and_names_the_certificate_without,
            &with_password(&server, "127.0.0.1"),
        );
        names(&printed, &["Config: ", "missing.pem, which cannot be read", "SSL_CERT_FILE"]);
    }

    #[tokio::test]
    async fn f22_tls_and_plain_ports_mixed_up_are_errors_in_time() {
        if let Ok(url) = std::env::var(URL) {
            return tell(&url).await;
        }
        let server = Server::builder().tls(true).start();
        let plain = format!("rediss://127.0.0.1:{}", server.port());
        names(
            &again_trusting(&server.ca_pem_path(), f22_tls_and_plain_ports_mixed_up_are_errors_in_time, &plain),
            &["Unavailable: cannot reach redis at"],
        );
        let (lag, start) = (Lag::start(), Instant::now());
        let error = turned_down(builder(format!("redis://127.0.0.1:{}", server.tls_port()))).await;
        let (took, bound) = (start.elapsed(), CONNECT_TIMEOUT + Duration::from_millis(50) + lag.worst());
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert!(took <= bound, "took {took:?}, the bound is {bound:?}");
    }
}
