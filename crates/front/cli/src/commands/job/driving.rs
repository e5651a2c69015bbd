//! Running a job from its command, and writing down how it stands.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use samite_client::Client;
use samite_fs::FileSystem;
use samite_job::{
    JobOptions, JobPlan, JobProgress, JobRecord, JobRecords, JobReport, JobState, TaskRecord,
};
use samite_launch::process;
use samite_types::{
    Clock, Entropy, Error, ErrorKind, Result as SamiteResult, SystemClock, SystemEntropy,
};
use samite_worker::messages::TaskCounts;
use samite_worker::{Module, ModuleCall};

use super::store_output::StoreOutput;
use super::{RunJobArgs, exit_as, summary};
use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::failure::{CommandFailure, IoContext};
use crate::signals;

/// How often the record of a job is written while it runs.
const RECORD_INTERVAL: Duration = Duration::from_secs(2);
/// How often the driver looks whether it is to end.
const CANCEL_INTERVAL: Duration = Duration::from_millis(500);
/// Time that an orderly end after a signal may take.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(3);
/// Exit code after SIGINT, as the shell has it.
const INTERRUPTED_CODE: i32 = 130;

/// Runs a job here, or begins one that runs on by itself.
pub(super) fn run(args: &RunJobArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let (module, call) = args.module()?;
    // Before anything is written down.
    args.input(&call)?;
    let is_detached = args.job_id.is_some();
    let ended = if args.detach { Arc::default() } else { end_by_signal()? };
    let client = target.connect()?;
    let id =
        args.job_id.clone().unwrap_or_else(|| format!("{:08x}", SystemEntropy.next_u64() as u32));
    let mut job = DrivenJob::begin(&client, new_record(&id, args), ended)?;
    if args.detach {
        return detach(&id, target);
    }
    let done = job.carry_out(args, &client, (module, call));
    job.end(&done);
    if !args.quiet || is_detached {
        tell_end(args, &job.record);
    }
    exit_as(done?.exit_code)
}

/// Becomes true when a signal asks for the end.
fn end_by_signal() -> Result<Arc<AtomicBool>, CommandFailure> {
    let ended = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&ended);
    signals::on_stop(move || {
        asked.store(true, Ordering::Release);
        std::thread::sleep(SIGNAL_PATIENCE);
        std::process::exit(INTERRUPTED_CODE);
    })?;
    Ok(ended)
}

/// The line at the end.
fn tell_end(args: &RunJobArgs, record: &JobRecord) {
    let line = match (args.json, serde_json::to_string(record)) {
        (true, Ok(text)) => text,
        _ => format!("samite: {}", summary(record)),
    };
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn new_record(id: &str, args: &RunJobArgs) -> JobRecord {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    let mut words: Vec<String> = Vec::new();
    if let Some(dataset) = &args.dataset {
        words.extend(["--dataset".into(), dataset.clone()]);
    }
    words.extend(args.words.iter().map(text));
    record_of_words(id, words)
}

fn record_of_words(id: &str, words: Vec<String>) -> JobRecord {
    let now = SystemClock.realtime().as_secs();
    let system = rustix::system::uname();
    JobRecord {
        id: id.to_owned(),
        state: JobState::Running,
        error: None,
        words,
        uid: rustix::process::geteuid().as_raw(),
        host: system.nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        started_s: now,
        heard_s: now,
        seconds: 0.0,
        exit_code: None,
        tasks: 0,
        tasks_done: 0,
        bytes: 0,
        records: 0,
        bytes_local: 0,
        bytes_moved: 0,
        bytes_returned: 0,
        per_task: Vec::new(),
    }
}

/// Starts this command again as a process of its own.
fn detach(id: &str, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let path = |what: &str| target.dir.path().join(format!("job-{id}.{what}"));
    let open = |path: &std::path::Path| {
        let mut options = OpenOptions::new();
        let opened = options.create(true).append(true).mode(0o600).open(path);
        opened.doing(format_args!("open {}", path.display()))
    };
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // It is one of the options of `job run`, before the module.
    let at = arguments.iter().position(|word| word == "--detach").unwrap_or_default();
    arguments.splice(at..=at, ["--job-id".into(), id.into(), "--quiet".into()]);
    let mut command = Command::new("/proc/self/exe");
    command.arg0("samite").args(arguments).current_dir("/").stdin(Stdio::null());
    command.stdout(open(&path("out"))?).stderr(open(&path("log"))?);
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(process::detach_apart) };
    command.spawn().doing("start the driver of the job")?;
    let mut out = crate::output::CommandOutput::new();
    out.line(id)?;
    out.finish()
}

/// A job that this process drives.
struct DrivenJob {
    record: JobRecord,
    records: JobRecords,
    began: Instant,
    written: Instant,
    looked: Instant,
    /// A signal has asked for its end.
    ended: Arc<AtomicBool>,
    /// Of parts that are over.
    before: TaskCounts,
    tasks_before: usize,
}

/// The job of a command of its own, which may have several parts, one after the other.
pub struct ToolJob<'a> {
    client: &'a Client,
    job: DrivenJob,
    id: u64,
    done: JobReport,
}

impl<'a> ToolJob<'a> {
    /// Writes down that it begins; it ends by a signal, too.
    pub fn begin(client: &'a Client, words: Vec<String>) -> Result<Self, CommandFailure> {
        let ended = end_by_signal()?;
        let name = format!("{:08x}", SystemEntropy.next_u64() as u32);
        let id = samite_job::parse_job_id(&name)?;
        let job = DrivenJob::begin(client, record_of_words(&name, words), ended)?;
        let (tasks, counts) = (Vec::new(), TaskCounts::default());
        let done = JobReport { exit_code: 0, tasks, counts, time: Duration::ZERO };
        Ok(Self { client, job, id, done })
    }

    /// Its number, as it is shown.
    pub fn id(&self) -> &str {
        &self.job.record.id
    }

    /// Carries out the next part, whose result goes to `out`. Returns its exit code.
    pub fn run(
        &mut self,
        plan: &JobPlan,
        mut options: JobOptions<'_>,
        out: &mut dyn Write,
    ) -> SamiteResult<u8> {
        options.id = self.id;
        // Workers tell the parts apart by it.
        self.id += 1 << 32;
        let report = self.job.drive(false, self.client, (plan, &options), out)?;
        self.job.before.add(&report.counts);
        self.job.tasks_before += report.tasks.len();
        self.done.counts.add(&report.counts);
        self.done.tasks.extend(report.tasks);
        self.done.exit_code = report.exit_code;
        Ok(report.exit_code)
    }

    /// Writes down how it has ended.
    pub fn end<T>(
        mut self,
        done: Result<T, CommandFailure>,
    ) -> Result<(T, JobRecord), CommandFailure> {
        match done {
            Ok(result) => {
                self.job.end(&Ok(self.done));
                Ok((result, self.job.record))
            }
            Err(failure) => {
                let again = CommandFailure::new(failure.code, failure.message.clone());
                self.job.end(&Err(failure));
                Err(again)
            }
        }
    }
}

impl DrivenJob {
    /// Writes down that the job begins.
    fn begin(
        client: &Client,
        record: JobRecord,
        ended: Arc<AtomicBool>,
    ) -> Result<Self, CommandFailure> {
        let (now, records) = (Instant::now(), JobRecords::new(client));
        let (before, tasks_before) = (TaskCounts::default(), 0);
        let (began, written, looked) = (now, now, now);
        let job = Self { record, began, ended, written, looked, records, before, tasks_before };
        job.records.write(&job.record)?;
        Ok(job)
    }

    fn carry_out(
        &mut self,
        args: &RunJobArgs,
        client: &Client,
        (module, call): (&dyn Module, ModuleCall),
    ) -> Result<JobReport, CommandFailure> {
        let context = samite_fs::CallerContext::of_process(umask());
        let plan = samite_job::plan(client, &context, &args.input(&call)?)?;
        let id = samite_job::parse_job_id(&self.record.id)?;
        let (arguments, limits) = (call.arguments, args.limits());
        let options = JobOptions {
            id,
            module,
            arguments,
            limits,
            output_max: args.output_limit,
            unneeded: None,
        };
        if let Some(path) = &args.output {
            let fs = FileSystem::open(client, FILES_DATASET)?;
            let mut out = StoreOutput::begin(fs, context, path.bytes(), &self.record.id)?;
            let report = self.drive(args.quiet, client, (&plan, &options), &mut out)?;
            out.finish()?;
            return Ok(report);
        }
        let mut out = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
        let report = self.drive(args.quiet, client, (&plan, &options), &mut out)?;
        out.flush().doing("write to standard output")?;
        Ok(report)
    }

    fn drive(
        &mut self,
        is_quiet: bool,
        client: &Client,
        (plan, options): (&JobPlan, &JobOptions<'_>),
        out: &mut dyn Write,
    ) -> SamiteResult<JobReport> {
        let is_shown = !is_quiet && std::io::stderr().is_terminal();
        let bar = if is_shown { new_bar(plan) } else { ProgressBar::hidden() };
        let mut tell = |progress: &JobProgress| {
            draw(&bar, progress);
            self.heard(progress)
        };
        let report = samite_job::run(client, plan, options, &mut tell, out);
        bar.finish_and_clear();
        report
    }

    /// The job is so far: writes it down now and then, and looks whether it is to end.
    fn heard(&mut self, progress: &JobProgress) -> SamiteResult<()> {
        self.note(progress);
        if self.ended.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Interrupted, "cancelled by a signal"));
        }
        if self.looked.elapsed() >= CANCEL_INTERVAL {
            self.looked = Instant::now();
            // While the store changes nodes it does not answer; the job goes on.
            if self.records.is_cancelled(&self.record.id).unwrap_or(false) {
                return Err(Error::new(ErrorKind::Interrupted, "cancelled"));
            }
        }
        if self.written.elapsed() >= RECORD_INTERVAL {
            self.written = Instant::now();
            let _ = self.records.write(&self.record);
        }
        Ok(())
    }

    fn note(&mut self, progress: &JobProgress) {
        let JobProgress { tasks_done, tasks, bytes, mut counts } = *progress;
        counts.add(&self.before);
        let record = &mut self.record;
        record.tasks = tasks + self.tasks_before;
        record.tasks_done = tasks_done + self.tasks_before;
        record.bytes = bytes;
        record.records = counts.records;
        record.bytes_local = counts.bytes_local;
        record.bytes_moved = counts.bytes_moved;
        record.bytes_returned = counts.bytes_returned;
        record.seconds = self.began.elapsed().as_secs_f64();
        record.heard_s = SystemClock.realtime().as_secs();
    }

    /// Writes down how it has ended.
    fn end(&mut self, done: &Result<JobReport, CommandFailure>) {
        let record = &mut self.record;
        match done {
            Ok(report) => {
                record.state = JobState::Done;
                record.exit_code = Some(report.exit_code);
                let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f64();
                let of = |task: &samite_job::TaskReport| TaskRecord {
                    node: task.node,
                    again: task.again,
                    records: task.counts.records,
                    bytes_local: task.counts.bytes_local,
                    bytes_moved: task.counts.bytes_moved,
                    bytes_returned: task.counts.bytes_returned,
                    seconds: seconds(task.counts.micros),
                };
                record.per_task = report.tasks.iter().map(of).collect();
            }
            Err(failure) => {
                let is_cancelled = failure.message.starts_with("cancelled");
                record.state = if is_cancelled { JobState::Cancelled } else { JobState::Failed };
                record.error = Some(failure.message.clone());
            }
        }
        record.seconds = self.began.elapsed().as_secs_f64();
        record.heard_s = SystemClock.realtime().as_secs();
        let _ = self.records.clear_cancel(&self.record.id);
        if let Err(error) = self.records.write(&self.record) {
            crate::output::complain(format!("job {}: {error}", self.record.id));
        }
    }
}

pub fn umask() -> u32 {
    // The only way to read the umask is to set it; no other thread makes files at this point.
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

fn new_bar(plan: &JobPlan) -> ProgressBar {
    let template = match plan.bytes {
        0 => "{spinner} {binary_bytes}  {binary_bytes_per_sec}  {msg}",
        _ => {
            "{bar:30} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left  {msg}"
        }
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(plan.bytes).with_style(style)
}

fn draw(bar: &ProgressBar, progress: &JobProgress) {
    bar.set_position(progress.counts.input());
    bar.set_message(format!("{} of {} tasks", progress.tasks_done, progress.tasks));
}
