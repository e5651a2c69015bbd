//! Sorting of lines, as GNU sort 9.1 does it under `LC_ALL=C`, and of fixed-size records.
//!
//! A task makes a [`SortedRun`] of lines or sorts records by [`RecordOrder::sort`]; samples of the
//! runs give [`splitters`], by which runs are cut so that each task merges one range of the order;
//! [`merge`] joins sorted sources. Equal items keep the order of their sources.

mod check;
mod compare;
mod merge;
mod numbers;
mod order;
mod records;
mod run;
mod version;

pub use check::OrderCheck;
pub use compare::SortOrder;
pub use merge::{LineStream, RecordCursor, SortedSource, merge};
pub use order::{KeyOrdering, KeyPosition, LineOrder, SortKey, SortOptions};
pub use records::RecordOrder;
pub use run::{RunCursor, SortedRun, splitters};
