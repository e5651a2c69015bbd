//! `samite gen`: records of the sort benchmark, made where they will lie.

use samite_fs::{CallerContext, FileSystem};
use samite_job::PieceCut;
use samite_tools::{GenArgs, GenModule};

use super::draft::ResultDraft;
use super::{ToolJob, ToolRunArgs, words};
use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::commands::job::driving;
use crate::failure::CommandFailure;
use crate::paths::StorePath;

/// Make a file of the records of the sort benchmark
///
/// They are those of gensort, 100 bytes each with a key of 10. Each node makes those that it will hold.
/// The file's name appears when it is whole.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  samite gen 1000000 /records\n  samite gen -a 1000 /lines")]
pub struct GenCommand {
    #[command(flatten)]
    tool: GenArgs,
    #[command(flatten)]
    run: ToolRunArgs,
}

/// Makes it.
pub fn generate(args: &GenCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let path = args.tool.path().as_encoded_bytes();
    if path.first() != Some(&b'/') {
        let path = StorePath(path.to_vec()).show();
        let words = format!("{path}: a path in the store starts at its root: /{path}");
        return Err(CommandFailure::usage(words));
    }
    let len = args.tool.file_len().map_err(|error| CommandFailure::usage(error.message()))?;
    let client = target.connect()?;
    let fs = FileSystem::open(&client, FILES_DATASET)?;
    let context = CallerContext::of_process(driving::umask());
    let mut job = ToolJob::begin(&client, words())?;
    let made = make(args, (&fs, &context), &mut job, (path, len));
    let ((), record) = job.end(made.map_err(CommandFailure::from))?;
    args.run.tell(&record);
    Ok(())
}

fn make(
    args: &GenCommand,
    (fs, context): (&FileSystem, &CallerContext),
    job: &mut ToolJob<'_>,
    (path, len): (&[u8], u64),
) -> samite_types::Result<()> {
    let draft = ResultDraft::make((fs, context), path, job.id(), len)?;
    let input = [draft.as_input()?];
    let plan = samite_job::plan_files(fs, FILES_DATASET, &input, PieceCut::ByNode)?;
    let arguments = args.tool.arguments(draft.name(), draft.ino());
    let options = args.run.options(&GenModule, arguments);
    job.run(&plan, options, &mut std::io::sink())?;
    draft.finish(path)
}
