//! Whether the answers of a link count, where its server is a node of a quorum.

use std::future::Future;

use tokio::sync::OnceCell;

use super::failure::{has_another_seat, unidentified};
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
    /// The run of the link's server, or why it is not known, once the server has answered. A link never changes its
    /// server.
    run_id: OnceCell<Result<Box<str>, Box<str>>>,
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
        let run_id = if let Some(run_id) = self.run_id.get() {
            run_id
        } else {
            // Boxed: it is large, and needed once for each link.
            let asking = self.run_id.get_or_try_init(async || read(again().await).ok_or("it did not answer"));
            Box::pin(asking).await.map_err(unidentified)?
        };
        let run_id = run_id.as_deref().map_err(|why| unidentified(why))?;
        self.seat.check(run_id).map_err(|other| has_another_seat(&other))
    }

    /// Notes an answer to `INFO`.
    pub(super) fn note(&self, answer: Answer) {
        let Some(run_id) = read(answer) else { return };
        if let Ok(run_id) = &run_id {
            self.seat.show(run_id);
        }
        let _known_before = self.run_id.set(run_id);
    }
}

/// The run, or why it is not known, if there is an answer.
fn read(answer: Answer) -> Option<Result<Box<str>, Box<str>>> {
    match answer {
        Ok(info) => {
            let identity = info::identity(&info.as_string().unwrap_or_default());
            Some(identity.run_id.ok_or_else(|| "it names no run_id".into()))
        }
        Err(error) if is_answer(&error) => Some(Err(error.details().into())),
        Err(_) => None,
    }
}
