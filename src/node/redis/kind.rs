//! What a server is: each new link asks before the first request counts.

use fred::{clients::Client, error::Error as FredError, types::Value};

use super::{
    failure::{is_answer, wrong_server},
    link::{Limits, ask},
};

/// What a server says that it is, to `HELLO`: a command that every user may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// It takes writes.
    Primary,
    /// It takes none, until it is promoted.
    Replica,
    /// It keeps some of the keys.
    ClusterMember,
    /// It keeps none.
    Sentinel,
    /// It keeps that to itself, or a proxy stands between: its answers will tell.
    Unknown,
}

impl ServerKind {
    /// Asks. An error only if there is no answer.
    pub(super) async fn of(client: &Client, limits: Limits) -> Result<Self, FredError> {
        match ask(client, "HELLO", vec!["2".into()], limits.connect).await {
            Ok(answer) => Ok(Self::read(&answer)),
            Err(error) if is_answer(&error) => Ok(Self::Unknown),
            Err(error) => Err(error),
        }
    }

    /// From names and values in turn.
    fn read(answer: &Value) -> Self {
        let Value::Array(parts) = answer else { return Self::Unknown };
        let named = |name: &str| {
            let mut pairs = parts.chunks_exact(2).filter_map(<[Value]>::first_chunk::<2>);
            pairs.find_map(|[key, value]| (key.as_str()? == name).then(|| value.as_string())?)
        };
        match (named("mode").as_deref(), named("role").as_deref()) {
            (Some("sentinel"), _) => Self::Sentinel,
            (Some("cluster"), _) => Self::ClusterMember,
            (_, Some("replica" | "slave")) => Self::Replica,
            (_, Some("master" | "primary")) => Self::Primary,
            _ => Self::Unknown,
        }
    }

    /// Whether the url may lead there at all. A replica may be promoted.
    pub(super) fn check(self) -> Result<(), FredError> {
        match self {
            Self::ClusterMember => Err(wrong_server(CLUSTER)),
            Self::Sentinel => Err(wrong_server(SENTINEL)),
            Self::Primary | Self::Replica | Self::Unknown => Ok(()),
        }
    }
}

const CLUSTER: &str = "is part of a cluster, and keeps only some of the keys: the url must name a stand-alone server, for \
                       Cluster is not supported yet";

const SENTINEL: &str = "is a Sentinel, and keeps no keys: the url must name the primary that it watches, for Sentinel is not \
                        supported yet";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&str]) -> ServerKind {
        ServerKind::read(&Value::Array(parts.iter().map(|&part| part.into()).collect()))
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
        assert_eq!(ServerKind::read(&Value::Null), ServerKind::Unknown);
        let number = Value::Array(vec!["role".into(), 7_i64.into(), "mode".into()]);
        assert_eq!(ServerKind::read(&number), ServerKind::Unknown);
    }
}
