//! The figures that a server keeps about itself.

use fred::{
    clients::Client,
    interfaces::ClientLike as _,
    types::{ClusterHash, CustomCommand, FromValue, Value},
};

use crate::Result;

/// A section of `INFO`.
async fn info(client: &Client, section: &str) -> Result<String> {
    command(client, "INFO", section).await
}

/// How many commands it has executed, including those inside scripts, but not those that ask for this figure.
pub async fn calls(client: &Client) -> Result<u64> {
    let stats = info(client, "commandstats").await?;
    let counted = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let calls = counted.filter(|(command, _)| *command != "info").filter_map(|(_, calls)| calls.split(',').next());
    Ok(calls.map(str::parse::<u64>).sum::<Result<_, _>>()?)
}

/// How often it has executed one command, including inside scripts.
pub async fn calls_of(client: &Client, command: &str) -> Result<u64> {
    figure(client, command, "calls").await
}

/// How many scripts have run.
pub async fn scripts(client: &Client) -> Result<u64> {
    Ok(calls_of(client, "evalsha").await? + calls_of(client, "eval").await?)
}

/// For how many microseconds it has run scripts.
pub async fn micros_of_scripts(client: &Client) -> Result<u64> {
    Ok(figure(client, "evalsha", "usec").await? + figure(client, "eval", "usec").await?)
}

async fn figure(client: &Client, command: &str, what: &str) -> Result<u64> {
    let stats = info(client, "commandstats").await?;
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let figure = line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix(&format!("{what}="))));
    Ok(figure.map(str::parse).transpose()?.unwrap_or_default())
}

/// Makes the server log each command that runs for 20 µs or more from here on, and drop earlier ones. It also logs
/// commands of scripts, of which there would be too many without that bound.
pub async fn log_slow(client: &Client) -> Result<()> {
    let set = CustomCommand::new_static("CONFIG", ClusterHash::FirstKey, false);
    let keep = ["SET", "slowlog-log-slower-than", "20", "slowlog-max-len", "10000"];
    client.custom::<(), _>(set, keep.to_vec()).await?;
    command(client, "SLOWLOG", "RESET").await
}

/// The logged commands, in order: how many microseconds each has run, and its arguments, in which the server omits long
/// parts.
pub async fn logged(client: &Client) -> Result<Vec<(u64, Vec<String>)>> {
    let get = CustomCommand::new_static("SLOWLOG", ClusterHash::FirstKey, false);
    let mut all: Vec<Vec<Value>> = client.custom(get, vec!["GET", "10000"]).await?;
    all.reverse();
    let entry = |entry: Vec<Value>| {
        let mut parts = entry.into_iter().skip(2);
        let (micros, sent) = (parts.next().unwrap_or(Value::Null), parts.next().unwrap_or(Value::Null));
        Ok((micros.convert()?, sent.convert()?))
    };
    all.into_iter().map(entry).collect()
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
