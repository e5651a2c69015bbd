//! The same work in a store: a cluster of one node, started for the run.

pub mod files;
pub mod kv;
pub mod object;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use samite_client::runtime::{DEFAULT_CLUSTER, ENV_RUNTIME_DIR, RuntimeDir};
use samite_client::{Client, ClusterConfig, Dataset, Options, Transport};
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::{BackendKind, DatasetSpec};

use crate::child::failed;
use crate::child::own_executable;

const MEMORY: &str = "1G";
/// Most time to wait until the node's memory is in place, so that this work does not run beside a measurement.
const POPULATE: Duration = Duration::from_secs(20);

/// A running cluster. Taken down when dropped.
pub struct Cluster {
    samite: PathBuf,
    runtime: PathBuf,
}

impl Cluster {
    /// Starts it, with its runtime directory at `runtime`.
    pub fn start(runtime: &Path) -> Result<Self> {
        let cluster = Self { samite: own_executable()?, runtime: runtime.to_path_buf() };
        let output = cluster
            .command()
            .args(["up", "--local", "1", "--memory", MEMORY])
            .stdin(Stdio::null())
            .output()
            .map_err(failed("samite up"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(ErrorKind::Unavailable, format!("samite up: {text}")));
        }
        cluster.wait_for_memory()?;
        Ok(cluster)
    }

    /// `samite …` for this cluster.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.samite);
        command.env(ENV_RUNTIME_DIR, &self.runtime);
        command
    }

    /// A client that uses no other transport than this.
    pub fn connect(&self, transport: Transport) -> Result<Client> {
        let dir = RuntimeDir::at(&self.runtime)?.cluster(DEFAULT_CLUSTER)?;
        let mut addresses = Vec::new();
        for node in dir.read_cluster_file()?.nodes {
            match transport {
                Transport::Tcp => addresses.extend(node.tcp.map(|tcp| {
                    if tcp.starts_with("tcp://") { tcp } else { format!("tcp://{tcp}") }
                })),
                Transport::Shm | Transport::Unix => {
                    addresses.push(format!("{transport}://{}", node.socket.display()));
                }
            }
        }
        let config =
            ClusterConfig { cluster: DEFAULT_CLUSTER.to_owned(), addresses, key: dir.read_key()? };
        Client::connect(&config, Options { transport: Some(transport), ..Options::default() })
    }

    /// A dataset of this name on this backend; made when first asked for.
    pub fn dataset(
        &self,
        name: &str,
        transport: Transport,
        backend: BackendKind,
    ) -> Result<Dataset> {
        let null = if backend == BackendKind::Null { "-null" } else { "" };
        self.connect(transport)?
            .create_dataset(&DatasetSpec { backend, ..DatasetSpec::new(format!("{name}{null}")) })
    }

    fn wait_for_memory(&self) -> Result<()> {
        let client = self.connect(Transport::Unix)?;
        let until = Instant::now() + POPULATE;
        while Instant::now() < until {
            let status = client.node_status(NodeId(0))?;
            if status.populated_bytes >= status.capacity_bytes {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut down = self.command();
        let _ = down.arg("down").stdin(Stdio::null()).stdout(Stdio::null()).status();
    }
}
