//! The state after something is killed. Nothing may hang: every call has a limit.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libc::{O_CREAT, O_RDWR};
use samite_acceptance::access_path::{AccessPath, errno_text};
use samite_acceptance::stage::{AcceptanceStage, StagePath, TestWatchdog};
use samite_types::NodeId;

const LIMIT: Duration = Duration::from_secs(200);

/// Pids of processes whose command line has all `words`.
fn processes(words: &[&str]) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if words.iter().all(|word| line.contains(word)) {
            found.push(pid);
        }
    }
    found
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    // It may be gone.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Runs a program that must end within ten seconds, well or not.
fn ends(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "10", program]).args(args);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_ne!(status.code(), Some(137), "{program} {args:?} hangs");
    assert_ne!(status.code(), Some(124), "{program} {args:?} hangs");
    status.success()
}

fn kill_daemon(stage: &AcceptanceStage) {
    let daemons = processes(&["mount", "--daemon", &stage.mount_point().display().to_string()]);
    assert!(!daemons.is_empty(), "no daemon serves the mount");
    daemons.into_iter().for_each(kill);
}

#[test]
fn a_dead_daemon_leaves_a_mount_that_ends_and_begins_again() {
    let _watchdog = TestWatchdog::new("dead daemon", LIMIT);
    let stage = AcceptanceStage::start(1, "128M", &common::helper()).unwrap();
    let mount = stage.mount_point().display().to_string();
    let mut access = stage.access_path(StagePath::Mount);
    access.put("/f", b"before").unwrap();
    let file = access.open("/open", O_CREAT | O_RDWR).unwrap();
    access.write(file, 0, b"held").unwrap();
    kill_daemon(&stage);
    assert!(access.get("/f").is_err(), "a mount without a daemon answers");
    assert!(!ends("ls", &[&mount]));
    assert!(!ends("df", &[&mount]));
    drop(access);
    stage.unmount().unwrap();
    assert!(ends("ls", &[&mount]), "the directory below the mount is there again");
    assert_eq!(stage.access_path(StagePath::Preload).get("/open"), Ok(b"held".into()));
    stage.mount().unwrap();
    let mut access = stage.access_path(StagePath::Mount);
    assert_eq!(access.get("/f"), Ok(b"before".into()));
    access.put("/f", b"after").unwrap();
}

#[test]
fn a_daemon_that_dies_under_load_leaves_no_process_behind() {
    let _watchdog = TestWatchdog::new("daemon under load", LIMIT);
    let stage = AcceptanceStage::start(2, "128M", &common::helper()).unwrap();
    let mount = stage.mount_point().display().to_string();
    let script =
        format!("i=0; while :; do echo $i > {mount}/$$-$((i % 50)) || exit 1; i=$((i + 1)); done");
    let start = || {
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut writers: Vec<_> = (0..4).map(|_| start()).collect();
    std::thread::sleep(Duration::from_millis(300));
    kill_daemon(&stage);
    let start = Instant::now();
    for writer in &mut writers {
        while writer.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(20), "a writer hangs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    stage.unmount().unwrap();
    stage.mount().unwrap();
    let mut access = stage.access_path(StagePath::Mount);
    for name in access.list("/").unwrap() {
        access.get(&format!("/{name}")).unwrap();
        access.unlink(&format!("/{name}")).unwrap();
    }
}

#[test]
fn clients_that_die_in_the_middle_leave_a_store_that_goes_on() {
    let _watchdog = TestWatchdog::new("dying clients", LIMIT);
    let stage = AcceptanceStage::start(2, "256M", &common::helper()).unwrap();
    let mut survivor = stage.access_path(StagePath::Library);
    for round in 0..6 {
        let way = StagePath::ALL[round % 3];
        survivor.mkdir("/work").unwrap();
        let root = match way {
            StagePath::Mount => stage.mount_point().display().to_string(),
            _ => "/samite".into(),
        };
        let script = format!(
            "cd {root}/work; i=0; while :; do mkdir d$i; head -c 300000 /dev/zero > d$i/f; mv d$i e$i; ln e$i/f l$i; mv -f l$i last; rm -r e$i; i=$(((i + 1) % 9)); done"
        );
        let mut command = match way {
            StagePath::Mount => Command::new("bash"),
            _ => stage.cluster.command(["run", "--", "bash"]),
        };
        let mut victim = command
            .args(["-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(150 + 70 * round as u64));
        // The shell and what it has just started.
        let children = children_of(victim.id());
        victim.kill().unwrap();
        children.into_iter().for_each(kill);
        victim.wait().unwrap();
        remove(&mut survivor, "/work");
    }
    survivor.put("/after", &vec![1; 100_000]).unwrap();
    assert_eq!(survivor.get("/after").unwrap().len(), 100_000);
}

fn children_of(pid: u32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(Path::new(&path)).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Removes a tree, as often as others that are just dying add to it.
fn remove(access: &mut dyn AccessPath, dir: &str) {
    for _ in 0..100 {
        for name in access.list(dir).unwrap() {
            let path = format!("{dir}/{name}");
            match access.unlink(&path) {
                Err(libc::EISDIR) => remove(access, &path),
                Ok(()) | Err(libc::ENOENT) => {}
                Err(errno) => panic!("unlink {path}: {}", errno_text(errno)),
            }
        }
        match access.rmdir(dir) {
            Ok(()) | Err(libc::ENOENT) => return,
            Err(libc::ENOTEMPTY) => std::thread::sleep(Duration::from_millis(20)),
            Err(errno) => panic!("rmdir {dir}: {}", errno_text(errno)),
        }
    }
    panic!("{dir} cannot be removed");
}

#[test]
fn a_dead_node_takes_only_its_own_with_it() {
    let _watchdog = TestWatchdog::new("dead node", LIMIT);
    let stage = AcceptanceStage::start(3, "128M", &common::helper()).unwrap();
    let mut accesses = StagePath::ALL.map(|way| stage.access_path(way));
    for index in 0..60 {
        accesses[index % 3].put(&format!("/f{index}"), &[7; 3000]).unwrap();
    }
    stage.kill_node(NodeId(2)).unwrap();
    for (access, way) in accesses.iter_mut().zip(StagePath::ALL) {
        let start = Instant::now();
        let answers: Vec<_> = (0..60).map(|index| access.get(&format!("/f{index}"))).collect();
        let (right, wrong): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert!(right.iter().all(|data| data.as_deref() == Ok(&[7; 3000][..])), "{way:?}");
        assert!(wrong.iter().all(|wrong| *wrong == Err(libc::EIO)), "{way:?}: {wrong:?}");
        assert!(!right.is_empty(), "{way:?}: nothing is left: {wrong:?}");
        assert!(!wrong.is_empty(), "{way:?}: nothing is gone");
        assert!(start.elapsed() < Duration::from_secs(60), "{way:?}: waits for a dead node");
        let made = (0..60).filter(|index| access.put(&format!("/{way:?}{index}"), b"x").is_ok());
        assert!(made.count() > 10, "{way:?}: the other nodes take nothing new");
    }
    drop(accesses);
    stage.unmount().unwrap();
}
