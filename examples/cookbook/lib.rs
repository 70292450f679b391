//! The recipes of `docs/cookbook.md`, as tests against the crates that they name.
//!
//! The library's own page of them is not tested: it would need stand-ins for a web framework and databases.

#[cfg(doctest)]
#[doc = include_str!("../../docs/cookbook.md")]
pub mod recipes {}
