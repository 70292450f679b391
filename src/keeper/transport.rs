//! The threads on which the keeper's connections live.

use std::{io, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Handle},
    sync::mpsc,
};

use super::Host;
use crate::foreign;

/// The threads on which connections of the keeper live. The transport logs on them, and a logger is foreign code: if it
/// blocks one, the keeper's own thread continues, and makes its connections on another.
#[derive(Debug, Default)]
pub(super) struct Transport {
    threads: Mutex<Vec<Handle>>,
}

#[cfg(test)]
impl Transport {
    pub(super) fn len(&self) -> usize {
        self.threads.lock().len()
    }
}

/// The most threads of the transport; that many may be blocked.
const MOST_THREADS: usize = 8;

/// The time after which a thread that does nothing counts as blocked.
const ANSWERS_WITHIN: Duration = Duration::from_millis(250);

impl Host {
    /// The runtime for connections of the keeper, on a thread of its own that is not blocked.
    pub(crate) async fn transport(&self) -> io::Result<Handle> {
        let threads = self.transport.threads.lock().clone();
        let (tell, mut answers) = mpsc::unbounded_channel();
        for thread in &threads {
            let (tell, answering) = (tell.clone(), thread.clone());
            thread.spawn(async move {
                let _too_late = tell.send(answering);
            });
        }
        drop(tell);
        if !threads.is_empty() {
            tokio::select! {
                biased;
                Some(answering) = answers.recv() => return Ok(answering),
                () = self.sleep(ANSWERS_WITHIN) => {}
            }
        }
        let mut now = self.transport.threads.lock();
        // Another call has started one meanwhile, or too many are blocked.
        if let Some(last) = now.last().filter(|_| now.len() > threads.len() || now.len() >= MOST_THREADS) {
            return Ok(last.clone());
        }
        let runtime = Builder::new_current_thread().enable_all().on_thread_unpark(foreign::mute).build()?;
        let handle = runtime.handle().clone();
        let id = handle.id();
        // The connections of a runtime that fails end with it. The next one is made on another thread.
        self.run_on_thread("leasehold-transport", runtime, move |host| {
            host.transport.threads.lock().retain(|thread| thread.id() != id);
        })?;
        now.push(handle.clone());
        Ok(handle)
    }
}
