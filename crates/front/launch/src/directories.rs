//! Directories of nodes.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use samite_types::{NodeId, Result};

use crate::io_context::SystemContext as _;

/// The directory of `node` in that of durable datasets.
#[must_use]
pub fn node_dir(durable: &Path, node: NodeId) -> PathBuf {
    durable.join(node.to_string())
}

/// Makes a directory for this user alone, with those above it, unless it is there.
///
/// # Errors
/// `Io`.
pub fn private_dir(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.doing(format_args!("make {}", path.display()))
}
