//! `samite job`: work that is done beside the data.

pub mod driving;
pub mod store_output;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use samite_job::{InputSelection, JobRecord, JobRecords, JobState};
use samite_types::fault::parse_time;
use samite_types::{human_bytes, utc};
use samite_worker::messages::{JobLimits, KeyRange};
use samite_worker::{Module, ModuleCall};

use super::worker::MODULES;
use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::failure::{CommandFailure, ExitCode};
use crate::output::CommandOutput;
use crate::paths::{StorePath, store_path};
use crate::size::parse_size;

/// How often a job that is waited for is looked at.
const WAIT_INTERVAL: Duration = Duration::from_millis(200);

/// Run a module over files or records, where they lie
///
/// A job is a module and its input. It runs as tasks in worker processes of the nodes, each beside its part of the input and as the user who asks.
#[derive(clap::Args)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(clap::Subcommand)]
enum JobCommand {
    /// Run a job, and print its result
    ///
    /// MODULE is `wc`: lines, words and bytes of files, of trees with -r, or of the values of a dataset.
    /// The result comes whole or not at all. A line on stderr says what was read where it lies, what was moved between nodes, and what was returned.
    #[command(after_help = "\
Examples:
  samite job run wc /data/big.txt
  samite job run wc -r /data
  samite job run --dataset kv --prefix user/ wc
  samite job run --detach --output /counts wc -r /data")]
    Run(RunJobArgs),
    /// List the jobs that there are and were
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  samite job list\n  samite job list --json"
    )]
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Show a job, and its tasks when it is over
    #[command(after_help = "Example:\n  samite job show 1f3a90c2")]
    Show {
        /// Its number
        #[arg(value_name = "ID", value_parser = parse_id)]
        id: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// End a job
    #[command(after_help = "Example:\n  samite job cancel 1f3a90c2")]
    Cancel {
        /// Its number
        #[arg(value_name = "ID", value_parser = parse_id)]
        id: String,
    },
    /// Wait until a job is over; exits as it has
    #[command(after_help = "Example:\n  samite job wait 1f3a90c2")]
    Wait {
        /// Its number
        #[arg(value_name = "ID", value_parser = parse_id)]
        id: String,
    },
}

fn parse_id(text: &str) -> Result<String, String> {
    samite_job::parse_job_id(text).map(|_| text.to_ascii_lowercase()).map_err(|e| e.to_string())
}

#[derive(clap::Args)]
struct RunJobArgs {
    /// Take the records of this dataset, and not files
    #[arg(long, value_name = "DATASET")]
    dataset: Option<String>,
    /// Take the records as they lie there, and not as keys and values
    #[arg(long, requires = "dataset")]
    raw: bool,
    /// Only keys that begin with this
    #[arg(long, value_name = "PREFIX", default_value = "", requires = "dataset")]
    prefix: OsString,
    /// Only keys from this one on
    #[arg(long, value_name = "KEY", default_value = "", requires = "dataset")]
    from: OsString,
    /// Only keys before this one
    #[arg(long, value_name = "KEY", requires = "dataset")]
    to: Option<OsString>,
    /// Most threads at each node; a worker has no more than its node gives
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    cores: u16,
    /// Longest time of a task; a worker gives no more than its node
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    task_time: Option<Duration>,
    /// Fail when the tasks give more output than this
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    output_limit: u64,
    /// Write the result to this file of the store; its name appears when the job is done
    #[arg(long, value_name = "PATH", value_parser = store_path())]
    output: Option<StorePath>,
    /// Do not wait: print the number of the job. Without --output, the result goes to a file in the cluster's directory
    #[arg(long)]
    detach: bool,
    /// Neither a progress bar nor the line at the end
    #[arg(short, long)]
    quiet: bool,
    /// The line at the end is a JSON object
    #[arg(long)]
    json: bool,
    /// The number that the job has, of a process that was detached
    #[arg(long, value_name = "ID", hide = true, value_parser = parse_id)]
    job_id: Option<String>,
    /// The module, and its words
    #[arg(
        value_name = "MODULE",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

impl RunJobArgs {
    fn module(&self) -> Result<(&'static dyn Module, ModuleCall), CommandFailure> {
        let (name, words) = self.words.split_first().ok_or_else(CommandFailure::reported)?;
        let module = MODULES.find(&name.to_string_lossy());
        let module = module.map_err(|error| CommandFailure::usage(error.message()))?;
        let call = module.parse(words).map_err(|error| CommandFailure::usage(error.message()))?;
        Ok((module, call))
    }

    fn input(&self, call: &ModuleCall) -> Result<InputSelection, CommandFailure> {
        if let Some(dataset) = &self.dataset {
            if !call.paths.is_empty() {
                let words = "a job has files or records, not both: --dataset and a path";
                return Err(CommandFailure::usage(words));
            }
            let bytes = |text: &OsString| text.as_bytes().to_vec();
            let range = KeyRange {
                prefix: bytes(&self.prefix),
                from: bytes(&self.from),
                to: self.to.as_ref().map(bytes),
            };
            return Ok(InputSelection::Records {
                dataset: dataset.clone(),
                is_raw: self.raw,
                range,
            });
        }
        if call.paths.is_empty() {
            return Err(CommandFailure::usage("name a file, or a dataset with --dataset"));
        }
        let is_path = |path: &&Vec<u8>| path.first() != Some(&b'/');
        if let Some(path) = call.paths.iter().find(is_path) {
            let path = crate::output::escaped(path);
            let words = format!("{path}: a path in the store starts at its root: /{path}");
            return Err(CommandFailure::usage(words));
        }
        Ok(InputSelection::Files {
            dataset: FILES_DATASET.to_owned(),
            paths: call.paths.clone(),
            is_recursive: call.is_recursive,
        })
    }

    fn limits(&self) -> JobLimits {
        let millis = self.task_time.map_or(0, |time| time.as_millis().max(1));
        JobLimits { cores: self.cores, task_ms: u64::try_from(millis).unwrap_or(u64::MAX) }
    }
}

/// Does it.
pub fn run(args: &JobArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let records = || Ok::<_, CommandFailure>(JobRecords::new(&target.connect()?));
    match &args.command {
        JobCommand::Run(args) => driving::run(args, target),
        JobCommand::List { json } => list(&records()?, *json),
        JobCommand::Show { id, json } => show(&records()?.read(id)?, *json),
        JobCommand::Cancel { id } => cancel(&records()?, id),
        JobCommand::Wait { id } => wait(&records()?, id),
    }
}

fn list(records: &JobRecords, json: bool) -> Result<(), CommandFailure> {
    let mut out = CommandOutput::new();
    let jobs = records.list()?;
    if !json && !jobs.is_empty() {
        out.line("ID        STATE      STARTED              SECONDS  TASKS        WORDS")?;
    }
    for job in jobs {
        if json {
            out.json(&job)?;
            continue;
        }
        let tasks = format!("{}/{}", job.tasks_done, job.tasks);
        out.line(format!(
            "{:<9} {:<10} {} {:>8.1}  {tasks:<12} {}",
            job.id,
            job.state.name(),
            utc(i64::try_from(job.started_s).unwrap_or(i64::MAX)),
            job.seconds,
            job.words.join(" "),
        ))?;
    }
    out.finish()
}

/// What was read, moved and returned.
pub fn summary(job: &JobRecord) -> String {
    format!(
        "job {} {}: {} of {} tasks, {} records or files, {} local, {} moved, {} returned, {:.2} s",
        job.id,
        job.state.name(),
        job.tasks_done,
        job.tasks,
        job.records,
        human_bytes(job.bytes_local),
        human_bytes(job.bytes_moved),
        human_bytes(job.bytes_returned),
        job.seconds,
    )
}

fn show(job: &JobRecord, json: bool) -> Result<(), CommandFailure> {
    let mut out = CommandOutput::new();
    if json {
        out.json(job)?;
        return out.finish();
    }
    out.line(summary(job))?;
    out.line(format!("words: {}", job.words.join(" ")))?;
    out.line(format!("user: uid {}; driven by process {} on {}", job.uid, job.pid, job.host))?;
    if let Some(error) = &job.error {
        out.line(format!("error: {error}"))?;
    }
    if !job.per_task.is_empty() {
        out.line("TASK  NODE  AGAIN   RECORDS      LOCAL      MOVED   RETURNED  SECONDS")?;
    }
    for (number, task) in job.per_task.iter().enumerate() {
        out.line(format!(
            "{number:>4}  {:<5} {:>5} {:>9} {:>10} {:>10} {:>10} {:>8.2}",
            task.node.to_string(),
            task.again,
            task.records,
            human_bytes(task.bytes_local),
            human_bytes(task.bytes_moved),
            human_bytes(task.bytes_returned),
            task.seconds,
        ))?;
    }
    out.finish()
}

fn cancel(records: &JobRecords, id: &str) -> Result<(), CommandFailure> {
    let job = records.read(id)?;
    if job.state != JobState::Running {
        let words = format!("job {id} does not run: it is {}", job.state.name());
        return Err(CommandFailure::new(ExitCode::Conflict, words));
    }
    Ok(records.cancel(id)?)
}

fn wait(records: &JobRecords, id: &str) -> Result<(), CommandFailure> {
    loop {
        let job = records.read(id)?;
        match job.state {
            JobState::Running => std::thread::sleep(WAIT_INTERVAL),
            JobState::Done => {
                let mut out = CommandOutput::new();
                out.line(summary(&job))?;
                out.finish()?;
                return exit_as(job.exit_code.unwrap_or(0));
            }
            state => {
                let why = job.error.unwrap_or_else(|| state.name().to_owned());
                return Err(CommandFailure::failed(format!("job {id}: {why}")));
            }
        }
    }
}

/// Ends the command as the module says.
fn exit_as(code: u8) -> Result<(), CommandFailure> {
    match code {
        0 => Ok(()),
        code => std::process::exit(code.into()),
    }
}
