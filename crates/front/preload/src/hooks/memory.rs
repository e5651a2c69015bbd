//! `mmap` of files of the store; how it works is told in [`crate::mapped`].

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};

use libc::{off_t, size_t};
use rustix::io::Errno;

use crate::hook::{attempt, guard, hooks, is_busy};
use crate::mapped::{self, AddressRange, FileMapping, PAGE_LEN};
use crate::raw;
use crate::real::set_errno;
use crate::table::{self, DescriptionUse};

const MAP_FAILED: *mut c_void = libc::MAP_FAILED;

/// The mapping that a program asks of `mmap`.
struct MapRequest {
    hint: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    at: off_t,
}

/// Maps `len` bytes of the file from `at`.
fn map(open: DescriptionUse, asked: &MapRequest) -> Result<*mut c_void, Errno> {
    open.check_open()?;
    open.check_readable().map_err(|_| Errno::ACCESS)?;
    let file = open.file()?;
    if file.kind() != samite_fs::FileKind::File {
        return Err(Errno::NODEV);
    }
    let page_len = PAGE_LEN as u64;
    let at = u64::try_from(asked.at).ok().filter(|at| at % page_len == 0).ok_or(Errno::INVAL)?;
    if asked.len == 0 {
        return Err(Errno::INVAL);
    }
    let len = asked.len.checked_next_multiple_of(PAGE_LEN).ok_or(Errno::NOMEM)?;
    let end = at.checked_add(len as u64).filter(|end| *end <= samite_fs::FILE_LEN_MAX);
    end.ok_or(Errno::OVERFLOW)?;
    let can_write = open.status() & libc::O_ACCMODE == libc::O_RDWR;
    let shared =
        matches!(asked.flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    if shared && asked.protection & libc::PROT_WRITE != 0 && !can_write {
        return Err(Errno::ACCESS);
    }
    let backing = mapped::backing(file.ino(), at, len as u64)?;
    let range = AddressRange { start: 0, len };
    let mut new = FileMapping { range, open, at, backing, writes: shared && can_write };
    new.load()?;
    if asked.flags & libc::MAP_FIXED != 0 {
        replace(asked.hint, len)?;
    }
    // A mapping of a file that is open for reading only must stay so, whatever `mprotect` is asked for.
    let read_only = if shared && !can_write { Some(new.backing.read_only()?) } else { None };
    let kernel = read_only.as_ref().map_or(new.backing.file(), AsFd::as_fd);
    // As for the kernel's own files: MAP_SYNC and the like are for hardware that this is not.
    let flags = asked.flags & !libc::MAP_SYNC;
    let start =
        raw::map(asked.hint, len, asked.protection, flags, kernel.as_raw_fd(), at.cast_signed())?;
    new.range.start = start as usize;
    mapped::add(new);
    Ok(start)
}

/// Something else is about to be mapped over this range.
fn replace(start: *mut c_void, len: usize) -> Result<(), Errno> {
    let range = AddressRange { start: start as usize, len };
    let outcome = mapped::write_back(range);
    mapped::forget(range);
    outcome
}

/// Whether a call on this range concerns mappings of the store. An allocator that is called while this thread is at work on the
/// store does not mean one of these.
fn is_mapped(start: *mut c_void, len: size_t) -> bool {
    !mapped::is_none()
        && !is_busy()
        && attempt(|| Ok(!mapped::parts(AddressRange { start: start as usize, len }).is_empty()))
            .unwrap_or(false)
}

/// Gives a mapping another length, and perhaps another place.
fn resize(
    old: AddressRange,
    new_len: usize,
    flags: c_int,
    place: *mut c_void,
    real: impl FnOnce() -> *mut c_void,
) -> Result<*mut c_void, Errno> {
    let found = mapped::parts(AddressRange { start: old.start, len: old.len.max(PAGE_LEN) });
    let mut new = found.into_iter().next().ok_or(Errno::FAULT)?;
    let new_len = new_len.checked_next_multiple_of(PAGE_LEN).ok_or(Errno::NOMEM)?;
    new.range.len = new_len;
    if new_len > old.len {
        new.backing.reserve(new.at, new_len as u64)?;
        new.load()?;
    } else {
        mapped::write_back(AddressRange { start: old.start + new_len, len: old.len - new_len })?;
    }
    if flags & libc::MREMAP_FIXED != 0 {
        replace(place, new_len)?;
    }
    let start = real();
    if start == MAP_FAILED {
        return Err(Errno::from_raw_os_error(crate::real::errno()));
    }
    // With length 0 and with DONTUNMAP, the old mapping stays.
    if old.len > 0 && flags & libc::MREMAP_DONTUNMAP == 0 {
        mapped::forget(old);
    }
    new.range.start = start as usize;
    mapped::add(new);
    Ok(start)
}

fn or_failed(outcome: Result<*mut c_void, Errno>) -> *mut c_void {
    outcome.unwrap_or_else(|failed| {
        set_errno(failed.raw_os_error());
        MAP_FAILED
    })
}

// Mapping is what allocators do before anything else works, dlsym included: calls that are not the store's go
// straight to the kernel.
hooks! {
    fn mmap = mmap64 = __mmap (hint: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t) -> *mut c_void {
        if flags & libc::MAP_ANONYMOUS == 0
            && let Some(open) = table::get(fd)
        {
            let asked = MapRequest { hint, len, protection, flags, at };
            return or_failed(attempt(move || map(open, &asked)));
        }
        if flags & libc::MAP_FIXED != 0 && is_mapped(hint, len) {
            // A page that cannot be written back now is lost, as the kernel's own would be after a
            // failed write.
            let _ = attempt(|| replace(hint, len));
        }
        or_failed(raw::map(hint, len, protection, flags, fd, at))
    }

    fn munmap = __munmap (start: *mut c_void, len: size_t) -> c_int {
        if is_mapped(start, len) {
            let range = AddressRange { start: start as usize, len: len.next_multiple_of(PAGE_LEN) };
            return guard(|| {
                mapped::write_back(range)?;
                // First out of the list: once unmapped, another thread may be given these addresses.
                mapped::forget(range);
                raw::unmap(start, len).map(|()| 0)
            });
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
                let range = AddressRange { start: start as usize, len };
                mapped::write_back(range)?;
                if flags & libc::MS_INVALIDATE != 0 {
                    mapped::parts(range).iter().try_for_each(FileMapping::load)?;
                }
                Ok(0)
            });
        }
        real(start, len, flags)
    }

    fn mremap(start: *mut c_void, len: size_t, new_len: size_t, flags: c_int, place: *mut c_void) -> *mut c_void {
        if is_mapped(start, len.max(1)) {
            let old = AddressRange { start: start as usize, len: len.next_multiple_of(PAGE_LEN) };
            return or_failed(attempt(|| resize(old, new_len, flags, place, || real(start, len, new_len, flags, place))));
        }
        real(start, len, new_len, flags, place)
    }

    fn remap_file_pages(start: *mut c_void, len: size_t, protection: c_int, page: size_t, flags: c_int) -> c_int {
        if is_mapped(start, len) {
            set_errno(libc::EINVAL);
            return -1;
        }
        real(start, len, protection, page, flags)
    }
}
