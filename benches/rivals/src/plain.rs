//! A plain lock, without a library: the parts beside `SET NX PX`.

use fred::{
    clients::Client,
    interfaces::ClientLike as _,
    types::{ClusterHash, CustomCommand},
};

use crate::Result;

pub(crate) const COMPARE_AND_DELETE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// Loads the script of a plain release, and returns its hash.
pub(crate) async fn load(client: &Client) -> Result<String> {
    let load = CustomCommand::new_static("SCRIPT", ClusterHash::FirstKey, false);
    Ok(client.custom(load, vec!["LOAD", COMPARE_AND_DELETE]).await?)
}
