//! Chores of the project: `cargo xtask tidy`, `measure`, `layers`, `metrics`, `docs` and `skips`.

mod docs;
mod layers;
mod measure;
mod metrics;
mod skips;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy|measure|layers|metrics|docs|skips FILE

  tidy     checks crate arrows, dependencies, lengths of files and functions, words and calls (tidy.toml)
  measure  prints figures on names and import circles
  layers   writes the layer graph into ARCHITECTURE.md
  metrics  writes docs/metrics.md
  docs     checks the links of every page and runs its `sh test` blocks with the samite built last
  skips    checks what tests have left out, as they wrote it to FILE, against tests/skips.txt
";

fn main() -> ExitCode {
    let root = root();
    let task = std::env::args().nth(1);
    let done = match task.as_deref() {
        Some("tidy") => tidy::run(&root),
        Some("measure") => measure::run(&root),
        Some("layers") => layers::run(&root),
        Some("metrics") => metrics::run(&root),
        Some("docs") => docs::run(&root),
        Some("skips") => skips::run(&root, std::env::args().nth(2).as_deref()),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            for problem in &problems {
                eprintln!("{problem}");
            }
            eprintln!("{}: {} problem(s)", task.unwrap_or_default(), problems.len());
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root: this crate's parent.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}
