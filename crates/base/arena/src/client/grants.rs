//! Arena blocks that the node has granted to one connection for writes to come.

use std::sync::Mutex;

use samite_wire::op::BlockRef;
use smallvec::SmallVec;

/// A whole arena block that this connection may write to until it is sent back in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrant {
    /// Byte offset of the block within the arena.
    pub offset: u64,
    /// The block's generation while granted.
    pub generation: u32,
}

/// The grants of one connection that no request uses. Last in, first out: that block is warm in the cache.
#[derive(Debug, Default)]
pub struct GrantPool {
    free: Mutex<Vec<BlockGrant>>,
}

impl GrantPool {
    /// Takes `count` grants, or none at all when there are fewer; by offset, so that neighbours
    /// are filled together.
    #[must_use]
    pub fn take(&self, count: usize) -> Option<SmallVec<[BlockGrant; 16]>> {
        let mut free = self.lock();
        let rest = free.len().checked_sub(count)?;
        let mut taken: SmallVec<_> = free.drain(rest..).collect();
        taken.sort_unstable_by_key(|grant: &BlockGrant| grant.offset);
        Some(taken)
    }

    /// Adds grants from a reply's `grants` or a `Granted` answer, or puts back those that a request did not send.
    pub fn add(&self, grants: impl IntoIterator<Item = BlockGrant>) {
        self.lock().extend(grants);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// None left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<BlockGrant>> {
        // A panic cannot leave the list half-changed.
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
