//! The recipes of `docs/cookbook.md`, as tests against the crates that they name.
//!
//! The library's own documentation ignores recipes that need a web framework, a database or an exporter. Here none is
//! ignored.

#[cfg(doctest)]
#[doc = include_str!(concat!(env!("OUT_DIR"), "/cookbook.md"))]
pub mod recipes {}
