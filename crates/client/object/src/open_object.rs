//! Reading and writing an object.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use samite_client::drafts::chunk_partitions;
use samite_client::{ClientOperation, Dataset, OwnedOutcome, OwnedResult, key_text};
use samite_placement::hash;
use samite_types::{Deadline, Error, ErrorKind, PartitionId, Result};
use samite_wire::limits::LIST_ENTRIES_MAX;
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::header::{
    ChunkKey, HeaderKey, ID_AT, LEN_AT, ObjectHeader, ObjectId, chunk_key, chunk_prefix, header_key,
};

/// Partitions that are asked for their chunks in one call, so that each has room to answer.
const LISTINGS_MAX: usize = 128;

/// One object, open. Cheap to clone.
///
/// It stays that very object: when it is removed, and another made under its name, calls fail with
/// `NotFound`.
#[derive(Clone, Debug)]
pub struct OpenObject {
    inner: Arc<ObjectInner>,
}

#[derive(Debug)]
struct ObjectInner {
    dataset: Dataset,
    name: Box<[u8]>,
    key: HeaderKey,
    partition: PartitionId,
    id: ObjectId,
    chunk_len: u64,
    /// The length that was last seen. Only a hint: others may have changed it.
    seen_len: AtomicU64,
}

/// A part of one chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectPart {
    pub(crate) key: ChunkKey,
    pub(crate) partition: PartitionId,
    /// First byte within the chunk.
    pub(crate) start: u32,
    pub(crate) len: u32,
    is_whole: bool,
}

impl OpenObject {
    pub(crate) fn new(dataset: Dataset, name: &[u8], header: &ObjectHeader) -> Result<Self> {
        Ok(Self::at(header_key(name)?, dataset, name, header))
    }

    /// An object whose header is at `key`.
    pub(crate) fn at(key: HeaderKey, dataset: Dataset, name: &[u8], header: &ObjectHeader) -> Self {
        let inner = ObjectInner {
            key,
            partition: dataset.partition_of(name),
            name: name.into(),
            id: header.id,
            chunk_len: u64::from(header.chunk_len),
            seen_len: AtomicU64::new(header.len),
            dataset,
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn dataset(&self) -> &Dataset {
        &self.inner.dataset
    }

    /// Name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.inner.name
    }

    /// Length of a chunk, in bytes.
    #[must_use]
    pub fn chunk_len(&self) -> u64 {
        self.inner.chunk_len
    }

    fn deadline(&self) -> Deadline {
        self.inner.dataset.client().deadline()
    }

    /// An operation on the header, which fails if it is another object's.
    fn on_header<'o>(&'o self, actions: impl IntoIterator<Item = Action<'o>>) -> Operation<'o> {
        let ObjectInner { key, partition, id, .. } = &*self.inner;
        Operation::new(*partition, actions).guard(Guard::BytesAre { key, offset: ID_AT, bytes: id })
    }

    fn header_results(&self, outcome: OwnedOutcome, what: &str) -> Result<Vec<OwnedResult>> {
        match outcome {
            OwnedOutcome::Done(results) => Ok(results.into_vec()),
            OwnedOutcome::Failed(failure)
                if matches!(failure.kind, ErrorKind::Conflict | ErrorKind::NotFound) =>
            {
                Err(self.error(what, ErrorKind::NotFound, "it has been removed"))
            }
            OwnedOutcome::Failed(failure) => Err(failure.into_error(self.named(what))),
        }
    }

    fn named(&self, what: &str) -> String {
        format!("{what} object {}", key_text(&self.inner.name))
    }

    fn error(&self, what: &str, kind: ErrorKind, cause: &str) -> Error {
        Error::new(kind, format!("{}: {cause}", self.named(what)))
    }

    /// Length, in bytes.
    ///
    /// # Errors
    /// `NotFound`: it has been removed; as [`Dataset::execute`]. So for all methods.
    pub fn len(&self) -> Result<u64> {
        let get = Action::Get { key: &self.inner.key, offset: LEN_AT, len: 8 };
        let mut raw = [0; 8];
        let op = ClientOperation::new(self.on_header([get])).into_dest(&mut raw);
        let outcome = self.inner.dataset.execute_one(op)?;
        self.header_results(outcome, "stat")?;
        let len = u64::from_le_bytes(raw);
        self.inner.seen_len.store(len, Ordering::Relaxed);
        Ok(len)
    }

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// As [`Self::len`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The chunks that `len` bytes from `offset` on lie in.
    pub(crate) fn parts(&self, offset: u64, len: usize) -> Result<Vec<ObjectPart>> {
        let ObjectInner { id, chunk_len, dataset, .. } = &*self.inner;
        let end = offset
            .checked_add(len as u64)
            .ok_or_else(|| self.error("access", ErrorKind::FileTooLarge, "beyond 2^64 bytes"))?;
        let id_hash = hash(id);
        let mut at = offset;
        let mut parts = Vec::with_capacity(len / *chunk_len as usize + 2);
        while at < end {
            let (index, start) = (at / chunk_len, at % chunk_len);
            let len = (chunk_len - start).min(end - at);
            parts.push(ObjectPart {
                key: chunk_key(id, index),
                partition: dataset.chunk_partition(id_hash, index),
                start: start as u32,
                len: len as u32,
                is_whole: len == *chunk_len,
            });
            at += len;
        }
        Ok(parts)
    }

    /// Reads from `offset` into `dest`; how many bytes there were, fewer only at the end of the
    /// object. Holes read as zeros.
    ///
    /// # Errors
    /// As [`Self::len`].
    pub fn read_at(&self, dest: &mut [u8], offset: u64) -> Result<usize> {
        let end = offset.saturating_add(dest.len() as u64);
        let fits = usize::try_from(end - offset).unwrap_or(usize::MAX).min(dest.len());
        let dest = &mut dest[..fits];
        let parts = self.parts(offset, dest.len())?;
        let mut ops = Vec::with_capacity(parts.len());
        let mut rest = &mut *dest;
        for part in &parts {
            let (piece, after) = rest.split_at_mut(part.len as usize);
            rest = after;
            ops.push(ClientOperation::new(part.read()).into_dest(piece));
        }
        let outcomes = self.inner.dataset.execute(&mut ops, self.deadline())?;
        drop(ops);
        let mut gaps = Vec::new();
        let mut at = 0;
        for (part, outcome) in parts.iter().zip(outcomes) {
            let len = self.got(outcome)?.map_or(0, |(len, _)| len);
            if len < part.len as usize {
                gaps.push(at + len..at + part.len as usize);
            }
            at += part.len as usize;
        }
        if gaps.is_empty() {
            return Ok(dest.len());
        }
        // Holes, or the end: only the length tells.
        let left = self.len()?.saturating_sub(offset);
        for gap in gaps {
            dest[gap].fill(0);
        }
        Ok(dest.len().min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    /// A chunk's bytes of a part: how many, and these unless they went to a destination. `None` for
    /// a chunk that is not there.
    pub(crate) fn got(&self, outcome: OwnedOutcome) -> Result<Option<(usize, Vec<u8>)>> {
        match outcome {
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            OwnedOutcome::Failed(failure) => Err(failure.into_error(self.named("read"))),
            OwnedOutcome::Done(mut results) => match results.pop() {
                Some(OwnedResult::Value { len, data, .. }) => Ok(Some((len, data))),
                _ => Err(ErrorKind::Corrupt.into()),
            },
        }
    }

    /// Writes all of `data` at `offset`. When it fails, any part of it may have been written.
    ///
    /// # Errors
    /// `NoSpace`; as [`Self::len`].
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let parts = self.parts(offset, data.len())?;
        let end = offset + data.len() as u64;
        let grows = self.grows(data.len(), end);
        let mut ops: Vec<ClientOperation<'_>> = self
            .write_operations(&parts, data, end, grows)
            .into_iter()
            .map(ClientOperation::new)
            .collect();
        let outcomes = self.inner.dataset.execute(&mut ops, self.deadline())?;
        self.written(outcomes)?;
        if grows { self.raise_len(end) } else { Ok(()) }
    }

    /// The operations of a write. While the object does not grow, they see to it that its length
    /// still covers the bytes that are written (another client may have cut it). Otherwise that has
    /// to follow: before, there would be bytes that no client has written.
    pub(crate) fn write_operations<'o>(
        &'o self,
        parts: &'o [ObjectPart],
        data: &'o [u8],
        end: u64,
        grows: bool,
    ) -> Vec<Operation<'o>> {
        let mut operations = Vec::with_capacity(parts.len() + 1);
        let mut rest = data;
        for part in parts {
            let (piece, after) = rest.split_at(part.len as usize);
            rest = after;
            operations.push(part.write(piece));
        }
        if !grows && !data.is_empty() {
            operations.push(self.raise_len_operation(end));
        }
        operations
    }

    /// Whether a write of `len` bytes up to `end` makes the object longer, as far as is known here.
    pub(crate) fn grows(&self, len: usize, end: u64) -> bool {
        len > 0 && end > self.inner.seen_len.load(Ordering::Relaxed)
    }

    fn raise_len_operation(&self, end: u64) -> Operation<'_> {
        self.on_header([Action::Max { key: &self.inner.key, offset: LEN_AT, value: end }])
    }

    pub(crate) fn written(&self, outcomes: Vec<OwnedOutcome>) -> Result<()> {
        outcomes.into_iter().try_for_each(|outcome| self.header_results(outcome, "write").map(drop))
    }

    pub(crate) fn raise_len(&self, end: u64) -> Result<()> {
        let outcome =
            self.inner.dataset.execute_one(ClientOperation::new(self.raise_len_operation(end)))?;
        self.header_results(outcome, "write")?;
        self.inner.seen_len.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    /// Writes all of `data` at the end; the offset at which it went. No two appends get the same
    /// bytes of the object. When it fails, the object may have grown by zeros.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        let delta = data.len() as u64;
        let add = Action::Add { key: &self.inner.key, offset: LEN_AT, delta };
        let outcome =
            self.inner.dataset.execute_one(ClientOperation::new(self.on_header([add])))?;
        let results = self.header_results(outcome, "append to")?;
        let offset = results.first().ok_or(ErrorKind::Internal)?.number()?;
        let end = offset.saturating_add(delta);
        self.inner.seen_len.fetch_max(end, Ordering::Relaxed);
        self.write_at(data, offset)?;
        Ok(offset)
    }

    /// Cuts the object to `len` bytes, or extends it with a hole. Bytes that others write meanwhile
    /// behind `len` may be lost.
    ///
    /// # Errors
    /// As [`Self::len`].
    pub fn truncate(&self, len: u64) -> Result<()> {
        let raw = len.to_le_bytes();
        let key = &self.inner.key;
        let actions = [
            Action::Add { key, offset: LEN_AT, delta: 0 },
            Action::Write { key, offset: LEN_AT, data: ValueData::Inline(&raw) },
        ];
        let outcome =
            self.inner.dataset.execute_one(ClientOperation::new(self.on_header(actions)))?;
        let results = self.header_results(outcome, "truncate")?;
        let before = results.first().ok_or(ErrorKind::Internal)?.number()?;
        self.inner.seen_len.store(len, Ordering::Relaxed);
        if before > len { self.cut(len) } else { Ok(()) }
    }

    /// Removes every byte behind `len`.
    fn cut(&self, len: u64) -> Result<()> {
        let ObjectInner { id, chunk_len, dataset, .. } = &*self.inner;
        let (index, within) = (len / chunk_len, len % chunk_len);
        if within > 0 {
            let key = chunk_key(id, index);
            let partition = dataset.chunk_partition(hash(id), index);
            let cut = Action::Truncate { key: &key, len: within as u32 };
            let outcome =
                dataset.execute_one(ClientOperation::new(Operation::new(partition, [cut])))?;
            if let Some(failure) = outcome.failure() {
                // A hole needs no cutting.
                if failure.kind != ErrorKind::NotFound {
                    return Err(failure.clone().into_error(self.named("truncate")));
                }
            }
        }
        // The last chunk that stays; when none does, the prefix itself, which comes before all
        // chunks.
        let last = match len.div_ceil(*chunk_len) {
            0 => chunk_prefix(id).to_vec(),
            kept => chunk_key(id, kept - 1).to_vec(),
        };
        for partitions in chunk_partitions(dataset, id).chunks(LISTINGS_MAX) {
            self.remove_after(partitions.to_vec(), &last)?;
        }
        Ok(())
    }

    /// Removes all chunks in `partitions` whose keys come after `last`.
    fn remove_after(&self, mut partitions: Vec<PartitionId>, last: &[u8]) -> Result<()> {
        let dataset = &self.inner.dataset;
        let prefix = chunk_prefix(&self.inner.id);
        while !partitions.is_empty() {
            let mut ops: Vec<ClientOperation<'_>> = partitions
                .iter()
                .map(|partition| {
                    let list = Action::List {
                        prefix: &prefix,
                        after: last,
                        limit: LIST_ENTRIES_MAX,
                        reverse: false,
                        value_len_max: 0,
                    };
                    ClientOperation::new(Operation::new(*partition, [list]))
                })
                .collect();
            let outcomes = dataset.execute(&mut ops, self.deadline())?;
            let mut found = Vec::new();
            let mut again = Vec::new();
            for (partition, outcome) in partitions.iter().zip(outcomes) {
                let mut results = outcome.into_results(self.named("truncate"))?;
                let Some(OwnedResult::Listing { complete, entries }) = results.pop() else {
                    return Err(ErrorKind::Corrupt.into());
                };
                if !complete {
                    again.push(*partition);
                }
                found
                    .extend(entries.iter().map(|entry| (*partition, Box::<[u8]>::from(entry.key))));
            }
            let mut ops: Vec<ClientOperation<'_>> = found
                .iter()
                .map(|(partition, key)| {
                    ClientOperation::new(Operation::new(*partition, [Action::Delete { key }]))
                })
                .collect();
            for outcome in dataset.execute(&mut ops, self.deadline())? {
                outcome.into_results(self.named("truncate"))?;
            }
            partitions = again;
        }
        Ok(())
    }
}

impl ObjectPart {
    pub(crate) fn read(&self) -> Operation<'_> {
        let action = Action::Get { key: &self.key, offset: self.start, len: self.len };
        Operation::new(self.partition, [action])
    }

    fn write<'o>(&'o self, data: &'o [u8]) -> Operation<'o> {
        let (key, data) = (&self.key[..], ValueData::Inline(data));
        let action = if self.is_whole {
            Action::Put { key, data }
        } else {
            Action::Write { key, offset: self.start, data }
        };
        Operation::new(self.partition, [action])
    }
}
