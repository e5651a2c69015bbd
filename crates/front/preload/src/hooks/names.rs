//! Making, removing, renaming and linking.

use std::ffi::{c_char, c_int, c_uint};

use libc::{AT_FDCWD, dev_t, mode_t, size_t, ssize_t};
use rustix::io::Errno;
use samite_fs::{FileKind, RenameFlags};

use crate::hook::{by_path, guard, hooks};
use crate::hooks::status::means_descriptor;
use crate::outside_path::through_link;
use crate::path_class::{classify, named_descriptor};
use crate::real::set_errno;
use crate::store::errno;
use crate::store_location::{PathRoom, PathRoute, StoreLocation};
use crate::{caller, foreign, store, table};

/// A call with two paths: both must be on the same side.
fn by_two_paths(
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    real: impl FnOnce(*const c_char, *const c_char) -> c_int,
    work: impl FnOnce(&StoreLocation<'_>, &StoreLocation<'_>) -> Result<(), Errno>,
) -> c_int {
    let (mut from_room, mut to_room) = (PathRoom::new(), PathRoom::new());
    let plain = |route: &PathRoute<'_>, path| match route {
        PathRoute::Elsewhere(path) => *path,
        _ => path,
    };
    match (classify(from_dir, from, &mut from_room), classify(to_dir, to, &mut to_room)) {
        (PathRoute::Store(from), PathRoute::Store(to)) => {
            guard(move || work(&from, &to).map(|()| 0))
        }
        (PathRoute::Store(_), _) | (_, PathRoute::Store(_)) => {
            set_errno(libc::EXDEV);
            -1
        }
        (from_route, to_route) => {
            let outcome = real(plain(&from_route, from), plain(&to_route, to));
            if outcome == 0 { outcome } else { through_links((from_dir, from), (to_dir, to), work) }
        }
    }
}

/// After libc found nothing: a symbolic link of the kernel's may lead into the store, on one side or both.
fn through_links(
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    work: impl FnOnce(&StoreLocation<'_>, &StoreLocation<'_>) -> Result<(), Errno>,
) -> c_int {
    let (mut from_room, mut to_room) = (PathRoom::new(), PathRoom::new());
    let from = through_link(from_dir, from, &mut from_room);
    match (from, through_link(to_dir, to, &mut to_room)) {
        (Some(from), Some(to)) => guard(move || work(&from, &to).map(|()| 0)),
        (None, None) => -1,
        _ => {
            set_errno(libc::EXDEV);
            -1
        }
    }
}

fn rename_flags(flags: c_uint) -> Result<RenameFlags, Errno> {
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    if flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    Ok(RenameFlags {
        no_replace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
        whiteout: flags & libc::RENAME_WHITEOUT != 0,
    })
}

fn rename_places(
    from: &StoreLocation<'_>,
    to: &StoreLocation<'_>,
    flags: c_uint,
) -> Result<(), Errno> {
    let flags = rename_flags(flags)?;
    let (from, to) = (from.at()?, to.at()?);
    store::call_as(|fs, caller| fs.rename(caller, from, to, flags))
}

/// Another name, or the first one, for an open file.
fn link_open(fd: c_int, to: &StoreLocation<'_>) -> Result<c_int, Errno> {
    let open = table::get(fd).ok_or(Errno::BADF)?;
    let linked = open.file()?.link(&caller::context(), to.at()?);
    linked.map(|_| 0).map_err(|error| error.kind().errno())
}

fn link_places(
    from: &StoreLocation<'_>,
    to: &StoreLocation<'_>,
    follow: bool,
) -> Result<(), Errno> {
    let (from, to) = (from.at()?, to.at()?);
    store::call_as(|fs, caller| fs.link(caller, from, to, follow))
}

pub fn make_directory(place: &StoreLocation<'_>, mode: mode_t) -> Result<c_int, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.mkdir(caller, at, mode & 0o7777)).map(|()| 0)
}

fn make_node(place: &StoreLocation<'_>, mode: mode_t, device: dev_t) -> Result<c_int, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.mknod(caller, at, mode, device)).map(|()| 0)
}

fn remove_directory(place: &StoreLocation<'_>) -> Result<c_int, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.rmdir(caller, at)).map(|()| 0)
}

fn remove_name(place: &StoreLocation<'_>) -> Result<c_int, Errno> {
    let at = place.at()?;
    store::call_as(|fs, caller| fs.unlink(caller, at)).map(|()| 0)
}

fn make_symlink(target: *const c_char, place: &StoreLocation<'_>) -> Result<c_int, Errno> {
    let (target, at) = (foreign::text(target)?, place.at()?);
    store::call_as(|fs, caller| fs.symlink(caller, target, at)).map(|()| 0)
}

fn read_link(place: &StoreLocation<'_>, out: *mut c_char, room: size_t) -> Result<ssize_t, Errno> {
    if room == 0 {
        return Err(Errno::INVAL);
    }
    let at = place.at()?;
    let target = store::call_as(|fs, caller| fs.readlink(caller, at))?;
    give_target(&target, out, room)
}

/// Target of the symbolic link that a descriptor names.
fn read_open_link(fd: c_int, out: *mut c_char, room: size_t) -> Result<ssize_t, Errno> {
    let open = table::get(fd).ok_or(Errno::BADF)?;
    let file = open.file()?;
    if file.kind() != FileKind::Symlink {
        return Err(Errno::NOENT);
    }
    give_target(&file.target().map_err(|error| errno(&error))?, out, room)
}

fn give_target(target: &[u8], out: *mut c_char, room: size_t) -> Result<ssize_t, Errno> {
    let room = foreign::room(out.cast(), room)?;
    let len = target.len().min(room.len());
    room[..len].copy_from_slice(&target[..len]);
    Ok(len.cast_signed())
}

/// `readlinkat`, with the real one under the path where it is the kernel's.
fn read_link_at(
    dirfd: c_int,
    path: *const c_char,
    (out, room): (*mut c_char, size_t),
    real: impl Fn(*const c_char) -> ssize_t,
) -> ssize_t {
    if means_descriptor(dirfd, path, libc::AT_EMPTY_PATH) {
        return guard(|| read_open_link(dirfd, out, room));
    }
    by_path!(dirfd, path, real(path), |place| read_link(place, out, room))
}

hooks! {
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
        by_path!(AT_FDCWD, path, real(path, mode), |place| make_directory(place, mode))
    }

    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        by_path!(dirfd, path, real(dirfd, path, mode), |place| make_directory(place, mode))
    }

    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        by_path!(AT_FDCWD, path, real(path, mode, device), |place| make_node(place, mode, device))
    }

    fn mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        by_path!(dirfd, path, real(dirfd, path, mode, device), |place| make_node(place, mode, device))
    }

    fn __xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int {
        by_path!(AT_FDCWD, path, real(version, path, mode, device), |place| {
            make_node(place, mode, foreign::get(device).ok_or(Errno::FAULT)?)
        })
    }

    fn __xmknodat(version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int {
        by_path!(dirfd, path, real(version, dirfd, path, mode, device), |place| {
            make_node(place, mode, foreign::get(device).ok_or(Errno::FAULT)?)
        })
    }

    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
        by_path!(AT_FDCWD, path, real(path, mode), |place| make_node(place, libc::S_IFIFO | (mode & 0o7777), 0))
    }

    fn mkfifoat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        by_path!(dirfd, path, real(dirfd, path, mode), |place| {
            make_node(place, libc::S_IFIFO | (mode & 0o7777), 0)
        })
    }

    fn rmdir(path: *const c_char) -> c_int {
        by_path!(AT_FDCWD, path, real(path), |place| remove_directory(place))
    }

    fn unlink(path: *const c_char) -> c_int {
        by_path!(AT_FDCWD, path, real(path), |place| remove_name(place))
    }

    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        by_path!(dirfd, path, real(dirfd, path, flags), |place| match flags {
            0 => remove_name(place),
            libc::AT_REMOVEDIR => remove_directory(place),
            _ => Err(Errno::INVAL),
        })
    }

    fn remove(path: *const c_char) -> c_int {
        by_path!(AT_FDCWD, path, real(path), |place| match remove_name(place) {
            Err(Errno::ISDIR | Errno::PERM) => remove_directory(place),
            outcome => outcome,
        })
    }

    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        by_two_paths((AT_FDCWD, from), (AT_FDCWD, to), real, |from, to| {
            rename_places(from, to, 0)
        })
    }

    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        by_two_paths((from_dir, from), (to_dir, to), |from, to| real(from_dir, from, to_dir, to), |from, to| {
            rename_places(from, to, 0)
        })
    }

    fn renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int {
        by_two_paths(
            (from_dir, from),
            (to_dir, to),
            |from, to| real(from_dir, from, to_dir, to, flags),
            |from, to| rename_places(from, to, flags),
        )
    }

    fn link(from: *const c_char, to: *const c_char) -> c_int {
        by_two_paths((AT_FDCWD, from), (AT_FDCWD, to), real, |from, to| {
            link_places(from, to, false)
        })
    }

    fn linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
        let named = if flags & libc::AT_SYMLINK_FOLLOW != 0 { named_descriptor(from) } else { None };
        if let Some(fd) = named.or_else(|| means_descriptor(from_dir, from, flags).then_some(from_dir)) {
            let elsewhere = |_: *const c_char| {
                set_errno(libc::EXDEV);
                -1
            };
            return by_path!(to_dir, to, elsewhere(to), |place| link_open(fd, place));
        }
        by_two_paths(
            (from_dir, from),
            (to_dir, to),
            |from, to| real(from_dir, from, to_dir, to, flags),
            |from, to| link_places(from, to, flags & libc::AT_SYMLINK_FOLLOW != 0),
        )
    }

    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        by_path!(AT_FDCWD, path, real(target, path), |place| make_symlink(target, place))
    }

    fn symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        by_path!(dirfd, path, real(target, dirfd, path), |place| make_symlink(target, place))
    }

    fn readlink(path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t {
        by_path!(AT_FDCWD, path, real(path, out, room), |place| read_link(place, out, room))
    }

    fn __readlink_chk(path: *const c_char, out: *mut c_char, room: size_t, whole: size_t) -> ssize_t {
        by_path!(AT_FDCWD, path, real(path, out, room, whole), |place| read_link(place, out, room.min(whole)))
    }

    fn readlinkat(dirfd: c_int, path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t {
        read_link_at(dirfd, path, (out, room), |path| real(dirfd, path, out, room))
    }

    fn __readlinkat_chk(dirfd: c_int, path: *const c_char, out: *mut c_char, room: size_t, whole: size_t) -> ssize_t {
        read_link_at(dirfd, path, (out, room.min(whole)), |path| real(dirfd, path, out, room, whole))
    }
}
