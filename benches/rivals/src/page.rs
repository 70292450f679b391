//! The page `docs/performance.md`: each part of the bench replaces what stands between its own two markers.

use std::{fmt::Write as _, fs, path::PathBuf};

use crate::{
    Result, chart, machine,
    table::{head, row},
};

const PAGE: &str = "docs/performance.md";
const CHARTS: &str = "docs/performance";

/// What one part has to say.
#[derive(Debug)]
pub struct Section {
    part: &'static str,
    machine: String,
    text: String,
}

impl Section {
    /// The machine is looked at before anything runs.
    pub fn new(part: &'static str) -> Self {
        Self { part, machine: machine::describe(), text: String::new() }
    }

    /// A table with its title above, and where its numbers come from below.
    pub fn table(&mut self, title: &str, cores: &str, titles: &[&str], rows: &[Vec<String>]) {
        let rows: Vec<String> = rows.iter().map(row).collect();
        let table = format!("### {title}\n\n{}\n{}", head(titles), rows.join("\n"));
        let from = format!("By `scripts/bench {}`, {cores}; {}.", self.part, self.machine);
        println!("\n{table}\n\n{from}");
        let _ = write!(self.text, "\n{table}\n\n<sub>{from}</sub>\n");
    }

    /// A sentence or more that the figures decide.
    pub fn say(&mut self, text: &str) {
        println!("\n{text}");
        let _ = write!(self.text, "\n{text}\n");
    }

    /// A picture beside the page.
    pub fn bars(&mut self, name: &str, bars: &chart::Bars) -> Result<()> {
        fs::create_dir_all(CHARTS)?;
        fs::write(PathBuf::from(CHARTS).join(format!("{name}.svg")), bars.svg()?)?;
        let _ = write!(self.text, "\n<img src=\"performance/{name}.svg\" alt=\"{}\">\n", bars.title);
        Ok(())
    }

    /// Puts the section into the page, in place of the last run's.
    pub fn write(self) -> Result<()> {
        let page = fs::read_to_string(PAGE)?;
        let (open, close) = (format!("<!-- {}: -->\n", self.part), format!("<!-- :{} -->", self.part));
        let (before, rest) = page.split_once(&open).ok_or_else(|| format!("{PAGE} has no {open}"))?;
        let (_, after) = rest.split_once(&close).ok_or_else(|| format!("{PAGE} has no {close}"))?;
        fs::write(PAGE, format!("{before}{open}{}\n{close}{after}", self.text))?;
        println!("\n{PAGE}: the section {} is new", self.part);
        Ok(())
    }
}
