//! Names that many hold at a time, compared with fair locks in the same run. Measures a reader, alone and beside many,
//! the speed of a hand-over, and a waiting crowd at one release.

pub mod crowd;
mod cycles;
pub mod hand_over;
mod release;

use tokio::runtime::Builder;

use crate::{
    Result, Server,
    held::{self, Holder},
    machine,
    page::Section,
};

const PLACE: &str = "server and clients on the same 2 cores";

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("shared");
    cycles::main(&mut section)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(hand_over::main(&mut section))?;
    runtime.block_on(release::main(&mut section))?;
    held(&mut section)?;
    section.write()
}

/// Compares shares of one name with as many locks.
fn held(section: &mut Section) -> Result<()> {
    let mut rows = Vec::new();
    for (title, shares) in [("100,000 locks", false), ("100,000 shares of one name", true)] {
        let server = Server::start()?;
        let (ports, ids) = (vec![server.port()], vec![server.id()]);
        let cells = held::measured(&Holder { url: server.url(), ports, ids, leases: 100_000, shares })?;
        rows.push([title.to_owned()].into_iter().chain(cells).collect());
    }
    section.table("Held shares", PLACE, &held::TITLES, &rows);
    Ok(())
}
