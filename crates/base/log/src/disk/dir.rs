//! A directory of the operating system's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use samite_types::fault::{DiskFault, DiskOp, DiskVerdict, FaultSwitch};
use samite_types::{Error, Result};

use super::{LogDisk, LogFile};

/// A directory. `faults`, if there are any, go wrong with writes and syncs on purpose.
#[derive(Clone, Debug)]
pub struct DirDisk {
    path: PathBuf,
    faults: Option<Arc<FaultSwitch>>,
}

impl DirDisk {
    /// The directory at `path`; it is made, with those above it, if it is not there.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(path: &Path, faults: Option<Arc<FaultSwitch>>) -> Result<Self> {
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

/// Faults of a write.
enum WriteFault {
    /// Only so many bytes are written.
    Torn(usize),
    /// This bit of them is wrong.
    Rot(usize),
}

/// Meets the fault that is due, if there is one: waits as long as it says, and fails if it says so. `Some`: what becomes of the
/// `len` bytes that are written.
fn meet(
    faults: Option<&Arc<FaultSwitch>>,
    (op, len): (DiskOp, usize),
    (what, path): (&str, &Path),
) -> Result<Option<WriteFault>> {
    let Some(faults) = faults else { return Ok(None) };
    let DiskVerdict { delay, fault } = faults.disk(op, len);
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    let errno = match fault {
        None => return Ok(None),
        Some(DiskFault::Torn { kept }) => return Ok(Some(WriteFault::Torn(kept.min(len)))),
        Some(DiskFault::Rot { bit }) => return Ok(Some(WriteFault::Rot(bit))),
        Some(DiskFault::Error) => Errno::IO,
        Some(DiskFault::Full) => Errno::NOSPC,
    };
    Err(Error::io(format_args!("{what} {} (injected)", path.display()), errno))
}

fn io_error(what: &str, path: &Path, error: &io::Error) -> Error {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Error::io(format_args!("{what} {}", path.display()), errno)
}

impl LogDisk for DirDisk {
    fn list(&self) -> Result<Vec<String>> {
        let failed = |error: io::Error| io_error("list", &self.path, &error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            // A name that is not UTF-8 is not ours.
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> Result<Box<dyn LogFile>> {
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
        meet(self.faults.as_ref(), (DiskOp::Sync, 0), ("sync", &self.path))?;
        File::open(&self.path)
            .and_then(|dir| dir.sync_all())
            .map_err(|error| io_error("sync", &self.path, &error))
    }

    fn free(&self) -> Result<u64> {
        let found = rustix::fs::statvfs(&self.path).map_err(|errno| {
            Error::io(format_args!("look for space in {}", self.path.display()), errno)
        })?;
        // A part may be for the superuser alone.
        let is_privileged = rustix::process::geteuid().is_root();
        let blocks = if is_privileged { found.f_bfree } else { found.f_bavail };
        Ok(blocks.saturating_mul(found.f_frsize))
    }
}

struct DirFile {
    file: File,
    path: PathBuf,
    faults: Option<Arc<FaultSwitch>>,
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
        let op = (DiskOp::Write, bytes.len());
        let injected = meet(self.faults.as_ref(), op, ("write", &self.path))?;
        let write = |bytes: &[u8]| {
            self.file.write_all_at(bytes, offset).map_err(|error| self.failed("write", &error))
        };
        match injected {
            None => write(bytes),
            Some(WriteFault::Rot(bit)) => {
                let mut rotten = bytes.to_vec();
                if let Some(byte) = rotten.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
                write(&rotten)
            }
            Some(WriteFault::Torn(kept)) => {
                write(&bytes[..kept])?;
                let what = format!("write {} (injected, torn)", self.path.display());
                Err(Error::io(what, Errno::IO))
            }
        }
    }

    fn reserve(&self, len: u64) -> Result<()> {
        // A disk that is full takes no new segment either.
        meet(self.faults.as_ref(), (DiskOp::Write, 0), ("set space aside in", &self.path))?;
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            // Not every file system can set space aside; then a write may find none.
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
        meet(self.faults.as_ref(), (DiskOp::Sync, 0), ("sync", &self.path))?;
        self.file.sync_data().map_err(|error| self.failed("sync", &error))
    }
}
