//! The null backend: stores which records there are, their versions and lengths, and no values.
//!
//! Every read gives zeros. It isolates the cost of the framework from that of storing; keys are
//! charged to its capacity, so that it is bounded like any other target.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use samite_arena::Arena;
use samite_types::{DatasetId, PartitionId, Result, Version};

use crate::quota::{QuotaAccount, QuotaLimit, TargetQuota};
use crate::range::{scan_range, successor};
use crate::record::{PlannedChange, RecordChange, RecordMeta, ScannedRecord, ScrubbedRecord};
use crate::store::{PublishRecords, ReadRecords, RecordStore, ScrubRecords, WriteRecords};
use crate::target::{Backend, BackendOffers, RestartSource, TargetUsage};
use crate::value_piece::{ValuePiece, WriteSource};

/// Charge of a record beside its key, in bytes.
const RECORD_CHARGE: u64 = 96;

/// What it offers.
pub const OFFERS: BackendOffers =
    BackendOffers { values: false, restart: RestartSource::Nothing, mapping: false, damage: false };

/// A target that stores no values. A clone is another shard's handle to it.
#[derive(Clone, Debug)]
pub struct NullBackend {
    quota: Arc<TargetQuota>,
}

impl NullBackend {
    /// A target whose keys may take `capacity_bytes`.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self { quota: Arc::new(TargetQuota::new(capacity_bytes)) }
    }
}

impl Backend for NullBackend {
    fn open(&mut self, _: DatasetId, _: PartitionId) -> Result<Box<dyn RecordStore>> {
        let (records, quota) = (BTreeMap::new(), Arc::clone(&self.quota));
        Ok(Box::new(NullStore { records, quota, charged: 0, account: QuotaAccount::default() }))
    }

    fn usage(&self) -> TargetUsage {
        TargetUsage { capacity: self.quota.capacity(), used: self.quota.used(), populated: 0 }
    }

    fn arena(&self) -> Option<Arc<Arena>> {
        None
    }

    fn handle(&self) -> Box<dyn Backend> {
        Box::new(self.clone())
    }

    fn offers(&self) -> BackendOffers {
        OFFERS
    }
}

/// The records of one partition.
#[derive(Debug)]
struct NullStore {
    records: BTreeMap<Box<[u8]>, RecordMeta>,
    quota: Arc<TargetQuota>,
    /// For the records that are there.
    charged: u64,
    account: QuotaAccount,
}

const fn charge_of(key: &[u8]) -> u64 {
    RECORD_CHARGE + key.len() as u64
}

impl NullStore {
    /// Space that `changes` take.
    fn demand(&self, changes: &[PlannedChange<'_>]) -> u64 {
        let mut bytes = 0;
        for (index, change) in changes.iter().enumerate() {
            let Some(key) = change.key() else { continue };
            let is_unsettled = changes[..index].iter().any(|earlier| earlier.unsettles(key));
            let repeats = changes[..index].iter().any(|earlier| earlier.key() == Some(key));
            if is_unsettled || !repeats && !self.records.contains_key(key) {
                bytes += charge_of(key);
            }
        }
        bytes
    }

    /// Sets the length that `len_of` makes of the old one.
    fn upsert(
        &mut self,
        key: &[u8],
        version: Version,
        len_of: impl FnOnce(u32) -> u32,
    ) -> Result<RecordChange> {
        if let Some(meta) = self.records.get_mut(key) {
            *meta = RecordMeta { version, len: len_of(meta.len) };
            return Ok(RecordChange { len: meta.len, created: false });
        }
        let charge = charge_of(key);
        if !self.account.spend(&self.quota, charge) {
            return Err(self.quota.full());
        }
        self.charged += charge;
        let len = len_of(0);
        self.records.insert(key.into(), RecordMeta { version, len });
        Ok(RecordChange { len, created: true })
    }
}

impl ReadRecords for NullStore {
    fn meta(&self, key: &[u8]) -> Result<Option<RecordMeta>> {
        Ok(self.records.get(key).copied())
    }

    fn read(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>> {
        let Some(meta) = self.records.get(key) else { return Ok(None) };
        let len = meta.len.saturating_sub(offset).min(len);
        if len > 0 {
            out(ValuePiece::Zeros(len));
        }
        Ok(Some(*meta))
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let beyond = if reverse { successor(prefix) } else { None };
        let Some(bounds) = scan_range(prefix, after, reverse, beyond.as_deref()) else {
            return Ok(());
        };
        let mut range = self.records.range::<[u8], _>(bounds);
        let mut zeros = Vec::new();
        while let Some((key, meta)) = if reverse { range.next_back() } else { range.next() } {
            if !key.starts_with(prefix) {
                break;
            }
            zeros.resize(value_len.min(meta.len) as usize, 0);
            if visit(&ScannedRecord { key, meta: *meta, value: &zeros }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn record_count(&self) -> u64 {
        self.records.len() as u64
    }
}

impl WriteRecords for NullStore {
    fn reserve(&mut self, changes: &[PlannedChange<'_>]) -> Result<()> {
        let bytes = self.demand(changes);
        self.account.reserve(&self.quota, bytes)
    }

    fn settle(&mut self) {
        self.account.settle(&self.quota);
    }

    fn set_limit(&mut self, limit: QuotaLimit) {
        self.account.set_limit(limit);
    }

    fn charge_max(&self, changes: &[PlannedChange<'_>]) -> u64 {
        self.demand(changes)
    }

    fn keep(&mut self, least: u64, wanted: u64) -> u64 {
        self.account.keep(&self.quota, least, wanted)
    }

    fn has_reserve(&self) -> bool {
        self.quota.has_reserve()
    }

    fn draw(&mut self, bytes: u64) {
        self.account.draw(bytes);
    }

    fn put(
        &mut self,
        key: &[u8],
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        self.upsert(key, version, |_| source.len() as u32)
    }

    fn write(
        &mut self,
        key: &[u8],
        offset: u32,
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        self.upsert(key, version, |len| len.max(offset + source.len() as u32))
    }

    fn truncate(&mut self, key: &[u8], len: u32, version: Version) -> Result<Option<RecordChange>> {
        let Some(meta) = self.records.get_mut(key) else { return Ok(None) };
        *meta = RecordMeta { version, len };
        Ok(Some(RecordChange { len, created: false }))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let existed = self.records.remove(key).is_some();
        if existed {
            self.charged -= charge_of(key);
            self.quota.uncharge(charge_of(key));
        }
        Ok(existed)
    }

    fn rename(&mut self, key: &[u8], to: &[u8], version: Version) -> Result<bool> {
        let Some(meta) = self.records.remove(key) else { return Ok(false) };
        if key != to {
            self.delete(to)?;
        }
        let freed = charge_of(key) - charge_of(to);
        self.charged -= freed;
        self.quota.uncharge(freed);
        self.records.insert(to.into(), RecordMeta { version, ..meta });
        Ok(true)
    }
}

impl ScrubRecords for NullStore {
    fn scrub(
        &mut self,
        after: &[u8],
        upto: &[u8],
        visit: &mut dyn FnMut(&ScrubbedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan(&[], after, false, 0, &mut |record| {
            let ScannedRecord { key, meta, .. } = *record;
            if !upto.is_empty() && key > upto {
                return ControlFlow::Break(());
            }
            visit(&ScrubbedRecord { key, meta, len: 0, content: Some(u64::from(meta.len)) })
        })
    }
}

impl PublishRecords for NullStore {}

impl RecordStore for NullStore {}

impl Drop for NullStore {
    fn drop(&mut self) {
        self.account.close(&self.quota);
        self.quota.uncharge(self.charged);
    }
}
