//! Spans of time for people: three significant digits, or two units.

use std::{fmt, time::Duration};

/// A span as people read it: `29.6 s`, `250 ms`, `2 min 5 s`, `1 h 30 min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounded(
    /// The exact span.
    pub Duration,
);

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.saturating_add(Duration::from_millis(500)).as_secs();
        match seconds {
            0..120 => in_one_unit(self.0.as_nanos(), f),
            120..7_200 => in_two_units((seconds / MINUTE, "min"), (seconds % MINUTE, "s"), f),
            7_200..172_800 => in_two_units((seconds / HOUR, "h"), (seconds % HOUR / MINUTE, "min"), f),
            _ => in_two_units((seconds / DAY, "days"), (seconds % DAY / HOUR, "h"), f),
        }
    }
}

fn in_two_units((large, unit): (u64, &str), (small, part): (u64, &str), f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{large} {unit}")?;
    if small == 0 { Ok(()) } else { write!(f, " {small} {part}") }
}

fn in_one_unit(nanos: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // Rounded before the unit is chosen: 999.9 ms are a second.
    let step = 10_u128.pow(nanos.checked_ilog10().unwrap_or_default().saturating_sub(2));
    let nanos = (nanos + step / 2) / step * step;
    let (one, unit) = match nanos {
        0 => (1, "s"),
        1..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    write!(f, "{}", nanos / one)?;
    let decimals = format!("{:02}", nanos % one * 100 / one);
    match decimals.trim_end_matches('0') {
        "" => write!(f, " {unit}"),
        decimals => write!(f, ".{decimals} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn three_digits_are_enough_and_long_spans_have_two_units() {
        let cases = [
            (Duration::ZERO, "0 s"),
            (Duration::from_nanos(7), "7 ns"),
            (Duration::from_nanos(1_234), "1.23 µs"),
            (Duration::from_micros(50_049), "50 ms"),
            (Duration::from_micros(50_060), "50.1 ms"),
            (Duration::from_millis(250), "250 ms"),
            (Duration::from_micros(999_400), "999 ms"),
            (Duration::from_micros(999_600), "1 s"),
            (Duration::from_millis(1_500), "1.5 s"),
            (Duration::from_nanos(29_644_668_644), "29.6 s"),
            (Duration::from_millis(99_970), "100 s"),
            (Duration::from_millis(119_400), "119 s"),
            (Duration::from_millis(119_600), "2 min"),
            (Duration::from_secs(125), "2 min 5 s"),
            (Duration::from_secs(3_600), "60 min"),
            (Duration::from_secs(5_400), "90 min"),
            (Duration::from_secs(7_200), "2 h"),
            (Duration::from_secs(9_059), "2 h 30 min"),
            (Duration::from_secs(86_400), "24 h"),
            (Duration::from_secs(176_400), "2 days 1 h"),
        ];
        for (span, text) in cases {
            assert_eq!(Rounded(span).to_string(), text, "{span:?}");
        }
    }

    proptest! {
        #[test]
        fn a_short_span_is_as_good_as_its_third_digit(nanos in 1..119_000_000_000_u64) {
            let text = Rounded(Duration::from_nanos(nanos)).to_string();
            let (number, unit) = text.split_once(' ').unwrap();
            let one = match unit { "ns" => 1.0, "µs" => 1e3, "ms" => 1e6, _ => 1e9 };
            #[allow(clippy::cast_precision_loss, reason = "three digits are looked at")]
            let exact = nanos as f64;
            let shown = number.parse::<f64>().unwrap() * one;
            prop_assert!((shown - exact).abs() <= exact * 0.005_001, "{text} for {nanos}");
        }
    }

    #[test]
    fn no_span_makes_its_reader_panic() {
        assert!(Rounded(Duration::MAX).to_string().ends_with(" h"));
    }
}
