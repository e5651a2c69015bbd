//! What administrators look at: events, logs, and what a service manager hears.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Samite;
use serde_json::Value;

/// Waits until `is_so`, for a minute at most.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn kinds(samite: &Samite) -> Vec<String> {
    let said = samite.ok(["events", "--json"]);
    let kind = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        event["kind"].as_str().unwrap().to_owned()
    };
    said.lines().map(kind).collect()
}

#[test]
fn a_death_is_told_by_events_and_a_command_hears_of_each() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "3", "--memory", "64M", "--mirror", "2"]);
    samite.ok(["kv", "put", "key", "value"]);
    let heard = samite.scratch().join("heard");
    let exec = format!("cat >> {}", heard.display());
    let mut follower = samite.command(["events", "--follow", "--new", "--exec", &exec]);
    let mut follower = follower.stdout(Stdio::null()).spawn().unwrap();
    samite.ok(["fault", "kill", "2"]);
    wait_until("the failover is told", || kinds(&samite).contains(&"failover".to_owned()));
    samite.ok(["node", "restart", "2"]);
    wait_until("the resync is told", || kinds(&samite).contains(&"resync-done".to_owned()));
    let kinds = kinds(&samite);
    assert_eq!(kinds[..3], ["node-joined"; 3].map(str::to_owned), "{kinds:?}");
    let place = |kind: &str| kinds.iter().position(|one| one == kind).unwrap();
    assert!(place("node-offline") < place("node-online"), "{kinds:?}");
    let text = samite.ok(["events"]);
    assert!(text.contains("node-offline   n2 is offline\n"), "{text}");
    wait_until("the command has heard the last", || {
        std::fs::read_to_string(&heard).unwrap_or_default().contains("resync-done")
    });
    follower.kill().unwrap();
    follower.wait().unwrap();
    let heard = std::fs::read_to_string(&heard).unwrap();
    assert!(heard.contains("\"words\":\"n2 is offline\""), "{heard}");
    let refused = samite.command(["events", "--exec", "cat > /dev/null; exit 3"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.success() && said.contains("exit status: 3"), "{refused:?}");
}

#[test]
fn a_store_without_room_says_so() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "1", "--memory", "32M"]);
    let large = samite.scratch().join("large");
    std::fs::write(&large, vec![7; 40 << 20]).unwrap();
    samite.fails(1, ["put", "--force", large.to_str().unwrap(), "/large"]);
    wait_until("refusals are told", || kinds(&samite).contains(&"space-refused".to_owned()));
}

#[test]
fn memory_grows_and_shrinks_while_programs_use_it() {
    // While the store is full, it may be refused; what it was told is written is right.
    const WORK: &str = "while test -e /samite/go; do
        seq 2000 2> /dev/null > /samite/busy || continue
        test $(wc -l < /samite/busy) = 2000 || exit 9
    done";
    let samite = Samite::new();
    samite.ok(["up", "--local", "1", "--memory", "32M"]);
    samite.ok(["run", "--", "touch", "/samite/go"]);
    let mut busy = samite.command(["run", "--", "sh", "-c", WORK]).spawn().unwrap();
    let large = samite.scratch().join("large");
    std::fs::write(&large, vec![7; 40 << 20]).unwrap();
    let put = ["put", "--force", large.to_str().unwrap(), "/large"];
    samite.fails(1, put);
    let said = samite.ok(["node", "resize", "0", "96M"]);
    assert_eq!(said, "cluster default: n0 holds 96.0 MiB from now on, 32.0 MiB before\n");
    samite.ok(put);
    let status: Value = serde_json::from_str(&samite.ok(["status", "--json"])).unwrap();
    assert_eq!(status["nodes"][0]["status"]["capacity_bytes"], 96 << 20);
    let said = samite.fails(5, ["node", "resize", "n0", "32M"]);
    assert!(said.contains("32.0 MiB: ") && said.contains(" are in use, and "), "{said}");
    samite.ok(["run", "--", "cmp", large.to_str().unwrap(), "/samite/large"]);
    samite.ok(["run", "--", "rm", "/samite/large"]);
    wait_until("it shrinks", || {
        samite.command(["node", "resize", "0", "32M"]).output().unwrap().status.success()
    });
    samite.fails(1, put);
    assert!(busy.try_wait().unwrap().is_none(), "the program has gone on");
    samite.ok(["run", "--", "rm", "/samite/go"]);
    assert!(busy.wait().unwrap().success());
    samite.fails(1, ["node", "resize", "0", "1000T"]);
}

#[test]
fn a_node_that_is_started_again_holds_what_it_held_last() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "3", "--memory", "32M", "--mirror", "2"]);
    samite.ok(["node", "resize", "2", "48M"]);
    let capacity = || {
        let output = samite.command(["status", "--json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        status["nodes"][2]["status"]["capacity_bytes"].as_u64()
    };
    assert_eq!(capacity(), Some(48 << 20));
    // The map has it within a second or two.
    wait_until("it starts with the same", || {
        samite.ok(["fault", "kill", "2"]);
        samite.ok(["node", "restart", "2"]);
        capacity() == Some(48 << 20) || {
            samite.ok(["node", "resize", "2", "48M"]);
            std::thread::sleep(Duration::from_secs(1));
            false
        }
    });
}

#[test]
fn logs_are_shown_moved_and_made_louder_while_nodes_run() {
    let samite = Samite::up(2);
    let log = samite.runtime().join("default/n1.log");
    let both = samite.ok(["logs", "-n", "1"]);
    let starts: Vec<_> = both.lines().map(|line| line.split_once("  ").unwrap().0).collect();
    assert_eq!(starts, ["n0", "n1"], "{both}");
    let one = samite.ok(["logs", "n1", "--json", "-n", "100"]);
    let first: Value = serde_json::from_str(one.lines().next().unwrap()).unwrap();
    assert_eq!(first["node"], 1);
    assert!(one.contains("serving"), "{one}");
    // As a rotation does it.
    let moved = samite.scratch().join("moved.log");
    std::fs::rename(&log, &moved).unwrap();
    let pid = samite.pids("default")[1].to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    wait_until("the log goes on in a new file", || {
        std::fs::read_to_string(&log).unwrap_or_default().contains("the log goes on here")
    });
    samite.ok(["kv", "put", "key", "value"]);
    samite.ok(["logs", "n1", "--level", "samite_node=trace,info"]);
    let said = samite.ok(["logs", "n1"]);
    assert!(said.contains("filter=\"samite_node=trace,info\""), "{said}");
    let refused = samite.fails(2, ["logs", "--level", "a=b=c"]);
    assert!(refused.contains("a=b=c"), "{refused}");
    // A node that has ended cannot tell, but its file is here.
    samite.ok(["fault", "kill", "1"]);
    assert!(samite.ok(["logs", "n1"]).contains("trace"));
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

/// A node that is started by hand, with a service manager that listens at `socket`.
fn node(samite: &Samite, socket: &Path, watchdog_us: &str) -> Child {
    let dir = samite.runtime().join("alone");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).unwrap();
    let key = dir.join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, own).unwrap();
    let mut command = samite.beside("sh");
    // The sign of life is wanted of the process itself.
    command.args(["-c", "WATCHDOG_PID=$$ exec \"$0\" node --dir \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_samite")).arg(&dir).args(["--node", "0", "--nodes", "1"]);
    command.args(["--memory", "64M", "--log", "stderr"]);
    command.env("NOTIFY_SOCKET", socket).env("WATCHDOG_USEC", watchdog_us);
    command.stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_service_manager_hears_that_a_node_serves_lives_and_stops() {
    let samite = Samite::new();
    std::fs::create_dir_all(samite.scratch()).unwrap();
    let path = samite.scratch().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hear = || {
        let mut said = [0; 512];
        let len = socket.recv(&mut said).unwrap();
        String::from_utf8_lossy(&said[..len]).into_owned()
    };
    let child = node(&samite, &path, "30000000");
    let ready = hear();
    assert!(ready.contains("READY=1\n") && ready.contains("STATUS=serving"), "{ready}");
    assert_eq!(hear(), "WATCHDOG=1\n");
    assert_eq!(hear(), "WATCHDOG=1\n");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    while hear() != "STOPPING=1\n" {}
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(log.contains("INFO samite_node::run: listening"), "{log}");
    assert!(!samite.runtime().join("alone/n0.log").exists());
}

#[test]
fn the_version_names_the_commit() {
    let said = Samite::new().ok(["--version"]);
    let version = said.trim().strip_prefix("samite ").unwrap();
    let head = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let is_repository = head.is_ok_and(|output| output.status.success());
    let words: Vec<&str> = version.split(' ').collect();
    assert_eq!(words[0], env!("CARGO_PKG_VERSION"), "{said}");
    // Built elsewhere, of an archive, it names none.
    assert!(words.len() == 2 || !is_repository, "{said}");
}

/// The lines of the unit `samite@.service`.
fn unit() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging/systemd/samite@.service");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_unit_is_sound() {
    if !samite_testkit::has("systemd-analyze") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    // The manual does not lie here, and the program lies elsewhere than on a user's machine.
    let unit = unit().replace("/usr/bin/samite", env!("CARGO_BIN_EXE_samite"));
    let path = scratch.path().join("samite@job.service");
    std::fs::write(&path, unit).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    // About units of the machine it may say what it likes.
    assert!(!said.contains("samite@job"), "{said}");
    // It does say what is wrong with this one.
    let bent = std::fs::read_to_string(&path).unwrap().replace("Type=notify", "Type=nonsense");
    std::fs::write(&path, bent).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
    assert!(String::from_utf8_lossy(&verified.stderr).contains("samite@job"), "{verified:?}");
}

#[test]
fn the_line_of_the_unit_starts_a_node_that_clients_find() {
    let samite = Samite::new();
    let unit = unit();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let key = samite.scratch().join("job.key");
    std::fs::write(&key, [9; 32]).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(samite.runtime()).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let options = format!(
        "--node 0 --nodes 1 --memory 64M --listen 127.0.0.1:{port} --coordinator tls://127.0.0.1:{port}"
    );
    let line = line
        .replace("/usr/bin/samite", env!("CARGO_BIN_EXE_samite"))
        .replace("/etc/samite/%i.key", key.to_str().unwrap())
        .replace("$SAMITE_NODE", &options)
        .replace("%i", "job");
    let path = samite.scratch().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut words = line.split_whitespace();
    let mut command = samite.beside(words.next().unwrap());
    let child = command.args(words).env("NOTIFY_SOCKET", &path).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    let mut said = [0; 512];
    let len = socket.recv(&mut said).unwrap();
    assert!(said[..len].starts_with(b"READY=1\n"));
    samite.ok(["kv", "put", "key", "value", "--name", "job"]);
    assert_eq!(samite.ok(["kv", "get", "key", "--name", "job"]).trim(), "value");
    let status = samite.ok(["status", "--name", "job"]);
    assert!(status.contains("tls on tcp: on"), "{status}");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}
