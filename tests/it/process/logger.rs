//! F91 with a logger of the `log` crate, which gets a line from fred for each connection that ends, on its thread.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, LossReason};
use support::{HANGS, Lag, SIGNAL, Server, alone, eventually_async, seen, stamped, two_workers, within};

const TTL: Duration = Duration::from_secs(5);
/// An unanswered renewal is noticed after several of these timeouts.
const COMMAND: Duration = Duration::from_millis(300);
/// The longest that a line blocks its thread.
const STUCK: Duration = Duration::from_secs(20);

/// Blocks the library's threads at each line, as a full pipe does.
struct Stuck {
    /// How many lines block now; `None` while they pass.
    lines: Mutex<Option<usize>>,
    passes: Condvar,
}

static LOG: Stuck = Stuck { lines: Mutex::new(None), passes: Condvar::new() };

impl Stuck {
    fn set(&self, lines: Option<usize>) {
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = lines;
        self.passes.notify_all();
    }

    fn stuck(&self) -> usize {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(0)
    }
}

impl log::Log for Stuck {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &log::Record<'_>) {
        // A program's own threads are not blocked.
        if !thread::current().name().is_some_and(|name| name.starts_with("leasehold")) {
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = &mut *lines {
            *lines += 1;
        }
        let _held_up = self.passes.wait_timeout_while(lines, STUCK, |lines| lines.is_some());
    }

    fn flush(&self) {}
}

#[test]
fn f91_a_logger_blocks_at_a_connection_that_ends() {
    alone(|| {
        two_workers().block_on(async {
            log::set_logger(&LOG).expect("it is the only one");
            log::set_max_level(log::LevelFilter::Warn);
            let (server, lag) = (Server::start(), Lag::start());
            let leases = Client::builder()
                .url(server.url())
                .ttl(TTL)
                .command_timeout(COMMAND)
                .build()
                .await
                .expect("it is there");
            let mut held = Vec::new();
            for name in ["one", "two"] {
                held.push(leases.lock(name).acquire().await.expect("it is free"));
            }
            LOG.set(Some(0));
            let mut wire = server.wire();
            wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            wire.must(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]);
            eventually_async(HANGS, "a line blocks its thread", || LOG.stuck() > 0).await;
            let stuck = Instant::now();

            for lease in &held {
                let renewed = || lease.remaining() + stuck.elapsed() > TTL + TTL / 2;
                eventually_async(2 * TTL, "it is renewed while the line blocks", renewed).await;
                lease.check().expect("it is renewed");
                assert!(wire.exists(lease.name()));
            }

            server.stop();
            let signals: Vec<_> = held.iter().map(|lease| stamped(lease.lost())).collect();
            for signal in signals {
                let signal = within(HANGS, "its signal", signal).await.expect("it does not panic");
                assert_eq!(signal.output.reason(), LossReason::Expired);
                let since = signal.output.since().elapsed().expect("it is over");
                let late = since.saturating_sub(signal.woken.elapsed());
                assert!(late <= SIGNAL + lag.worst(), "{late:?} late, the machine lagged {:?}", lag.worst());
                seen::took("lost() after the deadline", late, SIGNAL, &lag);
            }
            LOG.set(None);
            server.cont();
        });
    });
}
