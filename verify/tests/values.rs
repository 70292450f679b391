//! Names, values and settings that people and other programs choose, at random and nearly right: nothing panics,
//! accepted values are taken as they are, and secrets are not shown. `PROPTEST_CASES` sets the number of cases.

use std::{collections::HashSet, time::Duration};

use leasehold_protocol::{failure::Failure, fence::Fence, holder::Holder, key::Key, token::Token, votes::NodeAnswer};
use proptest::{collection::vec, prelude::*};

fn keys(key: &Key) -> [String; 4] {
    [key.lock().to_owned(), key.fence(), key.queue(), key.wait()]
}

/// The part of a key that Redis hashes to find its slot.
fn hashed(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// Names that look like tags and companions.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab{}:]{1,6}(:lht?:[a-z]{0,6})?",
        "\\{[ab{}]{0,3}\\}(:lht?:)?(fence|queue|wait|x)?(:lht?:fence)?",
        ".{0,12}",
    ]
}

fn holder() -> impl Strategy<Value = Holder> {
    let value = prop_oneof![
        Just(None),
        ".{0,60}".prop_map(Some),
        any::<(u128, i64, String)>()
            .prop_map(|(uuid, fence, label)| Some(format!("lh1:{}:{fence}@{label}", uuid::Uuid::from_u128(uuid)))),
    ];
    (value, any::<i64>()).prop_map(|(value, pttl)| Holder::read(value.as_deref(), pttl))
}

fn node_answer() -> impl Strategy<Value = NodeAnswer> {
    prop_oneof![
        Just(NodeAnswer::Granted),
        holder().prop_map(NodeAnswer::HeldBy),
        any::<u64>().prop_map(|left| NodeAnswer::Recovering { remaining: Duration::from_secs(left) }),
        ".*".prop_map(NodeAnswer::Refused),
        ".*".prop_map(NodeAnswer::Unreachable),
    ]
}

proptest! {
    #[test]
    fn a_name_that_is_taken_has_keys_of_its_own(prefix in "[a{}:]{0,3}", one in name(), two in name(), at in 0_usize..4) {
        let companion = keys(&Key::of_lock(&one))[at].clone();
        let taken = [Key::new(&prefix, &one), Key::new("", &one), Key::new("", &two), Key::new("", &companion)];
        let taken: HashSet<Key> = taken.into_iter().filter_map(Result::ok).collect();
        let all: HashSet<String> = taken.iter().flat_map(keys).collect();
        prop_assert_eq!(all.len(), taken.len() * 4, "{:?}", all);
        for key in &taken {
            // A key with an unmatched brace is refused on a cluster.
            if !key.lock().contains('}') || hashed(key.lock()) != key.lock() {
                prop_assert!(keys(key).iter().all(|one| hashed(one) == hashed(key.lock())), "{:?}", key);
            }
        }
    }

    #[test]
    fn any_text_is_a_name_as_it_is_or_refused(prefix in ".{0,8}", name in ".*") {
        match Key::new(&prefix, &name) {
            Ok(key) => {
                prop_assert_eq!(key.name(), &name);
                prop_assert_eq!(key.lock(), [prefix, name].concat());
                prop_assert_eq!(&Key::of_lock(key.lock()), &key);
            }
            Err(error) => prop_assert!(error.to_string().starts_with("the name ")),
        }
    }

    #[test]
    fn a_text_is_a_token_or_a_value_as_it_is_or_not_ours(
        text in prop_oneof![".*", "lh1:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:?[0-9]{0,20}@?.{0,9}", "lh1:[0-9a-f{}-]{0,40}@?.{0,9}"]
    ) {
        if let Some(token) = Token::parse(&text) {
            prop_assert_eq!(token.as_str(), &text);
            prop_assert!(text.ends_with(token.label()) && Token::read_value(&text).is_none());
        }
        if let Some((token, fence)) = Token::read_value(&text) {
            prop_assert!(text.ends_with(token.label()) && token.owns(&text));
            prop_assert_eq!(Token::read_value(&token.value(fence)), Some((token, fence)));
        }
    }

    #[test]
    fn what_is_drawn_is_read_and_never_shown(uuid: u128, label in ".*") {
        let token = Token::new(uuid::Uuid::from_u128(uuid), &label);
        let read = Token::parse(token.as_str());
        prop_assert_eq!(read.as_ref(), Some(&token));
        prop_assert_eq!(token.label(), &label);
        let fence = Fence::try_from(7_u64).unwrap();
        let value = token.value(fence);
        prop_assert_eq!(Token::read_value(&value), Some((token.clone(), fence)));
        let holder = Holder::read(Some(&value), 1);
        let secret = &token.identity()[4..];
        let shown = format!("{token:?} {holder} {holder:?}");
        prop_assert!(!shown.contains(secret), "{}", shown);
    }

    #[test]
    fn a_fence_comes_back_as_it_went(number in 0..=i64::MAX) {
        let fence = Fence::try_from(number).unwrap();
        prop_assert_eq!(fence.to_string().parse(), Ok(fence));
        prop_assert_eq!((i64::from(fence), u64::from(fence)), (number, number.unsigned_abs()));
        prop_assert_eq!(Fence::try_from(u64::from(fence)), Ok(fence));
        prop_assert_eq!(serde_json::from_str::<Fence>(&serde_json::to_string(&fence).unwrap()).ok(), Some(fence));
    }

    #[test]
    fn no_text_is_a_fence_that_is_not_a_number_in_bounds(text in prop_oneof![".*", "[+-]?[0-9]{0,22}(\\.0|e1)?", any::<u64>().prop_map(|number| number.to_string())],
    ) {
        let in_bounds = |text: &str| text.parse::<i128>().ok().filter(|number| (0..=i128::from(i64::MAX)).contains(number));
        let number = in_bounds(&text);
        let fence = text.parse::<Fence>().ok().map(|fence| i128::from(u64::from(fence)));
        // `-0` is a number, but not a fence.
        prop_assert!(fence == number || text.starts_with('-'), "{:?}: {:?}", text, fence);
        if let Ok(fence) = serde_json::from_str::<Fence>(&text) {
            // JSON may have space around a value.
            prop_assert_eq!(Some(i128::from(u64::from(fence))), in_bounds(text.trim_ascii()));
        }
    }

    #[test]
    fn no_holder_and_no_votes_are_too_odd_to_be_told(answers in vec((".{0,9}", node_answer()), 1..9)) {
        let nodes = answers.len();
        let failure = Failure::of_nodes(answers);
        let votes = failure.votes().unwrap();
        prop_assert_eq!(failure.to_string(), votes.to_string());
        prop_assert!(votes.granted() <= nodes && votes.needed() * 2 > nodes);
        // A majority of refusals excludes a majority of grants.
        prop_assert!(!failure.is_refusal() || votes.granted() < votes.needed());
    }
}
