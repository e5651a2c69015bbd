//! Hosts that come, go, fall silent and come back while programs on all hosts work: network, mount,
//! pid and UTS namespaces of their own on this machine.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use samite_testkit::{LAUNCHER, TestHost, TestHosts};

/// More than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn hosts(names: &[&str]) -> Option<TestHosts> {
    // `samite run` finds the library beside the binary.
    let _ = samite_testkit::preload_library();
    TestHosts::new(names, Path::new(env!("CARGO_BIN_EXE_samite")))
}

/// The arguments of a command on the cluster `trio`.
fn trio<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["--name", "trio"], args].concat()
}

/// `samite ARGS` in the host of this number, where a launcher is.
fn launch(all: &TestHosts, index: usize, args: &[&str]) -> Output {
    let mut command = all.host(index).beside("samite");
    command.args(trio(args)).args(["--launcher", LAUNCHER, "--program", "samite"]);
    command.stdin(Stdio::null()).output().unwrap()
}

/// The same, which must succeed; its standard output.
fn launched(all: &TestHosts, index: usize, args: &[&str]) -> String {
    let output = launch(all, index, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same, which must fail with this code; its standard error.
fn not_launched(all: &TestHosts, index: usize, code: i32, args: &[&str]) -> String {
    let output = launch(all, index, args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Three hosts with a node each, by the launcher of the one of number `from`.
fn up(all: &TestHosts, from: usize) {
    let said = launched(all, from, &["up", "--hosts", "a,b,c", "--mirror", "2", "--memory", "96M"]);
    assert!(said.starts_with("cluster trio: serving, 3 hosts, "), "{said}");
}

fn traces(all: &TestHosts) -> Vec<String> {
    all.iter().map(TestHost::traces).collect()
}

fn assert_traces(all: &TestHosts, before: &[String]) {
    for (host, before) in all.iter().zip(before) {
        assert_eq!(host.traces(), *before, "{}", host.name());
    }
}

/// What `samite status` says on this host.
fn status(host: &TestHost) -> serde_json::Value {
    let output = host.samite(trio(&["status", "--json"])).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Waits until it is so.
fn wait(what: &str, host: &TestHost, is_so: impl Fn(&serde_json::Value) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let status = status(host);
        if is_so(&status) {
            return;
        }
        assert!(Instant::now() < until, "{what}: {status:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Nodes that the cluster counts on, and whether all copies are whole and where they should be.
fn is_whole(status: &serde_json::Value, nodes: usize) -> bool {
    let online = status["nodes"]
        .as_array()
        .is_some_and(|all| all.iter().filter(|node| node["state"] == "online").count() == nodes);
    let groups = status["groups"].as_array();
    online
        && status["health"] == "OK"
        && groups.is_some_and(|all| {
            all.iter().all(|group| {
                ["degraded", "waiting", "moving", "resyncing"]
                    .iter()
                    .all(|name| group["health"][name] == 0)
            })
        })
}

/// Kills all processes of Samite on a host at once.
fn kill_all(host: &TestHost) {
    host.shell(
        "for each in /proc/[0-9]*; do
           grep -qs '^samite' $each/comm && kill -9 ${each#/proc/}
         done; true",
    );
}

#[test]
fn nodes_on_other_hosts_are_added_drained_and_removed() {
    let Some(all) = hosts(&["a", "b", "c", "d", "e"]) else { return };
    let (a, b, d, e) = (all.host(0), all.host(1), all.host(3), all.host(4));
    all.write_launcher(0);
    all.write_launcher(4);
    let before = traces(&all);
    up(&all, 0);
    a.ok(trio(&["run", "--", "sh", "-c", "seq 200000 > /samite/numbers"]));
    let sum = trio(&["run", "--", "sh", "-c", "cksum < /samite/numbers"]);
    let expected = a.shell("seq 200000 | cksum");
    // From a host that has no node.
    let key = a.command("cat").arg("/run/samite/trio/key").output().unwrap().stdout;
    e.write("/tmp/key", &key);
    let port = status(a)["nodes"][1]["tcp"].as_str().unwrap().to_owned();
    e.ok(["attach", &format!("tcp://{port}"), "--key-file", "/tmp/key"]);
    // What fails leaves nothing, and takes no number.
    let said = not_launched(&all, 4, 3, &["node", "add", "--host", "d,nowhere"]);
    assert!(said.contains("nothing added: host nowhere: no route to nowhere"), "{said}");
    let said = not_launched(&all, 4, 3, &["node", "add", "--host", "d,silent", "--wait", "2"]);
    assert!(said.contains("host silent: no answer in time"), "{said}");
    assert_eq!(d.traces(), before[3]);
    assert_eq!(status(a)["nodes"].as_array().unwrap().len(), 3);
    let said = not_launched(&all, 4, 5, &["node", "add"]);
    assert!(said.contains("name one by --host"), "{said}");
    let said = launched(&all, 4, &["node", "add", "--host", "d"]);
    assert!(said.starts_with("cluster trio: n3 on d (10.77.0.4:"), "{said}");
    // All know it, and it gets its share.
    for host in [a, d, e] {
        wait("whole with four", host, |status| is_whole(status, 4));
    }
    let holds = |status: &serde_json::Value| {
        status["nodes"][3]["status"]["records"].as_u64().is_some_and(|records| records > 0)
    };
    wait("its share", d, holds);
    let said = a.fails(1, trio(&["node", "remove", "3"]));
    assert!(said.contains("drain it first"), "{said}");
    for host in [a, d, e] {
        assert_eq!(host.ok(&sum), expected);
    }
    // Its numbers are known everywhere, and it is no business of other hosts to start it.
    let said = not_launched(&all, 0, 5, &["node", "restart", "3", "--host", "d"]);
    assert!(said.contains("n3 lives, on d"), "{said}");
    b.ok(trio(&["node", "drain", "3"]));
    let said = b.ok(trio(&["node", "remove", "3"]));
    assert_eq!(said, "cluster trio: n3 is gone, and has cleared d\n");
    assert_eq!(d.traces(), before[3]);
    assert_eq!(b.ok(&sum), expected);
    // Again, two, of which one is on a host with a node; and one is removed where it is.
    let said = launched(&all, 0, &["node", "add", "--host", "d,c", "--memory", "64M"]);
    assert!(said.contains("n3 on d") && said.contains("n4 on c"), "{said}");
    wait("whole with five", a, |status| is_whole(status, 5));
    d.ok(trio(&["node", "drain", "3"]));
    d.ok(trio(&["node", "remove", "3"]));
    assert_eq!(d.traces(), before[3]);
    all.host(2).ok(trio(&["node", "drain", "4"]));
    all.host(2).ok(trio(&["node", "remove", "4"]));
    wait("whole with three", all.host(2), |status| is_whole(status, 3));
    assert_eq!(all.host(2).ok(&sum), expected);
    // Of this one the other host is not told, and ends it all the same.
    launched(&all, 0, &["node", "add", "--host", "d"]);
    let said = e.ok(trio(&["down"]));
    assert!(said.starts_with("cluster trio: down, 4 nodes stopped\n"), "{said}");
    e.shell("rm /tmp/key");
    assert_traces(&all, &before);
}

#[test]
fn an_add_that_is_killed_leaves_nothing() {
    let Some(all) = hosts(&["a", "b", "c", "d"]) else { return };
    let d = all.host(3);
    all.write_launcher(0);
    let before = traces(&all);
    up(&all, 0);
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let mut command = all.host(0).beside("samite");
        command.args(trio(&["node", "add", "--host", "d,silent", "--launcher", LAUNCHER]));
        command.args(["--program", "samite"]).stdin(Stdio::null()).stderr(Stdio::null());
        let mut add = command.spawn().unwrap();
        d.shell("until test -e /run/samite/trio/key; do sleep 0.05; done");
        let pid = rustix::process::Pid::from_child(&add);
        rustix::process::kill_process(pid, signal).unwrap();
        assert!(!add.wait().unwrap().success());
        let begun = Instant::now();
        while d.traces() != before[3] {
            assert!(begun.elapsed() < PATIENCE, "{}", d.traces());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(status(all.host(0))["nodes"].as_array().unwrap().len(), 3);
    all.host(0).ok(trio(&["down"]));
    assert_traces(&all, &before);
}

#[test]
fn a_host_that_was_killed_comes_back_and_is_brought_up_to_date() {
    let Some(all) = hosts(&["a", "b", "c"]) else { return };
    let (a, b, c) = (all.host(0), all.host(1), all.host(2));
    all.write_launcher(0);
    let before = traces(&all);
    up(&all, 0);
    let write = |name: &str| {
        let script = format!("seq 50000 > /samite/{name}; cksum < /samite/{name}");
        a.ok(trio(&["run", "--", "sh", "-c", &script]))
    };
    let expected = write("first");
    // All that it had is gone with it, as after a restart of the host.
    kill_all(c);
    c.shell("rm -r /run/samite/trio");
    assert_eq!(write("second"), expected, "writes go on");
    let said = a.fails(5, trio(&["node", "restart", "2"]));
    assert!(said.contains("`samite node restart n2 --host c`"), "{said}");
    let said = launched(&all, 0, &["node", "restart", "2", "--host", "c"]);
    assert!(said.starts_with("cluster trio: n2 on c (10.77.0.3:"), "{said}");
    assert!(said.contains("is back") && !said.contains("lost"), "{said}");
    for host in [a, c] {
        wait("whole again", host, |status| is_whole(status, 3));
    }
    // One whose directory is still there, by the command there.
    kill_all(b);
    assert_eq!(write("third"), expected);
    let said = b.ok(trio(&["node", "restart", "1"]));
    assert!(said.contains("n1 is back"), "{said}");
    wait("whole once more", a, |status| is_whole(status, 3));
    // The copies that came back are right: those of the third host alone are left for some.
    kill_all(a);
    for name in ["first", "second", "third"] {
        let script = format!("cksum < /samite/{name}");
        assert_eq!(c.ok(trio(&["run", "--", "sh", "-c", &script])), expected, "{name}");
    }
    a.ok(trio(&["node", "restart", "0"]));
    wait("whole at last", b, |status| is_whole(status, 3));
    c.ok(trio(&["down"]));
    assert_traces(&all, &before);
}

/// A program that writes, reads and checks a file of its own again and again, and adds lines to one
/// of all: `$1` is its name, `$2` the number of rounds.
const WORKER: &str = "for round in $(seq $2); do
  seq $round $((round + 5000)) > /samite/own-$1 || exit 1
  want=$(seq $round $((round + 5000)) | cksum)
  test \"$(cksum < /samite/own-$1)\" = \"$want\" || { echo \"$1: round $round is wrong\"; exit 2; }
  echo \"$1 $round\" >> /samite/shared || exit 3
done";
const WORKERS_OF_HOST: u32 = 4;
const ROUNDS: u32 = 40;

fn start_workers(host: &TestHost) -> Vec<Child> {
    let start = |number: u32| {
        let name = format!("{}{number}", host.name());
        let mut command = host.samite(trio(&["run", "--", "sh", "-c", WORKER, "sh", &name]));
        command.arg(ROUNDS.to_string()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    (0..WORKERS_OF_HOST).map(start).collect()
}

#[test]
fn programs_on_three_hosts_go_on_while_hosts_fail_and_come() {
    let Some(all) = hosts(&["a", "b", "c", "d"]) else { return };
    let (a, b, c) = (all.host(0), all.host(1), all.host(2));
    all.write_launcher(0);
    a.write("/tmp/nodes", b"a\nb\nc\n");
    let before = traces(&all);
    let said =
        launched(&all, 0, &["up", "--hostfile", "/tmp/nodes", "--mirror", "2", "--memory", "96M"]);
    assert!(said.contains("3 hosts"), "{said}");
    let workers: Vec<Child> = [a, b, c].into_iter().flat_map(start_workers).collect();
    let is_at_work = "until test $(samite --name trio cat /shared 2> /dev/null | wc -l) -gt 24; do sleep 0.1; done";
    a.shell(is_at_work);
    // Cut off for longer than its lease, with the programs there; then back.
    c.shell("ip link set eth0 down");
    wait("n2 is given up", a, |status| status["nodes"][2]["state"] == "offline");
    c.shell("ip link set eth0 up");
    wait("n2 is back", a, |status| is_whole(status, 3));
    // The node of another one dies; the programs there go on.
    let pid = status(b)["nodes"][1]["pid"].as_u64().unwrap();
    b.shell(&format!("kill -9 {pid}"));
    wait("n1 is given up", a, |status| status["nodes"][1]["state"] == "offline");
    let said = launched(&all, 0, &["node", "add", "--host", "d"]);
    assert!(said.contains("n3 on d"), "{said}");
    launched(&all, 0, &["node", "restart", "1", "--host", "b"]);
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    wait("whole with four", a, |status| is_whole(status, 4));
    // All lines of all of them, once each.
    let lines = "sort /samite/shared | uniq -c | awk '$1 == 1' | wc -l; wc -l < /samite/shared";
    let count = 3 * WORKERS_OF_HOST * ROUNDS;
    let said = a.ok(trio(&["run", "--", "sh", "-c", lines]));
    assert_eq!(said, format!("{count}\n{count}\n"));
    a.ok(trio(&["down"]));
    assert_traces(&all, &before);
}
