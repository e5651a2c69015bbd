//! Hosts for tests: network, mount, pid and UTS namespaces of their own on this machine, joined by
//! veth pairs and a bridge. Each has its own `/tmp`, `/dev/shm` and `/run`, and knows the others by
//! name. Programs in them see files outside these.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use samite_client::ENV_TRANSPORT;
use samite_client::runtime::{ENV_CLUSTER, ENV_RUNTIME_DIR};

use crate::skip::{has, skip};

/// The runtime directory in each host.
const RUNTIME_DIR: &str = "/run/samite";
/// Where each host has the directory of the `samite` binary.
const BINARY_DIR: &str = "/run/bin";
/// Where each has this machine's `/proc`, which leads to the namespaces of the others.
const MACHINE_DIR: &str = "/run/machine";
/// What tells of the job that the tests may run in.
const JOB_VARIABLES: [&str; 4] =
    ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "PBS_JOBID", "PBS_NODEFILE"];
/// The launcher that [`TestHosts::write_launcher`] writes.
pub const LAUNCHER: &str = "/tmp/launch";
/// Makes the calling process the first of a host, without the file systems of programs that are
/// mounted on this machine, which it would keep in use: its arguments are the name, the directory of the
/// binary, and the lines of `/etc/hosts`.
const BEGIN: &str = "set -e
hostname \"$1\"
sed -n 's|^[^ ]* \\([^ ]*\\) fuse.*|\\1|p' /proc/mounts | while read -r each; do umount -l \"$each\"; done
mount -t tmpfs tmpfs /run
mkdir /run/bin
mkdir -m 700 /run/samite
mkdir /run/machine
mount --bind /proc /run/machine
mount -t proc proc /proc
mount --bind \"$2\" /run/bin
printf '%s' \"$3\" > /run/hosts
mount --bind /run/hosts /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
ip link set lo up
echo ready
exec sleep infinity";

/// One host.
#[derive(Debug)]
pub struct TestHost {
    name: String,
    /// `unshare`, which ends all processes of the host with itself.
    holder: Child,
    /// The host's first process.
    first: u32,
}

/// Some hosts, and the network between them; gone with everything in them when dropped.
#[derive(Debug)]
pub struct TestHosts {
    hosts: Vec<TestHost>,
    /// Holds the network namespace with the bridge.
    switch: Child,
}

impl TestHosts {
    /// Hosts of these names. `None`: this machine cannot have any, and the test of this thread is
    /// skipped.
    ///
    /// # Panics
    /// The network between them cannot be made.
    #[must_use]
    pub fn new(names: &[&str], binary: &Path) -> Option<Self> {
        if !["unshare", "nsenter", "ip"].into_iter().all(has) {
            return None;
        }
        let can = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--uts", "--fork", "mount", "-t", "tmpfs"])
            .args(["tmpfs", "/tmp"])
            .stderr(Stdio::null())
            .status();
        if !can.is_ok_and(|status| status.success()) {
            skip("namespaces");
            return None;
        }
        let lines: Vec<String> = names
            .iter()
            .enumerate()
            .map(|(index, name)| {
                format!("{} {name}\n{} {name}6\n", address(index), address_v6(index))
            })
            .collect();
        let known = format!("127.0.0.1 localhost\n::1 localhost\n{}", lines.concat());
        let mut switch = Command::new("unshare");
        switch.args([
            "--net",
            "--kill-child",
            "--fork",
            "sh",
            "-c",
            "echo ready; exec sleep infinity",
        ]);
        let (switch, bridge) = begin(switch);
        let all = Self { hosts: Vec::new(), switch };
        run(Command::new("nsenter")
            .args(in_net(bridge))
            .args(["ip", "link", "add", "br0"])
            .args(["type", "bridge"]));
        run(Command::new("nsenter").args(in_net(bridge)).args(["ip", "link", "set", "br0", "up"]));
        Some(names.iter().enumerate().fold(all, |mut all, (index, name)| {
            all.hosts.push(TestHost::begin(index, name, (binary, &known), bridge));
            all
        }))
    }

    /// The host of this number.
    #[must_use]
    pub fn host(&self, index: usize) -> &TestHost {
        &self.hosts[index]
    }

    /// Writes a launcher, [`LAUNCHER`], into the host of this number: it runs programs on the others
    /// for who is there by [`TestHost::beside`], says nothing of a host `silent`, and says "no route to NAME" of a host that is none.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn write_launcher(&self, index: usize) {
        let cases = self.hosts.iter().map(|host| format!("{}) pid={};;\n", host.name, host.first));
        let cases: String = cases.collect();
        let path = std::env::var("PATH").unwrap_or_default();
        let script = format!(
            "#!/bin/sh
name=$1; shift
case $name in
{cases}silent) cat > /dev/null; exec sleep 30;;
*) echo \"no route to $name\" >&2; exit 255;;
esac
at={MACHINE_DIR}/$pid/ns
exec nsenter --net=$at/net --mount=$at/mnt --uts=$at/uts --pid=$at/pid --wd=/ -- \\
  env PATH='{BINARY_DIR}:{path}' {ENV_RUNTIME_DIR}={RUNTIME_DIR} \"$@\"
"
        );
        self.hosts[index].write(LAUNCHER, script.as_bytes());
        self.hosts[index].shell(&format!("chmod 700 {LAUNCHER}"));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &TestHost> {
        self.hosts.iter()
    }
}

impl Drop for TestHosts {
    fn drop(&mut self) {
        let holders = self.hosts.iter_mut().map(|host| &mut host.holder);
        for child in holders.chain([&mut self.switch]) {
            // `--kill-child` ends the first process of the namespace, and the kernel all others.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl TestHost {
    fn begin(index: usize, name: &str, (binary, known): (&Path, &str), bridge: u32) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--uts", "--fork", "--kill-child"]);
        command.args(["sh", "-c", BEGIN, "sh", name]);
        command.arg(binary.parent().unwrap_or_else(|| Path::new("/"))).arg(known);
        let (holder, first) = begin(command);
        let near = format!("veth{index}");
        let pid = first.to_string();
        run(Command::new("nsenter")
            .args(in_net(bridge))
            .args(["ip", "link", "add", &near, "type", "veth", "peer", "name", "eth0"])
            .args(["netns", &pid]));
        let far = |args: &[&str]| run(Command::new("nsenter").args(in_net(first)).args(args));
        let at_bridge =
            |args: &[&str]| run(Command::new("nsenter").args(in_net(bridge)).args(args));
        at_bridge(&["ip", "link", "set", &near, "master", "br0", "up"]);
        far(&["ip", "address", "add", &format!("{}/24", address(index)), "dev", "eth0"]);
        let v6 = format!("{}/64", address_v6(index));
        far(&["ip", "-6", "address", "add", &v6, "dev", "eth0", "nodad"]);
        far(&["ip", "link", "set", "eth0", "up"]);
        Self { name: name.to_owned(), holder, first }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Pid of its first process, as this machine counts.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// The runtime directory in it.
    #[must_use]
    pub fn runtime_path(&self) -> PathBuf {
        RUNTIME_DIR.into()
    }

    /// A program in it, with `samite` in its search path and a runtime directory, ready to run.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        self.enter(program, &["--pid"])
    }

    /// The same, among the processes of this machine, from where [`LAUNCHER`] leads to the other
    /// hosts.
    #[must_use]
    pub fn beside(&self, program: &str) -> Command {
        self.enter(program, &[])
    }

    fn enter(&self, program: &str, more: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.to_string(), "--net", "--mount", "--uts"]);
        command.args(more).args(["--wd=/", "--", program]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{BINARY_DIR}:{path}"));
        command.env(ENV_RUNTIME_DIR, RUNTIME_DIR);
        for name in [ENV_CLUSTER, ENV_TRANSPORT, "LD_PRELOAD", "SAMITE_PRELOAD"] {
            command.env_remove(name);
        }
        for name in JOB_VARIABLES {
            command.env_remove(name);
        }
        command
    }

    /// `samite ARGS` in it, ready to run.
    #[must_use]
    pub fn samite(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.command("samite");
        command.args(args);
        command
    }

    /// Runs `samite ARGS` in it, which must succeed; its standard output.
    ///
    /// # Panics
    /// It fails.
    pub fn ok(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        let mut command = self.samite(args);
        let output = output_of(&mut command);
        assert!(output.status.success(), "{}: {command:?}: {}", self.name, told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `samite ARGS` in it, which must fail with this code; its standard error.
    ///
    /// # Panics
    /// It does not.
    pub fn fails(&self, code: i32, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        let mut command = self.samite(args);
        let output = output_of(&mut command);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{}: {command:?}: {}",
            self.name,
            told(&output)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Runs a shell script in it, which must succeed; its standard output.
    ///
    /// # Panics
    /// It fails.
    pub fn shell(&self, script: &str) -> String {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        let output = output_of(&mut command);
        assert!(output.status.success(), "{}: {script}: {}", self.name, told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Writes a file in it that its owner alone may read.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn write(&self, path: &str, bytes: &[u8]) {
        let mut command = self.command("sh");
        command.args(["-c", "umask 077; cat > \"$0\"", path]).stdin(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        child.stdin.take().expect("a pipe").write_all(bytes).expect("its input");
        assert!(child.wait().is_ok_and(|status| status.success()), "write {path}");
    }

    /// All that a store could leave in it: files, shared memory, mounts and processes.
    #[must_use]
    pub fn traces(&self) -> String {
        self.shell(
            "find /tmp /dev/shm /run -mindepth 1 \\( -path /run/bin -o -path /run/machine \\) -prune -o -print | sort
             grep -i 'samite\\|fuse' /proc/mounts | grep -v ' /run/bin ' | sort
             for each in /proc/[0-9]*; do
               # One that has ended and that nobody has waited for has no arguments.
               grep -qs . $each/cmdline && grep -s '^samite' $each/comm
             done; true",
        )
    }
}

fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr))
}

fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn address(index: usize) -> String {
    format!("10.77.0.{}", index + 1)
}

fn address_v6(index: usize) -> String {
    format!("fd77::{}", index + 1)
}

fn in_net(pid: u32) -> Vec<String> {
    vec!["--target".into(), pid.to_string(), "--net".into(), "--".into()]
}

fn run(command: &mut Command) {
    let output = output_of(command);
    assert!(output.status.success(), "{command:?}: {}", told(&output));
}

/// Starts `unshare`, waits until its child says that it is ready, and gives that one's pid.
fn begin(mut command: Command) -> (Child, u32) {
    // Who waits for the end of the tests' output does not wait for what holds a namespace.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut holder = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut line = String::new();
    let out = holder.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("its output");
    assert_eq!(line, "ready\n", "{command:?}");
    let children = format!("/proc/{0}/task/{0}/children", holder.id());
    let children = std::fs::read_to_string(&children).unwrap_or_else(|error| panic!("{error}"));
    let first = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
    (holder, first.expect("the pid of its child"))
}
