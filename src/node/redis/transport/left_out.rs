//! Commands other than scripts, which we can do without. A proxy may end the connection on a command that it does not
//! know. Such a command is left out for a while, and counts as refused.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::time::Time;
use parking_lot::Mutex;

use crate::node::redis::wire::{Error as WireError, ErrorKind as WireKind, is_answer};

/// How many connections in a row must end on a command before it is left out: one or two may have ended by chance.
const ENOUGH: u32 = 3;

/// A left-out command is tried again after this long.
const FOR: Duration = Duration::from_secs(60);

/// The beginning of the error in place of an answer. It reads like a server's answer, so it counts as one.
const LEFT_OUT: &str = "ERR left out for a while is";

/// Whether the command was left out. Its next try may succeed.
pub(crate) fn is_left_out(error: &WireError) -> bool {
    error.details().starts_with(LEFT_OUT)
}

/// The commands on which connections to one server have ended: how often, and when the last time.
#[derive(Debug, Default)]
pub(crate) struct LeftOut(Mutex<BTreeMap<&'static str, (u32, Time)>>);

impl LeftOut {
    /// Fails, in place of an answer, if the command is left out now.
    pub(crate) fn check(&self, command: &'static str, now: Time) -> Result<(), WireError> {
        let ended = self.0.lock().get(command).copied();
        if ended.is_none_or(|(times, last)| times < ENOUGH || now.since(last) >= FOR) {
            return Ok(());
        }
        Err(WireError::new(
            WireKind::Other,
            format!("{LEFT_OUT} {command}, on which connections have ended: is a proxy there that does not know it?"),
        ))
    }

    /// Records the outcome of a command.
    pub(crate) fn note<T>(&self, command: &'static str, outcome: &Result<T, WireError>, now: Time) {
        match outcome {
            Err(error) if matches!(error.kind, WireKind::Timeout | WireKind::Unsent) => {}
            Err(error) if !is_answer(error) => {
                let mut all = self.0.lock();
                let times = all.get(command).map_or(1, |(times, _)| times.saturating_add(1));
                all.insert(command, (times, now));
            }
            _ => {
                self.0.lock().remove(command);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended() -> Result<(), WireError> {
        Err(WireError::new(WireKind::Other, "Connection reset by peer"))
    }

    #[test]
    fn what_has_ended_three_connections_in_a_row_is_left_out_for_a_minute() {
        let (left_out, now) = (LeftOut::default(), Time::ZERO + FOR);
        let unheard =
            [WireError::new(WireKind::Timeout, "late"), WireError::new(WireKind::Other, "ERR unknown command")];
        left_out.note("INFO", &ended(), now);
        for error in unheard {
            left_out.note("INFO", &Err::<(), _>(error), now);
        }
        left_out.note("INFO", &ended(), now);
        left_out.note("INFO", &ended(), now);
        assert!(left_out.check("INFO", now).is_ok(), "an answer was between");
        left_out.note("INFO", &ended(), now);
        let refused = left_out.check("INFO", now).unwrap_err();
        assert!(is_answer(&refused) && is_left_out(&refused) && refused.details().contains("INFO"), "{refused:?}");
        assert!(left_out.check("PING", now).is_ok() && left_out.check("INFO", now + FOR).is_ok());
        // Once is enough from then on.
        left_out.note("INFO", &ended(), now + FOR);
        assert!(left_out.check("INFO", now + FOR).is_err());
    }
}
