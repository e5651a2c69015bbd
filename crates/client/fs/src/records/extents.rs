//! Where a chunked file has data, asked of the holders of its chunks.

use std::collections::BTreeMap;

use samite_types::{ErrorKind, PartitionId, Result};
use samite_wire::op::{Action, Operation, extents};

use crate::STAT_BLOCK_LEN;
use crate::records::key;
use crate::records::store::{RecordStoreView, fail, listing, malformed};

/// Chunks asked of each partition at once.
const LIST_LIMIT: u32 = 128;

/// Holes and data of a file from some chunk on, as its chunks tell.
pub struct KnownExtents {
    /// Ranges of bytes in the file that are no holes, in order; those that touch are one.
    pub ranges: Vec<(u64, u64)>,
    /// First chunk of which nothing is known; `None`: all are.
    pub next_chunk: Option<u32>,
}

impl RecordStoreView {
    /// Asks once, in one request per node, for data in chunk `first` and those after it: all of a file with few chunks, however
    /// long it is.
    pub fn extents(&self, ino: u64, first: u32) -> Result<KnownExtents> {
        let prefix = key::chunks(ino);
        let before = first.checked_sub(1).map(|before| key::chunk(ino, before)).unwrap_or_default();
        let outcomes = self.run_everywhere(|partition: PartitionId| {
            let ask = Action::Extents { prefix: &prefix, after: &before, limit: LIST_LIMIT };
            Operation::new(partition, [ask])
        })?;
        let mut chunks: BTreeMap<u32, Box<[u8]>> = BTreeMap::new();
        let mut next_chunk: Option<u32> = None;
        for outcome in outcomes {
            let (entries, is_complete) = listing(outcome)?;
            let mut last = None;
            for entry in entries {
                let chunk_no = key::parse_chunk(&entry.key).ok_or_else(malformed)?;
                chunks.insert(chunk_no, entry.value);
                last = Some(chunk_no);
            }
            if !is_complete {
                // A partition that had no room in the reply for even one will have it for fewer partitions.
                let known_to = last.ok_or_else(|| fail(ErrorKind::Busy))?.saturating_add(1);
                next_chunk = Some(next_chunk.map_or(known_to, |next| next.min(known_to)));
            }
        }
        if let Some(next) = next_chunk {
            chunks.split_off(&next);
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (chunk_no, value) in &chunks {
            let start = u64::from(*chunk_no) * self.chunk_len();
            for (from, to) in extents(value) {
                let (from, to) = (start + u64::from(from), start + u64::from(to));
                match ranges.last_mut() {
                    Some((_, end)) if *end == from => *end = to,
                    _ => ranges.push((from, to)),
                }
            }
        }
        Ok(KnownExtents { ranges, next_chunk })
    }

    /// The space that the chunks of a file take, in units of [`STAT_BLOCK_LEN`].
    pub fn blocks(&self, ino: u64) -> Result<u64> {
        let (mut blocks, mut first) = (0, 0);
        loop {
            let found = self.extents(ino, first)?;
            let all = found.ranges.iter();
            blocks += all.map(|(from, to)| (to - from).div_ceil(STAT_BLOCK_LEN)).sum::<u64>();
            match found.next_chunk {
                Some(next) => first = next,
                None => return Ok(blocks),
            }
        }
    }

    /// The ranges of `[start, end)` that are no holes, in order.
    pub fn data_within(&self, ino: u64, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        let mut next = Some(chunk_of(start, self.chunk_len()));
        while let Some(first) = next.filter(|first| u64::from(*first) * self.chunk_len() < end) {
            let extents = self.extents(ino, first)?;
            let clipped =
                extents.ranges.into_iter().map(|(from, to)| (from.max(start), to.min(end)));
            found.extend(clipped.filter(|(from, to)| from < to));
            next = extents.next_chunk;
        }
        Ok(found)
    }

    /// The first data at or after `offset`.
    pub fn next_data(&self, ino: u64, offset: u64) -> Result<Option<u64>> {
        let mut next = Some(chunk_of(offset, self.chunk_len()));
        while let Some(first) = next {
            let extents = self.extents(ino, first)?;
            if let Some((from, _)) = extents.ranges.iter().find(|(_, to)| *to > offset) {
                return Ok(Some((*from).max(offset)));
            }
            next = extents.next_chunk;
        }
        Ok(None)
    }

    /// The first byte at or after `offset` that is in a hole, or after all data.
    pub fn next_hole(&self, ino: u64, offset: u64) -> Result<u64> {
        let mut at = offset;
        let mut next = Some(chunk_of(offset, self.chunk_len()));
        while let Some(first) = next {
            let extents = self.extents(ino, first)?;
            for (from, to) in extents.ranges {
                if from > at {
                    return Ok(at);
                }
                at = at.max(to);
            }
            next = extents.next_chunk.filter(|next| at >= u64::from(*next) * self.chunk_len());
        }
        Ok(at)
    }
}

/// Number of the chunk in which `offset` lies; offsets are within [`crate::FILE_LEN_MAX`].
fn chunk_of(offset: u64, chunk_len: u64) -> u32 {
    u32::try_from(offset / chunk_len).unwrap_or(u32::MAX)
}
