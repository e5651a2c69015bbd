//! Frames of a dump: segments of records, and in a stream the manifests around them.
//!
//! ```text
//! frame    0 magic "samiteD1" │ 8 id of the dump u64 │ 16 kind u32 │ 20 dataset u32 │ 24 pass u32
//!          │ 28 records u32 │ 32 number u64 │ 40 body len u64 │ 48 xxh3 of the body u64
//!          │ 56 xxh3 of bytes 0 to 55 u64 │ 64 body
//! record   0 kind u8: 1 value, 2 removed │ 1 partition u32 │ 5 key len u16 │ 7 value len u32
//!          │ 11 key, value
//! ```
//!
//! Numbers are little-endian. A frame is checked as a whole before a byte of its body is used.

use std::io::Read;

use samite_types::{PartitionId, Result};
use samite_wire::limits::{KEY_LEN_MAX, RECORD_LEN_MAX};
use xxhash_rust::xxh3::xxh3_64;

use crate::{corrupt, io_error};

/// Bytes of records after which a segment ends.
pub const SEGMENT_LEN: usize = 64 << 20;
/// Longest body of a frame.
const BODY_LEN_MAX: u64 = (SEGMENT_LEN + RECORD_HEADER_LEN + KEY_LEN_MAX + RECORD_LEN_MAX) as u64;

const MAGIC: &[u8; 8] = b"samiteD1";
const HEADER_LEN: usize = 64;
const RECORD_HEADER_LEN: usize = 11;
const VALUE: u8 = 1;
const REMOVED: u8 = 2;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpFrameKind {
    /// Records.
    Segment,
    /// The manifest before everything else of a stream.
    Begin,
    /// The manifest behind everything else of a stream.
    End,
}

impl DumpFrameKind {
    const fn code(self) -> u32 {
        match self {
            Self::Segment => 1,
            Self::Begin => 2,
            Self::End => 3,
        }
    }

    const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Segment,
            2 => Self::Begin,
            3 => Self::End,
            _ => return None,
        })
    }
}

/// Which frame it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Id of the dump.
    pub dump: u64,
    /// What it holds.
    pub kind: DumpFrameKind,
    /// Position of the dataset in the manifest.
    pub dataset: u32,
    /// Which pass.
    pub pass: u32,
    /// Records in it.
    pub records: u32,
    /// Number of the segment within the pass, from 0.
    pub number: u64,
    /// Checksum of the body.
    pub checksum: u64,
}

impl SegmentHeader {
    /// The frame of this header and `body`; its checksum is made here.
    pub(crate) fn frame(&self, body: &[u8]) -> [u8; HEADER_LEN] {
        let mut raw = [0; HEADER_LEN];
        raw[..8].copy_from_slice(MAGIC);
        raw[8..16].copy_from_slice(&self.dump.to_le_bytes());
        raw[16..20].copy_from_slice(&self.kind.code().to_le_bytes());
        raw[20..24].copy_from_slice(&self.dataset.to_le_bytes());
        raw[24..28].copy_from_slice(&self.pass.to_le_bytes());
        raw[28..32].copy_from_slice(&self.records.to_le_bytes());
        raw[32..40].copy_from_slice(&self.number.to_le_bytes());
        raw[40..48].copy_from_slice(&(body.len() as u64).to_le_bytes());
        raw[48..56].copy_from_slice(&xxh3_64(body).to_le_bytes());
        let sum = xxh3_64(&raw[..56]);
        raw[56..].copy_from_slice(&sum.to_le_bytes());
        raw
    }

    /// The header, and the length of the body behind it.
    fn parse(raw: &[u8; HEADER_LEN]) -> Option<(Self, u64)> {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| raw[at + i]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| raw[at + i]));
        if &raw[..8] != MAGIC || xxh3_64(&raw[..56]) != long(56) {
            return None;
        }
        let header = Self {
            dump: long(8),
            kind: DumpFrameKind::from_code(word(16))?,
            dataset: word(20),
            pass: word(24),
            records: word(28),
            number: long(32),
            checksum: long(48),
        };
        (long(40) <= BODY_LEN_MAX).then_some((header, long(40)))
    }
}

/// The next frame of a stream or file, whole and checked; `None`: there is none any more.
///
/// # Errors
/// `Corrupt`: it is damaged or cut short; nothing of it counts. `Io`.
pub fn read_frame(from: &mut dyn Read) -> Result<Option<(SegmentHeader, Vec<u8>)>> {
    let mut raw = [0; HEADER_LEN];
    let mut len = 0;
    while len < HEADER_LEN {
        match from.read(&mut raw[len..]) {
            Ok(0) if len == 0 => return Ok(None),
            Ok(0) => return Err(corrupt("it is cut short")),
            Ok(count) => len += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io_error("read", &error)),
        }
    }
    let (header, body_len) =
        SegmentHeader::parse(&raw).ok_or_else(|| corrupt("its first bytes are damaged"))?;
    // Grows with what comes, not with what the header says.
    let mut body = Vec::new();
    from.take(body_len).read_to_end(&mut body).map_err(|error| io_error("read", &error))?;
    if body.len() as u64 != body_len {
        return Err(corrupt("it is cut short"));
    }
    if xxh3_64(&body) != header.checksum {
        return Err(corrupt("its checksum is wrong"));
    }
    if header.kind == DumpFrameKind::Segment {
        let mut records = RecordReader::new(&body);
        let mut count = 0_u64;
        while records.next_record()?.is_some() {
            count += 1;
        }
        if count != u64::from(header.records) {
            return Err(corrupt("it has another number of records than it says"));
        }
    }
    Ok(Some((header, body)))
}

/// A record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpedRecord<'b> {
    /// The partition that it was in.
    pub partition: PartitionId,
    /// Its key.
    pub key: &'b [u8],
    /// Its value; `None`: the record is no more.
    pub value: Option<&'b [u8]>,
}

/// The records of a segment, one after the other.
#[derive(Debug)]
pub struct RecordReader<'b> {
    rest: &'b [u8],
}

impl<'b> RecordReader<'b> {
    /// Those in `body`.
    #[must_use]
    pub const fn new(body: &'b [u8]) -> Self {
        Self { rest: body }
    }

    /// The next one.
    ///
    /// # Errors
    /// `Corrupt`: these are no records.
    pub fn next_record(&mut self) -> Result<Option<DumpedRecord<'b>>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (record, rest) = Self::split(self.rest).ok_or_else(|| corrupt("it has no records"))?;
        self.rest = rest;
        Ok(Some(record))
    }

    fn split(rest: &'b [u8]) -> Option<(DumpedRecord<'b>, &'b [u8])> {
        let (kind, rest) = rest.split_first()?;
        let (partition, rest) = rest.split_first_chunk()?;
        let (key_len, rest) = rest.split_first_chunk()?;
        let (value_len, rest) = rest.split_first_chunk()?;
        let key_len = usize::from(u16::from_le_bytes(*key_len));
        let value_len = u32::from_le_bytes(*value_len) as usize;
        let (key, rest) = rest.split_at_checked(key_len)?;
        let (value, rest) = rest.split_at_checked(value_len)?;
        let value = match *kind {
            VALUE => Some(value),
            REMOVED if value_len == 0 => None,
            _ => return None,
        };
        let is_lawful = (1..=KEY_LEN_MAX).contains(&key_len) && value_len <= RECORD_LEN_MAX;
        let partition = PartitionId(u32::from_le_bytes(*partition));
        is_lawful.then_some((DumpedRecord { partition, key, value }, rest))
    }
}

/// A segment that is being filled.
#[derive(Debug)]
pub struct SegmentBuilder {
    len: usize,
    body: Vec<u8>,
    records: u32,
}

impl SegmentBuilder {
    /// An empty one that is full with so many bytes, at most [`SEGMENT_LEN`].
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len: len.min(SEGMENT_LEN), body: Vec::new(), records: 0 }
    }

    /// Adds a record. Its key and value are within the limits of records.
    pub fn push(&mut self, record: &DumpedRecord<'_>) {
        let value = record.value.unwrap_or_default();
        self.body.push(if record.value.is_some() { VALUE } else { REMOVED });
        self.body.extend_from_slice(&record.partition.get().to_le_bytes());
        // Keys and values are shorter than that.
        self.body.extend_from_slice(&(record.key.len() as u16).to_le_bytes());
        self.body.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.body.extend_from_slice(record.key);
        self.body.extend_from_slice(value);
        self.records += 1;
    }

    /// Whether it has as much as a segment is to have.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.body.len() >= self.len
    }

    /// Records in it.
    #[must_use]
    pub const fn records(&self) -> u32 {
        self.records
    }

    /// Its bytes.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Forgets its records.
    pub fn clear(&mut self) {
        self.body.clear();
        self.records = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use samite_types::ErrorKind;

    use super::*;

    type Owned = (u32, Vec<u8>, Option<Vec<u8>>);

    fn record() -> impl Strategy<Value = Owned> {
        (any::<u32>(), vec(any::<u8>(), 1..40), proptest::option::of(vec(any::<u8>(), 0..60)))
    }

    fn frame(records: &[Owned], number: u64) -> Vec<u8> {
        let mut builder = SegmentBuilder::new(SEGMENT_LEN);
        for (partition, key, value) in records {
            let partition = PartitionId(*partition);
            builder.push(&DumpedRecord { partition, key, value: value.as_deref() });
        }
        let header = SegmentHeader {
            dump: 7,
            kind: DumpFrameKind::Segment,
            dataset: 1,
            pass: 2,
            records: builder.records(),
            number,
            checksum: 0,
        };
        [&header.frame(builder.body())[..], builder.body()].concat()
    }

    proptest! {
        #[test]
        fn records_come_back_and_damage_is_noticed(
            records in vec(record(), 0..12),
            number: u64,
            at in any::<prop::sample::Index>(),
            flip in 1..=255_u8,
        ) {
            let bytes = frame(&records, number);
            let (header, body) = read_frame(&mut &bytes[..]).unwrap().unwrap();
            prop_assert_eq!((header.dump, header.number, header.pass), (7, number, 2));
            let mut reader = RecordReader::new(&body);
            for (partition, key, value) in &records {
                let read = reader.next_record().unwrap().unwrap();
                let partition = PartitionId(*partition);
                let value = value.as_deref();
                prop_assert_eq!(read, DumpedRecord { partition, key, value });
            }
            prop_assert!(reader.next_record().unwrap().is_none());
            // Cut short, or with another byte anywhere.
            let at = at.index(bytes.len());
            let cut = read_frame(&mut &bytes[..at]);
            prop_assert!(matches!(&cut, Ok(None)) == (at == 0));
            let mut bent = bytes;
            bent[at] ^= flip;
            prop_assert_eq!(read_frame(&mut &bent[..]).unwrap_err().kind(), ErrorKind::Corrupt);
        }

        #[test]
        fn garbage_is_no_frame_and_no_record(bytes in vec(any::<u8>(), 1..300)) {
            prop_assert!(read_frame(&mut &bytes[..]).is_err());
            // A body with good checksums may be anything all the same.
            let header = SegmentHeader {
                dump: 1, kind: DumpFrameKind::Segment, dataset: 0, pass: 0, records: 1, number: 0,
                checksum: 0,
            };
            let whole = [&header.frame(&bytes)[..], &bytes].concat();
            let _ = read_frame(&mut &whole[..]);
            let mut reader = RecordReader::new(&bytes);
            let mut len = 0;
            while let Ok(Some(record)) = reader.next_record() {
                len += RECORD_HEADER_LEN + record.key.len() + record.value.unwrap_or_default().len();
                prop_assert!(len <= bytes.len());
            }
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
        let mut bytes = frame(&[], 0);
        bytes[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(read_frame(&mut &bytes[..]).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
