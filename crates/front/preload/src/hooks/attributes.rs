//! Modes, owners and times.

use std::ffi::{c_char, c_int};

use libc::{AT_FDCWD, gid_t, mode_t, timespec, timeval, uid_t, utimbuf};
use rustix::io::Errno;
use samite_fs::{FileKind, SetTime, Timestamp};

use crate::hook::{by_fd, by_file, by_open_fd, by_path, hooks};
use crate::hooks::status::means_descriptor;
use crate::store::errno;
use crate::store_location::StoreLocation;
use crate::table::OpenDescription;
use crate::{attr, caller, foreign, store};

type Times = (SetTime, SetTime);

fn set_mode(place: &StoreLocation<'_>, mode: mode_t, follow: bool) -> Result<c_int, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.chmod(caller, at, mode & 0o7777, follow)).map(|()| 0)
}

fn set_mode_open(open: &OpenDescription, mode: mode_t) -> Result<c_int, Errno> {
    let file = open.file()?;
    if file.kind() == FileKind::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    file.chmod(&caller::context(), mode & 0o7777).map_err(|error| errno(&error))?;
    Ok(0)
}

/// -1 leaves it as it is.
const fn given(id: u32) -> Option<u32> {
    if id == u32::MAX { None } else { Some(id) }
}

fn set_owner(
    place: &StoreLocation<'_>,
    uid: uid_t,
    gid: gid_t,
    follow: bool,
) -> Result<c_int, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.chown(caller, at, given(uid), given(gid), follow)).map(|()| 0)
}

fn set_owner_open(open: &OpenDescription, uid: uid_t, gid: gid_t) -> Result<c_int, Errno> {
    let caller = caller::context();
    open.file()?.chown(&caller, given(uid), given(gid)).map_err(|error| errno(&error))?;
    Ok(0)
}

fn set_times(
    place: &StoreLocation<'_>,
    (atime, mtime): Times,
    follow: bool,
) -> Result<c_int, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.utimens(caller, at, atime, mtime, follow)).map(|()| 0)
}

fn set_times_open(open: &OpenDescription, (atime, mtime): Times) -> Result<c_int, Errno> {
    let caller = caller::context();
    // Earlier writes must not change the times again when they are settled later.
    open.settle()?;
    open.file()?.utimens(&caller, atime, mtime).map_err(|error| errno(&error))?;
    Ok(0)
}

fn times_seconds(times: *const utimbuf) -> Times {
    foreign::get(times).map_or((SetTime::Now, SetTime::Now), |times| {
        (
            SetTime::To(Timestamp::new(times.actime, 0)),
            SetTime::To(Timestamp::new(times.modtime, 0)),
        )
    })
}

const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;

hooks! {
    fn chmod(path: *const c_char, mode: mode_t) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, mode), |open| set_mode_open(&open, mode), |place| {
            set_mode(place, mode, true)
        })
    }

    fn lchmod(path: *const c_char, mode: mode_t) -> c_int {
        by_path!(AT_FDCWD, path, real(path, mode), |place| set_mode(place, mode, false))
    }

    fn fchmod(fd: c_int, mode: mode_t) -> c_int {
        by_open_fd!(fd, real(fd, mode), |open| set_mode_open(&open, mode))
    }

    fn fchmodat(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        let follow = flags & LINK == 0;
        by_file!(dirfd, path, follow, real(dirfd, path, mode, flags), |open| set_mode_open(&open, mode), |place| {
            set_mode(place, mode, follow)
        })
    }

    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, uid, gid), |open| set_owner_open(&open, uid, gid), |place| {
            set_owner(place, uid, gid, true)
        })
    }

    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        by_path!(AT_FDCWD, path, real(path, uid, gid), |place| set_owner(place, uid, gid, false))
    }

    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        by_open_fd!(fd, real(fd, uid, gid), |open| set_owner_open(&open, uid, gid))
    }

    fn fchownat(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        if means_descriptor(dirfd, path, flags) {
            return by_fd!(dirfd, real(dirfd, path, uid, gid, flags), |open| set_owner_open(&open, uid, gid));
        }
        let follow = flags & LINK == 0;
        by_file!(dirfd, path, follow, real(dirfd, path, uid, gid, flags), |open| set_owner_open(&open, uid, gid), |place| {
            set_owner(place, uid, gid, follow)
        })
    }

    fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, times), |open| set_times_open(&open, times_seconds(times)), |place| {
            set_times(place, times_seconds(times), true)
        })
    }

    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, times), |open| set_times_open(&open, attr::times_us(times)?), |place| {
            set_times(place, attr::times_us(times)?, true)
        })
    }

    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        by_path!(AT_FDCWD, path, real(path, times), |place| set_times(place, attr::times_us(times)?, false))
    }

    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        by_open_fd!(fd, real(fd, times), |open| set_times_open(&open, attr::times_us(times)?))
    }

    fn futimesat(dirfd: c_int, path: *const c_char, times: *const timeval) -> c_int {
        if path.is_null() {
            return by_open_fd!(dirfd, real(dirfd, path, times), |open| set_times_open(&open, attr::times_us(times)?));
        }
        by_file!(dirfd, path, true, real(dirfd, path, times), |open| set_times_open(&open, attr::times_us(times)?), |place| {
            set_times(place, attr::times_us(times)?, true)
        })
    }

    fn utimensat(dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        if path.is_null() {
            return by_open_fd!(dirfd, real(dirfd, path, times, flags), |open| set_times_open(&open, attr::times(times)?));
        }
        if means_descriptor(dirfd, path, flags) {
            return by_fd!(dirfd, real(dirfd, path, times, flags), |open| set_times_open(&open, attr::times(times)?));
        }
        let follow = flags & LINK == 0;
        by_file!(dirfd, path, follow, real(dirfd, path, times, flags), |open| set_times_open(&open, attr::times(times)?), |place| {
            set_times(place, attr::times(times)?, follow)
        })
    }

    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        by_open_fd!(fd, real(fd, times), |open| set_times_open(&open, attr::times(times)?))
    }
}
