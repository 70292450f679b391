//! The topologies that the clients of a world reach. Each is stored once, because it knows thousands of slots, and a
//! search has many states.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use leasehold_protocol::{
    message::Shard,
    time::Time,
    topology::{Place, Topology, View},
};

/// A topology, by its number.
pub(super) type Number = usize;

#[derive(Debug, Clone)]
pub(super) struct Atlas(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    views: Vec<View>,
    all: Vec<Arc<Topology>>,
    after: HashMap<(Number, News), After>,
}

/// Something that a client hears about the slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum News {
    View(usize),
    /// A view; the first of them is believed even after later ones.
    Anew(usize),
    /// A redirection by this server.
    Moved(Shard, u16, Option<Place>),
}

/// The topology after a client has heard news.
#[derive(Debug, Clone, Copy)]
pub(super) struct After {
    pub(super) topology: Number,
    /// Whether the slot has another owner.
    pub(super) has_changed: bool,
    /// Whether a replica has taken over.
    pub(super) is_taken_over: bool,
}

impl Atlas {
    /// Begins with the first of these views, which every client knows.
    pub(super) fn of(views: Vec<View>) -> Self {
        let mut first = Topology::default();
        let _changes = first.merge(&views[0], Time::ZERO);
        Self(Arc::new(Mutex::new(Known { views, all: vec![Arc::new(first)], after: HashMap::new() })))
    }

    pub(super) fn get(&self, number: Number) -> Arc<Topology> {
        self.0.lock().unwrap().all[number].clone()
    }

    pub(super) fn after(&self, number: Number, news: &News) -> After {
        let mut known = self.0.lock().unwrap();
        if let Some(after) = known.after.get(&(number, news.clone())) {
            return *after;
        }
        let mut topology = Topology::clone(&known.all[number]);
        let changes = match news {
            News::View(view) => topology.merge(&known.views[*view], Time::ZERO),
            News::Anew(view) => {
                topology = if *view == 0 { Topology::clone(&known.all[0]) } else { topology };
                topology.merge(&known.views[*view], Time::ZERO)
            }
            News::Moved(from, slot, to) => topology.moved(*from, *slot, to.clone()),
        };
        let there = known.all.iter().position(|other| **other == topology);
        let topology = there.unwrap_or_else(|| {
            known.all.push(Arc::new(topology));
            known.all.len() - 1
        });
        let has_changed = !changes.slots.is_empty();
        let after = After { topology, has_changed, is_taken_over: !changes.taken_over.is_empty() };
        known.after.insert((number, news.clone()), after);
        after
    }
}
