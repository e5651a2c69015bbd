//! Layout of an arena: the memory file in which a node keeps values and which clients on its host map.
//!
//! ```text
//! 0        4 KiB              a multiple of 4 KiB  a multiple of 2 MiB
//! ┌────────┬──────────────────┬────────────────────┬───────────┬───────────┬──
//! │ header │ generation table │ look-up table      │ block 0   │ block 1   │ …
//! │        │ u32 per block    │ submission queues  │ 64 KiB    │ 64 KiB    │
//! └────────┴──────────────────┴────────────────────┴───────────┴───────────┴──
//! ```
//!
//! **Generations.** A block's generation is even while its bytes stand still and odd while they may
//! change (also for as long as the block is granted to a client). A writer makes it odd before it
//! changes bytes, and even and new after. A reader has a [`BlockRef`](samite_wire::op::BlockRef) with the
//! generation at which it was made, copies, then compares the generation again (acquire fence
//! between the two): the same number means that the copy is whole.
//!
//! **Access.** A client maps the arena for reading. Writable are its own submission queues, and
//! blocks that are granted to it until it hands them in: so a stray pointer of a program reaches
//! nothing that others rely on. The two sides are processes of one user: this is no protection from
//! a program that means harm.
//!
//! A node takes no length or offset from this memory: it has its own copy.

use samite_types::PartitionId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use samite_wire::WireError;
use samite_wire::limits::BLOCK_LEN;

use crate::lookup::{BUCKET_LEN, SLOT_LEN, WORDS_LEN, buckets_for, part_slots_for};
use crate::submission;

/// First bytes of an arena.
pub const MAGIC: [u8; 8] = *b"SMTarena";
/// Version of this layout.
pub const VERSION: u32 = 13;
/// Most shards of a node.
pub const SHARDS_MAX: usize = 64;
/// Where the generation table begins, in bytes.
pub const GENERATIONS_OFFSET: usize = 4096;
/// Each submission queue has pages of its own: its client can write to those, and to nothing beside
/// them.
const PAGE_LEN: u64 = 4096;
const _: () = assert!((submission::TABLE_LEN as u64).is_multiple_of(PAGE_LEN));
/// The first block lies at a multiple of this, in bytes, so that huge pages can hold it.
pub const BLOCKS_ALIGN: usize = 2 << 20;
/// Most blocks of an arena (16 TiB).
pub const BLOCK_COUNT_MAX: u32 = 1 << 28;

/// The header at the start of an arena.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ArenaHeader {
    magic: [u8; 8],
    version: U32,
    block_len: U32,
    total_len: U64,
    block_count: U32,
    shards: U32,
    blocks_offset: U64,
    part_slots: U32,
}

/// Bytes of an [`ArenaHeader`].
pub const HEADER_LEN: usize = size_of::<ArenaHeader>();

/// Where things are in an arena; checked, so that no offset it hands out lies outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    block_count: u32,
    /// Slots of each part of the look-up table: a power of two.
    part_slots: u32,
    shards: u32,
}

impl ArenaLayout {
    /// The layout with `block_count` blocks, for a node of `shards` shards.
    ///
    /// # Errors
    /// [`WireError::OverLimit`]: too many or no blocks or shards.
    pub fn new(block_count: u32, shards: usize) -> Result<Self, WireError> {
        if block_count == 0 || block_count > BLOCK_COUNT_MAX {
            return Err(WireError::OverLimit("arena block count"));
        }
        match u32::try_from(shards) {
            Ok(shards) if shards >= 1 && shards <= SHARDS_MAX as u32 => {
                let part_slots = part_slots_for(block_count as u64 * BLOCK_LEN as u64, shards);
                Ok(Self { block_count, part_slots, shards })
            }
            _ => Err(WireError::OverLimit("arena shard count")),
        }
    }

    /// The same with room for `block_count` blocks, of which the last ones are not used yet. The
    /// look-up table stays as it is.
    ///
    /// # Errors
    /// [`WireError::OverLimit`]: too many blocks, or fewer than before.
    pub fn with_room(self, block_count: u32) -> Result<Self, WireError> {
        if block_count < self.block_count || block_count > BLOCK_COUNT_MAX {
            return Err(WireError::OverLimit("arena block count"));
        }
        Ok(Self { block_count, ..self })
    }

    /// Reads the layout from the first [`HEADER_LEN`] bytes of an arena whose file has `file_len` bytes.
    ///
    /// # Errors
    /// [`WireError`]: not an arena, another version, or lengths that contradict each other.
    pub fn read(header: &[u8], file_len: u64) -> Result<Self, WireError> {
        let (header, _) =
            ArenaHeader::read_from_prefix(header).map_err(|_| WireError::Short("arena header"))?;
        if header.magic != MAGIC {
            return Err(WireError::Unknown("arena magic"));
        }
        if header.version.get() != VERSION || header.block_len.get() as usize != BLOCK_LEN {
            return Err(WireError::Unknown("arena version"));
        }
        let largest = Self::new(header.block_count.get(), header.shards.get() as usize)?;
        let (part_slots, least) = (header.part_slots.get(), part_slots_for(0, largest.shards));
        let lawful = least..=largest.part_slots;
        if !part_slots.is_power_of_two() || !lawful.contains(&part_slots) {
            return Err(WireError::Unknown("arena look-up table"));
        }
        let layout = Self { part_slots, ..largest };
        let agrees = header.total_len.get() == layout.total_len()
            && header.blocks_offset.get() == layout.blocks_offset()
            && file_len >= layout.total_len();
        if agrees { Ok(layout) } else { Err(WireError::Unknown("arena length")) }
    }

    /// The header that says this.
    #[must_use]
    pub fn header(&self) -> ArenaHeader {
        ArenaHeader {
            magic: MAGIC,
            version: VERSION.into(),
            block_len: (BLOCK_LEN as u32).into(),
            total_len: self.total_len().into(),
            block_count: self.block_count.into(),
            shards: self.shards.into(),
            blocks_offset: self.blocks_offset().into(),
            part_slots: self.part_slots.into(),
        }
    }

    /// Blocks.
    #[must_use]
    pub const fn block_count(&self) -> u32 {
        self.block_count
    }

    /// Shards of the node.
    #[must_use]
    pub const fn shards(&self) -> usize {
        self.shards as usize
    }

    /// Bytes of the whole arena; a multiple of [`BLOCKS_ALIGN`], as huge pages want it.
    #[must_use]
    pub const fn total_len(&self) -> u64 {
        (self.blocks_offset() + self.block_count as u64 * BLOCK_LEN as u64)
            .next_multiple_of(BLOCKS_ALIGN as u64)
    }

    /// Offset of the first block, in bytes.
    #[must_use]
    pub const fn blocks_offset(&self) -> u64 {
        let parts_len = self.shards as u64 * self.lookup_part_len();
        (self.lookup_offset() + WORDS_LEN as u64 + parts_len).next_multiple_of(BLOCKS_ALIGN as u64)
    }

    /// Offset of the [shared look-up table](crate::lookup), in bytes.
    #[must_use]
    pub const fn lookup_offset(&self) -> u64 {
        (GENERATIONS_OFFSET as u64 + self.block_count as u64 * 4).next_multiple_of(4096)
    }

    /// Slots of each part of the look-up table: a power of two.
    #[must_use]
    pub const fn lookup_part_slots(&self) -> u32 {
        self.part_slots
    }

    /// Buckets of the index of each part of the look-up table: a power of two.
    #[must_use]
    pub const fn lookup_part_buckets(&self) -> u32 {
        buckets_for(self.lookup_part_slots())
    }

    const fn lookup_slots_len(&self) -> u64 {
        self.lookup_part_slots() as u64 * SLOT_LEN as u64
    }

    const fn lookup_part_len(&self) -> u64 {
        let index_len = self.lookup_part_buckets() as u64 * BUCKET_LEN as u64;
        let table_len = (self.lookup_slots_len() + index_len).next_multiple_of(PAGE_LEN);
        table_len + submission::TABLE_LEN as u64
    }

    /// The part of the look-up table in which records of a partition are published: one for each
    /// shard.
    #[must_use]
    pub const fn lookup_part(&self, partition: PartitionId) -> u32 {
        partition.get() % self.shards
    }

    const fn lookup_part_offset(&self, part: u32) -> u64 {
        self.lookup_offset() + WORDS_LEN as u64 + part as u64 * self.lookup_part_len()
    }

    /// Which bucket of its part's index is that of a hash.
    #[must_use]
    pub const fn lookup_bucket(&self, hash: u64) -> usize {
        hash as usize & (self.lookup_part_buckets() as usize - 1)
    }

    /// Offset of the bucket of a part that is that of a hash, in bytes.
    #[must_use]
    pub const fn lookup_bucket_offset(&self, part: u32, hash: u64) -> usize {
        let index = self.lookup_part_offset(part) + self.lookup_slots_len();
        index as usize + self.lookup_bucket(hash) * BUCKET_LEN
    }

    /// Offset of the [submission queues](crate::submission) beside a part of the look-up table, in
    /// bytes: a multiple of 4 KiB, as their length is.
    #[must_use]
    pub const fn submissions_offset(&self, part: u32) -> usize {
        (self.lookup_part_offset(part) + self.lookup_part_len()) as usize - submission::TABLE_LEN
    }

    /// Offset of a slot of a part, in bytes; `None` if there is no such slot.
    #[must_use]
    pub const fn lookup_slot_offset(&self, part: u32, slot: u32) -> Option<usize> {
        if part < self.shards && slot < self.lookup_part_slots() {
            Some(self.lookup_part_offset(part) as usize + slot as usize * SLOT_LEN)
        } else {
            None
        }
    }

    /// Offset of a block, in bytes; `None` if there is no such block.
    #[must_use]
    pub const fn block_offset(&self, block: u32) -> Option<u64> {
        if block < self.block_count {
            Some(self.blocks_offset() + block as u64 * BLOCK_LEN as u64)
        } else {
            None
        }
    }

    /// The block that holds all of `offset .. offset + len`; `None` if no single block does.
    #[must_use]
    pub const fn block_of(&self, offset: u64, len: u32) -> Option<u32> {
        let Some(within) = offset.checked_sub(self.blocks_offset()) else { return None };
        let block = within / BLOCK_LEN as u64;
        let start = within % BLOCK_LEN as u64;
        if block < self.block_count as u64 && start + len as u64 <= BLOCK_LEN as u64 {
            Some(block as u32)
        } else {
            None
        }
    }

    /// Offset of the generation (a `u32`) of a block, in bytes; `None` if there is no such block.
    #[must_use]
    pub const fn generation_offset(&self, block: u32) -> Option<usize> {
        if block < self.block_count { Some(GENERATIONS_OFFSET + block as usize * 4) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_as_it_was_written() {
        let layout = ArenaLayout::new(1000, 3).unwrap();
        let header = layout.header();
        assert_eq!(ArenaLayout::read(header.as_bytes(), layout.total_len()), Ok(layout));
        assert!(ArenaLayout::read(header.as_bytes(), layout.total_len() - 1).is_err());
        assert!(ArenaLayout::read(&header.as_bytes()[1..], layout.total_len()).is_err());
    }

    #[test]
    fn room_for_more_blocks_leaves_the_tables_as_they_are() {
        let small = ArenaLayout::new(1000, 3).unwrap();
        let large = small.with_room(100_000).unwrap();
        assert_eq!(large.lookup_part_slots(), small.lookup_part_slots());
        assert!(large.block_offset(99_999).is_some() && small.block_offset(1000).is_none());
        let header = large.header();
        assert_eq!(ArenaLayout::read(header.as_bytes(), large.total_len()), Ok(large));
        assert!(large.with_room(99_999).is_err());
        // Whatever a header says of the tables, it is an error or lawful.
        for slots in [0, 1, 2, 4, 12, 1 << 22, 1 << 31, u32::MAX] {
            let mut raw = header.as_bytes().to_vec();
            raw[40..44].copy_from_slice(&slots.to_le_bytes());
            assert!(ArenaLayout::read(&raw, u64::MAX).is_err(), "{slots}");
        }
    }

    #[test]
    fn every_flipped_byte_of_a_header_is_noticed() {
        let layout = ArenaLayout::new(1000, 3).unwrap();
        for at in 0..HEADER_LEN {
            let mut raw = layout.header().as_bytes().to_vec();
            raw[at] ^= 0x40;
            let read = ArenaLayout::read(&raw, layout.total_len());
            // The number of shards is the one field that stands alone.
            assert!(read.is_err() || (28..32).contains(&at), "byte {at}");
        }
    }

    #[test]
    fn offsets_stay_inside() {
        let layout = ArenaLayout::new(2, 1).unwrap();
        let first = layout.block_offset(0).unwrap();
        assert_eq!(first % BLOCKS_ALIGN as u64, 0);
        assert_eq!(layout.block_offset(2), None);
        assert_eq!(layout.generation_offset(2), None);
        assert_eq!(layout.block_of(first, BLOCK_LEN as u32), Some(0));
        assert_eq!(layout.block_of(first + 1, BLOCK_LEN as u32), None);
        assert_eq!(layout.block_of(first - 1, 1), None);
        assert_eq!(layout.block_of(first + BLOCK_LEN as u64, 1), Some(1));
        assert_eq!(layout.block_of(first + 2 * BLOCK_LEN as u64, 0), None);
        assert_eq!(layout.block_of(u64::MAX, 1), None);
    }

    #[test]
    fn parts_of_the_lookup_table_lie_side_by_side() {
        let layout = ArenaLayout::new(1000, 3).unwrap();
        let mut end = layout.lookup_offset() as usize + WORDS_LEN;
        for part in 0..3 {
            assert_eq!(layout.lookup_part(PartitionId(part + 9)), part);
            assert_eq!(layout.lookup_slot_offset(part, 0), Some(end));
            let slots = layout.lookup_part_slots();
            let last = layout.lookup_slot_offset(part, slots - 1).unwrap() + SLOT_LEN;
            assert_eq!(layout.lookup_slot_offset(part, slots), None);
            assert_eq!(layout.lookup_bucket_offset(part, 0), last);
            end = layout.lookup_bucket_offset(part, u64::MAX) + BUCKET_LEN;
            end = end.next_multiple_of(PAGE_LEN as usize);
            assert_eq!(layout.submissions_offset(part), end);
            end += submission::TABLE_LEN;
        }
        assert_eq!(layout.lookup_slot_offset(3, 0), None);
        assert!(end as u64 <= layout.blocks_offset());
    }
}
