//! Connections to one server: links that end and are replaced, what their errors mean, and which server they reach.

mod address_map;
mod connection;
mod endpoint;
mod failure;
mod history;
mod introduction;
mod kind;
mod left_out;
mod link;
mod links;
mod login;
mod opening;
pub(super) mod question;
mod seated;
mod target;
mod trust;
mod url;

pub(crate) use self::{
    address_map::AddressMap,
    connection::{Connection, Delivery},
    endpoint::{Endpoint, Limits},
    failure::{is_no_primary, is_no_right_to_a_key, is_refusal, not_extended},
    introduction::{Role, introduce},
    kind::RequiredKind,
    left_out::{LeftOut, is_left_out},
    link::{Before, Link},
    links::NewLinks,
    login::{Provider, connected},
    opening::{Side, advice_on_tls, cannot_connect, mistake_of, unreachable},
    target::{Address, CertificateNames, Seeds, Target},
};
#[cfg(test)]
pub(crate) use self::{connection::setting, endpoint::config, failure::classify};
