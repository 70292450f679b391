//! A search of all of a world, or until a rule is broken, by [stateright]; and the tests that search worlds.

use std::{collections::BTreeSet, ops::Deref};

use stateright::{Checker, HasDiscoveries, Model as _, Property};

use super::frame::{Model, Run, told};

/// A rule, or something good that should be possible.
pub(super) type Rule<M> = Property<Searched<M>>;

/// A model, as [stateright] knows it.
pub(super) struct Searched<M>(M);

impl<M> Deref for Searched<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.0
    }
}

impl<M: Model> stateright::Model for Searched<M> {
    type State = M::State;
    type Action = M::Action;

    fn init_states(&self) -> Vec<M::State> {
        vec![self.first()]
    }

    fn actions(&self, state: &M::State, actions: &mut Vec<M::Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, state: &M::State, action: M::Action) -> Option<M::State> {
        let mut run = Run { setup: &self.0, state: state.clone() };
        M::take(&mut run, action)?;
        Some(run.state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut rules = M::rules();
        rules.extend([
            Rule::<M>::always(M::IN_THE_END, |setup, state| !setup.is_end(state) || setup.is_over(state)),
            Rule::<M>::sometimes("the end", |setup, state| setup.is_end(state)),
        ]);
        rules
    }
}

/// The outcome of a search.
pub(super) struct Search {
    states: usize,
    steps: usize,
    depth: usize,
    /// The rules that were broken, and the good things that were seen, each with a path to it.
    found: Vec<(&'static str, String)>,
}

impl Search {
    /// Searches all of a world, or until one of the rules given is broken.
    pub(super) fn of<M: Model>(world: &M, until: &[&'static str]) -> Self {
        let until: BTreeSet<_> = until.iter().copied().collect();
        let stop = if until.is_empty() { HasDiscoveries::AnyFailures } else { HasDiscoveries::AllOf(until) };
        let checker = Searched(world.clone()).checker().finish_when(stop).spawn_bfs().join();
        let found = checker.discoveries().into_iter().map(|(name, path)| (name, told(world, path)));
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

/// Searches the whole world: no rule is broken, and what should be possible is.
fn holds<M: Model>(world: &M) -> Search {
    let (search, name) = (Search::of(world, &[]), world.name());
    for property in Searched(world.clone()).properties() {
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
pub(super) fn breaks<M: Model>(world: &M, rule: &'static str) {
    let (search, name) = (Search::of(world, &[rule]), world.name());
    let Some(path) = search.path(rule) else { panic!("{name}: {rule:?} holds in all {} states", search.states) };
    println!("{name}: not {rule:?}, found after {} states:\n{path}", search.states);
}

/// Searches the whole world of this name.
pub(super) fn within<M: Model>(worlds: Vec<M>, name: &str) {
    holds(&worlds.into_iter().find(|world| world.name() == name).unwrap());
}

/// Searches all of these worlds, and prints a row of a table for each.
pub(super) fn table<M: Model>(worlds: impl IntoIterator<Item = M>) {
    for world in worlds {
        let Search { states, steps, depth, .. } = holds(&world);
        println!("| {} | {} | {states} | {steps} | {depth} |", world.name(), world.bounds());
    }
}

/// Makes a test for each named world of `quick`, and one for all worlds of `quick` and `deep`.
macro_rules! searches {
    ($(fn $test:ident($($world:literal),+ $(,)?);)+) => {
        $(
            #[test]
            fn $test() {
                $($crate::model::search::within(quick(), $world);)+
            }
        )+

        /// With the figures for `docs/evidence/model.md`: `scripts/model` runs it.
        #[test]
        #[ignore = "takes minutes even when optimised"]
        fn the_deep_search() {
            $crate::model::search::table(quick().into_iter().chain(deep()));
        }
    };
}
pub(super) use searches;
