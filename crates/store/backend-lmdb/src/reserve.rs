//! Space on the disk that is set aside: a full disk can be emptied.
//!
//! LMDB copies what it changes, so deleting takes space, too; and changes that were taken before the
//! disk was full have to get there. When a commit finds the disk full, the file that takes this
//! space is cut by a quarter, again and again until the commit fits.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Parts of it that are given up one by one.
const QUARTERS: u64 = 4;

/// Space of a disk that is set aside.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    file: OwnedFd,
    len: u64,
    /// How many parts of it are there.
    quarters: AtomicU64,
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
        let reserve = Self { file, len, quarters: AtomicU64::new(0) };
        reserve.refill();
        Ok(reserve)
    }

    /// Bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    fn quarters(&self) -> u64 {
        self.quarters.load(Ordering::Relaxed)
    }

    /// Whether all of it is there.
    pub(crate) fn is_whole(&self) -> bool {
        self.quarters() == QUARTERS
    }

    /// Whether some of it is there.
    pub(crate) fn has_some(&self) -> bool {
        self.quarters() > 0
    }

    /// Gives a part of it to what is to be written. Returns whether there was some.
    pub(crate) fn release(&self) -> bool {
        let Some(left) = self.quarters().checked_sub(1) else { return false };
        self.quarters.store(left, Ordering::Relaxed);
        let has_space = fs::fstat(&self.file).is_ok_and(|stat| stat.st_blocks > 0);
        has_space && fs::ftruncate(&self.file, left * self.len / QUARTERS).is_ok()
    }

    /// Sets as much of it aside again as is there.
    pub(crate) fn refill(&self) {
        for quarters in (self.quarters() + 1..=QUARTERS).rev() {
            let len = quarters * self.len / QUARTERS;
            match fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
                // Where no space can be set aside, it cannot be missed either.
                Ok(()) | Err(Errno::OPNOTSUPP) => {
                    self.quarters.store(quarters, Ordering::Relaxed);
                    return;
                }
                Err(_) => {
                    // Some file systems keep what they found.
                    let _ = fs::ftruncate(&self.file, self.quarters() * self.len / QUARTERS);
                }
            }
        }
    }

    /// Whether the disk has next to nothing left.
    pub(crate) fn is_disk_full(&self) -> bool {
        fs::fstatvfs(&self.file)
            .is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) < RESERVE_LEN_MIN)
    }
}
