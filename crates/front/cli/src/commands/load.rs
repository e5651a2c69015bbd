//! `samite load`: what `samite dump` has written, back into a store.

use std::path::PathBuf;
use std::time::Instant;

use samite_dump::{DumpSource, LoadOptions, LoadReport, TransferProgress, load};
use samite_types::{Redundancy, human_bytes};
use samite_wire::control::{BackendSpec, DistributionKind, DurabilityKind};

use super::dataset::{parse_distribution, parse_durability};
use super::dump::with_progress;
use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;

/// Load a dump into this store
///
/// Makes the datasets of the dump with the policies that they had, for any number of nodes. A dataset that is there and has records is
/// left as it is, with an error. A load that was cut short goes on when the same command is given again; until it is whole, only
/// the owner of a dataset can see it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite load /backup/monday
  samite load /backup/monday --dataset files=old-files
  samite load /backup/monday --replace           drop datasets of these names first
  samite load /backup/monday --mirror 1          into fewer nodes
  zstd -dc monday.zst | samite load -")]
pub struct LoadArgs {
    /// Directory of the dump, or `-`: standard input
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Only this dataset, under this name if one is given; may be given again
    #[arg(long = "dataset", value_name = "NAME[=NEWNAME]")]
    datasets: Vec<String>,
    /// Drop datasets of the same names first, with all that is in them
    #[arg(long)]
    replace: bool,
    /// Load what there is of a dump that is not finished
    #[arg(long)]
    unfinished: bool,
    /// Nodes that hold each record, if not as many as they did
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    mirror: Option<u8>,
    /// What a restart of all nodes leaves, if not what it did: `memory` or `logged`
    #[arg(long, value_name = "WHAT", value_parser = parse_durability)]
    durability: Option<DurabilityKind>,
    /// How the chunks of an object spread, if not as they did
    #[arg(long, value_name = "HOW", value_parser = parse_distribution)]
    distribution: Option<DistributionKind>,
    /// What holds the records, if not what did; on the nodes' own data directories
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// No progress line
    #[arg(short, long)]
    quiet: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
}

/// Loads.
pub fn run(args: &LoadArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let source = match args.source.as_os_str() == "-" {
        true => DumpSource::Stream(Box::new(std::io::stdin())),
        false => DumpSource::Directory(args.source.clone()),
    };
    let renamed = args.datasets.iter().map(|named| match named.split_once('=') {
        Some((name, new)) => (name.to_owned(), new.to_owned()),
        None => (named.clone(), named.clone()),
    });
    let options = LoadOptions {
        datasets: renamed.collect(),
        replace: args.replace,
        unfinished: args.unfinished,
        redundancy: args.mirror.map(Redundancy),
        durability: args.durability,
        distribution: args.distribution.clone(),
        backend: args.backend.clone().map(|name| BackendSpec { name, path: None }),
        keep_owners: uzers::get_effective_uid() == 0,
    };
    let client = target.connect()?;
    let progress = TransferProgress::default();
    let begun = Instant::now();
    let report =
        with_progress(args.quiet, &progress, || load(&client, source, &options, &progress))?;
    tell(args, &report, begun.elapsed().as_secs_f64())
}

fn tell(args: &LoadArgs, report: &LoadReport, seconds: f64) -> Result<(), CommandFailure> {
    let mut out = CommandOutput::new();
    if args.json {
        let datasets = report.datasets.iter();
        let datasets: Vec<_> =
            datasets.map(|one| serde_json::json!({ "from": one.from, "name": one.name })).collect();
        out.json(&serde_json::json!({
            "datasets": datasets,
            "records": report.records,
            "bytes": report.bytes,
            "continued": report.is_continued,
            "seconds": seconds,
        }))?;
        return out.finish();
    }
    out.line(format!(
        "{} datasets, {} records ({}) in {seconds:.2} s, {:.1} MB/s",
        report.datasets.len(),
        report.records,
        human_bytes(report.bytes),
        report.bytes as f64 / 1e6 / seconds.max(1e-9),
    ))?;
    out.finish()
}
