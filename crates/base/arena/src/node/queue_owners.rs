//! Which connection has which submission queue: known to the node alone, which says in shared
//! memory only which queues there are.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use samite_types::ClientId;

use super::mapping::ArenaMapping;
use crate::layout::ArenaLayout;
use crate::lookup::OWNED_OFFSET;
use crate::submission::QUEUES;

/// Owners of the submission queues, the same in all shards.
pub(super) struct QueueOwners {
    mapping: Arc<ArenaMapping>,
    layout: ArenaLayout,
    owned: AtomicU64,
    owners: [AtomicU64; QUEUES],
    /// Shards that have yet to clear a queue whose connection is gone.
    uncleared: [AtomicU32; QUEUES],
    /// Held while a queue is given away or becomes free.
    changing: Mutex<()>,
}

impl QueueOwners {
    pub(super) fn new(mapping: Arc<ArenaMapping>, layout: &ArenaLayout) -> Self {
        Self {
            mapping,
            layout: *layout,
            owned: AtomicU64::new(0),
            owners: [const { AtomicU64::new(0) }; QUEUES],
            uncleared: [const { AtomicU32::new(0) }; QUEUES],
            changing: Mutex::new(()),
        }
    }

    /// Gives a queue to a connection of this client; `None`: all have an owner.
    pub(super) fn give(&self, client: ClientId) -> Option<usize> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let owned = self.owned.load(Ordering::Relaxed);
        let queue = owned.trailing_ones() as usize;
        let owner = self.owners.get(queue)?;
        owner.store(client.get(), Ordering::Relaxed);
        let shards = self.layout.shards() as u32;
        self.uncleared[queue].store(shards, Ordering::Relaxed);
        self.set_owned(owned | 1 << queue);
        Some(queue)
    }

    /// A shard has cleared a queue whose connection is gone. Once all have, another may get it.
    pub(super) fn cleared(&self, queue: usize) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(uncleared) = self.uncleared.get(queue) else { return };
        let left = uncleared.load(Ordering::Relaxed).saturating_sub(1);
        uncleared.store(left, Ordering::Relaxed);
        if left == 0 {
            self.owners[queue].store(0, Ordering::Relaxed);
            self.set_owned(self.owned.load(Ordering::Relaxed) & !(1 << queue));
        }
    }

    fn set_owned(&self, owned: u64) {
        self.owned.store(owned, Ordering::SeqCst);
        let word = self.layout.lookup_offset() as usize + OWNED_OFFSET;
        self.mapping.long_word(word).store(owned, Ordering::SeqCst);
    }

    /// The queues that have an owner.
    pub(super) fn owned(&self) -> impl Iterator<Item = usize> + use<> {
        let mut owned = self.owned.load(Ordering::SeqCst);
        std::iter::from_fn(move || {
            let queue = owned.trailing_zeros() as usize;
            (owned != 0).then(|| {
                owned &= owned - 1;
                queue
            })
        })
    }

    /// How many queues have an owner.
    pub(super) fn count(&self) -> usize {
        self.owned.load(Ordering::Relaxed).count_ones() as usize
    }

    /// The client of a queue.
    pub(super) fn owner(&self, queue: usize) -> ClientId {
        ClientId(self.owners[queue].load(Ordering::Relaxed))
    }
}
