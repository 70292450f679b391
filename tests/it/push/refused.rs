//! Servers that do not push, or not everything that is needed: waiters poll, locks work, and one warning is logged.

use std::time::{Duration, Instant};

use leasehold::{Client, Status};
use support::{
    Action, EventLog, HANGS, Lag, Match, Proxy, SIGNAL, Server, Wire, alone, eventually_async, eventually_but_for,
    scripts::{ACQUIRE, RENEW},
    seen, timed, two_workers, within,
};
use tokio::task::JoinSet;

use crate::common::told;

/// The longest pause between two polls of a waiter without notifications.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The warnings of this process.
struct Warnings {
    log: EventLog,
}

impl Warnings {
    fn start() -> Self {
        Self { log: EventLog::start() }
    }

    /// The warnings' names.
    fn all(&self) -> Vec<String> {
        let name = |line: &String| {
            let (level, rest) = line.split_once(' ')?;
            ["WARN", "ERROR"].contains(&level).then(|| rest.split(' ').next().unwrap_or_default().to_owned())
        };
        self.log.lines().iter().filter_map(name).collect()
    }

    fn forget(&self) {
        self.log.clear();
    }
}

fn client(word: &'static str) -> Match {
    let is = move |args: &[Vec<u8>]| args.get(1).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    Match::command("CLIENT").and(Match::with(is))
}

/// Checks that waiters poll: they have the lock within their longest pause, and may have it at once.
async fn locks_work_by_polling(leases: &Client, wire: &mut Wire, lag: &Lag) {
    for round in 0..2 {
        let name = format!("job:{round}");
        wire.must(&["SET", &name, "somebody", "PX", "60000"]);
        let mut waiters = JoinSet::new();
        for _ in 0..2 {
            let acquire = leases.lock(&name).acquire();
            waiters.spawn(async move { (acquire.await, Instant::now()) });
        }
        // A few pauses, each longer than the one before, but at most a second.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let mut freed = Instant::now();
        wire.del(&name);
        while let Some(next) = within(HANGS, "the next waiter", waiters.join_next()).await {
            let (lease, at) = next.unwrap();
            let took = at.saturating_duration_since(freed);
            assert!(took <= LONGEST_PAUSE + SIGNAL + lag.worst(), "{took:?}");
            let lease = lease.unwrap();
            lease.renew().await.unwrap();
            freed = Instant::now();
            assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed));
        }
    }
}

/// For any cause of the refusal, and any end of it, on a connection that was made before.
async fn is_told_once_and_not_asked_again(
    how: &str,
    log: &Warnings,
    proxy: &Proxy,
    wire: &mut Wire,
    url: String,
    relent: impl FnOnce(&mut Wire),
) {
    log.forget();
    let lag = Lag::start();
    let leases = Client::connect(url).await.unwrap();
    locks_work_by_polling(&leases, wire, &lag).await;
    // The thread for events reports it.
    eventually_async(HANGS, "the warning", || !log.all().is_empty()).await;
    assert_eq!(log.all(), ["notifications"], "{how}: exactly one warning");
    // One for invalidations, and one for the channel of fair waiters.
    assert!(proxy.count(Match::command("SUBSCRIBE")) <= 2, "{how}: it is tried once");
    assert!(proxy.count(client("TRACKING")) <= 1, "{how}: it is tried once");
    assert_eq!(proxy.count(client("CACHING")), 0, "{how}: nothing is armed");
    assert_eq!(wire.receivers(), 0, "{how}: the connection for it is closed");

    relent(wire);
    // The connection is the one that was refused, and the refusal still applies to it.
    locks_work_by_polling(&leases, wire, &lag).await;
    assert!(proxy.count(Match::command("SUBSCRIBE")) <= 2, "{how}: not on the same connection");

    // A new connection may have more rights.
    proxy.cut();
    wire.must(&["SET", "job", "somebody", "PX", "60000"]);
    let waiter = timed(leases.lock("job").acquire());
    eventually_async(HANGS, "pushes work", || wire.trackers().len() == 1 && wire.tracked_keys() >= 2).await;
    let freed = Instant::now();
    wire.del("job");
    let (lease, at) = within(HANGS, "the waiter", waiter).await.unwrap();
    let took = at.duration_since(freed);
    assert!(took <= SIGNAL + lag.worst(), "{how}: {took:?}");
    assert_eq!(lease.unwrap().release().await, Ok(leasehold::Released::Confirmed));
    assert_eq!(log.all().iter().filter(|name| *name == "notifications").count(), 1, "{how}");
    leases.close().await;
    wire.must(&["FLUSHALL"]);
}

#[test]
fn a_server_without_notifications_is_reported_once_and_polled() {
    alone(|| {
        two_workers().block_on(async {
            let log = Warnings::start();
            let server = Server::start();
            let mut wire = server.wire();
            for without in ["-client|tracking", "resetchannels", "-subscribe"] {
                let proxy = Proxy::to(&server);
                wire.must(&["ACL", "SETUSER", "worker", "reset", "on", ">secret", "~*", "&*", "+@all", without]);
                let url = format!("redis://worker:secret@127.0.0.1:{}", proxy.port());
                let relent = |wire: &mut Wire| drop(wire.must(&["ACL", "SETUSER", "worker", "&*", "+@all"]));
                is_told_once_and_not_asked_again(without, &log, &proxy, &mut wire, url, relent).await;
            }
            for (unknown, wanted) in
                [("SUBSCRIBE", Match::command("SUBSCRIBE")), ("CLIENT TRACKING", client("TRACKING"))]
            {
                let proxy = Proxy::to(&server);
                let mangled = proxy.on_each(wanted, Action::Mangle);
                let relent = |_: &mut Wire| mangled.disarm();
                is_told_once_and_not_asked_again(unknown, &log, &proxy, &mut wire, proxy.url(), relent).await;
            }
        });
    });
}

#[test]
fn more_leases_than_half_the_servers_table_are_held_without_a_storm() {
    alone(|| {
        two_workers().block_on(async {
            const LEASES: usize = 20;
            const TTL: Duration = Duration::from_millis(1_200);
            const SPAN: Duration = Duration::from_secs(3);
            let log = Warnings::start();
            let server = Server::builder().arg("--tracking-table-max-keys", "10").start();
            let (proxy, lag) = (Proxy::to(&server), Lag::start());
            let leases = Client::builder().url(proxy.url()).ttl(TTL).build().await.unwrap();
            let mut held = Vec::new();
            for n in 0..LEASES {
                held.push(leases.lock(format!("job:{n}")).acquire().await.unwrap());
            }
            eventually_async(HANGS, "it is said", || log.all().iter().any(|name| name == "crowded")).await;
            proxy.forget();
            // The time over which renewals are counted.
            tokio::time::sleep(SPAN).await;
            let names = |args: &[Vec<u8>]| String::from_utf8_lossy(&args[2]).parse::<usize>().unwrap();
            let renewals = Match::script(RENEW);
            let renewed: usize =
                proxy.seen().iter().filter(|seen| renewals.matches(&seen.args)).map(|seen| names(&seen.args)).sum();
            // A round is at most a tenth and 20 ms earlier than a third of the TTL.
            let round = (TTL / 3).saturating_sub(TTL / 30 + Duration::from_millis(20));
            let rounds = usize::try_from(SPAN.as_millis() / round.as_millis()).unwrap() + 2;
            assert!(renewed <= LEASES * rounds, "{renewed} renewals of {LEASES} leases in {SPAN:?}");
            let all_are = || held.iter().all(|lease| lease.status() == Status::Held);
            // A stalled machine may put leases at risk. The risk ends with the stall.
            eventually_but_for(&lag, SIGNAL, "all are held", all_are).await;
            let (mut warned, is_excused) = (log.all(), lag.worst() >= TTL / 12 && !seen::is_wanted());
            warned.retain(|name| !(is_excused && name == "at_risk"));
            assert_eq!(warned, ["crowded"], "the machine lagged {:?}", lag.worst());
            leases.close().await;
        });
    });
}

#[test]
fn a_table_that_others_have_filled_is_told_once_however_many_sessions_find_it() {
    alone(|| {
        two_workers().block_on(async {
            const TABLE: usize = 100;
            let log = Warnings::start();
            let server = Server::builder().arg("--tracking-table-max-keys", &TABLE.to_string()).start();
            let [mut wire, mut sink, mut neighbour] = [(); 3].map(|()| server.wire());
            let id = sink.must(&["CLIENT", "ID"]).int().to_string();
            neighbour.must(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]);
            for number in 0..TABLE {
                neighbour.cmd(&["GET", &format!("cached:{number}")]);
            }
            let leases = Client::connect(server.url()).await.unwrap();
            assert_eq!(told(&leases).await.tracked_keys, 0);
            for _ in 0..3 {
                let keeper = wire.trackers().into_iter().find(|tracker| tracker.told != id).unwrap().reads;
                wire.kill_client(&keeper);
                let is_back = || wire.trackers().iter().any(|tracker| tracker.told != id && tracker.reads != keeper);
                eventually_async(HANGS, "another session", is_back).await;
                assert_eq!(told(&leases).await.tracked_keys, 0);
            }
            assert_eq!(log.all().iter().filter(|name| *name == "crowded").count(), 1, "{:?}", log.all());
            leases.close().await;
        });
    });
}

#[test]
fn more_waiters_than_half_the_servers_table_wait_without_a_storm() {
    alone(|| {
        two_workers().block_on(async {
            const NAMES: usize = 40;
            const SPAN: Duration = Duration::from_secs(2);
            let _log = Warnings::start();
            let server = Server::builder().arg("--tracking-table-max-keys", "10").start();
            let proxy = Proxy::to(&server);
            let leases = Client::connect(proxy.url()).await.unwrap();
            let (lag, mut wire) = (Lag::start(), server.wire());
            let mut waiters = Vec::new();
            for n in 0..NAMES {
                wire.must(&["SET", &format!("job:{n}"), "somebody", "PX", "60000"]);
                waiters.push(timed(leases.lock(format!("job:{n}")).acquire()));
            }
            eventually_async(HANGS, "everybody looks", || proxy.count(Match::script(ACQUIRE)) >= 2 * NAMES).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            proxy.forget();
            // The time over which polls are counted.
            tokio::time::sleep(SPAN).await;
            let looks = proxy.count(Match::script(ACQUIRE));
            println!("{looks} looks of {NAMES} waiters in {SPAN:?}");
            // With pauses of at most a second a waiter checks twice a second on average; the first pauses are shorter.
            assert!((NAMES..=10 * NAMES).contains(&looks), "{looks} looks of {NAMES} waiters in {SPAN:?}");
            let freed = Instant::now();
            for n in 0..NAMES {
                wire.del(&format!("job:{n}"));
            }
            for waiter in waiters {
                let (lease, at) = within(HANGS, "the waiter", waiter).await.unwrap();
                let took = at.saturating_duration_since(freed);
                assert!(took <= LONGEST_PAUSE + SIGNAL + lag.worst(), "{took:?}");
                drop(lease.unwrap());
            }
            leases.close().await;
        });
    });
}
