//! Places in the store, as paths name them, and where a call on a path goes.

use std::ffi::{CString, c_char};

use rustix::io::Errno;
use samite_fs::{PATH_LEN_MAX, RelativePath};

use crate::mount_prefix::{below_prefix, prefix};
use crate::table::DescriptionUse;
use crate::{hook, store};

/// Memory for a path that had to be put together; takes none until then.
pub struct PathRoom(pub Vec<u8>);

impl PathRoom {
    pub const fn new() -> Self {
        Self(Vec::new())
    }
}

/// A path in the store.
pub struct StoreLocation<'a> {
    dir: Option<DescriptionUse>,
    path: &'a [u8],
}

impl<'a> StoreLocation<'a> {
    /// A path from the store's root. An empty one names nothing.
    pub const fn whole(path: &'a [u8]) -> Self {
        Self { dir: None, path }
    }

    /// The part of a path below the mount prefix: empty for the store's root, or starting with `/`.
    pub const fn below_prefix(rest: &'a [u8]) -> Self {
        Self::whole(if rest.is_empty() { b"/" } else { rest })
    }

    /// A path from an open directory.
    pub const fn beneath(dir: DescriptionUse, path: &'a [u8]) -> Self {
        Self { dir: Some(dir), path }
    }

    /// An open directory itself, as `.` in it.
    pub fn itself(dir: &DescriptionUse) -> Self {
        Self::beneath(dir.clone(), b".")
    }

    /// For the file system's calls.
    pub fn at(&self) -> Result<RelativePath<'_>, Errno> {
        if self.path.is_empty() {
            return Err(Errno::NOENT);
        }
        if self.path.len() > PATH_LEN_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        match &self.dir {
            None => Ok(RelativePath::from(self.path)),
            Some(dir) => Ok(RelativePath::dir(dir.file()?, self.path)),
        }
    }
}

/// The absolute path outside the store to which a symbolic link on the way to `place` leads; told by `outcome`.
#[inline]
pub fn way_out<T>(place: &StoreLocation<'_>, outcome: &Result<T, Errno>) -> Option<CString> {
    if matches!(outcome, Err(Errno::XDEV)) { find_way_out(place) } else { None }
}

#[cold]
fn find_way_out(place: &StoreLocation<'_>) -> Option<CString> {
    let outside = hook::attempt(|| {
        let at = place.at()?;
        store::call_as(|fs, caller| fs.way_out(caller, at, true))
    });
    CString::new(outside.ok()??).ok()
}

/// Where a call goes.
pub enum PathRoute<'a> {
    /// To libc, as it is.
    Real,
    /// To libc, with this absolute path: the program's path leaves the store.
    Elsewhere(*const c_char),
    /// To the store.
    Store(StoreLocation<'a>),
}

/// The place that `whole`, an absolute plain path, names in the store; `None`: it is not in the store.
pub fn store_path_of<'a>(whole: Vec<u8>, room: &'a mut PathRoom) -> Option<StoreLocation<'a>> {
    below_prefix(&whole)?;
    room.0 = whole;
    Some(StoreLocation::below_prefix(&room.0[prefix().len()..]))
}
