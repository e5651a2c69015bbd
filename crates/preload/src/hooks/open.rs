//! `open` and its kin.

use std::ffi::{c_char, c_int};

use libc::{AT_FDCWD, mode_t};
use rustix::io::Errno;
use samite_fs::OpenFlags;

use crate::hook::{by_path, guard, hooks};
use crate::hooks::reading::errno;
use crate::hooks::stdio;
use crate::route::{self, Place};
use crate::{store, table};

/// How a file was made is not what `F_GETFL` tells.
const FORGOTTEN: c_int =
    libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_CLOEXEC;

/// Opens a file of the store and gives it the lowest free descriptor.
pub fn open_place(place: &Place<'_>, flags: c_int, mode: mode_t) -> Result<c_int, Errno> {
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return Err(Errno::OPNOTSUPP);
    }
    let how = OpenFlags::from_oflags(flags.cast_unsigned());
    let at = place.at()?;
    let file = store::call_as(|fs, caller| fs.open_file(caller, at, how, mode & 0o7777))?;
    let fd = table::install(file, flags & !FORGOTTEN, flags & libc::O_CLOEXEC != 0)?;
    stdio::redirect(fd);
    Ok(fd)
}

/// Opens the file behind a descriptor once more, as opening `/dev/fd/N` does: with an offset of its own. What the descriptor may
/// not do, the new one may not either.
pub fn open_again(fd: c_int, flags: c_int) -> Result<c_int, Errno> {
    let open = table::get(fd).ok_or(Errno::BADF)?;
    let (had, wants) = (open.status() & libc::O_ACCMODE, flags & libc::O_ACCMODE);
    if open.status() & libc::O_PATH != 0 || (had != libc::O_RDWR && had != wants) {
        return Err(Errno::ACCESS);
    }
    let state = open.file()?.state().map_err(|error| errno(&error))?;
    let file = store::call(|fs| Ok(fs.reopen(&state)))?;
    file.set_append(flags & libc::O_APPEND != 0);
    if flags & libc::O_TRUNC != 0 && wants != libc::O_RDONLY {
        file.truncate(0).map_err(|error| errno(&error))?;
    }
    let fd = table::install(file, flags & !FORGOTTEN, flags & libc::O_CLOEXEC != 0)?;
    stdio::redirect(fd);
    Ok(fd)
}

/// After libc opened something: whatever the number stood for here is gone, even if it was closed behind our back.
fn fresh(fd: c_int) -> c_int {
    if fd >= 0 && table::has(fd) {
        drop(table::remove(fd));
    }
    fd
}

fn open_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    real: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    if let Some(fd) = route::named_descriptor(path) {
        return guard(|| open_again(fd, flags));
    }
    by_path!(dirfd, path, fresh(real(path)), |place| open_place(place, flags, mode))
}

hooks! {
    fn open = open64 = __open = __open64 (path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, flags, mode, |path| real(path, flags, mode))
    }

    fn __open_2 = __open64_2 (path: *const c_char, flags: c_int) -> c_int {
        open_at(AT_FDCWD, path, flags, 0, |path| real(path, flags))
    }

    fn openat = openat64 = __openat64 (dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(dirfd, path, flags, mode, |path| real(dirfd, path, flags, mode))
    }

    fn __openat_2 = __openat64_2 (dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dirfd, path, flags, 0, |path| real(dirfd, path, flags))
    }

    fn creat = creat64 (path: *const c_char, mode: mode_t) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        open_at(AT_FDCWD, path, flags, mode, |path| real(path, mode))
    }
}
