//! The replication history that the writes of one link belong to, where replicas must confirm them.
//!
//! A server that was a replica for a moment keeps its clients' connections, and may have lost what they wrote. A later
//! `WAIT` counts the replicas of its new history all the same. So a link asks for the history before its first request,
//! and again behind each `WAIT`.

use std::{future::Future, sync::OnceLock};

use crate::node::redis::{
    info,
    wire::{Answer, Command, Value, is_answer},
};

/// Why nobody knows.
const UNHEARD: &str = "did not say whether it was a replica meanwhile (INFO replication)";

const ANOTHER: &str = "has begun another replication history since, so it may have been a replica";

/// The history when the link was made, once heard of; `None` inside if the server does not report it.
#[derive(Debug, Default)]
pub(super) struct History(OnceLock<Option<String>>);

impl History {
    /// The question. It is never left out: without its answer, no write of the link counts.
    pub(super) fn question() -> Command {
        ("INFO", vec!["replication".into()])
    }

    /// Notes the answer to the link's first question.
    pub(super) fn note(&self, answer: Answer) {
        let history = match answer {
            Ok(info) => read(&info),
            Err(error) if is_answer(&error) && is_unsupported(error.details()) => None,
            Err(_) => return,
        };
        let _first = self.0.set(history);
    }

    /// Whether the history goes on, by the answer to `ask` if it is known; if not, why that is not certain.
    pub(super) async fn goes_on(&self, ask: impl Future<Output = Answer>) -> Result<(), &'static str> {
        match self.0.get() {
            None => Err(UNHEARD),
            Some(None) => Ok(()),
            Some(known) => match ask.await {
                Ok(info) if read(&info) == *known => Ok(()),
                Ok(_) => Err(ANOTHER),
                Err(_) => Err(UNHEARD),
            },
        }
    }
}

/// Whether the server never answers the question, as one that is only busy or still loads its data will.
fn is_unsupported(details: &str) -> bool {
    details.starts_with("NOPERM") || details.starts_with("ERR unknown command")
}

fn read(info: &Value) -> Option<String> {
    info::history(&info.as_str()?).map(ToOwned::to_owned)
}
