//! The tools that everybody knows, as modules that run beside the data: each reads its words,
//! carries out tasks over pieces of files by the kernels of `samite_modules`, and joins what they
//! give to what the tool of GNU prints.

mod call;
mod count;
mod frames;
mod generate;
mod grep;
mod lines;
mod pieces;
pub mod sort;
mod sum;
mod valsort;
mod wc;

pub use call::{InputComplaint, ToolCall, UnneededRule};
pub use count::{CountArgs, CountModule};
pub use generate::{GenArgs, GenModule};
pub use grep::{GrepArgs, GrepModule};
pub use sort::{CheckModule, MergeModule, RunModule, SampleModule, SortArgs, SortCall, SortRule};
pub use sum::{SumAlgorithm, SumArgs, SumModule};
pub use valsort::{ValsortArgs, ValsortModule};
pub use wc::{WcArgs, WcModule};

/// Whether a name is like a glob, as fnmatch has it in the C locale.
#[must_use]
pub fn is_like(glob: &[u8], name: &[u8]) -> bool {
    // What is added last decides, and a name has no slashes.
    let mut globs = samite_modules::grep::FileGlobs::default();
    globs.add(true, glob);
    globs.admits(name)
}
