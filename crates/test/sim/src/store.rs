//! Records of a simulated target: an ordered map on the heap. The real memory backend has an arena
//! and a thread that fills it in; the behaviour of a partition must not depend on either.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use samite_backend::{
    Arena, Backend, BackendOffers, PlannedChange, PublishRecords, QuotaAccount, QuotaLimit,
    ReadRecords, RecordChange, RecordMeta, RecordStore, RestartSource, ScannedRecord, ScrubRecords,
    ScrubbedRecord, TargetQuota, TargetUsage, ValuePiece, WriteRecords, WriteSource,
};
use samite_types::{DatasetId, Result, Version};

/// A target on the heap. A clone is another handle to it.
#[derive(Clone, Debug)]
pub struct HeapBackend {
    quota: Arc<TargetQuota>,
}

impl HeapBackend {
    /// A target that keeps `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { quota: Arc::new(TargetQuota::new(capacity)) }
    }

    /// Its capacity, and the bytes that are charged to it.
    #[must_use]
    pub fn quota(&self) -> &TargetQuota {
        &self.quota
    }
}

impl Backend for HeapBackend {
    fn open(&mut self, _: DatasetId, _: samite_types::PartitionId) -> Result<Box<dyn RecordStore>> {
        let (records, account) = (BTreeMap::new(), QuotaAccount::default());
        Ok(Box::new(HeapStore { records, account, used: 0, quota: Arc::clone(&self.quota) }))
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
        let restart = RestartSource::Log;
        BackendOffers { values: true, restart, mapping: false, damage: false }
    }
}

/// The costs of a record beside its key and value, in bytes.
const RECORD_CHARGE: u64 = 16;

fn record_charge(key: &[u8]) -> u64 {
    RECORD_CHARGE + key.len() as u64
}

/// The records of one partition.
#[derive(Debug)]
pub struct HeapStore {
    records: BTreeMap<Box<[u8]>, (Version, Vec<u8>)>,
    account: QuotaAccount,
    /// Charged for the records that are there.
    used: u64,
    quota: Arc<TargetQuota>,
}

impl HeapStore {
    fn len(&self, key: &[u8]) -> Option<u64> {
        self.records.get(key).map(|(_, value)| value.len() as u64)
    }

    /// The most that `change` takes of a record that has `len` bytes, if there is one. Bytes are there before others are given back.
    fn demand(change: &PlannedChange<'_>, len: Option<u64>) -> u64 {
        let bytes = match change {
            PlannedChange::Put { source, .. } => source.len() as u64,
            PlannedChange::Write { offset, source, .. } => {
                (u64::from(*offset) + source.len() as u64).saturating_sub(len.unwrap_or(0))
            }
            PlannedChange::Moves { .. } | PlannedChange::Wipes { .. } => 0,
        };
        let record = if len.is_none() { change.key().map_or(0, record_charge) } else { 0 };
        record + bytes
    }

    fn spend(&mut self, bytes: u64) -> Result<()> {
        if !self.account.spend(&self.quota, bytes) {
            return Err(self.quota.full());
        }
        self.used += bytes;
        Ok(())
    }

    fn give_back(&mut self, bytes: u64) {
        self.used -= bytes;
        self.quota.uncharge(bytes);
    }

    /// Changes a record, for which all is charged.
    fn change(
        &mut self,
        key: &[u8],
        version: Version,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> RecordChange {
        let created = !self.records.contains_key(key);
        let record = self.records.entry(key.into()).or_default();
        record.0 = version;
        change(&mut record.1);
        // Values are at most RECORD_LEN_MAX long.
        RecordChange { len: record.1.len() as u32, created }
    }
}

impl Drop for HeapStore {
    fn drop(&mut self) {
        self.account.close(&self.quota);
        self.quota.uncharge(self.used);
    }
}

fn meta((version, value): &(Version, Vec<u8>)) -> RecordMeta {
    RecordMeta { version: *version, len: value.len() as u32 }
}

/// The bytes of `source`; there are no granted blocks here.
fn bytes(source: &WriteSource<'_>) -> Vec<u8> {
    match source {
        WriteSource::Bytes(bytes) => bytes.to_vec(),
        WriteSource::Zeros(len) => vec![0; *len as usize],
        WriteSource::Blocks(blocks) => {
            let filled = blocks.iter().map(|(extent, len)| &extent.as_slice()[..*len as usize]);
            filled.collect::<Vec<_>>().concat()
        }
    }
}

impl ReadRecords for HeapStore {
    fn meta(&self, key: &[u8]) -> Result<Option<RecordMeta>> {
        Ok(self.records.get(key).map(meta))
    }

    fn read(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>> {
        let Some(record) = self.records.get(key) else { return Ok(None) };
        let start = (offset as usize).min(record.1.len());
        let end = start.saturating_add(len as usize).min(record.1.len());
        if start < end {
            out(ValuePiece::Bytes(record.1[start..end].into()));
        }
        Ok(Some(meta(record)))
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let wanted = |key: &[u8]| {
            let beyond = if reverse { key < after } else { key > after };
            key.starts_with(prefix) && (after.is_empty() || beyond)
        };
        // Simulated partitions are small: the scan looks at all.
        let records = self.records.iter().filter(|(key, _)| wanted(key));
        let mut records: Vec<_> = records.collect();
        if reverse {
            records.reverse();
        }
        for (key, record) in records {
            let value = &record.1[..record.1.len().min(value_len as usize)];
            if visit(&ScannedRecord { key, meta: meta(record), value }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn record_count(&self) -> u64 {
        self.records.len() as u64
    }
}

impl WriteRecords for HeapStore {
    fn reserve(&mut self, changes: &[PlannedChange<'_>]) -> Result<()> {
        let most = self.charge_max(changes);
        self.account.reserve(&self.quota, most)
    }

    fn settle(&mut self) {
        self.account.settle(&self.quota);
    }

    fn set_limit(&mut self, limit: QuotaLimit) {
        self.account.set_limit(limit);
    }

    fn charge_max(&self, changes: &[PlannedChange<'_>]) -> u64 {
        let demand = |(index, change): (usize, &PlannedChange<'_>)| {
            let Some(key) = change.key() else { return 0 };
            // The state that an earlier change leaves is not known yet.
            let mut earlier = changes[..index].iter();
            let is_known =
                earlier.all(|earlier| !earlier.unsettles(key) && earlier.key() != Some(key));
            Self::demand(change, self.len(key).filter(|_| is_known))
        };
        changes.iter().enumerate().map(demand).sum()
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
        let before = self.len(key);
        self.spend(Self::demand(&PlannedChange::Put { key, source: &source }, before))?;
        let changed = self.change(key, version, |value| *value = bytes(&source));
        self.give_back(before.unwrap_or(0));
        Ok(changed)
    }

    fn write(
        &mut self,
        key: &[u8],
        offset: u32,
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        let change = PlannedChange::Write { key, offset, source: &source };
        self.spend(Self::demand(&change, self.len(key)))?;
        let (start, new) = (offset as usize, bytes(&source));
        Ok(self.change(key, version, |value| {
            value.resize(value.len().max(start + new.len()), 0);
            value[start..start + new.len()].copy_from_slice(&new);
        }))
    }

    fn truncate(&mut self, key: &[u8], len: u32, version: Version) -> Result<Option<RecordChange>> {
        let Some(before) = self.len(key) else { return Ok(None) };
        // The bytes by which it is longer count, whether it fits or not.
        let more = u64::from(len).saturating_sub(before);
        self.quota.charge(more, QuotaLimit::Beyond);
        self.used += more;
        self.give_back(before.saturating_sub(len.into()));
        Ok(Some(self.change(key, version, |value| value.resize(len as usize, 0))))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let Some((_, value)) = self.records.remove(key) else { return Ok(false) };
        self.give_back(record_charge(key) + value.len() as u64);
        Ok(true)
    }

    fn rename(&mut self, key: &[u8], to: &[u8], version: Version) -> Result<bool> {
        let Some((_, value)) = self.records.remove(key) else { return Ok(false) };
        if key != to {
            self.delete(to)?;
        }
        self.give_back(record_charge(key) - record_charge(to));
        self.records.insert(to.into(), (version, value));
        Ok(true)
    }
}

impl ScrubRecords for HeapStore {
    fn scrub(
        &mut self,
        after: &[u8],
        upto: &[u8],
        visit: &mut dyn FnMut(&ScrubbedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan(&[], after, false, u32::MAX, &mut |record| {
            let ScannedRecord { key, meta, value } = *record;
            if !upto.is_empty() && key > upto {
                return ControlFlow::Break(());
            }
            let content = Some(samite_placement::hash(value));
            visit(&ScrubbedRecord { key, meta, len: value.len() as u64, content })
        })
    }
}

impl PublishRecords for HeapStore {}

impl RecordStore for HeapStore {}
