//! Where a partition's records get their memory, and how it is charged.

use std::fmt;
use std::sync::Arc;

use samite_arena::node::{Arena, ArenaExtent, BLOCK_CHARGE, SlabPool, SlotCounts, class_of};
use samite_types::{Error, Result};

use super::value::{HEAP_LEN_MAX, NEAR_LEN_MAX};
use crate::quota::{QuotaAccount, TargetQuota};

/// Charge of a record beside its key and values outside the record, in bytes: 248 of its own in a
/// pool that may have holes, and its place in a leaf (those are about two thirds full).
pub(super) const RECORD_CHARGE: u64 = 304;
/// Charge of a small value beside its bytes: their count and the allocator's own.
const HEAP_CHARGE: u64 = 32;

/// Bytes charged for `len` bytes on the heap.
pub(super) const fn heap_charge(len: usize) -> u64 {
    HEAP_CHARGE + len as u64
}

/// Space that some changes will take.
#[derive(Debug, Default)]
pub(super) struct SpaceDemand {
    heap: u64,
    blocks: u64,
    slots: SlotCounts,
}

impl SpaceDemand {
    /// Whether it takes nothing of the arena, of which there is no more than the target has.
    pub(super) fn is_of_heap(&self) -> bool {
        self.blocks == 0 && self.slots == SlotCounts::default()
    }

    /// Adds heap bytes.
    pub(super) fn add_heap(&mut self, bytes: u64) {
        self.heap += bytes;
    }

    /// Adds the storage of a part of a value: `len` bytes, none for what a record keeps itself.
    pub(super) fn add_storage(&mut self, len: u32) {
        match class_of(len) {
            _ if len <= NEAR_LEN_MAX => {}
            _ if len <= HEAP_LEN_MAX => self.heap += heap_charge(len as usize),
            Some(class) => self.slots[class] += 1,
            None => self.blocks += 1,
        }
    }
}

/// The memory of one partition in one target.
pub(super) struct PartitionSpace {
    arena: Arc<Arena>,
    quota: Arc<TargetQuota>,
    pool: Arc<SlabPool>,
    account: QuotaAccount,
    /// Charged for records and small values.
    heap: u64,
}

impl PartitionSpace {
    pub(super) fn new(arena: Arc<Arena>, quota: Arc<TargetQuota>, pool: Arc<SlabPool>) -> Self {
        Self { arena, quota, pool, account: QuotaAccount::default(), heap: 0 }
    }

    /// The account of what it has charged and not used, and the target's quota.
    pub(super) fn account(&mut self) -> (&mut QuotaAccount, &TargetQuota) {
        (&mut self.account, &self.quota)
    }

    /// The target's quota.
    pub(super) fn quota(&self) -> &TargetQuota {
        &self.quota
    }

    /// Charges heap bytes.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn charge_heap(&mut self, bytes: u64) -> Result<()> {
        if !self.account.spend(&self.quota, bytes) {
            return Err(self.full());
        }
        self.heap += bytes;
        Ok(())
    }

    /// Gives back heap bytes.
    pub(super) fn free_heap(&mut self, bytes: u64) {
        debug_assert!(self.heap >= bytes);
        self.heap -= bytes;
        self.quota.uncharge(bytes);
    }

    /// Arena memory for `len` bytes, at most a block.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn extent(&mut self, len: u32) -> Result<ArenaExtent> {
        let Self { arena, quota, pool, account, .. } = self;
        let mut charge = || account.spend(quota, BLOCK_CHARGE);
        let extent = match class_of(len) {
            Some(class) => pool.take(arena, class, charge),
            None => charge().then(|| arena.block()),
        };
        extent.ok_or_else(|| self.full())
    }

    /// Bytes to charge for `demand`.
    pub(super) fn charge_for(&self, demand: &SpaceDemand) -> u64 {
        demand.heap + (demand.blocks + self.pool.blocks_for(&demand.slots)) * BLOCK_CHARGE
    }

    /// The error that says how full the target is.
    pub(super) fn full(&self) -> Error {
        self.quota.full()
    }
}

impl Drop for PartitionSpace {
    fn drop(&mut self) {
        self.account.close(&self.quota);
        self.quota.uncharge(self.heap);
    }
}

impl fmt::Debug for PartitionSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Space({} B on the heap, {:?})", self.heap, self.arena)
    }
}
