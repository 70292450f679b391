//! A request to several servers at once, and the answer of the majority: the basis of every quorum.

use std::{future::poll_fn, sync::Arc, task::Poll};

use fred::{
    clients::Client,
    interfaces::{ClientLike as _, KeysInterface as _},
    types::{ClusterHash, CustomCommand, Expiration, SetOptions, Value},
};

use crate::{Result, Server, plain};

/// One plain client of each server, on one runtime.
#[derive(Debug, Clone)]
pub struct Rounds(Arc<[Client]>);

impl Rounds {
    pub async fn connect(servers: &[Server]) -> Result<Self> {
        let mut clients = Vec::with_capacity(servers.len());
        for server in servers {
            clients.push(server.client().await?);
        }
        Ok(Self(clients.into()))
    }

    /// The smallest possible round.
    pub async fn ping(&self) -> Result<()> {
        self.round(|client| async move { Ok(client.ping::<String>(None).await? == "PONG") }).await
    }

    /// Takes a lock on a majority, without any fence.
    pub async fn set(&self, name: &str, value: &str, ttl: i64) -> Result<()> {
        self.round(|client| async move {
            let (ttl, only_new) = (Some(Expiration::PX(ttl)), Some(SetOptions::NX));
            let set: Value = client.set(name, value, ttl, only_new, false).await?;
            Ok(!set.is_null())
        })
        .await
    }

    /// Compares and deletes on a majority.
    pub async fn delete(&self, hash: &str, name: &str, value: &str) -> Result<()> {
        self.round(|client| async move {
            let evalsha = CustomCommand::new_static("EVALSHA", ClusterHash::FirstKey, false);
            Ok(client.custom::<i64, _>(evalsha, vec![hash, "1", name, value]).await? == 1)
        })
        .await
    }

    /// Loads the script of [`delete`](Self::delete) on every server, and returns its hash.
    pub async fn load(&self) -> Result<String> {
        let mut hash = String::new();
        for client in &*self.0 {
            hash = plain::load(client).await?;
        }
        Ok(hash)
    }

    /// Asks all servers at once, and ends when a majority has succeeded. The other requests have been sent too.
    async fn round<'a, R: Future<Output = Result<bool>>>(&'a self, request: impl Fn(&'a Client) -> R) -> Result<()> {
        let majority = self.0.len() / 2 + 1;
        let mut pending: Vec<_> = self.0.iter().map(|client| Box::pin(request(client))).collect();
        let mut granted = 0;
        let mut last_error = None;
        poll_fn(|context| {
            pending.retain_mut(|answer| match answer.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(answer) => {
                    match answer {
                        Ok(yes) => granted += usize::from(yes),
                        Err(error) => last_error = Some(error),
                    }
                    false
                }
            });
            if granted >= majority || pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if granted >= majority { Ok(()) } else { Err(last_error.unwrap_or_else(|| "too few said yes".into())) }
    }
}
