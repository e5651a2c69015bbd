//! `samite stage`: trees into the store and out of it.

use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use samite_stage::{CopyOptions, CopyProgress, CopySummary, LocalTree, StoreTree, copy_tree};
use samite_types::{Error, human_bytes};

use super::files::{make_local_parents, make_parents};
use super::room;
use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::output::CommandOutput;
use crate::paths::{StorePath, store_path};

/// How often the progress bar is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Most threads that copy.
const THREADS_MAX: u64 = 64;

/// Copy trees into the store, and out of it
///
/// Keeps modes, times to the nanosecond, symbolic and hard links and holes, and owners when run by root; not extended attributes.
/// Blocks of 64 KiB of zeros become holes.
///
/// Can be run again after an interruption: a file that is there with the same length and time is skipped, any other one is copied anew.
/// What fails is named on stderr and does not stop the rest; the exit code is 1 then. After ten errors of one kind the rest is only counted.
#[derive(clap::Args)]
pub struct StageArgs {
    #[command(subcommand)]
    direction: StageDirection,
}

#[derive(clap::Subcommand)]
enum StageDirection {
    /// Copy a local tree or file into the store
    ///
    /// Afterwards DST is what SRC is; what else is in a directory DST stays. Missing directories above DST are made.
    #[command(after_help = "\
Examples:
  samite stage in ~/data /data
  samite stage in --checksum /usr/share/dict /dict")]
    In {
        /// Local directory or file
        #[arg(value_name = "SRC")]
        source: PathBuf,
        /// Path in the store
        #[arg(value_name = "DST", value_parser = store_path())]
        destination: StorePath,
        #[command(flatten)]
        options: StageSettings,
    },
    /// Copy a tree or file of the store to a local one
    ///
    /// Afterwards DST is what SRC is; what else is in a directory DST stays. Missing directories above DST are made.
    #[command(after_help = "\
Example:
  samite stage out /results ~/results")]
    Out {
        /// Path in the store
        #[arg(value_name = "SRC", value_parser = store_path())]
        source: StorePath,
        /// Local directory or file
        #[arg(value_name = "DST")]
        destination: PathBuf,
        #[command(flatten)]
        options: StageSettings,
    },
}

#[derive(clap::Args)]
struct StageSettings {
    /// Read every file back and compare its checksum with the source's, skipped files too
    #[arg(long)]
    checksum: bool,
    /// Files (or pieces of large ones) copied at a time [default: by the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: Option<u64>,
    /// Copy everything anew, whatever is there
    #[arg(long)]
    no_resume: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    /// Begin even if there seems to be too little room
    #[arg(long)]
    force: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
}

/// Copies.
pub fn run(args: &StageArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    match &args.direction {
        StageDirection::In { source, destination, options } => {
            // Before anything is made in the store.
            std::fs::symlink_metadata(source).map_err(|error| {
                CommandFailure::failed(format!("stage in {}: {error}", source.display()))
            })?;
            let files = target.files()?;
            // A link given by name means what it points to.
            let source = std::fs::canonicalize(source).unwrap_or_else(|_| source.clone());
            if !options.force {
                room::check(&files, &source, destination, !options.no_resume)?;
            }
            make_parents(&files, destination)?;
            let store = StoreTree::new(files.fs, files.context);
            let source = source.as_os_str().as_bytes();
            stage(options, |how, progress, on_error| {
                copy_tree(
                    (&LocalTree, source),
                    (&store, destination.bytes()),
                    how,
                    progress,
                    on_error,
                )
            })
        }
        StageDirection::Out { source, destination, options } => {
            let files = target.files()?;
            files.fs.stat(&files.context, source.bytes(), false)?;
            let source = files
                .fs
                .canonicalize(&files.context, source.bytes())
                .unwrap_or_else(|_| source.bytes().to_vec());
            if !options.force {
                room::check_out(&files, &source, destination, !options.no_resume)?;
            }
            make_local_parents(destination)?;
            let store = StoreTree::new(files.fs, files.context);
            let destination = destination.as_os_str().as_bytes();
            stage(options, |how, progress, on_error| {
                copy_tree((&store, &source), (&LocalTree, destination), how, progress, on_error)
            })
        }
    }
}

type OnError<'a> = &'a (dyn Fn(&Error) + Sync);

fn stage(
    how: &StageSettings,
    copy: impl FnOnce(&CopyOptions, &CopyProgress, OnError<'_>) -> samite_types::Result<CopySummary>,
) -> Result<(), CommandFailure> {
    let mut options =
        CopyOptions { checksum: how.checksum, resume: !how.no_resume, ..CopyOptions::default() };
    if let Some(threads) = how.threads {
        options.threads = usize::try_from(threads).unwrap_or(options.threads);
    }
    let progress = CopyProgress::default();
    let bar = if how.quiet || !std::io::stderr().is_terminal() {
        ProgressBar::hidden()
    } else {
        new_bar()
    };
    let on_error = |error: &Error| bar.suspend(|| crate::output::complain(error.message()));
    let (done, is_done) = mpsc::channel::<()>();
    let summary = std::thread::scope(|scope| {
        if !bar.is_hidden() {
            let (bar, progress) = (&bar, &progress);
            scope.spawn(move || draw(bar, progress, &is_done));
        }
        let summary = copy(&options, &progress, &on_error);
        drop(done);
        summary
    })?;
    bar.finish_and_clear();
    report(how, &summary)?;
    match summary {
        CopySummary { stopped_by: Some(_), .. } => Err(stopped(&summary)),
        CopySummary { given_up: true, .. } => Err(CommandFailure::new(
            ExitCode::Unreachable,
            "given up: a node cannot be reached; the same command goes on where this one stopped",
        )),
        CopySummary { errors: 0, .. } => Ok(()),
        _ => Err(CommandFailure::reported()),
    }
}

/// The line that is printed after ten errors of one kind.
pub fn stopped(summary: &CopySummary) -> CommandFailure {
    let words = summary.stopped_by.map_or("", |kind| kind.words());
    let CopySummary { errors, untried, .. } = summary;
    CommandFailure::failed(format!(
        "given up ({words}): {errors} errors, and {untried} files were not tried"
    ))
}

fn new_bar() -> ProgressBar {
    let template = "{bar:30} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {msg}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn draw(bar: &ProgressBar, progress: &CopyProgress, is_done: &Receiver<()>) {
    let begun = Instant::now();
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    while is_done.recv_timeout(DRAW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let (done, found) = (get(&progress.bytes_done), get(&progress.bytes_found));
        bar.set_length(found);
        bar.set_position(done);
        let left = if progress.walked.load(Ordering::Acquire) && done > 0 {
            let left =
                begun.elapsed().as_secs_f64() * (found.saturating_sub(done) as f64 / done as f64);
            format!(", {left:.0} s left")
        } else {
            ", still looking".to_owned()
        };
        let files = get(&progress.files_done);
        bar.set_message(format!("{files} of {} files{left}", get(&progress.files_found)));
    }
}

fn report(how: &StageSettings, summary: &CopySummary) -> Result<(), CommandFailure> {
    let seconds = summary.elapsed.as_secs_f64();
    let rate = summary.bytes as f64 / 1e6 / seconds.max(1e-9);
    let mut out = CommandOutput::new();
    if how.json {
        out.json(&serde_json::json!({
            "files": summary.files,
            "bytes": summary.bytes,
            "skipped": summary.skipped,
            "directories": summary.directories,
            "symlinks": summary.symlinks,
            "hard_links": summary.hard_links,
            "hard_links_copied": summary.hard_links_copied,
            "special": summary.special,
            "verified": summary.verified,
            "errors": summary.errors,
            "given_up": summary.given_up,
            "not_tried": summary.untried,
            "seconds": seconds,
            "mb_per_s": rate,
        }))?;
        return out.finish();
    }
    out.line(format!(
        "{} files ({}), {} directories, {} links in {seconds:.2} s, {rate:.1} MB/s; {} skipped, {} errors",
        summary.files,
        human_bytes(summary.bytes),
        summary.directories,
        summary.symlinks + summary.hard_links,
        summary.skipped,
        summary.errors,
    ))?;
    for (count, what) in [
        (summary.verified, "files read back and found the same"),
        (summary.special, "special files"),
        (summary.hard_links_copied, "hard links became files of their own"),
    ] {
        if count > 0 {
            out.line(format!("{count} {what}"))?;
        }
    }
    out.finish()
}
