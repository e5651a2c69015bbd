//! Chunk records: the data of files that are not inline.

use samite_client::{ClientOperation, OwnedOutcome, OwnedResult};
use samite_types::{ErrorKind, PartitionId, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::Timestamp;
use crate::records::key::{self, Key};
use crate::records::store::{RecordLocation, RecordStoreView, listing, malformed};

/// Most bytes that one request per node carries.
pub const IO_LEN_MAX: usize = 8 << 20;

/// Most chunks whose removal names each of them; for more, every partition is asked to remove what it has.
const NAMED_REMOVALS_MAX: u64 = 1024;

/// Most records that one operation removes or lists.
const SWEEP_LIMIT: u32 = 1024;

/// The part of a byte range that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPart {
    pub chunk_no: u32,
    /// Offset in the chunk.
    pub offset: u32,
    pub len: usize,
}

/// The parts of `[offset, offset + len)`, in order. The range must lie within [`crate::FILE_LEN_MAX`].
pub fn parts(chunk_len: u64, offset: u64, len: usize) -> impl Iterator<Item = ChunkPart> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % chunk_len;
        let part_len = (chunk_len - within).min(end - at);
        // The file's limit keeps the chunk number in 32 bits.
        let part = ChunkPart {
            chunk_no: (at / chunk_len) as u32,
            offset: within as u32,
            len: part_len as usize,
        };
        at += part_len;
        Some(part)
    })
}

impl RecordStoreView {
    /// Hash by which the chunks of a file are placed.
    fn object_hash(ino: u64) -> u64 {
        samite_placement::hash(&ino.to_be_bytes())
    }

    pub fn chunk(&self, ino: u64, chunk_no: u32) -> RecordLocation {
        let partition = self.dataset.chunk_partition(Self::object_hash(ino), u64::from(chunk_no));
        RecordLocation { key: key::chunk(ino, chunk_no), partition }
    }

    /// Reads the parts of a range into `buf`, at most [`IO_LEN_MAX`] bytes. Tells how many bytes of
    /// each part were there; a missing byte is in a hole or beyond the end of the file, and its
    /// bytes in `buf` are undefined.
    pub fn read_chunks(
        &self,
        ino: u64,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<Vec<(ChunkPart, usize)>> {
        let chunk_len = self.chunk_len();
        let wanted: Vec<ChunkPart> = parts(chunk_len, offset, buf.len()).collect();
        let locations: Vec<RecordLocation> =
            wanted.iter().map(|part| self.chunk(ino, part.chunk_no)).collect();
        let mut rest = buf;
        let mut ops = Vec::with_capacity(wanted.len());
        for (part, location) in wanted.iter().zip(&locations) {
            let (window, after) = rest.split_at_mut(part.len);
            rest = after;
            let get = Action::Get { key: &location.key, offset: part.offset, len: part.len as u32 };
            ops.push(
                ClientOperation::new(Operation::new(location.partition, [get])).into_dest(window),
            );
        }
        let outcomes = if ops.len() == 1 {
            ops.pop().map(|op| self.run(op)).into_iter().collect::<Result<Vec<_>>>()?
        } else {
            self.run_all(&mut ops)?
        };
        wanted.into_iter().zip(outcomes).map(|(part, outcome)| Ok((part, got(outcome)?))).collect()
    }

    /// Writes `data` at `offset`, at most [`IO_LEN_MAX`] bytes, and tells when, if so. Returns how many bytes from the start were written;
    /// fewer than all, and why, when some
    /// chunk could not be.
    pub fn write_chunks(
        &self,
        ino: u64,
        data: &[u8],
        offset: u64,
        written: Option<Timestamp>,
    ) -> Result<(usize, Option<ErrorKind>)> {
        let stamp = key::stamp(ino);
        let wanted: Vec<ChunkPart> = parts(self.chunk_len(), offset, data.len()).collect();
        let locations: Vec<RecordLocation> =
            wanted.iter().map(|part| self.chunk(ino, part.chunk_no)).collect();
        let mut rest = data;
        let mut ops = Vec::with_capacity(wanted.len());
        for (part, location) in wanted.iter().zip(&locations) {
            let (bytes, after) = rest.split_at(part.len);
            rest = after;
            let write = Action::Write {
                key: &location.key,
                offset: part.offset,
                data: ValueData::Inline(bytes),
            };
            ops.push(ClientOperation::new(Operation::new(location.partition, [write])));
        }
        if let (Some(op), Some(written)) = (ops.first_mut(), written) {
            // An action without data: a range full of data stays one request.
            let (key, to) = (&stamp, written.0);
            let stamp = Action::Advance { key, offset: 0, count: 1, to, slack: u64::MAX };
            op.operation.actions.push(stamp);
        }
        let outcomes = if ops.len() == 1 {
            ops.pop()
                .map(|op| self.dataset.execute_one(op))
                .into_iter()
                .collect::<Result<Vec<_>>>()?
        } else {
            self.dataset.execute(&mut ops, self.client.deadline())?
        };
        let mut written = 0;
        for (part, outcome) in wanted.iter().zip(outcomes) {
            match outcome {
                OwnedOutcome::Done(_) => written += part.len,
                OwnedOutcome::Failed(failure) => return Ok((written, Some(failure.kind))),
            }
        }
        Ok((written, None))
    }

    /// Writes into chunk 0 unless it exists.
    pub fn found_chunk(&self, ino: u64, data: &[u8]) -> Result<()> {
        let location = self.chunk(ino, 0);
        let op = Operation::new(
            location.partition,
            [Action::Write { key: &location.key, offset: 0, data: ValueData::Inline(data) }],
        )
        .guard(Guard::Absent(&location.key));
        self.run(op).map(drop)
    }

    /// Writes the bytes of a tail at `offset`, as the spiller with this token, 0 for the handle
    /// that froze the tail. A chunk that is longer already has it from an earlier one;
    /// `writes_over`: others write elsewhere in the file, so that says nothing. False: another
    /// handle has taken over since ([`RecordStoreView::fence`]).
    pub fn spill_chunks(
        &self,
        ino: u64,
        data: &[u8],
        offset: u64,
        spiller: u64,
        writes_over: bool,
    ) -> Result<bool> {
        let (fence, token) = (key::fence(ino), spiller.to_le_bytes());
        let wanted: Vec<ChunkPart> = parts(self.chunk_len(), offset, data.len()).collect();
        let locations: Vec<RecordLocation> =
            wanted.iter().map(|part| self.chunk(ino, part.chunk_no)).collect();
        let mut rest = data;
        let mut ops = Vec::with_capacity(wanted.len());
        for (part, RecordLocation { key, partition }) in wanted.iter().zip(&locations) {
            let (bytes, after) = rest.split_at(part.len);
            rest = after;
            let write = Action::Write { key, offset: part.offset, data: ValueData::Inline(bytes) };
            let mut op = Operation::new(*partition, [write]).guard(if spiller == 0 {
                Guard::Absent(&fence)
            } else {
                Guard::BytesAre { key: &fence, offset: 0, bytes: &token }
            });
            if !writes_over {
                op.guards.push(Guard::LenAtMost(key, part.offset));
            }
            ops.push(ClientOperation::new(op));
        }
        let mut is_ours = true;
        for outcome in self.run_all(&mut ops)? {
            if let OwnedOutcome::Failed(failure) = outcome {
                // The second guard has found that the bytes are there.
                is_ours &= failure.kind == ErrorKind::Conflict && failure.index > 0;
            }
        }
        Ok(is_ours)
    }

    /// From now on, no handle but the spiller with this token spills a tail into the chunks of
    /// `[offset, offset + len)`, whichever handle read it before.
    pub fn fence(&self, ino: u64, offset: u64, len: usize, spiller: u64) -> Result<()> {
        let (fence, token) = (key::fence(ino), spiller.to_le_bytes());
        let mut partitions: Vec<PartitionId> = parts(self.chunk_len(), offset, len)
            .map(|part| self.chunk(ino, part.chunk_no).partition)
            .collect();
        partitions.sort_unstable();
        partitions.dedup();
        let mut ops: Vec<ClientOperation<'_>> = partitions
            .into_iter()
            .map(|partition| {
                // An operation that removes something has room on a full store, too.
                let delete = Action::Delete { key: &fence };
                let put = Action::Put { key: &fence, data: ValueData::Inline(&token) };
                Operation::new(partition, [delete, put]).into()
            })
            .collect();
        if ops.is_empty() { Ok(()) } else { self.run_all(&mut ops).map(drop) }
    }

    /// Where the last byte in any chunk is.
    pub fn data_end(&self, ino: u64) -> Result<u64> {
        self.data_state(ino).map(|(end, _)| end)
    }

    /// Where the last byte in any chunk is, and when chunks were last written as far as the inode does not say it.
    pub fn data_state(&self, ino: u64) -> Result<(u64, Option<Timestamp>)> {
        let (prefix, stamp) = (key::chunks(ino), key::stamp(ino));
        let outcomes = self.run_everywhere(|partition| {
            let last = Action::List {
                prefix: &prefix,
                after: b"",
                limit: 1,
                reverse: true,
                value_len_max: 0,
            };
            let stamps = Action::List {
                prefix: &stamp,
                after: b"",
                limit: 1,
                reverse: false,
                value_len_max: size_of::<i64>() as u32,
            };
            Operation::new(partition, [last, stamps])
        })?;
        let (mut end, mut written) = (0, None);
        for outcome in outcomes {
            let [chunks, stamps] = listings(outcome)?;
            for entry in chunks {
                let chunk_no = key::parse_chunk(&entry.key).ok_or_else(malformed)?;
                let start = u64::from(chunk_no) * self.chunk_len();
                end = end.max(start + u64::from(entry.total_len));
            }
            for entry in stamps {
                let raw = entry.value.first_chunk().ok_or_else(malformed)?;
                written = written.max(Some(Timestamp(i64::from_le_bytes(*raw))));
            }
        }
        Ok((end, written))
    }

    /// Forgets when chunks were written.
    pub fn drop_stamps(&self, ino: u64) -> Result<()> {
        let key = key::stamp(ino);
        let drop_one = |partition| Operation::new(partition, [Action::Delete { key: &key }]);
        self.run_everywhere(drop_one).map(drop)
    }

    /// Removes all chunks. `size`: no byte lies beyond it, if it is known, and nobody has left a fence.
    pub fn remove_chunks(&self, ino: u64, size: Option<u64>) -> Result<()> {
        // Chunk 0 is there even when the file was cut to nothing.
        let count = size.map(|size| size.div_ceil(self.chunk_len()).max(1));
        match count {
            Some(count)
                if count <= NAMED_REMOVALS_MAX.min(u64::from(self.dataset.partitions())) =>
            {
                self.delete_named(ino, 0, count)
            }
            _ => self.sweep_all(ino),
        }
    }

    /// Cuts the data to `len` bytes: later chunks go, the last one is shortened. `size` is as for [`RecordStoreView::remove_chunks`].
    /// Chunk 0 stays, if only empty: it says that inline data were moved already.
    pub fn cut_chunks(&self, ino: u64, len: u64, size: u64) -> Result<()> {
        let chunk_len = self.chunk_len();
        let (boundary, within) = (len / chunk_len, len % chunk_len);
        let first_gone = if within > 0 || boundary == 0 { boundary + 1 } else { boundary };
        let count = size.div_ceil(chunk_len).saturating_sub(first_gone);
        if count <= NAMED_REMOVALS_MAX {
            self.delete_named(ino, first_gone, count)?;
        } else {
            self.sweep_from(ino, first_gone)?;
        }
        if first_gone > boundary && size > len {
            let location = self.chunk(ino, boundary as u32);
            let op = Operation::new(
                location.partition,
                [Action::Truncate { key: &location.key, len: within as u32 }],
            );
            // A hole there is no failure.
            self.run(op)?;
        }
        Ok(())
    }

    fn delete_named(&self, ino: u64, first: u64, count: u64) -> Result<()> {
        let stamp = key::stamp(ino);
        let locations: Vec<RecordLocation> =
            (first..first + count).map(|number| self.chunk(ino, number as u32)).collect();
        let mut ops: Vec<ClientOperation<'_>> = locations
            .iter()
            .map(|location| {
                // A cut has a time of its own, which is newer.
                let keys = [&location.key, &stamp];
                Operation::new(location.partition, keys.map(|key| Action::Delete { key })).into()
            })
            .collect();
        if ops.is_empty() { Ok(()) } else { self.run_all(&mut ops).map(drop) }
    }

    fn sweep_all(&self, ino: u64) -> Result<()> {
        let beside = [key::stamp(ino), key::fence(ino)];
        self.run_everywhere(|partition| {
            Operation::new(partition, beside.each_ref().map(|key| Action::Delete { key }))
        })?;
        let prefix = key::chunks(ino);
        let mut left: Vec<PartitionId> = (0..self.dataset.partitions()).map(PartitionId).collect();
        while !left.is_empty() {
            let mut ops: Vec<ClientOperation<'_>> = left
                .iter()
                .map(|partition| {
                    let sweep = Action::DeletePrefix { prefix: &prefix, limit: SWEEP_LIMIT };
                    Operation::new(*partition, [sweep]).into()
                })
                .collect();
            let mut outcomes = self.run_all(&mut ops)?.into_iter();
            let mut more = Vec::new();
            for partition in left {
                let results =
                    outcomes.next().ok_or_else(malformed)?.into_results("remove chunks")?;
                if results.first().ok_or_else(malformed)?.number()? >= u64::from(SWEEP_LIMIT) {
                    more.push(partition);
                }
            }
            left = more;
        }
        Ok(())
    }

    fn sweep_from(&self, ino: u64, first: u64) -> Result<()> {
        let prefix = key::chunks(ino);
        let after = key::chunk(ino, (first - 1) as u32);
        loop {
            let outcomes = self.run_everywhere(|partition| {
                let list = Action::List {
                    prefix: &prefix,
                    after: &after,
                    limit: SWEEP_LIMIT,
                    reverse: false,
                    value_len_max: 0,
                };
                Operation::new(partition, [list])
            })?;
            let mut found: Vec<(PartitionId, Key)> = Vec::new();
            let mut is_complete = true;
            for (partition, outcome) in (0..).map(PartitionId).zip(outcomes) {
                let (entries, complete) = listing(outcome)?;
                is_complete &= complete;
                found.extend(entries.iter().map(|entry| (partition, Key::from_slice(&entry.key))));
            }
            let mut ops: Vec<ClientOperation<'_>> = found
                .iter()
                .map(|(partition, key)| Operation::new(*partition, [Action::Delete { key }]).into())
                .collect();
            if !ops.is_empty() {
                self.run_all(&mut ops)?;
            }
            if is_complete {
                return Ok(());
            }
        }
    }
}

/// The bytes that the read of a chunk returned.
fn got(outcome: OwnedOutcome) -> Result<usize> {
    match outcome {
        OwnedOutcome::Done(results) => {
            let (_, _, len) = results.first().ok_or_else(malformed)?.value()?;
            Ok(len)
        }
        OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(0),
        OwnedOutcome::Failed(failure) => Err(failure.into_error("read chunk")),
    }
}

/// Entries of two listings, neither of which has more than one.
fn listings(outcome: OwnedOutcome) -> Result<[Vec<samite_client::OwnedEntry>; 2]> {
    let mut results = outcome.into_results("list")?.into_iter();
    let mut next = || match results.next() {
        Some(OwnedResult::Listing { entries, .. }) => Ok(entries.to_vec()),
        _ => Err(malformed()),
    };
    Ok([next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_range_without_gaps() {
        let all: Vec<ChunkPart> = parts(100, 250, 175).collect();
        assert_eq!(
            all,
            [
                ChunkPart { chunk_no: 2, offset: 50, len: 50 },
                ChunkPart { chunk_no: 3, offset: 0, len: 100 },
                ChunkPart { chunk_no: 4, offset: 0, len: 25 },
            ]
        );
        assert_eq!(parts(100, 200, 0).count(), 0);
        assert_eq!(parts(100, 200, 100).count(), 1);
    }
}
