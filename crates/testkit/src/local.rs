//! A cluster whose nodes are threads of this process.

use std::path::Path;

use samite_client::runtime::RuntimeDir;
use samite_types::{NodeId, Result};

/// Settings of a [`LocalCluster`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the cluster.
    pub name: String,
    /// Bytes that each node may hold.
    pub memory_bytes: u64,
    /// Shard threads of each node.
    pub shards: u16,
    /// Whether the nodes listen on tcp (127.0.0.1, a free port).
    pub tcp: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { name: "test".into(), memory_bytes: 256 << 20, shards: 1, tcp: true }
    }
}

/// Nodes of one cluster, running as threads. Stopped when dropped.
pub struct LocalCluster {
    runtime: RuntimeDir,
}

impl LocalCluster {
    /// Starts `nodes` nodes and waits until the cluster serves.
    ///
    /// # Errors
    /// A node could not start.
    pub fn start(nodes: usize, options: Options) -> Result<Self> {
        let _ = (nodes, options);
        Err(samite_types::ErrorKind::Unsupported.into())
    }

    /// The runtime directory in which the cluster's file lies.
    #[must_use]
    pub const fn runtime(&self) -> &RuntimeDir {
        &self.runtime
    }

    /// Where that directory is: the value of `SAMITE_RUNTIME_DIR` that leads to this cluster.
    #[must_use]
    pub fn runtime_path(&self) -> &Path {
        self.runtime.path()
    }

    /// Stops one node; its records are gone. Clients see a closed connection, as after a crash.
    pub fn stop_node(&mut self, node: NodeId) {
        let _ = node;
    }

    /// Stops all nodes.
    pub fn stop(&mut self) {}
}
