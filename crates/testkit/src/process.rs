//! A cluster of real processes, for black-box tests.

use std::path::PathBuf;

use samite_types::{NodeId, Result};

/// Path of the `samite` binary: `SAMITE_BIN`, or beside the test's own executable in the target directory. None when it was not built.
#[must_use]
pub fn samite_binary() -> Option<PathBuf> {
    None
}

/// A cluster started by `samite up --local N`. Taken down when dropped.
pub struct ProcessCluster {
    runtime: PathBuf,
}

impl ProcessCluster {
    /// Starts it. `up_args` go behind `samite up --local NODES`.
    ///
    /// # Errors
    /// There is no binary, or `up` failed; its output is in the message.
    pub fn start(nodes: usize, up_args: &[&str]) -> Result<Self> {
        let _ = (nodes, up_args);
        Err(samite_types::ErrorKind::Unsupported.into())
    }

    /// The value of `SAMITE_RUNTIME_DIR` that leads to this cluster.
    #[must_use]
    pub fn runtime_path(&self) -> &std::path::Path {
        &self.runtime
    }

    /// Kills a node with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    /// There is no such node, or it could not be killed.
    pub fn kill_node(&self, node: NodeId) -> Result<()> {
        let _ = node;
        Err(samite_types::ErrorKind::Unsupported.into())
    }
}
