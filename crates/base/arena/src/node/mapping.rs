//! The memory file and the node's mapping of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use samite_types::{Error, Result};

use crate::layout::ArenaLayout;

/// A memory file, mapped. Its pages are shared with clients of the same user: nothing that must be right for the node's own
/// safety (lengths, offsets) is read back from it.
pub(super) struct ArenaMapping {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that stays in place until drop; who may touch which bytes of it is settled by
// `Extent` (one owner may write, sharers may read), and the words are atomics.
unsafe impl Send for ArenaMapping {}
// SAFETY: as above.
unsafe impl Sync for ArenaMapping {}

impl ArenaMapping {
    /// Makes the file, maps it and writes its header. The file has small pages, also where the
    /// machine has reserved huge ones: a client makes single blocks writable.
    pub(super) fn create(layout: &ArenaLayout) -> Result<Self> {
        let len = layout.total_len();
        let mapping = Self::map(len)
            .map_err(|errno| Error::io(format_args!("map an arena of {len} B"), errno))?;
        let header = layout.header();
        // SAFETY: the header lies at the start of the mapping, which is longer, and nobody else has the mapping yet.
        unsafe { mapping.base.cast().write(header) };
        Ok(mapping)
    }

    fn map(len: u64) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("samite-arena", flags)?;
        ftruncate(&fd, len)?;
        // A client that cut the file would make the node fault.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0)? };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { fd, base, len };
        // A hint: where the machine has no huge pages for shared memory, small ones serve.
        let _ = mapping.advise(0, len, Advice::LinuxHugepage);
        Ok(mapping)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Advises the kernel about `offset .. offset + len`, which the caller keeps within the mapping.
    pub(super) fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the range lies in the mapping, and the advice given (huge pages, populating) changes no bytes.
        unsafe { madvise(self.base.as_ptr().add(offset).cast(), len, advice) }
    }

    /// Gives the pages of `offset .. offset + len` back to the system; the bytes read as zeros then.
    /// The caller keeps the range within the mapping, at page bounds, and lets nobody have it.
    pub(super) fn release(&self, offset: usize, len: usize) -> Result<(), Errno> {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the range lies in the mapping, which stays as it is; nobody relies on the bytes of
        // blocks that nobody has: readers with an old reference compare generations, which lie
        // elsewhere.
        unsafe { madvise(self.base.as_ptr().add(offset).cast(), len, Advice::LinuxRemove) }
    }

    /// Address of `len` bytes at `offset`.
    pub(super) fn at(&self, offset: u64, len: usize) -> NonNull<u8> {
        let offset = offset as usize;
        debug_assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: extents lie within the mapping: their offsets come from the layout that the mapping was made for.
        unsafe { self.base.add(offset) }
    }

    /// Prefetch: has the processor fetch `len` bytes from `offset` on, which will be needed soon.
    pub(super) fn prefetch(&self, offset: usize, len: usize) {
        let start = self.base.as_ptr().cast_const().wrapping_add(offset);
        samite_cpu::prefetch(start, len);
    }

    /// The same for bytes that will be written.
    pub(super) fn prefetch_to_write(&self, offset: usize, len: usize) {
        let start = self.base.as_ptr().cast_const().wrapping_add(offset);
        samite_cpu::prefetch_to_write(start, len);
    }

    /// A shared word.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: within the mapping, aligned, and only ever used as an atomic, by all who map it.
        unsafe { self.base.add(offset).cast().as_ref() }
    }
}

impl ArenaMapping {
    /// A shared word of eight bytes.
    pub(super) fn long_word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: as of `word`.
        unsafe { self.base.add(offset).cast().as_ref() }
    }
}

impl Drop for ArenaMapping {
    fn drop(&mut self) {
        // SAFETY: made by `map` with this length; every extent holds the arena, so none is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
