//! A directory of the operating system's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use samite_types::{Error, Result};

use super::{Disk, LogFile};

/// What is about to be done to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// A write of this many bytes.
    Write(usize),
    /// A sync of a file or of the directory.
    Sync,
    /// Space is set aside: a file is made or extended.
    Reserve,
}

/// What goes wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// It fails with this error and has no effect.
    Fail(Errno),
    /// Only so many of a write's bytes get to the file, then it fails.
    Torn(usize),
}

/// Decides what goes wrong, for tests and drills. May sleep: that is a slow disk.
pub trait DiskFaults: Send + Sync {
    /// Asked before each operation.
    fn before(&self, op: DiskOp) -> (Duration, Option<DiskFault>);
}

/// A directory.
#[derive(Clone)]
pub struct DirDisk {
    path: PathBuf,
    faults: Option<Arc<dyn DiskFaults>>,
}

impl std::fmt::Debug for DirDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirDisk({})", self.path.display())
    }
}

impl DirDisk {
    /// The directory at `path`; it is made, with those above it, if it is not there.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(path: &Path, faults: Option<Arc<dyn DiskFaults>>) -> Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| io_error("make", path, &error))?;
        Ok(Self { path: path.to_owned(), faults })
    }

    fn opened(&self, name: &str, options: &mut OpenOptions) -> Result<Box<dyn LogFile>> {
        let path = self.path.join(name);
        let file = options
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| io_error("open", &path, &error))?;
        Ok(Box::new(DirFile { file, path, faults: self.faults.clone() }))
    }
}

/// Asks for a fault, waits as long as it says, and fails if it says so; `Some`: so many bytes are written first.
fn meet(
    faults: Option<&Arc<dyn DiskFaults>>,
    op: DiskOp,
    what: &str,
    path: &Path,
) -> Result<Option<usize>> {
    let Some(faults) = faults else { return Ok(None) };
    let (delay, fault) = faults.before(op);
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    match fault {
        None => Ok(None),
        Some(DiskFault::Torn(len)) => Ok(Some(len)),
        Some(DiskFault::Fail(errno)) => {
            Err(Error::io(format_args!("{what} {} (injected)", path.display()), errno))
        }
    }
}

fn io_error(what: &str, path: &Path, error: &io::Error) -> Error {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Error::io(format_args!("{what} {}", path.display()), errno)
}

impl Disk for DirDisk {
    fn list(&self) -> Result<Vec<String>> {
        let failed = |error: io::Error| io_error("list", &self.path, &error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            // What is not UTF-8 is not ours.
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> Result<Box<dyn LogFile>> {
        meet(self.faults.as_ref(), DiskOp::Reserve, "make", &self.path.join(name))?;
        self.opened(name, OpenOptions::new().create_new(true))
    }

    fn open(&self, name: &str) -> Result<Box<dyn LogFile>> {
        self.opened(name, &mut OpenOptions::new())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let path = self.path.join(from);
        std::fs::rename(&path, self.path.join(to))
            .map_err(|error| io_error("rename", &path, &error))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        std::fs::remove_file(&path).map_err(|error| io_error("remove", &path, &error))
    }

    fn sync(&self) -> Result<()> {
        meet(self.faults.as_ref(), DiskOp::Sync, "sync", &self.path)?;
        File::open(&self.path)
            .and_then(|dir| dir.sync_all())
            .map_err(|error| io_error("sync", &self.path, &error))
    }
}

struct DirFile {
    file: File,
    path: PathBuf,
    faults: Option<Arc<dyn DiskFaults>>,
}

impl DirFile {
    fn failed(&self, what: &str, error: &io::Error) -> Error {
        io_error(what, &self.path, error)
    }
}

impl LogFile for DirFile {
    fn len(&self) -> Result<u64> {
        let metadata = self.file.metadata().map_err(|error| self.failed("look at", &error))?;
        Ok(metadata.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut at = 0;
        while at < buf.len() {
            match self.file.read_at(&mut buf[at..], offset + at as u64) {
                Ok(0) => break,
                Ok(len) => at += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read", &error)),
            }
        }
        Ok(at)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let torn = meet(self.faults.as_ref(), DiskOp::Write(bytes.len()), "write", &self.path)?;
        let whole = &bytes[..torn.unwrap_or(bytes.len()).min(bytes.len())];
        self.file.write_all_at(whole, offset).map_err(|error| self.failed("write", &error))?;
        if torn.is_some() {
            let what = format!("write {} (injected, torn)", self.path.display());
            return Err(Error::io(what, Errno::IO));
        }
        Ok(())
    }

    fn reserve(&self, len: u64) -> Result<()> {
        meet(self.faults.as_ref(), DiskOp::Reserve, "set space aside in", &self.path)?;
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            // Not every file system can promise space; then a write may find none.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.truncate(len),
            Err(errno) => {
                Err(Error::io(format_args!("set space aside in {}", self.path.display()), errno))
            }
        }
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|error| self.failed("cut", &error))
    }

    fn sync(&self) -> Result<()> {
        meet(self.faults.as_ref(), DiskOp::Sync, "sync", &self.path)?;
        self.file.sync_data().map_err(|error| self.failed("sync", &error))
    }
}
