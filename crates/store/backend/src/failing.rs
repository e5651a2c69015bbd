//! Stores and maps one of whose calls fails, for tests of what then happens.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use samite_types::{DatasetId, Error, ErrorKind, PartitionId, Result, Version};

use crate::commit::{CommitRecords, CommitTarget, StoredPartition, WriteBatch};
use crate::ordered::{OrderedMap, RowBounds, RowVisit};
use crate::quota::QuotaLimit;
use crate::record::{PlannedChange, RecordChange, RecordMeta, ScannedRecord, ScrubbedRecord};
use crate::store::{PublishRecords, ReadRecords, RecordStore, ScrubRecords, WriteRecords};
use crate::target::{Backend, BackendOffers, TargetUsage};
use crate::value_piece::{ValuePiece, WriteSource};
use samite_arena::Arena;

/// Counts the calls of a target, and says which one fails. A clone counts with it.
#[derive(Clone, Debug, Default)]
pub struct CallFailure {
    /// Calls that are left until one fails; 0: none does.
    left: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl CallFailure {
    /// The `number`th call from now on fails, and none after it; 0: none fails.
    pub fn set(&self, number: u64) {
        self.left.store(number, Ordering::Relaxed);
    }

    /// How many calls have failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    fn call(&self) -> Result<()> {
        let one_less = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(1) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                Err(Error::new(ErrorKind::Io, "the call that fails"))
            }
            _ => Ok(()),
        }
    }
}

/// A target one of whose stores' calls fails: reads, changes and reservations, each before it does
/// anything.
pub struct FailingBackend {
    backend: Box<dyn Backend>,
    failure: CallFailure,
}

impl FailingBackend {
    /// `backend`, with calls that fail as `failure` says.
    #[must_use]
    pub fn new(backend: Box<dyn Backend>, failure: CallFailure) -> Self {
        Self { backend, failure }
    }
}

impl fmt::Debug for FailingBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailingBackend({:?})", self.failure)
    }
}

impl Backend for FailingBackend {
    fn open(&mut self, dataset: DatasetId, partition: PartitionId) -> Result<Box<dyn RecordStore>> {
        let store = self.backend.open(dataset, partition)?;
        Ok(Box::new(FailingStore { store, failure: self.failure.clone() }))
    }

    fn usage(&self) -> TargetUsage {
        self.backend.usage()
    }

    fn arena(&self) -> Option<Arc<Arena>> {
        self.backend.arena()
    }

    fn handle(&self) -> Box<dyn Backend> {
        Box::new(Self { backend: self.backend.handle(), failure: self.failure.clone() })
    }

    fn offers(&self) -> BackendOffers {
        self.backend.offers()
    }

    fn commit_target(&self) -> Option<Arc<dyn CommitTarget>> {
        self.backend.commit_target()
    }
}

struct FailingStore {
    store: Box<dyn RecordStore>,
    failure: CallFailure,
}

impl ReadRecords for FailingStore {
    fn meta(&self, key: &[u8]) -> Result<Option<RecordMeta>> {
        self.failure.call()?;
        self.store.meta(key)
    }

    fn verifies_meta(&self) -> bool {
        self.store.verifies_meta()
    }

    fn read(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>> {
        self.failure.call()?;
        self.store.read(key, offset, len, out)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        // Some records may have been seen by then.
        let failed = self.failure.call();
        let (mut left, is_cut) = (1, failed.is_err());
        self.store.scan(prefix, after, reverse, value_len, &mut |record| {
            if is_cut && left == 0 {
                return ControlFlow::Break(());
            }
            left -= i32::from(is_cut);
            visit(record)
        })?;
        failed
    }

    fn record_count(&self) -> u64 {
        self.store.record_count()
    }
}

impl WriteRecords for FailingStore {
    fn reserve(&mut self, changes: &[PlannedChange<'_>]) -> Result<()> {
        self.failure.call()?;
        self.store.reserve(changes)
    }

    fn settle(&mut self) {
        self.store.settle();
    }

    fn set_limit(&mut self, limit: QuotaLimit) {
        self.store.set_limit(limit);
    }

    fn charge_max(&self, changes: &[PlannedChange<'_>]) -> u64 {
        self.store.charge_max(changes)
    }

    fn keep(&mut self, least: u64, wanted: u64) -> u64 {
        self.store.keep(least, wanted)
    }

    fn has_reserve(&self) -> bool {
        self.store.has_reserve()
    }

    fn draw(&mut self, bytes: u64) {
        self.store.draw(bytes);
    }

    fn put(
        &mut self,
        key: &[u8],
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        self.failure.call()?;
        self.store.put(key, source, version)
    }

    fn write(
        &mut self,
        key: &[u8],
        offset: u32,
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        self.failure.call()?;
        self.store.write(key, offset, source, version)
    }

    fn truncate(&mut self, key: &[u8], len: u32, version: Version) -> Result<Option<RecordChange>> {
        self.failure.call()?;
        self.store.truncate(key, len, version)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.failure.call()?;
        self.store.delete(key)
    }

    fn rename(&mut self, key: &[u8], to: &[u8], version: Version) -> Result<bool> {
        self.failure.call()?;
        self.store.rename(key, to, version)
    }
}

impl ScrubRecords for FailingStore {
    fn scrub(
        &mut self,
        after: &[u8],
        upto: &[u8],
        visit: &mut dyn FnMut(&ScrubbedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.failure.call()?;
        self.store.scrub(after, upto, visit)
    }

    fn take_damaged(&mut self) -> Vec<Box<[u8]>> {
        self.store.take_damaged()
    }

    fn rot(&mut self, key: &[u8], random: u64) -> bool {
        self.store.rot(key, random)
    }
}

impl PublishRecords for FailingStore {}

impl RecordStore for FailingStore {
    fn commits(&mut self) -> Option<&mut dyn CommitRecords> {
        self.store.commits()
    }
}

/// A map one of whose reads or commits fails. A commit that fails is made all the same, or is not.
#[derive(Debug)]
pub struct FailingMap {
    map: Arc<dyn OrderedMap>,
    failure: CallFailure,
    /// A commit that fails is made before.
    commits_first: bool,
}

impl FailingMap {
    /// `map`, with calls that fail as `failure` says; a commit that fails is made all the same if
    /// `commits_first`.
    #[must_use]
    pub fn new(map: Arc<dyn OrderedMap>, failure: CallFailure, commits_first: bool) -> Self {
        Self { map, failure, commits_first }
    }
}

impl OrderedMap for FailingMap {
    fn get(&self, place: StoredPartition, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.failure.call()?;
        self.map.get(place, key, see)
    }

    fn scan(
        &self,
        place: StoredPartition,
        bounds: RowBounds<'_>,
        reverse: bool,
        visit: &mut RowVisit<'_>,
    ) -> Result<()> {
        let failed = self.failure.call();
        let (mut left, is_cut) = (1, failed.is_err());
        self.map.scan(place, bounds, reverse, &mut |key, row| {
            if is_cut && left == 0 {
                return ControlFlow::Break(());
            }
            left -= i32::from(is_cut);
            visit(key, row)
        })?;
        failed
    }

    fn commit(&self, batches: &[WriteBatch]) -> Result<()> {
        match self.failure.call() {
            Ok(()) => self.map.commit(batches),
            Err(error) if self.commits_first => self.map.commit(batches).and(Err(error)),
            Err(error) => Err(error),
        }
    }

    fn stored(&self) -> Result<Vec<StoredPartition>> {
        self.map.stored()
    }

    fn has_room(&self) -> bool {
        self.map.has_room()
    }
}
