//! Says in one sentence what a hundred errors would say otherwise.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_CFG_UNIX").is_none() {
        println!(
            "cargo::error=the command `leasehold` is for Unix, because it stops its job by signals: elsewhere use the library"
        );
    }
}
