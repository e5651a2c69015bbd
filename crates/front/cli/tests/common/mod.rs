//! The real binary with a runtime directory of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A runtime directory, and what runs in it; all ended when it is dropped.
pub struct Samite {
    scratch: tempfile::TempDir,
}

impl Samite {
    /// Nothing is up yet.
    pub fn new() -> Self {
        // Short, for the sake of socket paths.
        let scratch = tempfile::Builder::new().prefix("samite-cli-").tempdir_in("/tmp").unwrap();
        Self { scratch }
    }

    /// A cluster `default` of `nodes` small nodes.
    pub fn up(nodes: u32) -> Self {
        let samite = Self::new();
        samite.ok(["up", "--local", &nodes.to_string(), "--memory", "128M"]);
        samite
    }

    /// A directory for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The runtime directory.
    pub fn runtime(&self) -> PathBuf {
        self.scratch.path().join("run")
    }

    /// `samite ARGS`, ready to run.
    pub fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.beside(env!("CARGO_BIN_EXE_samite"));
        command.args(args);
        command
    }

    /// A program in whose environment `samite` finds this runtime directory, ready to run.
    pub fn beside(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SAMITE_RUNTIME_DIR", self.runtime());
        for name in ["SAMITE_CLUSTER", "SAMITE_PRELOAD", "SAMITE_TRANSPORT", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        // The job that the tests may run in.
        for name in ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "PBS_JOBID", "PBS_NODEFILE"] {
            command.env_remove(name);
        }
        command
    }

    /// `samite run -- PROGRAM`, ready to run.
    pub fn interposed(&self, program: &str) -> Command {
        let mut command = self.command(["run", "--", program]);
        command.env("SAMITE_PRELOAD", samite_testkit::preload_library());
        command
    }

    /// Runs `samite ARGS`, which must succeed; its standard output.
    pub fn ok(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        let mut command = self.command(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `samite ARGS` with `input`; must succeed.
    pub fn ok_with(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>, input: &[u8]) {
        let mut command = self.command(args);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        assert!(child.wait().unwrap().success(), "{command:?}");
    }

    /// Runs `samite ARGS`, which must fail with `code` and say something on stderr that begins with
    /// `samite: `; returns the message.
    pub fn fails(&self, code: i32, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        let mut command = self.command(args);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
        assert!(said.starts_with("samite: "), "{command:?}: {said:?}");
        said
    }

    /// Pids of the nodes of cluster `name`, from its file.
    pub fn pids(&self, name: &str) -> Vec<u32> {
        let file = std::fs::read(self.runtime().join(name).join("cluster.json")).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let pid = |node: &serde_json::Value| u32::try_from(node["pid"].as_u64().unwrap()).unwrap();
        file["nodes"].as_array().unwrap().iter().map(pid).collect()
    }

    /// Living processes with this runtime directory on their command line.
    pub fn processes(&self) -> Vec<u32> {
        let needle = self.runtime().join("x");
        let needle = needle.parent().unwrap().to_str().unwrap().to_owned();
        let mut pids = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&needle) {
                pids.push(pid);
            }
        }
        pids
    }

    /// Nothing of any cluster is left: no process, no file, no shared memory.
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.processes(), [] as [u32; 0]);
        assert_eq!(list(&self.runtime()), [] as [&str; 0]);
        let shared: Vec<_> = list(Path::new("/dev/shm"))
            .into_iter()
            // A user's directory for mapped files outlives clusters; its contents do not matter
            // here.
            .filter(|name| name.contains("samite") && !is_for_mappings(name))
            .collect();
        assert_eq!(shared, [] as [&str; 0]);
    }
}

impl Drop for Samite {
    fn drop(&mut self) {
        let _: std::io::Result<Output> =
            self.command(["down", "--all", "--force", "--quiet"]).output();
    }
}

/// Whether `/dev/shm/NAME` is where a user's processes map files of the store.
fn is_for_mappings(name: &str) -> bool {
    name.strip_prefix("samite-").is_some_and(|uid| uid.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Names in a directory.
pub fn list(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Kills with SIGKILL and waits until it serves no more.
pub fn kill(pid: u32) {
    let status = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(status.success());
    for _ in 0..1000 {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.is_empty() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{pid} does not end");
}
