//! A thread for futures of the program that the library asks for something.

use std::{future::Future, io, pin::Pin, sync::Arc, thread};

use tokio::{runtime::Builder, sync::mpsc};

use crate::sync::catching_panics;

/// Makes a future, which the worker then polls.
pub(crate) type Work = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// A thread on which the program's futures run side by side. Each may block the thread, hang or panic, which affects
/// only the other futures there. The thread ends with this handle, and then drops what still runs.
pub(crate) struct Worker {
    work: mpsc::UnboundedSender<Work>,
}

impl Worker {
    /// Starts the worker. `running` is shared with its thread for as long as that lives.
    pub(crate) fn start(running: &Arc<()>) -> io::Result<Self> {
        let (work, mut to_do) = mpsc::unbounded_channel::<Work>();
        let life = running.clone();
        thread::Builder::new().name("leasehold-asks".into()).spawn(move || {
            let _ended = catching_panics(move || {
                // Made here: a runtime that is dropped inside another one panics.
                let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
                runtime.block_on(async move {
                    while let Some(work) = to_do.recv().await {
                        if let Some(future) = catching_panics(work) {
                            #[allow(clippy::disallowed_methods, reason = "on this runtime, which is for nothing else")]
                            drop(tokio::task::spawn(future));
                        }
                    }
                });
            });
            drop(life);
        })?;
        Ok(Self { work })
    }

    /// Whether its thread has ended, so that it takes no more work.
    pub(crate) fn has_ended(&self) -> bool {
        self.work.is_closed()
    }

    /// Runs this work. If the thread has ended, the work is dropped.
    pub(crate) fn run(&self, work: Work) {
        let _ended = self.work.send(work);
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::mpsc as std_mpsc, time::Duration};

    use super::*;

    const HANGS: Duration = Duration::from_secs(20);

    #[test]
    fn what_hangs_or_panics_there_holds_up_no_other_and_ends_with_the_handle() {
        let running = Arc::new(());
        let worker = Worker::start(&running).unwrap();
        let (said, heard) = std_mpsc::channel();
        worker.run(Box::new(|| panic!("before there is a future, as it is meant to")));
        worker.run(Box::new(|| Box::pin(async { panic!("a future, as it is meant to") })));
        let kept = said.clone();
        worker.run(Box::new(move || {
            Box::pin(async move {
                pending::<()>().await;
                drop(kept);
            })
        }));
        worker.run(Box::new(move || Box::pin(async move { said.send(()).unwrap() })));
        heard.recv_timeout(HANGS).unwrap();
        drop(worker);
        assert!(heard.recv_timeout(HANGS).is_err(), "what hangs is dropped");
    }
}
