//! The file system under a log, and its implementations.

mod dir;
pub mod memory;

use samite_types::Result;

pub use dir::DirDisk;

/// A directory of files. Names are flat: no separators.
pub trait LogDisk: Send + Sync {
    /// Names of all files, in no order.
    fn list(&self) -> Result<Vec<String>>;
    /// Makes a file; it must not exist. Its name lasts after [`sync`](Self::sync).
    fn create(&self, name: &str) -> Result<Box<dyn LogFile>>;
    /// Opens a file that exists.
    fn open(&self, name: &str) -> Result<Box<dyn LogFile>>;
    /// Gives a file another name, in place of what has it. Lasts after [`sync`](Self::sync).
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Removes a file. Lasts after [`sync`](Self::sync).
    fn remove(&self, name: &str) -> Result<()>;
    /// Returns when all changes of names are on flash.
    fn sync(&self) -> Result<()>;
    /// Bytes that are free.
    fn free(&self) -> Result<u64>;
}

/// An open file.
pub trait LogFile: Send {
    /// Bytes.
    fn len(&self) -> Result<u64>;
    /// No bytes at all.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads into all of `buf` from `offset`; fewer bytes only at the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Sets space aside for the first `len` bytes; those that were not there are zeros.
    fn reserve(&self, len: u64) -> Result<()>;
    /// Cuts or zero-extends.
    fn truncate(&self, len: u64) -> Result<()>;
    /// Returns when all bytes, and the length, are on flash.
    fn sync(&self) -> Result<()>;
}

impl std::fmt::Debug for dyn LogDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

impl std::fmt::Debug for dyn LogFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogFile")
    }
}
