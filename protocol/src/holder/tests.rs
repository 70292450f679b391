use super::*;
use crate::{fence, mode::token_of_a_phase};

#[test]
fn a_foreign_key_has_neither_label_nor_fence() {
    let holder = Holder::read(Some("someone-else"), 1_500);
    assert_eq!((holder.label(), holder.fence(), holder.token(), holder.not_a_lock()), (None, None, None, None));
    assert!(holder.to_string().starts_with("another program"), "{holder}");
}

#[test]
fn what_nobody_releases_is_no_lock() {
    let ours = Token::random("host:7").value(fence::ZERO);
    for (holder, kind) in [
        (Holder::read(Some("data"), -1), Some("string without a TTL")),
        // Bytes that are not text.
        (Holder::read(None, -1), Some("string without a TTL")),
        (Holder::read(Some("data"), 1_500), None),
        (Holder::read(Some(&ours), -1), None),
        (Holder::of_type(Some("list"), -1), Some("list")),
        (Holder::of_type(Some("zset"), 1_500), Some("sorted set")),
        (Holder::of_type(Some("vectorset"), -1), Some("value of another type")),
        (Holder::of_type(Some("string"), -1), None),
        (Holder::of_type(None, -1), Some("value of another type")),
    ] {
        assert_eq!(holder.not_a_lock(), kind);
        let text = holder.to_string();
        assert_eq!(text.contains("another name or a prefix, or delete the key"), kind.is_some(), "{text}");
        assert!(kind.is_none_or(|kind| text.starts_with(&format!("a {kind}"))), "{text}");
    }
    assert_eq!(Holder::of_type(Some("zset"), 1_500).remaining(), Some(Duration::from_millis(1_500)));
    assert!(!Holder::of_type(Some("list"), -1).is_same(&Holder::read(Some("data"), -1)), "that is news");
}

#[test]
fn a_fence_tells_when_its_holder_acquired() {
    let fence = Fence::try_from(1_795_301_966_972_697_u64).unwrap();
    let since = Holder::of(None, None, Some(fence)).since().unwrap();
    assert_eq!(since.duration_since(SystemTime::UNIX_EPOCH).unwrap(), Duration::from_micros(fence.into()));
    assert_eq!(Holder::read(Some("someone-else"), -1).since(), None);
    // The largest fence there is.
    assert!(Holder::of(None, None, Fence::try_from(i64::MAX).ok()).since().is_some());
}

fn seven() -> Fence {
    Fence::try_from(7_u64).unwrap()
}

/// The holder of a lock that is shared.
fn shared(pttl: i64) -> Holder {
    Holder::read(Some(&token_of_a_phase().value(seven())), pttl)
}

#[test]
fn those_who_share_are_told_as_one_and_each_for_itself() {
    let all = shared(1_500);
    assert_eq!((all.is_shared(), all.label(), all.token(), all.fence()), (true, None, None, Some(seven())));
    for (holder, says) in [
        (all.clone(), "sharers (fence 7), whose key lives 1.5 s more unless renewed"),
        (
            all.clone().shared_by(3).ours(),
            "3 sharers, one of them this program (fence 7), the last of them for 1.5 s unless renewed",
        ),
        (all.clone().shared_by(3).until_the_first(), "3 sharers (fence 7), the first of them for 1.5 s unless renewed"),
        (all.clone().shared_by(1), "1 sharer (fence 7), for 1.5 s unless renewed"),
        (all.shared_by(0).ours(), "no sharer any more (fence 7), though its key lives 1.5 s more"),
    ] {
        assert_eq!(holder.to_string(), says);
    }
    let one = Holder::of_share(Some(Token::random("host:7")), Some(Duration::from_millis(1_500)), Some(seven()));
    assert_eq!((one.is_shared(), one.sharers(), one.clone().shared_by(3).sharers()), (true, None, None));
    assert_eq!(one.to_string(), "host:7 (fence 7), whose share lives 1.5 s more unless renewed");
    let three = Token::random("host:7").taking(std::num::NonZeroU32::new(3).unwrap());
    let three = Holder::of_share(Some(three), one.remaining(), one.fence());
    assert_eq!((three.permits(), one.permits(), shared(1_500).permits()), (Some(3), Some(1), None));
    assert_eq!(three.to_string(), "host:7 (fence 7), whose 3 permits live 1.5 s more unless renewed");
}

/// It has no fence between two steps of its acquire.
#[test]
fn a_holder_without_a_fence_yet_has_none() {
    let token = Token::random("host:7");
    let holder = Holder::read(Some(&token.value(fence::ZERO)), 1_500);
    assert_eq!((holder.fence(), holder.since(), holder.label()), (None, None, Some("host:7")));
}

#[test]
fn a_label_begins_no_line_and_moves_nothing_in_a_terminal() {
    let holder = Holder::read(Some(&Token::random("it's \"ü\"\n\u{1b}[2J\u{202e}").value(seven())), 1_500);
    let shown = holder.to_string();
    assert!(shown.starts_with(r#"it's "ü"\n\u{1b}[2J\u{202e} (fence 7)"#), "{shown}");
}

#[test]
fn neither_debug_nor_display_shows_the_token() {
    let token = Token::random("host:7");
    let holder = Holder::read(Some(&token.value(fence::ZERO)), 1_500);
    assert_eq!(holder.token(), Some(token.identity()));
    let uuid = &token.identity()[4..];
    for (shown, remaining) in [(format!("{holder:?}"), "1.5s"), (holder.to_string(), "lives 1.5 s more")] {
        assert!(!shown.contains(uuid), "{shown}");
        assert!(shown.contains("host:7") && shown.contains(remaining), "{shown}");
    }
}

#[test]
fn a_holder_of_ours_has_its_token_its_fence_and_its_time() {
    let (token, fence) = (Token::random("host:7"), Fence::try_from(7_u64).unwrap());
    let (holder, fence) = (Holder::read(Some(&token.value(fence)), 1_500), Some(fence));
    assert_eq!((holder.whole_token(), holder.fence()), (Some(&token), fence));
    assert_eq!(holder.remaining(), Some(Duration::from_millis(1_500)));
    let longer = holder.clone().lasting(Some(Duration::from_secs(9)));
    assert_eq!(longer, Holder::of(Some(token), Some(Duration::from_secs(9)), fence));
}

#[test]
fn a_key_that_is_kept_is_renewed_by_nobody() {
    let token = Token::random(&format!("host:7{RELEASED}"));
    let kept = Holder::read(Some(&token.value(seven())), 1_500).to_string();
    assert_eq!(kept, "host:7 (released) (fence 7), which keeps it for 1.5 s more");
}

#[test]
fn the_same_acquisition_is_the_same_token_whenever_it_is_seen() {
    let (one, other) = (Token::random("host:7"), Token::random("host:7"));
    let at = |token: &Token, millis| Holder::read(Some(&token.value(fence::ZERO)), millis);
    assert!(at(&one, 1_500).is_same(&at(&one, 300)));
    assert!(!at(&one, 1_500).is_same(&at(&other, 1_500)));
}

#[cfg(feature = "serde")]
#[test]
fn serde_writes_everything_but_the_token() {
    let (token, fence) = (Token::random("host:7"), Fence::try_from(7_u64).unwrap());
    let json = |holder: &Holder| serde_json::to_string(holder).unwrap();
    let held = json(&Holder::read(Some(&token.value(fence)), 1_500).ours());
    let start = r#"{"label":"host:7","mode":"exclusive","sharers":null,"permits":null,"since_unix_seconds":7e-6,"#;
    assert_eq!(held, [start, r#""remaining_seconds":1.5,"fence":7,"is_ours":true,"not_a_lock":null}"#].concat());
    let foreign = json(&Holder::read(Some("someone-else"), -1));
    let start = r#"{"label":null,"mode":"exclusive","sharers":null,"permits":null,"since_unix_seconds":null,"#;
    let rest = r#""remaining_seconds":null,"fence":null,"is_ours":false,"not_a_lock":"string without a TTL"}"#;
    assert_eq!(foreign, [start, rest].concat());
    let all = json(&shared(1_500).shared_by(3));
    let start = r#"{"label":null,"mode":"shared","sharers":3,"permits":null,"since_unix_seconds":7e-6,"#;
    assert_eq!(all, [start, r#""remaining_seconds":1.5,"fence":7,"is_ours":false,"not_a_lock":null}"#].concat());
    let one = json(&Holder::of_share(Some(Token::random("host:7")), Some(Duration::from_secs(2)), Some(seven())));
    let start = r#"{"label":"host:7","mode":"shared","sharers":null,"permits":1,"since_unix_seconds":7e-6,"#;
    assert_eq!(one, [start, r#""remaining_seconds":2.0,"fence":7,"is_ours":false,"not_a_lock":null}"#].concat());
}
