//! `glob`: libc walks past the hooks, unless it is told how.

use std::ffi::{c_char, c_int};

use libc::{AT_FDCWD, DIR};

use crate::cwd;
use crate::hook::hooks;
use crate::hooks::directories::{closedir, opendir, readdir};
use crate::hooks::status::{lstat, stat};
use crate::path_class::classify;
use crate::store_location::{PathRoom, PathRoute};

/// `glob_t` of glibc, with the functions of `GLOB_ALTDIRFUNC`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GlobResult {
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
    cwd::is_inside() || matches!(classify(AT_FDCWD, pattern, &mut room), PathRoute::Store(_))
}

hooks! {
    fn glob = glob64 (
        pattern: *const c_char, flags: c_int, failed: Option<extern "C" fn(*const c_char, c_int) -> c_int>, out: *mut GlobResult,
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
}
