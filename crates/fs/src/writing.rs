//! What an open file knows of its own writes.
//!
//! Writing to a chunked file sends data only. Before the first such write, a handle sets the *writing mark* in the
//! inode: while it stands, the
//! settled size in the inode is only a lower bound, and whoever wants the size asks the holders of the chunks.
//! Settling (close, fsync)
//! raises the settled size to where this handle has written and takes its mark off again.
//!
//! The mark is the handle's token. A second writer turns it into [`MARK_SHARED`](crate::inode::MARK_SHARED), which
//! stays: then asking
//! for the size costs one request more, and is right whoever writes. A child after `fork` has a mark of its own to set.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The mark that a handle has set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    pub token: u64,
    /// Cuts of the file when it was set; [`DISTRUST`] when how far this handle has written says nothing about the size.
    pub cuts: u64,
}

/// No number of cuts.
pub const DISTRUST: u64 = u64::MAX;

/// A size that the file once had.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub size: u64,
    /// Cuts of the file at that time.
    pub cuts: u64,
}

/// State of an open file's writes.
#[derive(Debug)]
pub struct Writing {
    /// 0: no mark set; else one more than the forks that the process was away from the start when it was.
    marked: AtomicU32,
    mark: Mutex<Mark>,
    end: AtomicU64,
    seen: Mutex<Seen>,
}

impl Writing {
    pub fn new(size: u64, cuts: u64) -> Self {
        Self {
            marked: AtomicU32::new(0),
            mark: Mutex::default(),
            end: AtomicU64::new(0),
            seen: Mutex::new(Seen { size, cuts }),
        }
    }

    /// Whether this process's mark is set.
    pub fn is_marked(&self, forks: u32) -> bool {
        self.marked.load(Ordering::Acquire) == forks + 1
    }

    /// Holds off other threads that would set or take off the mark.
    pub fn lock(&self) -> MutexGuard<'_, Mark> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_marked(&self, forks: u32) {
        self.marked.store(forks + 1, Ordering::Release);
    }

    pub fn clear_marked(&self) {
        self.marked.store(0, Ordering::Release);
    }

    /// Notes that bytes up to `end` were written.
    pub fn reached(&self, end: u64) {
        self.end.fetch_max(end, Ordering::AcqRel);
    }

    /// How far was written.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// The last size seen.
    pub fn seen(&self) -> Seen {
        *self.lock_seen()
    }

    pub fn see(&self, seen: Seen) {
        *self.lock_seen() = seen;
    }

    fn lock_seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
