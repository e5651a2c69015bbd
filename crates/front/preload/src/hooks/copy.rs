//! Copies between descriptors.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use libc::{off_t, size_t, ssize_t};
use rustix::io::Errno;

use crate::hook::{guard, hooks};
use crate::hooks::reading::{read_at, read_next, write_at, write_next};
use crate::real::set_errno;
use crate::store::errno;
use crate::table::{self, DescriptionUse};
use crate::{foreign, mapped, raw};

/// Memory for one copying call, in bytes.
const COPY_LEN: usize = 1 << 20;

/// Where bytes come from or go to: a file of the store, or a kernel descriptor.
enum CopyEnd {
    Store(DescriptionUse),
    Kernel(c_int),
}

impl CopyEnd {
    fn new(fd: c_int) -> Self {
        table::get(fd).map_or(Self::Kernel(fd), Self::Store)
    }

    fn read(&self, into: &mut [u8], at: Option<off_t>) -> Result<usize, Errno> {
        match (self, at) {
            (Self::Store(open), None) => read_next(open, into),
            (Self::Store(open), Some(at)) => read_at(open, into, at),
            (Self::Kernel(fd), at) => raw::read(*fd, into, at),
        }
    }

    fn write(&self, from: &[u8], at: Option<off_t>) -> Result<usize, Errno> {
        match (self, at) {
            (Self::Store(open), None) => write_next(open, from),
            (Self::Store(open), Some(at)) => write_at(open, from, at),
            (Self::Kernel(fd), at) => raw::write(*fd, from, at),
        }
    }

    fn seek_back(&self, by: usize) {
        let by = by.cast_signed() as off_t;
        match self {
            // Where the offset cannot go back, as in a pipe, the bytes are lost, as they are for the kernel's sendfile.
            Self::Store(open) => drop(crate::hooks::reading::seek(open, -by, libc::SEEK_CUR)),
            Self::Kernel(fd) => drop(raw::seek_by(*fd, -by)),
        }
    }
}

/// One piece of a copy; both calls may copy less than they were asked to.
fn copy(
    from: &CopyEnd,
    from_at: *mut off_t,
    to: &CopyEnd,
    to_at: *mut off_t,
    len: size_t,
) -> Result<ssize_t, Errno> {
    if let CopyEnd::Store(open) = from {
        open.check_readable()?;
    }
    if let CopyEnd::Store(open) = to {
        open.check_writable()?;
    }
    let (read_from, write_to) = (foreign::get(from_at), foreign::get(to_at));
    let mut room = vec![0; len.min(COPY_LEN)];
    let read = from.read(&mut room, read_from)?;
    if read == 0 {
        return Ok(0);
    }
    let written = match to.write(&room[..read], write_to) {
        Ok(written) => written,
        Err(errno) => {
            if read_from.is_none() {
                from.seek_back(read);
            }
            return Err(errno);
        }
    };
    if written < read && read_from.is_none() {
        from.seek_back(read - written);
    }
    if let Some(at) = read_from {
        foreign::put(from_at, at + written as off_t)?;
    }
    if let Some(at) = write_to {
        foreign::put(to_at, at + written as off_t)?;
    }
    Ok(written.cast_signed())
}

/// A copy within the store.
fn copy_within(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
) -> Result<ssize_t, Errno> {
    let bad = || Errno::BADF;
    let (from, to) = (table::get(from).ok_or_else(bad)?, table::get(to).ok_or_else(bad)?);
    from.check_readable()?;
    to.check_writable()?;
    // The offsets of the descriptors, unless the caller has given others.
    let place = |open: &DescriptionUse, at: *mut off_t| match foreign::get(at) {
        Some(at) => u64::try_from(at).map_err(|_| Errno::INVAL),
        None => Ok(open.slot().offset.load(Ordering::Acquire)),
    };
    let (start, target) = (place(&from, from_at)?, place(&to, to_at)?);
    if !mapped::is_none() {
        mapped::before_read(&from, start, len)?;
    }
    from.settle()?;
    to.mark_dirty();
    let (source, sink) = (from.file()?, to.file()?);
    let copied = source.file_system().copy_range(source, start, sink, target, len as u64);
    let copied = copied.map_err(|error| errno(&error))?;
    if !mapped::is_none() {
        mapped::refresh(&to)?;
    }
    for (open, at, before) in [(&from, from_at, start), (&to, to_at, target)] {
        let after = before + copied;
        if at.is_null() {
            open.slot().offset.store(after, Ordering::Release);
        } else {
            foreign::put(at, off_t::try_from(after).map_err(|_| Errno::OVERFLOW)?)?;
        }
    }
    Ok(isize::try_from(copied).unwrap_or(isize::MAX))
}

hooks! {
    fn copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint) -> ssize_t {
        match (table::has(from), table::has(to)) {
            (false, false) => real(from, from_at, to, to_at, len, flags),
            (true, true) if flags == 0 => guard(|| copy_within(from, from_at, to, to_at, len)),
            (true, true) => guard(|| Err(Errno::INVAL)),
            // Between file systems, as for the kernel: programs fall back to reading and writing.
            _ => guard(|| Err(Errno::XDEV)),
        }
    }

    fn sendfile = sendfile64 (to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t {
        if !table::has(from) && !table::has(to) {
            return real(to, from, from_at, len);
        }
        guard(|| copy(&CopyEnd::new(from), from_at, &CopyEnd::new(to), std::ptr::null_mut(), len))
    }

    fn vmsplice(fd: c_int, parts: *const c_void, count: size_t, flags: c_uint) -> ssize_t {
        if table::has(fd) {
            set_errno(libc::EBADF);
            return -1;
        }
        real(fd, parts, count, flags)
    }

    fn tee(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
        if table::has(from) || table::has(to) {
            set_errno(libc::EINVAL);
            return -1;
        }
        real(from, to, len, flags)
    }
}
