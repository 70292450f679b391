//! How to test a job that locks: in memory, with a clock that the test moves. Hours pass in milliseconds.
//!
//! It is a program, so that it can be run here; in your code each scene is a `#[tokio::test]`. See the page
//! `leasehold::testing`.
//!
//! ```text
//! cargo run --example in_tests
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may spawn; the library has one door for it")]

use std::time::Duration;

use leasehold::{
    Client, Error, Lock, LossReason,
    testing::{self, ManualClock},
};
use tokio::{sync::mpsc, task::JoinHandle};

const HOUR: Duration = Duration::from_secs(3_600);

/// The job: counts rows until they end, under a lock.
async fn import(lock: Lock, mut rows: mpsc::Receiver<u32>) -> Result<u32, Error> {
    let count = lock.run(|_lease| async move {
        let mut count = 0;
        while rows.recv().await.is_some() {
            count += 1;
        }
        Ok(count)
    });
    count.await
}

// One thread: the tasks that a scene has spawned run while the scene waits.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    a_job_of_two_hours_keeps_its_lock().await?;
    a_job_stops_when_its_lock_is_taken().await?;
    a_job_stops_when_the_server_is_silent().await?;
    a_job_whose_machine_slept_stops().await?;
    println!("all passed");
    Ok(())
}

/// A job that has begun.
struct Scene {
    clock: ManualClock,
    client: Client,
    lock: Lock,
    rows: mpsc::Sender<u32>,
    job: JoinHandle<Result<u32, Error>>,
}

impl Scene {
    async fn begin() -> Result<Self, Error> {
        let clock = ManualClock::new();
        let client = Client::builder().url("memory://").clock(clock.clone()).build().await?;
        let lock = client.lock("import");
        let (rows, received) = mpsc::channel(1);
        let job = tokio::spawn(import(lock.clone(), received));
        while lock.holder().await?.is_none() {
            tokio::task::yield_now().await;
        }
        Ok(Self { clock, client, lock, rows, job })
    }

    /// The outcome of the job; `None` if it panicked.
    async fn end(self) -> Option<Result<u32, Error>> {
        drop(self.rows);
        self.job.await.ok()
    }
}

async fn a_job_of_two_hours_keeps_its_lock() -> Result<(), Error> {
    let scene = Scene::begin().await?;
    for row in 0..2 {
        assert!(scene.rows.send(row).await.is_ok());
        scene.clock.pass(HOUR, &scene.client).await;
        assert!(scene.lock.try_acquire().await?.is_none(), "it was renewed");
    }
    let lock = scene.lock.clone();
    assert!(matches!(scene.end().await, Some(Ok(2))));
    assert!(lock.holder().await?.is_none(), "and released");
    Ok(())
}

async fn a_job_stops_when_its_lock_is_taken() -> Result<(), Error> {
    let scene = Scene::begin().await?;
    testing::take_over(&scene.lock)?;
    scene.clock.pass(Duration::from_secs(1), &scene.client).await;
    assert_lost(scene, LossReason::Taken).await;
    Ok(())
}

async fn a_job_stops_when_the_server_is_silent() -> Result<(), Error> {
    let scene = Scene::begin().await?;
    let _silence = testing::silence(&scene.client)?;
    scene.clock.pass(Duration::from_secs(30), &scene.client).await;
    assert_lost(scene, LossReason::Expired).await;
    Ok(())
}

async fn a_job_whose_machine_slept_stops() -> Result<(), Error> {
    let scene = Scene::begin().await?;
    scene.clock.advance(HOUR);
    assert_lost(scene, LossReason::Expired).await;
    Ok(())
}

/// Asserts that the job stops, although more rows may come.
async fn assert_lost(mut scene: Scene, reason: LossReason) {
    match (&mut scene.job).await {
        Ok(Err(error)) => {
            assert!(matches!(error, Error::Lost(_)));
            assert!(error.to_string().ends_with(&reason.to_string()), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
