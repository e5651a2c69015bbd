//! The directories above a directory, for moves of directories between handles.
//!
//! A path that is resolved from the root shows what it came through. A directory that is reached by a handle does not: its record names
//! only the number of its parent. Where the parent is recorded is known from its location, if it was ever renamed, or from a handle on
//! it; a mount has handles on all directories above one that it knows. Where neither helps, the tree that is to move is searched.

use samite_types::{ErrorKind, Result};

use crate::names::listing::DirHandle;
use crate::records::key::{self, Key, ROOT_INO};
use crate::records::store::{ANY_NAME_SPACE, RecordLocation, fail};
use crate::{FileKind, FileSystem};

/// Deepest tree that is climbed: a deeper one is damaged.
const DEPTH_MAX: usize = 1 << 16;

impl FileSystem {
    /// Whether the directory recorded in `location` lies in directory `above`, or is it. The caller
    /// holds the lock of moves, so that the answer stays true.
    pub(crate) fn lies_within(&self, location: &RecordLocation, above: u64) -> Result<bool> {
        let mut key = location.key.clone();
        for _ in 0..DEPTH_MAX {
            let Some((parent, _)) = key::parse_entry(&key) else { return Ok(false) };
            if parent == above || parent == ROOT_INO {
                return Ok(parent == above);
            }
            match self.record_of_directory(parent)? {
                Some(record) => key = record,
                None => return self.contains(above, parent),
            }
        }
        Err(fail(ErrorKind::Loop))
    }

    /// The record of directory `ino`, if that can be told.
    fn record_of_directory(&self, ino: u64) -> Result<Option<Key>> {
        let pointer = self.store().location(key::location(ino));
        let located = self.store().value(&pointer)?.map(|(_, key)| Key::from_slice(&key));
        for key in [located, self.inner.directories.get(ino)].into_iter().flatten() {
            let node = self.store().read(&self.store().location(key.clone()), ANY_NAME_SPACE)?;
            if node.is_some_and(|node| node.inode.ino == ino) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Searches the tree of directory `top` for directory `wanted`.
    fn contains(&self, top: u64, wanted: u64) -> Result<bool> {
        let mut left = vec![(top, top)];
        while let Some((directory, parent)) = left.pop() {
            let mut entries = DirHandle::new(self, directory, parent);
            while let Some(entry) = entries.next_entry()? {
                if entry.kind != FileKind::Directory || matches!(&*entry.name, b"." | b"..") {
                    continue;
                }
                if entry.ino == wanted {
                    return Ok(true);
                }
                left.push((entry.ino, directory));
            }
        }
        Ok(false)
    }
}
