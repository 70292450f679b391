//! One connection to one server, and the requests sent on it, over fred. No other module names fred.
//!
//! A [`Config`] says what to connect to, and as which user. A [`Wire`] sends commands, alone or in order, and ends the
//! connection. A [`Running`] receives pushes and the end of the connection. An [`Error`] says whether a request was
//! never sent.

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
