//! Progress of a copy, and its result.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use samite_types::ErrorKind;

/// Counters that the copying threads raise and that a progress display reads.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Regular files found so far.
    pub files_found: AtomicU64,
    /// Their bytes.
    pub bytes_found: AtomicU64,
    /// Whether all files have been found.
    pub walked: AtomicBool,
    /// Regular files done: copied, skipped or failed.
    pub files_done: AtomicU64,
    /// Bytes done, holes included.
    pub bytes_done: AtomicU64,
    pub(crate) tally: CopyTally,
}

#[derive(Debug, Default)]
pub(crate) struct CopyTally {
    pub files: AtomicU64,
    pub bytes: AtomicU64,
    pub skipped: AtomicU64,
    pub directories: AtomicU64,
    pub symlinks: AtomicU64,
    pub hard_links: AtomicU64,
    pub hard_links_copied: AtomicU64,
    pub special: AtomicU64,
    pub verified: AtomicU64,
    pub errors: AtomicU64,
    pub untried: AtomicU64,
}

/// Adds to a counter. Counters order nothing, so the weakest ordering will do.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySummary {
    /// Regular files copied.
    pub files: u64,
    /// Their bytes, holes included.
    pub bytes: u64,
    /// Regular files that were there already.
    pub skipped: u64,
    /// Directories, those included that were there.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files with several.
    pub hard_links: u64,
    /// Further names that became files of their own, because the destination has no hard links.
    pub hard_links_copied: u64,
    /// Fifos, sockets and device nodes.
    pub special: u64,
    /// Files read back and compared.
    pub verified: u64,
    /// Failures. Of each kind the first ten were told.
    pub errors: u64,
    /// The rest was not tried: a node could not be reached, or there were ten errors of one kind.
    pub given_up: bool,
    /// The kind of error of which there were ten.
    pub stopped_by: Option<ErrorKind>,
    /// Files that were found after that, and not tried; directories are not counted.
    pub untried: u64,
    /// Time it took.
    pub elapsed: Duration,
}

impl CopyProgress {
    pub(crate) fn summary(
        &self,
        elapsed: Duration,
        is_lost: bool,
        stopped_by: Option<ErrorKind>,
    ) -> CopySummary {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tally = &self.tally;
        CopySummary {
            files: get(&tally.files),
            bytes: get(&tally.bytes),
            skipped: get(&tally.skipped),
            directories: get(&tally.directories),
            symlinks: get(&tally.symlinks),
            hard_links: get(&tally.hard_links),
            hard_links_copied: get(&tally.hard_links_copied),
            special: get(&tally.special),
            verified: get(&tally.verified),
            errors: get(&tally.errors),
            given_up: is_lost || stopped_by.is_some(),
            stopped_by: stopped_by.filter(|_| !is_lost),
            untried: get(&tally.untried),
            elapsed,
        }
    }
}
