//! A cluster of real processes, and its access paths.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use samite_client::ClientOptions;
use samite_testkit::ProcessCluster;
use samite_types::{Error, ErrorKind, NodeId, Result};

use crate::access_path::agent::AgentPath;
use crate::whole::wait_whole;

/// Where preloaded programs see the store.
const PRELOAD_ROOT: &str = "/samite";
/// A command that takes longer hangs.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);

/// A way to the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagePath {
    /// The library in the process itself.
    Library,
    /// The preloaded library, by `samite run`.
    Preload,
    /// A mount, by `samite mount`.
    Mount,
}

impl StagePath {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Library, Self::Preload, Self::Mount];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Preload => "run",
            Self::Mount => "mount",
        }
    }
}

/// A cluster, a mount of it, and the program that makes calls for others.
pub struct AcceptanceStage {
    /// The cluster.
    pub cluster: ProcessCluster,
    helper: PathBuf,
    mount: PathBuf,
}

impl AcceptanceStage {
    /// Starts `nodes` nodes with `memory` (as of `samite up --memory`) and mounts the store. `helper` is the program
    /// `samite-acceptance`.
    ///
    /// # Errors
    /// Something does not start; its output is in the message.
    pub fn start(nodes: usize, memory: &str, helper: &Path) -> Result<Self> {
        Self::mirrored(nodes, 1, memory, helper)
    }

    /// The same, with each record on `mirror` nodes.
    ///
    /// # Errors
    /// As of [`AcceptanceStage::start`].
    pub fn mirrored(nodes: usize, mirror: u8, memory: &str, helper: &Path) -> Result<Self> {
        let mirror = mirror.to_string();
        Self::with(nodes, &["--memory", memory, "--mirror", &mirror], helper)
    }

    /// The same, with what `samite up` is told.
    ///
    /// # Errors
    /// As of [`AcceptanceStage::start`].
    pub fn with(nodes: usize, args: &[&str], helper: &Path) -> Result<Self> {
        let cluster = ProcessCluster::start(nodes, args)?;
        let mount = cluster.scratch().join("mnt");
        std::fs::create_dir(&mount)
            .map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        let stage = Self { cluster, helper: helper.into(), mount };
        stage.mount()?;
        Ok(stage)
    }

    /// Mounts the store.
    ///
    /// # Errors
    /// It failed, or took too long.
    pub fn mount(&self) -> Result<()> {
        let mount = self.mount.as_os_str();
        finish(self.cluster.command(["mount".as_ref(), mount]))
    }

    /// Ends the mount.
    ///
    /// # Errors
    /// It failed, or took too long.
    pub fn unmount(&self) -> Result<()> {
        let mount = self.mount.as_os_str();
        finish(self.cluster.command(["umount".as_ref(), mount]))
    }

    /// Where the store is mounted.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        &self.mount
    }

    /// `samite-acceptance ARGS`, with the files by `way`.
    #[must_use]
    pub fn helper(&self, way: StagePath, args: &[&str]) -> Command {
        let mut command = match way {
            StagePath::Library | StagePath::Mount => {
                let mut command = Command::new(&self.helper);
                command.env("SAMITE_RUNTIME_DIR", self.cluster.runtime_path());
                command.env_remove("SAMITE_CLUSTER");
                command
            }
            StagePath::Preload => {
                let mut command = self.cluster.command(["run", "--at", PRELOAD_ROOT, "--"]);
                command.arg(&self.helper);
                command
            }
        };
        command.args(args);
        match way {
            StagePath::Library => &mut command,
            StagePath::Preload => command.args(["--root", PRELOAD_ROOT]),
            StagePath::Mount => command.arg("--root").arg(&self.mount),
        };
        command
    }

    /// A process of its own that makes calls by `way`.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn access_path(&self, way: StagePath) -> AgentPath {
        AgentPath::start(self.helper(way, &["serve"])).expect("start an access path")
    }

    /// Starts a node again that was killed, and waits until it has everything it is to have.
    ///
    /// # Errors
    /// It does not start, or groups are not whole again.
    pub fn bring_back(&self, node: NodeId) -> Result<()> {
        finish(self.cluster.command(["node", "restart", &node.get().to_string()]))?;
        let client = self.cluster.client(ClientOptions::default())?;
        wait_whole(&client).map_err(|why| Error::new(ErrorKind::Unavailable, why))
    }

    /// Kills a node with `SIGKILL`.
    ///
    /// # Errors
    /// As of [`ProcessCluster::kill_node`].
    pub fn kill_node(&self, node: NodeId) -> Result<()> {
        self.cluster.kill_node(node)
    }
}

impl Drop for AcceptanceStage {
    fn drop(&mut self) {
        // It may be unmounted, or its daemon dead: what is still mounted then goes at once.
        if self.unmount().is_err() {
            let _ = finish({
                let mut command = Command::new("umount");
                command.arg("-l").arg(&self.mount);
                command
            });
        }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// It does not start, fails, or takes longer than a minute; then it is killed.
pub fn finish(mut command: Command) -> Result<()> {
    let what = format!("{command:?}");
    let fail = |why: String| Error::new(ErrorKind::Io, format!("{what}: {why}"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| fail(error.to_string()))?;
    let start = Instant::now();
    loop {
        match child.try_wait().map_err(|error| fail(error.to_string()))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(fail(status.to_string())),
            None if start.elapsed() > COMMAND_TIME_MAX => {
                child.kill().map_err(|error| fail(error.to_string()))?;
                return Err(fail("hangs".into()));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Ends the process with a message when it is not dropped in time: nothing may hang.
pub struct TestWatchdog(std::sync::mpsc::Sender<()>);

impl TestWatchdog {
    /// Starts it.
    #[must_use]
    pub fn new(what: &str, limit: Duration) -> Self {
        let (sender, receiver) = std::sync::mpsc::channel();
        let what = what.to_owned();
        std::thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what}: not done after {} s", limit.as_secs());
                std::process::abort();
            }
        });
        Self(sender)
    }
}

impl Drop for TestWatchdog {
    fn drop(&mut self) {
        // The other side may be gone: then it has ended.
        let _ = self.0.send(());
    }
}
