//! Hand-overs under faults: rows F74 and F75 of the fault table. Those over a quorum are in `quorum/hand_over.rs`.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lease, LossReason, Ticket};
use support::{
    Action, Child, HANGS, Lag, Match, Part, Proxy, Server, eventually_async, fenced_write, one_thread,
    scripts::{DOWNGRADE, RENEW, SUCCEED},
    within,
};

use crate::common::{
    COMMAND, Confirmed as _, LONG, MEDIUM, NAME, ending, is_ours, is_retained, program_with, requests,
};

const TTL: Duration = Duration::from_millis(900);

async fn built(url: &str, label: &str) -> Client {
    Client::builder().url(url).ttl(LONG).command_timeout(COMMAND).label(label).build().await.unwrap()
}

async fn adopt(leases: &Client, ticket: &Ticket) -> Result<Lease, Error> {
    within(HANGS, "an adoption", leases.lock(NAME).adopt(ticket.clone())).await
}

/// Polls the key until stopped: it must exist each time. Records the successive holders.
struct Watch {
    stop: tokio::sync::oneshot::Sender<()>,
    watching: tokio::task::JoinHandle<Vec<String>>,
}

impl Watch {
    fn of(server: &Server) -> Self {
        let mut wire = server.wire();
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let watching = tokio::task::spawn_blocking(move || {
            let mut seen = Vec::new();
            while stopped.try_recv().is_err() {
                let token = wire.token(NAME).expect("the key is there all the time");
                if seen.last() != Some(&token) {
                    seen.push(token);
                }
            }
            seen
        });
        Self { stop, watching }
    }

    async fn ends(self) -> Vec<String> {
        self.stop.send(()).unwrap();
        within(HANGS, "the watch", self.watching).await.unwrap()
    }
}

/// The answer, the request or the link is lost: the next attempt adopts what the previous one left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_the_answer_to_an_adoption_is_lost() {
    for action in [Action::SwallowReply, Action::CutAfter, Action::CutBefore, Action::DropRequest] {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let (giver, heir) = (built(&server.url(), "giver").await, built(&proxy.url(), "heir").await);
        let ticket = giver.lock(NAME).acquire().await.unwrap().into_ticket().unwrap();
        let watch = Watch::of(&server);
        let lost = proxy.on(Match::script(SUCCEED), 1, action);
        let next = proxy.on(Match::script(SUCCEED), 2, Action::Hold);
        let undone = || proxy.count(Match::containing(":lh:queue"));
        let not_undone_before_the_next = async {
            within(HANGS, "the next attempt", next.hit()).await;
            // As long as an undo that does not wait would take.
            tokio::time::sleep(COMMAND / 4).await;
            assert_eq!(undone(), 0, "{action:?}");
            next.release();
        };
        let (lease, ()) = tokio::join!(adopt(&heir, &ticket), not_undone_before_the_next);
        let lease = lease.unwrap();
        assert!(lost.hits() == 1 && lease.fence() > ticket.fence(), "{action:?}");
        is_ours(&lease).await;
        // Leftovers of the earlier attempts are undone by now, or were adopted by this one.
        eventually_async(HANGS, "the undo of the first", || undone() > 0 || action == Action::CutBefore).await;
        is_ours(&lease).await;
        let seen = watch.ends().await;
        assert!(seen.len() <= 3, "{action:?}: {seen:?}");
        assert_eq!(server.wire().token(NAME).as_ref(), seen.last());
        assert!(giver.lock(NAME).try_acquire().await.unwrap().is_none());
        lease.release().await.unwrap().confirmed();
        assert!(!server.wire().exists(NAME));
    }
}

/// An outage that spans many attempts: in the end they adopt from one another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_the_server_stands_still_during_an_adoption() {
    let server = Server::start();
    let (giver, heir) = (built(&server.url(), "giver").await, built(&server.url(), "heir").await);
    heir.lock("warm").acquire().await.unwrap().release().await.unwrap().confirmed();
    let ticket = giver.lock(NAME).acquire().await.unwrap().into_ticket().unwrap();
    server.stop();
    let adopting = tokio::spawn({
        let (heir, ticket) = (heir.clone(), ticket.clone());
        async move { heir.lock(NAME).adopt(ticket).await }
    });
    tokio::time::sleep(4 * COMMAND).await;
    server.cont();
    let watch = Watch::of(&server);
    let lease = within(HANGS, "an adoption", adopting).await.unwrap().unwrap();
    is_ours(&lease).await;
    heir.lock("warm").acquire().await.unwrap().release().await.unwrap().confirmed();
    is_ours(&lease).await;
    watch.ends().await;
    lease.release().await.unwrap().confirmed();
    assert!(!server.wire().exists(NAME));
}

/// An adoption dropped at any moment leaves nothing, or the giver's key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_an_adoption_that_is_dropped_is_undone() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (giver, heir) = (built(&server.url(), "giver").await, built(&proxy.url(), "heir").await);
    let lease = giver.lock(NAME).acquire().await.unwrap();
    let ticket = lease.into_ticket().unwrap();
    let swallowed = proxy.on(Match::script(SUCCEED), 1, Action::SwallowReply);
    let adopting = tokio::spawn({
        let (heir, ticket) = (heir.clone(), ticket.clone());
        async move { heir.lock(NAME).adopt(ticket).await.map(drop) }
    });
    within(HANGS, "the swap", swallowed.hit()).await;
    adopting.abort();
    assert!(within(HANGS, "its end", adopting).await.is_err_and(|error| error.is_cancelled()));
    let mut wire = server.wire();
    eventually_async(HANGS, "it is undone", || !wire.exists(NAME)).await;
}

/// A dropped adoption does not let another holder begin before the interval has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_an_adoption_that_is_dropped_ends_no_interval() {
    const INTERVAL: Duration = Duration::from_secs(3_600);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (giver, heir) = (built(&server.url(), "giver").await, built(&proxy.url(), "heir").await);
    for (script, lock) in [(SUCCEED, heir.lock(NAME)), (DOWNGRADE, heir.rw_lock(NAME).read())] {
        let lease = giver.lock(NAME).once_per(INTERVAL).acquire().await.unwrap();
        let ticket = lease.into_ticket().unwrap();
        let swallowed = proxy.on(Match::script(script), 1, Action::SwallowReply);
        let adopting = tokio::spawn(lock.adopt(ticket));
        within(HANGS, "the swap", swallowed.hit()).await;
        adopting.abort();
        assert!(within(HANGS, "its end", adopting).await.is_err_and(|error| error.is_cancelled()));
        is_retained(&giver, NAME).await;
        server.wire().del(NAME);
    }
}

#[test]
fn f74_the_heir_dies() {
    if let Some(part) = Part::mine() {
        return one_thread().block_on(async {
            let ticket: Ticket = part.hear().parse().unwrap();
            let lease = program_with(&*part.url, TTL).await.lock(NAME).adopt(ticket).await.unwrap();
            part.say(format!("adopted {}", lease.fence()));
            part.hear();
        });
    }
    let server = Server::start();
    let mut heir = Child::start(f74_the_heir_dies, "heir", &server.url());
    one_thread().block_on(async {
        let (lag, giver) = (Lag::start(), program_with(server.url(), TTL).await);
        let lock = giver.lock(NAME);
        let ticket = lock.acquire().await.unwrap().into_ticket().unwrap();
        heir.tell(&ticket.expose());
        let fence: u64 = heir.says("adopted").parse().unwrap();
        assert!(fence > ticket.fence().into());
        tokio::time::sleep(2 * TTL).await;
        assert!(lock.try_acquire().await.unwrap().is_none(), "it is renewed");
        heir.kill();
        let killed = Instant::now();
        let next = within(HANGS, "the lock is free", lock.acquire()).await.unwrap();
        let took = killed.elapsed();
        assert!(took <= TTL + Duration::from_millis(250) + lag.worst(), "{took:?}");
        assert!(u64::from(next.fence()) > fence);
    });
}

/// Its data may be from before another heir had the lock. However the heir wants it, it has to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_a_server_that_was_started_lately_hands_nothing_over() {
    let server = Server::start();
    let giver = built(&server.url(), "giver").await;
    let cautious = Client::builder().url(server.url()).ttl(LONG).restart_delay(LONG * 2).build().await.unwrap();
    let locks = [
        cautious.lock(NAME),
        cautious.rw_lock(NAME).write(),
        cautious.rw_lock(NAME).read(),
        cautious.semaphore(NAME, 3).take(2),
    ];
    for lock in locks {
        let lease = giver.lock(NAME).acquire().await.unwrap();
        let token = server.wire().token(NAME);
        let ticket = lease.into_ticket().unwrap();
        let adoption = tokio::time::timeout(MEDIUM, lock.adopt(ticket.clone())).await;
        assert!(adoption.is_err(), "{adoption:?}");
        assert_eq!(server.wire().token(NAME), token, "{lock:?}");
        let lease = adopt(&giver, &ticket).await.unwrap();
        lease.release().await.unwrap().confirmed();
    }
}

/// Two programs race for one ticket, 300 times: one gets it each time, and the other is notified.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_two_adopt_one_ticket() {
    let server = Server::start();
    let heirs = [built(&server.url(), "one").await, built(&server.url(), "two").await];
    let mut wins = [0, 0];
    let mut lease = heirs[0].lock(NAME).acquire().await.unwrap();
    for _ in 0..300 {
        let ticket = lease.into_ticket().unwrap();
        let [one, two] = [0, 1].map(|at| {
            let (lock, ticket) = (heirs[at].lock(NAME), ticket.clone());
            tokio::spawn(async move { lock.adopt(ticket).await })
        });
        let outcomes = [one.await.unwrap(), two.await.unwrap()];
        let winner = outcomes.iter().position(Result::is_ok).expect("one has it");
        wins[winner] += 1;
        let [one, two] = outcomes;
        let (won, lost) = if winner == 0 { (one, two) } else { (two, one) };
        assert_eq!(ending(lost).reason(), LossReason::Taken);
        lease = won.unwrap();
        assert!(lease.fence() > ticket.fence());
    }
    assert!(wins.iter().all(|wins| *wins > 0), "both race: {wins:?}");
    lease.release().await.unwrap().confirmed();
}

/// A renewal that was under way when the lease was handed over arrives after the heir's adoption.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_the_givers_renewal_comes_late() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (giver, heir) = (built(&proxy.url(), "giver").await, built(&server.url(), "heir").await);
    let lease = giver.lock(NAME).acquire().await.unwrap();
    let late = proxy.on(requests(RENEW, &lease), 1, Action::Hold);
    let handle = lease.handle();
    let renewing = tokio::spawn(async move { handle.renew().await });
    within(HANGS, "the renewal", late.hit()).await;
    let ticket = lease.into_ticket().unwrap();
    // The key's TTL is less than what the renewal would set.
    server.wire().must(&["PEXPIRE", NAME, "5000"]);
    let theirs = heir.lock(NAME).ttl(MEDIUM).adopt(ticket).await.unwrap();
    let token = server.wire().token(NAME);
    late.release();
    assert_eq!(ending(within(HANGS, "the late one", renewing).await.unwrap()).reason(), LossReason::HandedOver);
    let mut wire = server.wire();
    assert_eq!((wire.token(NAME), wire.pttl(NAME) <= 5_000), (token, true));
    is_ours(&theirs).await;
    giver.close().await;
    is_ours(&theirs).await;
}

/// An owner adopts the ticket of a lease that it still has, and enters the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_adopts_its_own_ticket_re_enters() {
    let server = Server::start();
    let leases = built(&server.url(), "ours").await;
    let lock = leases.lock("job").reentrant(true).owner(leasehold::Owner::unique());
    let first = lock.acquire().await.unwrap();
    let adopted = within(HANGS, "an adoption", lock.adopt(first.ticket())).await.unwrap();
    let again = lock.try_acquire().await.unwrap().expect("it is ours");
    assert_eq!(again.fence(), adopted.fence());
    within(HANGS, "the giver is told", first.lost()).await;
    drop((first, again));
    let again = lock.try_acquire().await.unwrap().expect("it is ours still");
    assert_eq!(again.fence(), adopted.fence());
}

/// The holder that is cut off believes until its deadline and no longer. What it writes with its fence is refused from
/// the heir's first write on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f75_a_ticket_is_adopted_while_its_holder_is_cut_off() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (cut_off, heir) = (built(&proxy.url(), "cut off").await, built(&server.url(), "heir").await);
    let lease = cut_off.lock(NAME).ttl(MEDIUM).acquire().await.unwrap();
    let (ticket, lag) = (lease.ticket(), Lag::start());
    proxy.black_hole(true);
    let left = lease.remaining();
    let since = Instant::now();
    let theirs = adopt(&heir, &ticket).await.unwrap();
    assert!(lease.is_held(), "it hears nothing");
    let mut wire = server.wire();
    fenced_write(&mut wire, "account", "the heir's", theirs.fence()).unwrap();
    let lost = within(HANGS, "the loss", lease.lost()).await;
    let took = since.elapsed();
    assert_eq!(lost.reason(), LossReason::Expired);
    assert!(took <= left + Duration::from_millis(50) + lag.worst(), "{took:?} of {left:?}");
    proxy.black_hole(false);
    let late = fenced_write(&mut wire, "account", "from the past", lease.fence());
    assert_eq!(late, Err(u64::from(theirs.fence())));
    drop(lease);
    is_ours(&theirs).await;
    theirs.release().await.unwrap().confirmed();
}
