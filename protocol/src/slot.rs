//! The hash slots of a cluster: the slot of a key, and sets of slots. The rules are those of the Redis cluster
//! specification ("Key distribution model", "Hash tags").

use std::fmt;

/// How many slots there are.
pub const SLOTS: u16 = 16_384;

const WORDS: usize = SLOTS as usize / 64;

/// The slot of a key: by its hash tag, if it has one.
pub fn of(key: &str) -> u16 {
    crc16(hash_tag(key).unwrap_or(key).as_bytes()) % SLOTS
}

/// The text between the first `{` of a key and the first `}` after it, unless that is empty.
pub fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

/// CRC-16/XMODEM: polynomial 0x1021, from zero, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 { shifted } else { shifted ^ 0x1021 }
        })
    })
}

/// A set of slots.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet(Box<[u64; WORDS]>);

impl Default for SlotSet {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl SlotSet {
    /// Inserts a slot. A number that is not a slot changes nothing.
    pub fn insert(&mut self, slot: u16) {
        if let Some(word) = self.0.get_mut(usize::from(slot / 64)) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Whether the slot is in the set.
    pub fn contains(&self, slot: u16) -> bool {
        self.0.get(usize::from(slot / 64)).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }

    /// Inserts all slots of the other set.
    pub fn extend(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(&*other.0) {
            *word |= more;
        }
    }

    /// Whether all slots of the other set are in this one.
    pub fn has_all(&self, other: &Self) -> bool {
        self.0.iter().zip(&*other.0).all(|(word, others)| others & !word == 0)
    }

    /// The number of slots in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

impl FromIterator<u16> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> Self {
        let mut set = Self::default();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots", self.len())
    }
}

/// Some of a node's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// Every key.
    All,
    /// The keys in these slots.
    Of(SlotSet),
}

impl Keys {
    /// Whether the key is among them.
    pub fn has(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(slots) => slots.contains(of(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    /// The first is the specification's own example, the others are a server's answers to `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_a_server() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [("123456789", 12_739), ("foo", 12_182), ("bar", 5_061), ("hello", 866), ("", 0)] {
            assert_eq!(of(key), slot, "{key}");
        }
    }

    #[test]
    fn a_hash_tag_decides_alone() {
        for (key, tag) in [
            ("{user1000}.following", Some("user1000")),
            ("foo{}{bar}", None),
            ("foo{{bar}}zap", Some("{bar")),
            ("foo{bar}{zap}", Some("bar")),
            ("foo{bar", None),
            ("foo}bar{", None),
            ("foobar", None),
        ] {
            assert_eq!(hash_tag(key), tag, "{key}");
            assert_eq!(of(key), of(tag.unwrap_or(key)), "{key}");
        }
    }

    #[test]
    fn a_locks_companions_are_in_its_slot() {
        for name in ["job", "{a}:job", "x{y}z", "{", "a{b}}c", "{a}{b}", "{{a}", "a}b", "{}", "{}{a}", "}"] {
            let key = Key::of_lock(name);
            let companions = [key.fence(), key.queue(), key.wait(), key.holders(), key.forced()];
            let are_there = companions.iter().all(|companion| of(companion) == of(name));
            assert_eq!(are_there, key.is_in_one_slot(), "{name}");
        }
    }

    #[test]
    fn a_set_has_what_was_put_in() {
        let set: SlotSet = [0, 63, 64, 16_383, 16_384].into_iter().collect();
        assert_eq!((set.len(), set.is_empty(), SlotSet::default().is_empty()), (4, false, true));
        let inside = |set: &SlotSet| (0..u16::MAX).filter(|&slot| set.contains(slot)).collect::<Vec<_>>();
        assert_eq!(inside(&set), [0, 63, 64, 16_383]);
        let mut more: SlotSet = [7, 63].into_iter().collect();
        more.extend(&set);
        assert_eq!(inside(&more), [0, 7, 63, 64, 16_383]);
    }

    #[test]
    fn keys_are_told_apart_by_their_slots() {
        let some = Keys::Of([of("job")].into_iter().collect());
        assert!(Keys::All.has("job") && some.has("job") && some.has("{job}:lh:fence") && !some.has("other"));
    }
}
