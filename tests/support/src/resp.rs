//! RESP2 frames: their bounds, and their contents.
//!
//! The raw client decodes frames and the proxy only needs their bounds, so both share this code and cannot disagree
//! about where a reply ends.

use std::fmt;

/// One decoded RESP2 reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A null bulk string or a null array: RESP2 has both, callers want neither.
    Nil,
    /// `:n`
    Int(i64),
    /// `$n`, as bytes because a value may not be text.
    Bulk(Vec<u8>),
    /// `+text`
    Simple(String),
    /// `-text`
    Error(String),
    /// `*n`
    Array(Vec<Value>),
}

impl Value {
    /// Whether the server answered with a null.
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// Whether the server answered `+OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Simple(text) if text == "OK")
    }

    /// The text of an error reply.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            _ => None,
        }
    }

    /// The reply as text; panics on anything that is not a string.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Simple(text) => text.clone(),
            other => panic!("a string reply was expected, the server sent {other:?}"),
        }
    }

    /// The reply as a number, even if the server wrote it as a string.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Bulk(_) | Self::Simple(_) => {
                self.text().parse().unwrap_or_else(|_| panic!("a number was expected, the server sent {self:?}"))
            }
            other => panic!("a number was expected, the server sent {other:?}"),
        }
    }

    /// The elements of an array reply; panics on anything else.
    #[track_caller]
    pub fn array(&self) -> &[Value] {
        match self {
            Self::Array(items) => items,
            other => panic!("an array was expected, the server sent {other:?}"),
        }
    }
}

/// The error for bytes that are not RESP2; more of them would not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes that are not a RESP2 frame")
    }
}

impl std::error::Error for Malformed {}

/// The length of the frame at the start of `buffer`, or `None` if its end has not arrived.
pub(crate) fn frame_len(buffer: &[u8]) -> Result<Option<usize>, Malformed> {
    // Counts frames still owed instead of recursing, so that nesting costs no stack.
    let mut at = 0;
    let mut owed = 1_usize;
    while owed > 0 {
        let Some(Head { kind, line, next }) = head(buffer, at)? else {
            return Ok(None);
        };
        at = next;
        owed -= 1;
        match kind {
            b'$' => {
                if let Some(length) = length(line)? {
                    at = length.checked_add(at + 2).ok_or(Malformed)?;
                    if at > buffer.len() {
                        return Ok(None);
                    }
                }
            }
            b'*' => {
                let items = length(line)?.unwrap_or(0);
                owed = owed.checked_add(items).ok_or(Malformed)?;
            }
            _ => {}
        }
    }
    Ok(Some(at))
}

/// Decodes the frame at the start of `buffer` and returns its length too.
pub(crate) fn decode(buffer: &[u8]) -> Result<Option<(Value, usize)>, Malformed> {
    let Some(end) = frame_len(buffer)? else {
        return Ok(None);
    };
    let mut at = 0;
    let value = value(buffer, &mut at)?;
    debug_assert_eq!(at, end);
    Ok(Some((value, end)))
}

/// The arguments of a command, which RESP sends as an array of bulk strings.
pub(crate) fn arguments(frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let Ok(Some((Value::Array(items), _))) = decode(frame) else {
        return None;
    };
    items
        .into_iter()
        .map(|item| match item {
            Value::Bulk(bytes) => Some(bytes),
            _ => None,
        })
        .collect()
}

/// Encodes a command as every client does.
pub(crate) fn encode(args: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        frame.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        frame.extend_from_slice(arg);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

/// The first line of a frame.
struct Head<'a> {
    kind: u8,
    line: &'a [u8],
    /// Where the bytes after the line begin.
    next: usize,
}

/// The line that begins at `at`, once it is complete.
fn head(buffer: &[u8], at: usize) -> Result<Option<Head<'_>>, Malformed> {
    let Some((&kind, rest)) = buffer.get(at..).and_then(<[u8]>::split_first) else {
        return Ok(None);
    };
    if !b"+-:$*".contains(&kind) {
        return Err(Malformed);
    }
    let end = rest.windows(2).position(|pair| pair == b"\r\n");
    Ok(end.map(|end| Head { kind, line: &rest[..end], next: at + 1 + end + 2 }))
}

/// A length header; -1 is a null.
fn length(line: &[u8]) -> Result<Option<usize>, Malformed> {
    match number(line)? {
        -1 => Ok(None),
        other => usize::try_from(other).map(Some).map_err(|_| Malformed),
    }
}

fn number(line: &[u8]) -> Result<i64, Malformed> {
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Malformed)
}

/// Decodes at `at` in a buffer known to hold the whole frame.
fn value(buffer: &[u8], at: &mut usize) -> Result<Value, Malformed> {
    let Head { kind, line, next } = head(buffer, *at)?.ok_or(Malformed)?;
    *at = next;
    let text = || String::from_utf8_lossy(line).into_owned();
    Ok(match kind {
        b'+' => Value::Simple(text()),
        b'-' => Value::Error(text()),
        b':' => Value::Int(number(line)?),
        b'$' => match length(line)? {
            None => Value::Nil,
            Some(length) => {
                let bytes = buffer.get(next..next + length).ok_or(Malformed)?.to_vec();
                *at = next + length + 2;
                Value::Bulk(bytes)
            }
        },
        _ => match length(line)? {
            None => Value::Nil,
            Some(count) => {
                let mut items = Vec::new();
                for _ in 0..count {
                    items.push(value(buffer, at)?);
                }
                Value::Array(items)
            }
        },
    })
}
