//! Jobs: one module run over one input, as tasks in workers beside the data.
//!
//! `plan.rs` cuts the input into pieces and these into tasks, each at the node with its data.
//! `task_table.rs` says what is to be done about each task, whatever happens: it is pure, and
//! `driver.rs` asks the workers. `outputs.rs` keeps what they give until all is there; `records.rs`
//! writes down in the store which jobs there are.

mod driver;
mod outputs;
mod plan;
mod records;
mod task_table;

pub use driver::{JobOptions, JobProgress, JobReport, TaskReport, run};
pub use plan::{InputSelection, JobPlan, plan};
pub use records::{JOBS_DATASET, JobRecord, JobRecords, JobState, TaskRecord, parse_job_id};
