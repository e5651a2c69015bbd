//! How a local cluster was started.

use std::path::PathBuf;

use samite_types::Redundancy;
use samite_wire::control::ReadsKind;
use serde::{Deserialize, Serialize};

/// How a local cluster was started: the settings for a node that is started later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSetup {
    /// Redundancy of datasets that commands make by themselves.
    pub redundancy: Redundancy,
    /// The members that answer their reads.
    pub reads: ReadsKind,
    /// Nodes that it was started with.
    pub founders: u32,
    /// Bytes of records that each node may keep.
    pub memory_bytes: u64,
    /// Shard threads of each node.
    pub shards: u16,
    /// Partitions of the cluster; chosen by the number of nodes when `None`.
    pub partitions: Option<u32>,
    /// Whether nodes listen on tcp.
    pub tcp: bool,
    /// Whether they take TLS there, and nothing else.
    pub tls: bool,
    /// Paths of the certificate that they show and of its key, both PEM; `None`: their key pair comes of the cluster key.
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// Directory of durable datasets, with one in it for each node.
    pub durable: Option<PathBuf>,
    /// Nodes look for damage by themselves once in so many microseconds; 0: never; `None`: as often as they do.
    pub scrub_interval_us: Option<u64>,
    /// Where the first node gives tickets to all users of its host; `None`: nowhere.
    pub ticket_socket: Option<PathBuf>,
    /// Nodes serve their metrics there, each at its own address by `samite_node::MetricsAddress::of_node`; `None`: nowhere.
    pub metrics: Option<String>,
    /// So many nodes, from the first, have a coordinator instance; where they keep its state together, these have its first voters.
    pub coordinators: u32,
    /// Where the coordinators of a cluster on several hosts are, as URLs; number *i* is node *i*.
    pub coordinator_urls: Vec<String>,
    /// The process with the third voter of a cluster of two nodes.
    pub third_voter: Option<VoterEntry>,
    /// etcd endpoints, as `http://HOST:PORT` or `https://HOST:PORT`; none when the coordinator of the first node keeps its state in a file.
    pub etcd: Vec<String>,
    /// Certificates for etcd by https.
    pub etcd_tls: Option<EtcdTlsFiles>,
    /// Members of an etcd cluster that was started with this one, and ends with it.
    pub etcd_members: Vec<EtcdEntry>,
    /// It has served before: its coordinators have state, or have lost it.
    pub is_founded: bool,
}

impl Default for ClusterSetup {
    fn default() -> Self {
        Self {
            redundancy: Redundancy(1),
            reads: ReadsKind::Primary,
            founders: 1,
            memory_bytes: 0,
            shards: 1,
            partitions: None,
            tcp: false,
            tls: false,
            tls_files: None,
            durable: None,
            scrub_interval_us: None,
            ticket_socket: None,
            metrics: None,
            coordinators: 1,
            coordinator_urls: Vec::new(),
            third_voter: None,
            etcd: Vec::new(),
            etcd_tls: None,
            etcd_members: Vec::new(),
            is_founded: false,
        }
    }
}

/// Paths of the certificates for etcd by https, all PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdTlsFiles {
    /// The authority that signs etcd's certificates.
    pub authorities: PathBuf,
    /// The certificate that coordinators show, and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// A process that has a voter and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterEntry {
    /// Process id.
    pub pid: u32,
    /// The process's start time; see [`super::NodeEntry::start_ticks`].
    pub start_ticks: u64,
}

/// One member of a local etcd cluster. Its data are in the cluster's directory, under its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdEntry {
    /// Name.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// The process's start time; see [`super::NodeEntry::start_ticks`].
    pub start_ticks: u64,
    /// Port for clients on 127.0.0.1.
    pub client_port: u16,
    /// Port for other members on 127.0.0.1.
    pub peer_port: u16,
}
