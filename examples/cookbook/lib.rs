//! The recipes of `docs/cookbook.md`, as tests against the crates that they name.
//!
//! The library's own page ignores those that need a web framework, a database or an exporter; here none is ignored.

#[cfg(doctest)]
#[doc = include_str!(concat!(env!("OUT_DIR"), "/cookbook.md"))]
pub mod recipes {}
