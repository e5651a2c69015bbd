//! Basic calls on files, and their answers, in a form that all access paths understand.

use serde::{Deserialize, Serialize};

/// An open file or directory stream of one access path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PathHandle(pub u32);

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// `flock`: whole file, owned by the open file.
    Flock,
    /// `fcntl` (`F_SETLK`): a range, owned by the process.
    Process,
    /// `fcntl` (`F_OFD_SETLK`): a range, owned by the open file.
    OpenFile,
}

/// The request about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallLockMode {
    /// Shared.
    Shared,
    /// Exclusive.
    Exclusive,
    /// Given back.
    Unlock,
}

/// One call. Paths begin with `/`, the root of the store. Flags and modes are those of the C library.
#[expect(missing_docs, reason = "the fields are the arguments of the call of that name")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FileCall {
    /// `open`.
    Open { path: String, flags: i32, mode: u32 },
    /// `close`.
    Close { file: PathHandle },
    /// `pread`, until `len` bytes or the end.
    Read { file: PathHandle, offset: u64, len: u32 },
    /// `pwrite` of everything.
    Write { file: PathHandle, offset: u64, data: Vec<u8> },
    /// `write` to a file opened with `O_APPEND`.
    Append { file: PathHandle, data: Vec<u8> },
    /// `fstat`.
    FileFacts { file: PathHandle },
    /// `ftruncate`.
    FileTruncate { file: PathHandle, len: u64 },
    /// `fsync`.
    Sync { file: PathHandle },
    /// `fallocate`.
    Allocate { file: PathHandle, mode: i32, offset: u64, len: u64 },
    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`.
    Seek { file: PathHandle, offset: u64, whence: i32 },
    /// A lock. `len` 0: to the end; `Flock` has no range.
    Lock { file: PathHandle, kind: LockKind, mode: CallLockMode, offset: u64, len: u64, wait: bool },
    /// `lstat`.
    Facts { path: String },
    /// `truncate`.
    Truncate { path: String, len: u64 },
    /// `mkdir`.
    MakeDirectory { path: String, mode: u32 },
    /// `rmdir`.
    RemoveDirectory { path: String },
    /// `unlink`.
    Unlink { path: String },
    /// `renameat2`.
    Rename { from: String, to: String, flags: u32 },
    /// `link`.
    Link { from: String, to: String },
    /// `symlink`.
    Symlink { target: String, path: String },
    /// `readlink`.
    ReadLink { path: String },
    /// `chmod`.
    Chmod { path: String, mode: u32 },
    /// `utimensat`, both times to this many nanoseconds since 1970.
    SetTimes { path: String, nanoseconds: i64 },
    /// `setxattr`.
    SetAttribute { path: String, name: String, value: Vec<u8> },
    /// `getxattr`.
    GetAttribute { path: String, name: String },
    /// All entries but `.` and `..`.
    List { path: String },
    /// `opendir`.
    OpenDirectory { path: String },
    /// `readdir` and `telldir`.
    NextEntry { directory: PathHandle },
    /// `seekdir`.
    SeekDirectory { directory: PathHandle, position: i64 },
}

/// The object of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSubject {
    /// A name.
    Path,
    /// An open file.
    File,
    /// A directory, by its stream or whole.
    Directory,
}

impl FileCall {
    /// The object of the call.
    #[must_use]
    pub const fn on(&self) -> CallSubject {
        match self {
            Self::List { .. }
            | Self::OpenDirectory { .. }
            | Self::NextEntry { .. }
            | Self::SeekDirectory { .. } => CallSubject::Directory,
            Self::Close { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Append { .. }
            | Self::FileFacts { .. }
            | Self::FileTruncate { .. }
            | Self::Sync { .. }
            | Self::Allocate { .. }
            | Self::Seek { .. }
            | Self::Lock { .. } => CallSubject::File,
            _ => CallSubject::Path,
        }
    }
}

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKindSeen {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Anything else.
    Other,
}

/// The attributes that `stat` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFacts {
    /// Inode number.
    pub ino: u64,
    /// Kind.
    pub kind: FileKindSeen,
    /// Permission bits.
    pub mode: u32,
    /// Links.
    pub links: u64,
    /// Bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last change of the data, in nanoseconds since 1970.
    pub changed: i64,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DirEntrySeen {
    /// Name.
    pub name: String,
    /// Position after it.
    pub position: i64,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallAnswer {
    /// Done.
    Done,
    /// Something was opened.
    Opened(PathHandle),
    /// Bytes.
    Bytes(Vec<u8>),
    /// An offset.
    Offset(u64),
    /// The attributes that `stat` tells.
    Facts(StatFacts),
    /// Names, sorted.
    Names(Vec<String>),
    /// One entry, or the end.
    Entry(Option<DirEntrySeen>),
    /// An errno.
    Failed(i32),
}
