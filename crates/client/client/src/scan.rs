//! Scans: all records of a dataset, or those at hand, with their values.
//!
//! A partition is walked in the order of its keys, a page at a time; pages are requested ahead, so
//! that the node makes the next one while the last one is read. Values that lie in the arena of a
//! node on this host are copied from there, record by record, and compared with what the node
//! vouched for: what has changed meanwhile is asked for. Nothing is allocated for a record.

mod cursor;
mod progress;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use samite_types::{Error, ErrorKind, PartitionId, Result, Version};

use crate::Dataset;
pub use cursor::ScanCursor;
use progress::ScanProgress;
pub use progress::ScanToken;

/// What a scan is to visit.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// Only records whose keys start so; empty: all.
    pub prefix: Vec<u8>,
    /// Whether their values are wanted, too.
    pub values: bool,
    /// Which partitions.
    pub scope: ScanScope,
    /// Where another scan with the same options has ended; `None`: from the first record.
    pub from: Option<ScanToken>,
}

impl Default for ScanOptions {
    /// All records, with their values.
    fn default() -> Self {
        Self { prefix: Vec::new(), values: true, scope: ScanScope::All, from: None }
    }
}

/// The partitions that a scan visits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanScope {
    /// All.
    #[default]
    All,
    /// Those that a node on this host answers reads of, over shared memory, when the scan comes to
    /// them. Where only primaries answer reads, each partition so belongs to one host.
    OnHost,
    /// This one.
    Partition(PartitionId),
}

/// A record that a scan has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisitedRecord<'c> {
    /// Its partition.
    pub partition: PartitionId,
    /// Its key.
    pub key: &'c [u8],
    /// Its version.
    pub version: Version,
    /// Length of its value, in bytes.
    pub len: u32,
    /// Its value; empty unless values are wanted.
    pub value: &'c [u8],
}

/// A scan of a dataset, shared by the threads that carry it out.
///
/// A record that nobody changes while the scan lasts is visited exactly once, also when the scan is
/// taken up again from a [`ScanToken`] and when another node takes over meanwhile. One that is
/// changed is visited once, as it was at some time while the scan lasted, or not at all if it was
/// removed; one that is made meanwhile may be visited. Within a partition, keys come in order;
/// there is no order among partitions, and no one time of which all records are.
#[derive(Debug)]
pub struct DatasetScan {
    dataset: Dataset,
    prefix: Vec<u8>,
    values: bool,
    scope: ScanScope,
    progress: Mutex<ScanProgress>,
}

impl DatasetScan {
    /// See [`Dataset::scan`].
    pub(crate) fn new(dataset: &Dataset, options: &ScanOptions) -> Result<Self> {
        let ScanOptions { prefix, values, scope, from } = options;
        let partitions = dataset.partitions();
        if let ScanScope::Partition(only) = scope
            && only.get() >= partitions
        {
            let words = format!("scan: {only}: there are {partitions} partitions");
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        if *scope == ScanScope::OnHost {
            // Which these are, the cluster map says.
            dataset.client().map()?;
        }
        let progress = match from {
            None => ScanProgress::new(dataset.id(), partitions),
            Some(token) => ScanProgress::from_token(token, dataset.id(), partitions)?,
        };
        Ok(Self {
            dataset: dataset.clone(),
            prefix: prefix.clone(),
            values: *values,
            scope: *scope,
            progress: Mutex::new(progress),
        })
    }

    /// Records one after the other, in this thread. Each thread takes partitions that no other has.
    #[must_use]
    pub fn cursor(&self) -> ScanCursor<'_> {
        ScanCursor::new(self)
    }

    /// Has `visit` see all records that are left, in so many threads (at least this one), until it
    /// breaks in one of them. Whether all were visited.
    ///
    /// # Errors
    /// As [`ScanCursor::advance`]; what was not visited is left.
    pub fn run(
        &self,
        threads: usize,
        visit: impl Fn(&VisitedRecord<'_>) -> ControlFlow<()> + Sync,
    ) -> Result<bool> {
        let has_broken = AtomicBool::new(false);
        let walk = || {
            let mut cursor = self.cursor();
            while cursor.advance()? {
                if visit(&cursor.record()).is_break() {
                    has_broken.store(true, Ordering::Relaxed);
                }
                if has_broken.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        };
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(walk)).collect();
            let mut results = vec![walk()];
            for other in others {
                results.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            results
        });
        results.into_iter().collect::<Result<()>>()?;
        Ok(!has_broken.into_inner())
    }

    /// Where to take the scan up again. While a cursor is open, the records of the page that it
    /// reads count as not visited; when none is, the token is exact.
    #[must_use]
    pub fn token(&self) -> ScanToken {
        self.progress().token()
    }

    fn progress(&self) -> MutexGuard<'_, ScanProgress> {
        // Nothing inside panics half-way.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
