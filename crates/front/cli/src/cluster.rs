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
    is_named: bool,
}

impl ClusterTarget {
    /// From the option `--name`, else the environment, else the default.
    pub fn new(name: Option<String>, timeout: Option<Duration>) -> Result<Self, CommandFailure> {
        let usage = |error: Error| CommandFailure::usage(error.message());
        let (name, is_named) = match name {
            Some(name) => (name, true),
            None => match std::env::var(ENV_CLUSTER) {
                Ok(name) if !name.is_empty() => (name, true),
                Ok(_) | Err(std::env::VarError::NotPresent) => match job() {
                    Some(name) => (name, true),
                    None => (DEFAULT_CLUSTER.to_owned(), false),
                },
                Err(error) => return Err(CommandFailure::usage(format!("{ENV_CLUSTER}: {error}"))),
            },
        };
        let runtime = RuntimeDir::for_user().map_err(usage)?;
        let dir = runtime.cluster(&name).map_err(usage)?;
        Ok(Self { runtime, dir, timeout, is_named })
    }

    /// Whether somebody has named it.
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// The option by which a command means the cluster of this name, with a space before it; empty
    /// for the default one.
    pub fn option_for(name: &str) -> String {
        match name {
            DEFAULT_CLUSTER => String::new(),
            name => format!(" --name {name}"),
        }
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

/// The cluster's name in a job of Slurm or PBS: jobs of one user that share a host do not share
/// stores.
fn job() -> Option<String> {
    job_name(|name| std::env::var(name).ok())
}

fn job_name(env: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut ids = ["SLURM_JOB_ID", "PBS_JOBID"].into_iter().filter_map(env);
    let id = ids.find(|id| !id.is_empty())?;
    // Jobs of PBS are called `123[4].server.domain`.
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    Some(format!("job-{}", id.chars().map(plain).take(60).collect::<String>()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_names_its_cluster() {
        let env = |pairs: &'static [(&str, &str)]| {
            move |name: &str| {
                let found = pairs.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| (*value).to_owned())
            }
        };
        assert_eq!(job_name(env(&[])), None);
        assert_eq!(job_name(env(&[("SLURM_JOB_ID", "")])), None);
        assert_eq!(job_name(env(&[("SLURM_JOB_ID", "42")])).as_deref(), Some("job-42"));
        let pbs = job_name(env(&[("PBS_JOBID", "12[3].server.site")]));
        assert_eq!(pbs.as_deref(), Some("job-12-3-.server.site"));
        let runtime = RuntimeDir::at("/run/x").unwrap();
        assert!(runtime.cluster(&pbs.unwrap()).is_ok());
    }
}
