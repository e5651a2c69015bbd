//! Random calls from many processes, compared with a model.
//!
//! Each process works on a subtree of its own, where every answer is known, and in directories that all share, where the sum is
//! known. A run is a row of short rounds. After each, everything is compared, by another door; then the subtrees change hands,
//! from processes of one door to those of another, with what must be in them.

pub mod driver;
pub mod model;
pub mod own;
pub mod shared;
pub mod worker;
