//! The kind of a server: each new link asks for it before the first request counts.
//!
//! # Invariants
//!
//! 1. The question is the first request that is handed over on a link, so the server answers it first.
//! 2. Each waiting caller gets an answer: if the asking task ends without one, the kind is [`ServerKind::Unknown`].

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
};

use tokio::sync::SetOnce;

use super::failure::{CLUSTER, NO_CLUSTER, NO_SENTINEL, SENTINEL, wrong_server};
use crate::node::redis::wire::{Error as WireError, Value};

/// The kind of server that the url names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredKind {
    /// A server that keeps all keys.
    Alone,
    /// A server that keeps all keys, announced by others.
    Named,
    /// A server of a cluster.
    InCluster,
    /// A server that watches others.
    Sentinel,
}

/// The kind of a server, from its answer to `HELLO`: a command that every user may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// Takes writes.
    Primary,
    /// Takes no writes, until it is promoted.
    Replica,
    /// Keeps some of the keys, but the url says that it keeps all.
    ClusterMember,
    /// Not part of a cluster, but the url says that it is.
    NoClusterMember,
    /// Keeps no keys.
    Sentinel,
    /// Not a Sentinel, but the url says that it is.
    NoSentinel,
    /// Not reported, or hidden by a proxy: the server's answers will show it.
    Unknown,
}

/// The kind of a link's server, once it is known.
#[derive(Debug, Default)]
pub(crate) struct Kind(SetOnce<ServerKind>);

impl Kind {
    /// Asks, without waiting for the answer. `is_wrong` is called if the url may not name such a server.
    pub(crate) async fn ask(
        answer: impl Future<Output = ServerKind> + Send + 'static,
        is_wrong: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        let kind = Arc::new(Self::default());
        let (mut answer, asking) = (Box::pin(answer), Asking(kind.clone()));
        // The first poll hands it over (invariant 1).
        let early = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        let heard = async move {
            let found = if let Poll::Ready(found) = early { found } else { answer.await };
            asking.note(found);
            if found.check().is_err() {
                is_wrong();
            }
        };
        #[allow(clippy::disallowed_methods, reason = "like the tasks of the wire it belongs to this runtime")]
        drop(tokio::task::spawn(heard));
        kind
    }

    /// A kind that is known already.
    pub(crate) fn known(found: ServerKind) -> Arc<Self> {
        Arc::new(Self(SetOnce::from(found)))
    }

    /// Completes when the kind is known.
    pub(crate) async fn get(&self) -> ServerKind {
        *self.0.wait().await
    }

    /// Why the url may not name this server, if that is known.
    pub(crate) fn wrong(&self) -> Option<WireError> {
        self.0.get()?.check().err()
    }
}

/// A question under way (invariant 2).
struct Asking(Arc<Kind>);

impl Asking {
    fn note(&self, kind: ServerKind) {
        let _first_stays = self.0.0.set(kind);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.note(ServerKind::Unknown);
    }
}

impl ServerKind {
    /// Reads the kind from names and values in turn.
    pub(crate) fn read(answer: &Value, wanted: RequiredKind) -> Self {
        let Value::Array(parts) = answer else { return Self::Unknown };
        let named = |name: &str| {
            let mut pairs = parts.chunks_exact(2).filter_map(<[Value]>::first_chunk::<2>);
            pairs.find_map(|[key, value]| (key.as_str()? == name).then(|| value.as_string())?)
        };
        match (named("mode").as_deref(), named("role").as_deref()) {
            // A Sentinel has no other role.
            (Some("sentinel"), _) if wanted == RequiredKind::Sentinel => Self::Unknown,
            (Some("sentinel"), _) => Self::Sentinel,
            (Some("cluster" | "standalone"), _) if wanted == RequiredKind::Sentinel => Self::NoSentinel,
            (Some("cluster"), _) if matches!(wanted, RequiredKind::Alone | RequiredKind::Named) => Self::ClusterMember,
            (Some("standalone"), _) if wanted == RequiredKind::InCluster => Self::NoClusterMember,
            (_, Some("replica" | "slave")) => Self::Replica,
            (_, Some("master" | "primary")) => Self::Primary,
            _ => Self::Unknown,
        }
    }

    /// Whether the url may name such a server at all. A replica may be promoted.
    pub(crate) fn check(self) -> Result<(), WireError> {
        match self {
            Self::ClusterMember => Err(wrong_server(CLUSTER)),
            Self::NoClusterMember => Err(wrong_server(NO_CLUSTER)),
            Self::Sentinel => Err(wrong_server(SENTINEL)),
            Self::NoSentinel => Err(wrong_server(NO_SENTINEL)),
            Self::Primary | Self::Replica | Self::Unknown => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&str]) -> ServerKind {
        ServerKind::read(&Value::Array(parts.iter().map(|&part| part.into()).collect()), RequiredKind::Alone)
    }

    #[test]
    fn mode_and_role_tell_it() {
        let server = ["server", "redis", "version", "7.0.15"];
        let with = |rest: &[&str]| of(&[&server, rest].concat());
        for (rest, kind) in [
            (&["mode", "standalone", "role", "master"][..], ServerKind::Primary),
            (&["mode", "standalone", "role", "replica"], ServerKind::Replica),
            (&["mode", "cluster", "role", "replica"], ServerKind::ClusterMember),
            (&["mode", "sentinel"], ServerKind::Sentinel),
            (&["mode", "role"], ServerKind::Unknown),
            (&[], ServerKind::Unknown),
        ] {
            assert_eq!(with(rest), kind, "{rest:?}");
        }
        assert_eq!(ServerKind::read(&Value::Null, RequiredKind::Alone), ServerKind::Unknown);
        let number = Value::Array(vec!["role".into(), 7_i64.into(), "mode".into()]);
        assert_eq!(ServerKind::read(&number, RequiredKind::Alone), ServerKind::Unknown);
        for (mode, role, wanted, kind) in [
            ("cluster", "master", RequiredKind::InCluster, ServerKind::Primary),
            ("cluster", "replica", RequiredKind::InCluster, ServerKind::Replica),
            ("standalone", "master", RequiredKind::InCluster, ServerKind::NoClusterMember),
            ("sentinel", "master", RequiredKind::InCluster, ServerKind::Sentinel),
            ("sentinel", "sentinel", RequiredKind::Sentinel, ServerKind::Unknown),
            ("standalone", "master", RequiredKind::Sentinel, ServerKind::NoSentinel),
            ("standalone", "replica", RequiredKind::Named, ServerKind::Replica),
            ("cluster", "master", RequiredKind::Named, ServerKind::ClusterMember),
            ("cluster", "replica", RequiredKind::Sentinel, ServerKind::NoSentinel),
        ] {
            let parts = ["mode", mode, "role", role].map(Into::into).to_vec();
            assert_eq!(ServerKind::read(&Value::Array(parts), wanted), kind, "{mode} {role}");
        }
    }
}
