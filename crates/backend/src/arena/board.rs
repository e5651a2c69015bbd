//! The node's side of the [board](samite_wire::heads): shows records to clients of the host, and takes them off.
//!
//! Nothing is read back from shared memory. What lies where is known by tags of 15 bits, four to a set, in the node's own memory; two
//! records with the same tag in a set take each other's place. Shards share the board; a bit of the set's tags keeps them apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use samite_types::{Epoch, Version};
use samite_wire::arena::ArenaLayout;
use samite_wire::heads::{
    GENERATION_OFFSET, LEASE_OFFSET, RecordId, SEQUENCE_OFFSET, SET_SLOTS, SLOT_LEN, Slot,
    VALID_ALWAYS, VALID_OFFSET,
};
use zerocopy::IntoBytes;

use super::mapping::Mapping;

const TAG_BITS: u32 = 15;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
/// Set while a shard works on the set.
const BUSY: u64 = 1 << 63;

/// A board, as its node writes it.
pub(super) struct Board {
    mapping: Arc<Mapping>,
    layout: ArenaLayout,
    tags: Box<[AtomicU64]>,
    generation: AtomicU32,
}

/// The tag of a record in its set; never 0.
const fn tag(hash: u64) -> u64 {
    (hash >> 40 & TAG_MASK) | 1
}

const fn slot_of(tags: u64, tag: u64) -> Option<usize> {
    let mut slot = 0;
    while slot < SET_SLOTS {
        if tags >> (slot as u32 * TAG_BITS) & TAG_MASK == tag {
            return Some(slot);
        }
        slot += 1;
    }
    None
}

const fn with_tag(tags: u64, slot: usize, tag: u64) -> u64 {
    let shift = slot as u32 * TAG_BITS;
    tags & !(TAG_MASK << shift) | tag << shift
}

impl Board {
    pub(super) fn new(mapping: Arc<Mapping>, layout: &ArenaLayout) -> Self {
        let tags = (0..layout.board_sets()).map(|_| AtomicU64::new(0)).collect();
        let board = Self { mapping, layout: *layout, tags, generation: AtomicU32::new(0) };
        board.wipe();
        board.set_valid_until(VALID_ALWAYS);
        board
    }

    fn set(&self, hash: u64) -> &AtomicU64 {
        &self.tags[(hash & (self.layout.board_sets() - 1)) as usize]
    }

    /// Keeps other shards off a set. Returns its tags; storing tags lets go of it.
    fn enter(set: &AtomicU64) -> u64 {
        loop {
            let tags = set.load(Ordering::Relaxed) & !BUSY;
            if set
                .compare_exchange_weak(tags, tags | BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return tags;
            }
            std::hint::spin_loop();
        }
    }

    /// A record will soon be taken off the board or shown on it: both write memory that the processor has not seen for long.
    pub(super) fn expect(&self, id: &RecordId<'_>) {
        let hash = id.hash();
        let tags = self.set(hash).load(Ordering::Relaxed);
        if let Some(slot) = slot_of(tags, tag(hash)).or_else(|| slot_of(tags, 0)) {
            let start = self.layout.board_set_offset(hash) + slot * SLOT_LEN;
            self.mapping.prefetch(start, SLOT_LEN);
        }
    }

    /// Takes a record off the board. Whoever looks after this returned does not find it.
    pub(super) fn hide(&self, id: &RecordId<'_>) {
        let hash = id.hash();
        let set = self.set(hash);
        if slot_of(set.load(Ordering::Acquire), tag(hash)).is_none() {
            // Only the record's own shard puts it on the board: it cannot come there meanwhile.
            return;
        }
        let tags = Self::enter(set);
        let Some(slot) = slot_of(tags, tag(hash)) else {
            return set.store(tags, Ordering::Release);
        };
        let nothing = [0; SLOT_LEN];
        self.write(hash, slot, &nothing);
        set.store(with_tag(tags, slot, 0), Ordering::Release);
    }

    /// Shows a record with `value`, the first bytes of its value.
    pub(super) fn show(&self, id: &RecordId<'_>, version: Version, total_len: u32, value: &[u8]) {
        let generation = self.generation.load(Ordering::Relaxed);
        let Some(new) = Slot::new(id, generation, version, total_len, value) else { return };
        let hash = id.hash();
        let set = self.set(hash);
        let tags = Self::enter(set);
        let slot = slot_of(tags, tag(hash))
            .or_else(|| slot_of(tags, 0))
            // Any; the version makes it another one each time.
            .unwrap_or(version.get() as usize % SET_SLOTS);
        self.write(hash, slot, new.as_bytes());
        set.store(with_tag(tags, slot, tag(hash)), Ordering::Release);
    }

    /// Wipes the board.
    pub(super) fn wipe(&self) {
        let generation = self.generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let offset = self.layout.board_offset() as usize + GENERATION_OFFSET;
        self.mapping.word(offset).store(generation, Ordering::SeqCst);
    }

    /// From now on only clients that stand on `epoch` or a newer one may use the board.
    pub(super) fn require_lease(&self, epoch: Epoch) {
        let offset = self.layout.board_offset() as usize + LEASE_OFFSET;
        self.mapping.long_word(offset).fetch_max(epoch.get(), Ordering::SeqCst);
    }

    /// The board may be used until then, on the host's monotonic clock.
    pub(super) fn set_valid_until(&self, nanos: u64) {
        let offset = self.layout.board_offset() as usize + VALID_OFFSET;
        self.mapping.long_word(offset).store(nanos, Ordering::SeqCst);
    }

    /// Writes a slot of a set that this thread has entered; `bytes` are a slot's.
    fn write(&self, hash: u64, slot: usize, bytes: &[u8]) {
        let start = self.layout.board_set_offset(hash) + slot * SLOT_LEN;
        let sequence = self.mapping.word(start + SEQUENCE_OFFSET);
        // A client that garbles the number garbles what it reads itself.
        let before = sequence.load(Ordering::Relaxed) & !1;
        sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let rest = &bytes[size_of::<u32>()..SLOT_LEN];
        let dest = self.mapping.at((start + size_of::<u32>()) as u64, rest.len());
        // SAFETY: the slot lies within the mapping, as the layout says; no other thread of the node writes to it, for this one
        // has entered its set; readers throw away what they copied while the number was odd or changed.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), dest.as_ptr(), rest.len()) };
        // Whoever hears of what follows from this hears of this before.
        sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_find_their_slots() {
        let tags = with_tag(with_tag(0, 0, 5), 3, TAG_MASK);
        assert_eq!(slot_of(tags, 5), Some(0));
        assert_eq!(slot_of(tags, TAG_MASK), Some(3));
        assert_eq!(slot_of(tags, 0), Some(1));
        assert_eq!(slot_of(tags, 7), None);
        assert_eq!(slot_of(with_tag(tags, 0, 0), 5), None);
        assert_eq!(with_tag(tags, 3, TAG_MASK) & BUSY, 0);
        assert_ne!(tag(0), 0);
    }
}
