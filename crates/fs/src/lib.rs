//! POSIX files over the records of a dataset: no FUSE types, no libc interposition.
//!
//! [`FileSystem`] names files; [`OpenFile`] reads and writes one. Paths are bytes relative to the
//! root of the store. Every error is a [`samite_types::Error`] whose kind has the errno that POSIX asks for.

mod at;
mod attr;
mod attributes;
mod batch;
mod cache;
mod chunks;
mod context;
mod convert;
mod file;
mod filesystem;
mod inode;
mod io;
mod key;
mod link;
mod listing;
mod make;
mod marks;
mod moving;
mod open;
mod opens;
mod removal;
mod rename;
mod seal;
mod size;
mod state;
mod store;
mod walk;
mod writing;
mod xattr;

#[cfg(test)]
mod recovery_tests;

pub use at::At;
pub use attr::{Attr, FileKind, STAT_BLOCK_LEN, SetTime, StatFs, Timestamp};
pub use batch::{NewFile, WholeFile};
pub use context::{Context, OpenFlags, RenameFlags};
pub use file::OpenFile;
pub use filesystem::FileSystem;
pub use listing::{DirEntry, DirHandle};
pub use state::OpenState;
pub use xattr::{ATTRIBUTE_LEN_MAX, Subject, XattrFlags};

/// Longest name of a directory entry, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Longest path, in bytes, without a terminating NUL.
pub const PATH_LEN_MAX: usize = 4095;
/// Most symbolic links followed in one resolution.
pub const SYMLINKS_MAX: usize = 40;
/// Most bytes of file data kept inside the inode's record.
pub const INLINE_LEN_MAX: u64 = 8 << 10;
/// Largest file, in bytes: what 32-bit chunk numbers reach with the smallest chunks.
pub const FILE_LEN_MAX: u64 = 1 << 48;
