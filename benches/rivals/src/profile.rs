//! The instructions of a cycle, by crate.

use std::process::{Command, Stdio};

use crate::{Result, page::Section};

pub fn main() -> Result<()> {
    let mut section = Section::new("profile");
    let counted = Command::new("scripts/guards").arg("--profile").stderr(Stdio::inherit()).output()?;
    if !counted.status.success() {
        return Err(format!("scripts/guards --profile: {}", counted.status).into());
    }
    let text = String::from_utf8(counted.stdout)?;
    let mut rows = text.lines().filter(|line| line.contains('\t')).map(|line| line.split('\t').collect::<Vec<_>>());
    let titles = rows.next().ok_or("scripts/guards --profile has counted nothing")?;
    let rows: Vec<Vec<String>> = rows.map(|row| row.into_iter().map(str::to_owned).collect()).collect();
    section.table("Instructions of the client", "current-thread runtime, under callgrind", &titles, &rows);
    section.write()
}
