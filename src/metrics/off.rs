//! Without the crate feature `metrics`: the same names, which do nothing.

#![allow(clippy::unused_self, clippy::needless_pass_by_value, reason = "as where they do something")]

use std::time::Duration;

use leasehold_protocol::mode::Mode;

use super::{LeaseStage, NodeCount};
use crate::foreign::Numbers;

pub(crate) fn describe() {}

pub(crate) fn undo_is_unconfirmed() {}

pub(crate) fn have_news() {}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Group(());

impl Group {
    pub(super) fn of(self, _mode: Mode) -> Self {
        self
    }

    pub(super) fn count(self, _name: &'static str, _value: &'static str) {}

    pub(super) fn change(self, _name: &'static str, _by: i32) {}

    pub(super) fn record(self, _name: &'static str, _value: f64) {}

    pub(super) fn note_remaining(self, _left: Duration, _ttl: Duration) {}
}

#[derive(Debug)]
pub(super) struct StageCell;

impl StageCell {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) fn turn(&self, to: LeaseStage) -> LeaseStage {
        to
    }
}

#[derive(Debug)]
pub(crate) struct NodeMetrics;

impl NodeMetrics {
    pub(crate) fn of(_address: &str) -> Self {
        Self
    }

    pub(crate) fn of_routed(_address: &str) -> Self {
        Self
    }

    pub(crate) fn of_replicated(_address: &str) -> Self {
        Self
    }

    pub(crate) fn count(&self, _what: NodeCount) {}

    pub(crate) fn note_up(&self, _is_up: bool) {}

    pub(crate) fn set_up(&self, _is_up: bool) -> bool {
        false
    }

    pub(crate) fn note_reconnect(&self) {}

    pub(crate) fn note_notifications(&self, _is_active: bool) {}

    pub(crate) const WANT_CLOCKS: bool = false;

    pub(crate) fn note_clock_offset(&self, _micros: i64) {}
}

#[derive(Debug, Default)]
pub(crate) struct Telling(());

impl Numbers for Telling {
    fn next_in(&self) -> Option<Duration> {
        None
    }

    fn tell(&mut self) {}

    fn sample(&self, _group: u8, _name: &'static str, _value: f64) {}
}
