//! POSIX files over the records of a dataset: no FUSE types, no libc interposition.
//!
//! [`FileSystem`] names files; [`OpenFile`] reads and writes one. Paths are bytes relative to the
//! root of the store. Every error is a [`samite_types::Error`] whose kind has the errno that POSIX asks for.
//!
//! # How it is built
//!
//! `records/` is at the bottom, and knows neither paths nor open files: `key.rs` and `inode.rs`
//! define the records of a file system, `store.rs` reads and changes them, `lookup.rs` finds an
//! inode wherever it lives by now, `moving.rs` moves one between partitions.
//!
//! `names/` resolves paths (`walk.rs` over `cache.rs`) and lists directories. `make.rs`,
//! `removal.rs`, `rename.rs` and `link.rs` change names; `entry_operations.rs` has the operations
//! that make and remove an entry, and directories are removed with `tombstone.rs`. `exchange.rs`
//! swaps names.
//!
//! `files/`: `file.rs` is an open file, `io.rs` reads and writes it, `append.rs` appends to its
//! tail (`tail.rs`), `convert.rs` moves its data from the inode to chunks, `size.rs` finds out how
//! long it is, `writing.rs` notes which bytes a handle wrote and when, `holes.rs` finds where there
//! is nothing. `deferred.rs` keeps new files of temporary directories until they leave together.
//!
//! `sharing/`: `delegated.rs` reads records under delegations, for mounts (`delegated_lookup.rs`)
//! and for files that are opened (`open_snapshot.rs`). `open_references.rs` keeps open files alive
//! without a name, and `locks.rs` locks them.
//!
//! `filesystem.rs` puts it together.
//!
//! # Guarantees
//!
//! - The effects of a finished call are seen by every later call of any process, also in names,
//!   sizes and times of directories.
//! - With the directories of the path known, a create, a stat, an unlink of a file without chunks,
//!   a read and a write within a chunk cost one request each, a close without writes none. Opening,
//!   reading and closing a file of up to [`INLINE_LEN_MAX`] bytes costs one together: an open for
//!   reading also reads inode and data under a delegation of 2 ms, for which others' changes wait
//!   (`open_snapshot.rs`). Reading at the end of a file or in a hole costs one more, to learn the
//!   size; so does the first write beyond the inode, and the close after it.
//! - An append of up to 1 MiB less 128 bytes is there whole or not at all, whichever process dies,
//!   and costs one request; a tail that has no room for more goes into chunks, which costs four, or
//!   two for a large append.
//! - Holes take no space in units of 64 KiB, and are found in one request per node, however long the file is. The attributes of a file
//!   with holes cost as much.
//! - A rename is atomic for look-ups of either name. A listing meanwhile can show both names, or
//!   none.
//! - Times of access are not kept up (`noatime`). A write shows its time at once; writes of one handle within 4 ms may show one time until
//!   the file is closed or synced.
//! - Where a directory says so ([`FileSemantics`]), less is promised: an open file may stay as it
//!   was, and new files may be seen late.
//! - A file that loses its last name lives on for the processes that have it open, in any process
//!   on any node, until the last close. Its space is free after that; when the holders were killed,
//!   after a sweep ([`FileSystem::sweep_orphans`]).
//! - A process that dies half-way leaves nothing that others cannot finish or undo; they wait up to
//!   2 s for that.

mod context;
mod files;
mod filesystem;
mod names;
mod records;
mod semantics;
mod sharing;

#[cfg(test)]
mod recovery_tests;

pub use context::{CallerContext, OpenFlags, RenameFlags};
pub use files::file::OpenFile;
pub use files::holes::AllocateMode;
pub use files::state::OpenState;
pub use files::xattr::{ATTRIBUTE_LEN_MAX, XattrFlags, XattrSubject};
pub use filesystem::FileSystem;
pub use names::at::RelativePath;
pub use names::batch::{NewFile, WholeFile};
pub use names::by_inode::{FoundFile, OpenedFile};
pub use names::listing::{DirEntry, DirHandle};
pub use records::attr::{FileAttributes, FileKind, STAT_BLOCK_LEN, SetTime, StatFs, Timestamp};
pub use records::placement::{
    MARKER_KEY, merged_record, move_of_intent, record_placement, token_of_verdict,
};
pub use semantics::FileSemantics;
pub use sharing::delegated::DelegationStamp;
pub use sharing::delegated_lookup::{Names, RecordOf, ResolvedName};
pub use sharing::locks::{
    FileLocks, LOCK_LAST, LockFound, LockMode, LockPlace, LockRange, LockSpace, WantedLock,
};

/// Longest name of a directory entry, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Longest path, in bytes, without a terminating NUL.
pub const PATH_LEN_MAX: usize = 4095;
/// Most symbolic links followed in one resolution.
pub const SYMLINKS_MAX: usize = 40;
/// Most bytes of file data inside the inode's record.
pub const INLINE_LEN_MAX: u64 = 8 << 10;
/// Largest file, in bytes: the limit of 32-bit chunk numbers with the smallest chunks.
pub const FILE_LEN_MAX: u64 = 1 << 48;
