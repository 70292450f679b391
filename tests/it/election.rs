//! Elections under faults (F76), the cost of observing, and what is refused.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Leaders, Leadership};
use support::{
    Action, Child, Cluster, HANGS, Lag, Match, Part, Proxy, Server, eventually_async, one_thread, scripts::HOLDER,
    within,
};

use crate::common::{COMMAND, Confirmed as _, LONG, MEDIUM, OTHER_TYPES, on_one_connection, program_with, replace};

const TTL: Duration = Duration::from_millis(900);
const UUID: &str = "00000000-0000-4000-8000-000000000000";
/// How late news may be after its cause, not counting the machine's lag.
const PROMPT: Duration = Duration::from_millis(50);

async fn observer(url: &str) -> Client {
    Client::builder().url(url).ttl(TTL).command_timeout(COMMAND).label("observer").build().await.unwrap()
}

async fn next(leaders: &mut Leaders) -> Leadership {
    within(HANGS, "news", leaders.next()).await.expect("it is open")
}

async fn until(leaders: &mut Leaders, is: impl Fn(&Leadership) -> bool) -> Vec<Leadership> {
    let mut all = Vec::new();
    while !all.last().is_some_and(&is) {
        all.push(next(leaders).await);
    }
    all
}

fn is_led(now: &Leadership) -> bool {
    now.leader().is_some()
}

#[test]
fn f76_a_leader_is_killed() {
    if let Some(part) = Part::mine() {
        return one_thread().block_on(async {
            let leases = program_with(&*part.url, TTL).await;
            let term = leases.election("job").candidate(&*part.name).campaign().await.unwrap();
            part.say(format!("leads {}", term.fence()));
            part.hear();
        });
    }
    let server = Server::start();
    let mut one = Child::start(f76_a_leader_is_killed, "one", &server.url());
    let first = one.says("leads");
    let two = Child::start(f76_a_leader_is_killed, "two", &server.url());
    one_thread().block_on(async {
        let lag = Lag::start();
        let observer = observer(&server.url()).await;
        let mut leaders = observer.election("job").observe().unwrap();
        let leader = next(&mut leaders).await.leader().cloned().unwrap();
        assert_eq!((leader.label(), leader.fence().unwrap().to_string()), (Some("one"), first.clone()));
        let killed = Instant::now();
        one.kill();
        let told = until(&mut leaders, |now| now.leader().is_some_and(|leader| leader.label() == Some("two"))).await;
        let took = killed.elapsed();
        assert!(took <= TTL + Duration::from_millis(250) + lag.worst(), "{took:?}, {told:?}");
        let [gone @ .., last] = &*told else { panic!("nothing was told") };
        assert!(
            !gone.is_empty() && gone.iter().all(|now| !is_led(now)),
            "no leader is reported between them: {told:?}"
        );
        let second = last.leader().unwrap().fence().unwrap().to_string();
        assert!(first.parse::<u64>().unwrap() < second.parse().unwrap());
        assert_eq!(two.says("leads"), second);
    });
}

#[tokio::test]
async fn f76_an_observer_is_cut_off() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (candidate, observer) = (program_with(server.url(), TTL).await, observer(&proxy.url()).await);
    let mut leaders = observer.election("job").observe().unwrap();
    let term = candidate.election("job").campaign().await.unwrap();
    until(&mut leaders, is_led).await;
    let mut idle = leaders.clone();
    let lag = Lag::start();
    proxy.freeze(true);
    // A check under way may still have been answered, so this is the longest that the leader may be known.
    let (frozen, left) = (Instant::now(), leaders.now().leader().unwrap().remaining().unwrap().max(TTL));
    assert_eq!(next(&mut leaders).await, Leadership::Unknown);
    let took = frozen.elapsed();
    assert!(took <= left + PROMPT + lag.worst(), "{took:?} of {left:?}");
    assert_eq!(leaders.now(), Leadership::Unknown);
    term.check().expect("the leader leads all the time");
    proxy.freeze(false);
    let told = until(&mut leaders, is_led).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].leader().unwrap().fence(), Some(term.fence()));
    let again = tokio::time::timeout(PROMPT, idle.next()).await;
    assert!(again.is_err(), "an idle observer has missed nothing: {again:?}");
}

/// The heir's program observes: it does not hear from the server of what it has changed itself.
#[tokio::test]
async fn who_adopts_or_downgrades_is_reported_in_its_own_program_at_once() {
    let server = Server::start();
    let (giver, heir) = (program_with(server.url(), LONG).await, program_with(server.url(), LONG).await);
    let mut leaders = heir.election("job").observe().unwrap();
    let ticket = giver.lock("job").acquire().await.unwrap().into_ticket().unwrap();
    until(&mut leaders, is_led).await;
    let adopted = heir.lock("job").adopt(ticket).await.unwrap();
    let (lag, began) = (Lag::start(), Instant::now());
    let is_heir = |now: &Leadership| now.leader().is_some_and(|leader| leader.fence() == Some(adopted.fence()));
    until(&mut leaders, is_heir).await;
    let shared = adopted.downgrade().await.unwrap();
    until(&mut leaders, |now| matches!(now, Leadership::Shared(_))).await;
    assert!(began.elapsed() < LONG / 8 + lag.worst(), "{:?}", began.elapsed());
    shared.release().await.unwrap().confirmed();
}

/// A known leader expires whatever its task does, and whether or not it is polled.
#[tokio::test]
async fn f76_what_is_known_runs_out_by_itself() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (candidate, observer) = (program_with(server.url(), TTL).await, observer(&proxy.url()).await);
    let mut leaders = observer.election("job").observe().unwrap();
    let _term = candidate.election("job").campaign().await.unwrap();
    until(&mut leaders, is_led).await;
    proxy.freeze(true);
    let mut least = Duration::MAX;
    let started = Instant::now();
    while let Some(leader) = leaders.now().leader() {
        least = least.min(leader.remaining().unwrap());
        assert!(started.elapsed() < HANGS, "it counts for ever");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(least < Duration::from_millis(200), "it counts down: {least:?}");
}

#[tokio::test]
async fn f76_nobody_leads_where_a_quorum_is_split() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let build = || Client::builder().quorum(&urls).restart_delay(Duration::ZERO).ttl(TTL).command_timeout(COMMAND);
    let (candidate, observer) = (build().build().await.unwrap(), build().build().await.unwrap());
    let mut leaders = observer.election("job").observe().unwrap();
    let term = candidate.election("job").campaign().await.unwrap();
    until(&mut leaders, is_led).await;
    // The other nodes decide; an unavailable minority changes nothing.
    servers[0].stop();
    within(HANGS, "a renewal", async {
        let until = Instant::now() + TTL;
        while Instant::now() < until {
            assert!(is_led(&leaders.now()), "{:?}", leaders.now());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    servers[1].stop();
    until(&mut leaders, |now| *now == Leadership::Unknown).await;
    servers.iter().take(2).for_each(Server::cont);
    drop(term);
    until(&mut leaders, |now| *now == Leadership::Vacant).await;
    // One node has a key, one reports that it is free, and the third does not answer.
    servers[1].stop();
    let value = format!("lh1:{UUID}:7@half");
    servers[0].wire().must(&["SET", "job", &value, "PX", "60000"]);
    let told = until(&mut leaders, |now| *now == Leadership::Unknown).await;
    assert!(!told.iter().any(is_led), "{told:?}");
    servers[1].cont();
}

#[tokio::test]
async fn however_many_observe_there_is_a_look_for_each_renewal() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (candidate, observer) = (program_with(server.url(), MEDIUM).await, observer(&proxy.url()).await);
    let term = candidate.election("job").campaign().await.unwrap();
    let mut observing: Vec<Leaders> = (0..1_000).map(|_| observer.election("job").observe().unwrap()).collect();
    for leaders in &mut observing {
        assert!(is_led(&next(leaders).await));
    }
    // Before the server notifies, checks follow each other.
    let tracked = Match::command("CLIENT").and(Match::containing("CACHING"));
    eventually_async(HANGS, "a tracked check", || proxy.count(tracked.clone()) > 0).await;
    proxy.forget();
    let (began, renewals) = (Instant::now(), 6);
    tokio::time::sleep(MEDIUM / 3 * renewals).await;
    let (looks, most) = (proxy.count(Match::script(HOLDER)), usize::try_from(renewals).unwrap() + 2);
    // On a busy machine more renewals take place.
    let more = usize::try_from(began.elapsed().as_millis() / (MEDIUM / 3).as_millis()).unwrap() + 2;
    assert!((3..=most.max(more)).contains(&looks), "{looks} looks");
    term.release().await.unwrap().confirmed();
    let (released, lag) = (Instant::now(), Lag::start());
    for leaders in &mut observing {
        assert_eq!(next(leaders).await, Leadership::Vacant);
    }
    assert!(released.elapsed() <= PROMPT * 2 + lag.worst(), "{:?}", released.elapsed());
    drop(observing);
    proxy.forget();
    // A check may be under way. Without a leader there would be one every second.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(proxy.count(Match::script(HOLDER)) <= 1, "its observer has ended");
}

#[tokio::test]
async fn a_key_that_is_no_lock_has_no_leader_and_nobody_waits_for_ever() {
    let server = Server::start();
    let observer = observer(&server.url()).await;
    for make in OTHER_TYPES {
        replace(&mut server.wire(), make, "job");
        let mut leaders = observer.election("job").observe().unwrap();
        until(&mut leaders, |now| *now == Leadership::Unknown).await;
        server.wire().must(&["DEL", "job"]);
        assert_eq!(next(&mut leaders).await, Leadership::Vacant, "{make:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_an_election_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = observer(&proxy.url()).await;
    proxy.forget();
    let long = "x".repeat(129);
    for election in [
        leases.election(""),
        leases.election("x".repeat(1_025)),
        leases.election("job").candidate(""),
        leases.election("job").candidate(long),
        leases.election("job").candidate("a\nb"),
        leases.election("job").candidate("one (released)"),
        leases.lock("job").ttl(Duration::from_millis(1)).into(),
    ] {
        let refused = election.campaign().await.unwrap_err();
        assert!(matches!(refused, Error::Config(_)), "{refused}");
        assert!(matches!(election.lead(async |_| ()).await.unwrap_err(), Error::Config(_)));
    }
    assert!(matches!(leases.election("").observe().unwrap_err(), Error::Config(_)));
    assert_eq!(proxy.count(Match::containing("job")), 0);
}

#[tokio::test]
async fn a_leaders_work_may_change_what_it_captures() {
    let leases = Client::in_memory();
    let mut terms = Vec::new();
    let last = leases.election("job").lead(async |term| {
        terms.push(term.fence());
        if terms.len() < 3 {
            leases.lock("job").force_release().await.unwrap();
            std::future::pending::<()>().await;
        }
        terms.len()
    });
    assert_eq!(within(HANGS, "three terms", last).await.unwrap(), 3);
    assert!(terms.is_sorted_by(|before, after| before < after), "{terms:?}");
}

#[tokio::test]
async fn work_that_panics_resigns() {
    let server = Server::start();
    let (leases, other) = (program_with(server.url(), TTL).await, program_with(server.url(), TTL).await);
    let election = leases.election("job");
    let leading = tokio::spawn(election.lead(async |_| -> () { panic!("work that panics, as it is meant to") }));
    assert!(leading.await.unwrap_err().is_panic());
    drop(within(TTL, "the lock", other.lock("job").acquire()).await.unwrap());
}

/// The leader's key lives so long that the observer's own checks would not find the change in time.
#[tokio::test]
async fn a_change_is_told_at_once_where_servers_notify() {
    let server = Server::start();
    // All requests of this client are on one connection, whose own changes the server does not notify.
    let candidate = on_one_connection(Client::builder().url(server.url()).ttl(LONG)).await;
    let observer = observer(&server.url()).await;
    // One observer is in another program, one in the leader's.
    let mut observing = [&observer, &candidate].map(|leases| leases.election("job").observe().unwrap());
    for leaders in &mut observing {
        assert_eq!(next(leaders).await, Leadership::Vacant);
    }
    for is_dropped in [false, true, false, true] {
        let lag = Lag::start();
        let term = candidate.election("job").campaign().await.unwrap();
        let led = Instant::now();
        for leaders in &mut observing {
            until(leaders, is_led).await;
        }
        assert!(led.elapsed() <= PROMPT + lag.worst(), "{:?}", led.elapsed());
        // By then each has checked again on the connection that receives notifications, which may also carry the
        // release.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let released = Instant::now();
        if is_dropped {
            drop(term);
        } else {
            term.release().await.unwrap().confirmed();
        }
        for leaders in &mut observing {
            until(leaders, |now| *now == Leadership::Vacant).await;
        }
        assert!(released.elapsed() <= PROMPT + lag.worst(), "{:?}", released.elapsed());
    }
}

/// The answer to a check counts from when the check was sent, however long it takes.
#[tokio::test]
async fn f76_what_is_known_ends_before_the_key() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let observer = observer(&proxy.url()).await;
    let mut leaders = observer.election("job").observe().unwrap();
    until(&mut leaders, |now| *now == Leadership::Vacant).await;
    proxy.delay(COMMAND / 3);
    // A key of a leader that has died.
    let value = format!("lh1:{UUID}:7@dead");
    server.wire().must(&["SET", "job", &value, "PX", "1200"]);
    until(&mut leaders, is_led).await;
    within(HANGS, "its end", async {
        while is_led(&leaders.now()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(server.wire().exists("job"), "it counted for longer than the key");
}

#[tokio::test]
async fn work_that_ends_as_its_term_is_lost_is_done_all_the_same() {
    let server = Server::start();
    let (leases, other) = (program_with(server.url(), TTL).await, program_with(server.url(), TTL).await);
    let (lock, mut terms) = (other.lock("job"), 0);
    let leading = leases.election("job").lead(move |_| {
        terms += 1;
        let lock = lock.clone();
        async move {
            lock.force_release().await.unwrap();
            terms
        }
    });
    assert_eq!(within(HANGS, "the work", leading).await.unwrap(), 1);
}

#[tokio::test]
async fn a_change_that_no_notification_has_told_is_found_with_the_next_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (candidate, observer) = (program_with(server.url(), LONG).await, observer(&proxy.url()).await);
    let mut leaders = observer.election("job").observe().unwrap();
    let term = candidate.election("job").campaign().await.unwrap();
    until(&mut leaders, is_led).await;
    let (lag, began) = (Lag::start(), Instant::now());
    proxy.refuse(true);
    proxy.cut();
    term.release().await.unwrap().confirmed();
    assert!(is_led(&leaders.now()), "as far as it knows");
    proxy.refuse(false);
    until(&mut leaders, |now| *now == Leadership::Vacant).await;
    assert!(began.elapsed() < LONG / 3 + lag.worst(), "{:?}", began.elapsed());
}

/// A key that stays after its term, or that is not a lock, has no leader.
#[tokio::test]
async fn a_key_that_stays_after_its_term_has_no_leader() {
    let server = Server::start();
    let leases = observer(&server.url()).await;
    let election = leases.election("job");
    let term = election.campaign().await.unwrap();
    assert_eq!(election.leader().await.unwrap().unwrap().fence(), Some(term.fence()));
    let mut leaders = election.observe().unwrap();
    assert!(is_led(&next(&mut leaders).await));
    term.release_keeping(LONG).await.unwrap().confirmed();
    assert_eq!(next(&mut leaders).await, Leadership::Vacant);
    assert_eq!(election.leader().await.unwrap(), None);
    replace(&mut server.wire(), OTHER_TYPES[0], "job");
    assert_eq!(election.leader().await.unwrap(), None);
}

/// Checks that hang do not delay those of another shard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_shard_that_stands_still_hides_no_leader_of_another() {
    let cluster = Cluster::start(3, 0);
    let (candidate, observer) = (program_with(cluster.url(), TTL).await, observer(&cluster.url()).await);
    let tag = cluster.name_at(2, "job");
    // More than are checked at a time.
    let _others: Vec<Leaders> =
        (0..400).map(|n| observer.election(format!("{{{tag}}}:{n}")).observe().unwrap()).collect();
    let election = cluster.name_at(0, "job");
    let _term = candidate.election(&election).campaign().await.unwrap();
    let mut leaders = observer.election(&election).observe().unwrap();
    until(&mut leaders, is_led).await;
    cluster.primaries()[2].stop();
    let lag = Lag::start();
    let began = Instant::now();
    while began.elapsed() < TTL * 3 {
        assert!(is_led(&leaders.now()) || lag.worst() > TTL / 2, "{:?} after {:?}", leaders.now(), began.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.primaries()[2].cont();
}

/// Without notifications, a check is soon followed by another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_is_not_tracked_is_not_relied_on() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let candidate = program_with(server.url(), LONG).await;
    let observer = Client::builder().url(proxy.url()).command_timeout(HANGS / 2).build().await.unwrap();
    let mut leaders = observer.election("job").observe().unwrap();
    until(&mut leaders, |now| *now == Leadership::Vacant).await;
    let tracked = Match::command("CLIENT").and(Match::containing("CACHING"));
    eventually_async(HANGS, "a tracked check", || proxy.count(tracked.clone()) > 0).await;
    let next_session = proxy.on(Match::command("SUBSCRIBE"), 1, Action::Hold);
    proxy.cut();
    within(HANGS, "the next session", next_session.hit()).await;
    let term = candidate.election("job").campaign().await.unwrap();
    until(&mut leaders, is_led).await;
    let (lag, released) = (Lag::start(), Instant::now());
    term.release().await.unwrap().confirmed();
    until(&mut leaders, |now| *now == Leadership::Vacant).await;
    assert!(released.elapsed() <= Duration::from_secs(2) + lag.worst(), "{:?}", released.elapsed());
}
