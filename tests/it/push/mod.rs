//! Notifications from the server.

mod faults;
mod many;
mod notified;
mod refused;
