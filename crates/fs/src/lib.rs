//! POSIX files over the records of a dataset: no FUSE types, no libc interposition.
//!
//! [`FileSystem`] names files; [`OpenFile`] reads and writes one. Paths are bytes relative to the
//! root of the store. Every error is a [`samite_types::Error`] whose kind has the errno that POSIX asks for.

mod at;
mod attr;
mod context;

use samite_client::Client;
use samite_types::Result;

pub use at::At;
pub use attr::{Attr, FileKind, STAT_BLOCK_LEN, SetTime, StatFs, Timestamp};
pub use context::{Context, OpenFlags, RenameFlags};

/// Longest name of a directory entry, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Longest path, in bytes, without a terminating NUL.
pub const PATH_LEN_MAX: usize = 4095;
/// Most symbolic links followed in one resolution.
pub const SYMLINKS_MAX: usize = 40;
/// Most bytes of file data kept inside the inode's record.
pub const INLINE_LEN_MAX: u64 = 8 << 10;
/// Largest file, in bytes.
pub const FILE_LEN_MAX: u64 = i64::MAX as u64;

/// A file system in one dataset. Cheap to clone; shared by threads.
#[derive(Clone)]
pub struct FileSystem {
    client: Client,
}

/// An open file or directory. Shared by threads behind an `Arc`; the file offset is the caller's.
pub struct OpenFile {
    fs: FileSystem,
}

/// What a process needs to open the same file again, as another process left it: for descriptors that survive `exec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenState {
    raw: Vec<u8>,
}

impl OpenState {
    /// Longest encoding of an open file, in bytes; an open directory adds its path.
    pub const LEN_MAX: usize = 400;

    /// Bytes for [`OpenState::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.raw.clone()
    }

    /// Back from bytes.
    ///
    /// # Errors
    /// `Corrupt`: they are not what [`OpenState::encode`] gave.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self { raw: bytes.to_vec() })
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode number.
    pub ino: u64,
    /// Kind.
    pub kind: FileKind,
    /// Position after this entry, for [`DirHandle::seek`]; never 0, and survives concurrent changes.
    pub cookie: u64,
    /// Name.
    pub name: Box<[u8]>,
    /// Attributes as of the listing (size of files being written may lag): `readdirplus`; none for `.` and `..`.
    pub attr: Option<Attr>,
}

/// An open listing of a directory: `.`, `..`, then every entry once, in an order that does not change.
pub struct DirHandle {
    fs: FileSystem,
}

#[expect(unused_variables, reason = "bodies follow")]
impl DirHandle {
    /// The next entry, or `None` at the end. Holds one batch of entries at a time.
    ///
    /// # Errors
    /// As of the nodes that hold the directory.
    pub fn next_entry(&mut self) -> Result<Option<DirEntry>> {
        todo!()
    }

    /// Position of the next entry; 0 at the start.
    #[must_use]
    pub fn tell(&self) -> u64 {
        todo!()
    }

    /// Goes to a position that `tell` or an entry's cookie gave; 0 starts again and sees new entries.
    pub fn seek(&mut self, cookie: u64) {
        todo!()
    }
}

#[expect(unused_variables, reason = "bodies follow")]
impl FileSystem {
    /// The file system in dataset `dataset`, which is made with its root directory if it is missing.
    ///
    /// # Errors
    /// As of the client.
    pub fn open(client: &Client, dataset: &str) -> Result<Self> {
        todo!()
    }

    /// Call in the child after `fork`: inode numbers and marks are per process.
    pub fn after_fork_child(&self) {
        todo!()
    }

    /// Attributes by path.
    pub fn stat<'a>(&self, ctx: &Context, at: impl Into<At<'a>>, follow: bool) -> Result<Attr> {
        todo!()
    }

    /// Opens or makes a file; opens a directory.
    pub fn open_file<'a>(
        &self,
        ctx: &Context,
        at: impl Into<At<'a>>,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<OpenFile> {
        todo!()
    }

    /// Opens again what another process, or this one before `exec`, had open.
    pub fn reopen(&self, state: &OpenState) -> Result<OpenFile> {
        todo!()
    }

    /// Makes a directory.
    pub fn mkdir<'a>(&self, ctx: &Context, at: impl Into<At<'a>>, perm: u32) -> Result<()> {
        todo!()
    }

    /// Makes a fifo, socket or device node, or an empty regular file. `mode` has the kind in its `S_IFMT` bits (none: regular).
    pub fn mknod<'a>(
        &self,
        ctx: &Context,
        at: impl Into<At<'a>>,
        mode: u32,
        rdev: u64,
    ) -> Result<()> {
        todo!()
    }

    /// Removes an empty directory.
    pub fn rmdir<'a>(&self, ctx: &Context, at: impl Into<At<'a>>) -> Result<()> {
        todo!()
    }

    /// Removes a name.
    pub fn unlink<'a>(&self, ctx: &Context, at: impl Into<At<'a>>) -> Result<()> {
        todo!()
    }

    /// Renames.
    pub fn rename<'a, 'b>(
        &self,
        ctx: &Context,
        from: impl Into<At<'a>>,
        to: impl Into<At<'b>>,
        flags: RenameFlags,
    ) -> Result<()> {
        todo!()
    }

    /// Makes a symbolic link.
    pub fn symlink<'a>(&self, ctx: &Context, target: &[u8], at: impl Into<At<'a>>) -> Result<()> {
        todo!()
    }

    /// Target of a symbolic link.
    pub fn readlink<'a>(&self, ctx: &Context, at: impl Into<At<'a>>) -> Result<Vec<u8>> {
        todo!()
    }

    /// Makes a hard link.
    pub fn link<'a, 'b>(
        &self,
        ctx: &Context,
        from: impl Into<At<'a>>,
        to: impl Into<At<'b>>,
        follow: bool,
    ) -> Result<()> {
        todo!()
    }

    /// Sets permission bits.
    pub fn chmod<'a>(
        &self,
        ctx: &Context,
        at: impl Into<At<'a>>,
        perm: u32,
        follow: bool,
    ) -> Result<()> {
        todo!()
    }

    /// Sets owner and group; `None` leaves one as it is.
    pub fn chown<'a>(
        &self,
        ctx: &Context,
        at: impl Into<At<'a>>,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> Result<()> {
        todo!()
    }

    /// Sets times.
    pub fn utimens<'a>(
        &self,
        ctx: &Context,
        at: impl Into<At<'a>>,
        atime: SetTime,
        mtime: SetTime,
        follow: bool,
    ) -> Result<()> {
        todo!()
    }

    /// Sets the length of a file.
    pub fn truncate<'a>(&self, ctx: &Context, at: impl Into<At<'a>>, len: u64) -> Result<()> {
        todo!()
    }

    /// Checks permissions: any of `R_OK` 4, `W_OK` 2, `X_OK` 1; 0 for existence.
    pub fn access<'a>(
        &self,
        ctx: &Context,
        at: impl Into<At<'a>>,
        mask: u32,
        follow: bool,
    ) -> Result<()> {
        todo!()
    }

    /// The path with every symbolic link, `.` and `..` resolved; it must exist.
    pub fn canonicalize<'a>(&self, ctx: &Context, at: impl Into<At<'a>>) -> Result<Vec<u8>> {
        todo!()
    }

    /// Space of the store.
    pub fn statfs(&self) -> Result<StatFs> {
        todo!()
    }

    /// Opens a listing.
    pub fn read_dir<'a>(&self, ctx: &Context, at: impl Into<At<'a>>) -> Result<DirHandle> {
        todo!()
    }
}

#[expect(unused_variables, reason = "bodies follow")]
impl OpenFile {
    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        todo!()
    }

    /// Kind of the file.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        todo!()
    }

    /// How it was opened.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        todo!()
    }

    /// `O_APPEND` on or off (`F_SETFL`).
    pub fn set_append(&self, append: bool) {
        todo!()
    }

    /// For a directory: its path when it was opened, with every symbolic link resolved.
    #[must_use]
    pub fn dir_path(&self) -> Option<&[u8]> {
        todo!()
    }

    /// Reads at `offset`; fewer bytes than asked only at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        todo!()
    }

    /// Writes at `offset`, whatever the append flag; all of `buf`, or an error.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        todo!()
    }

    /// Writes at the end; returns the offset at which the bytes went.
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        todo!()
    }

    /// Attributes.
    pub fn attr(&self) -> Result<Attr> {
        todo!()
    }

    /// Sets the length.
    pub fn truncate(&self, len: u64) -> Result<()> {
        todo!()
    }

    /// Makes sure that `[offset, offset + len)` is within the file (`posix_fallocate`); space is not reserved.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        todo!()
    }

    /// Sets permission bits.
    pub fn chmod(&self, ctx: &Context, perm: u32) -> Result<()> {
        todo!()
    }

    /// Sets owner and group.
    pub fn chown(&self, ctx: &Context, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        todo!()
    }

    /// Sets times.
    pub fn utimens(&self, ctx: &Context, atime: SetTime, mtime: SetTime) -> Result<()> {
        todo!()
    }

    /// Settles size and times of a file that was written to.
    pub fn fsync(&self) -> Result<()> {
        todo!()
    }

    /// The listing of this directory.
    pub fn read_dir(&self) -> Result<DirHandle> {
        todo!()
    }

    /// What another process needs to open it again. Settles the file first, so that the other one starts clean.
    pub fn state(&self) -> Result<OpenState> {
        todo!()
    }

    /// Last close of the open file description: settles it, and frees a file that has no name any more.
    /// Dropping an `OpenFile` does nothing of this: another process may still use the description.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
}
