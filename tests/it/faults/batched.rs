//! F96: one key of a renewal batch overwritten. Without notifications, so that it is the batch that finds out.

use std::time::{Duration, Instant};

use leasehold::{Lease, Leases, LossReason, Status};
use support::{HANGS, Lag, Match, Proxy, SIGNAL, Seen, Server, eventually_async, scripts::RENEW, seen, within};
use tokio::task::JoinSet;

use crate::common::{Confirmed as _, OTHER_TYPES, replace};

const TTL: Duration = Duration::from_millis(1_200);
const LEASES: usize = 20;

/// The renewals of all these leases at once that the proxy has seen.
fn of_all(proxy: &Proxy, held: &[Lease]) -> Vec<Seen> {
    let of_this = |seen: &Seen, lease: &Lease| seen.args.iter().any(|arg| arg == lease.name().as_bytes());
    let round = Match::script(RENEW);
    let rounds = proxy.seen().into_iter().filter(|seen| round.matches(&seen.args));
    rounds.filter(|seen| held.iter().all(|lease| of_this(seen, lease))).collect()
}

/// Takes the locks at once; again, until they travel together.
async fn travelling_together(leases: &Leases, proxy: &Proxy) -> Vec<Lease> {
    loop {
        proxy.forget();
        let mut acquires: JoinSet<_> = (0..LEASES).map(|job| leases.lock(format!("job {job}")).acquire()).collect();
        let mut held = Vec::new();
        while let Some(lease) = acquires.join_next().await {
            held.push(lease.unwrap().unwrap());
        }
        // Each has been renewed twice by then.
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
        let leases = Leases::builder().url(&url).ttl(TTL).build().await.unwrap();
        let mut held = within(HANGS, "they travel together", travelling_together(&leases, &proxy)).await;
        let batches = of_all(&proxy, &held);
        replace(&mut wire, make, held[LEASES / 2].name());
        let lost = within(HANGS, "the signal of a loss", held[LEASES / 2].lost()).await;
        assert_eq!(lost.reason(), LossReason::Taken, "{make:?}");
        let told = Instant::now();
        let batch = of_all(&proxy, &held).pop().expect("it was renewed with the others");
        assert!(batch.at > batches.last().unwrap().at && batch.at <= told, "the batch has found out");

        drop(held.remove(LEASES / 2));
        let later = || of_all(&proxy, &held).iter().filter(|seen| seen.at > told).count();
        eventually_async(HANGS, "the others are renewed twice more", || later() >= 2).await;
        let at: Vec<_> = of_all(&proxy, &held).iter().map(|seen| seen.at).collect();
        for renewals in at.windows(2) {
            let gap = renewals[1] - renewals[0];
            seen::took("from one renewal of the others to the next", gap, TTL / 3 + SIGNAL, &lag);
            assert!(gap <= TTL / 3 + SIGNAL + lag.worst(), "{make:?}: {gap:?}");
        }
        assert!(held.iter().all(|lease| lease.status() == Status::Held), "{make:?}");
        for lease in held {
            lease.release().await.unwrap().confirmed();
        }
        leases.close().await;
        wire.must(&["FLUSHALL"]);
    }
}
