//! The events that a program can subscribe to: their names are stable, and none tells the token.

// Helpers of tests may fail like tests, and read clocks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::{Leases, Owner};
use support::{Server, eventually_async, within};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt as _},
};

const SOON: Duration = Duration::from_secs(10);

/// Writes down every event and span of ours: its level, its name, its fields.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "leasehold" {
            let mut line = Line(format!("{} {}", event.metadata().level(), event.metadata().name()));
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        if attributes.metadata().target() == "leasehold" {
            let mut line = Line(format!("span {}", attributes.metadata().name()));
            attributes.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
    }
}

impl Log {
    fn has(&self, start: &str, field: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.starts_with(start) && line.contains(field))
    }

    async fn expect(&self, start: &str, field: &str) {
        eventually_async(SOON, &format!("{start:?} with {field:?}"), || self.has(start, field)).await;
    }
}

/// The keeper has a thread of its own, so the subscriber must be the process's: one test tells the whole story.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_tells_its_life_by_stable_names_and_never_its_token() {
    let log = Log::default();
    tracing::subscriber::set_global_default(Registry::default().with(log.clone())).unwrap();
    let server = Server::start();
    // Long enough that no busy machine puts it at risk or ends it.
    let leases = Leases::builder().url(server.url()).label("one").ttl(Duration::from_secs(4)).build().await.unwrap();
    let lock = leases.lock("job");

    let lease = lock.acquire().await.unwrap();
    let token = lock.holder().await.unwrap().unwrap().token().unwrap().to_owned();
    log.expect("span acquire", "lock=\"job\"").await;
    log.expect("DEBUG acquired", "label=\"one\"").await;
    log.expect("DEBUG renew", "lock=\"job\" label=\"one\"").await;

    let other = lock.clone().owner(Owner::anonymous());
    let waiter = tokio::spawn(other.acquire());
    log.expect("INFO wait", "holder=\"one\"").await;
    waiter.abort();
    let _cancelled = waiter.await;

    server.stop();
    log.expect("WARN at_risk", "lock=\"job\"").await;
    server.cont();
    log.expect("INFO recovered", "lock=\"job\"").await;

    lease.release().await.unwrap();
    log.expect("DEBUG release", "lock=\"job\" label=\"one\"").await;

    let lease = lock.acquire().await.unwrap();
    let second = lock.holder().await.unwrap().unwrap().token().unwrap().to_owned();
    server.wire().del("job");
    within(SOON, "the loss", lease.lost()).await;
    log.expect("WARN lost", "reason=Deleted").await;

    let lines = log.0.lock().unwrap().join("\n");
    for token in [token, second] {
        let secret = token.trim_start_matches("lh1:").split('@').next().unwrap();
        assert!(!lines.contains(secret), "a token in the log:\n{lines}");
    }
    assert!(!lines.contains(Level::ERROR.as_str()), "nothing of this is an error:\n{lines}");
}
