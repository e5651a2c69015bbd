//! Runs the same program in a plain directory and, under the preload library, in the store, and compares.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use samite_testkit::preload_library as library;
use samite_testkit::{LocalCluster, LocalOptions};

/// A program that takes longer hangs.
const SECONDS_MAX: &str = "120";
/// Where the store appears.
pub const MOUNT: &str = "/samite";
const MEMORY_BYTES: u64 = 256 << 20;

/// Builds the program `name` of `tests/c` into `room`.
pub fn build(name: &str, room: &Path) -> PathBuf {
    let program = room.join(name);
    let source = format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let built =
        Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source).output();
    let built = built.expect("run cc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

/// A cluster, and a plain directory beside it.
pub struct Stage {
    cluster: LocalCluster,
    plain: tempfile::TempDir,
}

impl Stage {
    pub fn new(nodes: usize) -> Self {
        let options = LocalOptions { memory_bytes: MEMORY_BYTES, ..LocalOptions::default() };
        Self {
            cluster: LocalCluster::start(nodes, options).expect("start a cluster"),
            plain: tempfile::tempdir().expect("temporary directory"),
        }
    }

    /// A command that sees the store.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.arg("-k1").arg(SECONDS_MAX).arg(program);
        command
            .env("LD_PRELOAD", library())
            .env("SAMITE_MOUNT", MOUNT)
            .env("SAMITE_CLUSTER", self.cluster.name())
            .env("SAMITE_RUNTIME_DIR", self.cluster.runtime_path());
        settle(&mut command);
        command
    }

    fn plain_command(program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.arg("-k1").arg(SECONDS_MAX).arg(program);
        settle(&mut command);
        command
    }

    /// Runs `script` with `bash`, with the store's root in `$D`.
    pub fn run(&self, script: &str) -> Output {
        let mut command = self.command("bash");
        command.args(["-c", script]).env("D", MOUNT).output().expect("run bash")
    }

    /// Runs `script` both ways; output and exit code must be the same.
    pub fn compare(&self, script: &str) {
        let plain_dir = self.plain.path().to_str().expect("path");
        let mut plain = Self::plain_command("bash");
        let plain = plain.args(["-c", script]).env("D", plain_dir).output().expect("run bash");
        let store = self.run(script);
        assert_same(script, &told(&plain, plain_dir), &told(&store, MOUNT));
    }

    /// Runs a Python program both ways, with the directory as its first argument.
    pub fn compare_python(&self, program: &str) {
        let plain_dir = self.plain.path().to_str().expect("path");
        let mut plain = Self::plain_command("python3");
        let plain = plain.args(["-c", program, plain_dir]).output().expect("run python3");
        let store = self.command("python3").args(["-c", program, MOUNT]).output();
        assert_same(program, &told(&plain, plain_dir), &told(&store.expect("run python3"), MOUNT));
    }

    pub fn cluster(&mut self) -> &mut LocalCluster {
        &mut self.cluster
    }
}

fn settle(command: &mut Command) {
    command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC").stdin(Stdio::null()).current_dir("/");
}

/// Everything that a program told, with its directory called `D`.
fn told(output: &Output, dir: &str) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(dir, "D");
    format!("{}\n-- stderr\n{}\n-- {}\n", text(&output.stdout), text(&output.stderr), output.status)
}

fn assert_same(what: &str, plain: &str, store: &str) {
    if plain == store {
        return;
    }
    let (mut plain_lines, mut store_lines) = (plain.lines(), store.lines());
    let mut number = 0;
    loop {
        number += 1;
        let pair = (plain_lines.next(), store_lines.next());
        if pair.0 != pair.1 || pair == (None, None) {
            panic!(
                "differs in line {number}:\nplain: {:?}\nstore: {:?}\n{what}\n-- store said\n{store}",
                pair.0, pair.1
            );
        }
    }
}
