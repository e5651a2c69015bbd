//! Reading, writing and seeking.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{iovec, off_t, size_t, ssize_t};
use rustix::io::Errno;
use samite_fs::OpenFile;

use crate::hook::{by_fd, hooks};
use crate::hooks::exit::is_exiting;
use crate::hooks::limits;
use crate::store::errno;
use crate::table::OpenDescription;
use crate::{foreign, mapped};

/// Reads at the file offset, which several processes may share: the one that moves it from where it read has the bytes, the
/// other reads again. No lock that a killed process could keep.
pub fn read_next(open: &OpenDescription, into: &mut [u8]) -> Result<usize, Errno> {
    open.check_readable()?;
    let file = open.file()?;
    let offset = &open.slot().offset;
    loop {
        let at = offset.load(Ordering::Acquire);
        if !mapped::is_none() {
            mapped::before_read(open, at, into.len())?;
        }
        let len = file.read_at(into, at).map_err(|error| errno(&error))?;
        let next = at + len as u64;
        if len == 0
            || offset.compare_exchange(at, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return Ok(len);
        }
    }
}

/// Writes at the file offset, or at the end with `O_APPEND`. The range is taken before the bytes go out, so that writers who
/// share an offset never overlap.
pub fn write_next(open: &OpenDescription, from: &[u8]) -> Result<usize, Errno> {
    open.check_writable()?;
    let file = open.file()?;
    if from.is_empty() {
        return Ok(0);
    }
    open.mark_dirty();
    let outcome = write_range(open, file, from);
    if is_exiting() {
        open.settle()?;
    }
    outcome
}

fn write_range(open: &OpenDescription, file: &OpenFile, from: &[u8]) -> Result<usize, Errno> {
    let offset = &open.slot().offset;
    if open.status() & libc::O_APPEND != 0 {
        let from = &from[..limits::allowed_at_end(open, from.len())?];
        let (at, len) = append(open, file, from)?;
        offset.store(at + len as u64, Ordering::Release);
        return Ok(len);
    }
    let at = offset.fetch_add(from.len() as u64, Ordering::AcqRel);
    let outcome = put(open, file, from, at);
    let written = *outcome.as_ref().unwrap_or(&0);
    if written < from.len() {
        let (there, here) = (at + from.len() as u64, at + written as u64);
        // Another writer went on from there: then the gap stays, as after a short write with a shared offset anywhere.
        let _ = offset.compare_exchange(there, here, Ordering::AcqRel, Ordering::Relaxed);
    }
    outcome
}

pub fn read_at(open: &OpenDescription, into: &mut [u8], at: off_t) -> Result<usize, Errno> {
    open.check_readable()?;
    let at = u64::try_from(at).map_err(|_| Errno::INVAL)?;
    if !mapped::is_none() {
        mapped::before_read(open, at, into.len())?;
    }
    open.file()?.read_at(into, at).map_err(|error| errno(&error))
}

pub fn write_at(open: &OpenDescription, from: &[u8], at: off_t) -> Result<usize, Errno> {
    open.check_writable()?;
    let at = u64::try_from(at).map_err(|_| Errno::INVAL)?;
    open.mark_dirty();
    if open.status() & libc::O_APPEND != 0 {
        // As Linux does: with O_APPEND, pwrite goes to the end too.
        let from = &from[..limits::allowed_at_end(open, from.len())?];
        return append(open, open.file()?, from).map(|(_, len)| len);
    }
    put(open, open.file()?, from, at)
}

fn put(open: &OpenDescription, file: &OpenFile, from: &[u8], at: u64) -> Result<usize, Errno> {
    let from = &from[..limits::allowed(at, from.len())?];
    let written = file.write_at(from, at).map_err(|error| errno(&error))?;
    if !mapped::is_none() {
        mapped::after_write(open, &from[..written], at)?;
    }
    Ok(written)
}

fn append(open: &OpenDescription, file: &OpenFile, from: &[u8]) -> Result<(u64, usize), Errno> {
    let (at, len) = file.append(from).map_err(|error| errno(&error))?;
    if !mapped::is_none() {
        mapped::after_write(open, &from[..len], at)?;
    }
    Ok((at, len))
}

/// Moves the file offset.
pub fn seek(open: &OpenDescription, by: off_t, whence: c_int) -> Result<off_t, Errno> {
    if open.status() & libc::O_PATH != 0 {
        return Err(Errno::BADF);
    }
    let offset = &open.slot().offset;
    let size = || open.file()?.attr().map(|attr| attr.size).map_err(|error| errno(&error));
    let signed = |value: u64| off_t::try_from(value).map_err(|_| Errno::OVERFLOW);
    let target = match whence {
        libc::SEEK_SET => by,
        libc::SEEK_CUR => {
            signed(offset.load(Ordering::Acquire))?.checked_add(by).ok_or(Errno::OVERFLOW)?
        }
        libc::SEEK_END => signed(size()?)?.checked_add(by).ok_or(Errno::OVERFLOW)?,
        libc::SEEK_DATA | libc::SEEK_HOLE => {
            let from = u64::try_from(by).map_err(|_| Errno::NXIO)?;
            let file = open.file()?;
            let found =
                if whence == libc::SEEK_DATA { file.seek_data(from) } else { file.seek_hole(from) };
            signed(found.map_err(|error| errno(&error))?.ok_or(Errno::NXIO)?)?
        }
        _ => return Err(Errno::INVAL),
    };
    offset.store(u64::try_from(target).map_err(|_| Errno::INVAL)?, Ordering::Release);
    Ok(target)
}

pub fn total_len(parts: &[iovec]) -> Result<usize, Errno> {
    const PARTS_MAX: usize = 1024;
    if parts.len() > PARTS_MAX {
        return Err(Errno::INVAL);
    }
    parts
        .iter()
        .try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))
        .filter(|sum| isize::try_from(*sum).is_ok())
        .ok_or(Errno::INVAL)
}

/// Reads once, into several pieces.
fn scatter(
    parts: &[iovec],
    read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<ssize_t, Errno> {
    let total = total_len(parts)?;
    if let [one] = parts {
        return read(foreign::room(one.iov_base, one.iov_len)?).map(|len| len.cast_signed());
    }
    let mut whole = vec![0; total.min(foreign::IO_LEN_MAX)];
    let len = read(&mut whole)?;
    let mut rest = &whole[..len];
    for part in parts {
        let room = foreign::room(part.iov_base, part.iov_len)?;
        let (now, later) = rest.split_at(rest.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        rest = later;
    }
    Ok(len.cast_signed())
}

/// Writes several pieces at once: one append, one range.
fn gather(
    parts: &[iovec],
    write: impl FnOnce(&[u8]) -> Result<usize, Errno>,
) -> Result<ssize_t, Errno> {
    let total = total_len(parts)?;
    if let [one] = parts {
        return write(foreign::bytes(one.iov_base, one.iov_len)?).map(|len| len.cast_signed());
    }
    let mut whole = Vec::with_capacity(total.min(foreign::IO_LEN_MAX));
    for part in parts {
        whole.extend_from_slice(foreign::bytes(part.iov_base, part.iov_len)?);
    }
    write(&whole).map(|len| len.cast_signed())
}

hooks! {
    fn read = __read (fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
        by_fd!(fd, real(fd, into, len), |open| {
            read_next(&open, foreign::room(into, len)?).map(usize::cast_signed)
        })
    }

    fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        by_fd!(fd, real(fd, into, len, room), |open| {
            read_next(&open, foreign::room(into, len.min(room))?).map(usize::cast_signed)
        })
    }

    fn write = __write (fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        by_fd!(fd, real(fd, from, len), |open| {
            write_next(&open, foreign::bytes(from, len)?).map(usize::cast_signed)
        })
    }

    fn pread = pread64 = __pread64 (fd: c_int, into: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        by_fd!(fd, real(fd, into, len, at), |open| {
            read_at(&open, foreign::room(into, len)?, at).map(usize::cast_signed)
        })
    }

    fn __pread_chk = __pread64_chk (fd: c_int, into: *mut c_void, len: size_t, at: off_t, room: size_t) -> ssize_t {
        by_fd!(fd, real(fd, into, len, at, room), |open| {
            read_at(&open, foreign::room(into, len.min(room))?, at).map(usize::cast_signed)
        })
    }

    fn pwrite = pwrite64 = __pwrite64 (fd: c_int, from: *const c_void, len: size_t, at: off_t) -> ssize_t {
        by_fd!(fd, real(fd, from, len, at), |open| {
            write_at(&open, foreign::bytes(from, len)?, at).map(usize::cast_signed)
        })
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        by_fd!(fd, real(fd, parts, count), |open| {
            scatter(foreign::array(parts, count)?, |room| read_next(&open, room))
        })
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        by_fd!(fd, real(fd, parts, count), |open| {
            gather(foreign::array(parts, count)?, |bytes| write_next(&open, bytes))
        })
    }

    fn preadv = preadv64 (fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t {
        by_fd!(fd, real(fd, parts, count, at), |open| {
            scatter(foreign::array(parts, count)?, |room| read_at(&open, room, at))
        })
    }

    fn pwritev = pwritev64 (fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t {
        by_fd!(fd, real(fd, parts, count, at), |open| {
            gather(foreign::array(parts, count)?, |bytes| write_at(&open, bytes, at))
        })
    }

    fn preadv2 = preadv64v2 (fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        by_fd!(fd, real(fd, parts, count, at, flags), |open| {
            let parts = foreign::array(parts, count)?;
            if at == -1 {
                scatter(parts, |room| read_next(&open, room))
            } else {
                scatter(parts, |room| read_at(&open, room, at))
            }
        })
    }

    fn pwritev2 = pwritev64v2 (fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        by_fd!(fd, real(fd, parts, count, at, flags), |open| {
            let parts = foreign::array(parts, count)?;
            if flags & libc::RWF_APPEND != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            if at == -1 {
                gather(parts, |bytes| write_next(&open, bytes))
            } else {
                gather(parts, |bytes| write_at(&open, bytes, at))
            }
        })
    }

    fn lseek = lseek64 = __lseek = llseek (fd: c_int, by: off_t, whence: c_int) -> off_t {
        by_fd!(fd, real(fd, by, whence), |open| seek(&open, by, whence))
    }
}
