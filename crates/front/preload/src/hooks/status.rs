//! `stat` in all its forms, `access`, `statfs`.

use std::ffi::{c_char, c_int, c_uint};

use libc::AT_FDCWD;
use rustix::io::Errno;
use samite_fs::FileAttributes;

use crate::hook::{by_fd, by_file, by_path, hooks};
use crate::path_class;
use crate::store::errno;
use crate::store_location::StoreLocation;
use crate::table::OpenDescription;
use crate::{attr, caller, foreign, store, table};

pub fn look(place: &StoreLocation<'_>, follow: bool) -> Result<FileAttributes, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.stat(caller, at, follow))
}

pub fn look_open(open: &OpenDescription) -> Result<FileAttributes, Errno> {
    open.file()?.attr().map_err(|error| errno(&error))
}

/// Whether the call means the descriptor itself, and that is the store's.
pub fn means_descriptor(dirfd: c_int, path: *const c_char, flags: c_int) -> bool {
    flags & libc::AT_EMPTY_PATH != 0 && foreign::get(path).unwrap_or(0) == 0 && table::has(dirfd)
}

fn stat_path(
    dirfd: c_int,
    path: *const c_char,
    out: *mut libc::stat,
    flags: c_int,
    real: impl Fn(*const c_char) -> c_int,
) -> c_int {
    if means_descriptor(dirfd, path, flags) {
        return by_fd!(dirfd, real(path), |open| foreign::put(out, attr::stat(&look_open(&open)?))
            .map(|()| 0));
    }
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    if follow && let Some(fd) = path_class::named_descriptor(path) {
        return stat_fd(fd, out, || real(path));
    }
    by_path!(dirfd, path, real(path), |place| {
        foreign::put(out, attr::stat(&look(place, follow)?)).map(|()| 0)
    })
}

fn stat_fd(fd: c_int, out: *mut libc::stat, real: impl FnOnce() -> c_int) -> c_int {
    by_fd!(fd, real(), |open| foreign::put(out, attr::stat(&look_open(&open)?)).map(|()| 0))
}

fn check(
    dirfd: c_int,
    path: *const c_char,
    mask: c_int,
    flags: c_int,
    real: impl Fn(*const c_char) -> c_int,
) -> c_int {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let mask = u32::try_from(mask).ok().filter(|mask| *mask <= 7).ok_or(Errno::INVAL);
    let caller = || {
        if flags & libc::AT_EACCESS == 0 { caller::real_context() } else { caller::context() }
    };
    let check_open = |open: &OpenDescription| {
        open.file()?.access(&caller(), mask?).map(|()| 0).map_err(|error| errno(&error))
    };
    if means_descriptor(dirfd, path, flags) {
        return by_fd!(dirfd, real(path), |open| check_open(&open));
    }
    by_file!(dirfd, path, follow, real(path), |open| check_open(&open), |place| {
        let (at, mask, caller) = (place.at()?, mask?, caller());
        store::call(|fs| fs.access(&caller, at, mask, follow)).map(|()| 0)
    })
}

/// Space and number of files of the store, in which any open file lies.
fn tell_whole(_in_store: &OpenDescription, out: *mut libc::statfs) -> Result<c_int, Errno> {
    foreign::put(out, attr::file_system(&store::call(|fs| fs.statfs())?)).map(|()| 0)
}

fn tell_whole_posix(_in_store: &OpenDescription, out: *mut libc::statvfs) -> Result<c_int, Errno> {
    foreign::put(out, attr::file_system_posix(&store::call(|fs| fs.statfs())?)).map(|()| 0)
}

const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;

hooks! {
    fn stat = stat64 (path: *const c_char, out: *mut libc::stat) -> c_int {
        stat_path(AT_FDCWD, path, out, 0, |path| real(path, out))
    }

    fn lstat = lstat64 (path: *const c_char, out: *mut libc::stat) -> c_int {
        stat_path(AT_FDCWD, path, out, LINK, |path| real(path, out))
    }

    fn fstat = fstat64 (fd: c_int, out: *mut libc::stat) -> c_int {
        stat_fd(fd, out, || real(fd, out))
    }

    fn fstatat = fstatat64 (dirfd: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
        stat_path(dirfd, path, out, flags, |path| real(dirfd, path, out, flags))
    }

    fn __xstat = __xstat64 (version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int {
        stat_path(AT_FDCWD, path, out, 0, |path| real(version, path, out))
    }

    fn __lxstat = __lxstat64 (version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int {
        stat_path(AT_FDCWD, path, out, LINK, |path| real(version, path, out))
    }

    fn __fxstat = __fxstat64 (version: c_int, fd: c_int, out: *mut libc::stat) -> c_int {
        stat_fd(fd, out, || real(version, fd, out))
    }

    fn __fxstatat = __fxstatat64 (version: c_int, dirfd: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
        stat_path(dirfd, path, out, flags, |path| real(version, dirfd, path, out, flags))
    }

    fn statx(dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int {
        let follow = flags & LINK == 0;
        let named = if follow { path_class::named_descriptor(path) } else { None };
        let meant = if means_descriptor(dirfd, path, flags) { Some(dirfd) } else { named };
        if let Some(fd) = meant {
            return by_fd!(fd, real(dirfd, path, flags, mask, out), |open| {
                foreign::put(out, attr::extended(&look_open(&open)?)).map(|()| 0)
            });
        }
        by_path!(dirfd, path, real(dirfd, path, flags, mask, out), |place| {
            foreign::put(out, attr::extended(&look(place, follow)?)).map(|()| 0)
        })
    }

    fn ftok(path: *const c_char, project: c_int) -> libc::key_t {
        by_path!(AT_FDCWD, path, real(path, project), |place| {
            let attr = attr::stat(&look(place, true)?);
            let (ino, device) = (attr.st_ino as c_int & 0xffff, attr.st_dev as c_int & 0xff);
            Ok(project << 24 | device << 16 | ino)
        })
    }

    fn access(path: *const c_char, mask: c_int) -> c_int {
        check(AT_FDCWD, path, mask, 0, |path| real(path, mask))
    }

    fn faccessat(dirfd: c_int, path: *const c_char, mask: c_int, flags: c_int) -> c_int {
        check(dirfd, path, mask, flags, |path| real(dirfd, path, mask, flags))
    }

    fn euidaccess = eaccess (path: *const c_char, mask: c_int) -> c_int {
        check(AT_FDCWD, path, mask, libc::AT_EACCESS, |path| real(path, mask))
    }

    fn statfs = statfs64 = __statfs (path: *const c_char, out: *mut libc::statfs) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, out), |open| tell_whole(&open, out), |place| {
            look(place, true)?;
            foreign::put(out, attr::file_system(&store::call(|fs| fs.statfs())?)).map(|()| 0)
        })
    }

    fn fstatfs = fstatfs64 (fd: c_int, out: *mut libc::statfs) -> c_int {
        by_fd!(fd, real(fd, out), |open| tell_whole(&open, out))
    }

    fn statvfs = statvfs64 (path: *const c_char, out: *mut libc::statvfs) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, out), |open| tell_whole_posix(&open, out), |place| {
            look(place, true)?;
            foreign::put(out, attr::file_system_posix(&store::call(|fs| fs.statfs())?)).map(|()| 0)
        })
    }

    fn fstatvfs = fstatvfs64 (fd: c_int, out: *mut libc::statvfs) -> c_int {
        by_fd!(fd, real(fd, out), |open| tell_whole_posix(&open, out))
    }
}
