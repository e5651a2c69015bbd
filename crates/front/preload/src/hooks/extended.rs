//! Extended attributes.

use std::ffi::{c_char, c_int, c_void};

use libc::{AT_FDCWD, size_t, ssize_t};
use rustix::io::Errno;
use samite_fs::{XattrFlags, XattrSubject};

use crate::hook::{by_file, by_open_fd, by_path, hooks};
use crate::store_location::StoreLocation;
use crate::table::OpenDescription;
use crate::{foreign, store};

fn by_place<'a>(place: &'a StoreLocation<'_>, follow: bool) -> Result<XattrSubject<'a>, Errno> {
    Ok(XattrSubject::Path(place.at()?, follow))
}

fn by_open(open: &OpenDescription) -> Result<XattrSubject<'_>, Errno> {
    Ok(XattrSubject::Open(open.file()?))
}

/// Copies a result out; with no room the program only asks how much it needs.
fn give(bytes: &[u8], out: *mut c_void, room: size_t) -> Result<ssize_t, Errno> {
    if room > 0 {
        let room = foreign::room(out, room)?;
        room.get_mut(..bytes.len()).ok_or(Errno::RANGE)?.copy_from_slice(bytes);
    }
    Ok(bytes.len().cast_signed())
}

fn get(
    file: XattrSubject<'_>,
    name: *const c_char,
    out: *mut c_void,
    room: size_t,
) -> Result<ssize_t, Errno> {
    let name = foreign::text(name)?;
    let value = store::call_as(|fs, caller| fs.get_xattr(caller, &file, name))?;
    give(&value, out, room)
}

/// Names, each with a NUL after it.
fn list(file: XattrSubject<'_>, out: *mut c_char, room: size_t) -> Result<ssize_t, Errno> {
    let names = store::call_as(|fs, caller| fs.list_xattrs(caller, &file))?;
    let mut joined = Vec::new();
    for name in &names {
        joined.extend_from_slice(name);
        joined.push(0);
    }
    give(&joined, out.cast(), room)
}

fn set(
    file: XattrSubject<'_>,
    name: *const c_char,
    value: *const c_void,
    len: size_t,
    flags: c_int,
) -> Result<c_int, Errno> {
    let (name, value) = (foreign::text(name)?, foreign::bytes(value, len)?);
    let flags = XattrFlags {
        create: flags & libc::XATTR_CREATE != 0,
        replace: flags & libc::XATTR_REPLACE != 0,
    };
    store::call_as(|fs, caller| fs.set_xattr(caller, &file, name, value, flags)).map(|()| 0)
}

fn remove(file: XattrSubject<'_>, name: *const c_char) -> Result<c_int, Errno> {
    let name = foreign::text(name)?;
    store::call_as(|fs, caller| fs.remove_xattr(caller, &file, name)).map(|()| 0)
}

hooks! {
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t {
        by_file!(AT_FDCWD, path, true, real(path, name, value, room), |open| get(by_open(&open)?, name, value, room), |place| {
            get(by_place(place, true)?, name, value, room)
        })
    }

    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t {
        by_path!(AT_FDCWD, path, real(path, name, value, room), |place| {
            get(by_place(place, false)?, name, value, room)
        })
    }

    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t {
        by_open_fd!(fd, real(fd, name, value, room), |open| get(by_open(&open)?, name, value, room))
    }

    fn listxattr(path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t {
        by_file!(AT_FDCWD, path, true, real(path, out, room), |open| list(by_open(&open)?, out, room), |place| {
            list(by_place(place, true)?, out, room)
        })
    }

    fn llistxattr(path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t {
        by_path!(AT_FDCWD, path, real(path, out, room), |place| list(by_place(place, false)?, out, room))
    }

    fn flistxattr(fd: c_int, out: *mut c_char, room: size_t) -> ssize_t {
        by_open_fd!(fd, real(fd, out, room), |open| list(by_open(&open)?, out, room))
    }

    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, name, value, len, flags), |open| set(by_open(&open)?, name, value, len, flags), |place| {
            set(by_place(place, true)?, name, value, len, flags)
        })
    }

    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        by_path!(AT_FDCWD, path, real(path, name, value, len, flags), |place| {
            set(by_place(place, false)?, name, value, len, flags)
        })
    }

    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        by_open_fd!(fd, real(fd, name, value, len, flags), |open| set(by_open(&open)?, name, value, len, flags))
    }

    fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
        by_file!(AT_FDCWD, path, true, real(path, name), |open| remove(by_open(&open)?, name), |place| {
            remove(by_place(place, true)?, name)
        })
    }

    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
        by_path!(AT_FDCWD, path, real(path, name), |place| remove(by_place(place, false)?, name))
    }

    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
        by_open_fd!(fd, real(fd, name), |open| remove(by_open(&open)?, name))
    }
}
