//! Durations on the command line.

use std::time::{Duration, SystemTime};

use humantime::{format_duration, parse_duration};

/// The longest that a server can be asked to keep a floor of fences.
pub(crate) const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest that a server can be asked to keep the key of a lock without a holder.
pub(crate) const LONGEST_KEEP: Duration = A_DAY.saturating_mul(31);

/// The longest text, and the longest number in it. The parser panics at a sum that overflows by its last nanosecond,
/// and no text within these limits has such a sum.
const LONGEST: (usize, usize) = (50, 10);

/// A number of seconds, or numbers with units: `1h30m`, `90min`, `2.5s`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let longest_number = text.split(char::is_alphabetic).map(str::len).max().unwrap_or(0);
    let parsed = if is_number {
        text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else if text.len() > LONGEST.0 || longest_number > LONGEST.1 {
        None
    } else {
        parse_duration(text).ok()
    };
    parsed.ok_or_else(|| format!("{text:?} is no duration: write it like 30, 2.5s, 500ms, 10m, 1h30m or 1w"))
}

/// A duration as it is written on the command line.
pub(crate) fn written(duration: Duration) -> String {
    let days = duration.as_secs() / A_DAY.as_secs();
    let rest = duration.saturating_sub(Duration::from_secs(days * A_DAY.as_secs()));
    match days {
        0 if duration.is_zero() => "0s".into(),
        0..30 => format_duration(duration).to_string().replace(' ', ""),
        // A month is not a whole number of days, and would bring hours and minutes with it.
        _ if rest.is_zero() => format!("{days}days"),
        _ => format!("{days}days{}", written(rest)),
    }
}

/// A duration to read at a glance: at most two units, the smaller one rounded down.
pub(crate) fn brief(duration: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    const MONTH: u64 = 30 * DAY;
    let seconds = duration.as_secs();
    let unit = match seconds {
        0..HOUR => 1,
        HOUR..DAY => MINUTE,
        DAY..MONTH => HOUR,
        _ => DAY,
    };
    written(Duration::from_secs(seconds - seconds % unit))
}

/// How long ago this was, by the machine's wall clock.
#[allow(clippy::disallowed_methods, reason = "no lease is judged by it: it is shown")]
pub(crate) fn ago(moment: SystemTime) -> Duration {
    // The server's clock may be ahead of ours.
    SystemTime::now().duration_since(moment).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_duration_or_refused(text in "([0-9.]{0,30}(ns|ms|s|m|min|h|d|w|M|y|é| |)){0,3}|.*") {
            let _either = parse(&text);
        }

        #[test]
        fn a_written_duration_is_the_same_when_read(millis in 0_u64..100_000_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse(&written(duration)), Ok(duration));
        }
    }

    #[test]
    fn a_number_is_seconds_and_units_may_follow() {
        for (text, millis) in [
            ("30", 30_000),
            ("0", 0),
            ("2.5s", 2_500),
            ("500ms", 500),
            ("10m", 600_000),
            ("90min", 5_400_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1d", 86_400_000),
            ("1w", 7 * 86_400_000),
            (".5", 500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_duration_is_refused_with_an_example() {
        for text in [
            "",
            "s",
            "ten",
            "-1",
            "1x",
            "1.2.3",
            "NaN",
            "inf",
            "1e9",
            "99999999999999999999999999d",
            "30500568904943w7h15s1000ms",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(&format!("{text:?}")) && error.contains("500ms"), "{error}");
        }
    }

    #[test]
    fn a_duration_is_written_with_units() {
        for (millis, text) in [
            (0, "0s"),
            (500, "500ms"),
            (30_000, "30s"),
            (5_400_000, "1h30m"),
            (86_400_000, "1day"),
            (32 * 86_400_000 + 3_600_000, "32days1h"),
        ] {
            assert_eq!(written(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_brief_duration_has_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (200, "3m20s"),
            (3 * 3_600 + 59, "3h"),
            (7_384, "2h3m"),
            (90_061, "1day1h"),
            (9 * 86_400, "9days"),
            (30 * 86_400, "30days"),
            (40 * 86_400 + 7_384, "40days"),
            (20_782 * 86_400, "20782days"),
        ] {
            assert_eq!(brief(Duration::from_secs(seconds)), text);
        }
    }
}
