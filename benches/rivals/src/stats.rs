//! What a server tells of itself.

use fred::{
    clients::Client,
    interfaces::ClientLike as _,
    types::{ClusterHash, CustomCommand, FromValue},
};

use crate::{Boxed, Result};

/// A section of `INFO`.
///
/// # Errors
///
/// The server cannot be reached.
pub fn info<'a>(client: &'a Client, section: &'a str) -> Boxed<'a, String> {
    Box::pin(command(client, "INFO", section))
}

/// How many commands it has carried out, those inside scripts included, but for asking it so.
///
/// # Errors
///
/// The server cannot be reached.
pub async fn calls(client: &Client) -> Result<u64> {
    let stats = info(client, "commandstats").await?;
    let counted = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let calls = counted.filter(|(command, _)| *command != "info").filter_map(|(_, calls)| calls.split(',').next());
    Ok(calls.map(str::parse::<u64>).sum::<Result<_, _>>()?)
}

/// How many keys it will tell somebody about; a key counts once for each connection that is told.
///
/// # Errors
///
/// The server cannot be reached, or does not tell.
pub async fn watched(client: &Client) -> Result<u64> {
    let stats = info(client, "stats").await?;
    let items = stats.lines().find_map(|line| line.strip_prefix("tracking_total_items:"));
    Ok(items.ok_or("the server tracks nothing")?.trim().parse()?)
}

/// How many connections it serves, this one included.
///
/// # Errors
///
/// The server cannot be reached.
pub async fn connections(client: &Client) -> Result<usize> {
    Ok(command::<String>(client, "CLIENT", "LIST").await?.lines().count())
}

/// Forgets all keys.
///
/// # Errors
///
/// The server cannot be reached.
pub async fn flush(client: &Client) -> Result<()> {
    command(client, "FLUSHALL", "SYNC").await
}

async fn command<T: FromValue>(client: &Client, command: &'static str, argument: &str) -> Result<T> {
    Ok(client.custom(CustomCommand::new_static(command, ClusterHash::FirstKey, false), vec![argument]).await?)
}
