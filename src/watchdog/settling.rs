//! Tells tests that move the clock when the watchdog has done what was due.

use std::future::Future;

use leasehold_protocol::time::Time;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::Watchdog;

/// The progress of the watchdog.
#[derive(Debug)]
pub(super) struct Settling {
    /// The time of its last check.
    looked: watch::Sender<Time>,
    renewals: TaskTracker,
}

impl Default for Settling {
    fn default() -> Self {
        let renewals = TaskTracker::new();
        // Closed already, so that waiting for it to be empty does not wait for a close.
        renewals.close();
        Self { looked: watch::Sender::new(Time::ZERO), renewals }
    }
}

impl Settling {
    pub(super) fn has_looked(&self, now: Time) {
        self.looked.send_replace(now);
    }

    pub(super) fn track<F: Future>(&self, renewing: F) -> impl Future<Output = F::Output> + use<F> {
        self.renewals.track_future(renewing)
    }
}

impl Watchdog {
    /// Completes when everything due by now has been checked and, unless the nodes are silent, answered.
    pub(crate) async fn settled(&self, is_silent: bool) {
        let (now, mut looked) = (self.now(), self.settling.looked.subscribe());
        self.wake.notify_one();
        let settled = async {
            drop(looked.wait_for(|&looked| looked >= now).await);
            if !is_silent {
                self.settling.renewals.wait().await;
            }
        };
        tokio::select! {
            () = settled => {}
            // The keeper has ended, so nothing is checked any more.
            () = self.host.over().cancelled() => {}
        }
    }

    /// When the next lease is due.
    pub(crate) fn next_tick(&self) -> Time {
        self.holds().iter().filter_map(|hold| hold.next_tick()).min().unwrap_or(Time::NEVER)
    }
}
