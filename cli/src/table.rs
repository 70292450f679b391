//! The table of held locks, for `ls` and `top`.

use std::{cmp::Ordering, time::Duration};

use leasehold::{Client, Error, Holder, Listing, Lock, Waiter};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::{
    duration::{ago, brief},
    exit::{Ended, Exit},
    say::shown,
};

/// The most locks to ask about at a time.
const AT_ONCE: usize = 64;

/// One lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) holder: Holder,
    /// The number of waiters in its fair queue, if that is known. Over a quorum there is no queue.
    pub(crate) waiters: Option<usize>,
}

impl Row {
    /// The holder as the library writes it, with the lock's name and the number of its waiters.
    pub(crate) fn as_json(&self) -> Value {
        with_fields(json!(self.holder), [("name", json!(self.name)), ("waiters", json!(self.waiters))])
    }
}

/// An object of the library, with further fields.
pub(crate) fn with_fields<const N: usize>(mut object: Value, fields: [(&str, Value); N]) -> Value {
    if let Value::Object(all) = &mut object {
        all.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    }
    object
}

/// The order of rows. Equal ones are sorted by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Name,
    /// The oldest holder first.
    Held,
    /// The key that expires soonest first.
    Expiry,
    Holder,
}

impl Order {
    /// The next order, and the first after the last.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Name => Self::Held,
            Self::Held => Self::Expiry,
            Self::Expiry => Self::Holder,
            Self::Holder => Self::Name,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Held => "time held",
            Self::Expiry => "expiry",
            Self::Holder => "holder",
        }
    }

    /// Sorts the rows. Those without the value come last.
    pub(crate) fn sort(self, rows: &mut [Row]) {
        rows.sort_by(|one, other| {
            let by = match self {
                Self::Name => Ordering::Equal,
                Self::Held => {
                    let [one, other] = [one, other].map(|row| row.holder.since());
                    one.is_none().cmp(&other.is_none()).then(one.cmp(&other))
                }
                Self::Expiry => {
                    let lives = |row: &Row| row.holder.remaining().unwrap_or(Duration::MAX);
                    lives(one).cmp(&lives(other))
                }
                Self::Holder => {
                    let [one, other] = [one, other].map(|row| row.holder.label());
                    one.is_none().cmp(&other.is_none()).then(one.cmp(&other))
                }
            };
            by.then_with(|| one.name.cmp(&other.name))
        });
    }
}

/// The held locks, as far as they can be read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(crate) rows: Vec<Row>,
    /// Why held locks are missing from the rows: one key that is broken, or that we may not read, hides no other.
    pub(crate) unread: Vec<String>,
    /// The primaries of a cluster whose locks are missing from the rows, and why.
    pub(crate) missing: Option<String>,
}

/// Reads the held locks whose names match, sorted by name.
pub(crate) async fn read(client: &Client, pattern: &str, have_queues: bool) -> Result<Table, Ended> {
    let Table { mut rows, mut unread, .. } = Table::default();
    let Listing { locks, missing, .. } = client.list_reachable(pattern).await?;
    for some in locks.chunks(AT_ONCE) {
        let ask = |lock: Lock| async move { (row(&lock, have_queues).await, lock) };
        let mut asked: JoinSet<_> = some.iter().cloned().map(ask).collect();
        while let Some(seen) = asked.join_next().await {
            match seen.map_err(|error| Ended::new(Exit::Io, error.to_string()))? {
                (Ok(row), _) => rows.extend(row),
                (Err(error), _) if error.is_transient() => return Err(error.into()),
                (Err(error), lock) => unread.push(format!("{:?}: {error}", lock.name())),
            }
        }
    }
    Order::Name.sort(&mut rows);
    unread.sort();
    Ok(Table { rows, unread, missing: missing.map(|error| error.to_string()) })
}

/// The row of a lock; `None` if it is free by now.
async fn row(lock: &Lock, has_queue: bool) -> Result<Option<Row>, Error> {
    let Some(holder) = lock.holder().await? else { return Ok(None) };
    let waiters = if has_queue { waiting(lock).await?.ok() } else { None };
    Ok(Some(Row { name: lock.name().into(), holder, waiters: waiters.map(|waiters| waiters.len()) }))
}

/// The waiters for a lock. The inner error says why we may not list them, although we may see the holder.
pub(crate) async fn waiting(lock: &Lock) -> Result<Result<Vec<Waiter>, Error>, Error> {
    match lock.waiters().await {
        Err(error) if error.is_transient() => Err(error),
        told => Ok(told),
    }
}

const HEADS: [&str; 6] = ["NAME", "HOLDER", "HELD", "TTL", "FENCE", "WAITING"];

/// The table with its head; no line is wider than `width`, if there is one. Names and labels are cut first.
pub(crate) fn lines(rows: &[Row], width: Option<usize>) -> Vec<String> {
    let mut cells: Vec<[String; 6]> = vec![HEADS.map(ToOwned::to_owned)];
    cells.extend(rows.iter().map(|row| {
        let number = |number: Option<String>| number.unwrap_or_else(|| "-".into());
        [
            shown(&row.name),
            holder(&row.holder),
            number(row.holder.since().map(|since| brief(ago(since)))),
            number(row.holder.remaining().map(|remaining| format!("{:.1}s", remaining.as_secs_f64()))),
            number(row.holder.fence().map(|fence| fence.to_string())),
            number(row.waiters.map(|waiters| waiters.to_string())),
        ]
    }));
    let mut widths = [0; 6];
    for line in &cells {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.width().max(*width);
        }
    }
    if let Some(width) = width {
        narrow(&mut widths, width);
    }
    let line = |line: &[String; 6]| {
        let [name, label, held, ttl, fence, waiting] = widths;
        let [of, by, since, left, issued, behind] = line;
        let (of, by) = (fit(of, name), fit(by, label));
        let whole = format!("{of}  {by}  {since:>held$}  {left:>ttl$}  {issued:>fence$}  {behind:>waiting$}");
        match width {
            Some(width) => cut(&whole, width),
            None => whole,
        }
    };
    cells.iter().map(line).collect()
}

/// The holder by its name, or the number of those who share the lock.
fn holder(holder: &Holder) -> String {
    match (holder.label(), holder.sharers()) {
        (_, Some(1)) => "1 sharer".into(),
        (_, Some(sharers)) => format!("{sharers} sharers"),
        (Some(label), None) => shown(label),
        (None, None) if holder.is_shared() => "sharers".into(),
        (None, None) => "?".into(),
    }
}

/// Narrows the columns to a line's width. The numbers stay whole, and the two texts share the rest: the shorter one
/// gives up nothing that it needs.
fn narrow(widths: &mut [usize; 6], width: usize) {
    let [name, label, held, ttl, fence, waiting] = widths;
    let room = width.saturating_sub(*held + *ttl + *fence + *waiting + 5 * 2);
    if *name + *label > room {
        let half = room / 2;
        if *name <= half {
            *label = room - *name;
        } else if *label <= room - half {
            *name = room - *label;
        } else {
            (*name, *label) = (half, room - half);
        }
    }
}

/// The text, cut or filled to exactly this many columns.
fn fit(text: &str, columns: usize) -> String {
    let cut = cut(text, columns);
    let missing = columns.saturating_sub(cut.width());
    cut + &" ".repeat(missing)
}

/// The text, cut to at most this many columns.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.into();
    }
    let mut cut = String::new();
    for c in text.chars() {
        cut.push(c);
        // Measure the whole text: a character may be wider because of the next one.
        if cut.width() >= columns {
            cut.pop();
            break;
        }
    }
    if columns > 0 {
        cut.push('…');
    }
    cut
}

/// The whole text, in lines of at most this many columns.
pub(crate) fn folded(text: &str, columns: usize) -> Vec<String> {
    let (mut lines, mut line, mut left) = (Vec::new(), String::new(), columns);
    for c in text.chars() {
        let width = c.width().unwrap_or(0);
        if width > left && !line.is_empty() {
            lines.push(std::mem::take(&mut line));
            left = columns;
        }
        left = left.saturating_sub(width);
        line.push(c);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock of this key's value and PTTL, as a server tells them.
    fn row_of(name: &str, value: &str, pttl: i64) -> Row {
        Row { name: name.into(), holder: Holder::read(Some(value), pttl), waiters: Some(3) }
    }

    fn value(label: &str, fence: u64) -> String {
        format!("lh1:00000000-0000-4000-8000-000000000000:{fence}@{label}")
    }

    fn row(name: &str, label: &str) -> Row {
        row_of(name, &value(label, FENCE), 21_449)
    }

    /// In the year 2200: a holder since then has held for no time.
    const FENCE: u64 = 7_258_118_400_000_000;

    #[test]
    fn a_table_has_its_columns_under_each_other() {
        let foreign = Row { waiters: None, ..row_of("other", "another library's", -1) };
        assert_eq!(
            lines(&[row("hourly-report", "web-3:4711"), foreign], None),
            [
                "NAME           HOLDER      HELD    TTL             FENCE  WAITING",
                "hourly-report  web-3:4711    0s  21.4s  7258118400000000        3",
                "other          ?              -      -                 -        -",
            ]
        );
    }

    #[test]
    fn a_lock_that_is_shared_has_the_number_of_those_who_share_it_for_a_holder() {
        let value = format!("lh1:00000000-0000-0000-0000-000000000000:{FENCE}@");
        let all = Holder::read(Some(&value), 21_449);
        for (sharers, says) in [(0, "0 sharers"), (1, "1 sharer"), (2, "2 sharers")] {
            assert_eq!(holder(&all.clone().shared_by(sharers)), says);
        }
        assert_eq!(holder(&all), "sharers");
    }

    #[test]
    fn rows_are_sorted_and_those_that_do_not_tell_come_last() {
        let of = |name, label, fence, remaining: i64| row_of(name, &value(label, fence), remaining * 1_000);
        let foreign = row_of("b", "another library's", -1);
        let mut rows = [of("c", "x", 7, 9), foreign, of("a", "z", 9, 5), of("d", "x", 8, 7)];
        let mut order = Order::Name;
        for expected in ["abcd", "cdab", "adcb", "cdab", "abcd"] {
            order.sort(&mut rows);
            let names: String = rows.iter().map(|row| &*row.name).collect();
            assert_eq!(names, expected, "{order:?}");
            order = order.next();
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let rows = [row(&"n".repeat(300), &"l".repeat(100)), row("報告書報告書報告書報告書報告書報告書", "short")];
        for width in 0..200 {
            for line in lines(&rows, Some(width)) {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
        let line = lines(&rows, Some(80)).remove(1);
        assert!(
            line.contains("n…") && line.contains("l…") && line.ends_with("21.4s  7258118400000000        3"),
            "{line}"
        );
        assert!(lines(&[row("hourly", &"l".repeat(100))], Some(80)).remove(1).starts_with("hourly  lll"));
    }

    /// A heart is one column wide, and two columns if the next character asks for its picture.
    #[test]
    fn a_sign_that_another_makes_wider_is_counted_as_wide() {
        for columns in 0..20 {
            let cut = cut(&"\u{2764}\u{fe0f}".repeat(20), columns);
            assert!(cut.width() <= columns, "{columns}: {cut:?}");
        }
    }

    #[test]
    fn what_is_folded_is_whole_and_no_line_is_wider() {
        for text in ["", "an error", "報告書報告書 is held"] {
            for columns in 2..30 {
                let lines = folded(text, columns);
                assert_eq!(lines.concat(), text);
                assert!(lines.iter().all(|line| line.width() <= columns), "{columns}: {lines:?}");
            }
        }
        assert_eq!(folded("報告 is", 5), ["報告 ", "is"]);
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        let line = lines(&[row("\u{1b}[2Jgone\n", "me\u{9b}")], None).remove(1);
        assert!(!line.chars().any(char::is_control) && line.contains("gone"), "{line:?}");
        // A mark for text from right to left, and characters without width.
        let line = lines(&[row("job\u{202e}drowssap", "me\u{200b}\u{feff}")], None).remove(1);
        assert!(line.contains(r"job\u{202e}drowssap") && line.contains(r"me\u{200b}\u{feff}"), "{line:?}");
    }
}
