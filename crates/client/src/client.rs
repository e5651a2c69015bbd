//! The client: cluster map, links to nodes, control requests.

use std::sync::Arc;

use samite_placement::ClusterMap;
use samite_types::{Deadline, NodeId, Result};
use samite_wire::control::{DatasetSpec, NodeStatus};

use crate::stats::Stats;
use crate::{ClusterConfig, Dataset, Options};

/// A client of one cluster. Cheap to clone; all clones share connections and one session.
#[derive(Clone)]
pub struct Client {
    options: Options,
}

#[allow(clippy::todo, clippy::missing_errors_doc, unused_variables, missing_docs)]
impl Client {
    /// Connects to the first of the configured addresses that answers, and gets the cluster map.
    pub fn connect(config: &ClusterConfig, options: Options) -> Result<Self> {
        todo!()
    }

    /// Connects to the local cluster `name` of this user, as its runtime directory describes it. The transport is the one
    /// that [`crate::Transport::from_env`] forces, or the best.
    pub fn from_runtime(name: &str) -> Result<Self> {
        todo!()
    }

    /// The cluster map as known here.
    pub fn map(&self) -> Result<Arc<ClusterMap>> {
        todo!()
    }

    /// Asks the nodes for a newer cluster map.
    pub fn refresh_map(&self) -> Result<Arc<ClusterMap>> {
        todo!()
    }

    /// The dataset of this name.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        todo!()
    }

    /// Makes a dataset, or finds it made with the same policy.
    pub fn create_dataset(&self, spec: &DatasetSpec) -> Result<Dataset> {
        todo!()
    }

    /// Removes a dataset and all of its records.
    pub fn drop_dataset(&self, name: &str) -> Result<()> {
        todo!()
    }

    /// Figures of one node.
    pub fn node_status(&self, node: NodeId) -> Result<NodeStatus> {
        todo!()
    }

    /// Tells a node to stop.
    pub fn shutdown_node(&self, node: NodeId) -> Result<()> {
        todo!()
    }

    /// What this client has sent and received, all clones together.
    pub fn stats(&self) -> Stats {
        todo!()
    }

    /// A deadline as far off as the options say.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.options.timeout)
    }

    /// To be called in the child after a fork, before it uses the client: forgets the parent's connections and session.
    /// The next call connects anew. Takes no lock and frees nothing.
    pub fn after_fork_child(&self) {
        todo!()
    }
}
