//! The lmdb backend: records in one LMDB environment for each target.
//!
//! Readers of any thread see the environment as the last commit left it; a commit is one
//! transaction, and is on disk when it is done (`fdatasync`, then the meta page). Space of deleted
//! rows is used again, and the file does not become smaller.
//!
//! The map of the file is addresses, not memory: it is made so long that the disk or the target's
//! capacity ends first ([`LmdbOptions::new`]). A damaged or cut file that the kernel cannot read
//! ends the process (`SIGBUS`), and a restart finds the last commit.

mod errors;
mod keys;
mod map;
mod reserve;
mod root;

use std::path::Path;
use std::sync::Arc;

use samite_backend::ordered::OrderedTarget;
use samite_types::Result;

pub use map::{LmdbMap, LmdbOptions};
pub use root::TargetRoot;

/// Opens the target in the directory `dir`, which is made if it is not there, for `capacity` bytes.
///
/// # Errors
/// As [`LmdbMap::open`].
pub fn open_target(dir: &Path, capacity: u64) -> Result<Arc<OrderedTarget>> {
    let map = LmdbMap::open(TargetRoot::open(dir)?, &LmdbOptions::new(capacity))?;
    OrderedTarget::open(Arc::new(map), capacity)
}
