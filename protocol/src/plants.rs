//! Bugs on order, to see that the history check (docs/evidence/soak.md) catches them.
//!
//! Only a build with `--cfg leasehold_plants` has them, and `LEASEHOLD_PLANT=name` plants one. In every other build
//! nothing is planted, which the compiler knows.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    DeadlineFromReply,
    NoPhaseTwo,
    NoDrift,
    DeafToDeletions,
}

#[cfg(not(leasehold_plants))]
pub use self::nothing::{is, script};
#[cfg(leasehold_plants)]
pub use self::planted::{is, script};

#[cfg(not(leasehold_plants))]
mod nothing {
    pub const fn is(_: super::Plant) -> bool {
        false
    }

    pub const fn script(source: &'static str) -> &'static str {
        source
    }
}

#[cfg(leasehold_plants)]
mod planted {
    use std::sync::LazyLock;

    use super::Plant;

    static PLANTED: LazyLock<String> = LazyLock::new(|| std::env::var("LEASEHOLD_PLANT").unwrap_or_default());

    pub fn is(plant: Plant) -> bool {
        let name = match plant {
            Plant::DeadlineFromReply => "deadline-from-reply",
            Plant::NoPhaseTwo => "no-phase-two",
            Plant::NoDrift => "no-drift",
            Plant::DeafToDeletions => "deaf-to-deletions",
        };
        *PLANTED == name
    }

    /// A script as it would be without one of its rules.
    pub fn script(source: &'static str) -> &'static str {
        let (rule, instead) = match PLANTED.as_str() {
            "release-without-compare" => {
                ("if value == ARGV[1] then\n  return pass_on()", "if value then\n  return pass_on()")
            }
            "renewal-recreates" => (
                "    replies[i] = 0\n",
                "    redis.call('SET', KEYS[i], ARGV[2 * i - 1], 'PX', ARGV[2 * i])\n    replies[i] = 1\n",
            ),
            "repair-without-uptime" => {
                ("if missing > 0 then\n  return {2, missing, run_id}", "if false then\n  return {2, missing, run_id}")
            }
            _ => return source,
        };
        if source.contains(rule) { source.replace(rule, instead).leak() } else { source }
    }
}
