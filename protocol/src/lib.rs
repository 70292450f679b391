//! The protocol of [leasehold](https://docs.rs/leasehold) as pure state machines. Each step is a function of the state,
//! an event and the time. Nothing here reads a clock, opens a connection, starts a task or draws a random number. The
//! library, `leasehold`, carries out the orders of these machines: use that one. The public items here exist for the
//! library, and may change with each of its releases.
//!
//! | module | decides |
//! |---|---|
//! | [`acquisition`] | the whole life of one token: attempted, held, released, over, undone; it uses the next four |
//! | [`attempt`] | whether an acquire has won, and which floors of fences to raise before it has |
//! | [`renewal`] | when a held lease is renewed or repaired, and when it ends |
//! | [`release_tally`] | the outcome of a release on all nodes together |
//! | [`progress`] | whether the work under a held lease makes progress |
//! | [`outliving`] | how much longer a lock's key lives than its lease |
//! | [`ticket`] | the text that a lease which is handed over leaves for its heir |
//! | [`undo`] | how often, and for how long, a node is asked to undo a token |
//! | [`tally`], [`plurality`] | what a majority has confirmed or denied, and who holds the most nodes |
//! | [`fence_proposal`] | which fence is proposed, so that the nodes issue the same one |
//! | [`wait_loop`] | when a waiting acquire checks the lock, on which route, and when it ends |
//! | [`observer`] | who leads, as far as an observer knows, and when it checks again |
//! | [`multi_lock`] | which of several locks are tried, kept and waited for |
//! | [`backoff`], [`queue_position`] | how long a waiter pauses between two requests |
//! | [`node_health`], [`identities`] | whether a node may be asked, when it is probed, and whether it has its own vote |
//! | [`link_health`] | when one link to a node is given up, though it has not ended |
//! | [`addressees`] | which of a process's fair waiters a server's notification is for |
//! | [`tracking`] | which keys the servers are asked to track |
//! | [`topology`] | which server of a cluster has which slot |
//! | [`trip`] | where a request of a cluster goes, and whether its answer counts |
//! | [`cross_check`] | when another server is asked whether a primary still is one |
//! | [`address_check`] | whether an address still resolves to the server that we are connected to |
//! | [`reconnect`] | how long to wait before a connection is made again |
//! | [`replication`] | which writes count because replicas have acknowledged them |
//! | [`combiner`] | which requests are batched, and which answer each of their callers gets |
//! | [`troubles`] | which troubles are reported, and how often |
//! | [`store`] | what a node answers: the server's side of the protocol |
//!
//! The others are the vocabulary of these: [`time`], [`key`], [`mode`], [`token`], [`fence`], [`holder`], [`message`],
//! [`failure`], [`votes`], [`node_status`], [`loss`], [`forced`], [`check`], [`place`], [`slot`], [`jitter`],
//! [`doubling`], [`rounded`], [`hash`] and [`glob`].

// A pure function whose result is not used does nothing: an attribute on each would add nothing.
#![allow(clippy::must_use_candidate, clippy::return_self_not_must_use)]

pub mod acquisition;
pub mod address_check;
pub mod addressees;
pub mod attempt;
pub mod backoff;
pub mod check;
pub mod combiner;
pub mod cross_check;
pub mod doubling;
pub mod failure;
pub mod fence;
pub mod fence_proposal;
pub mod forced;
pub mod glob;
pub mod hash;
pub mod hearsay;
pub mod holder;
pub mod identities;
pub mod jitter;
pub mod key;
pub mod link_health;
pub mod loss;
pub mod message;
pub mod mode;
pub mod multi_lock;
pub mod node_health;
pub mod node_status;
pub mod observer;
pub mod outliving;
pub mod place;
pub mod plurality;
pub mod progress;
pub mod queue_position;
pub mod reconnect;
pub mod release_tally;
pub mod renewal;
pub mod replication;
pub mod rounded;
pub mod sentinel_reports;
pub mod slot;
pub mod stepwise;
pub mod store;
pub mod tally;
mod text;
pub mod ticket;
pub mod time;
pub mod token;
pub mod topology;
pub mod tracking;
pub mod trip;
pub mod troubles;
pub mod undo;
pub mod votes;
pub mod wait_loop;
