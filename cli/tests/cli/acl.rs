//! `leasehold acl`: the rights that a user needs, as a rule, and those that one lacks.

use std::{collections::BTreeSet, fs, process::Command};

use support::{Cluster, Server, eventually};

use crate::scene::{HANGS, LEASEHOLD, NAME, ends_with, is_held, said, tool};

const ALL: &str = "locks,fair,shared,list,doctor,database,cluster,replicas,sentinel";

/// The words of the rule that is printed for locks under `jobs:`.
fn rule(server: &Server, options: &[&str]) -> Vec<String> {
    let output = tool(server, &["acl", "--prefix", "jobs:"]).args(options).output().unwrap();
    ends_with(&output, 0, &["replace PASSWORD"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let [rule] = &*text.lines().collect::<Vec<_>>() else { panic!("{text}") };
    rule.replace(">PASSWORD", ">secret").split(' ').map(Into::into).collect()
}

/// Makes the user of a rule, and returns its url.
fn user(server: &Server, rule: &[String]) -> String {
    server.wire().must(&rule.iter().map(String::as_str).collect::<Vec<_>>());
    server.url().replace("redis://", &format!("redis://{}:secret@", rule[2]))
}

/// The tool as that user.
fn as_user(server: &Server, url: &str, args: &[&str]) -> Command {
    let mut command = tool(server, args);
    command.env("LEASEHOLD_URL", url).env("LEASEHOLD_PREFIX", "jobs:");
    command
}

#[test]
fn a_user_made_from_the_rule_does_all_that_was_named_and_is_refused_nothing() {
    let server = Server::start();
    let url = user(&server, &rule(&server, &["--features", "locks,fair,shared,list,doctor", "--user", "worker"]));
    let several = &["--permits", "3", "--take", "2"];
    for options in [&["--ttl", "1s"][..], &["--fair"], &["--shared"], several, &["--once-per", "1s"]] {
        let name = options[0].trim_start_matches('-');
        let run = [&["run"][..], options, &[name, "--", "sleep", "0.5"]].concat();
        let mut first = as_user(&server, &url, &run).spawn().unwrap();
        eventually(HANGS, "it is held", || server.wire().exists(&format!("jobs:{name}")));
        // Waits, and is notified.
        ends_with(&as_user(&server, &url, &run).output().unwrap(), 0, &[]);
        assert!(first.wait().unwrap().success());
    }
    for args in [&["ls"][..], &["show", NAME], &["observe", "--once", NAME], &["release", "--force", "--yes", NAME]] {
        let output = as_user(&server, &url, args).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {}", said(&output));
    }
    let doctor = as_user(&server, &url, &["doctor"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&doctor.stdout).contains("right"), "{doctor:?}");
    assert_refused_nothing(&server);
}

/// The list of a shared lock has the number of its sharers, which is no right of the other features'.
#[test]
fn each_feature_alone_has_what_it_needs() {
    let server = Server::start();
    let mut sharer =
        tool(&server, &["run", "--prefix", "jobs:", "--shared", NAME, "--", "sleep", "60"]).spawn().unwrap();
    eventually(HANGS, "it is held", || server.wire().exists("jobs:job"));
    let url = user(&server, &rule(&server, &["--features", "list", "--user", "lister"]));
    let listed = as_user(&server, &url, &["ls"]).output().unwrap();
    ends_with(&listed, 0, &[]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("1 sharer"), "{listed:?}");
    assert_refused_nothing(&server);
    sharer.kill().unwrap();
    sharer.wait().unwrap();
}

/// No Redis copies users, so each server of a cluster gets them.
#[test]
fn a_user_of_a_cluster_made_from_the_rule_is_refused_nothing() {
    let cluster = Cluster::start(3, 0);
    let output = tool(&cluster.servers()[0], &["acl", "--prefix", "jobs:", "--features", "fair,shared,list,doctor"])
        .env("LEASEHOLD_URL", cluster.url())
        .output()
        .unwrap();
    ends_with(&output, 0, &["on every server"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let rule: Vec<_> = printed.trim().replace(">PASSWORD", ">secret").split(' ').map(Into::into).collect();
    cluster.servers().iter().for_each(|server| drop(user(server, &rule)));
    let url = cluster.url().replace("://", "://leasehold:secret@");
    for name in ["a", "b", "c", "d"] {
        for options in [&["--ttl", "1s"][..], &["--fair"], &["--shared"]] {
            let run = [&["run"][..], options, &[name, "--", "true"]].concat();
            ends_with(&as_user(&cluster.servers()[0], &url, &run).output().unwrap(), 0, &[]);
        }
    }
    for args in [&["ls"][..], &["doctor"]] {
        let output = as_user(&cluster.servers()[0], &url, args).output().unwrap();
        assert!(!String::from_utf8_lossy(&output.stdout).contains("right"), "{args:?}: {output:?}");
    }
    cluster.servers().iter().for_each(assert_refused_nothing);
}

fn assert_refused_nothing(server: &Server) {
    let refused = server.wire().must(&["ACL", "LOG"]);
    assert!(refused.array().is_empty(), "{refused:?}");
}

#[test]
fn what_a_user_lacks_is_told_as_the_rule_that_adds_it() {
    let server = Server::start();
    let features = ["--features", "fair"];
    let whole = rule(&server, &[&features[..], &["--user", "worker"]].concat());
    user(&server, &whole);
    let check =
        |user: &str| tool(&server, &["acl", "--prefix", "jobs:", "--check", user]).args(features).output().unwrap();
    if !Server::version().at_least(7, 0) {
        ends_with(&check("worker"), 69, &["since 7.0"]);
        return;
    }
    let output = check("worker");
    ends_with(&output, 0, &[]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("127.0.0.1:{}: worker has every right\n", server.port())
    );
    let lacks = ["~{jobs:*", "&leasehold:*", "+getrange", "+client|caching", "+zadd"];
    let mut part: Vec<String> = whole.iter().filter(|word| !lacks.contains(&&***word)).cloned().collect();
    part[2] = "poor".into();
    user(&server, &part);
    let output = check("poor");
    ends_with(&output, 1, &[]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, adds) = told.trim().split_once(": ACL SETUSER poor ").unwrap();
    assert_eq!(adds.split(' ').collect::<BTreeSet<_>>(), BTreeSet::from(lacks));
    // The printed words are enough.
    user(
        &server,
        &[vec!["ACL".into(), "SETUSER".into(), "poor".into()], adds.split(' ').map(Into::into).collect()].concat(),
    );
    ends_with(&check("poor"), 0, &[]);
    ends_with(&check("nobody"), 69, &["nobody", "not found"]);
    // One answer has all that is lacking.
    server.wire().must(&["ACL", "SETUSER", "none", "on", ">secret", "resetchannels"]);
    let told = String::from_utf8(check("none").stdout).unwrap();
    let (_, adds) = told.trim().split_once(": ").unwrap();
    user(&server, &adds.split(' ').map(Into::into).collect::<Vec<_>>());
    ends_with(&check("none"), 0, &[]);
}

#[test]
fn an_unknown_feature_and_one_who_may_not_ask_are_told_what_to_do() {
    let server = Server::start();
    ends_with(&tool(&server, &["acl", "--features", "looks"]).output().unwrap(), 64, &["looks", "locks", "shared"]);
    ends_with(&tool(&server, &["acl", "--user", "a b"]).output().unwrap(), 64, &["a b", "no spaces"]);
    let url = user(&server, &rule(&server, &[]));
    if Server::version().at_least(7, 0) {
        let output = as_user(&server, &url, &["acl", "--check", "worker"]).output().unwrap();
        ends_with(&output, 69, &["cannot be read", "NOPERM"]);
    }
    assert!(!is_held(&server));
}

#[test]
fn a_prefix_with_signs_of_a_pattern_is_one_of_letters() {
    let server = Server::start();
    let output = tool(&server, &["acl", "--prefix", "a*b c:"]).output().unwrap();
    ends_with(&output, 0, &[]);
    let printed = String::from_utf8(output.stdout).unwrap();
    // A rule cannot have a space.
    assert!(printed.contains(r" ~a\*b?c:* ~{a\*b?c:* "), "{printed}");
    let output = tool(&server, &["acl"]).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains(" resetchannels ~* &"));
}

/// docs/operations.md lists the same rights, each with what happens without it.
#[test]
fn the_page_lists_the_same_rights() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, page) = page.split_once("\n## Least rights\n").unwrap();
    let (page, _) = page.split_once("\n## ").unwrap();
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|sign: char| sign.is_whitespace() || "`;,".contains(sign));
        words.filter(|word| word.starts_with('+')).map(|word| word.replace("\\|", "|")).collect()
    };
    let server = Server::start();
    let output = Command::new(LEASEHOLD)
        .args(["acl", "--features", ALL, "--url", &server.url(), "--config", "/dev/null"])
        .output()
        .unwrap();
    ends_with(&output, 0, &["on each Sentinel"]);
    let mut printed = words(&String::from_utf8_lossy(&output.stdout));
    // Redis 7.0 does not know it, and would refuse the whole rule.
    let is_new = !Server::version().at_least(7, 0) || Server::version().at_least(7, 2);
    assert_eq!(!printed.insert("+client|setinfo".into()), is_new);
    assert_eq!(printed, words(page));
}
