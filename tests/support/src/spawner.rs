//! Starts processes that do not outlive the tests.
//!
//! A killed test process runs no destructor, and its servers would stay. If `setpriv` exists, the kernel is asked to
//! kill a process together with its parent. The kernel takes "parent" to be the *thread* that started the process, and
//! test threads end with their test. So a single thread, which lives as long as this process, starts them all.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use super::binary::on_path;

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts `command` on the thread that outlives every test.
pub fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, answer) in receiver {
                    answer.send(command.spawn()).ok();
                }
            })
            .expect("a thread to start processes from");
        Mutex::new(sender)
    });
    let (answer, child) = mpsc::channel();
    orders
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .expect("the spawning thread runs as long as the process");
    child.recv().expect("the spawning thread answers each order")
}

/// A command for `program` that dies with this process if that is supported.
pub fn mortal(program: &Path) -> Command {
    static SETPRIV: OnceLock<Option<std::path::PathBuf>> = OnceLock::new();
    match SETPRIV.get_or_init(usable_setpriv) {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// The path of a `setpriv` with the option, which older and smaller ones lack.
fn usable_setpriv() -> Option<std::path::PathBuf> {
    let setpriv = on_path("setpriv")?;
    let works = Command::new(&setpriv)
        .args(["--pdeathsig", "KILL", "--", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    works.then_some(setpriv)
}
