//! The traps of the recipes: a crash, a lost reply or an outage in the middle of the work.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold::{Client, Error, Lock, MultiLeaseHandle, MultiLock};
use support::{
    Action, Child, HANGS, Match, Part, Proxy, Server, fenced_write, one_thread,
    scripts::{ACQUIRE, KEEP, QUEUE},
    two_workers, within,
};

use crate::common::{COMMAND, Confirmed as _, LONG, SHORT, program_with};

/// Longer than any test here.
const INTERVAL: Duration = Duration::from_secs(60 * 60);

/// With `keep_for`, crashed work is redone by the next caller; with `once_per`, it is not begun again.
#[test]
fn work_that_crashed_is_repeated_with_keep_for_and_not_with_once_per() {
    if let Some(part) = Part::mine() {
        return one_thread().block_on(async {
            let leases = program_with(&*part.url, SHORT).await;
            let (report, mail) = (leases.lock("report").keep_for(INTERVAL), leases.lock("mail").once_per(INTERVAL));
            let _both = report
                .try_run(async |_| {
                    mail.try_run(async |_| {
                        part.say("begun");
                        pending::<Result<(), Error>>().await
                    })
                    .await
                })
                .await;
        });
    }
    let server = Server::start();
    let mut first =
        Child::start(work_that_crashed_is_repeated_with_keep_for_and_not_with_once_per, "begin", &server.url());
    first.says("begun");
    first.kill();
    two_workers().block_on(async {
        let leases = program_with(server.url(), SHORT).await;
        let (report, mail) = (leases.lock("report").keep_for(INTERVAL), leases.lock("mail").once_per(INTERVAL));
        within(HANGS, "the report again", report.run(async |_| Ok::<_, Error>(()))).await.unwrap();
        // The report is now finished.
        assert_eq!(report.try_run(async |_| Ok::<_, Error>(())).await.unwrap(), None);
        // The dead process's TTL has passed, but its interval has not.
        assert_eq!(mail.try_run(async |_| Ok::<_, Error>(())).await.unwrap(), None);
    });
}

/// Whether the reply to the acquire or to the release is lost, with its connection, the work is done only once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_repeats_no_work_of_an_interval() {
    let server = Server::start();
    for (name, script) in [("acquire", ACQUIRE), ("release", KEEP)] {
        for is_once in [false, true] {
            let proxy = Proxy::to(&server);
            let leases = Client::builder().url(proxy.url()).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
            let lock = leases.lock(format!("{name}:{is_once}"));
            let lock = if is_once { lock.once_per(INTERVAL) } else { lock.keep_for(INTERVAL) };
            let (lost, done) = (proxy.on(Match::script(script), 1, Action::CutAfter), AtomicU32::new(0));
            let work = async |_| {
                done.fetch_add(1, Relaxed);
                Ok::<_, Error>(())
            };
            // Retries as the recipe's timer does.
            let turns = async {
                while done.load(Relaxed) == 0 {
                    match lock.try_run(work).await {
                        Ok(_) => {}
                        Err(error) => assert!(error.is_transient(), "{error}"),
                    }
                }
            };
            within(HANGS, "the work", turns).await;
            assert_eq!(lock.try_run(work).await.unwrap(), None, "{name} {is_once}");
            assert_eq!((lost.hits(), done.load(Relaxed)), (1, 1), "{name} {is_once}");
        }
    }
}

#[derive(Debug)]
enum TransferError {
    Lock(Error),
}

impl From<Error> for TransferError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// A transfer that ends by reading the lock's waiters, so its work calls the library.
struct Transfer {
    one: Lock,
    both: MultiLock,
    moved: AtomicU32,
}

impl Transfer {
    async fn through(proxy: &Proxy) -> Self {
        let leases = Client::builder().url(proxy.url()).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
        let [one, other] = ["one", "other"].map(|name| leases.lock(name));
        let both = leases.multi_lock([one.clone(), other]);
        Self { one, both, moved: AtomicU32::new(0) }
    }

    async fn work(&self, held: MultiLeaseHandle) -> Result<(), TransferError> {
        held.check()?;
        self.moved.fetch_add(1, Relaxed);
        self.one.waiters().await?;
        Ok(())
    }

    /// The recipe: only the acquire is retried.
    async fn make(&self) -> Result<(), TransferError> {
        let held = loop {
            match self.both.acquire_within(Duration::from_millis(100)).await {
                Err(error) if error.is_transient() => tokio::task::yield_now().await,
                outcome => break outcome?,
            }
        };
        held.run(async |held| self.work(held).await).await
    }

    /// The trap: the work is retried too.
    async fn make_again_and_again(&self) -> Result<(), TransferError> {
        loop {
            let work = async |held| self.work(held).await;
            match self.both.run_within(LONG, work).await {
                Err(TransferError::Lock(error)) if error.is_transient() => tokio::task::yield_now().await,
                outcome => return outcome,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_moves_once_if_only_the_acquire_is_tried_again() {
    let server = Server::start();
    for is_trap in [false, true] {
        let proxy = Proxy::to(&server);
        let transfer = Transfer::through(&proxy).await;
        // The reply to the read is lost: the money has moved, and the error is transient.
        let lost = proxy.on(Match::script(QUEUE), 1, Action::CutAfter);
        let (outcome, times) = if is_trap {
            (within(HANGS, "the transfer", transfer.make_again_and_again()).await, 2)
        } else {
            (within(HANGS, "the transfer", transfer.make()).await, 1)
        };
        assert_eq!((lost.hits(), transfer.moved.load(Relaxed)), (1, times), "{outcome:?}");
        let is_told = matches!(&outcome, Err(TransferError::Lock(error)) if error.is_transient());
        assert_eq!(is_told, !is_trap, "{outcome:?}");
    }
    // An outage before the acquire is ridden out.
    let proxy = Proxy::to(&server);
    let transfer = Transfer::through(&proxy).await;
    server.stop();
    let refused = transfer.both.acquire_within(Duration::from_millis(100)).await.unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    server.cont();
    within(HANGS, "the transfer", transfer.make()).await.unwrap();
    assert_eq!(transfer.moved.load(Relaxed), 1);
}

/// The cookbook's script compares fences to the last digit. The same holder may write again.
#[tokio::test]
async fn a_fenced_write_refuses_the_past() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), LONG).await, server.wire());
    let lock = leases.lock("job");
    let past = lock.acquire().await.unwrap();
    assert_eq!(fenced_write(&mut wire, "report", "first", past.fence()), Ok(()));
    assert_eq!(fenced_write(&mut wire, "report", "first, again", past.fence()), Ok(()));
    lock.force_release().await.unwrap();
    let present = lock.acquire().await.unwrap();
    assert_eq!(fenced_write(&mut wire, "report", "second", present.fence()), Ok(()));
    assert_eq!(fenced_write(&mut wire, "report", "late", past.fence()), Err(u64::from(present.fence())));
    let stored = ["value", "fence"].map(|field| wire.must(&["HGET", "report", field]).text());
    assert_eq!(stored, ["second".to_owned(), present.fence().to_string()]);
    assert_eq!(wire.pttl("report"), -1, "it forgets no fence");

    let largest = i64::MAX.unsigned_abs();
    for (fence, outcome) in [
        (0_u64, Ok(())),
        (9, Ok(())),
        (10, Ok(())),
        (9, Err(10)),
        (largest - 1, Ok(())),
        (largest, Ok(())),
        // Two fences that are equal as doubles.
        (largest - 1, Err(largest)),
    ] {
        assert_eq!(fenced_write(&mut wire, "numbers", "value", fence), outcome, "{fence}");
    }
}

/// The rows of README's table that run or hold something: each reports whether it has done the work.
const CALLS: [(&str, Call); 11] = [
    ("run", |leases, work| {
        Box::pin(async move { leases.lock("job").run(async |_| work.done().await).await.map(Some) })
    }),
    ("try_run", |leases, work| Box::pin(async move { leases.lock("job").try_run(async |_| work.done().await).await })),
    ("run_within", |leases, work| {
        Box::pin(async move { leases.lock("job").run_within(HANGS, async |_| work.done().await).await.map(Some) })
    }),
    ("grace", |leases, work| {
        Box::pin(async move { leases.lock("job").grace(SHORT).run(async |_| work.done().await).await.map(Some) })
    }),
    ("try_acquire", |leases, work| {
        Box::pin(async move {
            let Some(lease) = leases.lock("job").try_acquire().await? else { return Ok(None) };
            lease.check()?;
            work.done().await?;
            lease.release().await.map(|_| Some(()))
        })
    }),
    ("fair", |leases, work| {
        Box::pin(async move { leases.lock("job").fair(true).run(async |_| work.done().await).await.map(Some) })
    }),
    ("read", |leases, work| {
        Box::pin(async move { leases.rw_lock("job").read().run(async |_| work.done().await).await.map(Some) })
    }),
    ("write", |leases, work| {
        Box::pin(async move { leases.rw_lock("job").write().run(async |_| work.done().await).await.map(Some) })
    }),
    ("semaphore", |leases, work| {
        Box::pin(async move { leases.semaphore("job", 1).run(async |_| work.done().await).await.map(Some) })
    }),
    ("multi_lock", |leases, work| {
        Box::pin(async move {
            let both = leases.multi_lock(["job", "other"].map(|name| leases.lock(name)));
            both.run(async |_| work.done().await).await.map(Some)
        })
    }),
    ("reentrant", |leases, work| {
        Box::pin(async move {
            let lock = leases.lock("job").reentrant(true);
            lock.run(async |_| lock.run(async |_| work.done().await).await).await.map(Some)
        })
    }),
];

type Call = fn(Client, Arc<Work>) -> Pin<Box<dyn Future<Output = Result<Option<()>, Error>> + Send>>;

#[derive(Default)]
struct Work(AtomicU32);

impl Work {
    async fn done(&self) -> Result<(), Error> {
        tokio::task::yield_now().await;
        self.0.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Whichever reply is lost, the work is done once if the call reports success, and never twice. No try is refused by
/// its own leftovers, and nothing is left for others to wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_does_its_work_twice_or_leaves_a_lock_for_a_lost_reply() {
    let server = Server::start();
    for (name, call) in CALLS {
        for (action, nth) in [Action::CutAfter, Action::SwallowReply].into_iter().flat_map(|one| [(one, 1), (one, 2)]) {
            let case = format!("{name}, {action:?} {nth}");
            let proxy = Proxy::to(&server);
            let leases = Client::builder().url(proxy.url()).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
            let scripts =
                Match::with(|args| args.first().is_some_and(|name| name.to_ascii_uppercase().starts_with(b"EVAL")));
            let lost = proxy.on(scripts, nth, action);
            let work = Arc::<Work>::default();
            let outcome = within(HANGS, &case, call(leases.clone(), work.clone())).await;
            let times = work.0.load(Relaxed);
            match outcome {
                Ok(Some(())) => assert_eq!(times, 1, "{case}"),
                Ok(None) => panic!("{case}: there is no other holder"),
                Err(error) => assert!(error.is_transient() && times <= 1, "{case}: {error}, done {times} times"),
            }
            // A cut is counted after its effect.
            within(HANGS, &case, lost.hit()).await;
            let others = Client::builder().url(server.url()).ttl(LONG).build().await.unwrap();
            for name in ["job", "other"] {
                let lease = within(HANGS, &case, others.lock(name).acquire()).await.unwrap();
                lease.release().await.unwrap().confirmed();
            }
            leases.close().await;
        }
    }
}
