//! A timeline as SVG: until when each holder believes in its lock, and when the next one has it.

use std::fmt::Write as _;

/// One library. All times are in seconds after its last renewal.
#[derive(Debug)]
pub struct Lane {
    pub name: &'static str,
    /// When its holder was told, if ever.
    pub told: Option<f64>,
    /// When the next holder had the lock.
    pub next: f64,
    /// The text beside the lane.
    pub says: String,
}

#[derive(Debug)]
pub struct Timeline {
    pub title: &'static str,
    /// When the link hung.
    pub hangs: f64,
    pub ttl: f64,
    pub lanes: Vec<Lane>,
}

const WIDTH: f64 = 800.0;
/// Where the time begins, to the right of the names, and where it ends.
pub const LEFT: f64 = 170.0;
pub const RIGHT: f64 = 785.0;
pub const TOP: f64 = 62.0;
const LANE: f64 = 50.0;

/// Colours that can be told apart on white and on black.
const STYLE: &str = "text{font:14px system-ui,sans-serif;fill:#1f2328}.s{font-size:12px}.g{stroke:#8c959f;\
    stroke-dasharray:3 3}.h{fill:#1a7f37}.w{fill:#cf222e}.n{fill:#0969da}.r{fill:#bf8700}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#6e7681}.h{fill:#3fb950}.w{fill:#f85149}.n{fill:#58a6ff}.r{fill:#d29922}}";

impl Timeline {
    pub fn svg(&self) -> String {
        let latest = self.lanes.iter().filter_map(|lane| lane.told).fold(self.ttl, f64::max);
        let end = (latest + 1.0).ceil();
        let x = |seconds: f64| LEFT + (RIGHT - LEFT) * seconds.clamp(0.0, end) / end;
        let bottom = self.lanes.iter().fold(TOP, |top, _| top + LANE);
        let mut svg = begin(self.title, bottom + 52.0);
        for (at, what) in [(0.0, "last renewal"), (self.hangs, "the link hangs"), (self.ttl, "the key expires")] {
            let place = x(at);
            let _ = write!(svg, "<path class=\"g\" d=\"M{place:.1} 48V{bottom:.0}\"/>");
            // The first two are too close for two words on one line.
            let (place, class) = if at == 0.0 { (place - 4.0, "s\" text-anchor=\"end") } else { (place + 2.0, "s") };
            text(&mut svg, place, 44.0, class, what);
        }
        let mut top = TOP;
        for lane in &self.lanes {
            lane.draw(&mut svg, top, end, x);
            top += LANE;
        }
        seconds(&mut svg, bottom + 14.0, end, x);
        let meanings = [("h", "holds the lock"), ("w", "believes so, and does not"), ("n", "the next holder")];
        legend(&mut svg, bottom + 28.0, &meanings);
        svg + "</svg>\n"
    }
}

/// The beginning of a picture of this height, with its title.
pub fn begin(title: &str, height: f64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{title}\">\
         <style>{STYLE}</style>"
    );
    text(&mut svg, 10.0, 20.0, "", title);
    svg
}

/// The seconds below a picture.
pub fn seconds(svg: &mut String, top: f64, end: f64, x: impl Fn(f64) -> f64) {
    let mut second = 0.0;
    while second <= end {
        text(svg, x(second), top, "s\" text-anchor=\"middle", &format!("{second} s"));
        second += 1.0;
    }
}

/// The legend of the colours.
pub fn legend(svg: &mut String, top: f64, meanings: &[(&str, &str)]) {
    let mut left = LEFT;
    for (class, what) in meanings {
        rect(svg, class, left, top, 12.0, 12.0);
        text(svg, left + 18.0, top + 11.0, "s", what);
        left += if what.len() > 16 { 200.0 } else { 130.0 };
    }
}

impl Lane {
    fn draw(&self, svg: &mut String, top: f64, end: f64, x: impl Fn(f64) -> f64) {
        text(svg, 10.0, top + 17.0, "", self.name);
        let (told, next) = (x(self.told.unwrap_or(end)), x(self.next));
        rect(svg, "h", x(0.0), top + 4.0, told.min(next) - x(0.0), 14.0);
        if told > next {
            rect(svg, "w", next, top + 4.0, told - next, 14.0);
        }
        rect(svg, "n", next, top + 20.0, x(end) - next, 5.0);
        text(svg, x(0.0) + 6.0, top + 38.0, "s", &self.says);
    }
}

pub fn rect(svg: &mut String, class: &str, left: f64, top: f64, width: f64, height: f64) {
    let _ = write!(
        svg,
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"{height:.0}\"/>"
    );
}

pub fn text(svg: &mut String, left: f64, top: f64, class: &str, what: &str) {
    let _ = write!(svg, "<text class=\"{class}\" x=\"{left:.1}\" y=\"{top:.0}\">{what}</text>");
}
