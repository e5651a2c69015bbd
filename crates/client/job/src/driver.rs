//! Carries a planned job out: begins its tasks at workers, asks how far they are, and takes their
//! output. One thread for each node that has something to do.

mod node_driver;

use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use samite_client::Client;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_worker::Module;
use samite_worker::messages::{JobLimits, PieceOutput, TaskCounts};

use crate::outputs::JobOutputs;
use crate::plan::JobPlan;
use crate::task_table::{JobStanding, TaskTable};

/// How often the caller is told how far the job is, and asked whether it is to go on.
const TELL_INTERVAL: Duration = Duration::from_millis(200);

/// What a job is to do.
pub struct JobOptions<'a> {
    /// Number of the job.
    pub id: u64,
    /// The module.
    pub module: &'a dyn Module,
    /// What it made of its words.
    pub arguments: Vec<u8>,
    /// What its tasks may take at each node.
    pub limits: JobLimits,
    /// Most bytes of output.
    pub output_max: u64,
    /// Looks at output as it comes, and says which pieces need no output any more: their tasks are
    /// not waited for.
    pub unneeded: Option<UnneededPieces<'a>>,
}

/// See [`JobOptions::unneeded`].
pub type UnneededPieces<'a> = &'a (dyn Fn(&PieceOutput) -> Option<Range<u64>> + Sync);

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// Tasks that are done.
    pub tasks_done: usize,
    /// All tasks.
    pub tasks: usize,
    /// Bytes of the input, as far as they are known.
    pub bytes: u64,
    /// Of all tasks together.
    pub counts: TaskCounts,
}

/// A task of a job that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskReport {
    /// Where it ran.
    pub node: NodeId,
    /// Runs before that, at nodes that were lost.
    pub again: u32,
    /// Its counts.
    pub counts: TaskCounts,
}

/// A job that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// The module's exit code.
    pub exit_code: u8,
    /// Its tasks.
    pub tasks: Vec<TaskReport>,
    /// Of all together.
    pub counts: TaskCounts,
    /// Time from its begin.
    pub time: Duration,
}

/// What the threads of a job share.
struct JobShared<'a> {
    client: &'a Client,
    plan: &'a JobPlan,
    options: &'a JobOptions<'a>,
    state: Mutex<JobRunState>,
    changed: Condvar,
    is_over: AtomicBool,
}

struct JobRunState {
    table: TaskTable,
    outputs: JobOutputs,
}

impl JobShared<'_> {
    fn state(&self) -> MutexGuard<'_, JobRunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: &Error) {
        self.state().table.fail(error);
        self.changed.notify_all();
    }
}

/// Carries out a job, and writes its result to `out` when all tasks are done: nothing before.
/// `tell` hears how far it is several times a second, and ends it with an error.
///
/// # Errors
/// Of a task, with its node; of `tell`; `Unavailable`: a node, and none has its data;
/// `Interrupted`: a worker has ended; `TooLarge`: the output; as of `out`.
pub fn run(
    client: &Client,
    plan: &JobPlan,
    options: &JobOptions<'_>,
    tell: &mut dyn FnMut(&JobProgress) -> Result<()>,
    out: &mut dyn Write,
) -> Result<JobReport> {
    let began = Instant::now();
    let homes = plan.tasks.iter().map(|task| (task.home, task.node));
    let state =
        JobRunState { table: TaskTable::new(homes), outputs: JobOutputs::new(options.output_max) };
    let shared = JobShared {
        client,
        plan,
        options,
        state: Mutex::new(state),
        changed: Condvar::new(),
        is_over: AtomicBool::new(false),
    };
    drive(&shared, tell);
    let JobRunState { table, outputs } =
        shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let JobStanding::Failed(kind, words) = table.standing() {
        return Err(Error::new(kind, words));
    }
    let mut merged = outputs.merged(&plan.pieces);
    let exit_code = options.module.merge(&options.arguments, &plan.input, &mut merged, out)?;
    let report = |(node, again, counts)| TaskReport { node, again, counts };
    Ok(JobReport {
        exit_code,
        tasks: table.tasks().map(report).collect(),
        counts: table.counts(),
        time: began.elapsed(),
    })
}

/// Until the job is over, one way or the other.
fn drive(shared: &JobShared<'_>, tell: &mut dyn FnMut(&JobProgress) -> Result<()>) {
    std::thread::scope(|scope| {
        let mut driven: Vec<NodeId> = Vec::new();
        loop {
            let state = shared.state();
            let standing = state.table.standing();
            let ((tasks_done, tasks), counts) = (state.table.done(), state.table.counts());
            let new: Vec<NodeId> =
                state.table.nodes().into_iter().filter(|node| !driven.contains(node)).collect();
            drop(state);
            let progress = JobProgress { tasks_done, tasks, bytes: shared.plan.bytes, counts };
            if let Err(error) = tell(&progress) {
                shared.fail(&error);
            }
            if standing != JobStanding::Runs {
                break;
            }
            for node in new {
                driven.push(node);
                let thread = std::thread::Builder::new().name(format!("job-{node}"));
                let body = move || node_driver::run(shared, node);
                if let Err(error) = thread.spawn_scoped(scope, body) {
                    let words = format!("start a thread for {node}: {error}");
                    shared.fail(&Error::new(ErrorKind::Io, words));
                }
            }
            let state = shared.state();
            if state.table.standing() == JobStanding::Runs {
                drop(shared.changed.wait_timeout(state, TELL_INTERVAL));
            }
        }
        shared.is_over.store(true, Ordering::Release);
        shared.changed.notify_all();
    });
}
