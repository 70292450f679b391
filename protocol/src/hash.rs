//! Hash tables by name. Users choose the names, so the hash has a seed of its own in every process. It need not resist
//! an attacker who can watch its timing, and costs a fraction of the standard library's.

use foldhash::fast::RandomState;

/// A table by names or tokens.
pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// A set of names or tokens.
pub type HashSet<T> = std::collections::HashSet<T, RandomState>;
