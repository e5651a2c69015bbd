//! Finding mounts of the store, and ending them, also when nobody serves them any more.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use samite_types::{Error, ErrorKind, Result};

use crate::mount::SUBTYPE;

/// A mount of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where.
    pub path: PathBuf,
    /// Name of its cluster.
    pub cluster: String,
    /// Number of its connection among those of the kernel.
    pub connection: u32,
}

/// All mounts of the cluster with this name that this process sees, in the order in which they were made.
///
/// # Errors
/// `/proc` cannot be read.
pub fn mounts_of(cluster: &str) -> Result<Vec<MountEntry>> {
    Ok(all()?.into_iter().filter(|mount| mount.cluster == cluster).collect())
}

/// The topmost mount of a store at `path`. Asks nothing of the mount, which may be dead.
///
/// # Errors
/// `/proc` cannot be read.
pub fn find_mount(path: &Path) -> Result<Option<MountEntry>> {
    let path = resolved(path);
    Ok(all()?.into_iter().rev().find(|mount| mount.path == path))
}

/// Ends a mount. `lazy`: out of sight at once, for good when the last one has left it.
///
/// # Errors
/// `InUse`: programs have files or their working directory there; else what the system says.
pub fn unmount(path: &Path, lazy: bool) -> Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let what = |errno: Errno| {
        let kind = if errno == Errno::BUSY { ErrorKind::InUse } else { ErrorKind::Io };
        Error::new(kind, format!("unmount {}: {errno}", path.display()))
    };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => by_helper(path, lazy),
        result => result.map_err(what),
    }
}

/// Ends a mount that nobody serves any more, also while programs use it. The kernel may not know: a
/// thread of a daemon that was killed can be left waiting for a program that waits for the daemon,
/// and keep the connection open. So that is aborted first, and all programs that wait there get an
/// error.
///
/// # Errors
/// The error that the system reports.
pub fn unmount_dead(mount: &MountEntry) -> Result<()> {
    match rustix::mount::unmount(&mount.path, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        // It is aborted, and in use.
        Err(Errno::BUSY) => {}
        Err(_) => {
            let abort = format!("/sys/fs/fuse/connections/{}/abort", mount.connection);
            // Its owner may do that; where it cannot be done, the mount still goes out of sight.
            let _ = std::fs::write(abort, "1");
        }
    }
    unmount(&mount.path, true)
}

/// For users who may not unmount themselves.
fn by_helper(path: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
    let output = command.output().map_err(|error| {
        Error::new(ErrorKind::Io, format!("run fusermount3 (of the package fuse3): {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if words.contains("busy") { ErrorKind::InUse } else { ErrorKind::Io };
    Err(Error::new(kind, format!("unmount {}: {words}", path.display())))
}

/// The path without symbolic links. Its last component is left alone: it may be a mount that answers nothing.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => {
            let plain = parent.join(name);
            match plain.read_link() {
                Ok(_) => plain.canonicalize().unwrap_or(plain),
                Err(_) => plain,
            }
        }
        _ => path,
    }
}

fn all() -> Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|error| {
        Error::new(ErrorKind::Io, format!("read /proc/self/mountinfo: {error}"))
    })?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// One line of mountinfo(5), if it is a mount of a store.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?.strip_prefix(b"0:")?;
    let connection = std::str::from_utf8(device).ok()?.parse().ok()?;
    let path = fields.nth(1)?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = rest.next()?;
    let source = rest.next()?.strip_prefix(SUBTYPE.as_bytes())?.strip_prefix(b":")?;
    // The kernel knows the subtype only from fusermount3.
    if kind != b"fuse" && kind.strip_prefix(b"fuse.") != Some(SUBTYPE.as_bytes()) {
        return None;
    }
    let cluster = String::from_utf8(unescaped(source)).ok()?;
    Some(MountEntry { path: OsString::from_vec(unescaped(path)).into(), cluster, connection })
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    plain
}

/// Processes that have something under `path` open, mapped, or as a directory of theirs: pid and
/// name. Only processes that this user may look at.
#[must_use]
pub fn users_of(path: &Path) -> Vec<(u32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut users: Vec<(u32, String)> = entries
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            // The process that asks does not count: it asks from there, and is gone soon.
            if pid == std::process::id() {
                return None;
            }
            let process = entry.path();
            uses(&process, path).then(|| {
                let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
                (pid, name.trim().to_owned())
            })
        })
        .collect();
    users.sort_unstable();
    users
}

fn uses(process: &Path, path: &Path) -> bool {
    let leads_in = |link: PathBuf| link.read_link().is_ok_and(|target| target.starts_with(path));
    if ["cwd", "root", "exe"].iter().any(|link| leads_in(process.join(link))) {
        return true;
    }
    let descriptors = std::fs::read_dir(process.join("fd"));
    if descriptors.is_ok_and(|mut all| all.any(|fd| fd.is_ok_and(|fd| leads_in(fd.path())))) {
        return true;
    }
    let needle = [b" ", path.as_os_str().as_bytes(), b"/"].concat();
    std::fs::read(process.join("maps"))
        .is_ok_and(|maps| maps.windows(needle.len()).any(|part| part == needle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_store_are_told_from_others() {
        let line =
            b"95 29 0:52 / /mnt/a\\040b rw,relatime shared:3 - fuse.samite samite:dev rw,user_id=0";
        let mount = parse(line).unwrap();
        assert_eq!(mount.path, Path::new("/mnt/a b"));
        assert_eq!((mount.cluster.as_str(), mount.connection), ("dev", 52));
        for other in [
            &b"95 29 0:52 / /mnt rw - tmpfs samite:dev rw"[..],
            b"95 29 0:52 / /mnt rw - fuse.sshfs host:/ rw",
            b"95 29",
            b"",
        ] {
            assert_eq!(parse(other), None);
        }
    }
}
