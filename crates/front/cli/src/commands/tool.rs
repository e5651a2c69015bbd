//! The tools that everybody knows, run where the files lie: `samite grep` and the like.

use std::io::{self, IsTerminal, Write};
use std::ops::Range;

use samite_fs::{CallerContext, FileSystem};
use samite_job::{FileWalk, InputFile, JobOptions, JobRecord};
use samite_tools::{GrepArgs, InputComplaint, ToolCall};
use samite_types::{Error, Result as SamiteResult};
use samite_worker::messages::JobLimits;

use super::job::{driving, summary};
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
    grep: GrepArgs,
    #[command(flatten)]
    run: ToolRunArgs,
}

/// Searches.
pub fn grep(args: &GrepCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    run(args.grep.call(), &args.run, target)
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
    let plan = samite_job::plan_files(&fs, FILES_DATASET, &found)?;
    let ranges = file_ranges(&plan.pieces);
    let unneeded = |output: &_| call.unneeded.and_then(|rule| rule(&call.arguments, &ranges, output));
    let mut options = JobOptions {
        id: 0,
        module: call.module,
        arguments: call.arguments.clone(),
        limits: JobLimits { cores: args.cores, task_ms: 0 },
        output_max: args.output_limit,
        unneeded: call.unneeded.is_some().then_some(&unneeded),
    };
    let words = std::env::args_os().skip(1);
    let words = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let mut out = PipedOutput::new();
    let (code, record) =
        driving::drive_tool(&client, words, (&plan, &mut options), &mut out)?;
    out.flush().map_err(|error| CommandFailure::failed(format!("write the output: {error}")))?;
    if args.stats || io::stderr().is_terminal() {
        tell(&record);
    }
    Ok(match (has_trouble, code) {
        (true, 0) if call.success_stands => 0,
        (true, _) => call.trouble_code,
        (false, code) => code,
    })
}

fn tell(record: &JobRecord) {
    complain(summary(record));
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
