//! A lease in the trace of the job that acquired it: its span, and the keeper's events in it.

use std::{
    collections::HashMap,
    fmt::{Debug, Write as _},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use leasehold::{Client, Error};
use parking_lot::Mutex;
use support::{HANGS, Server, alone, eventually_async, one_thread, within};
use tracing::{
    Instrument as _, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
};

const NAME: &str = "job";

/// The recorded spans and events of one thread's subscriber: the library's threads find it by the lease's span.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    /// Each event with its spans, outermost first: `job/acquire/lease: lost`.
    events: Vec<String>,
    /// The fields of each span by its name.
    fields: HashMap<String, String>,
    closed: Vec<String>,
    panics_at: Option<&'static str>,
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        let name = attributes.metadata().name();
        let mut recorded = self.0.lock();
        attributes.record(&mut Text(recorded.fields.entry(name.into()).or_default()));
        let panics = recorded.panics_at == Some(name);
        drop(recorded);
        assert!(!panics, "a subscriber at {name}, as it is meant to");
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let name = context.span(id).unwrap().name();
        values.record(&mut Text(self.0.lock().fields.entry(name.into()).or_default()));
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let spans: Vec<_> = context.event_scope(event).into_iter().flatten().map(|span| span.name()).collect();
        let path: Vec<_> = spans.into_iter().rev().collect();
        self.0.lock().events.push(format!("{}: {}", path.join("/"), event.metadata().name()));
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        self.0.lock().closed.push(context.span(&id).unwrap().name().into());
    }
}

impl Recorder {
    fn fields(&self, span: &str) -> String {
        self.0.lock().fields.get(span).cloned().unwrap_or_default()
    }

    async fn hears(&self, event: &str) {
        let is_there = || self.0.lock().events.iter().any(|told| told == event);
        eventually_async(HANGS, &format!("{event:?}"), is_there).await;
    }

    async fn sees_closed(&self, span: &str) {
        let is_closed = || self.0.lock().closed.iter().any(|closed| closed == span);
        eventually_async(HANGS, &format!("the end of {span}"), is_closed).await;
    }
}

/// Runs the test with a subscriber for this thread only.
fn recorded(level: LevelFilter, test: impl AsyncFnOnce(Recorder)) {
    let recorder = Recorder::default();
    let subscriber = Registry::default().with(recorder.clone().with_filter(level));
    tracing::subscriber::with_default(subscriber, || one_thread().block_on(test(recorder)));
}

#[test]
fn what_happens_to_a_lease_is_in_its_span_though_another_thread_tells_it() {
    alone(|| {
        recorded(LevelFilter::DEBUG, async |recorder| {
            let server = Server::start();
            let ttl = Duration::from_secs(2);
            let leases = Client::builder().url(server.url()).label("one").ttl(ttl).build().await.unwrap();
            let job = tracing::info_span!("job", trace = 42);
            let lease = leases.lock(NAME).acquire().instrument(job.clone()).await.unwrap();
            let fields = recorder.fields("lease");
            for field in ["lock=\"job\"", "label=\"one\"", &format!("fence={}", lease.fence())] {
                assert!(fields.contains(field) && !fields.contains("outcome"), "{field}: {fields}");
            }
            recorder.hears("job/acquire/lease: renew").await;
            server.stop();
            recorder.hears("job/acquire/lease: at_risk").await;
            server.cont();
            recorder.hears("job/acquire/lease: recovered").await;
            server.wire().del(NAME);
            within(HANGS, "the loss", lease.lost()).await;
            recorder.hears("job/acquire/lease: lost").await;
            drop((lease, job));
            recorder.sees_closed("lease").await;
            assert!(recorder.fields("lease").ends_with("outcome=\"deleted\" "), "{}", recorder.fields("lease"));
        });
    });
}

#[test]
fn work_runs_in_the_span_of_its_lease_and_its_outcome_is_there() {
    alone(|| {
        for outcome in ["released", "dropped", "handed_over"] {
            recorded(LevelFilter::INFO, async |recorder| {
                let lock = Client::in_memory().lock(NAME);
                let job = tracing::info_span!("job");
                if outcome == "released" {
                    let work = lock.run(async |_| {
                        tracing::info!(name: "step", "in the work");
                        Ok::<_, Error>(())
                    });
                    work.instrument(job).await.unwrap();
                    recorder.hears("job/lease: step").await;
                } else {
                    let lease = lock.acquire().instrument(job).await.unwrap();
                    if outcome == "dropped" {
                        drop(lease);
                    } else {
                        drop(lease.into_ticket().unwrap());
                    }
                }
                recorder.sees_closed("lease").await;
                let fields = recorder.fields("lease");
                assert!(fields.ends_with(&format!("outcome={outcome:?} ")), "{fields}");
            });
        }
    });
}

/// The keeper remembers an ended hold for a while, if it has others. The holder may drop it before its loss is
/// reported.
#[test]
fn a_lease_that_is_dropped_as_soon_as_it_is_lost_ended_by_its_loss() {
    alone(|| {
        recorded(LevelFilter::INFO, async |recorder| {
            let server = Server::start();
            let leases = Client::builder().url(server.url()).ttl(Duration::from_millis(500)).build().await.unwrap();
            let mut holders = tokio::task::JoinSet::new();
            for number in 0..40 {
                let lease = leases.lock(format!("job:{number}")).acquire().await.unwrap();
                holders.spawn(async move { drop(lease.lost().await) });
            }
            server.stop();
            within(HANGS, "the losses", holders.join_all()).await;
            let closed = || recorder.0.lock().closed.iter().filter(|closed| *closed == "lease").count();
            eventually_async(HANGS, "all spans are closed", || closed() == 40).await;
            let fields = recorder.fields("lease");
            assert_eq!(fields.matches("outcome=\"expired\"").count(), 40, "{fields}");
        });
    });
}

#[test]
fn a_span_ends_with_its_lease_whatever_else_is_held() {
    alone(|| {
        recorded(LevelFilter::INFO, async |recorder| {
            let leases = Client::builder().url("memory://").ttl(Duration::from_secs(3)).build().await.unwrap();
            let _others = (leases.lock("one").acquire().await.unwrap(), leases.lock("two").acquire().await.unwrap());
            let lease = leases.lock(NAME).acquire().await.unwrap();
            let mut left = lease.remaining();
            let is_renewed = || {
                let before = std::mem::replace(&mut left, lease.remaining());
                left > before
            };
            eventually_async(HANGS, "a renewal, and so a plan for the next", is_renewed).await;
            lease.release().await.unwrap();
            assert_eq!(recorder.0.lock().closed, ["lease"]);
        });
    });
}

#[test]
fn where_the_level_is_off_there_is_no_span() {
    alone(|| {
        recorded(LevelFilter::WARN, async |recorder| {
            let server = Server::start();
            let leases = Client::connect(server.url()).await.unwrap();
            let lease = leases.lock(NAME).acquire().await.unwrap();
            server.wire().del(NAME);
            within(HANGS, "the loss", lease.lost()).await;
            drop(lease);
            assert_eq!(recorder.fields("lease"), "");
        });
    });
}

#[test]
fn a_subscriber_that_panics_at_the_span_leaves_no_lock() {
    alone(|| {
        let server = Server::start();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            recorded(LevelFilter::INFO, async |recorder| {
                let leases = Client::connect(server.url()).await.unwrap();
                recorder.0.lock().panics_at = Some("lease");
                drop(leases.lock(NAME).acquire().await);
            });
        }));
        assert!(panicked.is_err());
        let is_free = || server.wire().get(NAME).is_none();
        one_thread().block_on(eventually_async(HANGS, "the lock is free", is_free));
    });
}
