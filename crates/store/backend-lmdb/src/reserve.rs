//! Space on the disk that is set aside: a full disk can be emptied.
//!
//! LMDB copies what it changes, so deleting takes space, too; and changes that were taken before the
//! disk was full have to get there. When a commit finds the disk full, the file that takes this
//! space is cut, and growth is refused until it is back.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use samite_types::{Error, Result};

use crate::root::TargetRoot;

/// Name of the file that takes the space.
const RESERVE_NAME: &str = "reserve";
/// It is one part in so many of the target's capacity, within bounds.
const RESERVE_PART: u64 = 64;
const RESERVE_LEN_MIN: u64 = 1 << 20;
const RESERVE_LEN_MAX: u64 = 64 << 20;

/// Space of a disk that is set aside.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    file: OwnedFd,
    len: u64,
    /// It is there, or this kind of file system cannot set space aside.
    is_whole: AtomicBool,
}

impl DiskReserve {
    /// Sets space aside for a target of `capacity` bytes, if it is there.
    ///
    /// # Errors
    /// Errors of the disk.
    pub(crate) fn open(root: &TargetRoot, capacity: u64) -> Result<Self> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(root.dir(), RESERVE_NAME, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| Error::io("the file of reserved space", errno))?;
        let len = (capacity / RESERVE_PART).clamp(RESERVE_LEN_MIN, RESERVE_LEN_MAX);
        let reserve = Self { file, len, is_whole: AtomicBool::new(false) };
        reserve.refill();
        Ok(reserve)
    }

    /// Bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is there.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    /// Gives the space to what is to be written. Returns whether there was some.
    pub(crate) fn release(&self) -> bool {
        self.is_whole.store(false, Ordering::Relaxed);
        let had = fs::fstat(&self.file).is_ok_and(|stat| stat.st_blocks > 0);
        had && fs::ftruncate(&self.file, 0).is_ok()
    }

    /// Sets the space aside again, if it is there.
    pub(crate) fn refill(&self) {
        if self.is_whole() {
            return;
        }
        let is_whole = match fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.len) {
            Ok(()) | Err(Errno::OPNOTSUPP) => true,
            Err(_) => {
                // Some file systems keep what they found.
                let _ = fs::ftruncate(&self.file, 0);
                false
            }
        };
        self.is_whole.store(is_whole, Ordering::Relaxed);
    }

    /// Whether the disk has next to nothing left.
    pub(crate) fn is_disk_full(&self) -> bool {
        fs::fstatvfs(&self.file)
            .is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) < RESERVE_LEN_MIN)
    }
}
