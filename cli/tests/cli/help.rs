//! The help and the manual.

use std::{
    fs,
    process::{Command, Output},
};

use support::TempDir;

use crate::scene::{LEASEHOLD, ends_with, said};

const COMMANDS: [&str; 11] =
    ["run", "hold", "show", "ls", "top", "observe", "doctor", "acl", "release", "completions", "man"];

fn asked(args: &[&str], columns: Option<&str>) -> Output {
    let mut command = Command::new(LEASEHOLD);
    command.args(args).env_remove("COLUMNS");
    if let Some(columns) = columns {
        command.env("COLUMNS", columns);
    }
    command.output().unwrap()
}

#[test]
fn help_fits_into_eighty_columns() {
    let tool = [&["--help"][..], &["-h"], &["help"]].map(<[_]>::to_vec);
    let commands = COMMANDS.iter().flat_map(|command| [vec![*command, "--help"], vec![*command, "-h"]]);
    for args in tool.into_iter().chain(commands) {
        for columns in [None, Some("80"), Some("200")] {
            let output = asked(&args, columns);
            ends_with(&output, 0, &[]);
            let help = String::from_utf8(output.stdout).unwrap();
            assert!(help.contains("Examples:\n  leasehold "), "{help}");
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{args:?}, {columns:?}: {line:?}");
            }
        }
    }
    let short = String::from_utf8(asked(&["run", "-h"], None).stdout).unwrap();
    assert!(short.lines().count() <= 70 && short.contains("--wait") && !short.contains("--cacert"), "{short}");
    let run = String::from_utf8(asked(&["run", "--help"], None).stdout).unwrap();
    for heading in ["Server:", "Waiting:", "Stopping:", "Exit status:"] {
        assert!(run.contains(&format!("\n{heading}\n")), "{heading} is not in {run}");
    }
}

#[test]
fn every_command_has_a_page_of_its_own() {
    let directory = TempDir::new("pages");
    let pages = directory.path().join("man1");
    ends_with(&asked(&["man", "--out-dir", pages.to_str().unwrap()], None), 0, &[]);
    let mut written: Vec<String> =
        fs::read_dir(&pages).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    written.sort();
    let mut expected: Vec<String> = COMMANDS.iter().map(|command| format!("leasehold-{command}.1")).collect();
    expected.push("leasehold.1".into());
    expected.sort();
    assert_eq!(written, expected);
    for page in written {
        let file = pages.join(&page);
        let text = fs::read_to_string(&file).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "\"SEE ALSO\""] {
            assert!(text.contains(&format!("\n.SH {section}\n")), "{section} is not in {page}: {text}");
        }
        assert!(!text.contains("\n.SH EXTRA"), "{text}");
        // If groff is installed, it prints no warnings.
        if let Ok(rendered) = Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(&file).output() {
            assert_eq!((rendered.status.code(), said(&rendered).as_str()), (Some(0), ""), "{page}");
        }
    }
    let run = fs::read_to_string(pages.join("leasehold-run.1")).unwrap();
    for text in [".SH \"EXIT STATUS\"", ".SH ENVIRONMENT", "LEASEHOLD_FENCE", "LEASEHOLD_URL", "leasehold\\-show(1)"] {
        assert!(run.contains(text), "{text} is not in {run}");
    }
    let printed = asked(&["man", "run"], None);
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), run);
    ends_with(&asked(&["man", "walk"], None), 64, &["no command \"walk\""]);
    ends_with(&asked(&["man", "--out-dir", "/dev/null/pages"], None), 74, &["/dev/null/pages"]);
}
