//! The scripts' texts, assembled as the library assembles them.

#![allow(missing_docs, reason = "each is named after its script")]

macro_rules! script {
    ($($file:literal)+) => {
        concat!($(include_str!(concat!("../../../src/node/redis/scripts/", $file, ".lua"))),+)
    };
}

pub const ACQUIRE: &str = script!("acquire" "value" "issue" "may_vote" "acquire_any");
/// The end of every vote. A run's vote begins with the run's id, so that each run has a text and a hash of its own.
pub(crate) const VOTES: &str = script!("acquire_any");
pub const COMBINED: &str = script!("value" "issue" "may_vote" "combined");
pub const COMBINED_SLOTS: &str = script!("value" "issue" "combined_slots");
pub const RAISE: &str = script!("value" "issue" "floor" "raise");
pub const REPAIR: &str = script!("value" "issue" "may_vote" "floor" "repair");
pub const RENEW: &str = script!("value" "renew");
pub const RELEASE: &str = script!("release" "keys" "value" "release_by_identity" "issue" "may_vote" "permits" "phase" "promote" "pass_on" "release_to_queue");
pub const KEEP: &str = script!("value" "keep");
pub const FORCE_RELEASE: &str =
    script!("keys" "value" "issue" "may_vote" "permits" "phase" "promote" "pass_on" "force_release");
pub const POLL: &str = script!("keys" "value" "issue" "may_vote" "permits" "phase" "promote" "poll");
pub const LEAVE: &str = script!("keys" "value" "issue" "may_vote" "permits" "phase" "promote" "pass_on" "leave");
pub const JOIN: &str = script!("permits" "join" "keys" "value" "issue" "may_vote" "phase" "promote" "poll");
pub const PART: &str =
    script!("permits" "part" "keys" "value" "issue" "may_vote" "phase" "promote" "pass_on" "part_and_pass_on");
pub const RENEW_SHARES: &str = script!("permits" "renew_shares");
pub const KEEP_SHARE: &str = script!("keys" "value" "permits" "phase" "keep_share");
pub const SHARERS: &str = script!("sharers");
pub const DOWNGRADE: &str = script!("keys" "value" "issue" "may_vote" "permits" "phase" "promote" "downgrade");
pub const EXTEND_PHASE: &str = script!("extend_phase");
pub const EXTEND_SHARE: &str = script!("permits" "extend_share");
pub const TAKE: &str = script!("value" "take");
pub const ISSUE_ALONE: &str = script!("issue" "issue_alone");
pub const CONFIRM: &str = script!("value" "confirm");
pub const RELEASE_ALONE: &str = script!("value" "release_alone");
pub const SUCCEED: &str = script!("value" "issue" "may_vote" "succeed");
pub const QUEUE: &str = script!("queue");
pub const HOLDER: &str = script!("holder");
pub const LOOK: &str = script!("look");
