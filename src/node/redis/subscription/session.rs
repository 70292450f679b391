//! One session on the connection for notifications.

use fred::{
    clients::Client,
    error::Error as FredError,
    interfaces::{EventInterface, PubsubInterface},
    types::{ConnectHandle, Message, Value, config::Server},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::End;
use crate::node::redis::{
    info,
    transport::{
        Connection, Endpoint, Limits, Role,
        client::{self, ask},
        connected, introduce, is_left_out, is_refusal, words,
    },
};

const INVALIDATIONS: &str = "__redis__:invalidate";

/// The receiving connection. It speaks RESP2, in which a flush arrives too; it is not repaired but replaced.
pub(super) struct Session {
    client: Client,
    /// For the redirection; or why there can be none.
    id: Result<i64, String>,
    router: ConnectHandle,
    errors: Receiver<(FredError, Option<Server>)>,
    messages: Receiver<Message>,
}

impl Session {
    pub(super) async fn open(endpoint: &Endpoint, keeper: &Connection, channel: &str) -> Result<Self, End> {
        let limits = endpoint.limits;
        let connect = |config, _login| async move {
            let client = client::receiving(config, limits);
            let (errors, messages) = (client.error_rx(), client.message_rx());
            let router = client::connect(&client).await?;
            Ok(Self { client, id: Err(String::new()), router, errors, messages })
        };
        let mut session = connected(endpoint, connect).await.map_err(|error| ended(&error))?;
        let introducing = introduce(&session.client, endpoint, Role::Notifications, &keeper.left_out);
        let (introduced, id) = tokio::join!(introducing, session.subscribe(limits));
        introduced.map_err(|error| ended(&error))?;
        session.id = id?;
        session.client.subscribe(channel).await.map_err(|error| ended(&error))?;
        session.ping(limits).await?;
        Ok(session)
    }

    /// Our number, once invalidations arrive here.
    async fn subscribe(&self, limits: Limits) -> Result<Result<i64, String>, End> {
        let id =
            match ask(&self.client, "CLIENT", vec!["ID".into()], limits.command).await.map_err(|error| ended(&error)) {
                Ok(id) => id.as_i64().ok_or_else(|| "CLIENT ID is no number".to_owned()),
                Err(End::Refused(reason)) => Err(reason),
                Err(end) => return Err(end),
            };
        self.client.subscribe(INVALIDATIONS).await.map_err(|error| ended(&error))?;
        // Only a connection that subscribes to something gets an array for an answer.
        match self.ping(limits).await? {
            Value::Array(_) => Ok(id),
            _ => Ok(Err(format!("this user may not subscribe to {INVALIDATIONS}"))),
        }
    }

    /// A barrier: what was sent before has been dealt with.
    async fn ping(&self, limits: Limits) -> Result<Value, End> {
        match ask(&self.client, "PING", Vec::new(), limits.command).await.map_err(|error| ended(&error)) {
            Err(End::Refused(_)) => Ok(Value::Null),
            answer => answer,
        }
    }

    /// Has the keeper's reads tracked, and told here.
    pub(super) async fn track(&self, keeper: &Connection, limits: Limits) -> Result<(), End> {
        let id = self.id.as_ref().map_err(|reason| End::Refused(reason.clone()))?.to_string();
        let on = ["TRACKING", "ON", "REDIRECT", &id, "OPTIN", "NOLOOP"].map(Value::from).to_vec();
        keeper.command("CLIENT", on, limits.command).await.map(drop).map_err(|error| ended(&error))
    }

    /// The next message; `None` if some were missed, an error when the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(super) async fn next(&mut self) -> Result<Option<Message>, String> {
        tokio::select! {
            message = self.messages.recv() => match message {
                Ok(message) => Ok(Some(message)),
                Err(RecvError::Lagged(_)) => Ok(None),
                Err(RecvError::Closed) => Err("the receiver has ended".into()),
            },
            error = self.errors.recv() => match error {
                Ok((error, _)) => Err(words(&error).into()),
                Err(_) => Err("its connection has ended".into()),
            },
            _ = &mut self.router => Err("its connection has ended".into()),
        }
    }
}

/// fred's task holds the client, and the client the connection.
impl Drop for Session {
    fn drop(&mut self) {
        self.router.abort();
    }
}

/// Why a step of a session failed: refused for good, or worth another try.
pub(super) fn ended(error: &FredError) -> End {
    let reason = words(error).to_owned();
    // The receiver may have gone meanwhile, which the server calls an error of ours.
    if is_refusal(error) && !is_left_out(error) && !reason.contains("does not exist") {
        End::Refused(reason)
    } else {
        End::Failed(reason)
    }
}

/// How many keys the server is set to track, 0 for any number; it need not tell.
pub(super) async fn table(keeper: &Connection, limits: Limits) -> Option<usize> {
    keeper.setting("tracking-table-max-keys", limits.command).await?.parse().ok()
}

/// How many keys it tracks for all its clients; it need not tell.
pub(super) async fn tracked(keeper: &Connection, limits: Limits) -> Option<usize> {
    let stats = keeper.command("INFO", vec!["stats".into()], limits.command).await.ok()?;
    info::tracked_keys(&stats.as_str()?)
}
