//! The shared look-up table: a table in the [arena](crate::layout) of the first bytes of records,
//! which clients on the node's host read for themselves.
//!
//! ```text
//! 0           4 KiB
//! ┌───────────┬───────────────────────────────────────────────────────────┬────────┬── …
//! │ words     │ part 0: slots of 256 bytes │ index │ submission queues    │ part 1 │
//! └───────────┴───────────────────────────────────────────────────────────┴────────┴── …
//! ```
//!
//! Each shard of the node writes a part, and has its [submission queues](crate::submission) beside
//! it. The slots of a part are used in the order in which records are published, so records that
//! were made or looked up together lie together, and a process that reads the table maps few pages.
//! The *index* says which slot has a record: buckets of eight words, of which a record's hash names
//! one; a word has some bits of the hash and the number of the slot.
//!
//! A slot shows one record as it is while a word of the index names the slot: before a record
//! changes, the node retracts it (takes that word away), and publishes the record again when it is
//! next looked up. The bytes of the slot stay there until another record gets it; a reader that has
//! read the word before the change takes them for the record as it was then, which it was when the
//! look-up began. So a client that finds a record in the look-up table has what a look-up at the
//! node would have returned at that time. A record that is not there may exist all the same: ask
//! the node.
//!
//! The index has a word for each record of the node, also for those that no slot shows
//! ([`known_word`]); where a bucket has not enough words for them, one says that there are
//! [`MORE`]. So a client that finds no word of a record's hash in its bucket, and no [`MORE`],
//! knows that there is no such record.
//!
//! Conditions that a reader checks beside the slot: the node lives (the kernel clears
//! [`ALIVE_OFFSET`] when it dies), the slot has the table's [`GENERATION_OFFSET`] (a new one wipes
//! the table), no name-space generation newer than the reader's own is required
//! ([`NAME_SPACE_OFFSET`]), and the time until which the node speaks for its records
//! ([`VALID_OFFSET`]) is not over: a node that was stopped, or cut off from the others, writes
//! nothing to its table when another takes its place. A slot's sequence number is odd while it is
//! being written; a reader compares it before and after it copies.

use samite_types::{DatasetId, PartitionId, Version};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes before the first set.
pub const WORDS_LEN: usize = 4096;
/// Offset of the word that is the thread id of the node's main thread for as long as it lives.
pub const ALIVE_OFFSET: usize = 0;
/// Bits of that word which hold the thread id; the kernel clears them when the thread ends, however it ends.
pub const ALIVE_MASK: u32 = 0x3fff_ffff;
/// Offset of the table's generation, a `u32`.
pub const GENERATION_OFFSET: usize = 128;
/// Offset of the newest name-space generation that is required in any partition, a `u64`.
pub const NAME_SPACE_OFFSET: usize = 256;
/// Offset of the time until which the look-up table may be used, a `u64`: nanoseconds of the host's
/// `CLOCK_MONOTONIC`, [`VALID_ALWAYS`] for no end. Readers read the clock after they have copied a
/// slot.
pub const VALID_OFFSET: usize = 384;
/// Offset of the bits, a `u64`, of the [submission queues](crate::submission) that have an owner:
/// the same in all parts. Changed by the node alone.
pub const OWNED_OFFSET: usize = 512;
/// The time of a node whose records nobody else can take over.
pub const VALID_ALWAYS: u64 = u64::MAX;
/// Words of a bucket.
pub const BUCKET_WORDS: usize = 8;
/// Bytes of a bucket.
pub const BUCKET_LEN: usize = BUCKET_WORDS * size_of::<u64>();
/// Slots of a part for each bucket. Half of the words are to spare, so that buckets seldom overflow.
const SLOTS_PER_BUCKET: u32 = 4;
/// Bytes of a slot.
pub const SLOT_LEN: usize = size_of::<LookupSlot>();
/// Most bytes of a value that a slot shows.
pub const HEAD_LEN: usize = 128;
/// Longest key of a record that is published, in bytes.
pub const KEY_LEN_MAX: usize = 96;
/// Bytes of a node's memory for each byte of slots.
const MEMORY_RATIO: u64 = 16;
/// Most slots of a look-up table.
const SLOTS_MAX: u64 = 1 << 22;
/// Least slots of a part.
const PART_SLOTS_MIN: u64 = 8;

/// Which record of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId<'k> {
    /// Dataset.
    pub dataset: DatasetId,
    /// Partition.
    pub partition: PartitionId,
    /// Key.
    pub key: &'k [u8],
}

impl RecordId<'_> {
    /// Where the index may have the record: the bucket by its low bits, the word in it by the high
    /// ones. Never 0.
    #[must_use]
    pub fn hash(&self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let place = u64::from(self.dataset.get()) << 32 | u64::from(self.partition.get());
        let mut state = place ^ (self.key.len() as u64).wrapping_mul(ODD);
        let mut mix = |word: u64| {
            let product = u128::from(state ^ word) * u128::from(ODD);
            state = (product as u64) ^ (product >> 64) as u64 ^ word.rotate_left(17);
        };
        match self.key.last_chunk() {
            // The last word may repeat some bytes of the one before.
            Some(last) => {
                let (words, _) = self.key[..self.key.len() - 1].as_chunks();
                words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
                mix(u64::from_le_bytes(*last));
            }
            None => mix(self.key.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))),
        }
        mix(ODD);
        state.max(1)
    }
}

/// The word of an index that says: a record of this hash is in that slot. Never 0, which says nothing.
#[must_use]
pub const fn index_word(hash: u64, slot: u32) -> u64 {
    hash & TAG | (slot as u64 + 1)
}

/// The word that says: there is a record of this hash, and no slot shows it.
#[must_use]
pub const fn known_word(hash: u64) -> u64 {
    hash & TAG | UNSHOWN
}

/// The word that says: there are records which no word of this bucket speaks of.
pub const MORE: u64 = UNSHOWN - 1;

/// Bits of a hash that a word has.
const TAG: u64 = !(u32::MAX as u64);
/// Stands for a slot's number where no slot shows the record; no table has so many.
const UNSHOWN: u64 = u32::MAX as u64;

/// The slot in which a word of the index has a record of this hash; `None`: it speaks of another one, or says nothing of a slot.
#[must_use]
pub const fn indexed_slot(word: u64, hash: u64) -> Option<u32> {
    let slot = word & !TAG;
    if word & TAG == hash & TAG && slot < MORE { (slot as u32).checked_sub(1) } else { None }
}

/// Whether there may be a record of this hash where a word says that.
#[must_use]
pub const fn may_know(word: u64, hash: u64) -> bool {
    word == MORE || word != 0 && word & TAG == hash & TAG
}

/// A record as a slot shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupHead {
    /// Version of the record.
    pub version: Version,
    /// Length of its value in bytes.
    pub total_len: u32,
    /// Bytes of the value that are here.
    pub len: usize,
}

/// A slot.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LookupSlot {
    /// Odd while the rest is being written. First, and only ever accessed as an atomic.
    sequence: U32,
    generation: U32,
    version: U64,
    dataset: U32,
    partition: U32,
    total_len: U32,
    key_len: u8,
    head_len: u8,
    spare: [u8; 2],
    key: [u8; KEY_LEN_MAX],
    head: [u8; HEAD_LEN],
}

/// Offset of the sequence number in a slot.
pub const SEQUENCE_OFFSET: usize = 0;

impl LookupSlot {
    /// A slot that shows the first bytes of a value, of which `value` has as many as there are, up to [`HEAD_LEN`]. `None`: the key is too long.
    #[must_use]
    pub fn new(
        id: &RecordId<'_>,
        generation: u32,
        version: Version,
        total_len: u32,
        value: &[u8],
    ) -> Option<Self> {
        let (mut key, mut head) = ([0; KEY_LEN_MAX], [0; HEAD_LEN]);
        key.get_mut(..id.key.len())?.copy_from_slice(id.key);
        let value = &value[..value.len().min(HEAD_LEN)];
        head[..value.len()].copy_from_slice(value);
        Some(Self {
            sequence: 0.into(),
            generation: generation.into(),
            version: version.get().into(),
            dataset: id.dataset.get().into(),
            partition: id.partition.get().into(),
            total_len: total_len.into(),
            key_len: id.key.len() as u8,
            head_len: value.len() as u8,
            spare: [0; 2],
            key,
            head,
        })
    }

    /// The record of `id` in this slot, if it is of this generation of the table, with its bytes
    /// put to the front of `dest`; `None`: the slot shows something else.
    #[must_use]
    pub fn publish(
        &self,
        id: &RecordId<'_>,
        generation: u32,
        dest: &mut [u8; HEAD_LEN],
    ) -> Option<LookupHead> {
        let is_same = self.generation.get() == generation
            && self.dataset.get() == id.dataset.get()
            && self.partition.get() == id.partition.get()
            && self.key.get(..usize::from(self.key_len)) == Some(id.key);
        let head = self.head.get(..usize::from(self.head_len)).filter(|_| is_same)?;
        dest[..head.len()].copy_from_slice(head);
        let version = Version(self.version.get());
        Some(LookupHead { version, total_len: self.total_len.get(), len: head.len() })
    }
}

/// Slots of each of the `parts` parts of the look-up table of a node with `capacity` bytes of
/// memory: a power of two.
#[must_use]
pub(crate) const fn part_slots_for(capacity: u64, parts: u32) -> u32 {
    let wanted = capacity / MEMORY_RATIO / SLOT_LEN as u64;
    let wanted = if wanted < SLOTS_MAX { wanted } else { SLOTS_MAX } / parts as u64;
    let wanted = if wanted > PART_SLOTS_MIN { wanted } else { PART_SLOTS_MIN };
    1 << (63 - wanted.leading_zeros())
}

/// Buckets of a part with so many slots: a power of two.
#[must_use]
pub(crate) const fn buckets_for(part_slots: u32) -> u32 {
    part_slots / SLOTS_PER_BUCKET
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_fills_whole_cache_lines() {
        assert_eq!(SLOT_LEN, 256);
        assert_eq!(std::mem::offset_of!(LookupSlot, sequence), SEQUENCE_OFFSET);
        assert_eq!(std::mem::offset_of!(LookupSlot, head) % 64, 0);
    }

    #[test]
    fn slots_of_a_part_are_a_power_of_two_and_bounded() {
        assert_eq!(part_slots_for(0, 1), 8);
        assert_eq!(part_slots_for(1 << 30, 1), 1 << 18);
        assert_eq!(part_slots_for((1 << 30) + 12345, 1), 1 << 18);
        assert_eq!(part_slots_for(1 << 30, 3), 1 << 16);
        assert_eq!(part_slots_for(1 << 50, 1), 1 << 22);
        assert_eq!(part_slots_for(1 << 50, 64), 1 << 16);
        assert_eq!(buckets_for(8), 2);
    }

    #[test]
    fn words_of_an_index_name_their_slots() {
        let (hash, other) = (0x1234_5678_9abc_def0, 0x1234_5679_9abc_def0);
        for slot in [0, 1, u32::MAX - 4] {
            let word = index_word(hash, slot);
            assert_eq!(indexed_slot(word, hash), Some(slot));
            assert_eq!(indexed_slot(word, other), None);
        }
        assert_eq!(indexed_slot(known_word(hash), hash), None);
        assert!(may_know(known_word(hash), hash) && may_know(index_word(hash, 3), hash));
        assert!(!may_know(known_word(hash), other) && !may_know(0, 7));
        assert!(may_know(MORE, hash) && indexed_slot(MORE, 7).is_none());
        assert_eq!(indexed_slot(0, hash), None);
        assert_eq!(indexed_slot(0, 7), None, "a hash without high bits");
    }

    fn id(key: &[u8]) -> RecordId<'_> {
        RecordId { dataset: DatasetId(7), partition: PartitionId(9), key }
    }

    proptest! {
        /// A slot shows its own record alone, whatever bytes it has.
        #[test]
        fn only_the_same_record_is_shown(
            key in proptest::collection::vec(any::<u8>(), 0..100),
            other in proptest::collection::vec(any::<u8>(), 0..100),
            value in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut dest = [0; HEAD_LEN];
            let slot = LookupSlot::new(&id(&key), 3, Version(5), value.len() as u32, &value);
            prop_assert_eq!(slot.is_some(), key.len() <= KEY_LEN_MAX);
            let Some(slot) = slot else { return Ok(()) };
            let head = slot.publish(&id(&key), 3, &mut dest).unwrap();
            prop_assert_eq!((head.version, head.total_len), (Version(5), value.len() as u32));
            prop_assert_eq!(&dest[..head.len], &value[..value.len().min(HEAD_LEN)]);
            prop_assert_eq!(slot.publish(&id(&other), 3, &mut dest).is_some(), other == key);
            prop_assert_eq!(slot.publish(&id(&key), 4, &mut dest), None);
            let elsewhere = RecordId { partition: PartitionId(8), ..id(&key) };
            prop_assert_eq!(slot.publish(&elsewhere, 3, &mut dest), None);
        }

        /// Shared memory may contain anything; lengths are checked.
        #[test]
        fn garbage_is_no_danger(raw in proptest::collection::vec(any::<u8>(), SLOT_LEN)) {
            let slot = LookupSlot::read_from_bytes(&raw).unwrap();
            let generation = slot.generation.get();
            let _ = slot.publish(&id(b"key"), generation, &mut [0; HEAD_LEN]);
        }
    }
}
