//! Other processes of this program: one that waits for locks on command, and some that measure and end.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _, stdin},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;

use crate::{Contestant, Result};

/// A command that starts this program once more.
fn program(arguments: &[&str]) -> Result<Command> {
    let mut program = Command::new(env::current_exe()?);
    program.args(arguments);
    Ok(program)
}

/// The output of another process of this program, which ends by itself.
pub fn output_of(arguments: &[&str]) -> Result<String> {
    let output = program(arguments)?.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("this program as {arguments:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Nanoseconds of the clock that all processes of this machine have in common.
pub fn monotonic() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// Another process of this program, which runs until it is dropped. It ends by itself when the program that started it
/// is gone.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    orders: ChildStdin,
    reports: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(arguments: [&str; 2]) -> Result<Self> {
        let mut child = program(&arguments)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().ok_or("no pipe")?;
        let reports = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut peer = Self { child, orders, reports };
        peer.report()?;
        Ok(peer)
    }

    /// Makes it wait for a lock with this contestant of its own.
    pub fn wait(&mut self, contestant: usize, name: &str) -> Result<()> {
        self.order(&format!("{contestant} {name}"))
    }

    pub fn order(&mut self, order: &str) -> Result<()> {
        Ok(writeln!(self.orders, "{order}")?)
    }

    /// Returns the moment at which the peer had the lock. It has released the lock since.
    pub fn report(&mut self) -> Result<i128> {
        let mut line = String::new();
        self.reports.read_line(&mut line)?;
        Ok(line.trim().parse().map_err(|_| format!("the other process says {line:?}"))?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Acts as the peer of a hand-off, with these contestants.
pub fn serve(contestants: impl Future<Output = Result<Vec<Contestant>>>) -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let contestants = runtime.block_on(contestants)?;
    println!("{}", monotonic());
    for order in stdin().lines() {
        let order = order?;
        let (at, name) = order.split_once(' ').ok_or("an order without a name")?;
        let contestant = contestants.get(at.parse::<usize>()?).cloned().ok_or("no such contestant")?;
        let name = name.to_owned();
        // The wait is a task, as in a program: `block_on` itself runs outside the workers.
        let waits = runtime.spawn(async move {
            let guard = contestant.acquire(&name).await?;
            let got = monotonic();
            contestant.release(guard).await.map(|()| got)
        });
        println!("{}", runtime.block_on(waits)??);
    }
    Ok(())
}
