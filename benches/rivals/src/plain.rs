//! A plain lock, without a library: the parts beside `SET NX PX`.

use fred::{
    clients::Client,
    interfaces::ClientLike as _,
    types::{ClusterHash, CustomCommand},
};

use crate::Result;

/// The least that a fence takes: the server's time becomes the lock's floor in the step that takes the lock.
pub(crate) const SET_WITH_FENCE: &str = "\
local time = redis.call('TIME')
local fence = time[1] .. string.sub('00000' .. time[2], -6)
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return false end
local floor = redis.call('SET', KEYS[2], fence, 'PX', 86400000, 'GET')
if floor and floor >= fence then return redis.error_reply('ERR the clock stood still or went back') end
return fence";

pub(crate) const COMPARE_AND_DELETE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// Loads the script of a plain release, and returns its hash.
pub(crate) async fn load(client: &Client) -> Result<String> {
    load_script(client, COMPARE_AND_DELETE).await
}

/// Loads a script, and returns its hash.
pub(crate) async fn load_script(client: &Client, script: &str) -> Result<String> {
    let load = CustomCommand::new_static("SCRIPT", ClusterHash::FirstKey, false);
    Ok(client.custom(load, vec!["LOAD", script]).await?)
}
