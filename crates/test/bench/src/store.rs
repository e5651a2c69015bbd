//! The same work in a store: a cluster of one node, or of two, started for the run.

pub mod files;
pub mod kv;
pub mod object;
pub mod resync;
pub mod scan;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use samite_client::runtime::{DEFAULT_CLUSTER, ENV_RUNTIME_DIR, RuntimeDir};
use samite_client::{Client, ClientOptions, ClusterConfig, Dataset, TransportKind};
use samite_types::{Error, ErrorKind, NodeId, Redundancy, Result};
use samite_wire::control::{BackendSpec, DatasetSpec, DurabilityKind, NULL_BACKEND};

use crate::child::failed;
use crate::child::own_executable;

/// Where records lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordHost {
    /// On the one node of a cluster.
    One,
    /// On the one node of a cluster with TLS.
    OneTls,
    /// On one of two nodes.
    OneOfTwo,
    /// On both of two nodes.
    Both,
    /// On the one node of a cluster, and on its disk.
    Durable,
}

impl RecordHost {
    const fn redundancy(self) -> Redundancy {
        match self {
            Self::One | Self::OneTls | Self::OneOfTwo | Self::Durable => Redundancy(1),
            Self::Both => Redundancy(2),
        }
    }

    const fn durability(self) -> DurabilityKind {
        match self {
            Self::Durable => DurabilityKind::Logged,
            _ => DurabilityKind::Memory,
        }
    }
}

const MEMORY: &str = "1G";
/// `samite up …` of a store of two nodes that mirror each other, unless a dataset says otherwise.
pub const MIRRORED: &[&str] = &["--mirror", "2"];
/// Most time to wait until the node's memory is in place, so that this work does not run beside a measurement.
const POPULATE: Duration = Duration::from_secs(20);

/// A running cluster. Taken down when dropped.
pub struct BenchCluster {
    samite: PathBuf,
    runtime: PathBuf,
}

impl BenchCluster {
    /// Starts it with `nodes` nodes, and its runtime directory at `runtime`. `extra` goes behind `samite up …`.
    pub fn start(runtime: &Path, nodes: u32, extra: &[&str]) -> Result<Self> {
        let cluster = Self { samite: own_executable()?, runtime: runtime.to_path_buf() };
        let output = cluster
            .command()
            .args(["up", "--local", &nodes.to_string(), "--memory", MEMORY])
            .args(extra)
            .stdin(Stdio::null())
            .output()
            .map_err(failed("samite up"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(ErrorKind::Unavailable, format!("samite up: {text}")));
        }
        cluster.wait_for_memory(nodes)?;
        Ok(cluster)
    }

    /// `samite …` for this cluster.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.samite);
        command.env(ENV_RUNTIME_DIR, &self.runtime);
        command
    }

    /// A client that uses no other transport than this.
    pub fn connect(&self, transport: TransportKind) -> Result<Client> {
        let dir = RuntimeDir::at(&self.runtime)?.cluster(DEFAULT_CLUSTER)?;
        let mut addresses = Vec::new();
        for node in dir.read_cluster_file()?.nodes {
            match transport {
                TransportKind::Tcp | TransportKind::Tls => addresses.extend(node.network_address()),
                TransportKind::Shm | TransportKind::Unix => {
                    let scheme = format!("{transport}://");
                    addresses.extend(node.addresses().filter(|url| url.starts_with(&scheme)));
                }
            }
        }
        let config = ClusterConfig {
            cluster: DEFAULT_CLUSTER.to_owned(),
            addresses,
            credential: dir.read_credential()?,
            home: Some(dir.clone()),
        };
        Client::connect(
            &config,
            ClientOptions { transport: Some(transport), ..ClientOptions::default() },
        )
    }

    /// A dataset of this name on this backend; made when first asked for.
    pub fn dataset(
        &self,
        name: &str,
        transport: TransportKind,
        backend: &str,
        host: RecordHost,
    ) -> Result<Dataset> {
        let null = if backend == NULL_BACKEND { "-null" } else { "" };
        let both = if host == RecordHost::Both { "-both" } else { "" };
        self.connect(transport)?.create_dataset(&DatasetSpec {
            backend: BackendSpec::named(backend),
            redundancy: host.redundancy(),
            durability: host.durability(),
            ..DatasetSpec::new(format!("{name}{null}{both}"))
        })
    }

    fn wait_for_memory(&self, nodes: u32) -> Result<()> {
        let client = self.connect(TransportKind::Unix)?;
        let until = Instant::now() + POPULATE;
        for node in (0..nodes).map(NodeId) {
            while Instant::now() < until {
                let status = client.node_status(node)?;
                if status.populated_bytes >= status.capacity_bytes {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

impl Drop for BenchCluster {
    fn drop(&mut self) {
        let mut down = self.command();
        let _ = down.args(["down", "--force"]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    }
}
