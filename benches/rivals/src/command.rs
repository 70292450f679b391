//! The cost of `leasehold run` for a command that does nothing, compared with `flock` and the bare command.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use crate::{Result, Server, Spread, chart::Bars, machine, median, page::Section};

const RUNS: usize = 200;
/// The percentile that a table and its chart show instead of the maximum.
const LATE: f64 = 0.95;

/// Measures the tool, and the static one of `scripts/binaries` if there is one.
pub fn main(tool: &str, static_tool: Option<&str>) -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("command");
    let server = Server::start()?;
    let file = std::env::temp_dir().join(format!("leasehold-bench-{}.flock", std::process::id()));
    let times = measure(tool, static_tool, &server, &file);
    let _ = std::fs::remove_file(&file);
    let times = times?;
    let bare = median(times[0].1.iter().copied());
    let rows = times.iter().map(|(name, times)| {
        let spread = Spread::up_to(times.iter().copied(), LATE);
        let cells =
            [spread.median, spread.median - bare, spread.least, spread.most].map(|millis| format!("{millis:.1} ms"));
        [format!("`{name}`")].into_iter().chain(cells).collect()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let titles = ["command", "median of 200", "more than the bare one", "least", "95 %"];
    section.table("A command", "all processes on the same 2 cores", &titles, &rows);
    let each = times.iter().map(|(name, times)| ((*name).to_owned(), Spread::up_to(times.iter().copied(), LATE)));
    let title = "Milliseconds of a command that does nothing, median (least..95 %)";
    section.bars("command", &Bars::of_one(title, "milliseconds", each))?;
    section.write()
}

fn measure(
    tool: &str,
    static_tool: Option<&str>,
    server: &Server,
    file: &Path,
) -> Result<Vec<(&'static str, Vec<f64>)>> {
    let file = file.to_str().ok_or("the temporary directory has a strange name")?;
    let mut commands = vec![
        ("true", vec!["true"]),
        ("flock FILE true", vec!["flock", file, "true"]),
        ("leasehold run NAME true", vec![tool, "run", "name", "true"]),
    ];
    commands.extend(
        static_tool.map(|tool| ("leasehold run NAME true, linked statically", vec![tool, "run", "name", "true"])),
    );
    let mut times: Vec<(&str, Vec<f64>)> = commands.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for _ in 0..RUNS {
        for ((_, command), (name, times)) in commands.iter().zip(&mut times) {
            let (program, arguments) = command.split_first().ok_or("no command")?;
            let mut command = Command::new(program);
            command.args(arguments).env("LEASEHOLD_URL", server.url()).stdin(Stdio::null());
            let started = Instant::now();
            let status = command.status()?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
            if !status.success() {
                return Err(format!("{name}: {status}").into());
            }
        }
    }
    Ok(times)
}
