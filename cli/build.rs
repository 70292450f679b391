//! Says in one sentence what a hundred errors would say otherwise, and has one library less loaded at each start.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if env::var_os("CARGO_CFG_UNIX").is_none() {
        println!(
            "cargo::error=the command `leasehold` is for Unix, for it stops its job by signals: elsewhere use the library"
        );
    }
    let is_native = env::var_os("HOST").is_some() && env::var_os("HOST") == env::var_os("TARGET");
    if is_native && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        unwind_without_a_shared_library();
    }
}

/// `leasehold run` is loaded twice, and to load `libgcc_s.so` takes some 0.2 ms each time. Where the compiler has the same
/// as an archive, and a linker takes it from there, the tool is linked with that.
fn unwind_without_a_shared_library() {
    let asked = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    let Some(path) = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok()) else { return };
    // A compiler that has none repeats the name.
    let archive = Path::new(path.trim());
    if let Some(directory) = archive.parent().filter(|_| archive.is_absolute() && archive.is_file()) {
        println!("cargo::rustc-link-search=native={}", directory.display());
        println!("cargo::rustc-link-lib=static=gcc_eh");
    }
}
