//! `leasehold`: leases for everything that is not written in Rust.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

mod args;
mod connect;
mod doctor;
mod duration;
mod exit;
mod look;
mod run;
mod say;
mod signals;
mod table;
mod top;

use args::{Args, Task};
use exit::{Ended, Exit};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _nobody_reads = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let ended = match args.task {
        Task::Exec(command) => run::exec(&command),
        Task::Run(options) => run::run(&options),
        Task::Show(options) => look::show(&options),
        Task::Ls(options) => look::ls(&options),
        Task::Top(options) => top::top(&options),
        Task::Doctor(options) => doctor::doctor(&options),
        Task::Release(options) => look::release(&options),
        Task::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "leasehold", &mut script);
            say::write(&script).map(|()| ExitCode::SUCCESS)
        }
        Task::Man => man().map(|()| ExitCode::SUCCESS),
    };
    let exit = ended.unwrap_or_else(|ended| {
        say::tell(&ended);
        ended.exit.into()
    });
    say::finish();
    exit
}

/// The pages of all commands, one after the other.
fn man() -> Result<(), Ended> {
    let mut tool = Args::command();
    tool.build();
    let commands = tool.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut page = Vec::new();
    for command in std::iter::once(tool.clone()).chain(commands) {
        let rendered = clap_mangen::Man::new(command).render(&mut page);
        rendered.map_err(|error| Ended::new(Exit::Io, format!("no page: {error}")))?;
    }
    say::write(&page)
}
