//! `make conformance`: which backend passes which part of the suite.

use std::cell::RefCell;
use std::process::ExitCode;

use samite_backend::conformance::{PartOutcome, PartReport, report};
use samite_registry::{BackendEntry, ENTRIES, TargetOptions};
use tempfile::TempDir;

fn reports(entry: &BackendEntry) -> Vec<PartReport> {
    let dirs = RefCell::new(Vec::new());
    report(&|| {
        let dir = TempDir::new().expect("a directory");
        let directory = Some(dir.path().join("target"));
        dirs.borrow_mut().push(dir);
        let options = TargetOptions { capacity_bytes: 8 << 20, shards: 1, directory };
        (entry.open)(&options).expect("a target")
    })
}

fn main() -> ExitCode {
    let all: Vec<Vec<PartReport>> = ENTRIES.iter().map(reports).collect();
    print!("{:<28}", "");
    ENTRIES.iter().for_each(|entry| print!("{:<13}", entry.name));
    println!();
    for index in 0..all[0].len() {
        print!("{:<28}", all[0][index].part);
        for reports in &all {
            let words = match reports[index].outcome {
                PartOutcome::Held => "held",
                PartOutcome::NotOffered => "not offered",
                PartOutcome::Broken(_) => "BROKEN",
            };
            print!("{words:<13}");
        }
        println!();
    }
    let mut ended = ExitCode::SUCCESS;
    for (entry, reports) in ENTRIES.iter().zip(&all) {
        for PartReport { part, outcome } in reports {
            if let PartOutcome::Broken(words) = outcome {
                println!("{}: {part}: {words}", entry.name);
                ended = ExitCode::FAILURE;
            }
        }
    }
    ended
}
