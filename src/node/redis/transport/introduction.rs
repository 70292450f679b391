//! Names connections after their owner, so that `CLIENT LIST` shows an operator whose they are.

use std::time::Duration;

use super::{endpoint::Endpoint, left_out::LeftOut};
use crate::node::redis::wire::{Error as WireError, Value, Wire, is_answer};

/// The name under which the introduction is [left out](super::left_out).
pub(crate) const INTRODUCTION: &str = "CLIENT SETNAME";

/// The purpose of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role {
    Main,
    Keeper,
    Notifications,
    /// It asks which server the address leads to.
    Question,
}

/// Names the connection, unless connections to that server end on it. A server that does not know the commands, or a
/// user without the right to them, does no harm: only a connection without an answer is an error.
pub(crate) async fn introduce(
    wire: &Wire,
    endpoint: &Endpoint,
    role: Role,
    left_out: &LeftOut,
) -> Result<(), WireError> {
    if left_out.check(INTRODUCTION, endpoint.now()).is_err() {
        return Ok(());
    }
    let said = say(wire, &name(&endpoint.names.label, role), endpoint.limits.connect).await;
    left_out.note(INTRODUCTION, &said, endpoint.now());
    said
}

async fn say(wire: &Wire, name: &str, limit: Duration) -> Result<(), WireError> {
    let words: [&[&str]; 3] =
        [&["SETNAME", name], &["SETINFO", "LIB-NAME", "leasehold"], &["SETINFO", "LIB-VER", env!("CARGO_PKG_VERSION")]];
    let commands = words.map(|words| ("CLIENT", words.iter().map(|&word| word.into()).collect::<Vec<Value>>()));
    let answers = wire.ask_each(commands, limit).await.unwrap_or_else(|error| vec![Err(error)]);
    answers.into_iter().filter_map(Result::err).find(|error| !is_answer(error)).map_or(Ok(()), Err)
}

/// A connection's name, which has no spaces, and only ASCII.
fn name(label: &str, role: Role) -> String {
    let role = match role {
        Role::Main => "main",
        Role::Keeper => "keeper",
        Role::Notifications => "notifications",
        Role::Question => "question",
    };
    let label: String = label.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
    format!("leasehold:{label}:{role}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_servers_take() {
        assert_eq!(name("worker-1", Role::Main), "leasehold:worker-1:main");
        assert_eq!(name("Büro 7\u{7f}", Role::Keeper), "leasehold:B_ro_7_:keeper");
    }
}
