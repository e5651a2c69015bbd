//! Jobs: one module run over one input, as tasks in workers beside the data.
//!
//! `walk.rs` finds files; `plan.rs` cuts the input into pieces and these into tasks, each at the
//! node with its data.
//! `task_table.rs` says what is to be done about each task, whatever happens: it is pure, and
//! `driver.rs` asks the workers. `outputs.rs` keeps what they give until all is there; `records.rs`
//! writes down in the store which jobs there are.

mod driver;
mod outputs;
mod plan;
mod records;
mod task_table;
mod walk;

pub use driver::{JobOptions, JobProgress, JobReport, TaskReport, UnneededPieces, run};
pub use plan::{InputSelection, JobPlan, PieceCut, PlannedTask, plan, plan_files};
pub use records::{JOBS_DATASET, JobRecord, JobRecords, JobState, TaskRecord, parse_job_id};
pub use walk::{FileWalk, InputFile};
