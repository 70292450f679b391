//! Notifies the program of a loss. Only a waker waits for a loss: the thread that reports it is started when it has
//! occurred.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
};

use leasehold_protocol::loss::LossReason;
use parking_lot::Mutex;

use crate::{lost::Lost, sync::catching_panics};

/// Calls `tell` with the loss, on a thread of its own, because it may block. A release is not a loss.
pub(crate) fn on_lost(lost: impl Future<Output = Lost> + Send + 'static, tell: impl FnOnce(Lost) + Send + 'static) {
    let waiting: Waiting = (Box::pin(lost), Box::new(tell));
    let telling = Arc::new(Telling { waiting: Mutex::new(Some(waiting)), woken: AtomicBool::new(false) });
    telling.wake();
}

/// A future loss, and the callback that reports it.
type Waiting = (Pin<Box<dyn Future<Output = Lost> + Send>>, Box<dyn FnOnce(Lost) + Send>);

/// Polls the future wherever it is woken, on the keeper too, because none of it is foreign code.
struct Telling {
    waiting: Mutex<Option<Waiting>>,
    /// Whether it was woken since it was last polled, perhaps by that poll itself.
    woken: AtomicBool,
}

impl Wake for Telling {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        while self.woken.load(Ordering::SeqCst) {
            // The thread that is polling it polls again afterwards.
            let Some(mut waiting) = self.waiting.try_lock() else { return };
            self.woken.store(false, Ordering::SeqCst);
            let Some((lost, _)) = &mut *waiting else { return };
            let waker = Waker::from(self.clone());
            let Poll::Ready(lost) = lost.as_mut().poll(&mut Context::from_waker(&waker)) else { continue };
            let told = waiting.take();
            drop(waiting);
            let is_loss = !matches!(lost.reason(), LossReason::Released | LossReason::HandedOver);
            if let Some((_, tell)) = told.filter(|_| is_loss) {
                on_its_own_thread(move || tell(lost));
            }
            return;
        }
    }
}

/// Runs a step of the program on a thread of its own; on this thread, if none can be started.
fn on_its_own_thread(step: impl FnOnce() + Send + 'static) {
    let step = Arc::new(Mutex::new(Some(step)));
    let taken = move || {
        let step = step.lock().take();
        let _taken = catching_panics(move || step.map(|step| step()));
    };
    if thread::Builder::new().name("leasehold-tells".into()).spawn(taken.clone()).is_err() {
        taken();
    }
}
