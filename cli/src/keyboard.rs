//! A terminal's input, and the keys in it.

use std::{
    io::{self, Read},
    thread,
    time::Duration,
};

use rustix::{process::getpgrp, termios::tcgetpgrp};

use crate::signals::block_input_stops;

/// How often to ask whether the terminal is ours again.
const RETRY: Duration = Duration::from_millis(100);

/// Whether standard input is the terminal of another process now.
pub(crate) fn is_elsewhere() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground != getpgrp())
}

/// Hands over all of standard input, until `take` has enough or there is no more. In the background of a terminal it
/// waits: a read there would stop the whole process, and again after each CONT, before it could end by TERM.
pub(crate) fn read_all(mut take: impl FnMut(&[u8]) -> bool) {
    let _as_it_is = block_input_stops();
    let (mut input, mut unread) = (io::stdin(), [0; 1_024]);
    loop {
        match input.read(&mut unread) {
            Ok(count @ 1..) if take(unread.get(..count).unwrap_or_default()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if is_elsewhere() => thread::sleep(RETRY),
            _ => return,
        }
    }
}

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Any other byte.
    Byte(u8),
}

/// The state between the bytes of a key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Keys {
    #[default]
    Between,
    Escape,
    /// After `ESC [` or `ESC O`, with a number of one digit. No key here has a longer number.
    Sequence(Option<u8>),
}

impl Keys {
    /// The key that ends with this byte, if one does.
    pub(crate) fn push(&mut self, byte: u8) -> Option<Key> {
        let before = std::mem::take(self);
        match (before, byte) {
            (_, 0x1b) => *self = Self::Escape,
            (Self::Escape, b'[' | b'O') => *self = Self::Sequence(None),
            (Self::Sequence(None), b'0'..=b'9') => *self = Self::Sequence(Some(byte)),
            (Self::Sequence(_), b'0'..=b'9' | b';') => *self = Self::Sequence(Some(b' ')),
            (Self::Sequence(number), _) => return sequence(number, byte),
            (Self::Between | Self::Escape, _) => return Some(Key::Byte(byte)),
        }
        None
    }
}

/// The key of a sequence, as xterm and the console of Linux send it.
fn sequence(number: Option<u8>, last: u8) -> Option<Key> {
    match (number, last) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'H') | (Some(b'1' | b'7'), b'~') => Some(Key::Home),
        (_, b'F') | (Some(b'4' | b'8'), b'~') => Some(Key::End),
        (Some(b'5'), b'~') => Some(Key::PageUp),
        (Some(b'6'), b'~') => Some(Key::PageDown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(bytes: &str) -> Vec<Key> {
        let mut keys = Keys::default();
        bytes.bytes().filter_map(|byte| keys.push(byte)).collect()
    }

    #[test]
    fn keys_of_several_bytes_are_one_key() {
        use Key::{Byte, Down, End, Home, PageDown, PageUp, Up};
        for (bytes, keys) in [
            ("sq", &[Byte(b's'), Byte(b'q')][..]),
            ("\x1b[A\x1b[B\x1bOA\x1bOB", &[Up, Down, Up, Down]),
            ("\x1b[5~\x1b[6~", &[PageUp, PageDown]),
            ("\x1b[H\x1b[F\x1b[1~\x1b[4~", &[Home, End, Home, End]),
            // With a modifier.
            ("\x1b[1;5Aq", &[Up, Byte(b'q')]),
            // An unknown one, and the key Escape itself.
            ("\x1b[15~q", &[Byte(b'q')]),
            ("\x1bq\x1b\x1b[Aq", &[Byte(b'q'), Up, Byte(b'q')]),
        ] {
            assert_eq!(pressed(bytes), keys, "{bytes:?}");
        }
    }
}
