//! Pipes, sockets and devices that have names in the store.
//!
//! The store keeps their inodes; the kernel of this machine provides the object behind them: for a
//! pipe or socket of the store, a pipe or socket in the cluster's runtime directory, named by the
//! inode's number; for a device, the device of that number.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::IntoRawFd;

use libc::{AT_FDCWD, sockaddr, sockaddr_un, socklen_t};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use samite_fs::{FileAttributes, FileKind};

use crate::hook::{answer, attempt, hooks};
use crate::hooks::status::look;
use crate::path_class::classify;
use crate::real::set_errno;
use crate::store_location::{PathRoom, PathRoute, StoreLocation};
use crate::{start_environment, store};

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
const READ: u32 = 4;
const WRITE: u32 = 2;

/// Devices that every machine has, by number.
const DEVICES: [(u32, u32, &str); 6] = [
    (1, 3, "/dev/null"),
    (1, 5, "/dev/zero"),
    (1, 7, "/dev/full"),
    (1, 8, "/dev/random"),
    (1, 9, "/dev/urandom"),
    (5, 0, "/dev/tty"),
];

/// Opens a file for which `open_place` fails with `EOPNOTSUPP`. Opening a pipe may wait for its
/// other end, so this is called outside of `attempt`.
#[cold]
pub fn open(dirfd: c_int, path: *const c_char, flags: c_int) -> Result<c_int, Errno> {
    let path = attempt(|| {
        let mut room = PathRoom::new();
        let PathRoute::Store(place) = classify(dirfd, path, &mut room) else {
            return Err(Errno::OPNOTSUPP);
        };
        let follow = flags & libc::O_NOFOLLOW == 0;
        let attr = look(&place, follow)?;
        let mask = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        let at = place.at()?;
        store::call_as(|fs, caller| fs.access(caller, at, mask, follow))?;
        kernel_path(&attr)
    })?;
    let kept = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW);
    let how = OFlags::from_bits_retain(kept.cast_unsigned());
    rustix::fs::openat(CWD, path.as_str(), how, Mode::empty()).map(IntoRawFd::into_raw_fd)
}

/// Where the kernel has what an inode stands for.
fn kernel_path(attr: &FileAttributes) -> Result<String, Errno> {
    match attr.kind {
        FileKind::Fifo => {
            let path = named("pipe", attr.ino)?;
            match rustix::fs::mknodat(CWD, path.as_str(), FileType::Fifo, PRIVATE, 0) {
                Ok(()) | Err(Errno::EXIST) => Ok(path),
                Err(failed) => Err(failed),
            }
        }
        FileKind::CharDevice => device("char", attr.rdev),
        FileKind::BlockDevice => device("block", attr.rdev),
        FileKind::Socket => Err(Errno::NXIO),
        _ => Err(Errno::OPNOTSUPP),
    }
}

fn device(kind: &str, number: impl Into<u64>) -> Result<String, Errno> {
    let number = number.into();
    let (major, minor) = (libc::major(number), libc::minor(number));
    if kind == "char"
        && let Some((_, _, path)) =
            DEVICES.iter().find(|known| (known.0, known.1) == (major, minor))
    {
        return Ok((*path).to_owned());
    }
    let path = format!("/dev/{kind}/{major}:{minor}");
    let found =
        rustix::fs::accessat(CWD, path.as_str(), rustix::fs::Access::EXISTS, AtFlags::empty());
    if found.is_ok() { Ok(path) } else { Err(Errno::NXIO) }
}

fn named(what: &str, ino: u64) -> Result<String, Errno> {
    let dir = start_environment::cluster().map_err(|error| error.kind().errno())?;
    let dir = dir.path().to_str().ok_or(Errno::INVAL)?;
    Ok(format!("{dir}/{what}-{ino:016x}"))
}

/// The path in a socket address, if it has one that may be of the store.
fn socket_path(address: *const sockaddr, len: socklen_t) -> Option<CString> {
    const PATH_AT: usize = std::mem::offset_of!(sockaddr_un, sun_path);
    let len = len as usize;
    if address.is_null() || len <= PATH_AT {
        return None;
    }
    // SAFETY: the program vouches for `len` bytes.
    let bytes = unsafe {
        std::slice::from_raw_parts(address.cast::<u8>(), len.min(size_of::<sockaddr_un>()))
    };
    let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
    let path = bytes[PATH_AT..].split(|byte| *byte == 0).next().unwrap_or_default();
    // An empty path is a name of the kernel's own.
    (c_int::from(family) == libc::AF_UNIX && !path.is_empty()).then(|| CString::new(path).ok())?
}

/// The address of the kernel's socket behind an inode.
fn socket_address(ino: u64) -> Result<sockaddr_un, Errno> {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut address: sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let path = named("socket", ino)?;
    if path.len() >= address.sun_path.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = from.cast_signed();
    }
    Ok(address)
}

/// The kernel's address for one that names a socket of the store; `None`: it does not.
fn translated(
    address: *const sockaddr,
    len: socklen_t,
    find: impl FnOnce(&StoreLocation<'_>) -> Result<FileAttributes, Errno>,
) -> Result<Option<sockaddr_un>, Errno> {
    let Some(path) = socket_path(address, len) else { return Ok(None) };
    let mut room = PathRoom::new();
    let PathRoute::Store(place) = classify(AT_FDCWD, path.as_ptr(), &mut room) else {
        return Ok(None);
    };
    attempt(|| socket_address(find(&place)?.ino).map(Some))
}

fn find_socket(place: &StoreLocation<'_>) -> Result<FileAttributes, Errno> {
    let attr = look(place, true)?;
    if attr.kind == FileKind::Socket { Ok(attr) } else { Err(Errno::CONNREFUSED) }
}

fn make_socket(place: &StoreLocation<'_>) -> Result<FileAttributes, Errno> {
    let at = place.at()?;
    let made = store::call_as(|fs, caller| fs.mknod(caller, at, libc::S_IFSOCK | 0o777, 0));
    made.map_err(|failed| if failed == Errno::EXIST { Errno::ADDRINUSE } else { failed })?;
    look(place, false)
}

fn unmake_socket(address: *const sockaddr, len: socklen_t) {
    let Some(path) = socket_path(address, len) else { return };
    let mut room = PathRoom::new();
    if let PathRoute::Store(place) = classify(AT_FDCWD, path.as_ptr(), &mut room) {
        // The program hears why there is no socket, not that its name stays.
        let _ = attempt(|| {
            let at = place.at()?;
            store::call_as(|fs, caller| fs.unlink(caller, at))
        });
    }
}

/// Calls `real` with the address of the kernel's socket, where `address` names one of the store.
pub fn with_address<T: crate::hook::HookAnswer>(
    address: *const sockaddr,
    len: socklen_t,
    real: impl FnOnce(*const sockaddr, socklen_t) -> T,
) -> T {
    match translated(address, len, find_socket) {
        Ok(None) => real(address, len),
        Ok(Some(kernel)) => real((&raw const kernel).cast(), size_of::<sockaddr_un>() as socklen_t),
        Err(failed) => answer(Err(failed)),
    }
}

hooks! {
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        match translated(address, len, make_socket) {
            Ok(None) => real(fd, address, len),
            Ok(Some(kernel)) => {
                let outcome = real(fd, (&raw const kernel).cast(), size_of::<sockaddr_un>() as socklen_t);
                if outcome != 0 {
                    let failed = crate::real::errno();
                    unmake_socket(address, len);
                    set_errno(failed);
                }
                outcome
            }
            Err(failed) => answer(Err(failed)),
        }
    }

    fn connect = __connect (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        with_address(address, len, |address, len| real(fd, address, len))
    }

    fn sendto(fd: c_int, from: *const c_void, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> isize {
        if crate::hooks::sockets::not_a_socket(fd) {
            return -1;
        }
        with_address(to, to_len, |to, to_len| real(fd, from, len, flags, to, to_len))
    }
}
