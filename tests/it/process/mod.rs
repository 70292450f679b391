//! Tests of process-wide state: its subscriber, logger, recorder of metrics, panic hook, threads and memory. Each of
//! them has a process of its own.

mod events;
mod foreign;
mod hostile;
mod keepers;
mod logger;
mod metrics;
mod outage;
mod trace;
mod truth;
