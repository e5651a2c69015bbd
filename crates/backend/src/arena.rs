//! The arena.
use samite_types::Result;
use samite_wire::arena::ArenaLayout;
use samite_wire::op::BlockRef;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
/// Memory for values, mapped by the node and by clients on its host.
#[derive(Debug)]
pub struct Arena;
/// Arena memory, freed when its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Extent(Arc<()>);
impl Arena {
    /// An arena of at least one block.
    pub fn create(_capacity_bytes: u64, _shards: usize) -> Result<Arc<Self>> {
        todo!()
    }
    /// The memory file, to be sent to clients.
    pub fn fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
    /// Where things are in it.
    pub fn layout(&self) -> ArenaLayout {
        todo!()
    }
    /// The word of a shard ([`samite_wire::arena::SLEEPING`] or `AWAKE`); `shard` is below the number given to `create`.
    pub fn shard_word(&self, _shard: usize) -> &AtomicU32 {
        todo!()
    }
    /// Up to `count` blocks for a client to fill; fewer when the target is nearly full.
    pub fn grant(self: &Arc<Self>, _count: usize) -> Vec<Extent> {
        todo!()
    }
}
impl Extent {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        Arc::strong_count(&self.0)
    }
    /// Never: an extent has bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Offset within the arena, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        todo!()
    }
    /// Its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        todo!()
    }
    /// A reference to `range` of it, for a peer that has mapped the arena.
    #[must_use]
    pub fn block_ref(&self, _range: Range<u32>) -> BlockRef {
        todo!()
    }
}
