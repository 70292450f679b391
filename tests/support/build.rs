//! Compiles the preloaded library of `ClockShim`.

use std::{env, error::Error, process::Command};

const SOURCE: &str = "src/clock_shim.c";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={SOURCE}");
    let library = format!("{}/clock_shim.so", env::var("OUT_DIR")?);
    let compiler = Command::new("cc")
        .args(["-O1", "-Wall", "-shared", "-fPIC", "-o", &library, SOURCE])
        .status()
        .map_err(|error| format!("no C compiler named `cc` (package gcc and libc6-dev on Debian, Ubuntu): {error}"))?;
    if compiler.success() { Ok(()) } else { Err("the clock shim does not compile".into()) }
}
