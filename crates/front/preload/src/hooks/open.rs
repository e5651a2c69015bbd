//! `open` and its kin.

use std::ffi::{c_char, c_int, c_long};

use libc::{AT_FDCWD, mode_t};
use rustix::io::Errno;
use samite_fs::OpenFlags;

use crate::hook::{answer, by_path, guard, hooks};
use crate::hooks::{special, stdio};
use crate::store::errno;
use crate::store_location::{PathRoom, PathRoute, StoreLocation};
use crate::{caller, foreign, path_class, store, table};

/// How a file was made is not what `F_GETFL` tells.
const FORGOTTEN: c_int =
    libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_CLOEXEC;

/// All that counts for a descriptor that only names a file.
const OF_NAMES: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;

const fn counted(flags: c_int) -> c_int {
    if flags & libc::O_PATH == 0 { flags } else { flags & OF_NAMES }
}

/// Opens a file of the store and gives it the lowest free descriptor.
pub fn open_store_path(
    place: &StoreLocation<'_>,
    flags: c_int,
    mode: mode_t,
) -> Result<c_int, Errno> {
    let flags = counted(flags);
    let how = OpenFlags::from_oflags(flags.cast_unsigned());
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        let at = place.at()?;
        let file = store::call_as(|fs, caller| fs.open_unnamed(caller, at, how, mode & 0o7777))?;
        return table::install(file, flags & !FORGOTTEN, flags & libc::O_CLOEXEC != 0);
    }
    let at = place.at()?;
    let file = store::call_as(|fs, caller| fs.open_file(caller, at, how, mode & 0o7777))?;
    let fd = table::install(file, flags & !FORGOTTEN, flags & libc::O_CLOEXEC != 0)?;
    stdio::redirect(fd);
    Ok(fd)
}

/// Opens the file behind a descriptor once more, as opening `/dev/fd/N` does: with an offset of its
/// own. The caller's permissions on the file decide, not how the descriptor was opened.
pub fn open_again(fd: c_int, flags: c_int) -> Result<c_int, Errno> {
    let flags = counted(flags);
    let open = table::get(fd).ok_or(Errno::BADF)?;
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return Err(Errno::EXIST);
    }
    let how = OpenFlags::from_oflags(flags.cast_unsigned());
    let file = open.file()?;
    let again = file.fsync().and_then(|()| file.open_again(&caller::context(), how));
    let file = again.map_err(|error| errno(&error))?;
    let fd = table::install(file, flags & !FORGOTTEN, flags & libc::O_CLOEXEC != 0)?;
    stdio::redirect(fd);
    Ok(fd)
}

/// After libc opened something: the file of the store that the number stood for is gone, even if it
/// was closed behind our back.
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
    real: impl Fn(*const c_char) -> c_int,
) -> c_int {
    if flags & libc::O_NOFOLLOW == 0
        && let Some(fd) = path_class::named_descriptor(path)
    {
        return guard(|| open_again(fd, flags));
    }
    let before = crate::real::errno();
    let fd = by_path!(dirfd, path, fresh(real(path)), |place| open_store_path(place, flags, mode));
    if fd >= 0 || crate::real::errno() != libc::EOPNOTSUPP {
        return fd;
    }
    let opened = special::open(dirfd, path, flags);
    if opened.is_ok() {
        crate::real::set_errno(before);
    }
    answer(opened.map(fresh))
}

/// `struct open_how`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `openat2`, which libc has no function for. The flags of resolution that forbid to leave a
/// directory mean that nothing outside the store may be reached; the store itself does not tell
/// such paths apart.
pub fn openat2(
    dirfd: c_int,
    path: *const c_char,
    how: *const OpenHow,
    len: usize,
    real: impl Fn() -> c_long,
) -> c_long {
    let mut room = PathRoom::new();
    let place = match path_class::classify(dirfd, path, &mut room) {
        PathRoute::Store(place) => place,
        _ => return real(),
    };
    c_long::from(guard(|| {
        if len < size_of::<OpenHow>() {
            return Err(Errno::INVAL);
        }
        let how = foreign::get(how).ok_or(Errno::FAULT)?;
        let flags = c_int::try_from(how.flags).map_err(|_| Errno::INVAL)?;
        if how.resolve != 0 {
            // Programs fall back to looking at each name of the path.
            return Err(Errno::NOSYS);
        }
        open_store_path(&place, flags, how.mode as mode_t)
    }))
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
