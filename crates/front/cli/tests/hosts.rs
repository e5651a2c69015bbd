//! Nodes on several hosts: network, mount, pid and UTS namespaces of their own on this machine.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use samite_testkit::{LAUNCHER, TestHost, TestHosts};

/// More than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn hosts(names: &[&str]) -> Option<TestHosts> {
    // `samite run` finds the library beside the binary.
    let _ = samite_testkit::preload_library();
    TestHosts::new(names, Path::new(env!("CARGO_BIN_EXE_samite")))
}

/// A program in a host; ended when dropped.
struct HostProcess(Child);

impl HostProcess {
    fn start(host: &TestHost, args: &[&str]) -> Self {
        let mut command = host.samite(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Reads its standard error until a line holds all of these words; that line.
    fn says(&mut self, words: &[&str]) -> String {
        let mut lines = BufReader::new(self.0.stderr.as_mut().unwrap()).lines();
        let found = lines.find_map(|line| {
            let line = line.unwrap();
            words.iter().all(|word| line.contains(word)).then_some(line)
        });
        found.unwrap_or_else(|| panic!("it never says {words:?}"))
    }

    /// Waits for its orderly end.
    fn ends(mut self) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut said = String::new();
        let _ = self.0.kill();
        let _ = self.0.stderr.take().unwrap().read_to_string(&mut said);
        panic!("it does not end: {said}");
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The arguments of a command on the cluster `pair`.
fn pair<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["--name", "pair"], args].concat()
}

/// Connections at a node, by metric and transport.
fn links(status: &serde_json::Value, node: usize, metric: &str) -> Vec<(String, u64)> {
    let samples = status["nodes"][node]["metrics"].as_array().unwrap();
    let of = samples.iter().filter(|sample| sample["name"] == metric);
    of.map(|sample| {
        let transport = sample["labels"]["transport"].as_str().unwrap().to_owned();
        (transport, sample["value"].as_u64().unwrap())
    })
    .collect()
}

/// All links of this kind at the node go by `transport`, and there are some.
fn assert_all_by(transport: &str, links: &[(String, u64)]) {
    for (by, count) in links {
        assert_eq!(*count > 0, by == transport, "{links:?}");
    }
}

const KEY: [u8; 32] = *b"a key for hosts in namespaces ..";

/// The arguments of a node of two, with the only coordinator on `a`.
fn node_of_two<'a>(number: &'a str, listen: &'a str) -> Vec<&'a str> {
    let rest = "--nodes 2 --memory 64M --coordinator tcp://a:7001 --key-file /tmp/key";
    let own = ["node", "--node", number, "--listen", listen];
    pair(&[&own[..], &rest.split(' ').collect::<Vec<_>>()].concat())
}

#[test]
fn two_hosts_by_hand_are_one_store_for_three() {
    let Some(all) = hosts(&["a", "b", "c"]) else { return };
    let (a, b, c) = (all.host(0), all.host(1), all.host(2));
    let before: Vec<String> = all.iter().map(TestHost::traces).collect();
    for host in all.iter() {
        host.write("/tmp/key", &KEY);
    }
    let with_key: Vec<String> = all.iter().map(TestHost::traces).collect();
    // Each says what it waits for.
    let mut second = HostProcess::start(b, &node_of_two("1", "b:7001"));
    second.says(&["n1: no coordinator answers at tcp://a:7001", "tries"]);
    let mut first = HostProcess::start(a, &node_of_two("0", "a"));
    first.says(&["serving"]);
    second.says(&["serving"]);
    // On each host the commands know the whole.
    for host in [a, b] {
        host.shell("export SAMITE_CLUSTER=pair; until samite status; do sleep 0.1; done");
    }
    a.ok(pair(&["kv", "put", "color", "red"]));
    assert_eq!(b.ok(pair(&["kv", "get", "color"])), "red");
    a.ok(pair(&["run", "--", "sh", "-c", "seq 100000 > /samite/numbers"]));
    let sum = pair(&["run", "--", "sh", "-c", "cksum < /samite/numbers"]);
    let expected = a.shell("seq 100000 | cksum");
    assert_eq!(b.ok(&sum), expected);
    // A third host.
    let said = c.ok(["attach", "tcp://b:1,tcp://b:7001", "--key-file", "/tmp/key"]);
    assert!(said.starts_with("cluster pair: 2 nodes on a, b\n"), "{said}");
    assert_eq!(c.ok(&sum), expected);
    assert_eq!(c.ok(pair(&["kv", "get", "color"])), "red");
    assert!(c.ok(pair(&["status"])).contains(" on b\n"));
    // Links between hosts: of the nodes, and of a program on a that uses both.
    let held = "exec 7< /samite/numbers; echo open; read line";
    let mut holder = a.samite(pair(&["run", "--", "sh", "-c", held]));
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut open = [0; 5];
    holder.stdout.as_mut().unwrap().read_exact(&mut open).unwrap();
    let of = |host| {
        let output = TestHost::samite(host, pair(&["status", "--json"])).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let seen = of(c);
    assert_all_by("tcp", &links(&seen, 0, "samite_node_links"));
    assert_all_by("tcp", &links(&of(a), 1, "samite_client_links"));
    // It is in the way of an end, from any host.
    for host in [b, c] {
        let said = host.fails(5, pair(&["down"]));
        assert!(said.contains("cluster pair: 1 other program is connected"), "{said}");
    }
    drop(holder.stdin.take());
    holder.wait().unwrap();
    c.ok(pair(&["detach"]));
    assert_eq!(c.traces(), with_key[2], "detached");
    // From one host, for all.
    b.ok(pair(&["down"]));
    first.ends();
    second.ends();
    for (host, before) in all.iter().zip(&before) {
        host.shell("rm /tmp/key");
        assert_eq!(host.traces(), *before, "{}", host.name());
    }
}

/// `samite up --hosts HOSTS` in the host of this number, by the launcher there.
fn up(all: &TestHosts, index: usize, hosts: &str, more: &[&str]) -> std::process::Output {
    let mut command = all.host(index).beside("samite");
    command.args(["up", "--hosts", hosts, "--launcher", LAUNCHER, "--program", "samite"]);
    command.args(["--memory", "64M", "--name", "pair"]).args(more).stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn up_starts_nodes_on_hosts_and_down_leaves_nothing_on_any() {
    let Some(all) = hosts(&["a", "b", "c", "d"]) else { return };
    all.write_launcher(3);
    let before: Vec<String> = all.iter().map(TestHost::traces).collect();
    let (a, b, d) = (all.host(0), all.host(1), all.host(3));
    let up = up(&all, 3, "a,b,c", &["--mirror", "2"]);
    let said = String::from_utf8_lossy(&up.stdout).into_owned();
    assert!(up.status.success(), "{up:?}");
    assert!(said.starts_with("cluster pair: serving, 3 hosts, "), "{said}");
    assert!(said.contains("\n  n1  on b  "), "{said}");
    // From the host that started it, and from one that has a node.
    d.ok(pair(&["run", "--", "sh", "-c", "seq 1000 > /samite/numbers"]));
    let sum = ["run", "--", "sh", "-c", "cksum < /samite/numbers"];
    assert_eq!(b.ok(pair(&sum)), d.shell("seq 1000 | cksum"));
    assert!(a.ok(pair(&["status"])).starts_with("OK\n"));
    let output = d.samite(pair(&["status", "--json"])).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for node in 0..3 {
        assert_all_by("tcp", &links(&status, node, "samite_node_links"));
    }
    b.ok(pair(&["down"]));
    d.ok(pair(&["detach"]));
    for (host, before) in all.iter().zip(&before) {
        assert_eq!(host.traces(), *before, "{}", host.name());
    }
}

#[test]
fn a_host_that_is_cut_off_has_not_ended() {
    let Some(all) = hosts(&["a", "b", "c"]) else { return };
    all.write_launcher(0);
    let before: Vec<String> = all.iter().map(TestHost::traces).collect();
    let up = up(&all, 0, "a,b,c", &["--mirror", "2"]);
    assert!(up.status.success(), "{up:?}");
    let (a, c) = (all.host(0), all.host(2));
    c.shell("ip link set eth0 down");
    let said = a.fails(3, pair(&["down"]));
    assert!(said.contains("2 nodes stopped, and not all: n2 on c does not answer"), "{said}");
    let said = a.fails(3, pair(&["down"]));
    assert!(said.contains("0 nodes stopped, and not all: n2 on c"), "{said}");
    c.shell("ip link set eth0 up");
    assert_eq!(a.ok(pair(&["down"])), "cluster pair: down, 1 node stopped\n");
    for (host, before) in all.iter().zip(&before) {
        assert_eq!(host.traces(), *before, "{}", host.name());
    }
}

#[test]
fn a_host_that_fails_is_named_and_nothing_is_left() {
    if !samite_testkit::has("python3") {
        return;
    }
    let Some(all) = hosts(&["a", "b"]) else { return };
    all.write_launcher(0);
    let before: Vec<String> = all.iter().map(TestHost::traces).collect();
    let unchanged = || {
        for (host, before) in all.iter().zip(&before) {
            assert_eq!(host.traces(), *before, "{}", host.name());
        }
    };
    let failed = |output: std::process::Output, code| {
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = failed(up(&all, 0, "a,b,nowhere", &[]), 3);
    let words = "samite: cluster pair: not started: host nowhere: no route to nowhere (exit ";
    assert!(said.starts_with(words), "{said}");
    unchanged();
    // A port that is in use there.
    let mut taken = all.host(1).command("python3");
    let script = "import socket; s=socket.create_server(('', 7001)); print(flush=True); import sys; sys.stdin.read()";
    let mut taken =
        taken.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    taken.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let said = failed(up(&all, 0, "a,b", &["--listen", ":7001"]), 3);
    assert!(said.contains("host b: ") && said.contains("in use"), "{said}");
    unchanged();
    drop(taken.stdin.take());
    taken.wait().unwrap();
    // One host less.
    let up = up(&all, 0, "nowhere,a,b", &["--at-least", "2", "--listen", ":7001"]);
    let warned = String::from_utf8_lossy(&up.stderr).into_owned();
    assert!(up.status.success() && warned.contains("left out: host nowhere: "), "{up:?}");
    let said = String::from_utf8_lossy(&up.stdout).into_owned();
    assert!(said.contains("  tcp://10.77.0.2:7001\n"), "{said}");
    assert!(said.contains("nothing is mirrored"), "{said}");
    all.host(1).ok(pair(&["down"]));
    unchanged();
}

#[test]
fn tls_and_ipv6_by_hand() {
    let Some(all) = hosts(&["a", "b", "c"]) else { return };
    let (a, b, c) = (all.host(0), all.host(1), all.host(2));
    for host in all.iter() {
        host.write("/tmp/key", &KEY);
    }
    let coordinator = ["--coordinator", "tls://[fd77::1]:7001", "--key-file", "/tmp/key"];
    let node = |own: &[&'static str]| {
        let nodes = ["node", "--nodes", "2", "--memory", "64M", "--name", "pair", "--mirror", "2"];
        [&nodes[..], &coordinator, own].concat()
    };
    let mut first = HostProcess::start(a, &node(&["--node", "0"]));
    // Two addresses; others try them in turn.
    let listen = ["--node", "1", "--listen", "[fd77::2]:7002", "--listen", "b:7003"];
    let mut second = HostProcess::start(b, &node(&listen));
    first.says(&["serving"]);
    second.says(&["serving"]);
    let said = c.fails(1, ["attach", "tcp://b:7003", "--key-file", "/tmp/key"]);
    assert!(said.contains("TLS"), "{said}");
    c.write("/tmp/other", &[1; 32]);
    c.fails(3, ["attach", "tls://b:7003", "--key-file", "/tmp/other"]);
    c.shell("chmod 644 /tmp/other");
    let said = c.fails(2, ["attach", "tls://b:7003", "--key-file", "/tmp/other"]);
    assert!(said.contains("`chmod 600 /tmp/other`"), "{said}");
    c.ok(["attach", "tls://b:7003", "--key-file", "/tmp/key"]);
    // What commands make by themselves is mirrored, as the nodes were told.
    c.ok(pair(&["kv", "put", "color", "red"]));
    let listed = c.ok(pair(&["dataset", "list", "--json"]));
    assert!(listed.contains("\"mirror\":2"), "{listed}");
    b.shell("ip address del 10.77.0.2/24 dev eth0");
    assert_eq!(c.ok(pair(&["kv", "get", "color"])), "red", "by the other address");
    let output = c.samite(pair(&["status", "--json"])).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_all_by("tls", &links(&status, 0, "samite_node_links"));
    assert_all_by("tls", &links(&status, 1, "samite_client_links"));
    c.ok(pair(&["down"]));
    first.ends();
    second.ends();
}

#[test]
fn however_up_ends_nothing_is_left() {
    let Some(all) = hosts(&["a", "b"]) else { return };
    all.write_launcher(0);
    let before: Vec<String> = all.iter().map(TestHost::traces).collect();
    let output = up(&all, 0, "a,silent,b", &["--wait", "1"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("host silent: no answer in time"), "{said}");
    assert!(said.contains("perhaps something is left on silent"), "{said}");
    for (host, before) in all.iter().zip(&before) {
        assert_eq!(host.traces(), *before, "{}", host.name());
    }
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let mut command = all.host(0).beside("samite");
        command.args(["up", "--hosts", "b,silent", "--launcher", LAUNCHER, "--program", "samite"]);
        let mut up = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        all.host(1).shell("until test -e /run/samite/default/key; do sleep 0.05; done");
        let pid = rustix::process::Pid::from_child(&up);
        rustix::process::kill_process(pid, signal).unwrap();
        assert!(!up.wait().unwrap().success());
        let begun = Instant::now();
        while all.host(1).traces() != before[1] {
            assert!(begun.elapsed() < PATIENCE, "{}", all.host(1).traces());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn mounts_of_other_hosts_are_in_the_way_of_an_end_and_go_by_force() {
    if !samite_testkit::has_fuse() {
        return;
    }
    let Some(all) = hosts(&["a", "b"]) else { return };
    let (a, b) = (all.host(0), all.host(1));
    all.write_launcher(1);
    a.shell("mkdir /tmp/store");
    let before: Vec<String> = all.iter().map(TestHost::traces).collect();
    let up = up(&all, 1, "a,b", &[]);
    assert!(up.status.success(), "{up:?}");
    a.ok(pair(&["mount", "/tmp/store"]));
    a.shell("echo red > /tmp/store/color");
    assert_eq!(b.ok(pair(&["cat", "/color"])), "red\n");
    let said = b.fails(5, pair(&["down"]));
    assert!(said.contains("1 other program is connected"), "{said}");
    assert_eq!(a.shell("cat /tmp/store/color"), "red\n", "it goes on");
    b.ok(pair(&["down", "--force"]));
    for (host, before) in all.iter().zip(&before) {
        assert_eq!(host.traces(), *before, "{}", host.name());
    }
}

/// Stands in for Slurm, which no test machine has: hosts `a` and `b`, and `srun` that ends what it
/// has started when that returns.
const SCONTROL: &str = "#!/bin/sh
test \"$*\" = 'show hostnames [a-b]' && printf 'a\\nb\\n'";
const SRUN: &str = "#!/bin/sh
while :; do case $1 in --nodelist=*) host=${1#*=}; shift;; --*) shift;; *) break;; esac; done
/tmp/launch \"$host\" \"$@\"
/tmp/launch \"$host\" sh -c 'for each in /proc/[0-9]*/comm; do
  grep -qs ^samite $each && kill -9 $(echo $each | tr -dc 0-9); done'";

#[test]
fn a_job_of_slurm_has_its_hosts_and_its_name() {
    let Some(all) = hosts(&["a", "b", "c"]) else { return };
    let c = all.host(2);
    all.write_launcher(2);
    c.write("/tmp/slurm-scontrol", SCONTROL.as_bytes());
    c.write("/tmp/slurm-srun", SRUN.as_bytes());
    c.shell("mkdir /tmp/slurm; for each in srun scontrol; do mv /tmp/slurm-$each /tmp/slurm/$each; done; chmod 700 /tmp/slurm/*");
    let before: Vec<String> = all.iter().map(TestHost::traces).collect();
    let in_job = |args: &[&str]| {
        let mut command = c.beside("sh");
        let script = "PATH=/tmp/slurm:$PATH; exec samite \"$@\"";
        command.args(["-c", script, "sh"]).args(args).stdin(Stdio::null());
        command.env("SLURM_JOB_ID", "42").env("SLURM_JOB_NODELIST", "[a-b]");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = in_job(&["up", "--memory", "64M", "--program", "samite"]);
    assert!(said.starts_with("cluster job-42: serving, 2 hosts, "), "{said}");
    in_job(&["kv", "put", "color", "red"]);
    assert_eq!(all.host(0).ok(["kv", "get", "color", "--name", "job-42"]), "red");
    assert_eq!(in_job(&["down"]), "cluster job-42: down, 2 nodes stopped\n");
    for (host, before) in all.iter().zip(&before) {
        assert_eq!(host.traces(), *before, "{}", host.name());
    }
}
