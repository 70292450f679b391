//! Bar charts as SVG.

use std::fmt::Write as _;

use charts_rs::{BarChart, Series, SeriesBand};

use crate::{Result, Spread};

/// Groups of bars: one group for each of `groups`, with a bar of each series.
#[derive(Debug)]
pub struct Bars {
    pub title: String,
    pub groups: Vec<String>,
    pub series: Vec<(String, Vec<Spread>)>,
    /// Whether the bars of a group are stacked.
    pub stacked: bool,
}

/// A Markdown definition that contains the picture itself, because rustdoc shows the README without the files beside
/// it.
pub fn as_link(name: &str, svg: &str) -> String {
    let mut link = format!("[{name}]: data:image/svg+xml,");
    for byte in svg.bytes() {
        match byte {
            b'0'..=b'9'
            | b'A'..=b'Z'
            | b'a'..=b'z'
            | b'-'
            | b'_'
            | b'.'
            | b'~'
            | b'!'
            | b'*'
            | b','
            | b';'
            | b':'
            | b'/'
            | b'='
            | b'@'
            | b'+'
            | b'&' => link.push(byte.into()),
            _ => {
                let _ = write!(link, "%{byte:02X}");
            }
        }
    }
    link.push('\n');
    link
}

impl Bars {
    /// One bar in each group.
    pub fn of_one(title: &str, unit: &str, bars: impl IntoIterator<Item = (String, Spread)>) -> Self {
        let (groups, values) = bars.into_iter().unzip();
        Self { title: title.to_owned(), groups, series: vec![(unit.to_owned(), values)], stacked: false }
    }

    #[allow(clippy::cast_possible_truncation, reason = "a picture is not that fine")]
    pub fn svg(&self) -> Result<String> {
        let series = self.series.iter().map(|(name, values)| {
            let all = |part: fn(&Spread) -> f64| values.iter().map(|value| Some(part(value) as f32)).collect();
            let mut series = Series::new_nullable(name.clone(), all(|value| value.median));
            if self.stacked {
                series.stack = Some("all".into());
            } else {
                let (lower, upper) = (all(|value| value.least), all(|value| value.most));
                series.error_bar = Some(SeriesBand { lower, upper, ..SeriesBand::default() });
            }
            series
        });
        let mut chart = BarChart::new(series.collect(), self.groups.clone());
        chart.title.text.clone_from(&self.title);
        chart.width = 800.0;
        chart.height = 360.0;
        chart.legend.show = Some(self.series.len() > 1);
        // The font may be missing where the picture is shown.
        Ok(chart.svg()?.replace("\"Roboto\"", "\"Roboto, sans-serif\""))
    }
}
