//! One connection to one server, with what is sent on it, over fred. fred is named in this module and nowhere else.
//!
//! What stands above says to what it connects and as whom ([`Config`]), sends commands alone or in order ([`Client`]), hears
//! what is pushed ([`Pushes`]) and that a connection is over ([`Running`]), and ends it ([`Wire`]). An [`Error`] says what is
//! certain: whether the request was never sent.

mod client;
mod config;
mod error;
mod tls;
mod weighed;

#[cfg(test)]
pub(super) use fred::types::Map;
pub(super) use fred::{bytes::Bytes, types::Value, util::sha1_hash as sha1};

pub(super) use self::{
    client::{Answer, Client, Command, Pushes, Running, Wire, connect, receive},
    config::Config,
    error::{CAUGHT, Error, ErrorKind, WRAPPED, is_answer, is_closed, own_words, reply_word, words},
};
