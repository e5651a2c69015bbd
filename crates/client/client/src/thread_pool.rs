//! Threads that finish work for which futures would block: few, started when they are needed, gone
//! when they are idle.
//!
//! A node that dies may leave thousands of futures with something to do; together they do not get a thread each.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samite_types::{Error, ErrorKind, Result};

/// Most threads of one session.
const THREADS_MAX: usize = 32;
/// A thread without work goes after this time.
const IDLE: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of one session.
#[derive(Clone, Default)]
pub(crate) struct ThreadPool {
    shared: Arc<PoolShared>,
}

#[derive(Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    has_work: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").finish_non_exhaustive()
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Jobs run outside of it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadPool {
    /// Has `job` done, in its turn.
    pub(crate) fn put(&self, job: Job) -> Result<()> {
        let mut state = self.shared.lock();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.threads == THREADS_MAX {
            self.shared.has_work.notify_one();
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        match std::thread::Builder::new().name("samite-pending".into()).spawn(move || work(&shared))
        {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 => {
                state.jobs.pop_back();
                let cause = format!("cannot start a thread to finish an operation: {error}");
                return Err(Error::new(ErrorKind::Io, cause));
            }
            // The others do it when they can.
            Err(_) => {}
        }
        Ok(())
    }
}

fn work(shared: &PoolShared) {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = shared.lock();
            continue;
        }
        state.idle += 1;
        let waited = shared.has_work.wait_timeout(state, IDLE);
        let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state = after;
        state.idle -= 1;
        if timeout.timed_out() && state.jobs.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn many_jobs_are_done_by_few_threads() {
        const JOBS: usize = 200;
        let (pool, done) = (ThreadPool::default(), Arc::new(AtomicUsize::new(0)));
        let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..JOBS {
            let (done, at_once, most) =
                (Arc::clone(&done), Arc::clone(&at_once), Arc::clone(&most));
            pool.put(Box::new(move || {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                at_once.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
            }))
            .unwrap();
        }
        while done.load(Ordering::SeqCst) < JOBS {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(most.load(Ordering::SeqCst) <= THREADS_MAX);
    }
}
