//! Answers that nobody waits for any more: of the nodes that were slower than the majority.
//!
//! Each has to be heard to its end, but not at once: waking the keeper for every one of them would cost more than the
//! acquires do. So they are gathered for a moment, and then heard on the keeper.

use std::{future::Future, mem::take, pin::Pin, sync::Arc, time::Duration};

use crate::{keeper::Host, sync::Mutex};

const GATHER: Duration = Duration::from_millis(20);

type Straggler = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Those that are still to be heard.
pub(super) struct Stragglers {
    host: Host,
    gathered: Mutex<Vec<Straggler>>,
}

impl Stragglers {
    pub(super) fn new(host: Host) -> Arc<Self> {
        Arc::new(Self { host, gathered: Mutex::default() })
    }

    /// Hears this one to its end. It must be bounded.
    pub(super) fn hear(self: &Arc<Self>, straggler: impl Future<Output = ()> + Send + 'static) {
        let mut gathered = self.gathered.lock();
        gathered.push(Box::pin(straggler));
        if gathered.len() > 1 {
            return;
        }
        drop(gathered);
        let stragglers = self.clone();
        self.host.spawn(async move {
            stragglers.host.sleep(GATHER).await;
            let gathered = take(&mut *stragglers.gathered.lock());
            for straggler in gathered {
                stragglers.host.spawn(straggler);
            }
        });
    }
}

impl std::fmt::Debug for Stragglers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stragglers").field("gathered", &self.gathered.lock().len()).finish_non_exhaustive()
    }
}
