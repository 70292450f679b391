//! `leasehold run` on a terminal: the command has the terminal, and signals typed there reach the runner too.

use std::{fs, path::PathBuf};

use support::{Server, TempDir, eventually};

use crate::scene::{HANGS, LEASEHOLD, NAME, Terminal, directory, is_held, started, state_of, state_of_parent};

const ASKS_TWICE: &str = "sh -c 'read line; echo one; read line; echo two'";

/// A command in the background of its terminal would be stopped when it reads.
#[test]
fn the_terminal_is_the_commands_while_it_runs() {
    let server = Server::start();
    let line = format!(
        "{LEASEHOLD} run {NAME} -- sh -c 'read line; echo the line was $line'; {LEASEHOLD} show {NAME}; read rest; echo then $rest"
    );
    let mut terminal = Terminal::running(&server, &line);
    terminal.press("hello\n");
    // After the command, the runner has the terminal back, and so has the shell.
    terminal.shows("is free");
    terminal.press("again\n");
    let shown = terminal.ended();
    assert!(shown.contains("the line was hello") && shown.contains("then again"), "{shown}");
}

/// Once, however often the holder changes; and no line where no person looks, or the call does not wait.
#[test]
fn a_wait_is_told_to_a_person_at_a_terminal() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["SET", NAME, "another program's", "PX", "60000"]);
    let line = format!("{LEASEHOLD} run -n {NAME} true; echo busy $?; {LEASEHOLD} run {NAME} -- echo it runs");
    let terminal = Terminal::running(&server, &line);
    terminal.shows("; waiting");
    wire.must(&["SET", NAME, "a third program's", "PX", "60000"]);
    wire.del(NAME);
    let shown = terminal.ended();
    assert!(shown.contains("busy 1") && shown.contains("it runs"), "{shown}");
    assert_eq!(shown.matches("\"job\" is held by another program").count(), 1, "{shown}");
}

/// Like any command, by a shell with job control.
#[test]
fn a_command_and_its_runner_are_stopped_by_the_terminal_and_continued() {
    let server = Server::start();
    // As a job of the shell, and as a part of one.
    for line in [
        format!("{LEASEHOLD} run {NAME} -- {ASKS_TWICE}"),
        format!("sh -c \"{LEASEHOLD} run {NAME} -- {ASKS_TWICE}; exit \\$?\""),
    ] {
        let mut terminal =
            Terminal::running(&server, &format!("set -m; {line}; echo the shell has $?; fg; echo then $?"));
        terminal.press("a\n");
        terminal.shows("one");
        terminal.press("\x1a");
        terminal.shows("the shell has 1");
        terminal.press("b\n");
        let shown = terminal.ended();
        assert!(shown.contains("two") && shown.contains("then 0"), "{shown}");
        assert!(!is_held(&server));
    }
}

/// The command gets the terminal only if it reads from it: typed signals go to its runner.
#[test]
fn a_redirected_command_and_its_runner_are_stopped_and_continued() {
    let server = Server::start();
    for (before, after) in
        [("", ">/dev/null"), ("", "</dev/null"), ("", "| cat"), ("sh -c \"", ">/dev/null; exit \\$?\"")]
    {
        let (directory, sign) = directory();
        let over = directory.path().join("over");
        // A shell that is stopped while it starts a process may wait for that instead of stopping: this one starts
        // none.
        assert!(std::process::Command::new("mkfifo").arg(&over).status().unwrap().success());
        let script = format!("echo $$ > {}; read end < {}", sign.display(), over.display());
        let file = directory.path().join("script");
        fs::write(&file, script).unwrap();
        let line = format!("{before}{LEASEHOLD} run {NAME} -- sh {} {after}", file.display());
        let mut terminal =
            Terminal::running(&server, &format!("set -m; {line}; echo the shell has $?; read go; fg; echo then $?"));
        eventually(HANGS, "the command runs", || state_of(&sign).is_some());
        terminal.press("\x1a");
        terminal.shows("the shell has 1");
        eventually(HANGS, "the command stands still", || state_of(&sign) == Some('T'));
        // A shell in between stops before its runner: if continued too early, the runner would stop again.
        eventually(HANGS, "its runner stands still", || state_of_parent(&sign) == Some('T'));
        terminal.press("go\n");
        eventually(HANGS, "the command goes on", || state_of(&sign) != Some('T'));
        fs::write(&over, "end\n").unwrap();
        let shown = terminal.ended();
        assert!(shown.contains("then 0"), "{line}: {shown}");
        assert!(!is_held(&server));
    }
}

/// As in a login by ssh that started only this command: a process that stops there is never continued.
#[test]
fn where_nobody_could_continue_it_nothing_is_stopped() {
    let server = Server::start();
    let mut terminal = Terminal::running(&server, &format!("exec {LEASEHOLD} run {NAME} -- {ASKS_TWICE}"));
    terminal.press("a\n");
    terminal.shows("one");
    terminal.press("\x1a");
    terminal.shows("^Z");
    terminal.press("b\n");
    let shown = terminal.ended();
    assert!(shown.contains("two"), "{shown}");
    assert!(!is_held(&server));
}

/// A script that runs `shows_its_sign`, continues, and dies of an interrupt at any time. A shell forgets an interrupt
/// that comes just before the shell becomes the last command of its line.
fn goes_on(directory: &TempDir, shows_its_sign: &str) -> PathBuf {
    let script = directory.path().join("script");
    let dies = "trap 'trap - INT; kill -INT $$' INT";
    fs::write(&script, format!("{dies}\n{shows_its_sign}\nwhile :; do sleep 0.05; done\n")).unwrap();
    script
}

/// An interrupt is meant for the script too, as with any command.
#[test]
fn an_interrupt_ends_the_script_around_the_command() {
    let server = Server::start();
    let (directory, _) = directory();
    let script = goes_on(&directory, "echo turn $1");
    let script = script.display();
    let line = format!("for i in 1 2 3; do {LEASEHOLD} run {NAME} -- sh {script} $i; done; echo all done");
    let mut terminal = Terminal::running(&server, &line);
    terminal.shows("turn 1");
    terminal.press("\x03");
    let shown = terminal.ended();
    assert!(!shown.contains("turn 2") && !shown.contains("all done"), "{shown}");
    eventually(HANGS, "it is free", || !is_held(&server));
}

/// A shell waits for its command, and continues unless the command died of the interrupt.
#[test]
fn an_interrupt_ends_the_script_around_a_redirected_command() {
    let server = Server::start();
    let (directory, sign) = directory();
    let script = goes_on(&directory, &format!("echo > {}", sign.display()));
    let script = script.display();
    let line =
        format!("bash -c 'for i in 1 2 3; do {LEASEHOLD} run {NAME} -- sh {script} >/dev/null; echo turn $i; done'");
    let mut terminal = Terminal::running(&server, &line);
    started(&server, &sign);
    terminal.press("\x03");
    let shown = terminal.ended();
    assert!(!shown.contains("turn"), "{shown}");
    assert!(!is_held(&server));
}

#[test]
fn an_interrupt_ends_the_script_around_a_wait() {
    let server = Server::start();
    server.wire().set(NAME, "somebody else's");
    let line = format!("bash -c 'for i in 1 2 3; do {LEASEHOLD} run -v {NAME} -- true; echo turn $i; done'");
    let mut terminal = Terminal::running(&server, &line);
    terminal.shows("is held by");
    terminal.press("\x03");
    let shown = terminal.ended();
    assert!(!shown.contains("turn"), "{shown}");
}

/// The pager shares the terminal with the command, which gets it when it reads from it.
#[test]
fn a_pager_behind_the_command_has_the_terminal() {
    let server = Server::start();
    // The command runs until the pager has read its key.
    let (_directory, over) = directory();
    let over = over.display();
    let pager =
        format!("sh -c 'read first; echo pager sees $first; read key </dev/tty; echo pager got $key; echo > {over}'");
    let writer = format!("sh -c 'echo output; while [ ! -e {over} ]; do sleep 0.01; done'");
    let command = "sh -c 'echo output; read line </dev/tty; echo command got $line'";
    let mut terminal = Terminal::running(&server, &format!("{LEASEHOLD} run {NAME} -- {writer} | {pager}"));
    terminal.shows("pager sees output");
    terminal.press("k\n");
    let shown = terminal.ended();
    assert!(shown.contains("pager got k"), "{shown}");
    let mut terminal = Terminal::running(&server, &format!("{LEASEHOLD} run {NAME} -- {command} | cat"));
    terminal.shows("output");
    terminal.press("l\n");
    let shown = terminal.ended();
    assert!(shown.contains("command got l"), "{shown}");
}

/// The runner restores the terminal, because a shell does so for its own children only.
#[test]
fn a_terminal_is_as_it_was_when_its_command_was_killed() {
    let server = Server::start();
    let line = format!("{LEASEHOLD} run {NAME} -- sh -c 'stty raw -echo; kill -KILL $$'; echo code $?; stty -a");
    let shown = Terminal::running(&server, &line).ended();
    let after = &shown[shown.find("code 137").unwrap()..];
    assert!(after.contains(" icanon") && after.contains(" echo ") && after.contains(" icrnl"), "{after}");
}

/// The command may be a shell whose job has the terminal.
#[test]
fn the_terminal_is_taken_back_from_a_command_killed_by_a_loss() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let job = format!("sh -c 'set -m; sh -c \"echo > {}; sleep 60\"; true'", sign.display());
    let line =
        format!("{LEASEHOLD} run --ttl 4s --grace 200ms {NAME} -- {job}; echo code $?; read line; echo then $line");
    let mut terminal = Terminal::running(&server, &line);
    started(&server, &sign);
    server.wire().del(NAME);
    terminal.shows("code 75");
    terminal.press("again\n");
    let shown = terminal.ended();
    assert!(shown.contains("then again"), "{shown}");
}

/// A message that was printed on an editor's screen disappears with that screen.
#[test]
fn a_loss_is_told_again_when_a_command_has_given_the_terminal_back() {
    let server = Server::start();
    let (directory, sign) = directory();
    let script = directory.path().join("editor");
    let (enters, leaves) = ("printf '\\033[?1049h'", "printf '\\033[?1049l'");
    let text =
        format!("trap \"{leaves}; exit\" TERM\n{enters}; echo > {}\nwhile :; do sleep 0.05; done", sign.display());
    fs::write(&script, text).unwrap();
    let terminal = Terminal::running(&server, &format!("{LEASEHOLD} run {NAME} sh {}", script.display()));
    started(&server, &sign);
    server.wire().del(NAME);
    let shown = terminal.ended();
    // Another thread writes the first line, which may come late.
    let (_, after) = shown.split_once("\u{1b}[?1049l").unwrap();
    assert!(shown.contains("its key is gone from the server; the command is stopped"), "{shown}");
    assert!(after.contains("its key is gone from the server; the command was stopped"), "{shown}");
}
