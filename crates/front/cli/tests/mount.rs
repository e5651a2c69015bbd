//! Mounts and their daemons, seen from outside: up, down, in use, and dead.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use common::{Samite, kill, list};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Longer than any call may take on a store of which a node is gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of `nodes` nodes and a directory where it is mounted; `None` where that cannot be: the test is skipped.
fn mounted(nodes: u32) -> Option<(Samite, PathBuf)> {
    if !samite_testkit::has_fuse() {
        return None;
    }
    let samite = Samite::up(nodes);
    let path = samite.scratch().join("store");
    fs::create_dir(&path).unwrap();
    samite.ok(["mount", path.to_str().unwrap()]);
    Some((samite, path))
}

/// Pid of the daemon of the only mount.
fn daemon(samite: &Samite) -> u32 {
    let dir = samite.runtime().join("default");
    let names = list(&dir);
    let name = names.iter().find(|name| name.starts_with("mount-") && name.ends_with(".json"));
    let record = fs::read(dir.join(name.unwrap())).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    u32::try_from(record["pid"].as_u64().unwrap()).unwrap()
}

fn umount(samite: &Samite, path: &std::path::Path) {
    samite.ok(["umount", path.to_str().unwrap()]);
}

#[test]
fn a_mount_serves_until_it_is_unmounted() {
    let Some((samite, path)) = mounted(3) else { return };
    fs::write(path.join("from-mount"), "1\n").unwrap();
    assert_eq!(samite.ok(["cat", "/from-mount"]), "1\n");
    samite.ok_with(["put", "-", "/from-command"], b"2\n");
    assert_eq!(fs::read(path.join("from-command")).unwrap(), b"2\n");
    let daemon = daemon(&samite);
    umount(&samite, &path);
    assert_eq!(list(&path), [] as [&str; 0]);
    // Nothing of it, but perhaps a zombie that nobody has waited for.
    assert!(fs::read(format!("/proc/{daemon}/cmdline")).unwrap_or_default().is_empty());
    let said = samite.fails(4, ["umount", path.to_str().unwrap()]);
    assert!(said.contains("no store is mounted there"), "{said}");
    samite.ok(["mount", "--read-only", path.to_str().unwrap()]);
    let refused = fs::write(path.join("x"), "").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    // `down` ends the mounts.
    samite.ok(["down"]);
    assert_eq!(list(&path), [] as [&str; 0]);
    samite.assert_nothing_left();
}

#[test]
fn a_mount_that_cannot_be_made_says_why() {
    let samite = Samite::new();
    let said = samite.fails(3, ["mount", "/tmp"]);
    assert!(said.contains("samite up"), "{said}");
    samite.ok(["up", "--local", "1", "--memory", "64M"]);
    let missing = samite.scratch().join("missing");
    let said = samite.fails(1, ["mount", missing.to_str().unwrap()]);
    assert!(said.contains("missing"), "{said}");
    assert!(
        !list(&samite.runtime().join("default"))
            .iter()
            .any(|name| name.ends_with(".json") && name.starts_with("mount"))
    );
}

#[test]
fn who_keeps_a_mount_busy_is_named() {
    let Some((samite, path)) = mounted(1) else { return };
    let mut user = Command::new("sleep").arg("100").current_dir(&path).spawn().unwrap();
    let said = samite.fails(1, ["umount", path.to_str().unwrap()]);
    assert!(said.contains(&format!("sleep (pid {})", user.id())), "{said}");
    samite.ok(["umount", "--lazy", path.to_str().unwrap()]);
    assert_eq!(list(&path), [] as [&str; 0]);
    user.kill().unwrap();
    user.wait().unwrap();
}

#[test]
fn a_killed_daemon_leaves_a_mount_that_ends_and_a_store_that_goes_on() {
    let Some((samite, path)) = mounted(1) else { return };
    fs::write(path.join("kept"), "data").unwrap();
    let open = fs::File::open(path.join("kept")).unwrap();
    kill(daemon(&samite));
    let begun = Instant::now();
    let is_dead = |error: std::io::Error| {
        // The second while the kernel is just noticing.
        matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::ConnectionAborted)
    };
    assert!(fs::read_dir(&path).is_err_and(is_dead));
    assert!(fs::read(path.join("kept")).is_err_and(is_dead));
    assert!(begun.elapsed() < Duration::from_secs(20));
    // Also with a file open there.
    umount(&samite, &path);
    drop(open);
    assert_eq!(samite.ok(["cat", "/kept"]), "data");
    samite.ok(["mount", path.to_str().unwrap()]);
    assert_eq!(fs::read(path.join("kept")).unwrap(), b"data");
    kill(daemon(&samite));
    samite.ok(["down"]);
    assert_eq!(list(&path), [] as [&str; 0]);
    samite.assert_nothing_left();
}

/// The kernel does not see that a daemon is dead while something has its connection open: as a thread of the daemon that waits in the kernel does, and
/// this process in its place here.
#[test]
fn a_mount_whose_dead_daemon_holds_its_connection_is_aborted() {
    let Some((samite, path)) = mounted(1) else { return };
    fs::write(path.join("kept"), "data").unwrap();
    let pid = daemon(&samite);
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let connections: Vec<_> = links
        .filter(|link| fs::read_link(link.path()).is_ok_and(|to| to.ends_with("dev/fuse")))
        .map(|link| link.file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let flags = PidfdFlags::empty();
    let process = pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), flags).unwrap();
    let held: Vec<_> = connections
        .into_iter()
        .map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).unwrap())
        .collect();
    assert!(!held.is_empty());
    kill(pid);
    let mut waiting = Command::new("ls").arg("-l").arg(&path).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.try_wait().unwrap().is_none(), "somebody answered");
    umount(&samite, &path);
    assert!(!ended(&mut waiting).success());
    assert_eq!(list(&path), [] as [&str; 0]);
    drop(held);
    assert_eq!(samite.ok(["cat", "/kept"]), "data");
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

/// How a program ended, which it must in time.
fn ended(program: &mut Child) -> ExitStatus {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = program.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < until, "it hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_node_makes_errors_and_no_hang() {
    let Some((samite, path)) = mounted(3) else { return };
    for number in 0..20 {
        fs::write(path.join(format!("f{number}")), "x").unwrap();
    }
    kill(samite.pids("default")[1]);
    let begun = Instant::now();
    let results: Vec<_> = (0..20).map(|number| fs::read(path.join(format!("f{number}")))).collect();
    assert!(results.iter().any(Result::is_err), "{results:?}");
    assert!(results.iter().flatten().all(|data| data == b"x"));
    let errors = results.iter().filter_map(|result| result.as_ref().err());
    assert!(errors.map(std::io::Error::raw_os_error).all(|errno| errno == Some(5)));
    let _ = fs::read_dir(&path).map(Iterator::count);
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    umount(&samite, &path);
    samite.ok(["down"]);
    samite.assert_nothing_left();
}
