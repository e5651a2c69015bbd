//! `samite sort`: the parts of a sort, one after the other.

use std::io::Write;

use samite_fs::{CallerContext, FileSystem};
use samite_job::{FileWalk, InputFile, JobOptions, JobPlan, PieceCut};
use samite_tools::sort::{self, RunLengths};
use samite_tools::{InputComplaint, MergeModule, RunModule, SampleModule, SortArgs, SortCall};
use samite_types::{Error, ErrorKind, Result as SamiteResult};
use samite_worker::Module;

use super::draft::ResultDraft;
use super::{PipedOutput, ToolJob, ToolRunArgs, words};
use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::commands::job::driving;
use crate::commands::job::store_output::StoreOutput;
use crate::failure::{CommandFailure, ExitCode};

/// Sort the lines of files, or records of one length
///
/// Options and output are those of GNU sort under LC_ALL=C. Nodes sort what they hold, in parallel; what lies between is in files of the store, which are removed at the end.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    args_override_self = true,
    after_help = "\
Examples:
  samite sort -o /sorted /lines
  samite sort -t: -k2,2n /table
  samite sort --record 100 --key 0:10 -o /sorted /records"
)]
pub struct SortCommand {
    #[command(flatten)]
    tool: SortArgs,
    #[command(flatten)]
    run: ToolRunArgs,
}

/// Sorts.
pub fn sort(args: &SortCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let call = args.tool.call();
    let call = call.map_err(|error| CommandFailure::usage(format!("sort: {}", error.message())))?;
    if call.is_check {
        return super::run(Ok(call.tool), &args.run, target);
    }
    sort_files(&call, &args.run, target).map_err(|failure| {
        let is_unreachable = failure.code == ExitCode::Unreachable;
        let code = if is_unreachable { failure.code } else { ExitCode::Usage };
        CommandFailure::new(code, format!("sort: {}", failure.message))
    })
}

fn sort_files(
    call: &SortCall,
    args: &ToolRunArgs,
    target: &ClusterTarget,
) -> Result<(), CommandFailure> {
    let client = target.connect()?;
    let fs = FileSystem::open(&client, FILES_DATASET)?;
    let context = CallerContext::of_process(driving::umask());
    let found = find(call, &fs, &context)?;
    let mut job = ToolJob::begin(&client, words())?;
    let work = SortWork { call, args, fs: &fs, context: &context };
    let sorted = work.carry_out(&mut job, &found);
    let ((), record) = job.end(sorted.map_err(CommandFailure::from))?;
    args.tell(&record);
    Ok(())
}

/// All files that are named; one that cannot be read ends the sort.
fn find(
    call: &SortCall,
    fs: &FileSystem,
    context: &CallerContext,
) -> Result<Vec<InputFile>, CommandFailure> {
    let mut failed = |path: &[u8], error: Error| {
        let kind = error.kind();
        let InputComplaint(words) = InputComplaint::of(error)?;
        let what = if kind == ErrorKind::IsDirectory { "read failed" } else { "cannot read" };
        Err(Error::new(kind, format!("{what}: {}: {words}", crate::output::escaped(path))))
    };
    let mut walk = FileWalk {
        fs,
        who: context,
        is_recursive: false,
        keeps_directories: false,
        admits: &|_| true,
        failed: &mut failed,
        found: Vec::new(),
    };
    call.tool.paths.iter().try_for_each(|path| walk.named(path))?;
    Ok(walk.found)
}

/// One sort.
struct SortWork<'a> {
    call: &'a SortCall,
    args: &'a ToolRunArgs,
    fs: &'a FileSystem,
    context: &'a CallerContext,
}

impl SortWork<'_> {
    fn options<'m>(&self, module: &'m dyn Module, arguments: Vec<u8>) -> JobOptions<'m> {
        self.args.options(module, arguments)
    }

    fn carry_out(&self, job: &mut ToolJob<'_>, found: &[InputFile]) -> SamiteResult<()> {
        let (rule, dataset) = (&self.call.rule, FILES_DATASET);
        let cut = if rule.keeps_order() { PieceCut::InOrder } else { PieceCut::ByNode };
        let plan = samite_job::plan_files(self.fs, dataset, found, cut)?;
        let splitters = self.splitters(job, &plan)?;
        let prefix = [&self.call.directory, format!(".job-{}-run-", job.id()).as_bytes()].concat();
        let mut runs = Vec::new();
        for number in sort::first_pieces(&plan)? {
            let path = sort::run_path(&prefix, number);
            runs.push((number, ResultDraft::at((self.fs, self.context), path, 0)?));
        }
        runs.sort_by_key(|(number, _)| *number);
        let arguments = sort::run_arguments(rule, splitters, &prefix);
        let mut told = Vec::new();
        job.run(&plan, self.options(&RunModule, arguments), &mut told)?;
        let lens = sort::run_lengths_of(&told)?;
        let is_known = |(number, _): &(u64, ResultDraft<'_>)| lens.contains_key(number);
        if lens.len() != runs.len() || !runs.iter().all(is_known) {
            return Err(Error::new(ErrorKind::Corrupt, "a part of the sort is missing"));
        }
        let inputs = runs.iter().map(|(_, run)| run.as_input());
        let inputs = inputs.collect::<SamiteResult<Vec<_>>>()?;
        self.merge(job, &lens, &inputs)
    }

    /// The bounds of ranges, by some samples of the input.
    fn splitters(&self, job: &mut ToolJob<'_>, plan: &JobPlan) -> SamiteResult<Vec<Vec<u8>>> {
        let nodes = self.fs.client().map()?.nodes().len() as u64;
        let parts = sort::range_count(plan.bytes, nodes);
        if parts <= 1 {
            return Ok(Vec::new());
        }
        let arguments = sort::sample_arguments(&self.call.rule, parts);
        let mut told = Vec::new();
        job.run(plan, self.options(&SampleModule, arguments), &mut told)?;
        sort::splitters_of(&told)
    }

    fn merge(
        &self,
        job: &mut ToolJob<'_>,
        lens: &RunLengths,
        inputs: &[InputFile],
    ) -> SamiteResult<()> {
        let (rule, place) = (&self.call.rule, (self.fs, FILES_DATASET));
        let (offsets, len) = sort::range_offsets(lens);
        if let Some(path) = self.call.output.as_ref().filter(|_| rule.keeps_all()) {
            let draft = ResultDraft::make((self.fs, self.context), path, job.id(), len)?;
            let plan = sort::plan_merge(place, lens, inputs, Some(draft.ino()))?;
            let output = Some((draft.name(), draft.ino()));
            let arguments = sort::merge_arguments(rule, output, &offsets);
            job.run(&plan, self.options(&MergeModule, arguments), &mut std::io::sink())?;
            return draft.finish(path);
        }
        let plan = sort::plan_merge(place, lens, inputs, None)?;
        let arguments = sort::merge_arguments(rule, None, &offsets);
        if let Some(path) = &self.call.output {
            let (fs, context) = (self.fs.clone(), self.context.clone());
            let mut out = StoreOutput::begin(fs, context, path, job.id())?;
            job.run(&plan, self.options(&MergeModule, arguments), &mut out)?;
            return out.finish();
        }
        let mut out = PipedOutput::new();
        job.run(&plan, self.options(&MergeModule, arguments), &mut out)?;
        out.flush().map_err(|error| Error::new(ErrorKind::Io, format!("write the output: {error}")))
    }
}
