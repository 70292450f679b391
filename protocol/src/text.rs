//! Text that is built for every request: without `format!`, and without a copy of a copy.

use std::sync::Arc;

/// A text no longer than this is built on the stack.
const ON_STACK: usize = 192;

/// All parts joined to one shared text: with one allocation, unless it is long.
pub(crate) fn joined(parts: &[&str]) -> Arc<str> {
    let mut buffer = [0_u8; ON_STACK];
    let mut left = &mut buffer[..];
    for part in parts {
        let Some((here, after)) = left.split_at_mut_checked(part.len()) else { return parts.concat().into() };
        here.copy_from_slice(part.as_bytes());
        left = after;
    }
    let length = ON_STACK - left.len();
    let text = buffer.get(..length).and_then(|text| std::str::from_utf8(text).ok());
    text.map_or_else(|| parts.concat().into(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_however_long_they_are() {
        for length in [0, 1, 40, ON_STACK - 7, ON_STACK - 6, ON_STACK - 5, ON_STACK, 5_000] {
            let long = "é".repeat(length / 2) + &"x".repeat(length % 2);
            assert_eq!(*joined(&["ab", &long, "", "cdéé"]), ["ab", &long, "cdéé"].concat(), "{length}");
        }
        assert_eq!((&*joined(&[]), &*joined(&[""])), ("", ""));
    }
}
