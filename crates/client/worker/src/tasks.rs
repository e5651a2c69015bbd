//! Tasks of a worker: what each of them has done, its output until that is taken, and the threads
//! that carry them out.

mod queue;
mod state;

pub(crate) use queue::{TaskQueue, TaskRun};
pub(crate) use state::TaskState;
