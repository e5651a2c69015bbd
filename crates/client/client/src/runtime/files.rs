//! Small files: read whole, put in place whole, and changed by one at a time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use samite_types::{Deadline, Entropy, Error, ErrorKind, Result, SystemEntropy};

/// End of the name of a file that is being written.
const TEMPORARY: &str = ".new";
/// Hexadecimal digits before that.
const NUMBER_LEN: usize = 16;
/// Time between two tries to lock a directory.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Reads a small file whole; anything over `len_max` bytes is refused.
pub(super) fn read_file(path: &Path, len_max: usize) -> Result<Vec<u8>> {
    let failed = |errno| Error::io(format_args!("read {}", path.display()), errno);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match rustix::io::read(&file, &mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        if bytes.len() > len_max {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("read {}: over {len_max} bytes", path.display()),
            ));
        }
    }
}

/// Writes a small file (mode 0600) so that a reader sees the old one or a new one, never a part,
/// whoever else writes it meanwhile.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_path(path, SystemEntropy.next_u64());
    let failed = |errno| Error::io(format_args!("write {}", temporary.display()), errno);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&temporary, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    let written = write_all(&file, bytes).map_err(failed).and_then(|()| {
        rustix::fs::rename(&temporary, path)
            .map_err(|errno| Error::io(format_args!("write {}", path.display()), errno))
    });
    if written.is_err() {
        // The first error is the one worth telling.
        let _ = rustix::fs::unlinkat(CWD, &temporary, AtFlags::empty());
    }
    written
}

fn write_all(file: &OwnedFd, bytes: &[u8]) -> std::result::Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(file, rest) {
            Ok(len) => rest = &rest[len..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Where a file is written before it is put in place.
fn temporary_path(path: &Path, number: u64) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number:0NUMBER_LEN$x}{TEMPORARY}"));
    PathBuf::from(name)
}

/// The name of the file that was being written under `name` when its writer ended; the same name
/// if that is no such leftover.
#[must_use]
pub fn name_without_temporary(name: &str) -> &str {
    let Some(stem) = name.strip_suffix(TEMPORARY) else { return name };
    match stem.rsplit_once('.') {
        Some((file, number))
            if number.len() == NUMBER_LEN && number.bytes().all(|b| b.is_ascii_hexdigit()) =>
        {
            file
        }
        _ => stem,
    }
}

/// A directory whose files nobody else changes who locks it, too.
pub(crate) struct DirectoryLock(OwnedFd);

impl DirectoryLock {
    /// Locks the open directory `dir`, which is at `path`. On a file system without locks, what is
    /// written last counts.
    ///
    /// # Errors
    /// `Timeout`: another one has the lock; the error of the system.
    pub(super) fn take(dir: OwnedFd, path: &Path, deadline: Deadline) -> Result<Self> {
        loop {
            match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) | Err(Errno::BADF | Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    return Ok(Self(dir));
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    let Some(left) = deadline.remaining() else {
                        let words = format!("{}: locked by another program", path.display());
                        return Err(Error::new(ErrorKind::Timeout, words));
                    };
                    std::thread::sleep(left.min(LOCK_PAUSE));
                }
                Err(errno) => {
                    return Err(Error::io(format_args!("lock {}", path.display()), errno));
                }
            }
        }
    }
}

impl Drop for DirectoryLock {
    /// Not left to the end of the descriptor: a child that was forked meanwhile has it, too.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leftover_is_known_by_the_name_of_its_file() {
        for name in ["ticket", "cluster.json", "n12.life"] {
            for number in [0, 17, u64::MAX] {
                let path = temporary_path(Path::new(name), number);
                assert_eq!(name_without_temporary(path.to_str().unwrap()), name);
            }
            assert_eq!(name_without_temporary(&format!("{name}.new")), name);
            assert_eq!(name_without_temporary(name), name);
        }
        assert_eq!(name_without_temporary("notes.txt"), "notes.txt");
        assert_eq!(name_without_temporary("notes.0123456789abcdeg.new"), "notes.0123456789abcdeg");
    }

    #[test]
    fn a_write_that_fails_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("ticket");
        // A file cannot be put in the place of a directory.
        std::fs::create_dir(&path).unwrap();
        write_file(&path, b"new").unwrap_err();
        let names = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
        assert_eq!((names(scratch.path()), names(&path)), (1, 0));
        std::fs::remove_dir(&path).unwrap();
        write_file(&path, b"new").unwrap();
        assert_eq!((names(scratch.path()), std::fs::read(&path).unwrap()), (1, b"new".to_vec()));
    }

    #[test]
    fn a_directory_is_locked_by_one_and_no_longer_than_it_lasts() {
        let scratch = tempfile::tempdir().unwrap();
        let lock = |wait| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::open(scratch.path(), flags, Mode::empty()).unwrap();
            DirectoryLock::take(dir, scratch.path(), Deadline::after(wait))
        };
        let first = lock(Duration::ZERO).unwrap();
        // As a child that was forked has it.
        let _child = first.0.try_clone().unwrap();
        let error = lock(Duration::from_millis(20)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        drop(first);
        lock(Duration::ZERO).unwrap();
    }
}
