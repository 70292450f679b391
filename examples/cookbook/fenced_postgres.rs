//! The fence in Postgres: a job has lost its lock without knowing it, and its write is refused.
//!
//! Three traps. Compare and write in one statement, or another write comes between. Bind the fence as `i64`, for a
//! `BIGINT`: a `u64` does not bind, and every fence fits. And check the number of rows: a refused write is not a
//! database error, it changes nothing.
//!
//! ```text
//! DATABASE_URL=postgres://user:password@localhost/db cargo run -p leasehold-cookbook --example fenced_postgres
//! ```
//!
//! It uses a schema of its own there, `leasehold_cookbook`, and drops it at the end. The locks are in memory, or on the
//! server at `REDIS_URL`.

use std::{env, error::Error};

use leasehold::{Client, Fence};
use sqlx::{Executor as _, PgConnection, PgPool};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const CREATE: &str = "
    CREATE SCHEMA leasehold_cookbook;
    CREATE TABLE leasehold_cookbook.report (id INT PRIMARY KEY, body TEXT NOT NULL, fence BIGINT NOT NULL);
    CREATE TABLE leasehold_cookbook.fence (name TEXT PRIMARY KEY, fence BIGINT NOT NULL);
    CREATE TABLE leasehold_cookbook.line (body TEXT NOT NULL)";

const DROP: &str = "DROP SCHEMA IF EXISTS leasehold_cookbook CASCADE";

/// One row: it has a column for the fence. `<=`, so that a holder may write more than once.
const WRITE: &str = "
    INSERT INTO leasehold_cookbook.report (id, body, fence) VALUES (1, $1, $2)
    ON CONFLICT (id) DO UPDATE SET body = excluded.body, fence = excluded.fence
    WHERE report.fence <= excluded.fence";

/// For a transaction: begin with this statement, which locks the name's row until the end. Any number of writes may
/// follow.
const ENTER: &str = "
    INSERT INTO leasehold_cookbook.fence AS seen (name, fence) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET fence = excluded.fence
    WHERE seen.fence <= excluded.fence";

/// Returns whether the row was written.
async fn write(db: &PgPool, fence: Fence, body: &str) -> Result<bool> {
    let done = sqlx::query(WRITE).bind(body).bind(i64::from(fence)).execute(db).await?;
    Ok(done.rows_affected() == 1)
}

/// Returns whether the transaction may continue.
async fn enter(transaction: &mut PgConnection, name: &str, fence: Fence) -> Result<bool> {
    let done = sqlx::query(ENTER).bind(name).bind(i64::from(fence)).execute(transaction).await?;
    Ok(done.rows_affected() == 1)
}

async fn write_lines(db: &PgPool, name: &str, fence: Fence, lines: &[&str]) -> Result<bool> {
    // Rolled back when it is dropped.
    let mut transaction = db.begin().await?;
    if !enter(&mut transaction, name, fence).await? {
        return Ok(false);
    }
    for line in lines {
        sqlx::query("INSERT INTO leasehold_cookbook.line VALUES ($1)").bind(line).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<()> {
    let database = env::var("DATABASE_URL").map_err(|_| "DATABASE_URL must name a Postgres")?;
    let db = PgPool::connect(&database).await?;
    db.execute(DROP).await?;
    db.execute(CREATE).await?;
    let outcome = two_holders(&db).await;
    db.execute(DROP).await?;
    outcome
}

async fn two_holders(db: &PgPool) -> Result<()> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let client = Client::connect(url).await?;
    let lock = client.lock("examples:fenced_postgres");

    let early = lock.acquire().await?;
    let (early_fence, name) = (early.fence(), early.name().to_owned());
    assert!(write(db, early_fence, "early").await?);
    assert!(write(db, early_fence, "early, again").await?, "the same holder");
    assert!(write_lines(db, &name, early_fence, &["early"]).await?);

    // The first holder loses the lock, and the next one writes. Here an operator takes the lock away. A paused machine
    // would do too, as the example `fenced_write` shows.
    lock.force_release().await?;
    let late = lock.acquire().await?;
    assert!(write(db, late.fence(), "late").await?);
    assert!(write_lines(db, &name, late.fence(), &["late", "later"]).await?);

    // The first one continues where it was. `early.check()` would fail, but a pause can come after any check.
    let written = write(db, early_fence, "from the past").await?;
    let lines_written = write_lines(db, &name, early_fence, &["from the past"]).await?;
    println!("fence {early_fence} after {}: written {written}, lines written {lines_written}", late.fence());
    assert!(!written && !lines_written);

    let body: String = sqlx::query_scalar("SELECT body FROM leasehold_cookbook.report").fetch_one(db).await?;
    let lines: Vec<String> = sqlx::query_scalar("SELECT body FROM leasehold_cookbook.line").fetch_all(db).await?;
    println!("in the tables: {body:?} {lines:?}");
    assert_eq!((body.as_str(), lines), ("late", vec!["early".into(), "late".into(), "later".into()]));
    late.release().await?;
    client.close().await;
    Ok(())
}
