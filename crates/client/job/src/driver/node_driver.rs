//! One node's part in a job: asks the worker there.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use samite_types::{Deadline, Error, ErrorKind, NodeId, Result};
use samite_wire::worker::WorkerKind;
use samite_worker::messages::{
    self, TaskAttempt, TaskOrder, TaskPoll, TaskProgress, WorkerAnswer, WorkerRequest,
};

use super::JobShared;
use crate::task_table::{JobStanding, OutputUse, TaskRunId};

/// Tasks that are begun at a node at a time.
const BEGUN_MAX: usize = 16;
/// Time for which a worker may wait for news.
const POLL_WAIT_MS: u32 = 300;
/// Time that a node has for an answer, before its node is looked for in a newer map.
const ASK_PATIENCE: Duration = Duration::from_secs(3);
/// Time that it has to hear that the job is over.
const CANCEL_PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);
const LOST_PAUSE: Duration = Duration::from_millis(100);

struct NodeDriver<'a> {
    shared: &'a JobShared<'a>,
    node: NodeId,
    /// The process of the node, by the map by which tasks were begun.
    incarnation: Option<u64>,
    /// Since when it cannot be reached.
    silent_since: Option<Instant>,
    /// Tasks whose end has come, and of which the worker does not know that.
    ended: Vec<TaskAttempt>,
    /// Which of the tasks is asked for first; the first ones are given most room.
    turn: usize,
}

pub(super) fn run(shared: &JobShared<'_>, node: NodeId) {
    let incarnation = None;
    let mut driver =
        NodeDriver { shared, node, incarnation, silent_since: None, ended: Vec::new(), turn: 0 };
    while !shared.is_over.load(Ordering::Acquire) {
        match driver.step() {
            Ok(true) => driver.silent_since = None,
            Ok(false) => driver.rest(PAUSE * 2),
            Err(error) => driver.failed(&error),
        }
    }
    let request = WorkerRequest::Cancel { job: shared.options.id };
    // A worker that does not hear it ends the tasks later, as nobody asks for them.
    let _ = driver.ask(&request, Deadline::after(CANCEL_PATIENCE));
}

impl NodeDriver<'_> {
    fn ask(&self, request: &WorkerRequest, deadline: Deadline) -> Result<WorkerAnswer> {
        let message = messages::encode(request);
        let client = self.shared.client;
        let answer = client.ask_worker(self.node, WorkerKind::Native, message, deadline)?;
        messages::decode(&answer)
    }

    fn attempt(&self, run: TaskRunId) -> TaskAttempt {
        TaskAttempt { job: self.shared.options.id, task: run.task, attempt: run.attempt }
    }

    /// Begins tasks, and asks for those that were begun. `false`: there was nothing to do.
    fn step(&mut self) -> Result<bool> {
        let begin = self.shared.state().table.begin(self.node, BEGUN_MAX);
        let mut begin = begin.into_iter();
        while let Some(run) = begin.next() {
            if let Err(error) = self.begin(run) {
                let mut state = self.shared.state();
                for run in std::iter::once(run).chain(begin) {
                    state.table.put_back(run);
                }
                drop(state);
                if error.kind() != ErrorKind::Busy {
                    return Err(error);
                }
                self.rest(PAUSE);
                break;
            }
        }
        let mut begun = self.shared.state().table.begun(self.node);
        if begun.is_empty() {
            return Ok(false);
        }
        self.turn = (self.turn + 1) % begun.len();
        begun.rotate_left(self.turn);
        let poll =
            |(run, taken): &(TaskRunId, u64)| TaskPoll { of: self.attempt(*run), taken: *taken };
        let tasks = begun.iter().map(poll).collect();
        let ended = self.ended.clone();
        let request = WorkerRequest::Poll { tasks, ended, wait_ms: POLL_WAIT_MS };
        match self.ask(&request, Deadline::after(ASK_PATIENCE))? {
            WorkerAnswer::Progress(progress) if progress.len() == begun.len() => {
                self.ended.clear();
                let runs = begun.iter().map(|(run, _)| *run);
                runs.zip(&progress).for_each(|(run, told)| self.take(run, told));
                self.shared.changed.notify_all();
                Ok(true)
            }
            WorkerAnswer::Refused(kind, words) => Err(refused(kind, words)),
            _ => Err(Error::new(ErrorKind::Corrupt, "the worker answers another question")),
        }
    }

    fn begin(&mut self, run: TaskRunId) -> Result<()> {
        let now = self.incarnation();
        if self.incarnation.is_none() || self.shared.state().table.begun(self.node).len() <= 1 {
            self.incarnation = now;
        }
        let options = self.shared.options;
        let order = TaskOrder {
            module: options.module.name().to_owned(),
            arguments: options.arguments.clone(),
            input: self.shared.plan.tasks[run.task as usize].input.clone(),
            limits: options.limits,
        };
        let request = WorkerRequest::Begin(self.attempt(run), order);
        match self.ask(&request, Deadline::after(ASK_PATIENCE))? {
            WorkerAnswer::Done => Ok(()),
            WorkerAnswer::Refused(kind, words) => Err(refused(kind, words)),
            WorkerAnswer::Progress(_) => {
                Err(Error::new(ErrorKind::Corrupt, "the worker answers another question"))
            }
        }
    }

    fn take(&mut self, run: TaskRunId, told: &TaskProgress) {
        let mut state = self.shared.state();
        if state.table.progress(run, told) == OutputUse::Keep {
            if let Err(error) = state.outputs.add(run.task, &told.output) {
                state.table.fail(&error);
            }
            let unneeded = self.shared.options.unneeded.into_iter();
            for pieces in unneeded.flat_map(|look| told.output.iter().filter_map(look)) {
                let tasks = &self.shared.plan.tasks;
                state.table.drop_tasks(|task| tasks[task as usize].is_within(&pieces));
            }
        }
        if told.end.is_some() {
            self.ended.push(self.attempt(run));
        }
    }

    /// The process that the node is, by the newest map that is known.
    fn incarnation(&self) -> Option<u64> {
        let map = self.shared.client.map().ok()?;
        map.node(self.node).map(|info| info.incarnation)
    }

    /// Which node serves what, by the newest map; or whether it is only for a moment.
    fn failed(&mut self, error: &Error) {
        let named = |error: &Error| {
            let error = Error::new(error.kind(), error.message().to_owned());
            error.context(format_args!("job on {}", self.node))
        };
        let is_absence =
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Busy);
        let is_other_worker = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Interrupted);
        if !is_absence && !is_other_worker {
            return self.shared.fail(&named(error));
        }
        // It fails where no node answers; then the old one counts.
        let _ = self.shared.client.refresh_map();
        let incarnation = self.incarnation();
        let dataset = &self.shared.plan.dataset;
        let is_other_node = self.incarnation.is_some() && incarnation != self.incarnation;
        let server = |home| dataset.node_of(home).ok();
        let has_moved = self.shared.state().table.has_moved(self.node, server);
        if is_other_node || has_moved {
            let mut state = self.shared.state();
            let again = state.table.node_lost(self.node, server);
            again.into_iter().for_each(|task| state.outputs.forget(task));
            drop(state);
            self.incarnation = None;
            self.silent_since = None;
            self.ended.clear();
            self.shared.changed.notify_all();
            return self.rest(PAUSE);
        }
        if is_other_worker {
            return self.shared.fail(&named(error));
        }
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        if since.elapsed() > self.shared.client.options().timeout {
            return self.shared.fail(&named(error));
        }
        self.rest(LOST_PAUSE);
    }

    /// A pause, which ends early when something has changed.
    fn rest(&self, pause: Duration) {
        let state = self.shared.state();
        if state.table.standing() == JobStanding::Runs {
            drop(self.shared.changed.wait_timeout(state, pause));
        }
    }
}

fn refused(kind: u8, words: String) -> Error {
    Error::new(ErrorKind::from_code(kind).unwrap_or(ErrorKind::Internal), words)
}
