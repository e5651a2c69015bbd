//! The tools that everybody knows, as modules that run beside the data: each reads its words,
//! carries out tasks over pieces of files by the kernels of `samite_modules`, and joins what they
//! give to what the tool of GNU prints.

pub mod call;
mod frames;
pub mod grep;

pub use call::{InputComplaint, ToolCall, UnneededRule};
pub use grep::GrepArgs;


