//! Work for a few threads: files in a bounded queue, and large files that several threads share.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Most jobs that wait; the walk pauses when there are more.
const WAITING_MAX: usize = 1024;

/// The next work of a thread.
pub enum QueueWork<'a, J, L: SharedFile> {
    /// A job of its own; the guard is dropped when it is done.
    Job(J, BusyMark<'a, J, L>),
    /// Help with this large file.
    Help(Arc<L>),
}

/// A large file of which pieces are left to take.
pub trait SharedFile {
    /// Whether a helper would find something to do.
    fn has_pieces(&self) -> bool;
}

struct QueueState<J, L> {
    jobs: VecDeque<J>,
    large: Vec<Arc<L>>,
    /// Threads that work on a job and may yet offer a large file.
    busy: usize,
    closed: bool,
}

/// The queue.
pub struct CopyQueue<J, L> {
    state: Mutex<QueueState<J, L>>,
    changed: Condvar,
}

impl<J, L: SharedFile> CopyQueue<J, L> {
    /// An empty one.
    pub fn new() -> Self {
        let state = QueueState { jobs: VecDeque::new(), large: Vec::new(), busy: 0, closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<J, L>> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, QueueState<J, L>>,
    ) -> MutexGuard<'a, QueueState<J, L>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job; waits while the queue is full.
    pub fn push(&self, job: J) {
        let mut state = self.lock();
        while state.jobs.len() >= WAITING_MAX {
            state = self.wait(state);
        }
        state.jobs.push_back(job);
        self.changed.notify_all();
    }

    /// No jobs will be added any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Lets other threads help with a large file.
    pub fn offer(&self, large: Arc<L>) {
        self.lock().large.push(large);
        self.changed.notify_all();
    }

    /// The next thing to do; `None` when all is done.
    pub fn next(&self) -> Option<QueueWork<'_, J, L>> {
        let mut state = self.lock();
        loop {
            state.large.retain(|large| large.has_pieces());
            if let Some(large) = state.large.first() {
                return Some(QueueWork::Help(Arc::clone(large)));
            }
            if let Some(job) = state.jobs.pop_front() {
                state.busy += 1;
                if state.jobs.len() + 1 == WAITING_MAX {
                    self.changed.notify_all();
                }
                return Some(QueueWork::Job(job, BusyMark(self)));
            }
            if state.closed && state.busy == 0 {
                return None;
            }
            state = self.wait(state);
        }
    }
}

/// Notes that a thread works on a job.
pub struct BusyMark<'a, J, L: SharedFile>(&'a CopyQueue<J, L>);

impl<J, L: SharedFile> Drop for BusyMark<'_, J, L> {
    fn drop(&mut self) {
        self.0.lock().busy -= 1;
        self.0.changed.notify_all();
    }
}
