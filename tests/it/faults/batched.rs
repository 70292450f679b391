//! F96: one key of a renewal batch overwritten. Without notifications, so that the batch finds out.

use std::time::{Duration, Instant};

use leasehold::{Client, Lease, LossReason, Status};
use support::{HANGS, Lag, Match, Proxy, SIGNAL, Seen, Server, eventually_async, scripts::RENEW, seen, within};
use tokio::task::JoinSet;

use crate::common::{Confirmed as _, OTHER_TYPES, replace};

const TTL: Duration = Duration::from_millis(1_200);
const LEASES: usize = 20;

/// The renewals seen by the proxy.
fn renewals(proxy: &Proxy) -> impl Iterator<Item = Seen> {
    let round = Match::script(RENEW);
    proxy.seen().into_iter().filter(move |seen| round.matches(&seen.args))
}

fn is_of(seen: &Seen, lease: &Lease) -> bool {
    seen.args.iter().any(|arg| arg == lease.name().as_bytes())
}

/// The renewals of all these leases in one batch.
fn of_all(proxy: &Proxy, held: &[Lease]) -> Vec<Seen> {
    renewals(proxy).filter(|seen| held.iter().all(|lease| is_of(seen, lease))).collect()
}

/// When the proxy saw the renewals of one lease.
fn of_one(proxy: &Proxy, lease: &Lease) -> Vec<Instant> {
    renewals(proxy).filter(|seen| is_of(seen, lease)).map(|seen| seen.at).collect()
}

/// Acquires the locks at once, and repeats until their renewals are batched.
async fn travelling_together(leases: &Client, proxy: &Proxy) -> Vec<Lease> {
    loop {
        proxy.forget();
        let mut acquires: JoinSet<_> = (0..LEASES).map(|job| leases.lock(format!("job {job}")).acquire()).collect();
        let mut held = Vec::new();
        while let Some(lease) = acquires.join_next().await {
            held.push(lease.unwrap().unwrap());
        }
        // By then each has been renewed twice.
        tokio::time::sleep(TTL * 9 / 10).await;
        if of_all(proxy, &held).len() >= 2 {
            return held;
        }
        for lease in held {
            lease.release().await.unwrap().confirmed();
        }
    }
}

#[tokio::test]
async fn f96_one_key_of_a_renewal_batch_overwritten_with_each_other_type() {
    let server = Server::start();
    let (proxy, mut wire, lag) = (Proxy::to(&server), server.wire(), Lag::start());
    let url = server.url_without_push(proxy.port());
    let string: &[&str] = &["SET", "made", "somebody-else"];
    for make in OTHER_TYPES.into_iter().chain([string]) {
        let leases = Client::builder().url(&url).ttl(TTL).build().await.unwrap();
        let mut held = within(HANGS, "they travel together", travelling_together(&leases, &proxy)).await;
        let batches = of_all(&proxy, &held);
        replace(&mut wire, make, held[LEASES / 2].name());
        let lost = within(HANGS, "the signal of a loss", held[LEASES / 2].lost()).await;
        assert_eq!(lost.reason(), LossReason::Taken, "{make:?}");
        let told = Instant::now();
        let batch = of_all(&proxy, &held).pop().expect("it was renewed with the others");
        assert!(batch.at > batches.last().unwrap().at && batch.at <= told, "the batch has found out");

        drop(held.remove(LEASES / 2));
        let twice_more = |lease: &Lease| of_one(&proxy, lease).into_iter().filter(|at| *at > told).count() >= 2;
        eventually_async(HANGS, "the others are renewed twice more", || held.iter().all(twice_more)).await;
        for lease in &held {
            let at = of_one(&proxy, lease);
            let gap = at.windows(2).map(|renewals| renewals[1] - renewals[0]).max().expect("two renewals");
            seen::took("from one renewal of another to its next", gap, TTL / 3 + SIGNAL, &lag);
            let all = || renewals(&proxy).map(|seen| (seen.at - at[0], seen.args.len(), is_of(&seen, lease)));
            let is_in_time = gap <= TTL / 3 + SIGNAL + lag.worst();
            assert!(is_in_time, "{make:?}, {}: {gap:?}: {:?}", lease.name(), all().collect::<Vec<_>>());
        }
        assert!(held.iter().all(|lease| lease.status() == Status::Held), "{make:?}");
        for lease in held {
            lease.release().await.unwrap().confirmed();
        }
        leases.close().await;
        wire.must(&["FLUSHALL"]);
    }
}
