//! Staging: trees of files copied into the store, out of it, or within it.
//!
//! One thread walks the source and makes the directories; a few threads copy the files: small ones in batches that cost one request per
//! node, large ones in pieces that the threads share.
//! Modes, times (to the nanosecond), symbolic and hard links and holes are kept, and owners when run by root.
//!
//! **Resuming.** The modification time of a file is set last. A file that is at the destination with the same length and time
//! was copied to its end and is skipped; any other one is copied anew, beside what is there ([`DraftFile`]), and replaces it when whole. A directory gets its mode and times after
//! all that is in it.
//!
//! **Errors** name the file, are told as they happen, and do not stop the rest: of a directory that
//! cannot be listed to its end, the listed part is copied; but when a node cannot be reached, the
//! copy is given up, and after ten errors of one kind the rest is only counted.

mod beside;
mod copy;
mod local;
mod progress;
mod queue;
mod store;
mod tree;
mod verify;
mod walk;

pub use beside::{DraftFile, sweep_tree};
pub use local::LocalTree;
pub use progress::{CopyProgress, CopySummary};
pub use store::StoreTree;
pub use tree::{ByteRange, Entry, FileMeta, FileTree, SMALL_LEN, SmallFile, Whole, join};

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8};

use samite_types::{Error, Result};

/// How to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// Threads that copy files; at least 1.
    pub threads: usize,
    /// Read every file back and compare it with its source, skipped ones too.
    pub checksum: bool,
    /// Keep owner and group (only root may give files away).
    pub keep_owner: bool,
    /// Skip files that were copied before (see above); otherwise everything is copied anew.
    pub resume: bool,
}

impl Default for CopyOptions {
    /// As many threads as processors, 2 to 8; owners kept by root; resuming.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            threads: processors.clamp(2, 8),
            checksum: false,
            keep_owner: rustix::process::geteuid().is_root(),
            resume: true,
        }
    }
}

/// Copies the tree (or the one file) `from` in `source` to `to` in `destination`: afterwards `to` is what `from` was.
///
/// Other entries of a directory `to` stay. `on_error` hears of each failure;
/// [`CopySummary::errors`] counts them.
///
/// # Errors
/// `from` cannot be looked at, or threads cannot be started: nothing was copied then.
pub fn copy_tree<S: FileTree, D: FileTree>(
    (source, from): (&S, &[u8]),
    (destination, to): (&D, &[u8]),
    options: &CopyOptions,
    progress: &CopyProgress,
    on_error: &(dyn Fn(&Error) + Sync),
) -> Result<CopySummary> {
    let root = source.meta(from)?;
    let job = copy::TreeCopy {
        source,
        destination,
        options,
        progress,
        on_error,
        lost: AtomicBool::new(false),
        errors: Mutex::default(),
        too_many: AtomicU8::new(0),
    };
    walk::run(&job, from, to, root)
}
