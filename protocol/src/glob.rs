//! Patterns in the syntax of Redis: `*`, `?`, `[a-z]`, `[^a-z]`, and `\` before a literal character.

/// A pattern that matches this text only.
pub fn literally(text: &str) -> String {
    let escape = |c: char| matches!(c, '*' | '?' | '[' | '\\').then_some('\\').into_iter().chain([c]);
    text.chars().flat_map(escape).collect()
}

/// Whether the pattern matches the whole name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.as_bytes(), name.as_bytes());
    // When the rest does not match, the last star takes one byte more.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern, name) {
            ([b'*', rest @ ..], _) => {
                (pattern, star) = (rest, Some((rest, name)));
                continue;
            }
            ([], []) => return true,
            (_, [byte, left @ ..]) => {
                if let Some(rest) = taken(pattern, *byte) {
                    (pattern, name) = (rest, left);
                    continue;
                }
            }
            (_, []) => {}
        }
        let Some((rest, [_, left @ ..])) = star else { return false };
        (pattern, name, star) = (rest, left, Some((rest, left)));
    }
}

/// The rest of the pattern, if its first part matches this byte.
fn taken(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => one_of(rest, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte).then_some(rest),
    }
}

/// The rest of the pattern behind a class in brackets, if the class contains this byte. Without a closing bracket the
/// class extends to the end.
fn one_of(class: &[u8], byte: u8) -> Option<&[u8]> {
    let others = class.strip_prefix(b"^");
    let (mut rest, mut found) = (others.unwrap_or(class), false);
    loop {
        rest = match rest {
            [] => break,
            [b']', left @ ..] => {
                rest = left;
                break;
            }
            [b'\\', literal, left @ ..] => {
                found |= *literal == byte;
                left
            }
            [from, b'-', to, left @ ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                left
            }
            [literal, left @ ..] => {
                found |= *literal == byte;
                left
            }
        };
    }
    (found != others.is_some()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_pattern_will_do(pattern in r"[\[\]^*?\\a-c-]{0,12}|.{0,8}", name in "[a-c\\[\\]\\\\-]{0,12}|.{0,8}") {
            let _either = matches(&pattern, &name);
            let likes = format!("*{}*", pattern.replace(['[', ']', '\\', '^', '-'], "?"));
            prop_assert!(matches(&likes, &("x".to_owned() + &pattern + "x")), "{}", likes);
        }

        #[test]
        fn what_is_meant_literally_is_like_itself_only(text in r"[*?a\[\]^\\-]{0,4}", other in r"[*?a\[\]^\\-]{0,4}") {
            prop_assert!(matches(&literally(&text), &text));
            prop_assert_eq!(matches(&literally(&text), &other), text == other);
        }
    }

    #[test]
    fn stars_marks_classes_and_literals() {
        for (pattern, yes, no) in [
            ("*", &["", "a", "a:b"][..], &[][..]),
            ("", &[""], &["a"]),
            ("job", &["job"], &["jobs", "jo", ""]),
            ("job:?", &["job:1"], &["job:", "job:12"]),
            ("*:nightly", &["a:nightly", ":nightly", "a:nightly:nightly"], &["nightly", "a:nightly2"]),
            ("a*b*c", &["abc", "aXbXbXc"], &["ab", "acb"]),
            ("[ab]x", &["ax", "bx"], &["cx", "x"]),
            ("[a-c]", &["a", "b", "c"], &["d", "-"]),
            ("[c-a]", &["b"], &["d"]),
            ("[^a-c]", &["d", "-"], &["a", ""]),
            (r"\*", &["*"], &["a", r"\*"]),
            (r"[\]]", &["]"], &[r"\"]),
            ("[ab", &["a", "b"], &["c", "[ab"]),
            (r"\", &[r"\"], &[""]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern:?} {name:?}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern:?} {name:?}");
            }
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        assert!(!matches(&"a*".repeat(200), &"a".repeat(1_000).replace("aaa", "b")));
    }
}
