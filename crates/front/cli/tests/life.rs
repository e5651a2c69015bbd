//! The life of local clusters, seen from outside: up, status, down, and the remains when something
//! is killed.

mod common;

use std::io::{BufRead, BufReader, Read as _, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getsid};

use common::{Samite, kill, list};

#[test]
fn a_cluster_comes_up_serves_and_leaves_nothing() {
    let samite = Samite::new();
    let said = samite.ok(["up", "--local", "2", "--memory", "64M"]);
    assert!(said.contains("cluster default: serving, 2 nodes of 64.0 MiB"), "{said}");
    let status: serde_json::Value = serde_json::from_str(&samite.ok(["status", "--json"])).unwrap();
    assert_eq!(status["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(status["nodes"][1]["serving"], true);
    assert_eq!(status["datasets"][0], "files");
    assert_eq!(status["partitions"], 64);
    assert!(samite.ok(["status"]).contains("serving"));
    let said = samite.fails(5, ["up", "--local", "1"]);
    assert!(said.contains("cluster default: up already"), "{said}");
    assert_eq!(samite.ok(["down"]), "cluster default: down, 2 nodes stopped\n");
    samite.assert_nothing_left();
    assert!(samite.fails(3, ["down"]).contains("cluster default: not up"));
    assert!(samite.fails(3, ["status"]).contains("cluster default: not up"));
    assert!(samite.fails(3, ["ls"]).contains("samite up --local"));
}

#[test]
fn clusters_live_side_by_side() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "1", "--memory", "64M", "--name", "one", "--no-tcp"]);
    samite.ok(["up", "--local", "1", "--memory", "64M", "--name", "two", "--partitions", "8"]);
    samite.ok(["mkdir", "/only-in-one", "--name", "one"]);
    let output = samite.command(["ls"]).env("SAMITE_CLUSTER", "one").output().unwrap();
    assert_eq!(output.stdout, b"only-in-one\n");
    assert_eq!(samite.ok(["ls", "--name", "two"]), "");
    let status = samite.ok(["status", "--json", "--name", "two"]);
    assert!(status.contains("\"partitions\":8"), "{status}");
    let all = samite.ok(["status", "--all"]);
    assert_eq!(all, "one  1 of 1 nodes live\ntwo  1 of 1 nodes live\n");
    samite.ok(["down", "--name", "one"]);
    assert_eq!(samite.ok(["ls", "--name", "two"]), "");
    samite.ok(["down", "--all"]);
    samite.assert_nothing_left();
}

#[test]
fn a_killed_node_is_named_and_down_leaves_nothing() {
    let samite = Samite::up(2);
    let pids = samite.pids("default");
    kill(pids[1]);
    let begun = Instant::now();
    let said = samite.fails(3, ["status"]);
    assert!(said.contains("n1"), "{said}");
    let said = samite.fails(3, ["ls", "-l", "/", "--timeout", "2"]);
    assert!(said.contains("n1"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn how_the_process_of_a_node_ended_is_told_as_far_as_it_is_known() {
    let samite = Samite::up(2);
    let status = || {
        let output = samite.command(["status"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let is_told = |text: &str, pid: u32, how: &str| {
        let line = text.lines().find(|line| line.contains(&format!("(pid {pid}) ")));
        line.is_some_and(|line| line.contains("its process") && line.contains(how))
    };
    // Its status can be read until a parent waits for it.
    let (waited, seen) = ("died without stopping", "was killed by signal 9 (SIGKILL)");
    let pid = samite.pids("default")[1];
    assert!(!status().contains("its process"), "all live");
    kill(pid);
    let said = status();
    assert!([waited, seen].iter().any(|how| is_told(&said, pid, how)), "{said}");
    assert!(!said.contains("out of memory"), "{said}");
    let said = samite.ok(["node", "restart", "1"]);
    assert!(said.contains("n1 is back"), "{said}");
    assert!([waited, seen].iter().any(|how| is_told(&said, pid, how)), "{said}");
    let log = std::fs::read_to_string(samite.runtime().join("default/n1.log")).unwrap();
    assert!([waited, seen].iter().any(|how| log.contains(how)), "{log}");
    // In good order.
    let pid = samite.pids("default")[1];
    assert!(!status().contains("its process"), "it is back");
    assert!(Command::new("kill").arg(pid.to_string()).status().unwrap().success());
    let until = Instant::now() + Duration::from_secs(20);
    while !is_told(&status(), pid, "stopped") {
        assert!(Instant::now() < until, "{}", status());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!status().contains("without stopping"));
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn all_nodes_killed_and_a_stopped_one_are_cleared_away() {
    let samite = Samite::up(2);
    for pid in samite.pids("default") {
        kill(pid);
    }
    // A dead cluster is no hindrance to a new one.
    samite.ok(["up", "--local", "1", "--memory", "64M"]);
    let pid = samite.pids("default")[0].to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn nodes_share_the_session_they_are_started_in_and_outlive_its_terminal() {
    let samite = Samite::new();
    let binary = env!("CARGO_BIN_EXE_samite");
    let words = format!("echo shell $$; '{binary}' up --local 1 --memory 64M; sleep 60");
    // `script` gives the shell a terminal of its own. The user who runs this test may ignore the
    // signals that come from there.
    let mut terminal = samite.beside("env");
    terminal.args(["--default-signal=INT,HUP", "script", "-qec", &words, "/dev/null"]);
    terminal.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = terminal.spawn().unwrap();
    let mut said = BufReader::new(terminal.stdout.take().unwrap()).lines().map(Result::unwrap);
    let shell = said.find_map(|line| line.strip_prefix("shell ")?.trim().parse::<i32>().ok());
    assert!(said.any(|line| line.contains("serving")));
    let pid = samite.pids("default")[0];
    let session = getsid(Pid::from_raw(i32::try_from(pid).unwrap())).unwrap();
    assert_eq!(Some(session.as_raw_pid()), shell, "the kernel shares out cores by session");
    // Control-C, and the end of the terminal.
    terminal.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    // Of one that has ended and not been waited for, nothing is left there.
    let command_line = format!("/proc/{session}/cmdline");
    while std::fs::read(&command_line).is_ok_and(|line| !line.is_empty()) {
        assert!(Instant::now() < until, "the shell lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
    samite.ok(["mkdir", "/still-here"]);
    assert_eq!(samite.pids("default"), [pid]);
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn nodes_of_a_store_that_mirrors_have_a_session_each() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "2", "--mirror", "2", "--memory", "64M"]);
    for pid in samite.pids("default") {
        let pid = i32::try_from(pid).unwrap();
        let session = getsid(Pid::from_raw(pid)).unwrap();
        assert_eq!(session.as_raw_pid(), pid, "the kernel shares out cores by session");
    }
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn an_up_that_was_killed_half_way_is_cleared_away() {
    let samite = Samite::new();
    for pause_ms in [0, 2, 10, 40] {
        let mut up = samite.command(["up", "--local", "3", "--memory", "64M"]).spawn().unwrap();
        while !samite.runtime().join("default/key").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
        up.kill().unwrap();
        up.wait().unwrap();
        samite.ok(["down"]);
        samite.assert_nothing_left();
    }
}

#[test]
fn a_recorded_pid_that_belongs_to_a_stranger_is_left_alone() {
    let samite = Samite::up(1);
    let path = samite.runtime().join("default/cluster.json");
    kill(samite.pids("default")[0]);
    let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let mut file: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    file["nodes"][0]["pid"] = stranger.id().into();
    std::fs::write(&path, file.to_string()).unwrap();
    samite.ok(["down"]);
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger lives");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    samite.assert_nothing_left();
}

#[test]
fn a_failed_start_says_why_and_leaves_nothing() {
    let samite = Samite::new();
    let said = samite.fails(2, ["up", "--local", "2", "--memory", "900T"]);
    assert!(said.contains("more than the"), "{said}");
    let said = samite.fails(2, ["up", "--local", "0"]);
    assert!(said.contains("--local"), "{said}");
    let said = samite.fails(2, ["up", "--local", "1", "--memory", "1K"]);
    assert!(said.contains("too little"), "{said}");
    // With hardly any descriptors `up` gets on, but the node does not: its log's end says why.
    let line = "ulimit -n 9; exec \"$0\" up --local 1 --memory 64M";
    let mut up = std::process::Command::new("sh");
    up.args(["-c", line, env!("CARGO_BIN_EXE_samite")]);
    let output = up.env("SAMITE_RUNTIME_DIR", samite.runtime()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not started: node n0 ended"), "{said}");
    assert!(said.contains("Too many open files"), "{said}");
    samite.assert_nothing_left();
}

#[test]
fn an_interrupted_up_leaves_nothing() {
    let samite = Samite::new();
    for pause_ms in [0, 5] {
        let mut up = samite.command(["up", "--local", "8", "--memory", "64M"]).spawn().unwrap();
        while !samite.runtime().join("default/key").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
        let pid = up.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        // It may have been up before the signal came.
        if up.wait().unwrap().success() {
            samite.ok(["down"]);
        }
        samite.assert_nothing_left();
    }
}

#[test]
fn foreign_files_are_never_removed() {
    let samite = Samite::up(1);
    let notes = samite.runtime().join("default/notes.txt");
    std::fs::write(&notes, "mine").unwrap();
    assert!(samite.fails(1, ["down"]).contains("notes.txt"));
    assert_eq!(list(&samite.runtime().join("default")), ["notes.txt"]);
    assert_eq!(samite.processes(), [] as [u32; 0]);
}

#[test]
fn a_store_in_use_ends_by_force_alone() {
    let samite = Samite::up(1);
    let mut holder = samite.interposed("sh");
    holder.args([
        "-c",
        "head -c 3000000 /dev/zero > /samite/f; exec 7< /samite/f; echo open; read line",
    ]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
    let said = samite.fails(5, ["down"]);
    assert!(said.contains("cluster default: 1 other program is connected"), "{said}");
    assert!(samite.ok(["status"]).starts_with("OK"), "it goes on");
    let said = samite.ok(["down", "--force"]);
    assert!(said.starts_with("cluster default: down, 1 node stopped\n2.9 MiB in "), "{said}");
    assert!(said.ends_with(" were in memory alone: what was not staged out is gone\n"), "{said}");
    samite.assert_nothing_left();
    holder.kill().unwrap();
    holder.wait().unwrap();
}
