//! Durations on the command line.

use std::time::Duration;

/// A number of seconds, also a fraction, or one with a unit: `ms`, `s`, `m`, `h` or `d`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let number_ends = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(help(text)),
    };
    let number: f64 = number.parse().map_err(|_| help(text))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| help(text))
}

fn help(text: &str) -> String {
    format!("{text:?} is no duration: write it like 30, 2.5s, 500ms, 10m or 1h")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_duration_or_refused(text in "[0-9.]{0,30}(ms|s|m|h|d|é|)|.*") {
            let _either = parse(&text);
        }
    }

    #[test]
    fn a_number_is_seconds_and_a_unit_may_follow() {
        for (text, millis) in [
            ("30", 30_000),
            ("0", 0),
            ("2.5s", 2_500),
            ("500ms", 500),
            ("10m", 600_000),
            ("1h", 3_600_000),
            (".5", 500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused_with_an_example() {
        for text in ["", "s", "ten", "-1", "1 s", "1x", "1.2.3", "NaN", "inf", "1e9", "99999999999999999999999999d"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(&format!("{text:?}")) && error.contains("500ms"), "{error}");
        }
    }
}
