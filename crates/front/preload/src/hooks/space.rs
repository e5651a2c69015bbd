//! Length of files, and making what was written final.

use std::ffi::{c_char, c_int, c_uint};

use libc::{AT_FDCWD, off_t, size_t, ssize_t};
use rustix::io::Errno;
use samite_fs::{AllocateMode, OpenFlags};

use crate::hook::{attempt, by_file, by_open_fd, guard_code, hooks};
use crate::hooks::limits;
use crate::store::errno;
use crate::table::OpenDescription;
use crate::{caller, mapped, store, table};

fn cut(open: &OpenDescription, len: off_t) -> Result<c_int, Errno> {
    let len = u64::try_from(len).map_err(|_| Errno::INVAL)?;
    open.check_writable().map_err(|_| Errno::INVAL)?;
    limits::may_grow(open, len)?;
    open.mark_dirty();
    open.file()?.truncate(len).map_err(|error| errno(&error))?;
    if !mapped::is_none() {
        mapped::after_cut(open, len)?;
    }
    Ok(0)
}

/// Cuts the file behind a descriptor as `truncate` does: the access mode of the descriptor says
/// nothing of the caller's permissions.
fn cut_named(open: &OpenDescription, len: off_t) -> Result<c_int, Errno> {
    let len = u64::try_from(len).map_err(|_| Errno::INVAL)?;
    limits::may_grow(open, len)?;
    let how = OpenFlags { write: true, ..OpenFlags::default() };
    let file = open.file()?;
    // Earlier writes must not make it grow again when they are settled later.
    let cut = file.fsync().and_then(|()| {
        let file = file.open_again(&caller::context(), how)?;
        file.truncate(len)?;
        file.close()
    });
    cut.map_err(|error| errno(&error))?;
    if !mapped::is_none() {
        mapped::after_cut(open, len)?;
    }
    Ok(0)
}

fn allocate(open: &OpenDescription, mode: c_int, at: off_t, len: off_t) -> Result<c_int, Errno> {
    open.check_writable()?;
    let at = u64::try_from(at).map_err(|_| Errno::INVAL)?;
    let len = u64::try_from(len).ok().filter(|len| *len > 0).ok_or(Errno::INVAL)?;
    open.mark_dirty();
    limits::may_grow(open, at.saturating_add(len))?;
    let mode = AllocateMode::from_raw(mode.cast_unsigned()).map_err(|error| errno(&error))?;
    open.file()?.allocate(mode, at, len).map_err(|error| errno(&error))?;
    if !mapped::is_none() {
        mapped::refresh(open)?;
    }
    Ok(0)
}

fn sync_open(open: &OpenDescription) -> Result<c_int, Errno> {
    open.settle()?;
    open.file()?.fsync().map_err(|error| errno(&error))?;
    Ok(0)
}

hooks! {
    fn truncate = truncate64 (path: *const c_char, len: off_t) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, len), |open| cut_named(&open, len), |place| {
            let len = u64::try_from(len).map_err(|_| Errno::INVAL)?;
            let at = place.at()?;
            store::call_as(|fs, caller| fs.truncate(caller, at, len)).map(|()| 0)
        })
    }

    fn ftruncate = ftruncate64 (fd: c_int, len: off_t) -> c_int {
        by_open_fd!(fd, real(fd, len), |open| cut(&open, len))
    }

    fn fallocate = fallocate64 (fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
        by_open_fd!(fd, real(fd, mode, at, len), |open| allocate(&open, mode, at, len))
    }

    fn posix_fallocate = posix_fallocate64 (fd: c_int, at: off_t, len: off_t) -> c_int {
        match table::get(fd) {
            None => real(fd, at, len),
            Some(open) => guard_code(move || allocate(&open, 0, at, len).map(drop)),
        }
    }

    fn posix_fadvise = posix_fadvise64 (fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
        match table::get(fd) {
            None => real(fd, at, len, advice),
            Some(open) => guard_code(move || open.check_open()),
        }
    }

    fn readahead(fd: c_int, at: off_t, len: size_t) -> ssize_t {
        by_open_fd!(fd, real(fd, at, len), |open| { let _ = &open; Ok(0) })
    }

    fn fsync(fd: c_int) -> c_int {
        by_open_fd!(fd, real(fd), |open| sync_open(&open))
    }

    fn fdatasync(fd: c_int) -> c_int {
        by_open_fd!(fd, real(fd), |open| sync_open(&open))
    }

    fn sync_file_range(fd: c_int, at: off_t, len: off_t, flags: c_uint) -> c_int {
        by_open_fd!(fd, real(fd, at, len, flags), |open| sync_open(&open))
    }

    fn syncfs(fd: c_int) -> c_int {
        by_open_fd!(fd, real(fd), |open| {
            let _ = &open;
            settle_all().map(|()| 0)
        })
    }

    fn sync() -> () {
        // sync(2) tells of no failure.
        let _ = attempt(settle_all);
        real();
    }
}

/// Settles everything that this process wrote.
pub fn settle_all() -> Result<(), Errno> {
    let mut outcome = mapped::write_back_all().and(store::flush());
    for (_, open) in table::each_from(0) {
        outcome = outcome.and(open.settle());
    }
    outcome
}
