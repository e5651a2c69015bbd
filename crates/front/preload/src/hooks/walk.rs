//! `ftw` and `nftw`: libc walks with its own calls, past the hooks, so a tree of the store is walked here.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int};

use libc::{AT_FDCWD, stat};

use crate::foreign;
use crate::hook::hooks;
use crate::hooks::directories::{closedir, opendir, readdir};
use crate::hooks::status::{lstat, stat as stat_path};
use crate::hooks::working_directory::chdir;
use crate::path_class::classify;
use crate::real::{errno, set_errno};
use crate::store_location::{PathRoom, PathRoute};

type Visit = extern "C" fn(*const c_char, *const stat, c_int) -> c_int;
type VisitDeep = extern "C" fn(*const c_char, *const stat, c_int, *mut WalkPosition) -> c_int;

/// `struct FTW`.
#[repr(C)]
pub struct WalkPosition {
    base: c_int,
    level: c_int,
}

const IS_FILE: c_int = 0;
const IS_DIRECTORY: c_int = 1;
const UNREADABLE: c_int = 2;
const NO_STATUS: c_int = 3;
const IS_LINK: c_int = 4;
const AFTER_CONTENTS: c_int = 5;
const DANGLING: c_int = 6;

const PHYSICAL: c_int = 1;
const ENTER_DIRECTORIES: c_int = 4;
const CONTENTS_FIRST: c_int = 8;
const ACTIONS: c_int = 16;

const STOP: c_int = 1;
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

/// Deepest directory; a path of the longest length has no more.
const DEPTH_MAX: c_int = 2048;

enum WalkCall {
    Simple(Visit),
    Deep(VisitDeep),
}

struct TreeWalk {
    call: WalkCall,
    flags: c_int,
    /// Directories entered, where symbolic links are followed: no directory is walked twice.
    seen: HashSet<u64>,
}

impl TreeWalk {
    fn visit(&self, path: &CStr, status: &stat, kind: c_int, level: c_int) -> c_int {
        match self.call {
            WalkCall::Simple(visit) => visit(path.as_ptr(), status, kind),
            WalkCall::Deep(visit) => {
                let base = path.to_bytes().iter().rposition(|byte| *byte == b'/');
                let base = base.map_or(0, |slash| slash + 1);
                // Paths are far shorter than 2 GiB.
                let mut place = WalkPosition { base: base as c_int, level };
                visit(path.as_ptr(), status, kind, &raw mut place)
            }
        }
    }

    fn is_physical(&self) -> bool {
        matches!(self.call, WalkCall::Deep(_)) && self.flags & PHYSICAL != 0
    }

    fn look(&self, path: &CStr) -> (stat, c_int) {
        // SAFETY: a structure of numbers, for which zeros are valid.
        let mut status: stat = unsafe { std::mem::zeroed() };
        let found = if self.is_physical() {
            lstat(path.as_ptr(), &raw mut status)
        } else {
            stat_path(path.as_ptr(), &raw mut status)
        };
        let kind = if found == 0 {
            match status.st_mode & libc::S_IFMT {
                libc::S_IFDIR => IS_DIRECTORY,
                libc::S_IFLNK => IS_LINK,
                _ => IS_FILE,
            }
        } else if !self.is_physical() && lstat(path.as_ptr(), &raw mut status) == 0 {
            if matches!(self.call, WalkCall::Deep(_)) { DANGLING } else { IS_LINK }
        } else {
            NO_STATUS
        };
        (status, kind)
    }

    /// Walks the tree at `path`; a result other than 0 ends the walk.
    fn walk(&mut self, path: &CStr, level: c_int) -> c_int {
        let (status, kind) = self.look(path);
        if kind == NO_STATUS && level == 0 {
            return -1;
        }
        if kind != IS_DIRECTORY {
            return self.visit(path, &status, kind, level);
        }
        if !self.is_physical() && !self.seen.insert(status.st_ino) {
            return 0;
        }
        if level > DEPTH_MAX {
            set_errno(libc::ELOOP);
            return -1;
        }
        let Some(names) = names(path) else {
            return self.visit(path, &status, UNREADABLE, level);
        };
        let first = self.flags & CONTENTS_FIRST == 0;
        if first {
            let answer = self.visit(path, &status, IS_DIRECTORY, level);
            if self.flags & ACTIONS != 0 && answer == SKIP_SUBTREE {
                return 0;
            }
            if answer != 0 {
                return answer;
            }
        }
        let answer = self.contents(path, names, level);
        if answer != 0 || first {
            return answer;
        }
        self.visit(path, &status, AFTER_CONTENTS, level)
    }

    fn contents(&mut self, path: &CStr, names: Vec<CString>, level: c_int) -> c_int {
        if self.flags & ENTER_DIRECTORIES != 0 && chdir(path.as_ptr()) != 0 {
            return -1;
        }
        for name in names {
            let below = [path.to_bytes(), b"/", name.to_bytes()].concat();
            let Ok(below) = CString::new(below) else { continue };
            let answer = self.walk(&below, level + 1);
            if self.flags & ACTIONS != 0 && answer == SKIP_SIBLINGS {
                return 0;
            }
            if answer != 0 {
                return answer;
            }
        }
        0
    }
}

/// Names in a directory, without `.` and `..`; `None` when it cannot be read.
fn names(path: &CStr) -> Option<Vec<CString>> {
    let dir = opendir(path.as_ptr());
    if dir.is_null() {
        return None;
    }
    let mut names = Vec::new();
    loop {
        let entry = readdir(dir);
        if entry.is_null() {
            break;
        }
        // SAFETY: `readdir` gave a whole entry, whose name ends with NUL.
        let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name.to_owned());
        }
    }
    closedir(dir);
    Some(names)
}

/// Walks a tree of the store; `None`: it is not one.
fn walk(path: *const c_char, call: WalkCall, flags: c_int) -> Option<c_int> {
    let mut room = PathRoom::new();
    let PathRoute::Store(_) = classify(AT_FDCWD, path, &mut room) else { return None };
    let mut text = foreign::text(path).ok()?.to_vec();
    while text.len() > 1 && text.last() == Some(&b'/') {
        text.pop();
    }
    let path = CString::new(text).ok()?;
    let before = errno();
    let answer = TreeWalk { call, flags, seen: HashSet::new() }.walk(&path, 0);
    if answer == 0 {
        set_errno(before);
    }
    // Without actions, whatever the program returned ends the walk and is its outcome; with them too, but for the skips.
    Some(if flags & ACTIONS != 0 && answer > STOP { 0 } else { answer })
}

hooks! {
    fn ftw = ftw64 (path: *const c_char, visit: Option<Visit>, descriptors: c_int) -> c_int {
        visit
            .and_then(|visit| walk(path, WalkCall::Simple(visit), 0))
            .unwrap_or_else(|| real(path, visit, descriptors))
    }

    fn nftw = nftw64 (path: *const c_char, visit: Option<VisitDeep>, descriptors: c_int, flags: c_int) -> c_int {
        visit
            .and_then(|visit| walk(path, WalkCall::Deep(visit), flags))
            .unwrap_or_else(|| real(path, visit, descriptors, flags))
    }
}
