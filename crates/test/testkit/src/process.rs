//! A cluster of real processes, for black-box tests.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use samite_client::runtime::{
    ClusterFile, DEFAULT_CLUSTER, ENV_CLUSTER, ENV_RUNTIME_DIR, NodeEntry, RuntimeDir,
};
use samite_client::{Client, ClientOptions, ClusterConfig};
use samite_types::{Error, ErrorKind, NodeId, Result};

/// Names the binary to test.
pub const ENV_BINARY: &str = "SAMITE_BIN";

/// Path of the `samite` binary: the one that [`ENV_BINARY`] names, or one in the target directory from which the test itself runs.
/// None when it was not built.
#[must_use]
pub fn samite_binary() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(ENV_BINARY).filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    // The test is target/<profile>/deps/<test>; its own profile first.
    let test = std::env::current_exe().ok()?;
    let profile = test.parent()?.parent()?;
    let places = [profile.join("samite"), profile.parent()?.join("release/samite")];
    places.into_iter().find(|path| path.is_file())
}

/// A cluster started by `samite up --local N`. Taken down when dropped.
pub struct ProcessCluster {
    binary: PathBuf,
    scratch: tempfile::TempDir,
    is_down: bool,
}

impl ProcessCluster {
    /// Starts it. `up_args` go behind `samite up --local NODES`.
    ///
    /// # Errors
    /// There is no binary, or `up` failed; its output is in the message.
    pub fn start(nodes: usize, up_args: &[&str]) -> Result<Self> {
        let binary = samite_binary().ok_or_else(|| {
            let hint = format!("no samite binary: build it, or set {ENV_BINARY}");
            Error::new(ErrorKind::NotFound, hint)
        })?;
        let scratch = tempfile::Builder::new().prefix("samite-test-").tempdir_in("/tmp");
        let scratch = scratch
            .map_err(|error| Error::new(ErrorKind::Io, format!("temporary directory: {error}")))?;
        // Not up yet: what is wrong then is told by `up`.
        let mut cluster = Self { binary, scratch, is_down: true };
        let count = nodes.to_string();
        let mut args = vec!["up", "--local", &count];
        args.extend_from_slice(up_args);
        cluster.run(args).inspect_err(|_| {
            let _ = cluster.run(["down", "--force"]);
        })?;
        cluster.is_down = false;
        Ok(cluster)
    }

    /// The value of `SAMITE_RUNTIME_DIR` that leads to this cluster.
    #[must_use]
    pub fn runtime_path(&self) -> PathBuf {
        self.scratch.path().join("run")
    }

    /// A directory for the test's own files, gone with the cluster.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// `samite ARGS` on this cluster, ready to run.
    #[must_use]
    pub fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(args);
        command.env(ENV_RUNTIME_DIR, self.runtime_path()).env_remove(ENV_CLUSTER);
        // In a job its name would be the cluster's.
        command.env_remove("SLURM_JOB_ID").env_remove("PBS_JOBID");
        command
    }

    /// Runs `samite ARGS` to its end.
    ///
    /// # Errors
    /// It could not start, or ended with a failure; what it wrote is in the message.
    pub fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Output> {
        let mut command = self.command(args);
        let what = format!("{command:?}");
        let output = command
            .output()
            .map_err(|error| Error::new(ErrorKind::Io, format!("{what}: {error}")))?;
        if output.status.success() {
            return Ok(output);
        }
        let wrote = String::from_utf8_lossy(&output.stderr);
        Err(Error::new(ErrorKind::Io, format!("{what}: {}: {wrote}", output.status)))
    }

    /// The cluster's file.
    ///
    /// # Errors
    /// It is not up.
    pub fn file(&self) -> Result<ClusterFile> {
        RuntimeDir::at(self.runtime_path())?.cluster(DEFAULT_CLUSTER)?.read_cluster_file()
    }

    /// Configuration with which a client reaches the cluster.
    ///
    /// # Errors
    /// It is not up.
    pub fn config(&self) -> Result<ClusterConfig> {
        let dir = RuntimeDir::at(self.runtime_path())?.cluster(DEFAULT_CLUSTER)?;
        let file = dir.read_cluster_file()?;
        let addresses = file.nodes.iter().flat_map(NodeEntry::addresses);
        Ok(ClusterConfig {
            cluster: file.cluster.clone(),
            addresses: addresses.collect(),
            credential: dir.read_credential()?,
            home: Some(dir.clone()),
        })
    }

    /// A client of the cluster.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn client(&self, options: ClientOptions) -> Result<Client> {
        Client::connect(&self.config()?, options)
    }

    /// The test has taken the cluster down itself.
    pub fn end(mut self) {
        self.is_down = true;
    }

    /// Sends a node a signal; returns its process id.
    ///
    /// # Errors
    /// There is no such node, or it cannot be sent one.
    pub fn signal_node(&self, node: NodeId, signal: rustix::process::Signal) -> Result<u32> {
        let file = self.file()?;
        let entry = file.nodes.iter().find(|entry| entry.node == node).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("signal {node}: no such node"))
        })?;
        let elsewhere = || Error::new(ErrorKind::NotFound, format!("{node} is not here"));
        let number = entry.pid().ok_or_else(elsewhere)?;
        let what = format!("signal {node} (pid {number})");
        let pid = i32::try_from(number)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("{what}: not a pid")))?;
        rustix::process::kill_process(pid, signal).map_err(|errno| Error::io(&what, errno))?;
        Ok(number)
    }

    /// Kills a node with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    /// There is no such node, or it could not be killed.
    pub fn kill_node(&self, node: NodeId) -> Result<()> {
        let pid = self.signal_node(node, rustix::process::Signal::KILL)?;
        let start = Instant::now();
        // A killed child of nobody is reaped by init; until then it is a zombie, which serves nobody.
        while is_running(pid) {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!("kill {node} (pid {pid}): still there"),
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for ProcessCluster {
    fn drop(&mut self) {
        if self.is_down {
            return;
        }
        if let Err(error) = self.run(["down", "--force"])
            && !std::thread::panicking()
        {
            panic!("taking the cluster down: {error}");
        }
    }
}

/// Whether the process exists and is no zombie.
fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    !matches!(state, Some("Z" | "X") | None)
}
