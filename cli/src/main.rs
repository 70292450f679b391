//! `leasehold`: leases for everything that is not written in Rust.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser};

mod acl;
mod args;
mod completions;
mod connect;
mod doctor;
mod duration;
mod exit;
mod keyboard;
mod look;
mod observe;
mod own;
mod pages;
mod run;
mod say;
mod servers;
mod settings;
mod signals;
mod table;
mod top;

use args::{Args, Man, Task};
use exit::{Ended, Exit};
use own::Own;

fn main() -> ExitCode {
    let ended = match Own::read(env::args_os().skip(1)) {
        Some(task) => Ok(own(task)),
        None => Args::try_parse().map(|args| does(args.task)),
    };
    let exit = ended.unwrap_or_else(|error| answers(&error)).unwrap_or_else(|ended| {
        if let Some(why) = ended.why() {
            say::tell(why);
        }
        ended.exit.into()
    });
    say::finish();
    exit
}

fn own(task: Own) -> Result<ExitCode, Ended> {
    match task {
        Own::Exec(command) => run::exec(&command),
        Own::Guard(guarding) => Ok(run::guard(&guarding)),
        Own::Interrupted => Ok(run::interrupted()),
    }
}

/// Prints help, or what is wrong with the command line.
fn answers(error: &clap::Error) -> Result<ExitCode, Ended> {
    let text = error.render().to_string();
    if let Some(mistake) = text.strip_prefix("error: ") {
        // With the tool's name, as all that it says: in a mail of cron the line stands alone.
        say::write_line(format!("leasehold: {mistake}").as_bytes());
        return Ok(Exit::Usage.into());
    }
    let printed = error.print().and_then(|()| io::stdout().flush());
    if error.use_stderr() {
        return Ok(Exit::Usage.into());
    }
    say::written(printed).map(|()| ExitCode::SUCCESS)
}

fn does(task: Task) -> Result<ExitCode, Ended> {
    match task {
        Task::Run(options) => run::run(&options),
        Task::Hold(options) => run::hold_for_a_script(&options),
        Task::Show(options) => look::show(&options),
        Task::Ls(options) => look::ls(&options),
        Task::Top(options) => top::top(&options),
        Task::Observe(options) => observe::observe(&options),
        Task::Doctor(options) => doctor::doctor(&options),
        Task::Acl(options) => acl::acl(&options),
        Task::Release(options) => look::release(&options),
        Task::Completions { shell } => {
            say::write(completions::script(shell, &mut Args::command()).as_bytes()).map(|()| ExitCode::SUCCESS)
        }
        Task::Man(options) => man(&options).map(|()| ExitCode::SUCCESS),
    }
}

fn man(options: &Man) -> Result<(), Ended> {
    let mut tool = Args::command();
    tool.build();
    if let Some(directory) = &options.out_dir {
        let failed = |error| Ended::new(Exit::Io, format!("cannot write to {}: {error}", directory.display()));
        return pages::write_all(&tool, directory).map_err(failed);
    }
    let command = match &options.command {
        None => &tool,
        Some(name) => tool
            .find_subcommand(name)
            .ok_or_else(|| Ended::new(Exit::Usage, format!("there is no command {name:?}: see leasehold --help")))?,
    };
    let mut page = Vec::new();
    pages::page(&tool, command, &mut page).map_err(|error| Ended::new(Exit::Io, format!("no page: {error}")))?;
    say::write(&page)
}
