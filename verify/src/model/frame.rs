//! The frame of the models: a model is its states, its possible actions, and its rules. [`search`](super::search)
//! searches it, and this module describes a path through it to people.

use std::{fmt::Write, hash::Hash, iter};

use leasehold_protocol::{acquisition::Acquisition, renewal::Phase, time::Time};
use stateright::Path;

use super::{
    search::Rule,
    state::{Clock, Owner, Real},
};

/// A world to search. Two states that are equal have the same future.
pub(super) trait Model: Clone + Send + Sync + 'static {
    type State: Clone + Hash + PartialEq + Send + Sync + 'static;
    type Action: Clone + PartialEq + Send + Sync + 'static;

    /// The rule for a state without further actions: everything [is over](Self::is_over).
    const IN_THE_END: &'static str = "in the end nothing is left";

    /// The word for a holder of keys, for people.
    const SERVER: &'static str = "server";

    fn name(&self) -> &'static str;

    /// Its bounds, as columns of a table.
    fn bounds(&self) -> String;

    fn first(&self) -> Self::State;

    /// Collects the actions that are possible now.
    fn possible(&self, state: &Self::State, actions: &mut Vec<Self::Action>);

    /// Performs an action.
    fn take(run: &mut Run<'_, Self>, action: Self::Action) -> Option<()>;

    /// The rules, and the good things that should be possible. The frame adds the rule about the end.
    fn rules() -> Vec<Rule<Self>>;

    /// Whether this good thing must be possible in this world.
    fn is_expected(&self, _good: &str) -> bool {
        true
    }

    /// Whether no action is possible any more.
    fn is_end(&self, state: &Self::State) -> bool {
        let mut actions = Vec::new();
        self.possible(state, &mut actions);
        actions.is_empty()
    }

    /// Whether everything that must end has ended.
    fn is_over(&self, state: &Self::State) -> bool;

    fn now(state: &Self::State) -> Real;

    /// The clients' clocks, which agree.
    fn clock(&self) -> Clock {
        Clock { offset: 0, rate: 1_000 }
    }

    /// The leases, and the attempts to get one.
    fn leases(_state: &Self::State) -> impl Iterator<Item = (Owner, &Acquisition)> {
        iter::empty()
    }

    /// The tokens of the clients that believe to hold the lock.
    fn believers(&self, state: &Self::State) -> Vec<Owner> {
        let now = self.clock().shows(Self::now(state));
        Self::leases(state).filter(|(_, lease)| now < lease.valid_until()).map(|(owner, _)| owner).collect()
    }

    /// The owner of each server's key.
    fn keys(&self, _state: &Self::State) -> Vec<Option<Owner>> {
        Vec::new()
    }

    /// Describes an action, for people.
    fn tell(state: &Self::State, action: &Self::Action) -> String;

    /// Describes what an action has changed, for people.
    fn news(&self, before: &Self::State, after: &Self::State) -> Vec<String> {
        let keys = self.keys(before).into_iter().zip(self.keys(after)).enumerate();
        let moved = keys.filter(|(_, (was, is))| was != is).map(|(at, (_, is))| match is {
            Some(owner) => format!("{} {at} has the key of {}", Self::SERVER, label(owner)),
            None => format!("{} {at} has no key", Self::SERVER),
        });
        moved.chain(leases_told(self, before, after)).collect()
    }
}

/// A state on its way to the next one.
pub(super) struct Run<'a, M: Model> {
    pub(super) setup: &'a M,
    pub(super) state: M::State,
}

impl<M: Model> Run<'_, M> {
    /// The time on the clients' clocks.
    pub(super) fn now(&self) -> Time {
        self.setup.clock().shows(M::now(&self.state))
    }
}

/// The description of time that passes. It is shown where that changes something.
pub(super) const TIME_PASSES: &str = "time passes";

/// A path through the states: a line for each event, and the believers after it.
pub(super) fn told<M: Model>(model: &M, path: Path<M::State, M::Action>) -> String {
    let steps = path.into_vec();
    let mut text = String::new();
    for pair in steps.windows(2) {
        let [(before, Some(action)), (after, _)] = pair else { continue };
        let (what, news) = (M::tell(before, action), model.news(before, after).join("; "));
        if what == TIME_PASSES && news.is_empty() {
            continue;
        }
        let arrow = if news.is_empty() { "" } else { "  → " };
        let _ = writeln!(text, "{:>6.3} s  {what}{arrow}{news}", seconds(M::now(before)));
    }
    if let Some((last, _)) = steps.last() {
        let names = model.believers(last).into_iter().map(label).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "{:>6.3} s  these believe that they have the lock: [{names}]", seconds(M::now(last)));
    }
    text
}

pub(super) fn label((client, number): Owner) -> String {
    format!("{client}.{number}")
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds are read")]
pub(super) fn seconds(real: Real) -> f64 {
    real as f64 / 1e9
}

fn lease<M: Model>(state: &M::State, of: Owner) -> Option<&Acquisition> {
    M::leases(state).find(|(owner, _)| *owner == of).map(|(_, lease)| lease)
}

/// Describes what has become of the leases.
fn leases_told<M: Model>(model: &M, before: &M::State, after: &M::State) -> Vec<String> {
    let mut told = Vec::new();
    for (owner, is) in M::leases(after) {
        let was = lease::<M>(before, owner);
        if was.is_some_and(|was| (was.phase(), was.valid_until()) == (is.phase(), is.valid_until())) {
            continue;
        }
        let (name, until) = (label(owner), seconds(model.clock().when(is.valid_until())));
        let fence = is.fence().map(u64::from).unwrap_or_default();
        match is.phase() {
            Some(Phase::Held) => told.push(format!("{name} is held until {until:.3} s with the fence {fence}")),
            Some(Phase::AtRisk) => told.push(format!("{name} is at risk until {until:.3} s")),
            Some(Phase::Over { .. }) => told.push(format!("{name} is lost")),
            None => {}
        }
    }
    for (owner, was) in M::leases(before).filter(|(_, was)| !was.is_over()) {
        if lease::<M>(after, owner).is_none_or(Acquisition::is_over) {
            let attempted = if was.is_attempting() { "has failed" } else { "is over" };
            let how = if was.is_releasing() { "is released" } else { attempted };
            told.push(format!("{} {how}", label(owner)));
        }
    }
    told
}
