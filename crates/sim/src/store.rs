//! Records of a simulated target: an ordered map on the heap. The real memory backend has an arena and a thread that fills it in; what a partition
//! does must not depend on either.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use samite_backend::{
    Arena, Backend, Changed, Piece, PlannedChange, RecordMeta, RecordStore, Scanned, Scrubbed,
    Source, Usage,
};
use samite_types::{DatasetId, Result, Version};

/// A target on the heap, without a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapBackend;

impl Backend for HeapBackend {
    fn open(&mut self, _: DatasetId, _: samite_types::PartitionId) -> Result<Box<dyn RecordStore>> {
        Ok(Box::new(HeapStore::default()))
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn arena(&self) -> Option<Arc<Arena>> {
        None
    }
}

/// The records of one partition.
#[derive(Debug, Default)]
pub struct HeapStore {
    records: BTreeMap<Box<[u8]>, (Version, Vec<u8>)>,
}

impl HeapStore {
    fn change(
        &mut self,
        key: &[u8],
        version: Version,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Changed {
        let created = !self.records.contains_key(key);
        let record = self.records.entry(key.into()).or_default();
        record.0 = version;
        change(&mut record.1);
        // Values are at most RECORD_LEN_MAX long.
        Changed { len: record.1.len() as u32, created }
    }
}

fn meta((version, value): &(Version, Vec<u8>)) -> RecordMeta {
    RecordMeta { version: *version, len: value.len() as u32 }
}

/// The bytes of `source`; there are no granted blocks here.
fn bytes(source: &Source<'_>) -> Vec<u8> {
    match source {
        Source::Bytes(bytes) => bytes.to_vec(),
        Source::Zeros(len) => vec![0; *len as usize],
        Source::Blocks(blocks) => {
            let filled = blocks.iter().map(|(extent, len)| &extent.as_slice()[..*len as usize]);
            filled.collect::<Vec<_>>().concat()
        }
    }
}

impl RecordStore for HeapStore {
    fn meta(&self, key: &[u8]) -> Result<Option<RecordMeta>> {
        Ok(self.records.get(key).map(meta))
    }

    fn read(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(Piece),
    ) -> Result<Option<RecordMeta>> {
        let Some(record) = self.records.get(key) else { return Ok(None) };
        let start = (offset as usize).min(record.1.len());
        let end = start.saturating_add(len as usize).min(record.1.len());
        if start < end {
            out(Piece::Bytes(record.1[start..end].into()));
        }
        Ok(Some(meta(record)))
    }

    fn scrub(
        &mut self,
        after: &[u8],
        upto: &[u8],
        visit: &mut dyn FnMut(&Scrubbed<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan(&[], after, false, u32::MAX, &mut |record| {
            let Scanned { key, meta, value } = *record;
            if !upto.is_empty() && key > upto {
                return ControlFlow::Break(());
            }
            let content = Some(samite_placement::hash(value));
            visit(&Scrubbed { key, meta, len: value.len() as u64, content })
        })
    }

    fn reserve(&mut self, _: &[PlannedChange<'_>]) -> Result<()> {
        Ok(())
    }

    fn settle(&mut self) {}

    fn put(&mut self, key: &[u8], source: Source<'_>, version: Version) -> Result<Changed> {
        Ok(self.change(key, version, |value| *value = bytes(&source)))
    }

    fn write(
        &mut self,
        key: &[u8],
        offset: u32,
        source: Source<'_>,
        version: Version,
    ) -> Result<Changed> {
        let (start, new) = (offset as usize, bytes(&source));
        Ok(self.change(key, version, |value| {
            value.resize(value.len().max(start + new.len()), 0);
            value[start..start + new.len()].copy_from_slice(&new);
        }))
    }

    fn truncate(&mut self, key: &[u8], len: u32, version: Version) -> Result<Option<Changed>> {
        if !self.records.contains_key(key) {
            return Ok(None);
        }
        Ok(Some(self.change(key, version, |value| value.resize(len as usize, 0))))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.records.remove(key).is_some())
    }

    fn rename(&mut self, key: &[u8], to: &[u8], version: Version) -> Result<bool> {
        let Some((_, value)) = self.records.remove(key) else { return Ok(false) };
        self.records.insert(to.into(), (version, value));
        Ok(true)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&Scanned<'_>) -> ControlFlow<()>,
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
            if visit(&Scanned { key, meta: meta(record), value }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn record_count(&self) -> u64 {
        self.records.len() as u64
    }
}
