//! System calls on placeholders by number, where an owned descriptor has no meaning: the program owns the numbers.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use libc::c_ulong;
use rustix::io::{DupFlags, Errno, FdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::real::NextSymbol;

/// A number that the program, or this library, keeps open.
pub fn borrowed_fd<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: not -1; used for one system call, which answers EBADF if the program has closed it.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes a number that the program gave up.
pub fn close(fd: c_int) {
    // SAFETY: close(2) of a bare number; the table has given it up, so it is no one else's.
    unsafe { rustix::io::close(fd) };
}

/// `F_DUPFD` and `F_DUPFD_CLOEXEC`.
pub fn duplicate_from(fd: c_int, floor: c_int, close_on_exec: bool) -> Result<c_int, Errno> {
    if floor < 0 {
        return Err(Errno::INVAL);
    }
    if floor == 0 && !close_on_exec {
        return rustix::io::dup(borrowed_fd(fd)?).map(IntoRawFd::into_raw_fd);
    }
    let new = rustix::io::fcntl_dupfd_cloexec(borrowed_fd(fd)?, floor)?;
    if !close_on_exec {
        rustix::io::fcntl_setfd(&new, FdFlags::empty())?;
    }
    Ok(new.into_raw_fd())
}

/// `dup3`.
pub fn duplicate_to(old: c_int, new: c_int, flags: c_int) -> Result<(), Errno> {
    let old = borrowed_fd(old)?;
    if new < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: dup3 overwrites a bare number that the program chose; ownership stays with the program.
    let mut target = unsafe { OwnedFd::from_raw_fd(new) };
    let outcome =
        rustix::io::dup3(old, &mut target, DupFlags::from_bits_retain(flags.cast_unsigned()));
    // The program's number, not ours to close.
    let _ = target.into_raw_fd();
    outcome
}

/// `F_GETFD` and `F_SETFD`.
pub fn control(fd: c_int, command: c_int, argument: c_ulong) -> Result<c_int, Errno> {
    let fd = borrowed_fd(fd)?;
    if command == libc::F_GETFD {
        return Ok(rustix::io::fcntl_getfd(fd)?.bits().cast_signed());
    }
    rustix::io::fcntl_setfd(fd, FdFlags::from_bits_truncate(argument as u32))?;
    Ok(0)
}

/// Whether `fd` closes on exec.
pub fn closes_on_exec(fd: c_int) -> bool {
    borrowed_fd(fd)
        .and_then(rustix::io::fcntl_getfd)
        .is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC))
}

/// libc's `close_range`, which rustix does not have; libcs before 2.34 and kernels before 5.9 do not either.
pub fn close_range(first: c_uint, last: c_uint) -> Result<(), Errno> {
    static NEXT: NextSymbol = NextSymbol::new(c"close_range");
    // SAFETY: the symbol of this name has this signature in libc.
    let next = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(c_uint, c_uint, c_int) -> c_int>(
            NEXT.address(),
        )
    };
    if next(first, last, 0) == 0 { Ok(()) } else { Err(Errno::NOSYS) }
}

/// `mmap` with the program's own arguments.
pub fn map(
    hint: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    at: i64,
) -> Result<*mut c_void, Errno> {
    let protection = ProtFlags::from_bits_retain(protection.cast_unsigned());
    let kept = MapFlags::from_bits_retain(flags.cast_unsigned());
    // SAFETY: the program asked for this mapping.
    unsafe {
        if flags & libc::MAP_ANONYMOUS != 0 {
            rustix::mm::mmap_anonymous(hint, len, protection, kept)
        } else {
            rustix::mm::mmap(hint, len, protection, kept, borrowed_fd(fd)?, at.cast_unsigned())
        }
    }
}

/// `munmap` with the program's own arguments.
pub fn unmap(start: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: the program asked for this.
    unsafe { rustix::mm::munmap(start, len) }
}

/// `read`, or `pread` at an offset.
pub fn read(fd: c_int, into: &mut [u8], at: Option<i64>) -> Result<usize, Errno> {
    match at {
        None => rustix::io::read(borrowed_fd(fd)?, into),
        Some(at) => {
            rustix::io::pread(borrowed_fd(fd)?, into, u64::try_from(at).map_err(|_| Errno::INVAL)?)
        }
    }
}

/// `write`, or `pwrite` at an offset.
pub fn write(fd: c_int, from: &[u8], at: Option<i64>) -> Result<usize, Errno> {
    match at {
        None => rustix::io::write(borrowed_fd(fd)?, from),
        Some(at) => {
            rustix::io::pwrite(borrowed_fd(fd)?, from, u64::try_from(at).map_err(|_| Errno::INVAL)?)
        }
    }
}

/// Moves the file offset relative to where it is.
pub fn seek_by(fd: c_int, by: i64) -> Result<(), Errno> {
    rustix::fs::seek(borrowed_fd(fd)?, rustix::fs::SeekFrom::Current(by)).map(drop)
}
