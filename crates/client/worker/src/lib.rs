//! The worker process: runs modules over the records and files of a store, beside them.
//!
//! A node starts it for one user (`samite_node`, `worker_processes.rs`), and passes messages
//! ([`messages`]) of that user's jobs on to it. A job is made of tasks; a task is a [`Module`] and
//! pieces of input ([`input::TaskInput`]), which lie at the worker's node as a rule. The worker is an
//! ordinary client, with its user's rights and no others.
//!
//! `runtime.rs` answers requests, `tasks/` has the tasks and their output until it is taken,
//! `input/` reads.

pub mod input;
pub mod messages;
mod module;
pub mod runtime;
mod tasks;

pub use module::{
    JobFile, JobInput, MergedPiece, Module, ModuleCall, ModuleRegistry, PieceOutputs, TaskOutput,
};
