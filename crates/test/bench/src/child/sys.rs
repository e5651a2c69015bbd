//! The libc calls of an ordinary C program, so that the preloaded library sees the same calls as
//! from one.

use std::ffi::{CStr, c_int};
use std::io::{Error, Result};

fn check(answer: isize) -> Result<usize> {
    usize::try_from(answer).map_err(|_| Error::last_os_error())
}

/// An open descriptor, closed when dropped.
pub struct OwnedDescriptor(c_int);

/// open(2).
pub fn open(path: &CStr, flags: c_int) -> Result<OwnedDescriptor> {
    // SAFETY: the path ends with a zero byte.
    let descriptor = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644) };
    check(descriptor as isize).map(|_| OwnedDescriptor(descriptor))
}

impl OwnedDescriptor {
    /// close(2), for its errors.
    pub fn close(self) -> Result<()> {
        let descriptor = self.0;
        std::mem::forget(self);
        // SAFETY: the descriptor is ours and not used again.
        check(unsafe { libc::close(descriptor) } as isize).map(drop)
    }

    /// read(2).
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: the buffer is as long as said.
        check(unsafe { libc::read(self.0, buffer.as_mut_ptr().cast(), buffer.len()) })
    }

    /// write(2).
    pub fn write(&self, bytes: &[u8]) -> Result<usize> {
        // SAFETY: the buffer is as long as said.
        check(unsafe { libc::write(self.0, bytes.as_ptr().cast(), bytes.len()) })
    }

    /// lseek(2) to the start.
    pub fn rewind(&self) -> Result<()> {
        // SAFETY: no memory is involved.
        check(unsafe { libc::lseek(self.0, 0, libc::SEEK_SET) } as isize).map(drop)
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and not used again.
        unsafe { libc::close(self.0) };
    }
}

/// stat(2); the length of the file.
pub fn stat(path: &CStr) -> Result<u64> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends with a zero byte, and the status has room for what is written.
    check(unsafe { libc::stat(path.as_ptr(), status.as_mut_ptr()) } as isize)?;
    // SAFETY: the call succeeded, so it has filled in the status.
    Ok(unsafe { status.assume_init() }.st_size.unsigned_abs())
}

/// unlink(2).
pub fn unlink(path: &CStr) -> Result<()> {
    // SAFETY: the path ends with a zero byte.
    check(unsafe { libc::unlink(path.as_ptr()) } as isize).map(drop)
}

/// mkdir(2); a directory that is there already is no error.
pub fn mkdir(path: &CStr) -> Result<()> {
    // SAFETY: the path ends with a zero byte.
    match check(unsafe { libc::mkdir(path.as_ptr(), 0o755) } as isize) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        done => done.map(drop),
    }
}

/// rmdir(2).
pub fn rmdir(path: &CStr) -> Result<()> {
    // SAFETY: the path ends with a zero byte.
    check(unsafe { libc::rmdir(path.as_ptr()) } as isize).map(drop)
}
