//! POSIX files over the records of a dataset: no FUSE types, no libc interposition.
//!
//! [`FileSystem`] names files; [`OpenFile`] reads and writes one. Paths are bytes relative to the
//! root of the store. Every error is a [`samite_types::Error`] whose kind has the errno that POSIX asks for.
//!
//! # How it is built
//!
//! `key.rs` and `inode.rs` say what a file system is as records. `walk.rs` resolves paths over `cache.rs`; `make.rs`,
//! `removal.rs`,
//! `rename.rs` and `link.rs` change names, the latter two with `moving.rs`, and directories go with `seal.rs`.
//! `file.rs` is an open
//! file, `io.rs` reads and writes it, `convert.rs` moves its data from the inode to chunks, `size.rs` knows how long it is.
//!
//! # What holds
//!
//! - What a call has done is what every later call of any process sees, also in names, sizes and times of directories.
//! - With the directories of the path known, a create, a stat, an unlink of a file without chunks, a read and a write
//!   within a chunk
//!   cost one request each, a close without writes none. Reading at the end of a file or in a hole costs one more, to
//!   learn the size; so
//!   does the first write beyond the inode, and the close after it.
//! - An append takes its place atomically. While several append at once, a reader that overtakes the slower of them
//!   can see zeros
//!   in its place; with one appender never.
//! - A rename is atomic for those who look up either name. A listing meanwhile can show both names, or none.
//! - Times of access are not kept up (`noatime`). The time of modification of a large file is settled when it is
//!   closed or synced.
//! - A file that is unlinked or replaced lives on for the process that did it, and for those that inherit its
//!   descriptors. Others
//!   that have it open get `StaleHandle` from then on.
//! - Whoever dies half-way leaves nothing that others cannot finish or undo; they wait up to 2 s for that.

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
