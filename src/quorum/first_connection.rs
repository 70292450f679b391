//! The first connection to the nodes, which the first use of a `Client` makes.
//!
//! # Invariants
//!
//! 1. One try is under way at a time, on the keeper's runtime, so a caller that gives up, or is not polled, holds up no
//!    other. All callers that wait for it share its outcome, and the next caller after a failure begins another.
//! 2. A try ends with `close`, and leaves no connection then.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::watch};
use tokio_util::sync::CancellationToken;

use super::{ConnectConfig, Quorum};
use crate::{error::Error, node::NodeAddress};

/// The outcome of a try, once there is one.
type Outcome = watch::Receiver<Option<Result<(), Error>>>;

/// The nodes, and the try to connect to them.
#[derive(Debug)]
pub(crate) struct FirstConnection {
    quorum: Arc<Quorum>,
    places: Vec<NodeAddress>,
    config: ConnectConfig,
    closed: CancellationToken,
    is_made: AtomicBool,
    last: Mutex<Option<Outcome>>,
}

impl FirstConnection {
    pub(crate) fn new(
        quorum: Arc<Quorum>,
        places: Vec<NodeAddress>,
        config: ConnectConfig,
        closed: CancellationToken,
    ) -> Arc<Self> {
        let (is_made, last) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { quorum, places, config, closed, is_made, last })
    }

    pub(crate) fn is_made(&self) -> bool {
        self.is_made.load(Ordering::Acquire)
    }

    /// Makes the first connection, unless that is done.
    pub(crate) async fn make(self: &Arc<Self>) -> Result<(), Error> {
        if self.is_made() {
            return Ok(());
        }
        self.under_way().await
    }

    /// Completes when no try is under way.
    pub(crate) async fn settled(&self) {
        let last = self.last.lock().clone();
        if let Some(last) = last {
            let _outcome = outcome(last).await;
        }
    }

    fn under_way(self: &Arc<Self>) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let mut last = self.last.lock();
        let under_way = last.as_ref().filter(|outcome| outcome.borrow().is_none() && outcome.has_changed().is_ok());
        let joined = under_way.cloned().unwrap_or_else(|| self.begin());
        *last = Some(joined.clone());
        outcome(joined)
    }

    /// Begins a try, with the caller's runtime for the connections that live there.
    fn begin(self: &Arc<Self>) -> Outcome {
        let (tell, outcome) = watch::channel(None);
        let (this, home) = (self.clone(), Handle::try_current().ok());
        self.config.host.spawn_until_stopped(async move {
            let config = ConnectConfig { home, ..this.config.clone() };
            let made = tokio::select! {
                biased;
                () = this.closed.cancelled() => Err(Error::Closed),
                made = this.quorum.connect(&this.places, &config) => made,
            };
            this.is_made.store(made.is_ok(), Ordering::Release);
            tell.send_replace(Some(made));
        });
        outcome
    }
}

async fn outcome(mut outcome: Outcome) -> Result<(), Error> {
    match outcome.wait_for(Option::is_some).await {
        Ok(made) => made.clone().unwrap_or(Ok(())),
        // The keeper has ended.
        Err(_) => Err(Error::keeper_ended()),
    }
}
