//! A cluster whose nodes are processes of this host: its start, its processes, its directory.

mod claim;
pub mod spawn;
mod starting;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;
use rustix::process::Signal;
use samite_client::runtime::{ClusterDir, ENV_RUNTIME_DIR, RuntimeDir, name_without_temporary};
use samite_types::{NodeId, Result};

use crate::io_context::{SystemContext as _, failed};
use crate::process::{self, NodeProcess};
use crate::{mounts, node_life};

pub use claim::{check_not_attached, claim};
pub use starting::{CoordinatorChoice, LocalPlan, StartingCluster};

/// How long a node may take over an orderly stop before it is told again, and at last killed.
const STOP_STEP: Duration = Duration::from_secs(5);

/// How long a killed process is waited for: the kernel takes it apart for a while, the longer the
/// more memory it had and the busier the disk is.
const DIES_WITHIN: Duration = Duration::from_secs(20);

/// Held by the one `up` or `down` that works on a cluster. The kernel releases it when the holder
/// dies.
#[derive(Debug)]
pub struct ClusterLock(#[expect(dead_code, reason = "held for its lock")] OwnedFd);

/// Locks the cluster's directory, waiting for another `up` or `down` for at most `timeout`.
///
/// `None` when there is no such directory.
///
/// # Errors
/// `Io`, also when the other one takes longer.
pub fn lock(dir: &ClusterDir, timeout: Duration) -> Result<Option<ClusterLock>> {
    let until = Instant::now() + timeout;
    let path = dir.path();
    loop {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            fd => fd.doing(format_args!("open {}", path.display()))?,
        };
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            // Another `down` may have removed the directory between our open and our lock.
            Ok(()) if is_still_at(&fd, path) => return Ok(Some(ClusterLock(fd))),
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                return Err(failed(format!(
                    "cluster {}: another `samite up` or `samite down` is working on it",
                    dir.name()
                )));
            }
            Err(errno) => return Err(errno).doing(format_args!("lock {}", path.display())),
        }
    }
}

fn is_still_at(fd: &OwnedFd, path: &Path) -> bool {
    match (fstat(fd), rustix::fs::lstat(path)) {
        (Ok(held), Ok(named)) => (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino),
        _ => false,
    }
}

/// The cluster's living node processes: recorded ones, and ones that were never recorded, a third
/// voter among them included.
pub fn living_nodes(dir: &ClusterDir) -> Vec<NodeProcess> {
    let recorded = dir.read_cluster_file().map(|file| file.nodes).unwrap_or_default();
    let mut living: BTreeMap<u32, NodeProcess> = recorded
        .iter()
        .filter_map(|node| NodeProcess::of(node.process.as_ref()?))
        .map(|process| (process.pid(), process))
        .collect();
    let unrecorded = process::nodes_serving(dir.path()).into_iter();
    for process in unrecorded.chain(node_life::processes(dir)) {
        living.entry(process.pid()).or_insert(process);
    }
    if let Some(voter) = living_voter(dir) {
        living.remove(&voter.pid());
    }
    living.into_values().collect()
}

/// The living process with the third voter, if it was written down.
pub fn living_voter(dir: &ClusterDir) -> Option<NodeProcess> {
    let voter = dir.read_cluster_file().ok()?.setup.third_voter?;
    NodeProcess::started_at(voter.pid, voter.start_ticks)
}

/// The living etcd processes that were started with the cluster, written down or not.
pub fn living_etcd(dir: &ClusterDir) -> Vec<NodeProcess> {
    process::etcd_in(dir.path())
}

/// Waits until all have ended, at most for `timeout`, or for [`DIES_WITHIN`] if they were killed;
/// says whether they have.
pub fn wait_all(processes: &[NodeProcess], timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    let has_ended = |process: &NodeProcess| {
        process.wait(until.saturating_duration_since(Instant::now()))
            || (process.is_dying() && process.wait(DIES_WITHIN))
    };
    processes.iter().all(has_ended)
}

/// Ends processes: in order if they listen (SIGTERM), at once if they do not (SIGKILL).
///
/// # Errors
/// `Io`: some do not end.
pub fn stop_all(processes: &[NodeProcess]) -> Result<()> {
    for signal in [Signal::TERM, Signal::KILL] {
        for process in processes.iter().filter(|process| process.is_alive()) {
            process.signal(signal);
            // A stopped process takes no other signal but SIGKILL until it goes on.
            process.signal(Signal::CONT);
        }
        if wait_all(processes, STOP_STEP) {
            return Ok(());
        }
    }
    let left: Vec<String> = processes
        .iter()
        .filter(|process| process.is_alive())
        .map(|process| process.pid().to_string())
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    Err(failed(format!("processes {} do not end, not even by SIGKILL", left.join(", "))))
}

/// Removes the cluster's files and its directory, and the runtime directory when that was the last
/// one and nobody has named it.
///
/// Only files that Samite makes are removed: a directory that was named by mistake loses nothing.
///
/// # Errors
/// `Io`, also when other files are there.
pub fn sweep(dir: &ClusterDir) -> Result<()> {
    let path = dir.path();
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.doing(format_args!("read {}", path.display()))?,
    };
    let mut strange = Vec::new();
    for entry in entries {
        let entry = entry.doing(format_args!("read {}", path.display()))?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        if is_etcd_name(name) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            std::fs::remove_dir_all(entry.path())
                .doing(format_args!("remove {}", entry.path().display()))?;
        } else if is_our_file(name) || is_etcd_name(name) {
            // Of a durable store, only the way to the data of an etcd member is here.
            remove_file(&entry.path())?;
        } else {
            strange.push(entry.path().display().to_string());
        }
    }
    if !strange.is_empty() {
        return Err(failed(format!(
            "{}: not removed, it holds files that are not Samite's: {}",
            path.display(),
            strange.join(", ")
        )));
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        removed => removed.doing(format_args!("remove {}", path.display()))?,
    }
    let given = std::env::var_os(ENV_RUNTIME_DIR);
    if let Some(parent) = path.parent()
        && given.is_none_or(|given| Path::new(&given) != parent)
    {
        // Not empty while other clusters are up; then it stays.
        let _ = std::fs::remove_dir(parent);
    }
    Ok(())
}

/// Removes a file. Another `down`, or a node that ends, may have been faster.
fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.doing(format_args!("remove {}", path.display())),
    }
}

/// Name of the file that says that a cluster's directory was there before its nodes, and stays.
const STAYS_FILE: &str = "stays";
/// Name of the file that says that it goes with them.
const MADE_FILE: &str = "made";
/// The files of ours that stay in such a directory, beside logs.
const KEPT_FILES: [&str; 3] = ["key", "ca.pem", STAYS_FILE];

/// Makes the directory of a cluster that is not started by `samite up --local`, with the runtime
/// directory above it. One that is there, with nothing in it that tells of nodes, is somebody's own:
/// it is noted that it stays when the cluster ends.
///
/// # Errors
/// `Denied`: it is there, and open to others; `Io`.
pub fn make_directory(dir: &ClusterDir) -> Result<()> {
    if let Some(parent) = dir.path().parent() {
        RuntimeDir::at(parent)?.create()?;
    }
    let is_there = dir.path().exists();
    dir.create()?;
    let tells = |name: &str| matches!(name, "cluster.json" | MADE_FILE) || name.ends_with(".life");
    let names = std::fs::read_dir(dir.path()).doing(format_args!("read {}", dir.path().display()));
    let was_used = names?.flatten().any(|entry| entry.file_name().to_str().is_some_and(tells));
    if is_there && !was_used {
        let path = dir.path().join(STAYS_FILE);
        std::fs::write(&path, "").doing(format_args!("write {}", path.display()))?;
    }
    Ok(())
}

/// Notes that a cluster's directory was made for its nodes, and goes with them.
///
/// # Errors
/// `Io`.
pub fn note_made(dir: &ClusterDir) -> Result<()> {
    let path = dir.path().join(MADE_FILE);
    std::fs::write(&path, "").doing(format_args!("write {}", path.display()))
}

/// Removes the cluster's files and directory, as [`sweep`], when the cluster has ended. Of a
/// directory that [stays](make_directory), what tells of nodes goes; its key and logs stay.
///
/// # Errors
/// As [`sweep`].
pub fn clear(dir: &ClusterDir) -> Result<()> {
    if !dir.path().join(STAYS_FILE).exists() {
        return sweep(dir);
    }
    let Ok(entries) = std::fs::read_dir(dir.path()) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_log = name.ends_with(".log") || name.ends_with(".log.1");
        let stays = KEPT_FILES.contains(&name) || is_log;
        if is_our_file(name) && !stays {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

fn is_our_file(name: &str) -> bool {
    let name = name_without_temporary(name);
    // A log that was long.
    let name = if name.ends_with(".log.1") { name.trim_end_matches(".1") } else { name };
    if is_whole_name(name) || mounts::is_mount_file(name) {
        return true;
    }
    // Pipes and sockets of programs, and which of those were told that they do not see the store.
    if ["pipe-", "socket-", "told-"].iter().any(|what| name.starts_with(what)) {
        return true;
    }
    if name.strip_suffix(".log").is_some_and(is_etcd_name) {
        return true;
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let kinds = ["sock", "log", "faults", "table", "life", "voter"];
    let is_node = |stem: &str| stem.strip_prefix('n').is_some_and(is_number);
    // Of workers: `n0.worker-native-1000.log`. Of jobs that were detached: `job-1f2e.out`.
    let worker = name.strip_suffix(".log").and_then(|name| name.split_once(".worker-"));
    if worker.is_some_and(|(node, rest)| {
        is_node(node) && rest.rsplit_once('-').is_some_and(|(_, uid)| is_number(uid))
    }) {
        return true;
    }
    let job = name.strip_prefix("job-").and_then(|name| name.rsplit_once('.'));
    if job.is_some_and(|(id, kind)| {
        id.bytes().all(|b| b.is_ascii_hexdigit()) && ["out", "log"].contains(&kind)
    }) {
        return true;
    }
    name.rsplit_once('.').is_some_and(|(stem, kind)| {
        kinds.contains(&kind) && (is_node(stem) || stem == NodeId::THIRD_VOTER.to_string())
    })
}

/// Whether a file of ours that is of no one node has this name.
fn is_whole_name(name: &str) -> bool {
    let names = ["key", "ticket", "ca.pem", "cluster.json", "map", STAYS_FILE, MADE_FILE];
    names.contains(&name)
}

/// Whether a member of etcd has its data, or its log, under this name.
fn is_etcd_name(name: &str) -> bool {
    name.strip_prefix("etcd")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use samite_client::runtime::RuntimeDir;

    use super::*;

    #[test]
    fn sweeping_removes_our_files_and_no_others() {
        let scratch = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        runtime.create().unwrap();
        let dir = runtime.cluster("c").unwrap();
        dir.create().unwrap();
        for name in [
            "key",
            "ticket",
            "ca.pem",
            "cluster.json",
            "cluster.json.new",
            "ticket.0123456789abcdef.new",
            "n0.sock",
            "n12.log",
            "n12.log.1",
            "n12.faults",
            "n12.table",
            "n12.life",
            "n3.life.new",
            "n3.voter",
            "n3.voter.new",
            "voter.voter",
            "voter.sock",
            "voter.log",
            "mount-7.json",
            "pipe-12",
            "map",
            "etcd0.log",
            "n0.worker-native-1000.log",
            "job-00ff12ab.out",
            "job-00ff12ab.log",
        ] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::create_dir_all(dir.path().join("etcd0/member")).unwrap();
        std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        assert!(sweep(&dir).unwrap_err().message().contains("notes.txt"));
        std::fs::remove_file(dir.path().join("notes.txt")).unwrap();
        sweep(&dir).unwrap();
        assert!(!runtime.path().exists());
    }

    #[test]
    fn a_directory_that_was_there_keeps_its_key_and_logs() {
        let scratch = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        let (made, own) = (runtime.cluster("made").unwrap(), runtime.cluster("own").unwrap());
        make_directory(&made).unwrap();
        own.create().unwrap();
        make_directory(&own).unwrap();
        for name in ["key", "n0.log", "n0.life", "cluster.json", "n0.voter"] {
            std::fs::write(own.path().join(name), "").unwrap();
            std::fs::write(made.path().join(name), "").unwrap();
        }
        std::fs::write(own.path().join("notes.txt"), "").unwrap();
        // A node that is started again finds what it has left.
        make_directory(&made).unwrap();
        let told = runtime.cluster("told").unwrap();
        told.create().unwrap();
        note_made(&told).unwrap();
        make_directory(&told).unwrap();
        clear(&told).unwrap();
        assert!(!told.path().exists());
        clear(&made).unwrap();
        assert!(!made.path().exists());
        clear(&own).unwrap();
        let left = std::fs::read_dir(own.path()).unwrap().flatten();
        let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, ["key", "n0.log", "notes.txt", STAYS_FILE]);
    }

    #[test]
    fn one_works_on_a_cluster_at_a_time() {
        let scratch = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        let dir = runtime.cluster("c").unwrap();
        assert!(lock(&dir, Duration::ZERO).unwrap().is_none());
        runtime.create().unwrap();
        dir.create().unwrap();
        let held = lock(&dir, Duration::ZERO).unwrap();
        assert!(lock(&dir, Duration::from_millis(50)).is_err());
        drop(held);
        assert!(lock(&dir, Duration::ZERO).unwrap().is_some());
    }
}
