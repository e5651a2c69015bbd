//! How a node is, and its metrics: answers of the control plane.

use samite_metrics::MetricSample;
use samite_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::control::BackendSpec;
use crate::worker::WorkerStatus;

/// Damage that a node has found in the data that it holds, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Number of the last [`ControlRequest::Scrub`](crate::control::ControlRequest::Scrub) that has been carried out.
    pub done: u64,
    /// Times that everything was looked at, asked for or not.
    pub walks: u64,
    /// Records that were looked at.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Records that were found damaged, by whatever way.
    pub damaged: u64,
    /// Of these, those that are right again.
    pub repaired: u64,
    /// Records that are damaged, as far as that is known: now, not since the start.
    pub left: u64,
    /// Ranges of records that another member held otherwise, and was sent anew.
    pub evened: u64,
}

/// How a node is: what its commands and programs go by. [`NodeMetrics`] has more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// See [`NodeInfo::incarnation`](crate::control::NodeInfo::incarnation).
    pub incarnation: u64,
    /// Process id.
    pub pid: u32,
    /// Seconds since start.
    pub uptime_s: u64,
    /// Bytes the target can hold.
    pub capacity_bytes: u64,
    /// Bytes in use, metadata included.
    pub used_bytes: u64,
    /// Bytes of the arena whose pages are in place.
    pub populated_bytes: u64,
    /// Records held.
    pub records: u64,
    /// Leaked orphans: records without a name that are open for nobody any more, left behind by
    /// clients that died, to be swept.
    pub abandoned: u64,
    /// Bytes of the logs of durable datasets.
    pub log_bytes: u64,
    /// Bytes of their checkpoints.
    pub checkpoint_bytes: u64,
    /// Connections open.
    pub connections: u64,
    /// Requests with operations served since start.
    pub requests: u64,
    /// Operations served since start (a request carries many).
    pub operations: u64,
    /// Frames that came from other nodes since start.
    pub peer_frames: u64,
    /// Members of groups that its primaries bring up to date now.
    pub resyncs: u64,
    /// Those of them that wait until there is room for what they lack.
    pub resyncs_without_room: u64,
    /// Bytes that its primaries sent for that since start.
    pub resync_bytes: u64,
    /// Damage that it has found in the data that it holds.
    pub scrub: ScrubStatus,
    /// Node of the coordinator that it follows, if it knows one.
    pub leader: Option<NodeId>,
    /// Its targets beside the memory, as far as they are open.
    pub targets: Vec<TargetStatus>,
    /// Its worker processes.
    pub workers: Vec<WorkerStatus>,
}

/// How full a target is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// Whose it is.
    pub backend: BackendSpec,
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
    /// Bytes in use, metadata included.
    pub used_bytes: u64,
}

impl NodeStatus {
    /// Bytes that the target of `backend` can hold, and those in use; 0 when it is not open.
    #[must_use]
    pub fn usage(&self, backend: &BackendSpec) -> (u64, u64) {
        if *backend == BackendSpec::default() {
            return (self.capacity_bytes, self.used_bytes);
        }
        let target = self.targets.iter().find(|target| target.backend == *backend);
        target.map_or((0, 0), |target| (target.capacity_bytes, target.used_bytes))
    }
}

/// All metrics of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMetrics {
    /// Where they are served to scrapers, as a URL; `None`: nowhere.
    pub address: Option<String>,
    /// The series, in the order of the registry.
    pub samples: Vec<MetricSample>,
}
