//! The resource that the locks protect, from a worker's view: it refuses a write with an older fence than the newest
//! that it has seen. It does not use the library.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use support::{Value, Wire, try_fenced_write};

use crate::record::Written;

/// One value of the resource, on a connection of its own.
pub struct Resource {
    port: u16,
    key: Arc<str>,
    /// The connection, made at its first use.
    wire: Arc<Mutex<Option<Wire>>>,
}

impl Resource {
    /// The value under this key, on the server with this port.
    pub fn new(port: u16, key: String) -> Self {
        Self { port, key: key.into(), wire: Arc::default() }
    }

    pub async fn write(&self, value: String, fence: u64) -> Written {
        match self.ask(move |wire, key| try_fenced_write(wire, key, &value, fence)).await {
            Ok(Ok(())) => Written::Accepted,
            Ok(Err(_later)) => Written::Refused,
            Err(_) => Written::Unknown,
        }
    }

    /// The value, and the fence that it was written with.
    pub async fn read(&self) -> Option<(String, u64)> {
        let both = self.ask(|wire, key| wire.try_cmd(&["HMGET", key, "value", "fence"])).await.ok()?;
        match both.array() {
            [value @ Value::Bulk(_), fence] => Some((value.text(), fence.text().parse().ok()?)),
            _ => None,
        }
    }

    /// Asks on another thread, because the locks are on this one.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Wire, &str) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (port, key, kept) = (self.port, self.key.clone(), self.wire.clone());
        let asking = tokio::task::spawn_blocking(move || {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let mut wire = kept.take().map_or_else(|| Wire::try_to_port(port), Ok)?;
            let answer = ask(&mut wire, &key)?;
            // A connection that has failed is not kept, because its answer may still come.
            *kept = Some(wire);
            Ok(answer)
        });
        asking.await.expect("the resource answers as it should")
    }
}
