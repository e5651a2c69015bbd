//! The posix backend: large parts of values as files, all else in LMDB.
//!
//! A part of a value of more than 4 KiB is a file, whose name is a number that was never used
//! before; its row in LMDB has the number. A commit writes new files and syncs them, then commits
//! the rows, then removes the files that no row names any more. So a file that a row names is whole,
//! and after a crash the files that are too many are known by their numbers.
//!
//! ```text
//!  ROOT/lock  data.mdb  lock.mdb  reserve     as the lmdb backend has them
//!  ROOT/parts/1f/0a3                          file 0x1f0a3
//! ```
//!
//! No name comes from a key. Files are opened from the root's descriptor, without following links.

mod files;
mod map;

use std::path::Path;
use std::sync::Arc;

use samite_backend::ordered::OrderedTarget;
use samite_backend_lmdb::{LmdbOptions, TargetRoot};
use samite_types::Result;

pub use map::PartFileMap;

/// Opens the target in the directory `root`, which is made if it is not there, for `capacity`
/// bytes.
///
/// # Errors
/// As [`PartFileMap::open`].
pub fn open_target(root: &Path, capacity: u64) -> Result<Arc<OrderedTarget>> {
    let options = LmdbOptions { format: "posix 1", ..LmdbOptions::new(capacity) };
    let map = PartFileMap::open(TargetRoot::open(root)?, &options)?;
    OrderedTarget::open(Arc::new(map), capacity)
}
