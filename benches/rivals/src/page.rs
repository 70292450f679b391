//! The page `docs/performance.md`: the text of `page.md`, with the section of each part between its own two markers.

use std::{fmt::Write as _, fs, path::PathBuf};

use crate::{
    Result, chart, machine,
    table::{head, row},
};

const TEXT: &str = include_str!("page.md");
const PAGE: &str = "docs/performance.md";
const CHARTS: &str = "docs/performance";
/// The longest line of prose.
const WIDTH: usize = 120;

/// The section of one part.
#[derive(Debug)]
pub struct Section {
    part: &'static str,
    machine: String,
    text: String,
}

impl Section {
    /// Begins a section. The machine is described before anything runs.
    pub fn new(part: &'static str) -> Self {
        Self { part, machine: machine::describe(), text: String::new() }
    }

    /// A table with its title above, and the origin of its numbers below.
    pub fn table(&mut self, title: &str, cores: &str, titles: &[&str], rows: &[Vec<String>]) {
        let rows: Vec<String> = rows.iter().map(row).collect();
        let table = format!("### {title}\n\n{}\n{}", head(titles), rows.join("\n"));
        let from = format!("By `scripts/bench {}`, {cores}; {}.", self.part, self.machine);
        println!("\n{table}\n\n{from}");
        let _ = write!(self.text, "\n{table}\n\n{}\n", wrap(&format!("<sub>{from}</sub>")));
    }

    /// Writes a sentence or more that depend on the figures.
    pub fn say(&mut self, text: &str) {
        println!("\n{text}");
        let _ = write!(self.text, "\n{}\n", wrap(text));
    }

    /// Writes a picture beside the page.
    pub fn bars(&mut self, name: &str, bars: &chart::Bars) -> Result<()> {
        self.picture(name, &bars.title, &bars.svg()?)
    }

    pub fn picture(&mut self, name: &str, title: &str, svg: &str) -> Result<()> {
        write_picture(name, svg, name == "told")?;
        let _ = write!(self.text, "\n<img src=\"performance/{name}.svg\" alt=\"{title}\">\n");
        Ok(())
    }

    /// Writes the page anew, with this section in place of the last run's, and the other sections as they are.
    pub fn write(self) -> Result<()> {
        let open = marker(self.part);
        if !TEXT.contains(&open) {
            return Err(format!("the text of {PAGE} has no {open}").into());
        }
        let last = fs::read_to_string(PAGE)?;
        let mut page = String::new();
        for line in TEXT.split_inclusive('\n') {
            page += line;
            match line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(": -->\n")) {
                Some(part) if part == self.part => page = page + &self.text + "\n",
                Some(part) => page += section(&last, part).unwrap_or_default(),
                None => {}
            }
        }
        fs::write(PAGE, page)?;
        println!("\n{PAGE}: the section {} is new", self.part);
        Ok(())
    }
}

/// Writes a picture; for docs.rs, which has no files beside its pages, also as a link that contains it.
pub fn write_picture(name: &str, svg: &str, is_for_pages: bool) -> Result<()> {
    fs::create_dir_all(CHARTS)?;
    let charts = PathBuf::from(CHARTS);
    if is_for_pages {
        fs::write(charts.join(format!("{name}.link")), chart::as_link(name, svg))?;
    }
    Ok(fs::write(charts.join(format!("{name}.svg")), svg)?)
}

/// The line before the section of a part.
fn marker(part: &str) -> String {
    format!("<!-- {part}: -->\n")
}

/// The text between the markers of a part.
fn section<'a>(page: &'a str, part: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&marker(part))?;
    Some(rest.split_once(&format!("<!-- :{part} -->"))?.0)
}

/// Breaks lines of prose. The further lines of a list item are indented below its text.
fn wrap(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut words = line.split(' ');
        let mut wrapped = words.next().unwrap_or_default().to_owned();
        for word in words {
            if wrapped.len() + 1 + word.len() > WIDTH {
                lines.push(wrapped);
                wrapped = format!("{indent}{word}");
            } else {
                wrapped = wrapped + " " + word;
            }
        }
        lines.push(wrapped);
    }
    lines.join("\n")
}
