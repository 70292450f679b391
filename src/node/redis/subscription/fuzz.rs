//! Fuzz tests of the server's notifications, and of the table size that it reports: see `redis::fuzz`.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{slot::Keys, time::Time, tracking::capacity};
use parking_lot::Mutex;
use proptest::{collection::vec, prelude::*};

use super::{
    super::{
        fuzz::{anything, leaf},
        transport::setting,
        wire::Value,
    },
    Subscription,
    notification::Notification,
};
use crate::{metrics::NodeMetrics, node::NodeListener};

/// The notifications that arrived.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl NodeListener for Heard {
    fn changed(&self, key: &str) {
        self.0.lock().push(key.into());
    }

    fn missed(&self, _: &Keys) {
        self.0.lock().push("missed".into());
    }

    fn is_needed(&self) -> bool {
        true
    }

    fn holds(&self, key: &str) -> bool {
        key.len() % 2 == 0
    }

    fn is_as_left(&self, _: &str, _: &str, _: Duration) -> bool {
        false
    }

    fn granted(&self, key: &str, token: &str) {
        self.0.lock().push(format!("{key} {token}"));
    }

    fn next(&self, token: &str, within: Duration) {
        assert!(Time::NEVER + within == Time::NEVER);
        self.0.lock().push(token.into());
    }

    fn has_waiters(&self) -> bool {
        true
    }

    fn has_waiter(&self, _token: &str) -> bool {
        true
    }
}

fn message() -> impl Strategy<Value = Value> {
    prop_oneof![
        anything(),
        "(granted|next)? ?(-?[0-9]{0,22}) ?.{0,30}".prop_map(Value::from),
        vec(leaf(), 0..6).prop_map(Value::Array),
    ]
}

proptest! {
    #[test]
    fn no_message_makes_the_ear_panic(value in message()) {
        let (subscription, listener) = (Subscription::new("leasehold:test".into(), NodeMetrics::of("here")), Arc::new(Heard::default()));
        let listening: Arc<dyn NodeListener> = listener.clone();
        subscription.listen(Arc::downgrade(&listening));
        subscription.hear(&value, |key, listener| listener.changed(key));
        let most = if let Value::Array(keys) = &value { keys.len() } else { 1 };
        prop_assert!(listener.0.lock().len() <= most, "{:?}", value);
    }

    #[test]
    fn a_notification_is_read_as_it_was_made(token in ".{0,20}", key in ".{0,20}", within: u32) {
        let granted = format!("granted {} {token}{key}", token.len());
        prop_assert_eq!(Notification::read(&granted), Some(Notification::Granted { key: &key, token: &token }));
        let next = format!("next {within} {token}");
        let within = Duration::from_millis(within.into());
        prop_assert_eq!(Notification::read(&next), Some(Notification::Next { token: &token, within }));
    }

    #[test]
    fn whatever_it_says_that_it_tracks_there_is_room_for_no_more_than_half(reply in anything(), table in 1_i64..) {
        let size = |reply| setting(reply)?.parse::<usize>().ok();
        let _capacity = capacity(size(&reply), 0);
        let pair = Value::Array(vec!["tracking-table-max-keys".into(), table.to_string().into()]);
        let most = capacity(size(&pair), 0);
        prop_assert_eq!(i64::try_from(most).ok(), Some(if table == 1 { 0 } else { table / 2 }));
    }
}
