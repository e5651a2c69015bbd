//! The records of one partition.

use std::cell::RefCell;
use std::sync::Arc;

use samite_types::{Error, ErrorKind};

use super::layers::RowLayers;
use super::row::StateCounts;
use super::target::OrderedTarget;
use crate::commit::{CommitRecords, StoredPartition};
use crate::quota::QuotaAccount;
use crate::store::{PublishRecords, RecordStore};

/// Most keys of damaged records that are remembered until somebody asks for them.
const DAMAGED_MAX: usize = 1024;

/// The records of one partition.
#[derive(Debug)]
pub(super) struct OrderedStore {
    pub(super) target: Arc<OrderedTarget>,
    pub(super) place: StoredPartition,
    pub(super) layers: RowLayers,
    /// Records, bytes charged for them, and the id of the next value.
    pub(super) counts: StateCounts,
    /// Value ids below are known to the layers below the pending changes.
    pub(super) known_ids: u64,
    pub(super) account: QuotaAccount,
    /// Between `reserve` and `settle`.
    pub(super) is_reserved: bool,
    /// Keys of records that were found damaged and not told of yet.
    pub(super) damaged: RefCell<Vec<Box<[u8]>>>,
}

impl OrderedStore {
    /// Notes a damaged record.
    #[cold]
    pub(super) fn damage(&self, key: &[u8]) -> Error {
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() < DAMAGED_MAX && damaged.iter().all(|known| **known != *key) {
            damaged.push(key.into());
        }
        Error::new(ErrorKind::Corrupt, "the stored bytes are not what was written")
    }

    /// The error of a read of the record at `key`, which is noted if that is damaged.
    pub(super) fn noted(&self, key: &[u8], error: Error) -> Error {
        if error.kind() == ErrorKind::Corrupt { self.damage(key) } else { error }
    }
}

impl PublishRecords for OrderedStore {}

impl RecordStore for OrderedStore {
    fn commits(&mut self) -> Option<&mut dyn CommitRecords> {
        Some(self)
    }
}

impl Drop for OrderedStore {
    fn drop(&mut self) {
        self.account.close(self.target.quota());
        self.target.close(self.place, self.counts.charged);
    }
}
