//! Shared mappings of memory files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use samite_cpu::{prefetch, prefetch_to_write};

/// Memory that other processes see and may change at any time.
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory, valid from any thread until dropped; all access goes through atomics or raw copies
// whose callers keep to the protocol of the memory's layout.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

/// A memory file of `len` zero bytes that can change its length no more, so that nobody's access to it can fault.
pub fn memory_file(name: &str, len: usize) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Length of a memory file, in bytes.
pub fn file_len(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(fd)?.st_size.unsigned_abs())
}

impl SharedMapping {
    /// Maps the first `len` bytes of `fd`, shared, for reading and writing.
    pub fn new(fd: impl AsFd, len: usize) -> Result<Self, Errno> {
        Self::with_access(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `len` bytes of `fd`, shared, for reading: a write faults but where
    /// [`SharedMapping::set_writable`] allows it.
    pub fn read_only(fd: impl AsFd, len: usize) -> Result<Self, Errno> {
        Self::with_access(fd, len, ProtFlags::READ)
    }

    fn with_access(fd: impl AsFd, len: usize, prot: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// Allows this process to write to `offset .. offset + len`, whole pages, or allows it no more.
    ///
    /// # Errors
    /// `NOMEM`: the process has too many mappings. Some of the pages may have changed.
    pub fn set_writable(&self, offset: usize, len: usize, writable: bool) -> Result<(), Errno> {
        let (read, write) = (MprotectFlags::READ, MprotectFlags::WRITE);
        let access = if writable { read | write } else { read };
        // SAFETY: the range lies in this mapping, as `at` checks. It stays readable; who writes to
        // it has made it writable before.
        unsafe { rustix::mm::mprotect(self.at(offset, len).cast(), len, access) }
    }

    /// Pointer to `offset .. offset + len`.
    ///
    /// # Panics
    /// When that is out of bounds: offsets that come from outside are checked before.
    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "offset outside of the mapping");
        // SAFETY: in bounds, as just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Prefetch: has the processor fetch `len` bytes from `offset` on, which will be needed soon.
    pub fn prefetch(&self, offset: usize, len: usize) {
        prefetch(self.start.as_ptr().cast_const().wrapping_add(offset), len);
    }

    /// The same for bytes that will be written.
    pub fn prefetch_to_write(&self, offset: usize, len: usize) {
        prefetch_to_write(self.start.as_ptr().cast_const().wrapping_add(offset), len);
    }

    /// The word at `offset`, a multiple of 4.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "word offset is not aligned");
        // SAFETY: in bounds and aligned, as checked; the memory lives as long as `self`, and words are only
        // ever accessed atomically.
        unsafe { &*self.at(offset, 4).cast::<AtomicU32>() }
    }

    /// The word of eight bytes at `offset`, a multiple of 8.
    pub fn long_word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "word offset is not aligned");
        // SAFETY: as of `word`.
        unsafe { &*self.at(offset, 8).cast::<AtomicU64>() }
    }

    /// In a forked child: lets go of the shared memory and puts zeros in its place, so that whatever still looks there
    /// reads valid memory.
    pub fn detach(&self) {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is this mapping's own; it stays mapped, readable and writable.
        let _ = unsafe {
            rustix::mm::mmap_anonymous(self.start.as_ptr().cast(), self.len, prot, flags)
        };
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
