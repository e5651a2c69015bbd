//! Random calls from many processes, compared with a model.
//!
//! Each process works on a subtree of its own, where every answer is known, and in directories that
//! all share, where the sum is known. A run is a row of short rounds. After each, everything is
//! compared, over another access path; then the subtrees change hands, from processes of one access
//! path to those of another, with their expected contents.

pub mod driver;
pub mod model;
pub mod own;
pub mod shared;
pub mod worker;
