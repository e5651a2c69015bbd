//! Which cluster a command means, and the way to it.

use std::time::Duration;

use samite_client::runtime::{
    ClusterDir, ClusterFile, ClusterSetup, DEFAULT_CLUSTER, ENV_CLUSTER, LocalProcess, NodeEntry,
    RuntimeDir,
};
use samite_client::{Client, ClusterConfig};
use samite_fs::{CallerContext, FileSystem};
use samite_types::{Error, ErrorKind};

use crate::failure::{CommandFailure, ExitCode};

/// Dataset that holds the files.
pub const FILES_DATASET: &str = "files";

/// The cluster that the command line and the environment name; it need not be up.
pub struct ClusterTarget {
    /// The user's runtime directory.
    pub runtime: RuntimeDir,
    /// The cluster's directory in it.
    pub dir: ClusterDir,
    timeout: Option<Duration>,
}

impl ClusterTarget {
    /// From the option `--name`, else the environment, else the default.
    pub fn new(name: Option<String>, timeout: Option<Duration>) -> Result<Self, CommandFailure> {
        let usage = |error: Error| CommandFailure::usage(error.message());
        let name = match name {
            Some(name) => name,
            None => match std::env::var(ENV_CLUSTER) {
                Ok(name) if !name.is_empty() => name,
                Ok(_) | Err(std::env::VarError::NotPresent) => DEFAULT_CLUSTER.to_owned(),
                Err(error) => return Err(CommandFailure::usage(format!("{ENV_CLUSTER}: {error}"))),
            },
        };
        let runtime = RuntimeDir::for_user().map_err(usage)?;
        let dir = runtime.cluster(&name).map_err(usage)?;
        Ok(Self { runtime, dir, timeout })
    }

    /// The cluster's description.
    pub fn cluster_file(&self) -> Result<ClusterFile, CommandFailure> {
        self.dir.read_cluster_file().map_err(|error| match error.kind() {
            ErrorKind::NotFound => CommandFailure::new(
                ExitCode::Unreachable,
                format!("{error}; start it with `samite up --local N --name {}`", self.dir.name()),
            ),
            _ => error.into(),
        })
    }

    /// A client of the cluster.
    pub fn connect(&self) -> Result<Client, CommandFailure> {
        let file = self.cluster_file()?;
        Ok(self.connect_with(&file.nodes, None, &file.setup)?)
    }

    /// A client that knows these nodes; `timeout` stands unless the command line gives another one.
    pub fn connect_to(
        &self,
        nodes: &[NodeEntry],
        timeout: Option<Duration>,
    ) -> samite_types::Result<Client> {
        self.connect_with(nodes, timeout, &ClusterSetup::default())
    }

    /// The same, that makes datasets by itself as this cluster was told to.
    pub fn connect_with(
        &self,
        nodes: &[NodeEntry],
        timeout: Option<Duration>,
        setup: &ClusterSetup,
    ) -> samite_types::Result<Client> {
        samite_launch::connect(&self.dir, nodes, setup, self.timeout.or(timeout))
    }

    /// The time that the command line gives each request.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The way to these nodes.
    pub fn config_of(&self, nodes: &[NodeEntry]) -> samite_types::Result<ClusterConfig> {
        samite_launch::cluster_config(&self.dir, nodes)
    }

    /// The cluster's files, as this process's user.
    pub fn files(&self) -> Result<ClusterFiles, CommandFailure> {
        let client = self.connect()?;
        let fs = FileSystem::open(&client, FILES_DATASET)?;
        Ok(ClusterFiles { fs, context: context() })
    }
}

/// The process of a node, which must run on this host.
pub fn local_process(entry: &NodeEntry) -> Result<&LocalProcess, CommandFailure> {
    entry.process.as_ref().ok_or_else(|| {
        let host = entry.host.as_deref().unwrap_or("another host");
        let words = format!("{} runs on {host}: use the command there", entry.node);
        CommandFailure::new(ExitCode::Unreachable, words)
    })
}

/// The file system of a cluster, and who asks.
pub struct ClusterFiles {
    /// The file system.
    pub fs: FileSystem,
    /// This process's user, groups and umask.
    pub context: CallerContext,
}

fn context() -> CallerContext {
    // The only way to read the umask is to set it; no other thread makes files at this point.
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    CallerContext::of_process(umask.as_raw_mode())
}
