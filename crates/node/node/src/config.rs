//! The settings of a node at its start.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::ClusterTiming;
use samite_coordinator::store::EtcdTls;
use samite_transport::{ClusterKeys, TlsAuthorities, TlsFiles};
use samite_types::fault::FaultTable;
use samite_types::{Epoch, NodeId, Result};
use samite_wire::control::NodeInfo;
use samite_wire::events::LogPart;

use crate::metrics_address::MetricsAddress;
use crate::worker_processes::WorkerConfig;

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Id; also the id of its one target.
    pub node: NodeId,
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the host; its [identity](samite_transport::host::host_identity) when `None`. A client
    /// on a host of another name reaches the node by tcp only.
    pub host: Option<String>,
    /// Name of the rack of the host, or of whatever else fails as a whole; empty: not known. Members
    /// of a mirror group are in different racks where there are enough.
    pub rack: String,
    /// Path of the unix socket, which serves `unix://` and `shm://`; made at start, removed at the end.
    pub socket: PathBuf,
    /// Where they are kept, and written when they are changed; `None`: they are not changed.
    pub key_file: Option<PathBuf>,
    /// Path of a unix socket, made at start, where all users of the host get tickets; `None`: they
    /// get none.
    pub ticket_socket: Option<PathBuf>,
    /// Each `HOST:PORT` to listen on for tcp, the best for others first; port 0 takes a free one.
    /// None: no tcp.
    pub listen: Vec<String>,
    /// Whether the process keeps these ports until it has ended, so that others find out from afar
    /// that it has.
    pub holds_ports: bool,
    /// Whether that is with TLS, and nothing else.
    pub tls: TlsConfig,
    /// The cluster keys that count.
    pub keys: ClusterKeys,
    /// File that tells of faults made on purpose; made with the first. None: nobody is told.
    pub fault_log: Option<PathBuf>,
    /// Faults by which it goes from its start.
    pub faults: Option<FaultTable>,
    /// Bytes of records that the target may keep.
    pub memory_bytes: u64,
    /// So many microseconds the node's wall clock counts as ahead of the machine's: 0, but where
    /// somebody tries out what a clock that is wrong does.
    pub clock_ahead_us: i64,
    /// Shard threads; at least 1.
    pub shards: u16,
    /// Where the cluster map is decided on.
    pub coordinator: CoordinatorConfig,
    /// Times of membership, the same for all nodes.
    pub timing: ClusterTiming,
    /// All records of the node are checked for damage once in this time; `None`: only on request.
    pub scrub_interval: Option<Duration>,
    /// Directory of durable datasets; `None`: this node can have none.
    pub flash: Option<FlashConfig>,
    /// Where metrics are served to scrapers; `None`: nowhere.
    pub metrics: Option<MetricsAddress>,
    /// The log of this process; `None`: nobody can read it from elsewhere.
    pub logs: Option<Arc<dyn NodeLogs>>,
    /// Somebody waits for [`NodeEvent::Alive`].
    pub tells_alive: bool,
    /// How it starts workers; `None`: it starts none.
    pub workers: Option<WorkerConfig>,
    /// How the cluster was set up, for clients that ask; the node does not look into it. At most
    /// [`SETUP_LEN_MAX`](samite_wire::limits::SETUP_LEN_MAX) bytes.
    pub setup: Vec<u8>,
}

/// The log of a node's process, for administrators.
pub trait NodeLogs: fmt::Debug + Send + Sync {
    /// Logs from now on what `filter` names (`debug`, `info,samite_node=trace`).
    ///
    /// # Errors
    /// `Invalid`: it is no filter.
    fn set_filter(&self, filter: &str) -> Result<()>;

    /// A part of it, of [`LOG_PART_LEN_MAX`](samite_wire::events::LOG_PART_LEN_MAX) bytes at most,
    /// from the byte `from` on, or from the start when it is shorter than that; `None`: its end.
    ///
    /// # Errors
    /// `Unsupported`: it is in no file; `Io`.
    fn read(&self, from: Option<u64>) -> Result<LogPart>;
}

/// TLS on tcp. The same at all nodes.
#[derive(Clone, Debug, Default)]
pub enum TlsConfig {
    /// None: frames are checksummed, and everyone with access to the network can read them.
    #[default]
    Off,
    /// With key pairs that come of the cluster key.
    ClusterKey,
    /// With certificates of the site's own.
    Files {
        /// The certificate that this node shows.
        own: Arc<TlsFiles>,
        /// The authority that signs those of the others.
        authorities: TlsAuthorities,
    },
}

/// Interval at which all records of a node are checked, unless set otherwise.
pub const SCRUB_INTERVAL: Duration = Duration::from_secs(600);

/// The directory for data that outlives a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashConfig {
    /// A directory of this node alone, made if it is not there.
    pub path: PathBuf,
    /// Bytes of a segment of the log. Two of them are set aside for each shard; an operation takes at most half of one.
    pub segment_len: u64,
}

impl FlashConfig {
    /// In this directory, with segments of 32 MiB.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), segment_len: 32 << 20 }
    }
}

/// Where the cluster map is decided on: by the one of several coordinator instances that leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorConfig {
    /// The instance in this node, if there is one.
    pub own: Option<InstanceConfig>,
    /// Addresses of nodes with other instances (`unix://PATH` or `tcp://HOST:PORT`); one that lives is enough.
    pub others: Vec<String>,
}

/// A coordinator instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceConfig {
    /// The cluster is complete when so many nodes, this one included, have joined.
    pub expected: usize,
    /// Partitions of the cluster, for good; chosen by the number of nodes when `None`.
    pub partitions: Option<u32>,
    /// The cluster has served before. A missing state is a lost one then, and nothing is begun anew.
    pub is_founded: bool,
    /// Where its state is kept.
    pub store: StoreConfig,
}

/// Where the state of a coordinator is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In memory. There may be no other instance.
    Memory,
    /// In this file. There may be no other instance.
    File(PathBuf),
    /// In a register that voters in several nodes keep together, with an instance in each.
    Voters {
        /// The file of this node's voter.
        path: PathBuf,
        /// Whether it is to outlive the machine's power, and not its processes alone.
        is_synced: bool,
        /// Nodes with the first voters, this one included, and where each is reached.
        first: Vec<(NodeId, String)>,
    },
    /// In etcd.
    Etcd {
        /// `http://HOST:PORT`, or `https://HOST:PORT` with `tls`.
        endpoints: Vec<String>,
        /// Certificates for https.
        tls: Option<EtcdTls>,
    },
}

impl fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("its memory"),
            Self::File(path) => path.display().fmt(f),
            Self::Voters { path, .. } => write!(f, "the voter in {}", path.display()),
            Self::Etcd { endpoints, .. } => write!(f, "etcd at {}", endpoints.join(",")),
        }
    }
}

impl CoordinatorConfig {
    /// The only instance, in this node, with its state in memory.
    #[must_use]
    pub const fn embedded(expected: usize) -> Self {
        let store = StoreConfig::Memory;
        let own = InstanceConfig { expected, partitions: None, is_founded: false, store };
        Self { own: Some(own), others: Vec::new() }
    }

    /// In the node at this address.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Self {
        Self { own: None, others: vec![address.into()] }
    }
}

/// How far a node has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// It listens; the cluster may not be complete yet.
    Listening {
        /// Where, as URLs: `shm://PATH`, `unix://PATH`, and `tcp://HOST:PORT` or `tls://HOST:PORT` with the port that was taken.
        addresses: Vec<String>,
    },
    /// It has a cluster map and serves records. Comes once.
    Serving {
        /// Epoch of the map.
        epoch: Epoch,
    },
    /// All its shards take up messages. Comes every second or so, if somebody waits for it.
    Alive,
    /// These are the nodes of the cluster: comes with the first map, before [`Self::Serving`], and
    /// with each that names other ones, or others of their addresses.
    Nodes {
        /// By the cluster map.
        nodes: Vec<NodeInfo>,
    },
    /// Somebody who may has asked it to stop, which it does when this event has been dealt with.
    ShutdownAsked,
}
