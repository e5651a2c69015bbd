//! Extents: arena memory with an owner count.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use samite_cpu::prefetch;
use samite_wire::limits::BLOCK_LEN;
use samite_wire::op::BlockRef;

use super::Arena;
use super::slab::SlabSlot;

/// A piece of the arena: a whole block, or a slot of a slab. It is freed when its last clone is dropped, on whatever thread.
///
/// Only an extent that nobody shares can be changed, so a clone pins the bytes as they are.
#[derive(Clone)]
pub struct ArenaExtent(Arc<ExtentInner>);

struct ExtentInner {
    arena: Arc<Arena>,
    offset: u64,
    len: u32,
    block: u32,
    /// `None`: the whole block.
    slot: Option<SlabSlot>,
}

impl ArenaExtent {
    /// The whole of a block that was just taken.
    pub(super) fn block(arena: &Arc<Arena>, block: u32) -> Self {
        let offset = arena.block_offset(block);
        let len = BLOCK_LEN as u32;
        Self(Arc::new(ExtentInner { arena: Arc::clone(arena), offset, len, block, slot: None }))
    }

    /// `len` bytes at `start` within the slab block `slab`.
    pub(super) fn slot(slab: &Self, start: u32, len: u32, slot: SlabSlot) -> Self {
        let ExtentInner { arena, offset, block, .. } = &*slab.0;
        debug_assert!(start + len <= slab.0.len);
        Self(Arc::new(ExtentInner {
            arena: Arc::clone(arena),
            offset: offset + u64::from(start),
            len,
            block: *block,
            slot: Some(slot),
        }))
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Never: an extent has bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Offset within the arena, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Whether it is a whole block.
    #[must_use]
    pub fn is_block(&self) -> bool {
        self.0.slot.is_none()
    }

    /// Its bytes. The bytes of a granted block mean something once the client has said that it
    /// filled them.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let at = self.0.arena.mapping.at(self.0.offset, self.len());
        // SAFETY: the extent lies in the mapping, which the arena keeps. The bytes are initialized (the kernel hands out zeros), and
        // change only through `change`, which needs the one owner, so not while this borrow lasts. A client writes only to
        // blocks granted to it, and tells us when it is done.
        unsafe { slice::from_raw_parts(at.as_ptr(), self.len()) }
    }

    /// A reference to `range` of it, for a peer that has mapped the arena: good for as long as its generation stands.
    ///
    /// # Panics
    /// If the range is not within the extent.
    #[must_use]
    pub fn block_ref(&self, range: Range<u32>) -> BlockRef {
        assert!(range.start <= range.end && range.end <= self.0.len);
        BlockRef {
            offset: self.0.offset + u64::from(range.start),
            len: range.end - range.start,
            generation: self.generation(),
        }
    }

    /// Generation of the block it lies in, now.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.0.arena.generation(self.0.block).load(Ordering::Acquire)
    }

    /// Prefetch: it will be referred to soon.
    pub fn expect(&self) {
        prefetch(Arc::as_ptr(&self.0).cast(), size_of::<ExtentInner>());
    }

    /// Whether another clone exists; then it cannot be changed.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Opens it for changing, which readers in other processes see by its generation; `None` if it is shared.
    #[must_use]
    pub fn change(&mut self) -> Option<ExtentChange<'_>> {
        let inner = Arc::get_mut(&mut self.0)?;
        inner.begin();
        Some(ExtentChange(inner))
    }

    /// Marks a block that was just taken as open until [`close_from_client`](Self::close_from_client).
    pub(super) fn open_for_client(&mut self) {
        self.0.begin();
    }

    /// The client is done: from now on the bytes stand still.
    pub fn close_from_client(&mut self) {
        self.0.end();
    }
}

/// An extent being changed, as its bytes. One thread changes the slots of a slab, so that their common generation counts
/// one change at a time.
pub struct ExtentChange<'a>(&'a mut ExtentInner);

impl ExtentInner {
    fn begin(&self) {
        let generation = self.arena.generation(self.block);
        let open = generation.load(Ordering::Relaxed).wrapping_add(1) | 1; // I15
        generation.store(open, Ordering::Relaxed);
        // No byte changes before the generation has.
        fence(Ordering::Release);
    }

    fn end(&self) {
        let generation = self.arena.generation(self.block);
        let closed = (generation.load(Ordering::Relaxed) | 1).wrapping_add(1);
        generation.store(closed, Ordering::Release);
    }
}

impl Deref for ExtentChange<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let at = self.0.arena.mapping.at(self.0.offset, self.0.len as usize);
        // SAFETY: within the mapping; borrowed from the only owner.
        unsafe { slice::from_raw_parts(at.as_ptr(), self.0.len as usize) }
    }
}

impl DerefMut for ExtentChange<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let at = self.0.arena.mapping.at(self.0.offset, self.0.len as usize);
        // SAFETY: within the mapping; mutably borrowed from the only owner, so no slice of it exists in this process. Readers in other
        // processes check the generation after they have copied.
        unsafe { slice::from_raw_parts_mut(at.as_ptr(), self.0.len as usize) }
    }
}

impl Drop for ExtentChange<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Drop for ExtentInner {
    fn drop(&mut self) {
        match &self.slot {
            None => self.arena.free_block(self.block),
            Some(slot) => slot.free(),
        }
    }
}

impl fmt::Debug for ArenaExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extent({}+{})", self.0.offset, self.0.len)
    }
}
