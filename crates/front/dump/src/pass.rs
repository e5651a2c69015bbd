//! One pass over a dataset.

use std::fs::File;
use std::sync::Arc;

use samite_client::scan::{ScanOptions, ScanScope, ScanToken};
use samite_client::{ClientOperation, Dataset, OwnedOutcome, OwnedResult};
use samite_types::{ErrorKind, PartitionId, Result, Version};
use samite_wire::op::Operation;

use crate::dumping::DumpRun;
use crate::key_list::{KeyListReader, KeyListWriter};
use crate::manifest::{PassManifest, PassProgress};
use crate::segment::{DumpFrameKind, DumpedRecord, SegmentBuilder, SegmentHeader};

/// Most keys that are looked at together, and most of them that are read.
const BATCH_KEYS: usize = 4096;
const BATCH_READ: usize = 256;
/// Bytes of values that are read together, about.
const BATCH_LEN: u64 = 4 << 20;

/// Output of a pass.
struct PassWriter<'r, 'a> {
    run: &'r mut DumpRun<'a>,
    /// Position of the dataset in the manifest.
    at: usize,
    pass: u32,
    builder: SegmentBuilder,
    /// Bytes of the values in the segment.
    bytes: u64,
    done: PassManifest,
    keys: KeyListWriter,
}

/// A key that a pass has come to.
struct MetKey {
    partition: PartitionId,
    key: Vec<u8>,
    version: Version,
    /// Its record is to be read; whether the pass before has met it.
    changed: Option<bool>,
}

impl DumpRun<'_> {
    /// The first pass: all records, whoever changes them. Goes on where the manifest says.
    pub(crate) fn first_pass(&mut self, at: usize, dataset: &Dataset) -> Result<()> {
        let begun = self.manifest.datasets[at].progress.take();
        let begun = begun.unwrap_or_else(|| PassProgress {
            done: PassManifest::default(),
            partition: 0,
            after: Vec::new(),
            keys_len: 0,
        });
        let mut writer = PassWriter::new(self, at, 0, (begun.done, begun.keys_len))?;
        for number in begun.partition..dataset.partitions() {
            let only = PartitionId(number);
            let is_begun = number == begun.partition && !begun.after.is_empty();
            let (id, partitions) = (dataset.id(), dataset.partitions());
            let from = is_begun.then(|| ScanToken::within(id, partitions, only, &begun.after));
            let scope = ScanScope::Partition(only);
            let scan = dataset.scan(&ScanOptions { scope, from, ..ScanOptions::default() })?;
            let mut cursor = scan.cursor();
            while cursor.advance()? {
                let record = cursor.record();
                writer.value(only, record.key, record.version, record.value)?;
            }
        }
        writer.finish()
    }

    /// A later pass: what has changed since the pass before.
    pub(crate) fn next_pass(&mut self, at: usize, dataset: &Dataset) -> Result<()> {
        let pass = self.manifest.datasets[at].passes.len() as u32;
        let before = self.lists[at].take().ok_or(ErrorKind::Internal)?;
        let mut before = KeyListReader::new(before)?;
        let mut writer = PassWriter::new(self, at, pass, (PassManifest::default(), 0))?;
        for partition in (0..dataset.partitions()).map(PartitionId) {
            writer.compare(dataset, partition, &mut before)?;
        }
        writer.finish()?;
        self.sink.drop_key_list(&self.manifest.datasets[at].spec.name, pass - 1);
        Ok(())
    }
}

impl<'r, 'a> PassWriter<'r, 'a> {
    fn new(
        run: &'r mut DumpRun<'a>,
        at: usize,
        pass: u32,
        (done, keys_len): (PassManifest, u64),
    ) -> Result<Self> {
        let list = run.sink.key_list(&run.manifest.datasets[at].spec.name, pass)?;
        let keys = KeyListWriter::new(list, keys_len)?;
        let builder = SegmentBuilder::new(run.segment_len);
        Ok(Self { run, at, pass, builder, bytes: 0, done, keys })
    }

    /// Takes a record.
    fn value(
        &mut self,
        partition: PartitionId,
        key: &[u8],
        version: Version,
        value: &[u8],
    ) -> Result<()> {
        self.builder.push(&DumpedRecord { partition, key, value: Some(value) });
        self.bytes += value.len() as u64;
        self.keys.push(partition, key, version)?;
        self.run.progress.add(1, value.len() as u64);
        if self.builder.is_full() { self.flush(partition, key) } else { Ok(()) }
    }

    /// Notes that a record is no more.
    fn removed(&mut self, partition: PartitionId, key: &[u8]) -> Result<()> {
        self.builder.push(&DumpedRecord { partition, key, value: None });
        if self.builder.is_full() { self.flush(partition, key) } else { Ok(()) }
    }

    /// Writes what there is as a segment, up to the record with this key, from which a first pass
    /// can go on.
    fn flush(&mut self, partition: PartitionId, after: &[u8]) -> Result<()> {
        self.write_segment()?;
        if self.pass == 0 {
            let keys_len = self.keys.save()?;
            self.run.manifest.datasets[self.at].progress = Some(PassProgress {
                done: self.done,
                partition: partition.get(),
                after: after.to_vec(),
                keys_len,
            });
            self.run.sink.checkpoint(&self.run.manifest)?;
        }
        Ok(())
    }

    /// Writes what there is as a segment, if there is something. Until the manifest says more, a pass
    /// that goes on writes it again.
    fn write_segment(&mut self) -> Result<()> {
        let records = self.builder.records();
        if records == 0 {
            return Ok(());
        }
        let header = SegmentHeader {
            dump: self.run.manifest.id,
            kind: DumpFrameKind::Segment,
            // There are fewer datasets than that.
            dataset: self.at as u32,
            pass: self.pass,
            records,
            number: self.done.segments,
            checksum: 0,
        };
        let name = &self.run.manifest.datasets[self.at].spec.name;
        let checksum = self.run.sink.segment(name, &header, &self.builder)?;
        self.done.add(records.into(), self.bytes, checksum);
        self.builder.clear();
        self.bytes = 0;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        // One save of the manifest says all: a kill before it has the last segment written again.
        self.write_segment()?;
        let Self { run, at, done, keys, .. } = self;
        run.lists[at] = Some(keys.finish()?);
        let dataset = &mut run.manifest.datasets[at];
        dataset.progress = None;
        dataset.passes.push(done);
        run.sink.checkpoint(&run.manifest)
    }

    /// Takes what has changed in a partition since the pass that has left the list `before`.
    fn compare(
        &mut self,
        dataset: &Dataset,
        partition: PartitionId,
        before: &mut KeyListReader,
    ) -> Result<()> {
        let scope = ScanScope::Partition(partition);
        let scan = dataset.scan(&ScanOptions { scope, values: false, ..ScanOptions::default() })?;
        let mut cursor = scan.cursor();
        let mut met: Vec<MetKey> = Vec::new();
        let (mut reads, mut bytes) = (0, 0);
        while cursor.advance()? {
            let record = cursor.record();
            self.pass_by(before, partition, Some(record.key))?;
            let known = before
                .peek()
                .filter(|known| known.partition == partition && known.key == record.key)
                .map(|known| known.version);
            if known.is_some() {
                before.take()?;
            }
            let changed = (known != Some(record.version)).then_some(known.is_some());
            if changed.is_some() {
                reads += 1;
                bytes += u64::from(record.len);
            }
            let (key, version) = (record.key.to_vec(), record.version);
            met.push(MetKey { partition, key, version, changed });
            if met.len() >= BATCH_KEYS || reads >= BATCH_READ || bytes >= BATCH_LEN {
                self.take_met(dataset, &mut met)?;
                (reads, bytes) = (0, 0);
            }
        }
        self.take_met(dataset, &mut met)?;
        self.pass_by(before, partition, None)
    }

    /// The keys of a list before this one (or all of the partition) are not there any more.
    fn pass_by(
        &mut self,
        before: &mut KeyListReader,
        partition: PartitionId,
        key: Option<&[u8]>,
    ) -> Result<()> {
        let is_gone = |one: PartitionId, other: &[u8]| {
            one < partition || one == partition && key.is_none_or(|key| other < key)
        };
        while before.peek().is_some_and(|known| is_gone(known.partition, &known.key)) {
            if let Some(gone) = before.take()? {
                self.removed(gone.partition, &gone.key)?;
            }
        }
        Ok(())
    }

    /// Reads the records that have changed, and lists all.
    fn take_met(&mut self, dataset: &Dataset, met: &mut Vec<MetKey>) -> Result<()> {
        self.run.thaw_if_late();
        let changed = met.iter().filter(|met| met.changed.is_some());
        let mut reads: Vec<ClientOperation<'_>> =
            changed.map(|met| Operation::get(met.partition, &met.key).into()).collect();
        let mut outcomes = if reads.is_empty() {
            Vec::new()
        } else {
            dataset.execute(&mut reads, dataset.client().deadline())?
        }
        .into_iter();
        drop(reads);
        for MetKey { partition, key, version, changed } in met.drain(..) {
            let Some(was_there) = changed else {
                self.keys.push(partition, &key, version)?;
                continue;
            };
            match outcomes.next().ok_or(ErrorKind::Internal)? {
                OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => {
                    if was_there {
                        self.removed(partition, &key)?;
                    }
                }
                outcome => {
                    let results = outcome.into_results("read a record")?;
                    let Some(OwnedResult::Value { version, data, .. }) = results.first() else {
                        return Err(ErrorKind::Internal.into());
                    };
                    self.value(partition, &key, *version, data)?;
                }
            }
        }
        Ok(())
    }
}

/// The key list of the last pass of a dataset that is whole.
pub(crate) type LastKeys = Option<Arc<File>>;
