//! The span of a lease, in the trace of whoever acquired it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing::{Span, dispatcher};

use super::off_the_keeper;

/// A span that threads of ours may keep: cloning and dropping it there runs no foreign code.
#[derive(Clone)]
pub(crate) struct LeaseSpan(Arc<Owned>);

struct Owned {
    /// Present until this is dropped.
    span: Option<Span>,
    has_outcome: AtomicBool,
}

impl LeaseSpan {
    /// A span of a lease; `None` if no subscriber wants it.
    pub(crate) fn new(span: Span) -> Option<Self> {
        let is_wanted = !span.is_disabled();
        is_wanted.then(|| Self(Arc::new(Owned { span: Some(span), has_outcome: AtomicBool::new(false) })))
    }

    /// Runs this in the span, under the span's subscriber: this thread's may be another. Runs foreign code.
    pub(crate) fn enter(&self, step: impl FnOnce()) {
        let Some(span) = &self.0.span else { return step() };
        let dispatch = span.with_subscriber(|(_, dispatch)| dispatch.clone());
        match dispatch {
            Some(dispatch) => dispatcher::with_default(&dispatch, || span.in_scope(step)),
            None => step(),
        }
    }

    /// Records how the lease ended; the first record counts. Runs foreign code.
    pub(crate) fn ends(&self, outcome: &'static str) {
        if self.0.has_outcome.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        off_the_keeper(move || {
            if let Some(span) = &this.0.span {
                span.record("outcome", outcome);
            }
        });
    }

    /// The span, for work in it. Runs foreign code.
    pub(crate) fn span(&self) -> Span {
        self.0.span.clone().unwrap_or_else(Span::none)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let span = self.span.take();
        off_the_keeper(move || drop(span));
    }
}

impl fmt::Debug for LeaseSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseSpan").finish_non_exhaustive()
    }
}
