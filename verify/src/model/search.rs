//! A search of all of a world, or until a rule is broken.

use std::{collections::BTreeSet, hash::Hash};

use stateright::{Checker, HasDiscoveries, Model, Path};

/// A world to search.
pub(super) trait World:
    Model<State: Clone + Hash + PartialEq + Send + Sync + 'static, Action: Clone + PartialEq + Send + Sync>
    + Clone
    + Send
    + Sync
    + 'static
{
    fn name(&self) -> &'static str;

    /// A path through its states, for people.
    fn told(&self, path: Path<Self::State, Self::Action>) -> String;

    /// Whether something good must be possible here.
    fn is_expected(&self, _good: &str) -> bool {
        true
    }
}

/// The outcome of a search.
pub(super) struct Search {
    pub(super) states: usize,
    pub(super) steps: usize,
    pub(super) depth: usize,
    /// The rules that were broken, and the good things that were seen, each with a path to it.
    found: Vec<(&'static str, String)>,
}

impl Search {
    /// Searches all of a world, or until one of the rules given is broken.
    pub(super) fn of(world: &impl World, until: &[&'static str]) -> Self {
        let until: BTreeSet<_> = until.iter().copied().collect();
        let stop = if until.is_empty() { HasDiscoveries::AnyFailures } else { HasDiscoveries::AllOf(until) };
        let checker = world.clone().checker().finish_when(stop).spawn_bfs().join();
        let found = checker.discoveries().into_iter().map(|(name, path)| (name, world.told(path)));
        Self {
            states: checker.unique_state_count(),
            steps: checker.state_count(),
            depth: checker.max_depth(),
            found: found.collect(),
        }
    }

    /// The path to what was found under this name.
    pub(super) fn path(&self, name: &str) -> Option<&String> {
        self.found.iter().find(|(found, _)| *found == name).map(|(_, path)| path)
    }
}

/// Searches all of it: no rule is broken, and what should be possible is.
pub(super) fn holds(world: &impl World) -> Search {
    let (search, name) = (Search::of(world, &[]), world.name());
    for property in world.properties() {
        let path = search.path(property.name);
        if property.expectation.discovery_is_failure() {
            assert!(path.is_none(), "{name}: not {:?}:\n{}", property.name, path.unwrap());
        } else if world.is_expected(property.name) {
            assert!(path.is_some(), "{name}: never {:?}", property.name);
        }
    }
    println!("{name}: {} states, {} steps, depth {}", search.states, search.steps, search.depth);
    search
}

/// Searches until this rule is broken, and prints how.
pub(super) fn breaks(world: &impl World, rule: &'static str) {
    let (search, name) = (Search::of(world, &[rule]), world.name());
    let Some(path) = search.path(rule) else { panic!("{name}: {rule:?} holds in all {} states", search.states) };
    println!("{name}: not {rule:?}, found after {} states:\n{path}", search.states);
}
