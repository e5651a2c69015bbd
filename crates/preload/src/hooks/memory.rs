//! `mmap` of files of the store.
//!
//! A mapping is anonymous memory into which the file's bytes are read when it is made. What is written to a shared mapping goes back to
//! the file at `msync`, `munmap` and the end of the process, page by page, and only pages that changed, told by a hash, so that two processes who map the same file do not overwrite each other's pages.
//! Between these points mappings of one file in different processes do not see each other.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{off_t, size_t};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use xxhash_rust::xxh3::xxh3_64;

use crate::hook::{attempt, guard, hooks, is_busy};
use crate::hooks::reading::{check_readable, errno};
use crate::raw;
use crate::real::set_errno;
use crate::table::{self, Open};

const PAGE_LEN: usize = 4096;
const MAP_FAILED: *mut c_void = libc::MAP_FAILED;

/// A shared mapping that can be written to.
struct Mapping {
    start: usize,
    len: usize,
    open: Open,
    /// Offset of `start` in the file, in bytes.
    at: u64,
    /// Of each page, as it is in the file.
    hashes: Vec<u64>,
}

static MAPPINGS: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());
/// How many there are: `munmap` of anything else pays one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn page(start: usize, index: usize) -> &'static [u8] {
    // SAFETY: within a mapping of whole pages that is in the list, so not unmapped yet; the program may write to it
    // meanwhile, as with any shared memory, which at worst makes a hash stale and the page be written once more.
    unsafe { std::slice::from_raw_parts((start + index * PAGE_LEN) as *const u8, PAGE_LEN) }
}

impl Mapping {
    /// Writes the changed pages of `[from, to)` to the file; bytes past its end have nowhere to go.
    fn write_back(&mut self, from: usize, to: usize) -> Result<(), Errno> {
        let file = self.open.file()?;
        let size = file.attr().map_err(|error| errno(&error))?.size;
        let first = from.saturating_sub(self.start) / PAGE_LEN;
        let end = (to.min(self.start + self.len).saturating_sub(self.start)).div_ceil(PAGE_LEN);
        let mut outcome = Ok(());
        for index in first..end {
            let bytes = page(self.start, index);
            let hash = xxh3_64(bytes);
            let at = self.at + (index * PAGE_LEN) as u64;
            if hash == self.hashes[index] || at >= size {
                continue;
            }
            let len = usize::try_from(size - at).unwrap_or(PAGE_LEN).min(PAGE_LEN);
            self.open.mark_dirty();
            match file.write_at(&bytes[..len], at) {
                Ok(_) => self.hashes[index] = hash,
                Err(error) => outcome = Err(errno(&error)),
            }
        }
        outcome.and(self.open.settle())
    }

    /// What is left of it outside `[from, to)`.
    fn without(self, from: usize, to: usize) -> impl Iterator<Item = Self> {
        let end = self.start + self.len;
        let part = |start: usize, end: usize| {
            let skip = start - self.start;
            Self {
                start,
                len: end - start,
                open: self.open.clone(),
                at: self.at + skip as u64,
                hashes: self.hashes
                    [skip / PAGE_LEN..end.saturating_sub(self.start).div_ceil(PAGE_LEN)]
                    .to_vec(),
            }
        };
        let before = (from > self.start).then(|| part(self.start, from));
        let after = (to < end).then(|| part(to, end));
        before.into_iter().chain(after)
    }
}

/// Calls `visit` for each mapping that touches `[start, start + len)`.
fn touching(
    start: usize,
    len: usize,
    mut visit: impl FnMut(&mut Mapping) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut outcome = Ok(());
    for mapping in mappings.iter_mut() {
        if mapping.start < start.saturating_add(len) && start < mapping.start + mapping.len {
            outcome = outcome.and(visit(mapping));
        }
    }
    outcome
}

/// Writes every shared mapping back.
pub fn write_back_all() -> Result<(), Errno> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    touching(0, usize::MAX, |mapping| mapping.write_back(0, usize::MAX))
}

fn forget(start: usize, len: usize) {
    let end = start.saturating_add(len);
    let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let (hit, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut *mappings)
        .into_iter()
        .partition(|mapping| mapping.start < end && start < mapping.start + mapping.len);
    *mappings = rest;
    mappings.extend(hit.into_iter().flat_map(|mapping| mapping.without(start, end)));
    COUNT.store(mappings.len(), Ordering::Relaxed);
}

fn fill(open: &Open, memory: &mut [u8], at: u64) -> Result<(), Errno> {
    let file = open.file()?;
    let mut done = 0;
    while done < memory.len() {
        let len =
            file.read_at(&mut memory[done..], at + done as u64).map_err(|error| errno(&error))?;
        if len == 0 {
            break;
        }
        done += len;
    }
    Ok(())
}

/// Maps `len` bytes of the file from `at`.
fn map(
    open: Open,
    hint: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    at: off_t,
) -> Result<*mut c_void, Errno> {
    check_readable(&open).map_err(|_| Errno::ACCESS)?;
    let at = u64::try_from(at).ok().filter(|at| at % PAGE_LEN as u64 == 0).ok_or(Errno::INVAL)?;
    if len == 0 {
        return Err(Errno::INVAL);
    }
    let writes = open.status() & libc::O_ACCMODE == libc::O_RDWR;
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    if shared && protection & libc::PROT_WRITE != 0 && !writes {
        return Err(Errno::ACCESS);
    }
    let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    let place = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    let len = len.checked_next_multiple_of(PAGE_LEN).ok_or(Errno::NOMEM)?;
    if flags & libc::MAP_FIXED != 0 && COUNT.load(Ordering::Relaxed) > 0 {
        forget(hint as usize, len);
    }
    // SAFETY: the place is the program's choice, as it is for the kernel's mmap.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            hint,
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            kind | MapFlags::from_bits_retain(place.cast_unsigned()),
        )
    }?;
    // SAFETY: the memory was just mapped, and nobody else knows of it.
    let memory = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), len) };
    let filled = fill(&open, memory, at).and_then(|()| {
        let hashes = if shared && writes {
            memory.chunks(PAGE_LEN).map(xxh3_64).collect()
        } else {
            Vec::new()
        };
        // SAFETY: as above.
        unsafe {
            rustix::mm::mprotect(
                start,
                len,
                MprotectFlags::from_bits_retain(protection.cast_unsigned()),
            )
        }?;
        Ok(hashes)
    });
    match filled {
        Ok(hashes) if shared && writes => {
            let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
            mappings.push(Mapping { start: start as usize, len, open, at, hashes });
            COUNT.store(mappings.len(), Ordering::Relaxed);
        }
        Ok(_) => {}
        Err(failed) => {
            // SAFETY: as above.
            let _ = unsafe { rustix::mm::munmap(start, len) };
            return Err(failed);
        }
    }
    Ok(start)
}

fn is_mapped(start: *mut c_void, len: size_t) -> bool {
    // An allocator that unmaps while this thread holds the list is not unmapping one of these.
    COUNT.load(Ordering::Relaxed) > 0
        && !is_busy()
        && touching(start as usize, len, |_| Err(Errno::EXIST)) == Err(Errno::EXIST)
}

// Mapping is what allocators do before anything else works, dlsym included: calls that are not the store's go
// straight to the kernel.
hooks! {
    fn mmap = mmap64 (hint: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t) -> *mut c_void {
        if flags & libc::MAP_ANONYMOUS == 0
            && let Some(open) = table::get(fd)
        {
            let start = guard(move || map(open, hint, len, protection, flags, at));
            return if start.is_null() { MAP_FAILED } else { start };
        }
        match raw::map(hint, len, protection, flags, fd, at) {
            Ok(start) => start,
            Err(failed) => {
                set_errno(failed.raw_os_error());
                MAP_FAILED
            }
        }
    }

    fn munmap(start: *mut c_void, len: size_t) -> c_int {
        if is_mapped(start, len) {
            let len = len.next_multiple_of(PAGE_LEN);
            let back = attempt(|| {
                let outcome = touching(start as usize, len, |mapping| {
                    mapping.write_back(start as usize, (start as usize).saturating_add(len))
                });
                forget(start as usize, len);
                outcome
            });
            if let Err(failed) = back {
                set_errno(failed.raw_os_error());
                return -1;
            }
        }
        match raw::unmap(start, len) {
            Ok(()) => 0,
            Err(failed) => {
                set_errno(failed.raw_os_error());
                -1
            }
        }
    }

    fn msync(start: *mut c_void, len: size_t, flags: c_int) -> c_int {
        if is_mapped(start, len) {
            return guard(|| {
                touching(start as usize, len, |mapping| {
                    mapping.write_back(start as usize, (start as usize).saturating_add(len))
                })
                .map(|()| 0)
            });
        }
        real(start, len, flags)
    }

    fn mremap(start: *mut c_void, len: size_t, new_len: size_t, flags: c_int, place: *mut c_void) -> *mut c_void {
        if is_mapped(start, len) {
            set_errno(libc::ENOMEM);
            return MAP_FAILED;
        }
        real(start, len, new_len, flags, place)
    }
}
