//! The cost of a sharer's cycle, compared with a cycle in a fair queue.

use std::sync::Arc;

use leasehold::Lock;
use tokio::runtime::Builder;

use super::{PLACE, crowd::Crowd};
use crate::{
    Contestant, Result, Server, Spread, TTL,
    chart::Bars,
    contestant::leases_at,
    median,
    page::Section,
    rates::{self, Load, Turns},
    stats,
};

/// This many tasks read the name all the time.
const BESIDE: [(usize, &str); 5] = [
    (1, "a reader beside 1 other"),
    (100, "a reader beside 100"),
    (1_000, "a reader beside 1,000"),
    (10_000, "a reader beside 10,000"),
    (100_000, "a reader beside 100,000"),
];
const ALONE: &str = "a reader alone, a phase each time";
/// How many turns there are, and how many cycles in each, where the time in scripts is measured.
const TURNS: usize = 9;
const CYCLES: u32 = 300;

pub fn main(section: &mut Section) -> Result<()> {
    let server = Server::start()?;
    server_time(section, &server)?;
    tasks(section, &server)
}

/// The server's processor time for a cycle of a lone task, and the part of it in scripts.
fn server_time(section: &mut Section, server: &Server) -> Result<()> {
    let mut crowd = Crowd::start(&server.url())?;
    for (count, title) in BESIDE {
        crowd.read(title, count)?;
    }
    let all = Load::new(Builder::new_multi_thread(), 1, lone(server))?.measure(&[server.id()])?;
    let scripts = Builder::new_multi_thread().enable_all().build()?.block_on(in_scripts(server))?;
    let [fair, others @ ..] = all.as_slice() else { return Err("no contestants".into()) };
    let micros = |micros: f64| format!("{micros:.1}");
    let rows = all.iter().zip(&scripts).map(|(turns, in_scripts)| {
        let name = turns.contestant.name();
        let wanted = match name {
            ALONE => "at most 1.5",
            name if BESIDE.iter().any(|(_, beside)| *beside == name) => "at most 1.3",
            _ => "",
        };
        let of_scripts = median(in_scripts.iter().zip(&scripts[0]).map(|(one, fair)| one / fair));
        vec![
            name.to_owned(),
            turns.server().show(micros),
            format!("{:.2}", turns.server_ratio(fair)),
            Spread::of(in_scripts.iter().copied()).show(micros),
            format!("{of_scripts:.2}"),
            wanted.to_owned(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let titles = [
        "one task: microseconds of a cycle",
        "the server's processor",
        "to the fair cycle",
        "in scripts",
        "to the fair cycle",
        "wanted of the processor",
    ];
    section.table("The server's time for a reader", PLACE, &titles, &rows);
    let beside = others.iter().filter(|turns| BESIDE.iter().any(|(_, name)| *name == turns.contestant.name()));
    let costs = Spread::of(beside.map(|turns| turns.server().median));
    section.say(&format!(
        "Beside 1 to 100,000 readers, the dearest of these medians is {:.2} times the cheapest; at most 1.25 is \
         wanted.",
        costs.most / costs.least
    ));
    let bars = all.iter().map(|turns| (turns.contestant.name().to_owned(), turns.server()));
    let title = "Microseconds of the server's processor for a cycle, median (least..most)";
    section.bars("shared", &Bars::of_one(title, "microseconds", bars))
}

/// A fair cycle, and the cycles of ours that are compared with it.
async fn lone(server: &Server) -> Result<Vec<Contestant>> {
    let leases = leases_at(server.url(), TTL, true).await?;
    let own = leases.clone();
    let alone = Contestant::Locks(ALONE, Arc::new(move |name| own.rw_lock(name).read()));
    let mut all = vec![Contestant::Fair(leases.clone()), alone];
    all.extend(BESIDE.map(|(_, name)| of_one(name, leases.rw_lock(name).read())));
    let (_, thousand) = BESIDE[2];
    all.push(of_one("a permit beside 1,000 readers", leases.semaphore(thousand, 2_000)));
    Ok(all)
}

/// A contestant with this lock, in all tasks and all rounds.
fn of_one(title: &'static str, lock: Lock) -> Contestant {
    Contestant::Locks(title, Arc::new(move |_| lock.clone()))
}

/// The microseconds of a cycle in scripts, for each contestant, in turns with the others.
async fn in_scripts(server: &Server) -> Result<Vec<Vec<f64>>> {
    let (client, contestants) = (server.client().await?, lone(server).await?);
    let mut micros = vec![Vec::with_capacity(TURNS); contestants.len()];
    for turn in 0..=TURNS {
        for (at, contestant) in contestants.iter().enumerate() {
            let before = stats::micros_of_scripts(&client).await?;
            for _ in 0..CYCLES {
                contestant.cycle("scripts").await?;
            }
            let spent = stats::micros_of_scripts(&client).await? - before;
            if turn > 0 {
                micros[at].push(f64::from(u32::try_from(spent)?) / f64::from(CYCLES));
            }
        }
    }
    Ok(micros)
}

/// Tasks that have one name in common, compared with tasks with names of their own.
fn tasks(section: &mut Section, server: &Server) -> Result<()> {
    let mut loads = Vec::new();
    for tasks in [1, 256] {
        let contestants = async {
            let plain = leases_at(server.url(), TTL, false).await?;
            let fair = leases_at(server.url(), TTL, true).await?;
            Ok(vec![
                Contestant::Leasehold(plain),
                Contestant::Fair(fair.clone()),
                of_one("all read one name", fair.rw_lock("read by all").read()),
                of_one("permits of one name", fair.semaphore("permits for all", 1_000)),
                of_one("ten permits at once of one name", fair.semaphore("ten at once", 10_000).take(10)),
            ])
        };
        loads.push(Load::new(Builder::new_multi_thread(), tasks, contestants)?.measure(&[server.id()])?);
    }
    let mut rows = rates::beside(0, &loads);
    rows.push(["wanted of those that share", "at least 0.80", "at least 0.50"].map(str::to_owned).to_vec());
    let titles = ["cycles per second: ratio to the first", "1 task", "256 tasks"];
    section.table("Tasks that share a name", PLACE, &titles, &rows);
    let names = loads.first().into_iter().flatten().map(|turns| turns.contestant.name());
    let row = |(at, name): (usize, &str)| {
        let cell = |all: &Vec<Turns>| format!("{:.1} + {:.1}", all[at].client().median, all[at].server().median);
        [name.to_owned()].into_iter().chain(loads.iter().map(cell)).collect()
    };
    let titles = ["microseconds of a cycle, client + server", "1 task", "256 tasks"];
    section.table(
        "Processor time of tasks that share a name",
        PLACE,
        &titles,
        &names.enumerate().map(row).collect::<Vec<_>>(),
    );
    Ok(())
}
