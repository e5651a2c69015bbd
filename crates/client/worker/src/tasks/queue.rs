//! The tasks of a worker, and which of them runs next.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samite_types::{Error, ErrorKind, Result};

use super::TaskState;
use super::state::SILENCE_MAX;
use crate::messages::{TaskAttempt, TaskOrder};

/// Most tasks of a worker that were begun and whose end was not received.
const TASKS_MAX: usize = 256;

/// A task that is to run.
pub(crate) struct TaskRun {
    pub(crate) of: TaskAttempt,
    pub(crate) order: TaskOrder,
    pub(crate) state: Arc<TaskState>,
}

#[derive(Default)]
struct QueuedTasks {
    waiting: VecDeque<TaskRun>,
    /// Tasks that run, by job.
    running: HashMap<u64, u16>,
    known: BTreeMap<TaskAttempt, Arc<TaskState>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct TaskQueue {
    tasks: Mutex<QueuedTasks>,
    changed: Condvar,
}

impl TaskQueue {
    fn tasks(&self) -> MutexGuard<'_, QueuedTasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a task, unless it was begun.
    ///
    /// # Errors
    /// `Busy`: there are too many.
    pub(crate) fn begin(
        &self,
        of: TaskAttempt,
        order: TaskOrder,
        time_max: Duration,
    ) -> Result<()> {
        let mut tasks = self.tasks();
        if tasks.known.contains_key(&of) {
            return Ok(());
        }
        if tasks.known.len() >= TASKS_MAX {
            return Err(Error::new(ErrorKind::Busy, "the worker has too many tasks; try again"));
        }
        let state = Arc::new(TaskState::new(time_max));
        tasks.known.insert(of, Arc::clone(&state));
        tasks.waiting.push_back(TaskRun { of, order, state });
        drop(tasks);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for a task to run: the oldest of a job that may have one more thread.
    pub(crate) fn next(&self) -> TaskRun {
        let mut tasks = self.tasks();
        loop {
            let QueuedTasks { waiting, running, .. } = &mut *tasks;
            let may_run = |run: &TaskRun| {
                let cores = run.order.limits.cores;
                cores == 0 || running.get(&run.of.job).is_none_or(|count| *count < cores)
            };
            let next = waiting.iter().position(may_run).and_then(|at| waiting.remove(at));
            if let Some(run) = next {
                *running.entry(run.of.job).or_default() += 1;
                return run;
            }
            tasks = self.changed.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A task that was taken by [`Self::next`] runs no more.
    pub(crate) fn ran(&self, of: TaskAttempt) {
        let mut tasks = self.tasks();
        if let Some(count) = tasks.running.get_mut(&of.job) {
            *count -= 1;
            if *count == 0 {
                tasks.running.remove(&of.job);
            }
        }
        drop(tasks);
        self.changed.notify_all();
    }

    /// A task that was begun and whose end was not received yet.
    ///
    /// # Errors
    /// `NotFound`: this worker knows of none.
    pub(crate) fn find(&self, of: &TaskAttempt) -> Result<Arc<TaskState>> {
        let found = self.tasks().known.get(of).cloned();
        found.ok_or_else(|| {
            let words = "the worker does not know the task: it is another one than before";
            Error::new(ErrorKind::NotFound, words)
        })
    }

    /// Forgets tasks; those that run end.
    pub(crate) fn forget(&self, which: impl Fn(&TaskAttempt, &TaskState) -> bool) {
        let mut tasks = self.tasks();
        tasks.known.retain(|of, state| {
            let goes = which(of, state);
            if goes {
                state.cancel();
            }
            !goes
        });
        let QueuedTasks { waiting, known, .. } = &mut *tasks;
        waiting.retain(|run| known.contains_key(&run.of));
    }

    /// Forgets tasks that nobody asks for. Whether a task runs on although it should have ended.
    pub(crate) fn look(&self, patience: Duration) -> bool {
        self.forget(|_, state| state.silence() > SILENCE_MAX);
        self.tasks().known.values().any(|state| state.is_stuck(patience))
    }
}
