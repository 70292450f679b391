//! Telling the program of a loss. Nothing waits for one but a waker: the thread to tell it on is started when it is there.

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

/// A loss to come, and whom to tell.
type Waiting = (Pin<Box<dyn Future<Output = Lost> + Send>>, Box<dyn FnOnce(Lost) + Send>);

/// The future is polled where it is woken, by the keeper too: nothing of it is foreign.
struct Telling {
    waiting: Mutex<Option<Waiting>>,
    /// It was woken since it was last polled; perhaps by that poll itself.
    woken: AtomicBool,
}

impl Wake for Telling {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        while self.woken.load(Ordering::SeqCst) {
            // The thread that polls it does so again afterwards.
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

/// Has a step of the program's taken on a thread of its own; here, if there can be none.
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
