//! The pages name tests that exist.

use std::{collections::BTreeSet, fs, path::Path};

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
    for directory in ["src", "tests", "protocol", "verify"] {
        functions(&root.join(directory), &mut known);
    }
    let page = fs::read_to_string(root.join("docs/safety.md")).unwrap();
    // In code, and too long for anything but a test.
    let named: Vec<_> = page.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() >= 2).collect();
    assert!(named.len() >= 40, "{} names were read", named.len());
    let missing: Vec<_> = named.into_iter().filter(|name| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
