//! Values that do not fit one record: reading, writing and changing their chunks.

use std::borrow::Cow;

use samite_client::{ClientOperation, OwnedOutcome, OwnedResult};
use samite_types::{Deadline, Error, ErrorKind, Result, Version};
use samite_wire::limits::RECORD_LEN_MAX;
use samite_wire::op::{Action, Operation};

use crate::commit::{ExpectedValue, NewValue, UNDER_WAY};
use crate::key::KeyPlace;
use crate::manifest::{CHUNK_LEN, ChunkKey, ValueManifest};
use crate::view::{KvView, SmallTry, VersionedValue, check_value_len};

/// A value as it is before a change.
enum PriorValue {
    Small { expect: ExpectedValue, bytes: Vec<u8> },
    Large { version: Version, manifest: ValueManifest },
}

impl KvView {
    /// The value whose manifest has just been seen.
    pub(crate) fn get_large(
        &self,
        key: &[u8],
        version: Version,
        manifest: Vec<u8>,
    ) -> Result<Option<VersionedValue>> {
        let deadline = self.dataset.client().deadline();
        let (mut version, mut raw) = (version, manifest);
        loop {
            let manifest = ValueManifest::decode(&raw)?;
            let mut bytes = vec![0; manifest.total_len as usize];
            if self.read_chunks(&manifest, 0, &mut bytes, deadline)? {
                return Ok(Some(VersionedValue { version, bytes }));
            }
            (version, raw) = match self.reread(key, version, deadline)? {
                RereadKey::Large(version, raw) => (version, raw),
                RereadKey::Small(value) => return Ok(value),
            };
        }
    }

    /// As [`KvView::read_range`], for a value whose manifest has just been seen.
    pub(crate) fn read_large(
        &self,
        key: &[u8],
        manifest: Vec<u8>,
        offset: u64,
        dest: &mut [u8],
    ) -> Result<Option<usize>> {
        let deadline = self.dataset.client().deadline();
        let mut raw = manifest;
        let mut version = Version(0);
        loop {
            let manifest = ValueManifest::decode(&raw)?;
            let left = manifest.total_len.saturating_sub(offset);
            let len = left.min(dest.len() as u64) as usize;
            if self.read_chunks(&manifest, offset, &mut dest[..len], deadline)? {
                return Ok(Some(len));
            }
            (version, raw) = match self.reread(key, version, deadline)? {
                RereadKey::Large(version, raw) => (version, raw),
                RereadKey::Small(None) => return Ok(None),
                RereadKey::Small(Some(value)) => {
                    let start = value.bytes.len().min(offset as usize);
                    let len = (value.bytes.len() - start).min(dest.len());
                    dest[..len].copy_from_slice(&value.bytes[start..start + len]);
                    return Ok(Some(len));
                }
            };
        }
    }

    /// A chunk was gone: reads the key's value of now. `seen` is the version of the manifest that
    /// named it.
    fn reread(&self, key: &[u8], seen: Version, deadline: Deadline) -> Result<RereadKey> {
        let place = self.place(key)?;
        let read = Action::Get { key: &place.value, offset: 0, len: u32::MAX };
        match self.try_small(&place, None, read, None)? {
            SmallTry::Done(OwnedResult::Value { version, data, .. }) => {
                Ok(RereadKey::Small(Some(VersionedValue { version, bytes: data })))
            }
            SmallTry::Failed(failure) if failure.kind == ErrorKind::NotFound => {
                Ok(RereadKey::Small(None))
            }
            SmallTry::Failed(failure) => Err(failure.into_error("get")),
            SmallTry::Done(_) => Err(ErrorKind::Corrupt.into()),
            SmallTry::Large(version, _) if version == seen => {
                Err(Error::new(ErrorKind::Corrupt, "a chunk of the value is missing"))
            }
            SmallTry::Large(..) if deadline.remaining().is_none() => {
                Err(Error::new(ErrorKind::Timeout, "the value keeps changing"))
            }
            SmallTry::Large(version, raw) => Ok(RereadKey::Large(version, raw)),
        }
    }

    /// Reads `dest.len()` bytes of the value from `offset`; all of them belong to it. `false`: a
    /// chunk is gone.
    fn read_chunks(
        &self,
        manifest: &ValueManifest,
        offset: u64,
        dest: &mut [u8],
        deadline: Deadline,
    ) -> Result<bool> {
        let keys = chunk_keys(manifest);
        let mut ops = Vec::new();
        let mut rest = dest;
        let mut at = offset as usize;
        while !rest.is_empty() {
            let (index, start) = (at / CHUNK_LEN, at % CHUNK_LEN);
            let (piece, after) = rest.split_at_mut(rest.len().min(CHUNK_LEN - start));
            at += piece.len();
            rest = after;
            // Chunks may be shorter than their part of the value: the rest of them is zeros.
            piece.fill(0);
            if manifest.tags[index] == 0 {
                continue;
            }
            let len = piece.len() as u32;
            let action = Action::Get { key: &keys[index], offset: start as u32, len };
            let partition = manifest.chunk_partition(&self.dataset, index);
            ops.push(ClientOperation::new(Operation::new(partition, [action])).into_dest(piece));
        }
        for outcome in self.dataset.execute(&mut ops, deadline)? {
            match outcome {
                OwnedOutcome::Done(_) => {}
                OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => {
                    return Ok(false);
                }
                OwnedOutcome::Failed(failure) => return Err(failure.into_error("read a chunk")),
            }
        }
        Ok(true)
    }

    /// Writes the chunks of `value`, and then puts its manifest in place.
    pub(crate) fn put_large(
        &self,
        place: &KeyPlace,
        value: &[u8],
        expect: ExpectedValue,
    ) -> Result<Version> {
        let mut manifest = ValueManifest::fresh();
        manifest.total_len = value.len() as u64;
        manifest.tags = vec![1; value.len().div_ceil(CHUNK_LEN)];
        let chunks: Vec<_> = value.chunks(CHUNK_LEN).map(Cow::Borrowed).enumerate().collect();
        let drafts = self.drafts(place);
        let _held = drafts.begin(&manifest.id, UNDER_WAY)?;
        let key = drafts.key(&manifest.id);
        let version = self.put_chunks(place, &manifest, &chunks, (expect, Some(&key)));
        match &version {
            // Another client may have been killed shortly before.
            Ok(_) => drop(drafts.sweep()),
            // When it is not known whether it is in place, the next client finds out.
            Err(error) if !is_unknown(error) => drop(drafts.give_up(&manifest.id)),
            Err(_) => {}
        }
        version
    }

    /// Writes new chunks of `manifest`, and then puts it in place. Removes them again if that
    /// fails.
    fn put_chunks(
        &self,
        place: &KeyPlace,
        manifest: &ValueManifest,
        chunks: &[(usize, Cow<'_, [u8]>)],
        (expect, draft): (ExpectedValue, Option<&[u8]>),
    ) -> Result<Version> {
        let keys = chunk_keys(manifest);
        let mut ops: Vec<ClientOperation<'_>> = chunks
            .iter()
            .map(|(index, bytes)| {
                let partition = manifest.chunk_partition(&self.dataset, *index);
                ClientOperation::new(Operation::put(partition, &keys[*index], bytes))
            })
            .collect();
        let raw = manifest.encode();
        let deadline = self.dataset.client().deadline();
        let stored = self.dataset.execute(&mut ops, deadline).and_then(|outcomes| {
            outcomes.into_iter().try_for_each(|outcome| outcome.into_results("chunk").map(drop))
        });
        let committed = stored
            .and_then(|()| self.commit(place, NewValue::Large(manifest, &raw, draft), expect));
        if let Err(error) = &committed {
            // After these the manifest may be in place: better chunks that nobody needs than a
            // value without them.
            if draft.is_none() && !is_unknown(error) {
                let indices = chunks.iter().map(|(index, _)| *index);
                self.remove(manifest, &keys, indices)?;
            }
        }
        committed
    }

    /// Removes the chunks of `manifest`, but for those that are also in `kept`.
    pub(crate) fn remove_chunks(
        &self,
        manifest: &ValueManifest,
        kept: Option<&ValueManifest>,
    ) -> Result<()> {
        let keys = chunk_keys(manifest);
        let kept = kept.map(chunk_keys).unwrap_or_default();
        let gone = (0..keys.len())
            .filter(|index| manifest.tags[*index] != 0 && kept.get(*index) != Some(&keys[*index]));
        self.remove(manifest, &keys, gone)
    }

    fn remove(
        &self,
        manifest: &ValueManifest,
        keys: &[ChunkKey],
        indices: impl Iterator<Item = usize>,
    ) -> Result<()> {
        let mut ops: Vec<ClientOperation<'_>> = indices
            .map(|index| {
                let partition = manifest.chunk_partition(&self.dataset, index);
                ClientOperation::new(Operation::new(
                    partition,
                    [Action::Delete { key: &keys[index] }],
                ))
            })
            .collect();
        self.dataset.execute(&mut ops, self.dataset.client().deadline()).map(drop)
    }

    /// Puts `bytes` at `offset` (`None`: at the end), for values that do not fit a record before or
    /// after; the length after.
    pub(crate) fn splice(&self, key: &[u8], offset: Option<u64>, bytes: &[u8]) -> Result<u64> {
        let place = self.place(key)?;
        let deadline = self.dataset.client().deadline();
        loop {
            match self.splice_once(&place, offset, bytes, deadline) {
                Ok(Some(len)) => return Ok(len),
                Err(error) if !matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Exists) => {
                    return Err(error);
                }
                // Somebody else was faster.
                Ok(None) | Err(_) => {}
            }
            if deadline.remaining().is_none() {
                return Err(Error::new(ErrorKind::Timeout, "the value keeps changing"));
            }
        }
    }

    fn old(&self, place: &KeyPlace) -> Result<PriorValue> {
        let read = Action::Get { key: &place.value, offset: 0, len: u32::MAX };
        Ok(match self.try_small(place, None, read, None)? {
            SmallTry::Done(OwnedResult::Value { version, data, .. }) => {
                PriorValue::Small { expect: ExpectedValue::Version(version), bytes: data }
            }
            SmallTry::Done(_) => return Err(ErrorKind::Corrupt.into()),
            SmallTry::Failed(failure) if failure.kind == ErrorKind::NotFound => {
                PriorValue::Small { expect: ExpectedValue::Absent, bytes: Vec::new() }
            }
            SmallTry::Failed(failure) => return Err(failure.into_error("read")),
            SmallTry::Large(version, raw) => {
                PriorValue::Large { version, manifest: ValueManifest::decode(&raw)? }
            }
        })
    }

    /// One try; `None` when the value has changed meanwhile.
    fn splice_once(
        &self,
        place: &KeyPlace,
        offset: Option<u64>,
        bytes: &[u8],
        deadline: Deadline,
    ) -> Result<Option<u64>> {
        let (expect, mut manifest, first) = match self.old(place)? {
            PriorValue::Large { version, manifest } => {
                (ExpectedValue::Version(version), manifest, None)
            }
            PriorValue::Small { expect, bytes } => {
                let mut manifest = ValueManifest::fresh();
                manifest.total_len = bytes.len() as u64;
                manifest.tags = vec![0; bytes.len().div_ceil(CHUNK_LEN)];
                (expect, manifest, Some(bytes))
            }
        };
        let old = manifest.clone();
        let offset = offset.unwrap_or(old.total_len);
        let end = offset + bytes.len() as u64;
        check_value_len(end)?;
        manifest.total_len = old.total_len.max(end);
        if manifest.total_len <= RECORD_LEN_MAX as u64 && first.is_some() {
            // It has shrunk meanwhile, and fits its record after all.
            let mut value = first.unwrap_or_default();
            value.resize(manifest.total_len as usize, 0);
            value[offset as usize..end as usize].copy_from_slice(bytes);
            self.commit(place, NewValue::Small(&value), expect)?;
            return Ok(Some(manifest.total_len));
        }
        manifest.tags.resize((manifest.total_len as usize).div_ceil(CHUNK_LEN), 0);
        let touched = touched(offset, end, first.as_ref().is_some_and(|first| !first.is_empty()));
        let mut chunks = Vec::new();
        for index in touched {
            let start = (index * CHUNK_LEN) as u64;
            let from = start.max(offset);
            let to = (start + CHUNK_LEN as u64).min(end);
            let is_covered = from == start && to - start >= manifest.chunk_len(index) as u64;
            let chunk = if from < to && is_covered {
                Cow::Borrowed(&bytes[(from - offset) as usize..(to - offset) as usize])
            } else {
                let mut chunk = match &first {
                    Some(first) if index == 0 => first.clone(),
                    _ => vec![0; old.chunk_len(index)],
                };
                let is_stored = first.is_none() && !chunk.is_empty();
                if is_stored && !self.read_chunks(&old, start, &mut chunk, deadline)? {
                    return Ok(None);
                }
                if from < to {
                    chunk.resize(chunk.len().max((to - start) as usize), 0);
                    chunk[(from - start) as usize..(to - start) as usize]
                        .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
                }
                Cow::Owned(chunk)
            };
            manifest.renew(index);
            chunks.push((index, chunk));
        }
        self.put_chunks(place, &manifest, &chunks, (expect, None))?;
        Ok(Some(manifest.total_len))
    }
}

/// The chunks that a write to `offset..end` changes; the first one, too, when it has been a record
/// until now.
fn touched(offset: u64, end: u64, with_first: bool) -> Vec<usize> {
    let chunk = CHUNK_LEN as u64;
    let written = (offset / chunk) as usize..end.div_ceil(chunk) as usize;
    let first = (with_first && !written.contains(&0)).then_some(0);
    first.into_iter().chain(written).collect()
}

/// Whether an operation that failed so may have taken effect.
const fn is_unknown(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable)
}

/// The value of a key now.
enum RereadKey {
    Small(Option<VersionedValue>),
    Large(Version, Vec<u8>),
}

fn chunk_keys(manifest: &ValueManifest) -> Vec<ChunkKey> {
    (0..manifest.tags.len()).map(|index| manifest.chunk_key(index)).collect()
}
