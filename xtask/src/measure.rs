//! `cargo xtask measure`: figures on names and imports, of which tidy holds some (`[measure]` in `tidy.toml`).

mod circles;
mod names;

use std::path::Path;

use crate::tidy::{SourceFile, sources};

pub use circles::circles;
pub use names::{TypeNames, is_for_tests};

/// Prints the figures.
pub fn run(root: &Path) -> Result<String, Vec<String>> {
    let files = sources(root).map_err(|problem| vec![problem])?;
    let names = TypeNames::of(&files);
    println!("{names}");
    println!("\nlargest import circles (modules that reach each other by `use`)");
    for (name, circle) in circles(&files) {
        println!("{name:>20} {:>4} of {} modules", circle.modules.len(), circle.of);
        for module in &circle.modules {
            println!("{:>26}{module}", "");
        }
    }
    Ok(format!("measure: {} type definitions outside tests", names.definitions()))
}

/// Whether figures are taken of this file: product and tools, not tests.
pub fn counts(file: &SourceFile) -> bool {
    file.is_rust() && file.path.contains("src/") && !file.is_test()
}
