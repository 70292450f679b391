//! Runs its cycles once and ends. `scripts/guards` runs it under callgrind, with few cycles and with more.

fn main() -> leasehold_guards::Result<()> {
    leasehold_guards::Cycles::from_arguments()?.run()?;
    Ok(())
}
