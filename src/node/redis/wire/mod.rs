//! One connection to one server, with what is sent on it, over fred. fred is named in this module and nowhere else.
//!
//! A [`Config`] says to what to connect, and as whom. A [`Wire`] sends commands, alone or in order, and ends the connection.
//! A [`Running`] hears of pushes and of the end. An [`Error`] says whether a request was never sent.

mod client;
mod error;
mod tls;
mod weighed;

#[cfg(test)]
pub(super) use fred::types::Map;
pub(super) use fred::{bytes::Bytes, types::Value, util::sha1_hash as sha1};

pub(super) use self::{
    client::{Answer, Command, Config, Running, Wire, connect},
    error::{CAUGHT, Error, ErrorKind, WRAPPED, is_answer, is_closed, own_words, reply_word, words},
};
