//! The documentation pages.
//!
//! | page | contains |
//! |---|---|
//! | [`guide`] | every call, from the first lock on |
//! | [`cookbook`] | recipes, each with its trap |
//! | [`elections`] | who leads, and who knows it |
//! | [`waiting`], [`quorum`] | waiters and fairness; several servers |
//! | [`sharing`] | readers and a writer, permits: a name that many hold at a time |
//! | [`deployments`] | which to choose, what each promises, and why |
//! | [`services`] | servers that you rent: urls, settings, what is not promised |
//! | [`operations`] | rights, keys, connections, events, outages, limits |
//! | [`metrics`], [`cron`] | what is measured; the command |
//! | [`safety`] | assumptions, rules, faults and their tests |

// As for the README: of two definitions, the first counts.
#[doc = include_str!("../docs/performance/life.link")]
#[doc = include_str!("../docs/performance/hand-over.link")]
#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

// The recipes marked `ignore` need a web framework, a database or an exporter: `examples/cookbook` compiles and runs those.
#[doc = include_str!("../docs/cookbook.md")]
#[doc(alias = "leader")]
pub mod cookbook {}

#[doc = include_str!("../docs/elections.md")]
pub mod elections {}

#[doc = include_str!("../docs/performance/queue.link")]
#[doc = include_str!("../docs/waiting.md")]
pub mod waiting {}

#[doc = include_str!("../docs/sharing.md")]
#[doc(alias = "semaphore")]
#[doc(alias = "rwlock")]
pub mod sharing {}

#[doc = include_str!("../docs/performance/round.link")]
#[doc = include_str!("../docs/quorum.md")]
pub mod quorum {}

#[doc = include_str!("../docs/deployments.md")]
pub mod deployments {}

#[doc = include_str!("../docs/services.md")]
pub mod services {}

#[doc = include_str!("../docs/operations.md")]
pub mod operations {}

#[doc = include_str!("../docs/metrics.md")]
pub mod metrics {}

#[doc = include_str!("../docs/cron.md")]
pub mod cron {}

#[doc = include_str!("../docs/safety.md")]
pub mod safety {}
