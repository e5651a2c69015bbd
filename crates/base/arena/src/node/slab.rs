//! Slabs: blocks cut into equal slots, for values between 1 KiB and half a block.
//!
//! Slot lengths are a block divided by a small number, so a slot wastes at most about a third of itself (a value over half a block
//! takes a whole one). A slab belongs to one pool, a pool to one shard's handle: one thread takes and changes slots; any thread may
//! free them. A slab whose slots are all free goes back to the arena at once.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use samite_wire::limits::BLOCK_LEN;

use super::{Arena, ArenaExtent};

/// Slots per slab, by class, from the shortest slots to the longest. At most 64: the free ones are bits of a word.
const SLOTS: [u32; 14] = [60, 42, 32, 24, 20, 16, 12, 10, 8, 6, 5, 4, 3, 2];
const CLASSES: usize = SLOTS.len();
/// A number of slots for each class.
pub type SlotCounts = [u32; CLASSES];
/// Slots begin at multiples of a cache line.
const SLOT_ALIGN: u32 = 64;
/// Bytes of a slot, by class.
const SLOT_LEN: [u32; CLASSES] = {
    let mut lens = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        lens[class] = BLOCK_LEN as u32 / SLOTS[class] / SLOT_ALIGN * SLOT_ALIGN;
        class += 1;
    }
    lens
};

/// Longest slot, in bytes. Anything longer takes a whole block.
pub const SLOT_LEN_MAX: u32 = SLOT_LEN[CLASSES - 1];

/// The class whose slots hold `len` bytes best; `None` if it takes a whole block.
#[must_use]
pub fn class_of(len: u32) -> Option<usize> {
    SLOT_LEN.iter().position(|slot_len| *slot_len >= len)
}

/// Slabs of all classes.
pub struct SlabPool {
    state: Mutex<SlabState>,
}

#[derive(Default)]
struct SlabState {
    slabs: Vec<Slab>,
    /// Places in `slabs` that can be used again.
    vacant: Vec<u32>,
    /// For each class, slabs with a free slot; the last is taken from first.
    partial: [Vec<u32>; CLASSES],
    /// For each class, free slots.
    free_slots: SlotCounts,
}

struct Slab {
    /// `None`: a vacant place.
    block: Option<ArenaExtent>,
    class: usize,
    /// One bit for each free slot.
    free: u64,
    /// Where it is in `partial`, while a slot is free.
    partial_at: usize,
}

/// A taken slot; what an extent needs to free it.
pub(super) struct SlabSlot {
    pool: Arc<SlabPool>,
    slab: u32,
    index: u32,
}

impl SlabPool {
    /// A pool without slabs.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, SlabState> {
        // Nothing panics between a change of the state and the end of it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that taking `wanted` slots of each class would need beside the slabs that are there.
    #[must_use]
    pub fn blocks_for(&self, wanted: &SlotCounts) -> u64 {
        let state = self.state();
        let missing = wanted.iter().zip(&state.free_slots).zip(&SLOTS);
        missing
            .map(|((wanted, free), slots)| u64::from(wanted.saturating_sub(*free).div_ceil(*slots)))
            .sum()
    }

    /// Takes a slot; when no slab of the class has one free, it takes a block of `arena` that `charge` has charged.
    pub fn take(
        self: &Arc<Self>,
        arena: &Arc<Arena>,
        class: usize,
        charge: impl FnOnce() -> bool,
    ) -> Option<ArenaExtent> {
        let mut state = self.state();
        let slab = match state.partial[class].last() {
            Some(slab) => *slab,
            None if charge() => state.add(class, arena.block()),
            None => return None,
        };
        let index = state.take_slot(slab);
        let slot = SlabSlot { pool: Arc::clone(self), slab, index };
        let block = state.slabs[slab as usize].block.as_ref().expect("a slab with slots");
        let len = SLOT_LEN[class];
        Some(ArenaExtent::slot(block, index * len, len, slot))
    }
}

impl SlabState {
    fn add(&mut self, class: usize, block: ArenaExtent) -> u32 {
        let free = u64::MAX >> (64 - SLOTS[class]);
        let slab = Slab { block: Some(block), class, free, partial_at: self.partial[class].len() };
        self.free_slots[class] += SLOTS[class];
        let id = if let Some(id) = self.vacant.pop() {
            self.slabs[id as usize] = slab;
            id
        } else {
            self.slabs.push(slab);
            // One slab per block, and blocks are counted in a u32.
            (self.slabs.len() - 1) as u32
        };
        self.partial[class].push(id);
        id
    }

    /// Takes a slot of the last partial slab of its class.
    fn take_slot(&mut self, id: u32) -> u32 {
        let slab = &mut self.slabs[id as usize];
        let index = slab.free.trailing_zeros();
        slab.free &= slab.free - 1;
        self.free_slots[slab.class] -= 1;
        if slab.free == 0 {
            let popped = self.partial[slab.class].pop();
            debug_assert_eq!(popped, Some(id));
        }
        index
    }

    /// Frees a slot; returns the block if it was the slab's last one.
    fn free_slot(&mut self, id: u32, index: u32) -> Option<ArenaExtent> {
        let slab = &mut self.slabs[id as usize];
        let class = slab.class;
        debug_assert_eq!(slab.free & (1 << index), 0);
        if slab.free == 0 {
            slab.partial_at = self.partial[class].len();
            self.partial[class].push(id);
        }
        slab.free |= 1 << index;
        self.free_slots[class] += 1;
        if slab.free.count_ones() < SLOTS[class] {
            return None;
        }
        let (block, at) = (slab.block.take(), slab.partial_at);
        self.partial[class].swap_remove(at);
        if let Some(moved) = self.partial[class].get(at) {
            self.slabs[*moved as usize].partial_at = at;
        }
        self.free_slots[class] -= SLOTS[class];
        self.vacant.push(id);
        block
    }
}

impl SlabSlot {
    pub(super) fn free(&self) {
        let block = self.pool.state().free_slot(self.slab, self.index);
        // Goes back to the arena here, after the lock.
        drop(block);
    }
}

impl fmt::Debug for SlabPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlabPool({} slabs)", self.state().slabs.len())
    }
}
