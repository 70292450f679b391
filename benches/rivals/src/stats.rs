//! The figures that a server keeps of itself.

use fred::{
    clients::Client,
    interfaces::ClientLike as _,
    types::{ClusterHash, CustomCommand, FromValue},
};

use crate::Result;

/// A section of `INFO`.
async fn info(client: &Client, section: &str) -> Result<String> {
    command(client, "INFO", section).await
}

/// How many commands it has carried out, those inside scripts included, but for asking it so.
pub async fn calls(client: &Client) -> Result<u64> {
    let stats = info(client, "commandstats").await?;
    let counted = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let calls = counted.filter(|(command, _)| *command != "info").filter_map(|(_, calls)| calls.split(',').next());
    Ok(calls.map(str::parse::<u64>).sum::<Result<_, _>>()?)
}

/// How often it has carried out one command, inside scripts included.
pub async fn calls_of(client: &Client, command: &str) -> Result<u64> {
    let stats = info(client, "commandstats").await?;
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    let calls = line.and_then(|line| line.split(',').next());
    Ok(calls.map(str::parse).transpose()?.unwrap_or_default())
}

/// How many keys it tracks; a key counts once for each connection that it notifies.
pub async fn tracked(client: &Client) -> Result<u64> {
    let stats = info(client, "stats").await?;
    let items = stats.lines().find_map(|line| line.strip_prefix("tracking_total_items:"));
    Ok(items.ok_or("the server tracks nothing")?.trim().parse()?)
}

/// How many connections it serves, this one included.
pub async fn connections(client: &Client) -> Result<usize> {
    Ok(command::<String>(client, "CLIENT", "LIST").await?.lines().count())
}

/// Forgets all keys.
pub async fn flush(client: &Client) -> Result<()> {
    command(client, "FLUSHALL", "SYNC").await
}

async fn command<T: FromValue>(client: &Client, command: &'static str, argument: &str) -> Result<T> {
    Ok(client.custom(CustomCommand::new_static(command, ClusterHash::FirstKey, false), vec![argument]).await?)
}
