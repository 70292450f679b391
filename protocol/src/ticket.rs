//! The ticket that a lease leaves for its heir when it is handed over (rule 13).
//!
//! The text is `lh-ticket:1?lock=…&token=…&fence=…&rest=…&sum=…`, in which the lock's key is percent-encoded. The sum
//! detects tickets that were cut short or mistyped; it does not prevent forgery.

use std::{fmt, str::FromStr, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{fence::Fence, token::Token};

/// The beginning of a ticket, with the version of its format.
const BEGIN: &str = "lh-ticket:1?lock=";

/// Escapes all that could end a field or a shell word, and leaves names readable.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b':').remove(b'.').remove(b'-').remove(b'_').remove(b'/');

/// More bytes than any ticket has: a name has at most 1024, and a prefix 256.
const LONGEST: usize = 8 * 1024;

/// A lease that can be adopted: [`Lease::into_ticket`] or [`Lease::ticket`] made it, and [`Lock::adopt`] takes it.
///
/// **It is a secret.** With it anybody can take the lock from its holder. `Debug` shows the lock and the fence only;
/// [`expose`](Self::expose) returns all of it as text, for a successor's environment, or a pipe to it.
///
/// It does not prove that the lock is held: the key expires by itself, and another holder may have the lock by then.
///
/// [`Lease::into_ticket`]: https://docs.rs/leasehold/latest/leasehold/struct.Lease.html#method.into_ticket
/// [`Lease::ticket`]: https://docs.rs/leasehold/latest/leasehold/struct.Lease.html#method.ticket
/// [`Lock::adopt`]: https://docs.rs/leasehold/latest/leasehold/struct.Lock.html#method.adopt
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Ticket {
    lock: Box<str>,
    token: Token,
    fence: Fence,
    /// In milliseconds.
    rest: u64,
}

/// The text is not a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no ticket of a lease: {0}")]
pub struct ParseTicketError(&'static str);

impl Ticket {
    /// The lock's key: its name, with the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.lock
    }

    /// The fence of the lease that the ticket was made from. The heir's will be larger.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The token that holds the lock, without its label.
    #[doc(hidden)]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The rest of the interval in which the lock is acquired once, as of when the ticket was made.
    #[doc(hidden)]
    pub fn rest(&self) -> Duration {
        Duration::from_millis(self.rest)
    }

    /// The whole ticket as text, including the secret; [`parse`](str::parse) reads it. It has no blank, no quote, and
    /// no character with a meaning in a shell except `?` and `&`.
    #[must_use]
    pub fn expose(&self) -> String {
        let (lock, token) = (utf8_percent_encode(&self.lock, ESCAPED), self.token.identity());
        let text = format!("{BEGIN}{lock}&token={token}&fence={}&rest={}", self.fence, self.rest);
        format!("{text}&sum={:08x}", sum(&text))
    }
}

/// A ticket for the lock with this key, which the token holds with this fence. `rest` is the rest of the interval in
/// which the lock is acquired once; part of a millisecond counts as a whole one.
pub fn of(lock: &str, token: &Token, fence: Fence, rest: Duration) -> Ticket {
    let token = Token::of_identity(token.identity()).unwrap_or_else(|| token.clone());
    let rest = u64::try_from(rest.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Ticket { lock: lock.into(), token, fence, rest }
}

impl FromStr for Ticket {
    type Err = ParseTicketError;

    fn from_str(text: &str) -> Result<Self, ParseTicketError> {
        let wrong = ParseTicketError;
        if text.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let text = text.trim();
        if !text.starts_with("lh-ticket:") {
            return Err(wrong("it does not begin with \"lh-ticket:\""));
        }
        let fields = text.strip_prefix(BEGIN).ok_or(wrong("a newer leasehold may have made it"))?;
        let (summed, said) = text.rsplit_once("&sum=").ok_or(wrong("its end is missing"))?;
        if said != format!("{:08x}", sum(summed)) {
            return Err(wrong("it was cut short or changed on its way"));
        }
        let read = || {
            let (lock, rest) = fields.split_once("&token=")?;
            let (token, rest) = rest.split_once("&fence=")?;
            let (fence, rest) = rest.split_once("&rest=")?;
            let (rest, _sum) = rest.split_once("&sum=")?;
            let lock = percent_decode_str(lock).decode_utf8().ok()?.as_ref().into();
            Some(Self { lock, token: Token::of_identity(token)?, fence: fence.parse().ok()?, rest: rest.parse().ok()? })
        };
        read().ok_or(wrong("one of its parts is missing or odd"))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("lock", &self.lock).field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// A checksum in which each byte counts: FNV-1a of 32 bits. One byte that differs always makes another sum.
fn sum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket(lock: &str) -> Ticket {
        let fence = Fence::try_from(1_795_243_932_883_512_u64).unwrap();
        of(lock, &Token::random("host:7"), fence, Duration::from_micros(1_500))
    }

    #[test]
    fn a_ticket_is_what_its_text_says() {
        for lock in ["jobs:nightly", "{a} b&token=c", "é%41\n\"'$?#", "&sum=00000000", &"x".repeat(1280)] {
            let ticket = ticket(lock);
            let text = ticket.expose();
            assert_eq!(text.parse(), Ok(ticket.clone()), "{text}");
            assert_eq!(format!(" {text}\n").parse(), Ok(ticket.clone()), "blanks around it");
            assert_eq!((ticket.name(), ticket.rest()), (lock, Duration::from_millis(2)));
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":.-_/?=&%".contains(&byte);
            assert!(text.bytes().all(is_plain), "{text}");
        }
    }

    #[test]
    fn the_largest_of_all_has_room() {
        let fence = Fence::try_from(i64::MAX).unwrap();
        let largest = of(&"\n".repeat(1024 + 256), &Token::random("x"), fence, Duration::MAX);
        assert_eq!(largest.expose().parse(), Ok(largest));
    }

    #[test]
    fn a_text_that_is_no_ticket_is_told_from_one_that_was_cut() {
        let text = ticket("job").expose();
        for (no_ticket, why) in [
            ("", "does not begin"),
            ("job", "does not begin"),
            (&*text.replace(":1?", ":2?"), "newer"),
            (&text[..text.len() - 1], "cut short or changed"),
            (&text[..40], "end is missing"),
            (&"x".repeat(LONGEST + 1), "too long"),
        ] {
            let error = no_ticket.parse::<Ticket>().unwrap_err();
            assert!(error.to_string().contains(why), "{error}: {no_ticket}");
            assert!(!error.to_string().contains("lh1:"), "{error}");
        }
    }

    #[test]
    fn neither_its_debug_form_nor_an_error_shows_the_secret() {
        let ticket = ticket("job");
        let shown = format!("{ticket:?}");
        assert!(shown.contains("job") && !shown.contains(&ticket.token().identity()[4..]), "{shown}");
    }

    proptest! {
        #[test]
        fn no_byte_of_it_changes_unnoticed(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let ticket = ticket("jobs:nightly");
            let mut bytes = ticket.expose().into_bytes();
            let at = at.index(bytes.len());
            prop_assume!(bytes[at] != to && !(at + 1 == bytes.len() && to.is_ascii_whitespace()));
            bytes[at] = to;
            if let Ok(text) = String::from_utf8(bytes) {
                prop_assert!(text.parse::<Ticket>().is_err(), "{}", text);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*", end in "[0-9a-z=&%:]*") {
            let _read = text.parse::<Ticket>();
            let made = format!("{BEGIN}{end}");
            let _read = format!("{made}&sum={:08x}", sum(&made)).parse::<Ticket>();
        }
    }
}
