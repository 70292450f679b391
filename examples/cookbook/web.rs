//! A web service that starts jobs: 202 when a job begins, 409 with `Retry-After` while it runs, 503 without a server.
//!
//! Three traps. The lease moves into the task of the job: a lease in the handler is released when the handler answers.
//! (Not `reentrant(true)`: all requests of one keep-alive connection are one task, so all of them would enter.) A busy
//! lock is not a server error: 409, not 500. And the process must not end before the jobs: `shutdown` waits for them.
//!
//! It serves on 127.0.0.1, and is its own client: one keep-alive connection, then two connections.
//!
//! ```text
//! cargo run -p leasehold-cookbook --example web
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p leasehold-cookbook --example web
//! ```
#![allow(clippy::disallowed_methods, reason = "the library has one door for tasks; a program may spawn")]

use std::{env, io, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use leasehold::{Client, Error, LeaseHandle};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

/// The most seconds that a client is asked to wait before its next try: about the duration of a job.
const RETRY_AT_MOST: u64 = 5;

/// The error of a handler: one conversion serves every call of the library.
struct ApiError(Error);

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let status = match error {
            Error::TimedOut { .. } => StatusCode::CONFLICT,
            Error::Unavailable(_) | Error::Closed => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        // The text names hosts, so it goes to the log and not to the client.
        println!("server: {status}: {error}");
        let mut response = status.into_response();
        if let Some(after) = error.retry_after() {
            // The remaining life of the key if its holder were dead. A living holder renews the key, and may release at
            // any moment, so the client should ask again soon. Rounded up, because 0 means "at once".
            let rest = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, rest.clamp(1, RETRY_AT_MOST).into());
        }
        response
    }
}

fn app(client: Client) -> Router {
    Router::new().route("/jobs/{name}", post(start_job)).route("/readyz", get(readyz)).with_state(client)
}

async fn start_job(State(client): State<Client>, Path(name): Path<String>) -> Result<Response, ApiError> {
    // One try, like `try_acquire`, but the error names the holder and the remaining time.
    let lease = client.lock(format!("examples:web:{name}")).acquire_within(Duration::ZERO).await?;
    let answer = (StatusCode::ACCEPTED, format!("{name} begins, fence {}\n", lease.fence())).into_response();
    tokio::spawn(async move {
        if let Err(error) = lease.run(job).await {
            println!("server: {name} was stopped: {error}");
        }
    });
    Ok(answer)
}

async fn job(lease: LeaseHandle) -> Result<(), Error> {
    tokio::select! {
        biased;
        () = lease.cancellation_token().cancelled_owned() => println!("server: the job saves, {:?}", lease.status()),
        () = sleep(Duration::from_secs(3600)) => {}
    }
    Ok(())
}

async fn readyz(State(client): State<Client>) -> Result<&'static str, ApiError> {
    client.health().await?;
    Ok("ready\n")
}

/// Serves until `stop`, then gives the jobs at most ten seconds to save. Returns how many were cut short.
async fn serve(listener: TcpListener, client: Client, stop: CancellationToken) -> io::Result<usize> {
    let app = app(client.clone());
    let serving = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
    // At the same time, because a handler that waits for a lock would otherwise never answer.
    let shutdown = async {
        stop.cancelled().await;
        client.shutdown(Duration::from_secs(10)).await
    };
    let (served, cut_short) = tokio::join!(serving.into_future(), shutdown);
    served?;
    Ok(cut_short)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let (client, stop) = (Client::connect(url).await?, CancellationToken::new());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // A service stops at ^C or SIGTERM: see the example `graceful_shutdown`.
    let service = tokio::spawn(serve(listener, client, stop.clone()));

    let mut one = TcpStream::connect(address).await?;
    assert_eq!(request(&mut one, "GET /readyz").await?.status, 200);
    assert_eq!(request(&mut one, "POST /jobs/a").await?.status, 202);
    let again = request(&mut one, "POST /jobs/a").await?;
    assert_eq!(again.status, 409, "the same connection enters once");
    assert!(again.retry_after.is_some_and(|after| (1..=5).contains(&after)), "not the TTL, which is 30 s");

    let mut other = TcpStream::connect(address).await?;
    assert_eq!(request(&mut other, "POST /jobs/a").await?.status, 409);
    assert_eq!(request(&mut other, "POST /jobs/b").await?.status, 202);

    // Both connections are still open, but do not delay the shutdown.
    stop.cancel();
    let cut_short = service.await??;
    println!("{cut_short} jobs were cut short");
    assert_eq!(cut_short, 0);

    // The same service while its server is away: it still starts, and reports that it is not ready.
    let limit = Duration::from_millis(200);
    let away = Client::builder().url("redis://127.0.0.1:1").connect_timeout(limit).build_lazy()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut connection = TcpStream::connect(listener.local_addr()?).await?;
    let stop = CancellationToken::new();
    let service = tokio::spawn(serve(listener, away, stop.clone()));
    assert_eq!(request(&mut connection, "GET /readyz").await?.status, 503);
    assert_eq!(request(&mut connection, "POST /jobs/a").await?.status, 503);
    stop.cancel();
    assert_eq!(service.await??, 0);
    Ok(())
}

struct Answer {
    status: u16,
    retry_after: Option<u64>,
}

/// Enough HTTP for this example: one request and its answer.
async fn request(connection: &mut TcpStream, what: &str) -> Result<Answer, Box<dyn std::error::Error>> {
    connection.write_all(format!("{what} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    let (head, body) = loop {
        let mut part = [0; 4096];
        let read = connection.read(&mut part).await?;
        answer += std::str::from_utf8(part.get(..read).unwrap_or_default())?;
        if let Some((head, body)) = answer.split_once("\r\n\r\n") {
            let length: usize = field(head, "content-length").ok_or("no length")?.parse()?;
            if body.len() == length {
                break (head, body);
            }
        }
        if read == 0 {
            return Err("the connection is closed".into());
        }
    };
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    let retry_after = field(head, "retry-after").and_then(|after| after.parse().ok());
    println!("{what}: {status} {:?}, retry after {retry_after:?}", body.trim_end());
    Ok(Answer { status, retry_after })
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}
