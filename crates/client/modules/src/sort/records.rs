//! Sorting of fixed-size records in memory.

use std::cmp::Ordering;
use std::ops::Range;

use super::compare::{SortOrder, first_bytes};

/// Bits of the first bytes by which records are scattered before they are sorted.
const BUCKET_BITS: u32 = 11;
/// Bytes of a key that are sorted beside the position of its record.
const SHORT_LEN: usize = 12;
/// Records fewer than this are not scattered.
const FEW: usize = 1 << 14;

/// The order of records of one length by a range of their bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RecordOrder {
    len: usize,
    key: Range<usize>,
}

impl RecordOrder {
    /// Records of `len` bytes, whose key are the bytes `key`; `None` if they are not in a record.
    #[must_use]
    pub fn new(len: usize, key: Range<usize>) -> Option<Self> {
        let is_inside = len > 0 && key.start <= key.end && key.end <= len;
        is_inside.then_some(RecordOrder { len, key })
    }

    /// Length of a record, in bytes.
    #[must_use]
    pub fn record_len(&self) -> usize {
        self.len
    }

    /// Writes the records of `records` to `out`, in order; those with the same key keep theirs.
    ///
    /// # Panics
    /// The two differ in length, the length is no multiple of a record's, or there are more than
    /// `u32::MAX` records.
    pub fn sort(&self, records: &[u8], out: &mut [u8]) {
        assert_eq!(records.len(), out.len(), "there is room for all");
        assert!(records.len().is_multiple_of(self.len), "records are whole");
        let count = u32::try_from(records.len() / self.len).expect("positions fit 32 bits");
        let key_of = |index: u32| {
            let start = index as usize * self.len;
            &records[start + self.key.start..start + self.key.end]
        };
        let mut entries = self.entries(records, count);
        let compare = |one: &u128, other: &u128| {
            let short = (one >> 32).cmp(&(other >> 32));
            // The position is in the low bits.
            short.then_with(|| key_of(*one as u32).cmp(key_of(*other as u32))).then(one.cmp(other))
        };
        let is_short = self.key.len() <= SHORT_LEN;
        for bucket in bucket_ranges(&mut entries) {
            match is_short {
                true => bucket.sort_unstable(),
                false => bucket.sort_unstable_by(compare),
            }
        }
        gather(records, &entries, self.len, out);
    }

    /// First bytes of the key and position of each record, scattered by the first bits.
    fn entries(&self, records: &[u8], count: u32) -> Vec<u128> {
        let (start, len) = (self.key.start, self.key.len());
        let each = records.chunks_exact(self.len).zip(0..count);
        let entry = |(record, index): (&[u8], u32)| {
            u128::from(index) | (short_key(&record[start..start + len]) << 32)
        };
        if (count as usize) < FEW {
            return each.map(entry).collect();
        }
        let mut starts = vec![0_usize; (1 << BUCKET_BITS) + 1];
        for record in records.chunks_exact(self.len) {
            starts[bucket_of(first_bytes(&record[start..start + len])) + 1] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut entries = vec![0_u128; count as usize];
        for item in each {
            let entry = entry(item);
            let next = &mut starts[bucket_of((entry >> 64) as u64)];
            entries[*next] = entry;
            *next += 1;
        }
        entries
    }

    /// Up to `count` records, evenly spread over `records`.
    #[must_use]
    pub fn sample(&self, records: &[u8], count: usize) -> Vec<Vec<u8>> {
        let records = records.chunks_exact(self.len);
        let step = records.len().div_ceil(count.max(1)).max(1);
        records.skip(step / 2).step_by(step).map(<[u8]>::to_vec).collect()
    }

    /// Cuts sorted records: one range of bytes more than there are `splitters`.
    #[must_use]
    pub fn ranges(&self, sorted: &[u8], splitters: &[Vec<u8>]) -> Vec<Range<usize>> {
        let mut ranges = Vec::with_capacity(splitters.len() + 1);
        let mut start = 0;
        for splitter in splitters {
            let (mut low, mut high) = (start / self.len, sorted.len() / self.len);
            while low < high {
                let middle = low.midpoint(high);
                let record = &sorted[middle * self.len..(middle + 1) * self.len];
                match self.compare(record, splitter) {
                    Ordering::Less => low = middle + 1,
                    Ordering::Equal | Ordering::Greater => high = middle,
                }
            }
            ranges.push(start..low * self.len);
            start = low * self.len;
        }
        ranges.push(start..sorted.len());
        ranges
    }
}

impl SortOrder for RecordOrder {
    fn compare(&self, one: &[u8], other: &[u8]) -> Ordering {
        one[self.key.clone()].cmp(&other[self.key.clone()])
    }

    fn prefix(&self, record: &[u8]) -> u64 {
        first_bytes(&record[self.key.clone()])
    }

    fn is_unique(&self) -> bool {
        false
    }
}

/// The first 12 bytes, as a number of 96 bits.
fn short_key(key: &[u8]) -> u128 {
    let mut short = [0; 16];
    let len = key.len().min(SHORT_LEN);
    short[4..4 + len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(short)
}

/// `first`: the first eight bytes of a key.
fn bucket_of(first: u64) -> usize {
    (first >> (64 - BUCKET_BITS)) as usize
}

/// Cuts scattered entries at the ends of buckets.
fn bucket_ranges(entries: &mut [u128]) -> Vec<&mut [u128]> {
    if entries.len() < FEW {
        return vec![entries];
    }
    let same =
        |one: &u128, other: &u128| bucket_of((one >> 64) as u64) == bucket_of((other >> 64) as u64);
    entries.chunk_by_mut(same).collect()
}

/// Copies records in the order of `entries`, whose low bits are positions.
fn gather(records: &[u8], entries: &[u128], len: usize, out: &mut [u8]) {
    for (entry, out) in entries.iter().zip(out.chunks_exact_mut(len)) {
        let start = *entry as u32 as usize * len;
        out.copy_from_slice(&records[start..start + len]);
    }
}
