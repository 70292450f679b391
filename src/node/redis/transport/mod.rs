//! Connections to one server over fred: links that end and are made again, what their errors mean, and where they lead.

mod connection;
mod failure;
mod kind;
mod left_out;
pub(super) mod link;
mod links;
mod opening;
mod tls;
mod url;

#[cfg(test)]
pub(crate) use self::{connection::setting, failure::classify};
pub(crate) use self::{
    connection::{Connection, Way, left},
    failure::{is_no_primary, is_no_right_to_a_key, is_refusal, not_extended, words},
    left_out::is_left_out,
    link::Limits,
    links::NewLinks,
    opening::{Side, unreachable},
    url::Target,
};
