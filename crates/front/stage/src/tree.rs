//! A tree that can be copied from or to: the local file system and the store behind one face.

use samite_fs::{FileKind, Timestamp};
use samite_types::Result;

/// The attributes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Device numbers, for device nodes.
    pub rdev: u64,
    /// Links to it.
    pub nlink: u32,
    /// Names the file within its tree: device and inode number.
    pub id: (u64, u64),
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
}

impl FileMeta {
    /// Whether a file found at the destination is this one, copied to its end: the time is set last.
    #[must_use]
    pub fn is_copied_as(&self, found: &Self) -> bool {
        self.kind == found.kind && self.size == found.size && self.mtime == found.mtime
    }
}

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// The attributes of a small file, and all its data.
pub type Whole = (FileMeta, Vec<u8>);

/// A small regular file to be made.
#[derive(Clone, Debug)]
pub struct SmallFile<'a> {
    /// Path.
    pub path: &'a [u8],
    /// Its attributes.
    pub meta: FileMeta,
    /// All that is in it.
    pub data: Vec<u8>,
}

/// A regular file of at most this length is read and made whole, together with others: one that
/// fits into an inode's record.
pub const SMALL_LEN: u64 = samite_fs::INLINE_LEN_MAX;

/// A name in a directory, and what its listing happens to know of it.
pub type Entry = (Vec<u8>, Option<FileMeta>);

/// A tree of files. Paths are bytes, and name links themselves, never what they point to.
///
/// Every error names the path and what was being done to it.
pub trait FileTree: Sync {
    /// An open file.
    type File: Send + Sync;

    /// The path as a person would write it.
    fn show(&self, path: &[u8]) -> String;

    /// The attributes of `path`.
    ///
    /// # Errors
    /// Of the tree.
    fn meta(&self, path: &[u8]) -> Result<FileMeta>;

    /// Adds every name in the directory `path` to `entries`, with what the listing happens to know of it (a size may lag behind a writer).
    ///
    /// # Errors
    /// Of the tree: `entries` has what could be listed before it.
    fn list(&self, path: &[u8], entries: &mut Vec<Entry>) -> Result<()>;

    /// Reads regular files whole, in few requests. One result for each path: `None` for one that turns out not to be small.
    fn read_small(&self, paths: &[&[u8]]) -> Vec<Result<Option<Whole>>>;

    /// Makes regular files that must not exist, with their attributes (owners if `with_owner`), in few requests. One result for each:
    /// [`samite_types::ErrorKind::Exists`], [`samite_types::ErrorKind::Busy`] (to be made by [`FileTree::create`]), or of the tree.
    fn create_small(&self, files: &[SmallFile<'_>], with_owner: bool) -> Vec<Result<()>>;

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// Of the tree.
    fn open(&self, path: &[u8]) -> Result<Self::File>;

    /// Makes a regular file that must not exist, open for reading and writing.
    ///
    /// # Errors
    /// [`samite_types::ErrorKind::Exists`], or of the tree.
    fn create(&self, path: &[u8], perm: u32) -> Result<Self::File>;

    /// The attributes of an open file.
    ///
    /// # Errors
    /// Of the tree.
    fn file_meta(&self, file: &Self::File, path: &[u8]) -> Result<FileMeta>;

    /// The first range with data at or after `start`, cut at `end`; `None` when the rest is a hole.
    ///
    /// # Errors
    /// Of the tree.
    fn next_data(
        &self,
        file: &Self::File,
        path: &[u8],
        within: ByteRange,
    ) -> Result<Option<ByteRange>>;

    /// Reads at `offset`; 0 at the end of the file.
    ///
    /// # Errors
    /// Of the tree.
    fn read_at(&self, file: &Self::File, path: &[u8], buf: &mut [u8], offset: u64)
    -> Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Of the tree.
    fn write_at(&self, file: &Self::File, path: &[u8], bytes: &[u8], offset: u64) -> Result<()>;

    /// Sets the length of an open file.
    ///
    /// # Errors
    /// Of the tree.
    fn set_len(&self, file: &Self::File, path: &[u8], len: u64) -> Result<()>;

    /// Sets owner (if `with_owner`), mode and times of a file that [`FileTree::create`] made with the permissions of `meta`,
    /// and closes it.
    ///
    /// # Errors
    /// Of the tree.
    fn finish(
        &self,
        file: &Self::File,
        path: &[u8],
        meta: &FileMeta,
        with_owner: bool,
    ) -> Result<()>;

    /// Closes a file that was opened or is given up.
    fn close(&self, file: &Self::File);

    /// Sets owner (if `with_owner`), mode (unless it is a link) and times of what is at `path`.
    ///
    /// # Errors
    /// Of the tree.
    fn set_meta(&self, path: &[u8], meta: &FileMeta, with_owner: bool) -> Result<()>;

    /// Makes a directory.
    ///
    /// # Errors
    /// [`samite_types::ErrorKind::Exists`], or of the tree.
    fn mkdir(&self, path: &[u8], perm: u32) -> Result<()>;

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// Of the tree.
    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>>;

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`samite_types::ErrorKind::Exists`], or of the tree.
    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()>;

    /// Makes a hard link `path` to the file `existing` of this tree.
    ///
    /// # Errors
    /// [`samite_types::ErrorKind::Exists`], or of the tree.
    fn link(&self, existing: &[u8], path: &[u8]) -> Result<()>;

    /// Makes a fifo, socket or device node.
    ///
    /// # Errors
    /// [`samite_types::ErrorKind::Exists`], or of the tree.
    fn mknod(&self, path: &[u8], meta: &FileMeta) -> Result<()>;

    /// Removes a name that is no directory.
    ///
    /// # Errors
    /// Of the tree.
    fn unlink(&self, path: &[u8]) -> Result<()>;

    /// Renames a file to `to`, in place of what is there.
    ///
    /// # Errors
    /// Of the tree.
    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()>;

    /// Locks an open file as a whole, at the longest until this process ends; whether it could be had.
    ///
    /// # Errors
    /// Of the tree.
    fn hold(&self, file: &Self::File) -> Result<bool>;

    /// Ends [`FileTree::hold`].
    fn release(&self, file: &Self::File);

    /// Gives back the space of removed files that only dead programs had open. By itself the tree may never do so.
    fn free_removed(&self) {}
}

/// `dir` and `name` as one path.
#[must_use]
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.ends_with(b"/") && !dir.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
