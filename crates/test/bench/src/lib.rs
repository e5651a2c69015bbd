//! Benchmarks that print ratios to a floor.
//!
//! Every benchmark has a hierarchical name (`/kv/get/100B/tcp`) and is measured **against** others: its floor, which is
//! the least that the machine itself needs for the same work (a raw ping-pong, a `memcpy`, the kernel's own tmpfs), and
//! where there is one a peer. All are measured in the same run, in turns (A B A B …), so that a change of the machine's
//! mood hits all; figures are medians over the turns.
//!
//! ```text
//! catalogue   names, what each is measured against, and the aims
//! measure     turns, histograms, ratios        report   the table and the JSON lines
//! floor       what the machine itself needs    peer     other stores, where installed
//! store       the same work in a store         child    the other end: echo, stream, files
//! ```

mod catalogue;
mod child;
mod floor;
mod measure;
mod peer;
mod place;
mod report;
mod store;

use std::io::Write;
use std::time::Duration;

use samite_types::{Error, ErrorKind, Result};

use catalogue::{CatalogueEntry, catalogue};
use measure::{Workload, WorkloadResult, WorkloadTurns};
use place::BenchPlace;

pub use child::run as peer;

/// Options of `samite bench`.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Run only the benchmark of this name, or those whose names match: a substring, or a pattern with `*`. All when `None`.
    pub pattern: Option<String>,
    /// One JSON object a line in place of the table.
    pub json: bool,
    /// Time for each benchmark, and for each that it is measured against.
    pub seconds: Duration,
    /// Only list the names.
    pub list: bool,
}

/// Runs the benchmarks and writes their results to `out` as they come.
///
/// # Errors
/// A local cluster or a peer that cannot be started, or an operation that failed: names which.
/// [`ErrorKind::NotFound`]: the pattern matches no benchmark.
pub fn run(options: &BenchOptions, out: &mut dyn Write) -> Result<()> {
    let all = catalogue();
    let chosen = choose(&all, options.pattern.as_deref());
    if chosen.is_empty() {
        let pattern = options.pattern.as_deref().unwrap_or_default();
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("bench: no benchmark matches {pattern:?}; --list shows all"),
        ));
    }
    if options.list {
        for entry in chosen {
            report::line(out, &entry.name)?;
        }
        return Ok(());
    }
    let mut place = BenchPlace::new()?;
    for entry in chosen {
        let result = measure_one(&all, entry, &mut place, options.seconds)?;
        if options.json {
            report::json(out, &result)?;
        } else {
            report::table(out, &result)?;
        }
    }
    Ok(())
}

/// One benchmark and its reference.
struct MeasuredRow {
    name: String,
    /// Why it was not measured.
    skipped: Option<String>,
    measured: WorkloadResult,
    /// Operations in a second that it should reach.
    per_s_min: Option<f64>,
    against: Vec<report::MeasuredAgainst>,
}

fn measure_one(
    all: &[CatalogueEntry],
    entry: &CatalogueEntry,
    place: &mut BenchPlace,
    length: Duration,
) -> Result<MeasuredRow> {
    let mut result = MeasuredRow {
        name: entry.name.clone(),
        skipped: None,
        measured: WorkloadResult::default(),
        per_s_min: entry.per_s_min,
        against: Vec::new(),
    };
    let mut workloads: Vec<Box<dyn Workload>> = Vec::new();
    match (entry.make)(place) {
        Ok(workload) => workloads.push(workload),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            result.skipped = Some(error.message().to_owned());
            return Ok(result);
        }
        Err(error) => return Err(error.context(&entry.name)),
    }
    let mut references = Vec::new();
    for reference in &entry.against {
        let Some(other) = all.iter().find(|other| other.name == reference.name) else { continue };
        match (other.make)(place) {
            Ok(workload) => {
                workloads.push(workload);
                references.push(reference);
            }
            // A peer that is not installed.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error.context(&other.name)),
        }
    }
    let turns = WorkloadTurns::measure(&mut workloads, length)
        .map_err(|error| error.context(&entry.name))?;
    result.measured = turns.summary(0);
    for (index, reference) in references.into_iter().enumerate() {
        result.against.push(report::MeasuredAgainst {
            name: reference.name.clone(),
            measured: turns.summary(index + 1),
            comparison: turns.compare(entry.what, index + 1, reference.aim),
        });
    }
    Ok(result)
}

/// The one whose name the pattern is, or all that it matches.
fn choose<'a>(all: &'a [CatalogueEntry], pattern: Option<&str>) -> Vec<&'a CatalogueEntry> {
    let Some(pattern) = pattern else { return all.iter().collect() };
    match all.iter().find(|entry| entry.name == pattern) {
        Some(entry) => vec![entry],
        None => all.iter().filter(|entry| matches(pattern, &entry.name)).collect(),
    }
}

/// Whether `pattern` matches `name`: anywhere in it, or with `*` for any run of characters, the whole of it.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let (Some(first), true) = (parts.next(), pattern.contains('*')) else {
        return name.contains(pattern);
    };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = first;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = part;
    }
    rest.is_empty() || last.is_empty() || name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_anywhere_or_as_a_whole() {
        assert!(matches("get", "/kv/get/100B/tcp"));
        assert!(matches("/kv/*/tcp", "/kv/get/100B/tcp"));
        assert!(matches("/kv/*", "/kv/get/100B/tcp"));
        assert!(matches("*", "/kv/get"));
        assert!(!matches("/kv/*/tcp", "/kv/get/100B/unix"));
        assert!(!matches("kv/*", "/kv/get"));
        assert!(!matches("put", "/kv/get/100B/tcp"));
    }

    #[test]
    fn a_whole_name_chooses_that_one_alone() {
        let all = catalogue();
        assert_eq!(choose(&all, Some("/kv/get/100B/tcp")).len(), 1);
        assert!(choose(&all, Some("/kv/get/100B/tc")).len() > 1);
        assert_eq!(choose(&all, None).len(), all.len());
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_an_error() {
        let options = BenchOptions {
            pattern: Some("/nothing".into()),
            json: false,
            seconds: Duration::from_millis(1),
            list: true,
        };
        let error = run(&options, &mut Vec::new()).expect_err("nothing matches");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_list_names_each_benchmark_once() {
        let options = BenchOptions {
            pattern: None,
            json: false,
            seconds: Duration::from_millis(1),
            list: true,
        };
        let mut out = Vec::new();
        run(&options, &mut out).expect("listing needs nothing");
        let text = String::from_utf8(out).expect("names are text");
        let mut names: Vec<_> = text.lines().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.contains(&"/floor/tcp/64B") && names.contains(&"/kv/get/100B/tcp"));
    }
}
