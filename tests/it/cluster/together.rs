//! Requests that are batched for each primary, though their keys are in many slots.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use leasehold::{Client, Lease, LossReason, Status};
use support::{Action, Cluster, HANGS, Match, Proxy, Server, eventually_async, scripts::COMBINED_SLOTS, within};
use tokio::task::JoinSet;

use crate::common::{Confirmed as _, LONG};

/// A crowd of tasks, each of which takes and releases locks in all slots, some of them contended. Asserts that each
/// holder is alone, and that fences grow.
async fn crowd(leases: &Client, tasks: usize, cycles: usize) {
    let fences = Arc::new(Mutex::new(HashMap::<String, (bool, Option<leasehold::Fence>)>::new()));
    let work = (0..tasks).map(|task| {
        let (leases, fences) = (leases.clone(), fences.clone());
        tokio::spawn(async move {
            for cycle in 0..cycles {
                let name =
                    if cycle % 4 == 0 { format!("shared:{}", task % 8) } else { format!("own:{task}:{}", cycle % 3) };
                let lease = within(HANGS, &format!("{name:?}"), leases.lock(&name).ttl(LONG).acquire()).await.unwrap();
                {
                    let mut fences = fences.lock().unwrap();
                    let (is_in, last) = fences.entry(name.clone()).or_default();
                    assert!(!*is_in, "{name}: two holders");
                    assert!(last.is_none_or(|last| lease.fence() > last), "{name}: {last:?}, {}", lease.fence());
                    (*is_in, *last) = (true, Some(lease.fence()));
                }
                lease.check().unwrap();
                tokio::task::yield_now().await;
                fences.lock().unwrap().get_mut(&name).unwrap().0 = false;
                lease.release().await.unwrap().confirmed();
            }
        })
    });
    for task in work.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Many simultaneous acquires, because the servers are stopped until all have been sent.
async fn at_once(leases: &Client, cluster: &Cluster, many: usize) -> Vec<Lease> {
    cluster.primaries().iter().for_each(Server::stop);
    let acquire = |number| tokio::spawn(leases.lock(format!("at once:{number}")).ttl(LONG).acquire());
    let acquires: Vec<_> = (0..many).map(acquire).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    cluster.primaries().iter().for_each(Server::cont);
    let mut held = Vec::new();
    for acquire in acquires {
        held.push(within(HANGS, "the lock", acquire).await.unwrap().unwrap());
    }
    held
}

/// The crowd's locks that are left.
fn locks(cluster: &Cluster) -> Vec<String> {
    let all = cluster.primaries().iter().flat_map(|server| server.wire().keys("*"));
    all.filter(|key| !key.ends_with(":fence")).collect()
}

/// Requests are batched for each primary, though their keys are in many slots, even while slots are moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_one_primary_travel_together_also_while_slots_are_moved() {
    let cluster = Cluster::start(3, 0);
    let leases = within(HANGS, "build", Client::builder().url(cluster.url()).build()).await.unwrap();
    crowd(&leases, 2, 4).await;
    let scripts = || cluster.primaries().iter().map(|server| server.wire().scripts()).sum::<usize>();
    let before = scripts();
    let held = at_once(&leases, &cluster, 240).await;
    let sent = scripts() - before;
    // The first two to each primary are sent at once, then one every millisecond while more arrive.
    assert!(sent < 160, "{sent} scripts for 240 acquires");
    let before = scripts();
    let mut releases: JoinSet<_> = held.into_iter().map(Lease::release).collect();
    while let Some(released) = within(HANGS, "the releases", releases.join_next()).await {
        released.unwrap().unwrap().confirmed();
    }
    let sent = scripts() - before;
    assert!(sent < 160, "{sent} scripts for 240 releases");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let moving = async {
        // The slots of some of the names, moved as fast as by an operator's tool.
        let slots: Vec<u16> = (0..16).map(|task| cluster.slot_of(&format!("own:{task}:1"))).collect();
        let home = |slot: u16| (0..3).find(|at| slot < u16::try_from(16_384 * (at + 1) / 3).unwrap()).unwrap();
        for slot in slots {
            let (from, to) = (home(slot), (home(slot) + 1) % 3);
            cluster.begin_to_move(slot, from, to);
            tokio::time::sleep(Duration::from_millis(20)).await;
            cluster.finish_moving(slot, from, to);
        }
        is_over.store(true, std::sync::atomic::Ordering::Release);
    };
    let working = async {
        while !is_over.load(std::sync::atomic::Ordering::Acquire) {
            crowd(&leases, 32, 8).await;
        }
    };
    tokio::join!(moving, working);
    eventually_async(HANGS, "nothing is left", || locks(&cluster).is_empty()).await;
}

/// A server that refuses such batches gets each lock alone, and batches are not retried at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_keys_of_many_slots_in_one_call_is_asked_for_each_alone() {
    let cluster = Cluster::start(1, 0);
    let [server] = cluster.servers() else { panic!("there is one") };
    let proxy = Proxy::to(server);
    let map = [(format!("127.0.0.1:{}", server.port()), format!("127.0.0.1:{}", proxy.port()))];
    let url = cluster.url_of(cluster.servers());
    let leases = within(HANGS, "build", Client::builder().url(url).address_map(map).build()).await.unwrap();
    let batches = proxy.on_each(Match::script(COMBINED_SLOTS), Action::Mangle);
    drop(at_once(&leases, &cluster, 100).await);
    let refused = batches.hits();
    // The batches that were under way when the first was refused.
    assert!((1..=8).contains(&refused), "{refused} batches were tried");
    eventually_async(HANGS, "all are released", || locks(&cluster).is_empty()).await;
    drop(at_once(&leases, &cluster, 100).await);
    assert_eq!(batches.hits(), refused, "not again at once");
    eventually_async(HANGS, "nothing is left", || locks(&cluster).is_empty()).await;
}

/// If scripts may not touch undeclared keys, only the lists do so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_have_to_declare_their_keys_do() {
    let cluster = Cluster::start(1, 0);
    let [server] = cluster.servers() else { panic!("there is one") };
    let proxy = Proxy::to(server);
    let map = [(format!("127.0.0.1:{}", server.port()), format!("127.0.0.1:{}", proxy.port()))];
    let builder = Client::builder().url(cluster.url_of(cluster.servers())).address_map(map);
    let leases = within(HANGS, "build", builder.undeclared_keys(false).build()).await.unwrap();
    let held = at_once(&leases, &cluster, 60).await;
    let renewals = held.iter().map(|lease| within(HANGS, "the renewal", lease.renew()));
    assert!(join_all(renewals).await.iter().all(Result::is_ok));
    let releases = held.into_iter().map(|lease| within(HANGS, "the release", lease.release()));
    join_all(releases).await.into_iter().for_each(|released| released.unwrap().confirmed());
    // `EVAL text 2 key key ...`
    let is_script = |args: &Vec<Vec<u8>>| args.first().is_some_and(|name| name.starts_with(b"EVAL"));
    let seen = proxy.seen();
    let scripts: Vec<Vec<&str>> = seen
        .iter()
        .filter(|seen| is_script(&seen.args))
        .map(|seen| seen.args.iter().map(|arg| std::str::from_utf8(arg).unwrap()).collect())
        .collect();
    assert!(scripts.len() >= 180, "each has one of its own: {}", scripts.len());
    for script in scripts {
        let keys: usize = script[2].parse().unwrap();
        let slots: HashSet<u16> = script[3..3 + keys].iter().map(|key| cluster.slot_of(key)).collect();
        assert!(slots.len() == 1, "{:?}", &script[2..]);
    }
}

/// The leases of one primary are renewed in one pipeline. A deleted one and one taken by another program are reported
/// as lost; the others continue, though the server has forgotten the script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_in_many_slots_travel_together_and_each_has_an_answer_of_its_own() {
    const TTL: Duration = Duration::from_secs(3);
    let cluster = Cluster::start(1, 0);
    let [server] = cluster.servers() else { panic!("there is one") };
    let url = server.url_without_push(server.port()).replace("redis://", "redis-cluster://");
    let leases = within(HANGS, "build", Client::builder().url(url).build()).await.unwrap();
    let mut acquires: JoinSet<_> = (0..60).map(|n| leases.lock(format!("job:{n}")).ttl(TTL).acquire()).collect();
    let mut held = Vec::new();
    while let Some(acquired) = within(HANGS, "the locks", acquires.join_next()).await {
        held.push(acquired.unwrap().unwrap());
    }
    let (gone, taken) = (held.pop().unwrap(), held.pop().unwrap());
    let mut wire = server.wire();
    wire.must(&["SCRIPT", "FLUSH"]);
    wire.must(&["DEL", gone.name()]);
    wire.must(&["SET", taken.name(), "another program's"]);
    assert_eq!(within(HANGS, "the loss of the deleted one", gone.lost()).await.reason(), LossReason::Deleted);
    assert_eq!(within(HANGS, "the loss of the taken one", taken.lost()).await.reason(), LossReason::Taken);
    let ends = held.iter().map(Lease::remaining).max().unwrap_or_default();
    let are_renewed = || held.iter().all(|lease| lease.status() == Status::Held && lease.remaining() > Duration::ZERO);
    tokio::time::sleep(ends).await;
    assert!(are_renewed(), "some lease has ended with its first TTL");
    for lease in held {
        lease.release().await.unwrap().confirmed();
    }
}
