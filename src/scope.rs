//! The names and the options of locks: of a whole program, of a part of it, or of one lock.

use std::sync::Arc;

use leasehold_protocol::key::Key;

use crate::{
    engine::{Engine, Options},
    error::Error,
    options::{LockOptions, Names, check_label, check_prefix},
};

/// The locks of a program, or of a tenant of it, on the connections of one client.
#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) engine: Arc<Engine>,
    /// Its own names; `None` for those of the builder.
    names: Option<Arc<Names>>,
    /// The options of a lock that sets none of its own.
    pub(crate) options: LockOptions,
}

impl Scope {
    /// The scope of a whole client.
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let options = engine.options.lock;
        Self { engine, names: None, options }
    }

    /// Adds a prefix behind the existing ones.
    pub(crate) fn prefix(mut self, prefix: &str) -> Self {
        let names = self.own_names();
        names.prefix = format!("{}{prefix}", names.prefix).into();
        self
    }

    /// Sets a label of its own.
    pub(crate) fn label(mut self, label: String) -> Self {
        self.own_names().label = label.into();
        self
    }

    /// The key of this name, if all settings are within their bounds.
    pub(crate) fn key(&self, name: &str) -> Result<Key, Error> {
        self.check()?;
        let key = Key::new(self.whole_prefix(), name).map_err(Error::of_name);
        if self.engine.options.in_slots { key.and_then(in_one_slot) } else { key }
    }

    /// All prefixes of its names.
    pub(crate) fn whole_prefix(&self) -> &str {
        self.names.as_ref().map_or(&self.engine.options.prefix, |names| &names.prefix)
    }

    /// The label of its holders.
    pub(crate) fn label_in_use(&self) -> &str {
        self.names.as_ref().map_or(&self.engine.options.label, |names| &names.label)
    }

    fn own_names(&mut self) -> &mut Names {
        let Options { prefix, label, .. } = &self.engine.options;
        let of_builder = || Arc::new(Names { prefix: prefix.clone(), label: label.clone() });
        Arc::make_mut(self.names.get_or_insert_with(of_builder))
    }

    /// Its own names; `None` if they are the builder's.
    pub(crate) fn into_names(self) -> Option<Arc<Names>> {
        self.names
    }

    /// Whether its settings are within their bounds.
    pub(crate) fn check(&self) -> Result<(), Error> {
        // The builder has checked its own.
        let Some(names) = &self.names else { return Ok(()) };
        check_prefix(&names.prefix)?;
        check_label(&names.label)
    }
}

/// Checks that all keys of a lock are in one slot, as a cluster requires.
fn in_one_slot(key: Key) -> Result<Key, Error> {
    if key.is_in_one_slot() {
        return Ok(key);
    }
    Err(Error::config(format!(
        "the name {:?} has a }} and no hash tag: on a cluster its fence would be in another slot; leave out the }}, or put a \
         tag {{…}} before it",
        key.lock()
    )))
}
