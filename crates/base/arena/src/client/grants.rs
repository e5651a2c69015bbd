//! Arena blocks that the node has granted to one connection for writes to come.

use std::collections::VecDeque;
use std::sync::Mutex;

use samite_wire::limits::BLOCK_LEN;
use samite_wire::op::BlockRef;
use smallvec::SmallVec;

use super::ArenaView;

/// A whole arena block that this connection may write to until it is sent back in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrant {
    /// Byte offset of the block within the arena.
    pub offset: u64,
    /// The block's generation while granted.
    pub generation: u32,
}

impl BlockGrant {
    /// Whether the other block follows this one in the arena.
    #[must_use]
    pub const fn is_before(&self, other: &Self) -> bool {
        self.offset.wrapping_add(BLOCK_LEN as u64) == other.offset
    }
}

/// A granted block that this process can write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritableBlock(BlockGrant);

impl From<WritableBlock> for BlockGrant {
    fn from(block: WritableBlock) -> Self {
        block.0
    }
}

/// The grants of one connection that no request uses.
#[derive(Debug, Default)]
pub struct GrantPool {
    free: Mutex<FreeGrants>,
}

#[derive(Debug, Default)]
struct FreeGrants {
    /// By offset, as far as they were made writable together: the next one is at the front, so that
    /// making it read-only moves the boundary between two mappings and adds none.
    writable: VecDeque<WritableBlock>,
    /// Made writable all together, when the others do not suffice.
    closed: Vec<BlockGrant>,
}

impl FreeGrants {
    /// Makes all closed grants writable, neighbours together. Where the kernel refuses they stay as
    /// they are.
    fn open(&mut self, arena: &ArenaView) {
        let mut closed = std::mem::take(&mut self.closed);
        closed.sort_unstable_by_key(|grant| grant.offset);
        for run in closed.chunk_by(BlockGrant::is_before) {
            if arena.open_blocks(run) {
                self.writable.extend(run.iter().copied().map(WritableBlock));
            } else {
                self.closed.extend_from_slice(run);
            }
        }
    }
}

impl GrantPool {
    /// Takes `count` grants, which are writable to this process from then on, or none at all when
    /// there are fewer. They are in order, so that neighbours are filled together.
    #[must_use]
    pub fn take(&self, arena: &ArenaView, count: usize) -> Option<SmallVec<[WritableBlock; 16]>> {
        let mut free = self.lock();
        if free.writable.len() < count {
            if free.writable.len() + free.closed.len() < count {
                return None;
            }
            free.open(arena);
        }
        (free.writable.len() >= count).then(|| free.writable.drain(..count).collect())
    }

    /// Adds grants from a reply's `grants` or a `Granted` answer, or puts back those that a request did not send.
    pub fn add(&self, grants: impl IntoIterator<Item = BlockGrant>) {
        self.lock().closed.extend(grants);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let free = self.lock();
        free.writable.len() + free.closed.len()
    }

    /// None left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FreeGrants> {
        // A panic may lose grants, which the node frees with the connection.
        self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl From<BlockRef> for BlockGrant {
    fn from(block: BlockRef) -> Self {
        Self { offset: block.offset, generation: block.generation }
    }
}

impl From<(u64, u32)> for BlockGrant {
    fn from((offset, generation): (u64, u32)) -> Self {
        Self { offset, generation }
    }
}
