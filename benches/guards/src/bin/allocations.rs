//! Prints how often a cycle allocates on average, once everything is warm.

#[global_allocator]
static COUNTED: dhat::Alloc = dhat::Alloc;

/// The frames of an unread backtrace: the fewest that dhat takes.
const FRAMES: usize = 4;

fn main() -> leasehold_guards::Result<()> {
    let cycles = leasehold_guards::Cycles::from_arguments()?;
    let _profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(FRAMES)).build();
    cycles.run()?;
    let before = dhat::HeapStats::get().total_blocks;
    let count = cycles.run()?;
    let blocks = dhat::HeapStats::get().total_blocks - before;
    println!("{:.2}", f64::from(u32::try_from(blocks)?) / f64::from(u32::try_from(count)?));
    Ok(())
}
