//! Paths that begin outside the store and lead into it: relative ones (`cd /; cat samite/f`, `../samite/f`), and symbolic
//! links of the kernel's file systems whose target is below the mount prefix.
//!
//! Neither may cost other paths much. A relative path is looked at when it begins with a name of the prefix or has `..`
//! in it; a symbolic link when the kernel found nothing, which is what it finds below a prefix that is not there.

use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::foreign;
use crate::mount_prefix::{below_prefix, normalise, prefix};
use crate::real::errno;
use crate::store_location::{PathRoom, PathRoute, StoreLocation, store_path_of};

/// Most symbolic links followed in one resolution, as in Linux.
const LINKS_MAX: usize = 40;

/// Whether a relative path may lead into the store.
#[inline]
pub fn may_lead_in(path: *const c_char) -> bool {
    let prefix = prefix();
    // SAFETY: `route` found a first byte, and reads no further than a NUL.
    let first = unsafe { path.cast::<u8>().read() };
    // Of most programs' paths the first byte decides.
    (first == b'.' || prefix.windows(2).any(|pair| pair[0] == b'/' && pair[1] == first))
        && looks_in(path)
}

#[cold]
fn looks_in(path: *const c_char) -> bool {
    let Ok(path) = foreign::text(path) else { return false };
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let first = names.next().unwrap_or_default();
    path.split(|byte| *byte == b'/').any(|name| name == b"..")
        || prefix().split(|byte| *byte == b'/').any(|name| !name.is_empty() && name == first)
}

/// Routes a relative path of which [`may_lead_in`] says that it may.
#[cold]
pub fn relative<'a>(dirfd: c_int, path: *const c_char, room: &'a mut PathRoom) -> PathRoute<'a> {
    let Ok(text) = foreign::text(path) else { return PathRoute::Real };
    let Some(mut whole) = directory(dirfd) else { return PathRoute::Real };
    whole.push(b'/');
    whole.extend_from_slice(text);
    let mut plain = Vec::new();
    normalise(&whole, &mut plain);
    match store_path_of(plain, room) {
        Some(place) => PathRoute::Store(place),
        None => PathRoute::Real,
    }
}

/// The absolute path of a directory of the kernel's.
fn directory(dirfd: c_int) -> Option<Vec<u8>> {
    let path = if dirfd == libc::AT_FDCWD {
        rustix::process::getcwd(Vec::new()).ok()?.into_bytes()
    } else {
        let link = format!("/proc/self/fd/{dirfd}");
        rustix::fs::readlinkat(CWD, link.as_str(), Vec::new()).ok()?.into_bytes()
    };
    // Neither a pipe nor a directory out of reach.
    (path.first() == Some(&b'/')).then_some(path)
}

/// Resolves a path that the kernel did not find, because a symbolic link of its own leads into the
/// store. `follow` says whether the last name is followed.
#[inline]
pub fn through_link<'a>(
    dirfd: c_int,
    path: *const c_char,
    room: &'a mut PathRoom,
) -> Option<StoreLocation<'a>> {
    if errno() != libc::ENOENT || prefix().is_empty() {
        return None;
    }
    let found = find_through_link(dirfd, path, room);
    crate::real::set_errno(libc::ENOENT);
    found
}

#[cold]
fn find_through_link<'a>(
    dirfd: c_int,
    path: *const c_char,
    room: &'a mut PathRoom,
) -> Option<StoreLocation<'a>> {
    let text = foreign::text(path).ok().filter(|text| !text.is_empty())?;
    let at = if dirfd == libc::AT_FDCWD {
        CWD
    } else if dirfd >= 0 {
        // SAFETY: used for system calls that answer EBADF if the program has closed it.
        unsafe { BorrowedFd::borrow_raw(dirfd) }
    } else {
        return None;
    };
    // The common case: a file that is not there, in a directory that is.
    let parent = parent(text);
    if rustix::fs::statat(at, parent, AtFlags::empty()).is_ok()
        && rustix::fs::readlinkat(at, text, Vec::new()).is_err()
    {
        return None;
    }
    let mut whole = Vec::new();
    if text[0] != b'/' {
        whole = directory(dirfd)?;
        whole.push(b'/');
    }
    whole.extend_from_slice(text);
    store_path_of(resolve(&whole)?, room)
}

fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        None => b".",
        Some(0) => b"/",
        Some(slash) => &path[..slash],
    }
}

/// Follows the kernel's symbolic links along `path` until it is below the prefix; `None`: it does not come there.
fn resolve(path: &[u8]) -> Option<Vec<u8>> {
    let mut rest = path.to_vec();
    let mut links = 0;
    'again: loop {
        let mut done: Vec<u8> = Vec::new();
        let mut start = 0;
        while start < rest.len() {
            let end = rest[start..]
                .iter()
                .position(|byte| *byte == b'/')
                .map_or(rest.len(), |at| start + at);
            let name = &rest[start..end];
            match name {
                b"" | b"." => {}
                b".." => {
                    let parent = done.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                    done.truncate(parent);
                }
                _ => {
                    done.push(b'/');
                    done.extend_from_slice(name);
                    if below_prefix(&done).is_some() {
                        done.extend_from_slice(&rest[end..]);
                        return Some(done);
                    }
                    match rustix::fs::readlinkat(CWD, done.as_slice(), Vec::new()) {
                        Ok(target) => {
                            links += 1;
                            if links > LINKS_MAX {
                                return None;
                            }
                            rest = joined(&done, target.as_bytes(), &rest[end..]);
                            continue 'again;
                        }
                        // No link: go on behind it.
                        Err(Errno::INVAL) => {}
                        Err(_) => return None,
                    }
                }
            }
            start = end + 1;
        }
        return None;
    }
}

/// The path that a link at `link` to `target` makes of what follows it.
fn joined(link: &[u8], target: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut path = Vec::new();
    if target.first() != Some(&b'/') {
        path.extend_from_slice(parent(link));
        path.push(b'/');
    }
    path.extend_from_slice(target);
    path.extend_from_slice(rest);
    path
}
