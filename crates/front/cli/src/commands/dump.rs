//! `samite dump`: datasets into a directory or a stream.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use samite_client::Client;
use samite_dump::{DumpDestination, DumpOptions, DumpReport, SEGMENT_LEN, TransferProgress, dump};
use samite_types::human_bytes;

use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::size::parse_size;

/// How often the progress line is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Dump datasets, with all that is in them, into a directory or a stream
///
/// Files, keys and objects, as they all are at one moment: changes wait for a short time at the end. A dump that was cut short goes on
/// when the same command is given again. `samite load` brings it back, into this or any other store.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite dump /backup/monday                     all datasets that you may read
  samite dump /backup/files --dataset files
  samite dump - | ssh other samite load -        to another store
  samite dump - | zstd > monday.zst")]
pub struct DumpArgs {
    /// Directory, which is made; or `-`: standard output
    #[arg(value_name = "DEST")]
    destination: PathBuf,
    /// Only this dataset; may be given again
    #[arg(long = "dataset", value_name = "NAME")]
    datasets: Vec<String>,
    /// Hold no changes back: each record is as it was at some time while the dump lasted. Also for datasets of others, which only their owners can freeze
    #[arg(long)]
    live: bool,
    /// Seconds for which changes may have to wait at a time
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_pause, conflicts_with = "live")]
    pause: Duration,
    /// Bytes after which a part of the dump ends, from 64K to 64M: what is read again when a dump is cut short
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_segment)]
    segment: usize,
    /// No progress line
    #[arg(short, long)]
    quiet: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
}

/// Programs wait for 30 s unless told otherwise, so a pause is to be shorter.
fn parse_pause(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|pause| (Duration::from_millis(10)..=Duration::from_secs(60)).contains(pause))
        .ok_or_else(|| "expected a number of seconds from 0.01 to 60".to_owned())
}

fn parse_segment(text: &str) -> Result<usize, String> {
    usize::try_from(parse_size(text)?)
        .ok()
        .filter(|len| (64 << 10..=SEGMENT_LEN).contains(len))
        .ok_or_else(|| "expected a size from 64K to 64M".to_owned())
}

/// Dumps.
pub fn run(args: &DumpArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let is_stream = args.destination.as_os_str() == "-";
    if is_stream && std::io::stdout().is_terminal() {
        let words = "standard output is a terminal: send the dump into a file or a program";
        return Err(CommandFailure::usage(words));
    }
    let client = target.connect()?;
    let names = datasets(&client, &args.datasets)?;
    let destination = if is_stream {
        DumpDestination::Stream(Box::new(std::io::stdout()))
    } else {
        DumpDestination::Directory(args.destination.clone())
    };
    let options = DumpOptions { live: args.live, pause_max: args.pause, segment_len: args.segment };
    let progress = TransferProgress::default();
    let begun = Instant::now();
    let report = with_progress(args.quiet, &progress, || {
        dump(&client, &names, destination, &options, &progress)
    })?;
    tell(args, is_stream, &report, begun.elapsed())
}

/// The datasets that are meant.
fn datasets(client: &Client, named: &[String]) -> Result<Vec<String>, CommandFailure> {
    let map = client.refresh_map()?;
    let uid = uzers::get_effective_uid();
    let mut names: Vec<String> = match named {
        [] => {
            let readable = map.datasets().iter().map(|dataset| &dataset.spec);
            let readable = readable.filter(|spec| spec.access.allows(uid, false));
            readable.map(|spec| spec.name.clone()).collect()
        }
        named => named.to_vec(),
    };
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Err(CommandFailure::failed("there is no dataset to dump"));
    }
    Ok(names)
}

fn tell(
    args: &DumpArgs,
    is_stream: bool,
    report: &DumpReport,
    elapsed: Duration,
) -> Result<(), CommandFailure> {
    let seconds = elapsed.as_secs_f64();
    let line = if args.json {
        serde_json::json!({
            "datasets": report.datasets,
            "records": report.records,
            "bytes": report.bytes,
            "segments": report.segments,
            "passes": report.passes,
            "pause_seconds": report.pause.as_secs_f64(),
            "live": args.live,
            "continued": report.is_continued,
            "seconds": seconds,
        })
        .to_string()
    } else {
        let pause = match args.live {
            true => "live".to_owned(),
            false => format!("changes waited for {:.3} s", report.pause.as_secs_f64()),
        };
        format!(
            "{} datasets, {} records ({}) in {seconds:.2} s, {:.1} MB/s; {pause}",
            report.datasets.len(),
            report.records,
            human_bytes(report.bytes),
            report.bytes as f64 / 1e6 / seconds.max(1e-9),
        )
    };
    if is_stream {
        // Standard output has the dump.
        eprintln!("{line}");
        return Ok(());
    }
    let mut out = CommandOutput::new();
    out.line(line)?;
    out.finish()
}

/// Shows on a terminal how far `work` is.
pub fn with_progress<T>(quiet: bool, progress: &TransferProgress, work: impl FnOnce() -> T) -> T {
    if quiet || !std::io::stderr().is_terminal() {
        return work();
    }
    let style = ProgressStyle::with_template("{binary_bytes}  {binary_bytes_per_sec}  {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::no_length().with_style(style);
    let (done, is_done) = mpsc::channel::<()>();
    let result = std::thread::scope(|scope| {
        let bar = &bar;
        scope.spawn(move || draw(bar, progress, &is_done));
        let result = work();
        drop(done);
        result
    });
    bar.finish_and_clear();
    result
}

fn draw(bar: &ProgressBar, progress: &TransferProgress, is_done: &Receiver<()>) {
    while is_done.recv_timeout(DRAW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        bar.set_position(progress.bytes());
        bar.set_message(format!("{} records", progress.records()));
    }
}
