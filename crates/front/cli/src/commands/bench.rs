//! `samite bench`: measurements, by the bench crate.

use std::time::Duration;

use samite_bench::BenchOptions;

use crate::failure::CommandFailure;

/// Measure operations, and how far they are from what the machine itself can do
///
/// Starts clusters of its own. Each figure stands beside its floor, measured in the same run.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite bench --list
  samite bench '/kv/*'
  samite bench /floor --json --seconds 3")]
pub struct BenchArgs {
    /// Only those whose name has this in it, or matches it with `*`
    #[arg(value_name = "PATTERN")]
    pattern: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Seconds for each measurement
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::parse_seconds)]
    seconds: Duration,
    /// Only print the names
    #[arg(long)]
    list: bool,
}

/// Measures.
pub fn run(args: &BenchArgs) -> Result<(), CommandFailure> {
    let options = BenchOptions {
        pattern: args.pattern.clone(),
        json: args.json,
        seconds: args.seconds,
        list: args.list,
    };
    samite_bench::run(&options, &mut std::io::stdout())?;
    Ok(())
}

/// The other end of a measurement; benchmarks start it themselves.
#[derive(clap::Args)]
pub struct PeerArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Serves a measurement.
pub fn peer(args: &PeerArgs) -> Result<(), CommandFailure> {
    Ok(samite_bench::peer(&args.args)?)
}
