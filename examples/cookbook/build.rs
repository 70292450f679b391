//! Copies the cookbook's page, with no recipe ignored.

use std::{env, error::Error, fs, path::Path};

const PAGE: &str = "../../docs/cookbook.md";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PAGE}");
    let page = fs::read_to_string(PAGE)?.replace("```rust,ignore", "```rust");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("cookbook.md"), page)?;
    Ok(())
}
