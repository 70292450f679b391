//! Checks that what the pages state about the tests is true.

use std::{collections::BTreeSet, fs, path::Path};

use support::FENCED_WRITE;

use crate::faults::refusals::{
    BUT_ON_7_0, FOR_A_DATABASE, FOR_A_QUIET_LOG, FOR_FAIR, FOR_PUSH, FOR_SHARES, LEAST_ACL, TO_PASS_OVER_THE_DEAD,
};

/// The names of all functions in the Rust files below a directory.
fn functions(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let name = |rest: &str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned);
            names.extend(text.split("fn ").skip(1).filter_map(name));
        }
    }
}

#[test]
fn every_test_that_the_safety_page_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    for room in ["src", "protocol/src", "verify", "tests"] {
        functions(&root.join(room), &mut known);
    }
    let page = fs::read_to_string(root.join("docs/safety.md")).unwrap();
    // In code, and too long to be anything but a test.
    let named: Vec<_> = page.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() >= 2).collect();
    assert!(named.len() >= 40, "{} names were read", named.len());
    let missing: Vec<_> = named.into_iter().filter(|name| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_operations_page_lists_the_rights_that_are_enough() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md")).unwrap();
    // In a table, a bar within code is escaped.
    let page = page.replace("\\|", "|");
    let listed: BTreeSet<_> = page.split(|c: char| c.is_whitespace() || c == '`').collect();
    let of_shares = [FOR_SHARES, TO_PASS_OVER_THE_DEAD];
    let of_all = [LEAST_ACL, FOR_PUSH, FOR_FAIR, FOR_A_QUIET_LOG, BUT_ON_7_0, FOR_A_DATABASE];
    for rights in of_all.into_iter().chain(of_shares) {
        // The tests use another prefix for names.
        let missing: Vec<_> =
            rights.split_whitespace().filter(|right| !right.starts_with('~') && !listed.contains(right)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

#[test]
fn the_cookbook_shows_the_script_that_is_tested() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cookbook.md")).unwrap();
    assert!(
        page.contains(&format!("```lua\n{FENCED_WRITE}```\n")),
        "tests/support/src/fenced_write.lua has another text"
    );
}

/// The terms that users of other libraries search the documentation for.
#[test]
fn the_words_of_other_libraries_find_ours() {
    let aliases = [
        ("src/lease.rs", "unlock", "pub async fn release("),
        ("src/lease/handle.rs", "extend", "pub async fn renew("),
        ("src/lock.rs", "try_lock", "pub fn try_acquire("),
        ("src/lock.rs", "mutex", "pub struct Lock "),
        ("src/client/builder.rs", "redlock", "pub fn quorum"),
        ("src/client.rs", "redisson", "pub struct Client "),
        ("src/docs.rs", "leader", "pub mod cookbook "),
    ];
    for (file, alias, item) in aliases {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let attribute = format!("#[doc(alias = \"{alias}\")]");
        let (_, after) = text.split_once(&attribute).unwrap_or_else(|| panic!("{file} has no {attribute}"));
        let lines = after.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let first = lines.into_iter().next().unwrap_or_default();
        assert!(first.starts_with(item), "{file}: {alias} is an alias of {first:?}, not of {item}");
    }
}
