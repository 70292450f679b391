//! A script's notification to one fair waiter.

use std::time::Duration;

/// In the format of promote.lua.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notification<'a> {
    Granted { key: &'a str, token: &'a str },
    Next { token: &'a str, within: Duration },
}

impl<'a> Notification<'a> {
    pub(super) fn read(text: &'a str) -> Option<Self> {
        let (word, rest) = text.split_once(' ')?;
        let (number, rest) = rest.split_once(' ')?;
        match word {
            "granted" => {
                let (token, key) = rest.split_at_checked(number.parse().ok()?)?;
                Some(Self::Granted { key, token })
            }
            "next" => Some(Self::Next { token: rest, within: Duration::from_millis(number.parse().ok()?) }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_and_a_key_may_hold_anything() {
        assert_eq!(
            Notification::read("granted 8 lh1:…@ a jo b"),
            Some(Notification::Granted { token: "lh1:…@", key: " a jo b" }),
        );
        let within = Duration::from_millis(250);
        assert_eq!(
            Notification::read("next 250 lh1:x@two words"),
            Some(Notification::Next { token: "lh1:x@two words", within })
        );
    }

    #[test]
    fn anything_else_notifies_nobody() {
        for text in ["", "granted", "granted 5 abc", "granted x abc", "next -1 abc", "taken 3 abc", "granted 2 …"] {
            assert_eq!(Notification::read(text), None, "{text}");
        }
    }
}
