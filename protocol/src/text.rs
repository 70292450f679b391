//! Text that is put together on the way of every request: without `format!`, and without a copy of a copy.

use std::sync::Arc;

/// A text no longer than this is put together on the stack.
const ON_STACK: usize = 192;

/// All parts in a row, as one text to be shared: one allocation, unless it is a long one.
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

/// A number as text.
#[derive(Debug, Clone, Copy)]
pub struct Digits {
    digits: [u8; Self::MOST],
    unused: usize,
}

impl Digits {
    /// How many the largest number has.
    pub const MOST: usize = 20;

    /// The decimal digits of a number.
    pub fn of(mut number: u64) -> Self {
        let (mut digits, mut unused) = ([b'0'; Self::MOST], Self::MOST);
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
            (number, unused) = (number / 10, unused - 1);
            if number == 0 {
                break;
            }
        }
        Self { digits, unused }
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        self.digits.get(self.unused..).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default()
    }
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

    #[test]
    fn digits_are_those_that_are_displayed() {
        for number in [0, 1, 9, 10, 99, 100, 1_795_243_932_883_512, u64::MAX / 10, u64::MAX - 1, u64::MAX] {
            assert_eq!(Digits::of(number).as_str(), number.to_string());
        }
    }
}
