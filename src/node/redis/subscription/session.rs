//! One session on the connection for notifications.

use super::End;
use crate::node::redis::{
    info,
    transport::{Connection, Endpoint, Limits, Role, connected, introduce, is_left_out, is_refusal},
    wire::{self, Error as WireError, Running, Value, Wire, words},
};

const INVALIDATIONS: &str = "__redis__:invalidate";

/// The receiving connection. It speaks RESP2, in which a flush arrives too; it is not repaired but replaced.
pub(super) struct Session {
    wire: Wire,
    /// Our client id, for the redirection; or why there can be none.
    id: Result<i64, String>,
    pub(super) running: Running,
}

impl Session {
    pub(super) async fn open(endpoint: &Endpoint, keeper: &Connection, channel: &str) -> Result<Self, End> {
        let limits = endpoint.limits;
        let connect = |config, _login| async move {
            let (wire, running) = wire::connect(config, limits.connect, limits.command, true).await?;
            Ok(Self { wire, id: Err(String::new()), running })
        };
        let mut session = connected(endpoint, connect).await.map_err(|error| ended(&error))?;
        let introducing = introduce(&session.wire, endpoint, Role::Notifications, &keeper.left_out);
        let (introduced, id) = tokio::join!(introducing, session.subscribe(limits));
        introduced.map_err(|error| ended(&error))?;
        session.id = id?;
        session.wire.subscribe(channel).await.map_err(|error| ended(&error))?;
        session.ping(limits).await?;
        Ok(session)
    }

    /// Subscribes to invalidations, and returns our client id.
    async fn subscribe(&self, limits: Limits) -> Result<Result<i64, String>, End> {
        let id = match self.wire.ask("CLIENT", vec!["ID".into()], limits.command).await.map_err(|error| ended(&error)) {
            Ok(id) => id.as_i64().ok_or_else(|| "CLIENT ID is no number".to_owned()),
            Err(End::Refused(reason)) => Err(reason),
            Err(end) => return Err(end),
        };
        self.wire.subscribe(INVALIDATIONS).await.map_err(|error| ended(&error))?;
        // Only a connection with a subscription gets an array as its answer.
        match self.ping(limits).await? {
            Value::Array(_) => Ok(id),
            _ => Ok(Err(format!("this user may not subscribe to {INVALIDATIONS}"))),
        }
    }

    /// A barrier: completes once everything sent before was processed.
    async fn ping(&self, limits: Limits) -> Result<Value, End> {
        match self.wire.ask("PING", Vec::new(), limits.command).await.map_err(|error| ended(&error)) {
            Err(End::Refused(_)) => Ok(Value::Null),
            answer => answer,
        }
    }

    /// Has the keeper's reads tracked, with notifications to this session.
    pub(super) async fn track(&self, keeper: &Connection, limits: Limits) -> Result<(), End> {
        let id = self.id.as_ref().map_err(|reason| End::Refused(reason.clone()))?.to_string();
        let on = ["TRACKING", "ON", "REDIRECT", &id, "OPTIN", "NOLOOP"].map(Value::from).to_vec();
        keeper.command("CLIENT", on, limits.command).await.map(drop).map_err(|error| ended(&error))
    }
}

/// Why a step of a session failed: refused for good, or worth another try.
pub(super) fn ended(error: &WireError) -> End {
    let reason = words(error).to_owned();
    // The receiver may have ended meanwhile, which the server reports as an error of ours.
    if is_refusal(error) && !is_left_out(error) && !reason.contains("does not exist") {
        End::Refused(reason)
    } else {
        End::Failed(reason)
    }
}

/// How many keys the server is set to track, 0 for any number; `None` if it does not report it.
pub(super) async fn table(keeper: &Connection, limits: Limits) -> Option<usize> {
    keeper.setting("tracking-table-max-keys", limits.command).await?.parse().ok()
}

/// How many keys the server tracks for all its clients; `None` if it does not report it.
pub(super) async fn tracked(keeper: &Connection, limits: Limits) -> Option<usize> {
    let stats = keeper.command("INFO", vec!["stats".into()], limits.command).await.ok()?;
    info::tracked_keys(&stats.as_str()?)
}
