//! The protocol, verified: `model` searches it with a model checker, and `simulation` plays it under faults. Only their
//! tests do anything. Beside them, `tests/fairness.rs` and `tests/steps.rs` compare the memory node with the scripts,
//! `tests/values.rs` tries values that people and other programs choose, and the crate in `soak` plays faults against
//! real servers. [Seeded bugs](seeded) show that these checks find what they look for.

#[cfg(test)]
mod model;
pub mod seeded;
#[cfg(test)]
mod simulation;
