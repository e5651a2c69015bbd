//! The tools that everybody knows, run where the files lie: `samite grep` and the like.

mod draft;
mod generate;
mod sort;

use std::io::{self, IsTerminal, Write};
use std::ops::Range;

use samite_fs::{CallerContext, FileSystem};
use samite_job::{FileWalk, InputFile, JobOptions, JobRecord, PieceCut};
use samite_tools::{CountArgs, GrepArgs, InputComplaint, SumArgs, ToolCall, ValsortArgs, WcArgs};
use samite_types::{Error, ErrorKind, Result as SamiteResult};
use samite_worker::Module;
use samite_worker::messages::JobLimits;

use super::job::driving::{self, ToolJob};
use super::job::summary;
pub use generate::{GenCommand, generate};
pub use sort::{SortCommand, sort};

use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::failure::{CommandFailure, ExitCode};
use crate::output::{complain, escaped};
use crate::size::parse_size;

/// What all tools have.
#[derive(clap::Args)]
pub struct ToolRunArgs {
    /// Tell on stderr what was read where it lies, moved between nodes, and returned
    #[arg(long)]
    stats: bool,
    /// Most threads at each node; a worker has no more than its node gives
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    cores: u16,
    /// Fail when the tasks give more output than this
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16G")]
    output_limit: u64,
}

/// Print the lines of files that match patterns
///
/// Options, output and exit codes are those of GNU grep under LC_ALL=C. The search runs where the files lie.
/// Patterns with back-references are refused. A file with a NUL in its first 32 KiB is no text.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    args_override_self = true,
    after_help = "\
Examples:
  samite grep -n error /logs/today
  samite grep -rc --include='*.rs' 'fn main' /src
  samite grep -A2 -E 'warn|error' /logs/a /logs/b"
)]
pub struct GrepCommand {
    #[command(flatten)]
    tool: GrepArgs,
    #[command(flatten)]
    run: ToolRunArgs,
}

/// Count lines, words and bytes of files
///
/// Options and output are those of GNU wc under LC_ALL=C, and -r.
#[derive(clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  samite wc /logs/today\n  samite wc -rl /src"
)]
pub struct WcCommand {
    #[command(flatten)]
    tool: WcArgs,
    #[command(flatten)]
    run: ToolRunArgs,
}

/// Print the most frequent words of files, and how often each is there
///
/// Words lie between white space. Equally frequent ones come in the order of their bytes.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  samite count /book\n  samite count -k 100 -r /books")]
pub struct CountCommand {
    #[command(flatten)]
    tool: CountArgs,
    #[command(flatten)]
    run: ToolRunArgs,
}

/// Print checksums of files
///
/// CRC-32C is summed up where the data lie. XXH3 and SHA-256 need the bytes of a file one after the other: one task reads it.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  samite sum /data/a /data/b\n  samite sum -a sha256 -r /data")]
pub struct SumCommand {
    #[command(flatten)]
    tool: SumArgs,
    #[command(flatten)]
    run: ToolRunArgs,
}

/// Check the order of the records of the sort benchmark, and print their checksum
///
/// Prints what valsort does, to standard output. Exits with 1 if they are out of order.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  samite valsort /sorted")]
pub struct ValsortCommand {
    #[command(flatten)]
    tool: ValsortArgs,
    #[command(flatten)]
    run: ToolRunArgs,
}

/// Searches.
pub fn grep(args: &GrepCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    run(args.tool.call(), &args.run, target)
}

/// Counts lines, words and bytes.
pub fn wc(args: &WcCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    run(args.tool.call(), &args.run, target)
}

/// Counts words.
pub fn count(args: &CountCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    run(args.tool.call(), &args.run, target)
}

/// Sums up.
pub fn sum(args: &SumCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    run(args.tool.call(), &args.run, target)
}

/// Checks the order.
pub fn valsort(args: &ValsortCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    run(args.tool.call(), &args.run, target)
}

/// Runs a tool and exits as it does.
fn run(
    call: SamiteResult<ToolCall>,
    args: &ToolRunArgs,
    target: &ClusterTarget,
) -> Result<(), CommandFailure> {
    let call = call.map_err(|error| CommandFailure::usage(error.message()))?;
    let name = call.module.name();
    let code = carry_out(&call, args, target).map_err(|failure| {
        let code = match (failure.code, call.trouble_code) {
            (ExitCode::Unreachable, _) => ExitCode::Unreachable,
            (_, 2) => ExitCode::Usage,
            _ => ExitCode::Failed,
        };
        CommandFailure::new(code, format!("{name}: {}", failure.message))
    })?;
    match code {
        0 => Ok(()),
        code => std::process::exit(code.into()),
    }
}

/// Returns the exit code.
fn carry_out(
    call: &ToolCall,
    args: &ToolRunArgs,
    target: &ClusterTarget,
) -> Result<u8, CommandFailure> {
    let client = target.connect()?;
    let fs = FileSystem::open(&client, FILES_DATASET)?;
    let context = CallerContext::of_process(driving::umask());
    let (found, has_trouble) = find(call, &fs, &context)?;
    let cut = if call.needs_whole_files { PieceCut::WholeFiles } else { PieceCut::ByNode };
    let plan = samite_job::plan_files(&fs, FILES_DATASET, &found, cut)?;
    let ranges = file_ranges(&plan.pieces);
    let unneeded =
        |output: &_| call.unneeded.and_then(|rule| rule(&call.arguments, &ranges, output));
    let options = JobOptions {
        unneeded: call.unneeded.is_some().then_some(&unneeded),
        ..args.options(call.module, call.arguments.clone())
    };
    let mut job = ToolJob::begin(&client, words())?;
    let mut out = PipedOutput::new();
    let code = job.run(&plan, options, &mut out).and_then(|code| {
        let flushed = out.flush();
        flushed.map_err(|error| Error::new(ErrorKind::Io, format!("write the output: {error}")))?;
        Ok(code)
    });
    let (code, record) = job.end(code.map_err(CommandFailure::from))?;
    args.tell(&record);
    Ok(match (has_trouble, code) {
        (true, 0) if call.success_stands => 0,
        (true, _) => call.trouble_code,
        (false, code) => code,
    })
}

/// The words of this command.
fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

impl ToolRunArgs {
    fn options<'a>(&self, module: &'a dyn Module, arguments: Vec<u8>) -> JobOptions<'a> {
        JobOptions {
            id: 0,
            module,
            arguments,
            limits: JobLimits { cores: self.cores, task_ms: 0 },
            output_max: self.output_limit,
            unneeded: None,
        }
    }

    /// What was read where it lies, moved and returned.
    fn tell(&self, record: &JobRecord) {
        if self.stats || io::stderr().is_terminal() {
            complain(summary(record));
        }
    }
}

/// The files that are named, and whether some of them cannot be read: that is said.
fn find(
    call: &ToolCall,
    fs: &FileSystem,
    context: &CallerContext,
) -> Result<(Vec<InputFile>, bool), CommandFailure> {
    let mut has_trouble = false;
    let mut failed = |path: &[u8], error: Error| {
        let InputComplaint(words) = InputComplaint::of(error)?;
        has_trouble = true;
        if !call.is_silent {
            complain(format!("{}: {}: {words}", call.module.name(), escaped(path)));
        }
        Ok(())
    };
    let mut walk = FileWalk {
        fs,
        who: context,
        is_recursive: call.is_recursive,
        keeps_directories: call.keeps_directories,
        admits: &|path| call.globs.admits(path),
        failed: &mut failed,
        found: Vec::new(),
    };
    call.paths.iter().try_for_each(|path| walk.named(path))?;
    let found = walk.found;
    Ok((found, has_trouble))
}

/// The pieces of each file that has some.
fn file_ranges(pieces: &[u32]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut last = None;
    for (number, file) in (0_u64..).zip(pieces) {
        match ranges.last_mut() {
            Some(range) if last == Some(file) => range.end = number + 1,
            _ => ranges.push(number..number + 1),
        }
        last = Some(file);
    }
    ranges
}

/// Standard output. A reader that goes away ends the process without words, as a signal would.
struct PipedOutput(io::BufWriter<io::StdoutLock<'static>>);

/// Exit code when nobody reads any more.
const BROKEN_PIPE_CODE: i32 = 128 + 13;

impl PipedOutput {
    fn new() -> Self {
        Self(io::BufWriter::with_capacity(64 << 10, io::stdout().lock()))
    }
}

fn unless_unread<T>(result: io::Result<T>) -> io::Result<T> {
    if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(BROKEN_PIPE_CODE);
    }
    result
}

impl Write for PipedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_unread(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_unread(self.0.flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_file_are_a_range() {
        let ranges = file_ranges(&[0, 0, 2, 5, 5, 5]);
        assert_eq!(ranges, [0..2, 2..3, 3..6]);
        assert!(file_ranges(&[]).is_empty());
    }
}
