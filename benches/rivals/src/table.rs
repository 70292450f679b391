//! Markdown tables.

/// A row of a table.
pub fn row(cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    cells.into_iter().fold(String::from("|"), |row, cell| row + " " + cell.as_ref() + " |")
}

/// The head of a table: its row, and the line below. Numbers are aligned to the right.
pub fn head(cells: &[&str]) -> String {
    let rule = cells.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "---:" });
    row(cells) + "\n" + &row(rule)
}

/// `12.3 k`, for a number of thousands.
pub fn thousands(number: f64) -> String {
    let thousands = number / 1e3;
    if thousands < 100.0 { format!("{thousands:.1} k") } else { format!("{thousands:.0} k") }
}
