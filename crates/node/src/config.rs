//! What a node is told at its start.

use std::path::PathBuf;

use samite_types::{Epoch, NodeId};

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Id; also the id of its one target.
    pub node: NodeId,
    /// Name of the cluster.
    pub cluster: String,
    /// Path of the unix socket, which serves `unix://` and `shm://`; made at start, removed at the end.
    pub socket: PathBuf,
    /// `HOST:PORT` to listen on for tcp; port 0 takes a free one. None: no tcp.
    pub tcp: Option<String>,
    /// Cluster key.
    pub key: [u8; 32],
    /// File that tells of faults made on purpose; made with the first. None: nobody is told.
    pub fault_log: Option<PathBuf>,
    /// Bytes that the target may hold.
    pub memory_bytes: u64,
    /// Shard threads; at least 1.
    pub shards: u16,
    /// Where the cluster map is kept.
    pub coordinator: CoordinatorConfig,
}

/// Where the cluster map is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorConfig {
    /// In this node; the cluster is complete when `expected` nodes, this one included, have joined.
    Embedded {
        /// Nodes of the cluster.
        expected: usize,
        /// Partitions of the cluster, for good; chosen by the number of nodes when `None`.
        partitions: Option<u32>,
    },
    /// In the node at this address (`unix://PATH` or `tcp://HOST:PORT`).
    At(String),
}

/// How far a node has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It listens; the cluster may not be complete yet.
    Listening {
        /// Where, as URLs: `shm://PATH`, `unix://PATH`, and `tcp://HOST:PORT` with the port that was taken.
        addresses: Vec<String>,
    },
    /// It has a cluster map and serves records. Comes once.
    Serving {
        /// Epoch of the map.
        epoch: Epoch,
    },
}
