//! Memory for the records of a partition. They stay where they are until they go.

use samite_cpu::prefetch;
use samite_types::Version;

use super::key::RecordKey;
use super::leaves::LeafId;
use super::value::RecordValue;
use crate::record::RecordMeta;

#[derive(Debug, Default)]
pub(super) struct PooledRecord {
    pub(super) version: Version,
    pub(super) value: RecordValue,
}

impl PooledRecord {
    pub(super) const fn meta(&self) -> RecordMeta {
        RecordMeta { version: self.version, len: self.value.len() }
    }
}

/// A record, and how it is found.
#[derive(Debug, Default)]
pub(super) struct PoolEntry {
    pub(super) key: RecordKey<'static>,
    /// The leaf that has its place.
    pub(super) leaf: LeafId,
    pub(super) record: PooledRecord,
}

// The charge for one counts on that.
const _: () = assert!(size_of::<PoolEntry>() <= 248);

/// Where in the pool a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolPosition(u32);

/// Records of one chunk, as many as a word has bits.
const CHUNK_LEN: u32 = u64::BITS;

type Entries = Box<[PoolEntry; CHUNK_LEN as usize]>;

/// Memory for records, in chunks that come and go with them.
#[derive(Debug, Default)]
pub(super) struct RecordPool {
    chunks: Vec<PoolChunk>,
    /// Numbers of the chunks that have free places.
    roomy: Vec<u32>,
    /// Memory of a chunk that needs none now: the next one that does takes it.
    spare: Option<Entries>,
    taken: usize,
}

#[derive(Debug)]
struct PoolChunk {
    /// `None`: all places are free.
    entries: Option<Entries>,
    /// One bit for each place that is free. A free place is empty.
    free: u64,
}

impl PoolPosition {
    /// That of no record.
    pub(super) const NONE: Self = Self(u32::MAX);

    const fn chunk(self) -> usize {
        (self.0 / CHUNK_LEN) as usize
    }

    const fn within(self) -> u32 {
        self.0 % CHUNK_LEN
    }
}

impl RecordPool {
    /// Places that are taken.
    pub(super) const fn len(&self) -> usize {
        self.taken
    }

    pub(super) fn get(&self, place: PoolPosition) -> &PoolEntry {
        let entries = self.chunks[place.chunk()].entries.as_ref();
        &entries.expect("a place that is taken")[place.within() as usize]
    }

    /// Prefetch: a place that is taken will be looked at soon.
    pub(super) fn expect(&self, place: PoolPosition) {
        let entry = self.get(place);
        prefetch(std::ptr::from_ref(entry).cast(), size_of_val(entry));
    }

    pub(super) fn get_mut(&mut self, place: PoolPosition) -> &mut PoolEntry {
        let entries = self.chunks[place.chunk()].entries.as_mut();
        &mut entries.expect("a place that is taken")[place.within() as usize]
    }

    /// Whether the record at `key`, which is not empty as that of a free place is, is there.
    pub(super) fn has(&self, place: PoolPosition, key: &[u8]) -> bool {
        let entries = self.chunks[place.chunk()].entries.as_ref();
        entries.is_some_and(|entries| entries[place.within() as usize].key.as_slice() == key)
    }

    pub(super) fn key(&self, place: PoolPosition) -> &[u8] {
        self.get(place).key.as_slice()
    }

    /// Takes a place, which is empty.
    pub(super) fn take(&mut self) -> PoolPosition {
        let number = self.roomy.last().copied().unwrap_or_else(|| {
            // A record has more bytes than a chunk has numbers for, by far.
            let number = self.chunks.len() as u32;
            self.chunks.push(PoolChunk { entries: None, free: u64::MAX });
            self.roomy.push(number);
            number
        });
        let chunk = &mut self.chunks[number as usize];
        if chunk.entries.is_none() {
            let new = || Box::new(std::array::from_fn(|_| PoolEntry::default()));
            chunk.entries = Some(self.spare.take().unwrap_or_else(new));
        }
        let within = chunk.free.trailing_zeros();
        chunk.free &= chunk.free - 1;
        if chunk.free == 0 {
            self.roomy.pop();
        }
        self.taken += 1;
        PoolPosition(number * CHUNK_LEN + within)
    }

    /// Gives a place back. The record there must be empty.
    pub(super) fn give_back(&mut self, place: PoolPosition) {
        self.get_mut(place).key = RecordKey::default();
        let chunk = &mut self.chunks[place.chunk()];
        if chunk.free == 0 {
            self.roomy.push(place.chunk() as u32);
        }
        chunk.free |= 1 << place.within();
        if chunk.free == u64::MAX {
            self.spare = chunk.entries.take();
        }
        self.taken -= 1;
    }

    /// Whether there is memory for what there is, and for nothing else.
    #[cfg(test)]
    pub(super) fn is_tight(&self) -> bool {
        let places: u32 = self.chunks.iter().map(|chunk| chunk.free.count_zeros()).sum();
        let is_right = |chunk: &PoolChunk| chunk.entries.is_some() == (chunk.free != u64::MAX);
        let roomy = self.chunks.iter().filter(|chunk| chunk.free != 0).count();
        places as usize == self.taken
            && self.chunks.iter().all(is_right)
            && self.roomy.len() == roomy
    }
}
