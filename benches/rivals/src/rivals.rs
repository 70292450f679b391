//! The contestants side by side on one server: many tasks, and the lone caller.

use tokio::runtime::Builder;

use crate::{
    Contestant, Result, Server, Spread,
    chart::Bars,
    machine,
    page::Section,
    rates::{Load, Turns},
    table::thousands,
};

const TWO: &str = "server and client on the same 2 cores";

/// The load whose processor time has a chart.
const BUSY: &str = "256 tasks";

type Runtimes = [(&'static str, fn() -> Builder); 2];
const RUNTIMES: Runtimes = [("multi", Builder::new_multi_thread), ("current", Builder::new_current_thread)];

pub fn rivals() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("rivals");
    let server = Server::start()?;
    let mut ahead = Vec::new();
    for (kind, runtime) in RUNTIMES {
        let mut measured = Vec::new();
        for (tasks, title) in [(1, "1 task"), (16, "16 tasks"), (256, BUSY), (2_000, "2,000 tasks")] {
            let load = Load::new(runtime(), tasks, Contestant::all(&server))?;
            measured.push((title.to_owned(), load.measure(&[server.id()])?));
        }
        rates(&mut section, &format!("Cycles per second, {kind}-thread runtime"), TWO, &measured);
        processor_time(&mut section, &format!("Processor time of a cycle, {kind}-thread runtime"), TWO, &measured);
        section.bars(&format!("rates-{kind}"), &rates_chart(kind, &measured))?;
        for (title, turns) in &measured {
            if title == BUSY {
                section.bars(&format!("cpu-{kind}"), &cpu_chart(kind, turns))?;
            }
        }
        ahead.extend(measured.iter().map(|(title, turns)| (format!("{kind}, {title}"), who_is_ahead(turns))));
    }
    say_who_is_ahead(&mut section, ahead);
    section.say(&format!("Versions: {}.", machine::versions()));
    section.write()
}

/// Measures a lone caller. Unpinned, its server could be on the same core or on another one, and the rates of the two
/// differ by up to a factor of four.
pub fn lone() -> Result<()> {
    let cores = machine::pin_to_two()?;
    let mut section = Section::new("lone");
    let mut measured = Vec::new();
    for (place, server_core) in [("one core", cores[0]), ("two cores", cores[1])] {
        machine::pin(&[server_core])?;
        let server = Server::start()?;
        machine::pin(&cores[..1])?;
        for (kind, runtime) in RUNTIMES {
            let title = format!("{kind}, {place}");
            let load = Load::new(runtime(), 1, Contestant::all(&server))?;
            measured.push((title, load.measure(&[server.id()])?));
        }
    }
    let place = "the client pinned to one core, the server to the same one or to another";
    rates(&mut section, "Cycles per second of a lone caller", place, &measured);
    say_who_is_ahead(
        &mut section,
        measured.iter().map(|(title, turns)| (title.clone(), who_is_ahead(turns))).collect(),
    );
    section.write()
}

pub(crate) type Measured = [(String, Vec<Turns>)];

fn titles<'a>(first: &'a str, measured: &'a Measured) -> Vec<&'a str> {
    [first].into_iter().chain(measured.iter().map(|(title, _)| title.as_str())).collect()
}

/// A row for each contestant: `cell` of its turns in each load.
fn rows(measured: &Measured, cell: impl Fn(&Turns) -> String) -> Vec<Vec<String>> {
    let Some((_, first)) = measured.first() else { return Vec::new() };
    let names = first.iter().map(|turns| turns.contestant.name());
    names
        .enumerate()
        .map(|(at, name)| {
            let cells = measured.iter().map(|(_, turns)| cell(&turns[at]));
            [name.to_owned()].into_iter().chain(cells).collect()
        })
        .collect()
}

pub(crate) fn rates(section: &mut Section, title: &str, place: &str, measured: &Measured) {
    let mut rows = rows(measured, |turns| turns.rate().show(thousands));
    for name in ["plain fred", "fred, with a fence"] {
        if rows.iter().any(|row| row[0] == name) {
            rows.push(ratios(&format!("leasehold to {name}"), measured, |all| {
                let fred = all.iter().find(|turns| turns.contestant.name() == name)?;
                Some(format!("{:.2}", all.first()?.ratio(fred)))
            }));
        }
    }
    rows.push(ratios("leasehold to the best rival", measured, |all| {
        let (best, ours) = (best(all)?, all.first()?);
        Some(format!("**{:.2}** ({})", ours.ratio(best), best.contestant.name()))
    }));
    section.table(title, place, &titles("median (least..most)", measured), &rows);
}

pub(crate) fn processor_time(section: &mut Section, title: &str, place: &str, measured: &Measured) {
    let mut rows =
        rows(measured, |turns| format!("{:.1} + {:.1}", turns.client().median, turns.server().median.max(0.0)));
    rows.push(ratios("leasehold to the best rival, both sides", measured, |all| {
        let least = all.iter().filter(|turns| turns.contestant.is_rival()).map(Turns::both).min_by(f64::total_cmp)?;
        Some(format!("**{:.2}**", all.first()?.both() / least))
    }));
    section.table(title, place, &titles("microseconds, client + server", measured), &rows);
}

fn ratios(name: &str, measured: &Measured, ratio: impl Fn(&[Turns]) -> Option<String>) -> Vec<String> {
    [name.to_owned()].into_iter().chain(measured.iter().map(|(_, all)| ratio(all).unwrap_or_default())).collect()
}

/// The rival with the highest median.
fn best(all: &[Turns]) -> Option<&Turns> {
    let rivals = all.iter().filter(|turns| turns.contestant.is_rival());
    rivals.max_by(|one, other| one.rate().median.total_cmp(&other.rate().median))
}

/// The rivals with more cycles than leasehold, with their ratio to it.
fn who_is_ahead(all: &[Turns]) -> Vec<String> {
    let Some(ours) = all.first() else { return Vec::new() };
    let rivals = all.iter().filter(|turns| turns.contestant.is_rival());
    let ratios = rivals.map(|turns| (turns.contestant.name(), turns.ratio(ours)));
    ratios.filter(|(_, ratio)| *ratio > 1.0).map(|(name, ratio)| format!("{name} {ratio:.2} times")).collect()
}

fn say_who_is_ahead(section: &mut Section, ahead: Vec<(String, Vec<String>)>) {
    let lines = ahead.into_iter().map(|(load, rivals)| {
        let rivals = if rivals.is_empty() { "none".to_owned() } else { rivals.join(", ") };
        format!("- {load}: {rivals}")
    });
    let lines: Vec<String> = lines.collect();
    section.say(&format!(
        "**Rivals that do more cycles than leasehold**, and how many times as many: the median over pairs of runs side by side, so it need not be the quotient of the medians above:\n\n{}",
        lines.join("\n")
    ));
}

fn rates_chart(kind: &str, measured: &Measured) -> Bars {
    let over_a_server = |turns: &&Turns| !matches!(turns.contestant, Contestant::InMemory(_));
    let mut series: Vec<(String, Vec<Spread>)> = Vec::new();
    for (_, turns) in measured {
        for (at, turns) in turns.iter().filter(over_a_server).enumerate() {
            match series.get_mut(at) {
                Some((_, values)) => values.push(turns.rate().of_thousands()),
                None => series.push((turns.contestant.name().to_owned(), vec![turns.rate().of_thousands()])),
            }
        }
    }
    Bars {
        title: format!("Acquire and release: thousand cycles a second, {kind}-thread runtime"),
        groups: measured.iter().map(|(title, _)| title.clone()).collect(),
        series,
        stacked: false,
    }
}

fn cpu_chart(kind: &str, turns: &[Turns]) -> Bars {
    let over_a_server: Vec<&Turns> =
        turns.iter().filter(|turns| !matches!(turns.contestant, Contestant::InMemory(_))).collect();
    Bars {
        title: format!("Microseconds of processor time of a cycle at {BUSY}, {kind}-thread runtime"),
        groups: over_a_server.iter().map(|turns| turns.contestant.name().to_owned()).collect(),
        series: vec![
            ("client".into(), over_a_server.iter().map(|turns| turns.client()).collect()),
            ("server".into(), over_a_server.iter().map(|turns| turns.server()).collect()),
        ],
        stacked: true,
    }
}
