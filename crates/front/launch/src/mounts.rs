//! Mounts of a local cluster: the daemons that serve them, and their orderly end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use samite_client::runtime::ClusterDir;
use samite_fuse::{MountEntry, users_of};
use samite_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::io_context::{SystemContext as _, failed};
use crate::process::{self, NodeProcess};

/// How long a daemon may take to end once its mount is out of reach for programs.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Most processes named in a message.
const USERS_SHOWN_MAX: usize = 8;

/// A mount's daemon, written down in the cluster's directory while it serves.
#[derive(Debug, Serialize, Deserialize)]
pub struct MountRecord {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Its daemon.
    pub pid: u32,
    /// The daemon's start time; see [`process::start_ticks`].
    pub start_ticks: u64,
}

impl MountRecord {
    /// For a mount at `path` that this process serves.
    pub fn own(path: PathBuf) -> Self {
        let pid = std::process::id();
        Self { path, pid, start_ticks: process::start_ticks(pid).unwrap_or_default() }
    }

    /// Records it; the record is gone when the guard is.
    ///
    /// # Errors
    /// `Io`.
    pub fn write(&self, dir: &ClusterDir) -> Result<RecordGuard> {
        let path = record_path(dir, self.pid);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| failed(format!("write {}: {error}", path.display())))?;
        std::fs::write(&path, text).doing(format_args!("write {}", path.display()))?;
        Ok(RecordGuard(path))
    }

    /// The daemon, if it lives and is not about to end.
    pub fn daemon(&self) -> Option<NodeProcess> {
        NodeProcess::started_at(self.pid, self.start_ticks).filter(|process| !process.is_dying())
    }
}

/// Removes a record when the mount is over, and a log with nothing in it.
#[derive(Debug)]
pub struct RecordGuard(PathBuf);

impl Drop for RecordGuard {
    fn drop(&mut self) {
        // `samite down` may have been faster.
        let _ = std::fs::remove_file(&self.0);
        let log = self.0.with_extension("log");
        if std::fs::metadata(&log).is_ok_and(|log| log.len() == 0) {
            let _ = std::fs::remove_file(log);
        }
    }
}

fn record_path(dir: &ClusterDir, pid: u32) -> PathBuf {
    dir.path().join(format!("mount-{pid}.json"))
}

/// Path of the log of the daemon with this pid.
pub fn log_path(dir: &ClusterDir, pid: u32) -> PathBuf {
    dir.path().join(format!("mount-{pid}.log"))
}

/// Whether a file of this name in a cluster's directory belongs to a mount.
pub fn is_mount_file(name: &str) -> bool {
    name.strip_prefix("mount-")
        .and_then(|rest| rest.strip_suffix(".json").or_else(|| rest.strip_suffix(".log")))
        .is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The recorded mounts of the cluster.
pub fn records(dir: &ClusterDir) -> Vec<MountRecord> {
    let Ok(entries) = std::fs::read_dir(dir.path()) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_mount_file))
        .filter(|entry| entry.path().extension().is_some_and(|ending| ending == "json"))
        .filter_map(|entry| serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok())
        .collect()
}

/// The record of the mount at `path`.
pub fn record_of(dir: &ClusterDir, path: &Path) -> Option<MountRecord> {
    let mut all = records(dir);
    all.retain(|record| record.path == path);
    // A dead daemon's record may be left beside that of the one that took its place.
    let living = all.iter().position(|record| record.daemon().is_some());
    let index = living.or_else(|| all.len().checked_sub(1))?;
    Some(all.swap_remove(index))
}

/// Ends one mount. A mount that no daemon serves any more goes even if it is in use: nothing there
/// answers.
///
/// # Errors
/// As [`samite_fuse::unmount()`]; `Io`: programs use it, or its daemon does not end.
pub fn end(dir: &ClusterDir, mount: &MountEntry, lazy: bool) -> Result<()> {
    let record = record_of(dir, &mount.path);
    let daemon = record.as_ref().and_then(MountRecord::daemon);
    let ended = match (&record, &daemon) {
        (Some(_), None) => samite_fuse::unmount_dead(mount),
        // Whether a daemon serves it is not known.
        (None, _) => samite_fuse::unmount(&mount.path, true),
        (Some(_), Some(_)) => samite_fuse::unmount(&mount.path, lazy),
    };
    ended.map_err(|error| match error.kind() {
        ErrorKind::InUse => failed(format!("{error}{}", used_by(&mount.path))),
        _ => error,
    })?;
    match daemon {
        Some(daemon) if !lazy && !daemon.wait(END_TIMEOUT) => {
            let message = format!("unmounted, but its daemon (pid {}) has not ended", daemon.pid());
            return Err(failed(message));
        }
        Some(_) => {}
        None => forget(dir, record.as_ref()),
    }
    Ok(())
}

/// Ends all mounts of a cluster, also while programs use them. What failed is returned; nothing
/// depends on it.
pub fn end_all(dir: &ClusterDir) -> Vec<Error> {
    let mut errors = Vec::new();
    for record in records(dir) {
        let mounted = samite_fuse::find_mount(&record.path).ok().flatten();
        let daemon = record.daemon();
        if let Some(mount) = mounted.filter(|mount| mount.cluster == dir.name()) {
            let ended = match &daemon {
                None => samite_fuse::unmount_dead(&mount),
                Some(_) => samite_fuse::unmount(&record.path, false)
                    .or_else(|_| samite_fuse::unmount(&record.path, true)),
            };
            errors.extend(ended.err());
        }
        if let Some(daemon) = daemon
            && !daemon.wait(END_TIMEOUT)
        {
            // Somebody keeps a detached mount busy; the store behind it is about to go.
            daemon.signal(Signal::KILL);
            daemon.wait(END_TIMEOUT);
        }
        forget(dir, Some(&record));
    }
    errors
}

/// Removes the files of a mount whose daemon is dead.
fn forget(dir: &ClusterDir, record: Option<&MountRecord>) {
    if let Some(record) = record {
        for path in [record_path(dir, record.pid), log_path(dir, record.pid)] {
            // The daemon removes its own in an orderly end.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Words about who keeps a mount busy.
fn used_by(path: &Path) -> String {
    let users = users_of(path);
    let names: Vec<String> = users
        .iter()
        .take(USERS_SHOWN_MAX)
        .map(|(pid, name)| format!("{name} (pid {pid})"))
        .collect();
    let more = if users.len() > names.len() { " and others" } else { "" };
    let who = if names.is_empty() {
        "by processes that cannot be seen from here".to_owned()
    } else {
        format!("by {}{more}", names.join(", "))
    };
    format!(": used {who}; `samite umount --lazy` takes it away all the same")
}
