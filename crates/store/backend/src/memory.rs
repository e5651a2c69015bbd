//! The memory backend: a table of records per partition (`table.rs`), values on the heap (small) or
//! in the arena.
//!
//! Nothing outlives the process. Values up to 128 bytes lie in their record, up to 1 KiB on the
//! heap; longer ones in slots and blocks of the [arena](samite_arena), 64 KiB at a time, so that a
//! client that maps it can copy straight from where the record lives, and a block that a client has
//! filled becomes part of a record without a copy. Both are charged to the target's one limit, as
//! are keys and the charge of each record beside them.
//!
//! Values have checksums (`sums.rs`), which reads, changes and [`ScrubRecords::scrub`] compare: a
//! value that memory has changed by itself is an error, and never handed out as what was written.
//!
//! A change goes where the bytes are unless a reader holds them (a reply on its way); then it goes
//! to a new place, and the reader keeps what was read.

mod key;
mod leaves;
mod pool;
mod reserve;
mod space;
mod sums;
mod table;
mod value;

use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use samite_arena::lookup::{HEAD_LEN, RecordId};
use samite_arena::node::{SLOT_LEN_MAX, SlabPool};
use samite_arena::{Arena, ArenaExtent, BlockQuota, check_capacity, machine_memory};
use samite_cpu::prefetch;
use samite_types::{DatasetId, Epoch, Error, ErrorKind, PartitionId, Result, Version};
use samite_wire::op::BlockRef;
use smallvec::SmallVec;

use crate::quota::{QuotaLimit, TargetQuota};
use crate::range::{scan_range, successor};
use crate::record::{PlannedChange, RecordChange, RecordMeta, ScannedRecord, ScrubbedRecord};
use crate::store::{PublishRecords, ReadRecords, RecordStore, ScrubRecords, WriteRecords};
use crate::target::{Backend, BackendOffers, RestartSource, TargetUsage};
use crate::value_piece::{ValuePiece, ValueView, WriteSource};
use pool::PooledRecord;
use space::{PartitionSpace, RECORD_CHARGE};
use table::{AHEAD, RecordTable, TableSlot};
use value::{PART_LEN, PartChange, RecordValue, ValueDamage, spans};

/// What it offers.
pub const OFFERS: BackendOffers =
    BackendOffers { values: true, restart: RestartSource::Log, mapping: true, damage: true };

/// A target in memory. A clone is another shard's handle to it.
#[derive(Debug)]
pub struct MemoryBackend {
    arena: Arc<Arena>,
    quota: Arc<TargetQuota>,
    pool: Arc<SlabPool>,
}

impl MemoryBackend {
    /// A target of `capacity_bytes` for `shards` shards.
    ///
    /// # Errors
    /// Errors of [`Arena::create`].
    pub fn new(capacity_bytes: u64, shards: usize) -> Result<Self> {
        let quota = Arc::new(TargetQuota::with_maximum(capacity_bytes, machine_memory()));
        let arena = Arena::create(Arc::clone(&quota) as Arc<dyn BlockQuota>, shards)?;
        Ok(Self { arena, quota, pool: SlabPool::new() })
    }
}

impl Clone for MemoryBackend {
    /// Slabs are not shared between shards: each handle has its own.
    fn clone(&self) -> Self {
        let (arena, quota) = (Arc::clone(&self.arena), Arc::clone(&self.quota));
        Self { arena, quota, pool: SlabPool::new() }
    }
}

impl Backend for MemoryBackend {
    fn open(&mut self, dataset: DatasetId, partition: PartitionId) -> Result<Box<dyn RecordStore>> {
        let (arena, quota) = (Arc::clone(&self.arena), Arc::clone(&self.quota));
        let space = PartitionSpace::new(Arc::clone(&arena), quota, Arc::clone(&self.pool));
        let (records, damaged) = (RecordTable::default(), RefCell::default());
        let reserved = false;
        let store = MemoryStore { records, space, reserved, damaged, arena, dataset, partition };
        Ok(Box::new(store))
    }

    fn usage(&self) -> TargetUsage {
        let (capacity, used) = (self.quota.capacity(), self.quota.used());
        TargetUsage { capacity, used, populated: self.arena.populated() }
    }

    fn resize(&self, capacity: u64) -> Result<()> {
        check_capacity(capacity)?;
        self.quota.resize(capacity).map(|()| self.arena.resize())
    }

    fn arena(&self) -> Option<Arc<Arena>> {
        Some(Arc::clone(&self.arena))
    }

    fn handle(&self) -> Box<dyn Backend> {
        Box::new(self.clone())
    }

    fn offers(&self) -> BackendOffers {
        OFFERS
    }
}

/// Whether records with values of this length are published to clients of the host: shorter ones
/// change too often.
const fn is_shown(len: u32) -> bool {
    len as usize >= HEAD_LEN
}

impl PooledRecord {
    /// Retracts it from the shared look-up table, if it may be there, before it changes or goes (I13).
    fn hide(&self, arena: &Arena, id: &RecordId<'_>) {
        if is_shown(self.value.len()) {
            arena.retract(id);
        }
    }
}

/// The records of one partition.
#[derive(Debug)]
struct MemoryStore {
    records: RecordTable,
    space: PartitionSpace,
    /// Between `reserve` and `settle`.
    reserved: bool,
    /// Keys of records that were found damaged and not told of yet.
    damaged: RefCell<Vec<Box<[u8]>>>,
    arena: Arc<Arena>,
    dataset: DatasetId,
    partition: PartitionId,
}

const fn record_charge(key: &[u8]) -> u64 {
    RECORD_CHARGE + key.len() as u64
}

/// Most keys of damaged records that are remembered until somebody asks for them.
const DAMAGED_MAX: usize = 1024;

impl MemoryStore {
    /// Has `take` take something of the value at `key`; it says whether that was right.
    fn with_value(
        &self,
        key: &[u8],
        take: impl FnOnce(&RecordValue) -> bool,
    ) -> Result<Option<RecordMeta>> {
        let Some(record) = self.records.get(key) else { return Ok(None) };
        if take(&record.value) {
            return Ok(Some(record.meta()));
        }
        Err(self.damage(key))
    }

    /// Visits records in the order of [`ReadRecords::scan`], until `visit` breaks, or finds one
    /// damaged.
    fn walk<'s>(
        &'s self,
        prefix: &[u8],
        after: &[u8],
        (reverse, ahead): (bool, usize),
        mut visit: impl FnMut(
            &'s [u8],
            &'s PooledRecord,
        ) -> std::result::Result<ControlFlow<()>, ValueDamage>,
    ) -> Result<()> {
        let beyond = if reverse { successor(prefix) } else { None };
        let Some(bounds) = scan_range(prefix, after, reverse, beyond.as_deref()) else {
            return Ok(());
        };
        for (key, record) in self.records.walk(bounds, reverse, ahead) {
            if !key.starts_with(prefix) {
                break;
            }
            match visit(key, record) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => break,
                Err(ValueDamage) => return Err(self.damage(key)),
            }
        }
        Ok(())
    }

    /// Notes a damaged record.
    #[cold]
    fn damage(&self, key: &[u8]) -> Error {
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() < DAMAGED_MAX && damaged.iter().all(|known| **known != *key) {
            damaged.push(key.into());
        }
        Error::new(ErrorKind::Corrupt, "the stored bytes are not what was written")
    }

    const fn id<'k>(&self, key: &'k [u8]) -> RecordId<'k> {
        RecordId { dataset: self.dataset, partition: self.partition, key }
    }

    /// The record at `key`, made if it is not there, handed to `change`; a new record that cannot be made leaves no trace.
    fn upsert(
        &mut self,
        key: &[u8],
        version: Version,
        change: impl FnOnce(&mut PartitionSpace, &mut RecordValue) -> Result<()>,
    ) -> Result<RecordChange> {
        let id = self.id(key);
        let Self { records, space, arena, .. } = self;
        match records.slot(key) {
            TableSlot::Taken(record) => {
                record.hide(arena, &id);
                change(space, &mut record.value)?;
                record.version = version;
                Ok(RecordChange { len: record.value.len(), created: false })
            }
            TableSlot::Free(slot) => {
                let mut len = 0;
                slot.fill(|record| {
                    space.charge_heap(record_charge(key))?;
                    if let Err(error) = change(space, &mut record.value) {
                        record.value.clear(space);
                        space.free_heap(record_charge(key));
                        return Err(error);
                    }
                    record.version = version;
                    len = record.value.len();
                    arena.insert_name(&id);
                    Ok(())
                })?;
                Ok(RecordChange { len, created: true })
            }
        }
    }
}

impl ReadRecords for MemoryStore {
    fn meta(&self, key: &[u8]) -> Result<Option<RecordMeta>> {
        Ok(self.records.get(key).map(PooledRecord::meta))
    }

    fn read(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>> {
        self.with_value(key, |value| value.read(offset, len, None, out))
    }

    fn look(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        see: &mut dyn FnMut(ValueView<'_>),
    ) -> Result<Option<RecordMeta>> {
        self.with_value(key, |value| value.look(offset, len, see))
    }

    fn read_in_place(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>> {
        let round = Some(self.arena.round());
        self.with_value(key, |value| value.read(offset, len, round, out))
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut gathered = Vec::new();
        self.walk(prefix, after, (reverse, 0), |key, record| {
            let value = record.value.first_bytes(value_len, &mut gathered);
            Ok(visit(&ScannedRecord { key, meta: record.meta(), value: value? }))
        })
    }

    fn scan_in_place(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>, &[BlockRef]) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut gathered, mut blocks) = (Vec::new(), SmallVec::<[BlockRef; 16]>::new());
        let round = self.arena.round();
        self.walk(prefix, after, (reverse, AHEAD), |key, record| {
            blocks.clear();
            let value: &[u8] = match record.value.refer(round, &mut blocks)? {
                true => &[],
                false => record.value.first_bytes(value_len, &mut gathered)?,
            };
            Ok(visit(&ScannedRecord { key, meta: record.meta(), value }, &blocks))
        })
    }

    fn record_count(&self) -> u64 {
        self.records.len() as u64
    }
}

impl WriteRecords for MemoryStore {
    fn reserve(&mut self, changes: &[PlannedChange<'_>]) -> Result<()> {
        self.set_aside(changes)?;
        self.reserved = true;
        Ok(())
    }

    fn settle(&mut self) {
        let (account, quota) = self.space.account();
        account.settle(quota);
        self.reserved = false;
    }

    fn set_limit(&mut self, limit: QuotaLimit) {
        self.space.account().0.set_limit(limit);
    }

    fn charge_max(&self, changes: &[PlannedChange<'_>]) -> u64 {
        self.most(changes)
    }

    fn keep(&mut self, least: u64, wanted: u64) -> u64 {
        let (account, quota) = self.space.account();
        account.keep(quota, least, wanted)
    }

    fn has_reserve(&self) -> bool {
        self.space.quota().has_reserve()
    }

    fn draw(&mut self, bytes: u64) {
        self.space.account().0.draw(bytes);
    }

    fn put(
        &mut self,
        key: &[u8],
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        if self.reserved {
            return self.upsert(key, version, |space, value| put_value(space, value, source));
        }
        self.reserve(&[PlannedChange::Put { key, source: &source }])?;
        let result = self.upsert(key, version, |space, value| put_value(space, value, source));
        self.settle();
        result
    }

    fn write(
        &mut self,
        key: &[u8],
        offset: u32,
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        if self.reserved {
            return self
                .upsert(key, version, |space, value| write_value(space, value, offset, source));
        }
        self.reserve(&[PlannedChange::Write { key, offset, source: &source }])?;
        let result =
            self.upsert(key, version, |space, value| write_value(space, value, offset, source));
        self.settle();
        result
    }

    fn truncate(&mut self, key: &[u8], len: u32, version: Version) -> Result<Option<RecordChange>> {
        let id = self.id(key);
        let Some(record) = self.records.get_mut(key) else { return Ok(None) };
        record.hide(&self.arena, &id);
        if len < record.value.len() {
            record.value.cut(&mut self.space, len);
        }
        record.value.set_len(len);
        record.version = version;
        Ok(Some(RecordChange { len, created: false }))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let id = self.id(key);
        let Self { records, space, arena, .. } = self;
        Ok(records.remove(key, |record| {
            arena.remove_name(&id);
            record.value.clear(space);
            record.version = Version(0);
            space.free_heap(record_charge(key));
        }))
    }

    fn rename(&mut self, key: &[u8], to: &[u8], version: Version) -> Result<bool> {
        self.arena.retract(&self.id(key));
        if key == to {
            return Ok(self.records.get_mut(key).map(|record| record.version = version).is_some());
        }
        debug_assert!(to.len() <= key.len(), "a longer key takes space");
        if self.records.get(key).is_none() {
            return Ok(false);
        }
        self.delete(to)?;
        let Some(record) = self.records.rename(key, to) else { return Ok(false) };
        record.version = version;
        self.space.free_heap(record_charge(key) - record_charge(to));
        self.arena.remove_name(&self.id(key));
        self.arena.insert_name(&self.id(to));
        Ok(true)
    }
}

impl ScrubRecords for MemoryStore {
    fn scrub(
        &mut self,
        after: &[u8],
        upto: &[u8],
        visit: &mut dyn FnMut(&ScrubbedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        if !upto.is_empty() && after >= upto {
            return Ok(());
        }
        let first = if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(after) };
        let last = if upto.is_empty() { Bound::Unbounded } else { Bound::Included(upto) };
        self.records.visit_mut((first, last), |key, record| {
            let (content, len) = (record.value.stamp(), record.value.stored_len());
            visit(&ScrubbedRecord { key, meta: record.meta(), len, content })
        });
        Ok(())
    }

    fn take_damaged(&mut self) -> Vec<Box<[u8]>> {
        std::mem::take(self.damaged.get_mut())
    }

    fn rot(&mut self, key: &[u8], random: u64) -> bool {
        self.records.get_mut(key).is_some_and(|record| record.value.rot(random))
    }
}

impl PublishRecords for MemoryStore {
    fn publish(&self, key: &[u8], meta: RecordMeta, head: &[u8]) {
        if is_shown(meta.len) {
            self.arena.publish(&self.id(key), meta.version, meta.len, head);
        }
    }

    fn expect(&self, key: &[u8]) {
        self.arena.expect_soon(&self.id(key));
    }

    fn fetch(&self, key: &[u8]) {
        if let Some(entry) = self.records.guess(key) {
            prefetch(std::ptr::from_ref(entry).cast(), size_of_val(entry));
        }
    }

    fn require_lease(&self, epoch: Epoch) {
        self.arena.require_lease(epoch);
    }
}

impl RecordStore for MemoryStore {}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.arena.retract_all();
        for key in self.records.keys() {
            self.arena.remove_name(&self.id(key));
        }
    }
}

/// Makes `source` the whole value.
fn put_value(
    space: &mut PartitionSpace,
    value: &mut RecordValue,
    source: WriteSource<'_>,
) -> Result<()> {
    let len = source.len() as u32;
    match source {
        WriteSource::Bytes(bytes) => put_bytes(space, value, bytes)?,
        WriteSource::Zeros(_) => value.keep_parts(space, 0),
        WriteSource::Blocks(blocks) if on_grid(&blocks) => {
            value.keep_parts(space, blocks.len());
            for (index, (extent, filled)) in blocks.into_iter().enumerate() {
                if adopts(&extent, filled) {
                    value.adopt(space, index, extent, filled);
                } else {
                    value.replace(space, index, &extent.as_slice()[..filled as usize])?;
                }
            }
        }
        WriteSource::Blocks(blocks) => put_bytes(space, value, &gather(&blocks))?,
    }
    value.set_len(len);
    Ok(())
}

fn put_bytes(space: &mut PartitionSpace, value: &mut RecordValue, bytes: &[u8]) -> Result<()> {
    value.keep_parts(space, bytes.len().div_ceil(PART_LEN as usize));
    for (index, chunk) in bytes.chunks(PART_LEN as usize).enumerate() {
        value.replace(space, index, chunk)?;
    }
    Ok(())
}

/// Whether every block but the last is full, so that block `i` is part `i` of the value.
fn on_grid(blocks: &[(ArenaExtent, u32)]) -> bool {
    blocks.iter().rev().skip(1).all(|(_, len)| *len == PART_LEN)
        && blocks.last().is_none_or(|(_, len)| *len > 0)
}

/// Whether a block with `filled` bytes is worth keeping as it is: nothing smaller would hold them.
fn adopts(extent: &ArenaExtent, filled: u32) -> bool {
    extent.is_block() && filled > SLOT_LEN_MAX && !extent.is_shared()
}

fn gather(blocks: &[(ArenaExtent, u32)]) -> Vec<u8> {
    blocks.iter().flat_map(|(extent, len)| &extent.as_slice()[..*len as usize]).copied().collect()
}

/// Writes `source` into the value at `offset`.
fn write_value(
    space: &mut PartitionSpace,
    value: &mut RecordValue,
    offset: u32,
    source: WriteSource<'_>,
) -> Result<()> {
    let end = offset + source.len() as u32;
    match source {
        WriteSource::Bytes(bytes) => write_bytes(space, value, offset, bytes)?,
        WriteSource::Zeros(len) => {
            for (index, at, span) in spans(offset, len) {
                value.write(space, index, at, &PartChange::Zeros(span.len() as u32))?;
            }
        }
        WriteSource::Blocks(blocks) => {
            let mut at = offset;
            for (extent, filled) in blocks {
                let index = (at / PART_LEN) as usize;
                if writes_whole(value, at, &extent, filled) {
                    value.adopt(space, index, extent, filled);
                } else {
                    write_bytes(space, value, at, &extent.as_slice()[..filled as usize])?;
                }
                at += filled;
            }
        }
    }
    value.set_len(value.len().max(end));
    Ok(())
}

/// Whether a granted block written at `at` can become a part of the value as it is.
fn writes_whole(value: &RecordValue, at: u32, extent: &ArenaExtent, filled: u32) -> bool {
    at.is_multiple_of(PART_LEN)
        && adopts(extent, filled)
        && value.valid((at / PART_LEN) as usize) <= filled
}

fn write_bytes(
    space: &mut PartitionSpace,
    value: &mut RecordValue,
    offset: u32,
    bytes: &[u8],
) -> Result<()> {
    for (index, at, span) in spans(offset, bytes.len() as u32) {
        value.write(space, index, at, &PartChange::Bytes(&bytes[span]))?;
    }
    Ok(())
}
