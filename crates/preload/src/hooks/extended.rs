//! Extended attributes, which the store does not have yet: there are none to list or get, and none can be set.

use std::ffi::{c_char, c_int, c_void};

use libc::{AT_FDCWD, size_t, ssize_t};
use rustix::io::Errno;

use crate::hook::{by_fd, by_path, hooks};
use crate::route::Place;
use crate::store;

/// The answer for a path that exists.
fn answer<T>(place: &Place<'_>, follow: bool, answer: Result<T, Errno>) -> Result<T, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.stat(caller, at, follow))?;
    answer
}

hooks! {
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t {
        by_path!(AT_FDCWD, path, real(path, name, value, room), |place| answer(&place, true, Err(Errno::NODATA)))
    }

    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t {
        by_path!(AT_FDCWD, path, real(path, name, value, room), |place| answer(&place, false, Err(Errno::NODATA)))
    }

    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t {
        by_fd!(fd, real(fd, name, value, room), |open| { let _ = &open; Err(Errno::NODATA) })
    }

    fn listxattr(path: *const c_char, list: *mut c_char, room: size_t) -> ssize_t {
        by_path!(AT_FDCWD, path, real(path, list, room), |place| answer(&place, true, Ok(0)))
    }

    fn llistxattr(path: *const c_char, list: *mut c_char, room: size_t) -> ssize_t {
        by_path!(AT_FDCWD, path, real(path, list, room), |place| answer(&place, false, Ok(0)))
    }

    fn flistxattr(fd: c_int, list: *mut c_char, room: size_t) -> ssize_t {
        by_fd!(fd, real(fd, list, room), |open| { let _ = &open; Ok(0) })
    }

    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        by_path!(AT_FDCWD, path, real(path, name, value, len, flags), |place| {
            answer(&place, true, Err(Errno::OPNOTSUPP))
        })
    }

    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        by_path!(AT_FDCWD, path, real(path, name, value, len, flags), |place| {
            answer(&place, false, Err(Errno::OPNOTSUPP))
        })
    }

    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        by_fd!(fd, real(fd, name, value, len, flags), |open| { let _ = &open; Err(Errno::OPNOTSUPP) })
    }

    fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
        by_path!(AT_FDCWD, path, real(path, name), |place| answer(&place, true, Err(Errno::NODATA)))
    }

    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
        by_path!(AT_FDCWD, path, real(path, name), |place| answer(&place, false, Err(Errno::NODATA)))
    }

    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
        by_fd!(fd, real(fd, name), |open| { let _ = &open; Err(Errno::NODATA) })
    }
}
