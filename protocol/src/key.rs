//! The keys that a name stands for.

use std::{
    borrow::Borrow,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::{slot::hash_tag, text::joined};

/// Longest name, in bytes.
const LONGEST: usize = 1024;

/// The reason why a text cannot be a lock's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidName(Box<str>);

/// The keys of one lock name: the lock key itself, which is exactly prefix + name, and its companions.
#[derive(Clone)]
pub struct Key {
    full: Arc<str>,
    prefix: u32,
    /// Stored, because each request reads it, and most requests several times.
    has_tag: bool,
}

impl Key {
    /// The keys of this name. Refuses an invalid name, before any I/O.
    pub fn new(prefix: &str, name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() {
            return Err(InvalidName("the name is empty: name the resource that is to be protected".into()));
        }
        if name.len() > LONGEST {
            let length = name.len();
            return Err(InvalidName(
                format!("the name is {length} bytes long, {LONGEST} is the most: use a digest of it").into(),
            ));
        }
        let full = joined(&[prefix, name]);
        if names_a_companion(&full) {
            return Err(InvalidName(format!(
                "the name {name:?} ends like the key in which a lock keeps its fence or queue: choose another ending \
                 than \":lh:…\" or \":lht:…\""
            ).into()));
        }
        // The builder keeps prefixes far below this.
        Ok(Self::with_prefix(full, u32::try_from(prefix.len()).unwrap_or_default()))
    }

    fn with_prefix(full: Arc<str>, prefix: u32) -> Self {
        let has_tag = hash_tag(&full).is_some();
        Self { full, prefix, has_tag }
    }

    /// The lock with this full key, as a server names it.
    pub fn of_lock(full: &str) -> Self {
        Self::with_prefix(full.into(), 0)
    }

    /// The name that the user gave the lock.
    pub fn name(&self) -> &str {
        self.full.get(self.prefix as usize..).unwrap_or(&self.full)
    }

    /// The key that holds the token.
    pub fn lock(&self) -> &str {
        &self.full
    }

    /// The key that holds the newest fence.
    pub fn fence(&self) -> String {
        self.fence_parts().concat()
    }

    /// The parts of [`fence`](Self::fence), for a caller that puts them behind other text.
    pub fn fence_parts(&self) -> [&str; 4] {
        self.companion("fence")
    }

    /// The key that holds the queue of waiters.
    pub fn queue(&self) -> String {
        self.queue_parts().concat()
    }

    /// The parts of [`queue`](Self::queue).
    pub fn queue_parts(&self) -> [&str; 4] {
        self.companion("queue")
    }

    /// The key that holds how to reach the waiters.
    pub fn wait(&self) -> String {
        self.wait_parts().concat()
    }

    /// The parts of [`wait`](Self::wait).
    pub fn wait_parts(&self) -> [&str; 4] {
        self.companion("wait")
    }

    /// The key that holds the lock's sharers.
    pub fn holders(&self) -> String {
        self.holders_parts().concat()
    }

    /// The parts of [`holders`](Self::holders).
    pub fn holders_parts(&self) -> [&str; 4] {
        self.companion("holders")
    }

    /// The key that holds who took the lock from its holder by force.
    pub fn forced(&self) -> String {
        self.companion("forced").concat()
    }

    /// Whether a cluster keeps all these keys in one slot. In a name without a hash tag, a `}` would end the
    /// companions' tag too early.
    pub fn is_in_one_slot(&self) -> bool {
        self.has_tag || !self.full.contains('}')
    }

    /// A companion key in the lock's own slot: a name without a hash tag becomes the tag, a name with one keeps it.
    /// The two spellings keep `a` and `{a}` apart.
    fn companion(&self, what: &'static str) -> [&str; 4] {
        let full = &*self.full;
        if self.has_tag { ["", full, ":lht:", what] } else { ["{", full, "}:lh:", what] }
    }
}

/// A key behind this prefix that no lock has, and that is never written.
pub fn of_nobody(prefix: &str) -> Key {
    Key::of_lock(&Key::of_lock(prefix).companion("health").concat())
}

/// Two keys are one lock if the server sees one key, however it was split into prefix and name.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.full == other.full
    }
}

impl Eq for Key {}

/// A key is borrowed as its full text, so that a table of keys can be searched with a text from a server.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.full
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.full.hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.full, f)
    }
}

fn names_a_companion(key: &str) -> bool {
    let Some((rest, what)) = key.rsplit_once(':') else { return false };
    let is_companion = !what.is_empty() && what.bytes().all(|byte| byte.is_ascii_lowercase());
    is_companion
        && (rest.strip_suffix(":lh").is_some_and(|base| base.ends_with('}'))
            || rest.strip_suffix(":lht").is_some_and(|base| hash_tag(base).is_some()))
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn nobodys_key_is_no_locks_and_within_the_rights_for_companions() {
        for (prefix, expected) in [("", "{}:lh:health"), ("jobs:", "{jobs:}:lh:health"), ("{a}:", "{a}::lht:health")] {
            let key = of_nobody(prefix);
            assert_eq!(key.lock(), expected);
            assert!(Key::new("", expected).is_err());
        }
    }

    fn key(name: &str) -> Key {
        Key::new("", name).unwrap()
    }

    #[test]
    fn the_lock_key_is_prefix_and_name_and_nothing_else() {
        let key = Key::new("app:", "job").unwrap();
        assert_eq!((key.lock(), key.name()), ("app:job", "job"));
    }

    #[test]
    fn companions_share_the_slot_and_never_meet() {
        assert_eq!(key("a").fence(), "{a}:lh:fence");
        assert_eq!(key("{a}").fence(), "{a}:lht:fence");
        assert_eq!(key("x{a}y").fence(), "x{a}y:lht:fence");
        assert_eq!(key("{}").fence(), "{{}}:lh:fence");
        assert_eq!((key("a").queue(), key("a").wait()), ("{a}:lh:queue".into(), "{a}:lh:wait".into()));
        assert_eq!((key("a").holders(), key("{a}").holders()), ("{a}:lh:holders".into(), "{a}:lht:holders".into()));
        assert_eq!((key("a").forced(), key("{a}").forced()), ("{a}:lh:forced".into(), "{a}:lht:forced".into()));
    }

    #[test]
    fn empty_long_and_companion_names_are_refused_with_a_reason() {
        for (name, says) in [
            (String::new(), "empty"),
            ("x".repeat(1025), "1025 bytes"),
            ("{a}:lh:fence".into(), "ends like"),
            ("{a}:lht:queue".into(), "ends like"),
            ("{a}:lh:holders".into(), "ends like"),
        ] {
            let error = Key::new("", &name).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(Key::new("", &"x".repeat(1024)).is_ok());
        assert!(Key::new("", "a:lh:fence").is_ok(), "no lock has this companion");
    }

    #[test]
    fn a_table_of_keys_is_asked_with_what_the_server_says() {
        let table = std::collections::HashMap::from([(Key::new("app:", "job").unwrap(), 1), (key("other"), 2)]);
        assert_eq!((table.get("app:job"), table.get("job")), (Some(&1), None));
        assert_eq!(table.get(&key("app:job")), Some(&1), "however the text was split");
    }

    #[test]
    fn keys_are_spread_over_a_table() {
        let state = std::hash::RandomState::new();
        assert_ne!(state.hash_one(key("a")), state.hash_one(key("b")));
    }

    #[test]
    fn only_what_a_lock_could_have_as_its_companion_is_refused() {
        for name in ["{a}:lh:", "{a}:lh:Fence", "a:lht:fence", "{a}:lht:", "{a}:lht:Fence", "{}:lht:fence"] {
            assert!(Key::new("", name).is_ok(), "{name}");
        }
    }
}
