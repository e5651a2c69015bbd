//! The state that an open file keeps of its own writes.
//!
//! Writing to a chunked file sends data only. Before the first such write, a handle sets the
//! *writing mark* in the inode: while it stands, the settled size in the inode is only a lower
//! bound, and the size is asked of the holders of the chunks. Settling (close, fsync) raises the
//! settled size to where this handle has written and takes its mark off again.
//!
//! The time of a write goes with the data, into a stamp beside the chunk, and with settling into
//! the inode. While the mark stands, the time is asked for with the stamps, as the size is.
//!
//! The mark is the handle's token. A second writer turns it into
//! [`MARK_SHARED`](crate::records::inode::MARK_SHARED), which stays: then asking for the size costs one
//! request more, and is right whichever handle writes. A child after `fork` has a mark of its own
//! to set.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Timestamp;

/// The mark that a handle has set.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandleStamp {
    pub token: u64,
    /// Cuts of the file when it was set; [`DISTRUST`] when how far this handle has written says nothing about the size.
    pub cuts: u64,
}

/// Writes of one handle that are closer to each other than this have one time for others, until
/// they are settled; kernels do so, too.
const TELL_EVERY_NS: u64 = 4_000_000;

/// No number of cuts.
pub const DISTRUST: u64 = u64::MAX;

/// A size that the file once had.
#[derive(Clone, Copy, Debug)]
pub struct SeenSize {
    pub size: u64,
    /// Cuts of the file at that time.
    pub cuts: u64,
}

/// State of an open file's writes.
#[derive(Debug)]
pub struct WriteState {
    /// 0: no mark set; else one more than the forks that the process was away from the start when it was.
    marked: AtomicU32,
    mark: Mutex<HandleStamp>,
    end: AtomicU64,
    seen: Mutex<SeenSize>,
    /// The file is at least this long, unless another handle has cut it.
    known_end: AtomicU64,
    /// The inode tells of holes, as far as this handle knows.
    sparse: AtomicBool,
    /// When it was last written, and when that was last told; nanoseconds since 1970.
    written: AtomicI64,
    told: AtomicI64,
}

impl WriteState {
    pub fn new(size: u64, cuts: u64) -> Self {
        Self {
            marked: AtomicU32::new(0),
            mark: Mutex::default(),
            end: AtomicU64::new(0),
            seen: Mutex::new(SeenSize { size, cuts }),
            known_end: AtomicU64::new(size),
            sparse: AtomicBool::new(false),
            written: AtomicI64::new(0),
            told: AtomicI64::new(0),
        }
    }

    /// Whether this process's mark is set.
    pub fn is_marked(&self, forks: u32) -> bool {
        self.marked.load(Ordering::Acquire) == forks + 1
    }

    /// Holds off other threads that would set or take off the mark.
    pub fn lock(&self) -> MutexGuard<'_, HandleStamp> {
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
        self.see_end(end);
    }

    /// How far was written.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Notes that a write begins. `Some`: its time is to be told with the data, to others that ask;
    /// the time of a write soon after one that was told is not.
    pub fn begin(&self, now: Timestamp) -> Option<Timestamp> {
        self.written.fetch_max(now.0, Ordering::AcqRel);
        let told = self.told.load(Ordering::Relaxed);
        if now.0.wrapping_sub(told).unsigned_abs() < TELL_EVERY_NS {
            return None;
        }
        self.told.store(now.0, Ordering::Release);
        Some(now)
    }

    /// When this handle wrote last, as others are told.
    pub fn told(&self) -> Timestamp {
        Timestamp(self.told.load(Ordering::Acquire))
    }

    /// When this handle wrote last.
    pub fn written(&self) -> Timestamp {
        Timestamp(self.written.load(Ordering::Acquire))
    }

    /// The last size seen.
    pub fn seen(&self) -> SeenSize {
        *self.lock_seen()
    }

    pub fn see(&self, seen: SeenSize) {
        *self.lock_seen() = seen;
        self.see_end(seen.size);
    }

    /// Notes that the file is at least this long.
    pub fn see_end(&self, end: u64) {
        self.known_end.fetch_max(end, Ordering::Relaxed);
    }

    /// Notes that this handle has cut the file.
    pub fn cut(&self, len: u64) {
        self.known_end.store(len, Ordering::Relaxed);
        self.sparse.store(false, Ordering::Relaxed);
    }

    /// Whether a write at `offset` may leave a hole before it that the inode does not tell of yet.
    pub fn may_leave_hole(&self, offset: u64) -> bool {
        offset > self.known_end.load(Ordering::Relaxed) && !self.sparse.load(Ordering::Relaxed)
    }

    /// Notes that the inode tells of holes.
    pub fn set_sparse(&self) {
        self.sparse.store(true, Ordering::Relaxed);
    }

    fn lock_seen(&self) -> MutexGuard<'_, SeenSize> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
