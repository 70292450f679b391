//! Whether the answers of a link count, where its server is a node of a quorum.

use std::future::Future;

use tokio::sync::OnceCell;

use super::failure::{has_another_seat, is_refusal, unidentified};
use crate::node::{
    Seat,
    redis::{
        info,
        wire::{Answer, Command, Error, is_answer},
    },
};

/// The link of a node that has a seat.
pub(super) struct Seated {
    seat: Seat,
    /// The run of the link's server, once that is known; `None` inside if the server does not report it. A link never
    /// changes its server.
    run_id: OnceCell<Option<Box<str>>>,
}

impl Seated {
    pub(super) fn new(seat: Seat) -> Self {
        Self { seat, run_id: OnceCell::new() }
    }

    /// The question which run it is.
    pub(super) fn question() -> Command {
        ("INFO", vec!["server".into()])
    }

    /// Whether an answer of this link counts: its server must have shown which run it is, and that run must have no
    /// other seat. `again` asks the question, if it has no answer yet.
    pub(super) async fn check<A: Future<Output = Answer>>(&self, again: impl FnOnce() -> A) -> Result<(), Error> {
        let run_id = match self.run_id.get() {
            Some(run_id) => run_id,
            // Boxed: it is large, and needed once for each link.
            None => {
                Box::pin(self.run_id.get_or_try_init(async || read(again().await).ok_or_else(unidentified))).await?
            }
        };
        let Some(run_id) = run_id else { return Ok(()) };
        self.seat.check(run_id).map_err(|other| has_another_seat(&other))
    }

    /// Notes an answer to `INFO`.
    pub(super) fn note(&self, answer: Answer) {
        if let Some(run_id) = read(answer) {
            let _known_before = self.run_id.set(run_id);
        }
    }
}

/// The run, if the answer is final; `None` inside if the server keeps it to itself.
fn read(answer: Answer) -> Option<Option<Box<str>>> {
    match answer {
        Ok(info) => Some(info::identity(&info.as_string().unwrap_or_default()).run_id),
        Err(error) if is_answer(&error) && is_refusal(&error) => Some(None),
        Err(_) => None,
    }
}
