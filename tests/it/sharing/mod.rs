//! Locks that many hold at a time: readers beside readers, and permits.

mod downgrading;
mod holding;
