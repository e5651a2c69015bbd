//! The directory of a target.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use samite_types::{Error, ErrorKind, Result};

/// Name of the file whose lock says that the target is in use.
const LOCK_NAME: &str = "lock";

/// The directory of a target, which this process has for itself until it is dropped.
#[derive(Debug)]
pub struct TargetRoot {
    path: PathBuf,
    dir: OwnedFd,
    _lock: OwnedFd,
}

impl TargetRoot {
    /// Opens the directory at `path`; makes it, if it is not there.
    ///
    /// # Errors
    /// `InUse`: a process has it, this or another one. `Denied`: it is another user's, or others
    /// may write into it. `NotDirectory`: it is none, or a symbolic link. Errors of the disk.
    pub fn open(path: &Path) -> Result<Self> {
        let told = |errno| Error::io(format_args!("directory {}", path.display()), errno);
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = parent.unwrap_or(Path::new("."));
                let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
                let parent = fs::open(parent, flags, Mode::empty()).map_err(told)?;
                fs::fsync(parent).map_err(told)?;
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(told(errno)),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR | Errno::LOOP => {
                let words = format!("{} is not a directory itself", path.display());
                Error::new(ErrorKind::NotDirectory, words)
            }
            errno => told(errno),
        })?;
        let stat = fs::fstat(&dir).map_err(told)?;
        let others = Mode::WGRP | Mode::WOTH;
        if stat.st_uid != rustix::process::geteuid().as_raw()
            || Mode::from_raw_mode(stat.st_mode).intersects(others)
        {
            let words = format!(
                "directory {} belongs to another user, or others may write into it",
                path.display()
            );
            return Err(Error::new(ErrorKind::Denied, words));
        }
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = fs::openat(&dir, LOCK_NAME, flags, Mode::RUSR | Mode::WUSR).map_err(told)?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_path_buf(), dir, _lock: lock }),
            Err(Errno::WOULDBLOCK) => {
                let words = format!("directory {} is in use by another node", path.display());
                Err(Error::new(ErrorKind::InUse, words))
            }
            Err(errno) => Err(told(errno)),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself: names are looked up below it, wherever it is moved.
    #[must_use]
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Has the names in the directory on disk.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn sync(&self) -> Result<()> {
        fs::fsync(&self.dir)
            .map_err(|errno| Error::io(format_args!("syncing {}", self.path.display()), errno))
    }
}
