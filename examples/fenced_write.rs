//! The write that no lock can prevent, and the fence that refuses it.
//!
//! A writer is paused for longer than its lease, as by a suspended machine or a long garbage collection. When it
//! continues, it still believes in its lease, and writes. Meanwhile the lock has passed to another writer, which has
//! already written. The database compares their fences, and the late write changes nothing.
//!
//! ```text
//! cargo run --features sqlite --example fenced_write
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --features sqlite --example fenced_write
//! ```

use std::{env, error::Error, fs, path::Path, sync::Barrier, thread, time::Duration};

use leasehold::{Client, Fence, Lease};
use rusqlite::Connection;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const TTL: Duration = Duration::from_secs(1);

const CREATE: &str = "CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT NOT NULL, fence INTEGER NOT NULL)";

/// Writes, unless a later holder has written. Compare and write are one statement, so nothing comes between them.
const WRITE: &str = "\
INSERT INTO report (id, body, fence) VALUES (1, ?1, ?2)
ON CONFLICT (id) DO UPDATE SET body = excluded.body, fence = excluded.fence
WHERE report.fence <= excluded.fence";

fn main() -> Result<()> {
    let path = env::temp_dir().join(format!("leasehold-fenced-write-{}.sqlite", std::process::id()));
    let outcome = two_writers(&path);
    fs::remove_file(&path)?;
    outcome
}

fn two_writers(path: &Path) -> Result<()> {
    let db = Connection::open(path)?;
    db.execute(CREATE, ())?;
    println!("{WRITE};\n");

    // Each writer is on a thread and a runtime of its own, as if they were two processes.
    let first_holds = Barrier::new(2);
    thread::scope(|threads| {
        let paused = threads.spawn(|| paused_writer(path, &first_holds));
        let prompt = threads.spawn(|| prompt_writer(path, &first_holds));
        for writer in [paused, prompt] {
            writer.join().map_err(|_| "a writer panicked")??;
        }
        Ok::<(), Box<dyn Error + Send + Sync>>(())
    })?;

    let body: String = db.query_row("SELECT body FROM report", (), |row| row.get(0))?;
    println!("\nin the table: {body:?}");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn paused_writer(path: &Path, holds: &Barrier) -> Result<()> {
    let (client, lease) = acquire("paused").await?;
    holds.wait();

    // Its lease is not renewed meanwhile, as if the whole process stood still.
    println!("paused: stands still for {:?}", 3 * TTL);
    thread::sleep(3 * TTL);

    // The mistake: `lease.check()` would fail here. But a pause can come after any check, too.
    println!("paused: goes on where it was, and writes");
    write(path, "paused", lease.fence())?;
    if let Err(error) = lease.release().await {
        println!("paused: {error}");
    }
    client.close().await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn prompt_writer(path: &Path, first_holds: &Barrier) -> Result<()> {
    first_holds.wait();
    let (client, lease) = acquire("prompt").await?;
    write(path, "prompt", lease.fence())?;
    lease.release().await?;
    client.close().await;
    Ok(())
}

async fn acquire(who: &'static str) -> Result<(Client, Lease)> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://fenced-write".into());
    // The keeper would renew the lease for as long as the process runs. A limit ends it as a pause of the process does.
    let client = Client::builder().url(url).ttl(TTL).max_hold(TTL).label(who).build().await?;
    let lock = client.lock("examples:fenced_write").on_wait(move |holder| println!("{who}: waits for {holder}"));
    let lease = lock.acquire().await?;
    println!("{who}: acquired, fence {}", lease.fence());
    Ok((client, lease))
}

fn write(path: &Path, who: &str, fence: Fence) -> Result<()> {
    let rows = Connection::open(path)?.execute(WRITE, (who, i64::from(fence)))?;
    match rows {
        0 => println!("{who}: REFUSED, the table has seen a later fence than {fence}"),
        _ => println!("{who}: written with fence {fence}"),
    }
    Ok(())
}
