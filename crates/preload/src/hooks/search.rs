//! `glob` and `dlopen`: libc walks and opens past the hooks, unless it is told how.

use std::ffi::{CString, c_char, c_int, c_void};

use libc::{AT_FDCWD, DIR};
use rustix::io::Errno;
use samite_fs::OpenFlags;

use crate::hook::{attempt, hooks};
use crate::hooks::directories::{closedir, opendir, readdir};
use crate::hooks::program::copy_to_memory;
use crate::hooks::status::{lstat, stat};
use crate::route::{PathRoom, Route, route};
use crate::{cwd, foreign, store};

/// `glob_t` of glibc, with the functions of `GLOB_ALTDIRFUNC`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    close: Option<extern "C" fn(*mut DIR) -> c_int>,
    read: Option<extern "C" fn(*mut DIR) -> *mut libc::dirent64>,
    open: Option<extern "C" fn(*const c_char) -> *mut DIR>,
    look_link: Option<extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
    look: Option<extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
}

/// Whether a pattern may lead into the store.
fn is_of_store(pattern: *const c_char) -> bool {
    let mut room = PathRoom::new();
    cwd::is_inside() || matches!(route(AT_FDCWD, pattern, &mut room), Route::Store(_))
}

/// Copies a library of the store to memory, where the loader can map it.
fn to_memory(path: *const c_char) -> Option<Result<CString, Errno>> {
    let mut room = PathRoom::new();
    let Route::Store(place) = route(AT_FDCWD, path, &mut room) else { return None };
    Some(attempt(|| {
        let at = place.at()?;
        let file = store::call_as(|fs, caller| fs.open_file(caller, at, OpenFlags::reading(), 0))?;
        // The loader tells libraries apart by path and inode, so each copy keeps its number.
        copy_to_memory(&file).map(crate::hooks::program::MemoryFile::keep)
    }))
}

hooks! {
    fn glob = glob64 (
        pattern: *const c_char, flags: c_int, failed: Option<extern "C" fn(*const c_char, c_int) -> c_int>, out: *mut Glob,
    ) -> c_int {
        if flags & libc::GLOB_ALTDIRFUNC != 0 || !is_of_store(pattern) {
            return real(pattern, flags, failed, out);
        }
        // SAFETY: the program vouches for its structure.
        if let Some(out) = unsafe { out.as_mut() } {
            out.close = Some(closedir);
            out.read = Some(readdir);
            out.open = Some(opendir);
            out.look_link = Some(lstat);
            out.look = Some(stat);
        }
        real(pattern, flags | libc::GLOB_ALTDIRFUNC, failed, out)
    }

    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
        // A bare name is looked up along the loader's own path.
        let is_path = foreign::text(path).is_ok_and(|path| path.contains(&b'/'));
        match if is_path { to_memory(path) } else { None } {
            None => real(path, flags),
            Some(Ok(copy)) => real(copy.as_ptr(), flags),
            // Let the loader say what it says of a file that is not there.
            Some(Err(_)) => real(path, flags),
        }
    }
}
