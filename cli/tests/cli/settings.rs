//! The sources of the tool's settings: options, the environment, a file.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use rustix::process::Signal;

use support::{Server, TempDir, eventually};

use crate::scene::{HANGS, LEASEHOLD, NAME, ends_with, said, send};

/// The tool with a configuration file of these lines, and nothing else.
struct Scene {
    directory: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { directory: TempDir::new("settings") }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.directory.path().join(name);
        fs::write(&file, text).unwrap();
        file
    }

    fn tool(&self, configuration: &str, args: &[&str]) -> Command {
        let mut command = Command::new(LEASEHOLD);
        for variable in [
            "URL",
            "URL_FILE",
            "QUORUM",
            "MAP",
            "MIN_REPLICAS",
            "PASSWORD_FILE",
            "CACERT",
            "CERT",
            "KEY",
            "SNI",
            "PREFIX",
            "CONNECT_TIMEOUT",
            "RESTART_DELAY",
            "TTL",
        ] {
            command.env_remove(format!("LEASEHOLD_{variable}"));
        }
        command.env_remove("REDIS_URL").args(args);
        command.env("LEASEHOLD_CONFIG", self.file("leasehold.conf", configuration));
        command
    }
}

/// Shows whether this name is held: it is on one server only.
fn finds(command: &mut Command) -> bool {
    let output = command.output().unwrap();
    assert_eq!(said(&output), "");
    match output.status.code() {
        Some(0) => true,
        Some(1) => false,
        _ => panic!("{output:?}"),
    }
}

#[test]
fn an_option_goes_before_the_environment_and_that_before_the_file() {
    let (scene, meant, other) = (Scene::new(), Server::start(), Server::start());
    meant.wire().set(NAME, "somebody's");
    let (meant, other) = (meant.url(), other.url());
    let in_file = |url: &str| format!("# servers\n\nurl = {url} # the one\nttl = \"20s\"\n");
    let show = ["show", NAME];
    assert!(finds(&mut scene.tool(&in_file(&meant), &show)));
    assert!(!finds(&mut scene.tool(&in_file(&other), &show)), "the premise");
    // With a byte order mark and a carriage return, as some editors write.
    assert!(finds(&mut scene.tool(&format!("\u{feff}url = {meant}\t# the one\r\n"), &show)));
    assert!(finds(scene.tool(&in_file(&other), &show).env("LEASEHOLD_URL", &meant)));
    assert!(finds(scene.tool(&in_file(&other), &["show", "--url", &meant, NAME]).env("LEASEHOLD_URL", &other)));
    // Another program's variable is used only if no other setting names a server.
    assert!(finds(scene.tool("", &show).env("REDIS_URL", &meant)));
    assert!(finds(scene.tool(&in_file(&meant), &show).env("REDIS_URL", &other)));
    // An empty variable counts as unset.
    assert!(finds(scene.tool(&in_file(&meant), &show).env("LEASEHOLD_URL", "").env("LEASEHOLD_QUORUM", "")));
    // Each way to name servers overrides the others.
    let file = scene.file("url", &format!("{meant}\nanother line\n"));
    assert!(finds(scene.tool(&in_file(&other), &show).env("LEASEHOLD_URL_FILE", &file)));
    let by_file = ["show", "--url-file", file.to_str().unwrap(), NAME];
    assert!(finds(scene.tool("", &by_file).env("LEASEHOLD_QUORUM", format!("{other},{other},{other}"))));
}

/// A server that wants a password and a certificate.
#[test]
fn a_password_file_and_certificates_reach_a_server_that_wants_both() {
    let (scene, show) = (Scene::new(), ["show", NAME]);
    let server = Server::builder().tls(true).tls_clients(true).arg("--requirepass", "sesame").start();
    let mut wire = server.wire();
    wire.must(&["AUTH", "sesame"]);
    wire.set(NAME, "somebody's");
    let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let [certificate, key] = server.client_pem_paths().each_ref().map(text);
    let (ca, password) = (text(&server.ca_pem_path()), text(&scene.file("password", "sesame\n")));
    let settings = [
        ("url", &server.tls_url()),
        ("password-file", &password),
        ("cacert", &ca),
        ("cert", &certificate),
        ("key", &key),
        ("sni", &"localhost".to_owned()),
    ];
    let mut line = vec!["show".to_owned(), NAME.to_owned()];
    line.extend(settings.iter().flat_map(|(name, value)| [format!("--{name}"), (*value).clone()]));
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    assert!(finds(&mut scene.tool("", &line)));
    let lines: Vec<String> = settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    assert!(finds(&mut scene.tool(&lines.join("\n"), &show)));
    let mut by_environment = scene.tool("", &show);
    for (name, value) in settings {
        by_environment.env(format!("LEASEHOLD_{}", name.to_uppercase().replace('-', "_")), value);
    }
    assert!(finds(&mut by_environment));

    let url = server.tls_url();
    let with_password = url.replace("//", "//:sesame@");
    let no_file = "/no/such/file".to_owned();
    for (args, code, words) in [
        (vec!["--cacert", &ca, "--cert", &certificate], 64, &["--cert has no --key"][..]),
        (vec!["--key", &key], 64, &["--key has no --cert"]),
        (vec!["--cacert", &no_file], 64, &["ca_file names /no/such/file, which cannot be read"]),
        (vec!["--cacert", &ca, "--password-file", &no_file], 64, &["password_file /no/such/file cannot be read"]),
        (vec!["--cacert", &ca], 69, &["it wants a certificate of ours"]),
        (vec!["--url", &with_password, "--password-file", &password], 64, &["the url has a password too"]),
        (vec!["--url", "redis://127.0.0.1", "--cacert", &ca], 64, &["write rediss://"]),
    ] {
        let mut tool = scene.tool("", &show);
        let tool = tool.args(if args.contains(&"--url") { vec![] } else { vec!["--url", &url] }).args(args);
        ends_with(&tool.output().unwrap(), code, words);
    }
}

#[test]
fn every_setting_may_stand_in_the_environment_and_in_the_file() {
    let (scene, servers) = (Scene::new(), [Server::start(), Server::start(), Server::start()]);
    let urls = servers.each_ref().map(Server::url).join(",");
    let key = format!("jobs:{NAME}");
    let holds = |mut command: Command| {
        let runner = command.args(["run", NAME, "sleep", "60"]).stderr(Stdio::piped()).spawn().unwrap();
        eventually(HANGS, "it is held", || servers.iter().all(|server| server.wire().exists(&key)));
        for server in &servers {
            let lives = server.wire().pttl(&key);
            assert!((5_000..=10_000).contains(&lives), "{lives} ms");
        }
        send(&runner, Signal::TERM);
        ends_with(&runner.wait_with_output().unwrap(), 143, &[]);
    };
    let file = format!("quorum = {urls}\nprefix = jobs:\nrestart-delay = 0\nttl = 10s\nconnect-timeout = 3s\n");
    holds(scene.tool(&file, &[]));
    let mut by_environment = scene.tool("ttl = 1m\n", &[]);
    let variables = [("QUORUM", &*urls), ("PREFIX", "jobs:"), ("RESTART_DELAY", "0"), ("TTL", "10")];
    by_environment.envs(variables.map(|(name, value)| (format!("LEASEHOLD_{name}"), value)));
    holds(by_environment);
}

#[test]
fn a_wrong_configuration_is_refused_by_file_and_line() {
    let scene = Scene::new();
    let show = ["show", NAME];
    for (text, words) in [
        ("ttl = 10s\n\n# more\nttl = soon\n", &["leasehold.conf, line 4: ttl: \"soon\" is no duration"][..]),
        ("url redis://a\n", &["line 1: write a setting as `name = value`"]),
        ("colour = red\n", &["line 1: there is no setting \"colour\"", "quorum, restart-delay"]),
        ("config = /etc/other\n", &["line 1: there is no setting \"config\""]),
        ("label = me\n", &["line 1: there is no setting \"label\""]),
        ("ttl = 1s\nttl = 2s\n", &["line 2: ttl is set twice"]),
        ("url = memory://\n", &["line 1: url: such a lock is there for one process only"]),
        ("url = redis://a\nquorum = redis://a,redis://b,redis://c\n", &["give one of them"]),
        ("url-file = /no/such/file\n", &["--url-file /no/such/file: No such file"]),
        ("url-file = /dev/null\n", &["--url-file /dev/null: its first line is empty"]),
    ] {
        ends_with(&scene.tool(text, &show).output().unwrap(), 64, words);
    }
    // The URL alone, with a password that ends like base64.
    let output = scene.tool("redis://:c2VjcmV0=@a\n", &show).output().unwrap();
    ends_with(&output, 64, &["line 1: this is no setting: the settings are cacert, cert, connect-timeout"]);
    assert!(!said(&output).contains("c2VjcmV0"), "{}", said(&output));
    let absent = scene.tool("", &["ls", "--config", "/no/such/file"]).output().unwrap();
    ends_with(&absent, 64, &["cannot read /no/such/file"]);
    let both = scene.tool("", &show).env("LEASEHOLD_URL", "redis://a").env("LEASEHOLD_URL_FILE", "/a").output();
    ends_with(&both.unwrap(), 64, &["give one of them"]);
    // A manual page needs no server.
    ends_with(&scene.tool("colour = red\n", &["man"]).output().unwrap(), 0, &[]);
}

#[test]
fn a_run_needs_a_server_that_is_named() {
    let scene = Scene::new();
    for args in [&["run", NAME, "true"][..], &["release", "--force", NAME]] {
        ends_with(&scene.tool("", args).output().unwrap(), 64, &["no server is named", "--url", "LEASEHOLD_URL"]);
    }
    for args in [&["ls"][..], &["show", NAME], &["doctor"]] {
        let output = scene.tool("connect-timeout = 300ms\n", args).output().unwrap();
        let said = said(&output);
        assert!(said.contains("asking redis://127.0.0.1:6379: neither --url nor LEASEHOLD_URL"), "{said}");
    }
}

/// Replicas that must confirm a lock: as an option, a variable and a line. Without any, the job does not start.
#[test]
fn replicas_that_confirm_a_lock_are_a_setting() {
    let (scene, server) = (Scene::new(), Server::start());
    let line = format!("url = {}\nmin-replicas = 1\n", server.url());
    let url = format!("url = {}\n", server.url());
    let run = ["run", "--wait", "300ms", NAME, "--", "false"];
    let by_option = ["run", "--min-replicas", "1", "--wait", "300ms", NAME, "--", "false"];
    let told = ["0 of 1 replicas", "(min_replicas)"];
    ends_with(&scene.tool(&line, &run).output().unwrap(), 69, &told);
    ends_with(&scene.tool(&url, &by_option).output().unwrap(), 69, &told);
    let mut by_variable = scene.tool(&url, &run);
    ends_with(&by_variable.env("LEASEHOLD_MIN_REPLICAS", "1").output().unwrap(), 69, &told);
    let none = ["run", "--min-replicas", "0", NAME, "--", "true"];
    assert_eq!(scene.tool(&line, &none).output().unwrap().status.code(), Some(0), "an option goes before the file");
    let many = ["run", "--min-replicas", "10", NAME, "--", "true"];
    ends_with(&scene.tool(&url, &many).output().unwrap(), 64, &["min_replicas is 10: it must be at most 9"]);
}
