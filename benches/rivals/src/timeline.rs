//! A timeline as SVG: rows of bars over one axis of time.

use std::fmt::Write as _;

/// The meaning of a colour, by its class in the style.
pub type Meaning = (&'static str, &'static str);

#[derive(Debug)]
pub struct Timeline {
    pub title: &'static str,
    /// The end of the axis, in its unit, and the distance of two numbers on it.
    pub end: f64,
    pub step: f64,
    pub unit: &'static str,
    /// Moments that concern all rows.
    pub moments: Vec<Note>,
    pub rows: Vec<Row>,
    pub meanings: &'static [Meaning],
}

/// A row: its bars, and the notes below them.
#[derive(Debug)]
pub struct Row {
    pub name: String,
    pub bars: Vec<Bar>,
    pub notes: Vec<Note>,
}

#[derive(Debug, Clone, Copy)]
pub struct Bar {
    pub class: &'static str,
    pub from: f64,
    pub to: f64,
    /// A thin bar lies below the others.
    pub is_thin: bool,
}

#[derive(Debug, Clone)]
pub struct Note {
    pub at: f64,
    pub side: Side,
    pub text: String,
}

/// The side of its moment on which a text stands.
#[derive(Debug, Clone, Copy)]
pub enum Side {
    Before,
    Around,
    After,
}

const WIDTH: f64 = 800.0;
/// Where the time begins, to the right of the names, and where it ends.
const LEFT: f64 = 170.0;
const RIGHT: f64 = 775.0;
const TOP: f64 = 62.0;
const ROW: f64 = 50.0;

/// Colours that can be told apart on white and on black.
const STYLE: &str = "text{font:14px system-ui,sans-serif;fill:#1f2328}.s{font-size:12px}.g{stroke:#8c959f;\
    stroke-dasharray:3 3}.h{fill:#1a7f37}.w{fill:#cf222e}.n{fill:#0969da}.r{fill:#bf8700}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#6e7681}.h{fill:#3fb950}.w{fill:#f85149}.n{fill:#58a6ff}.r{fill:#d29922}}";

pub fn row(name: impl Into<String>, bars: impl Into<Vec<Bar>>, notes: impl Into<Vec<Note>>) -> Row {
    Row { name: name.into(), bars: bars.into(), notes: notes.into() }
}

pub fn bar(class: &'static str, from: f64, to: f64) -> Bar {
    Bar { class, from, to, is_thin: false }
}

pub fn note(at: f64, side: Side, text: impl Into<String>) -> Note {
    Note { at, side, text: text.into() }
}

impl Timeline {
    pub fn svg(&self) -> String {
        let bottom = self.rows.iter().fold(TOP, |top, _| top + ROW);
        let (title, height) = (self.title, bottom + 52.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
             aria-label=\"{title}\"><style>{STYLE}</style>"
        );
        text(&mut svg, 10.0, 20.0, "", title);
        for moment in &self.moments {
            let _ = write!(svg, "<path class=\"g\" d=\"M{:.1} 48V{bottom:.0}\"/>", self.x(moment.at));
            self.write(&mut svg, 44.0, moment);
        }
        let mut top = TOP;
        for row in &self.rows {
            text(&mut svg, 10.0, top + 17.0, "", &row.name);
            for bar in &row.bars {
                let (top, height) = if bar.is_thin { (top + 20.0, 5.0) } else { (top + 4.0, 14.0) };
                rect(&mut svg, bar.class, self.x(bar.from), top, self.x(bar.to) - self.x(bar.from), height);
            }
            let below = if row.bars.iter().any(|bar| bar.is_thin) { 38.0 } else { 34.0 };
            row.notes.iter().for_each(|note| self.write(&mut svg, top + below, note));
            top += ROW;
        }
        let mut number = 0.0;
        while number <= self.end {
            self.write(&mut svg, bottom + 14.0, &note(number, Side::Around, format!("{number} {}", self.unit)));
            number += self.step;
        }
        let mut left = LEFT;
        for (class, what) in self.meanings {
            rect(&mut svg, class, left, bottom + 28.0, 12.0, 12.0);
            text(&mut svg, left + 18.0, bottom + 39.0, "s", what);
            left += if what.len() > 16 { 200.0 } else { 130.0 };
        }
        svg + "</svg>\n"
    }

    fn x(&self, at: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * at.clamp(0.0, self.end) / self.end
    }

    fn write(&self, svg: &mut String, top: f64, note: &Note) {
        let (place, class) = match note.side {
            Side::Before => (self.x(note.at) - 4.0, "s\" text-anchor=\"end"),
            Side::Around => (self.x(note.at), "s\" text-anchor=\"middle"),
            Side::After => (self.x(note.at) + 2.0, "s"),
        };
        text(svg, place, top, class, &note.text);
    }
}

fn rect(svg: &mut String, class: &str, left: f64, top: f64, width: f64, height: f64) {
    let _ = write!(
        svg,
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"{height:.0}\"/>"
    );
}

fn text(svg: &mut String, left: f64, top: f64, class: &str, what: &str) {
    let _ = write!(svg, "<text class=\"{class}\" x=\"{left:.1}\" y=\"{top:.0}\">{what}</text>");
}
