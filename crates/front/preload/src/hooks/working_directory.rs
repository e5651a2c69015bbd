//! `chdir` and `getcwd`.

use std::ffi::{c_char, c_int};

use libc::{AT_FDCWD, size_t};
use rustix::io::Errno;
use samite_fs::{OpenFlags, RelativePath};

use crate::hook::{by_file, by_path, guard, hooks};
use crate::real::set_errno;
use crate::{cwd, foreign, mount_prefix, path_class, store, store_location, table};

const X_OK: u32 = 1;

fn enter(at: RelativePath<'_>) -> Result<c_int, Errno> {
    let how = OpenFlags { directory: true, ..OpenFlags::default() };
    let path = store::call_as(|fs, caller| {
        let dir = fs.open_file(caller, at, how, 0)?;
        fs.access(caller, RelativePath::dir(&dir, b"."), X_OK, true)?;
        Ok(dir.dir_path().map(<[u8]>::to_vec))
    })?;
    cwd::enter_store(&path.ok_or(Errno::NOTDIR)?);
    cwd::park();
    Ok(0)
}

/// Libc changed the directory, or not.
fn left(outcome: c_int) -> c_int {
    if outcome == 0 {
        cwd::leave_store();
    }
    outcome
}

/// The program's name of the working directory.
fn name() -> Vec<u8> {
    named(&cwd::path())
}

/// The program's name of a path below the store's root.
pub fn named(path: &[u8]) -> Vec<u8> {
    let mut name = mount_prefix::prefix().to_vec();
    if path != b"/" {
        name.extend_from_slice(path);
    }
    name
}

fn tell(out: *mut c_char, room: size_t) -> Result<*mut c_char, Errno> {
    let name = name();
    if out.is_null() {
        if room != 0 && room <= name.len() {
            return Err(Errno::RANGE);
        }
        let given = foreign::give_text(&name);
        return if given.is_null() { Err(Errno::NOMEM) } else { Ok(given) };
    }
    if room == 0 {
        return Err(Errno::INVAL);
    }
    foreign::put_text(out, room, &name).ok_or(Errno::RANGE)?;
    Ok(out)
}

hooks! {
    fn chdir(path: *const c_char) -> c_int {
        by_file!(AT_FDCWD, path, true, left(real(path)), |open| enter(RelativePath::dir(open.file()?, b".")), |place| {
            enter(place.at()?)
        })
    }

    fn fchdir(fd: c_int) -> c_int {
        match table::get(fd) {
            None => left(real(fd)),
            Some(open) => guard(|| enter(RelativePath::dir(open.file()?, b"."))),
        }
    }

    fn getcwd(out: *mut c_char, room: size_t) -> *mut c_char {
        if cwd::is_inside() { guard(|| tell(out, room)) } else { real(out, room) }
    }

    fn __getcwd_chk(out: *mut c_char, room: size_t, whole: size_t) -> *mut c_char {
        if cwd::is_inside() { guard(|| tell(out, room.min(whole))) } else { real(out, room, whole) }
    }

    fn get_current_dir_name() -> *mut c_char {
        if cwd::is_inside() { guard(|| tell(std::ptr::null_mut(), 0)) } else { real() }
    }

    fn getwd(out: *mut c_char) -> *mut c_char {
        const PATH_MAX: size_t = 4096;
        if cwd::is_inside() { guard(|| tell(out, PATH_MAX)) } else { real(out) }
    }

    fn __getwd_chk(out: *mut c_char, room: size_t) -> *mut c_char {
        if cwd::is_inside() { guard(|| tell(out, room)) } else { real(out, room) }
    }

    fn chroot(path: *const c_char) -> c_int {
        by_path!(AT_FDCWD, path, real(path), |place| {
            let _ = place;
            Err(Errno::PERM)
        })
    }

    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
        by_path!(AT_FDCWD, path, real(fd, path, mask), |place| {
            let _ = place;
            // Programs fall back to looking again and again.
            Err(Errno::NOSPC)
        })
    }

    fn acct(path: *const c_char) -> c_int {
        let mut room = store_location::PathRoom::new();
        if let store_location::PathRoute::Store(_) = path_class::classify(AT_FDCWD, path, &mut room) {
            set_errno(libc::EPERM);
            return -1;
        }
        real(path)
    }
}
