//! One target: a map, its quota, and who uses how much of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use samite_arena::Arena;
use samite_types::{DatasetId, PartitionId, Result};

use super::layers::RowLayers;
use super::map::{OrderedMap, row_of};
use super::recent::RecentRows;
use super::row::{STATE_KEY, StateCounts};
use super::store::OrderedStore;
use crate::commit::{CommitTarget, RowChange, StoredPartition, WriteBatch};
use crate::quota::{QuotaLimit, TargetQuota};
use crate::store::RecordStore;
use crate::target::{Backend, BackendOffers, RestartSource, TargetUsage};

/// The bytes that a partition has in the map, as charged.
#[derive(Clone, Copy, Debug, Default)]
struct PartitionCharge {
    committed: u64,
    /// A store has charged what it has now.
    is_open: bool,
}

/// A target that remembers.
#[derive(Debug)]
pub struct OrderedTarget {
    map: Arc<dyn OrderedMap>,
    quota: TargetQuota,
    charges: Mutex<HashMap<StoredPartition, PartitionCharge>>,
    recent: Arc<RecentRows>,
}

impl OrderedTarget {
    /// The target that has its rows in `map`, and may hold `capacity` bytes.
    ///
    /// # Errors
    /// Errors of the map.
    pub fn open(map: Arc<dyn OrderedMap>, capacity: u64) -> Result<Arc<Self>> {
        let (quota, mut charges) = (TargetQuota::new(capacity), HashMap::new());
        for place in map.stored()? {
            // One without a state, or with a damaged one, counts when its records are replaced.
            let row = row_of(&*map, place, &STATE_KEY)?;
            let counts = row.as_deref().and_then(|row| StateCounts::decode(row).ok());
            let committed = counts.map_or(0, |(counts, _)| counts.charged);
            quota.charge(committed, QuotaLimit::Beyond);
            charges.insert(place, PartitionCharge { committed, is_open: false });
        }
        let (charges, recent) = (Mutex::new(charges), Arc::default());
        Ok(Arc::new(Self { map, quota, charges, recent }))
    }

    /// A shard's handle to it.
    #[must_use]
    pub fn backend(self: &Arc<Self>) -> OrderedBackend {
        OrderedBackend { target: Arc::clone(self) }
    }

    pub(super) const fn quota(&self) -> &TargetQuota {
        &self.quota
    }

    pub(super) fn map(&self) -> &Arc<dyn OrderedMap> {
        &self.map
    }

    pub(super) const fn recent(&self) -> &Arc<RecentRows> {
        &self.recent
    }

    fn charges(&self) -> std::sync::MutexGuard<'_, HashMap<StoredPartition, PartitionCharge>> {
        self.charges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A store takes over what the partition has charged.
    fn take_over(&self, place: StoredPartition, charged: u64) {
        let mut charges = self.charges();
        let charge = charges.entry(place).or_default();
        charge.is_open = true;
        self.adjust(charge.committed, charged);
    }

    /// A store is dropped that had charged so much: what is in the map stays.
    pub(super) fn close(&self, place: StoredPartition, charged: u64) {
        let mut charges = self.charges();
        let charge = charges.entry(place).or_default();
        charge.is_open = false;
        self.adjust(charged, charge.committed);
        if charge.committed == 0 {
            charges.remove(&place);
        }
    }

    fn adjust(&self, old: u64, new: u64) {
        self.quota.charge(new, QuotaLimit::Beyond);
        self.quota.uncharge(old);
    }

    /// Takes note of what a partition has in the map.
    fn note_committed(&self, batch: &WriteBatch) {
        let state = batch.rows.binary_search_by(|(key, _)| (**key).cmp(&STATE_KEY));
        let committed = match state.ok().map(|at| &batch.rows[at].1) {
            Some(RowChange::Put(row)) => {
                StateCounts::decode(row).map_or(0, |(counts, _)| counts.charged)
            }
            Some(_) => 0,
            None if batch.clears => 0,
            None => return,
        };
        let mut charges = self.charges();
        let charge = charges.entry(batch.place).or_default();
        let old = std::mem::replace(&mut charge.committed, committed);
        if !charge.is_open {
            self.adjust(old, committed);
            if committed == 0 {
                charges.remove(&batch.place);
            }
        }
    }
}

impl CommitTarget for OrderedTarget {
    fn stored(&self) -> Result<Vec<StoredPartition>> {
        self.map.stored()
    }

    fn commit(&self, batches: &[WriteBatch]) -> Result<()> {
        self.map.commit(batches)?;
        batches.iter().for_each(|batch| self.note_committed(batch));
        Ok(())
    }
}

/// What a target over an ordered map offers.
pub const OFFERS: BackendOffers =
    BackendOffers { values: true, restart: RestartSource::Target, mapping: false, damage: true };

/// A target that remembers, as one shard sees it.
#[derive(Clone, Debug)]
pub struct OrderedBackend {
    target: Arc<OrderedTarget>,
}

impl Backend for OrderedBackend {
    fn open(&mut self, dataset: DatasetId, partition: PartitionId) -> Result<Box<dyn RecordStore>> {
        let (target, place) = (Arc::clone(&self.target), (dataset, partition));
        let row = row_of(&**target.map(), place, &STATE_KEY)?;
        let counts = row.as_deref().map(StateCounts::decode).transpose()?;
        let counts = counts.map(|(counts, _)| counts);
        let layers = RowLayers {
            map: Arc::clone(target.map()),
            place,
            pending: Default::default(),
            committing: None,
            hides_map: counts.is_none(),
        };
        let counts = counts.unwrap_or_default();
        target.take_over(place, counts.charged);
        Ok(Box::new(OrderedStore {
            target,
            place,
            layers,
            counts,
            known_ids: counts.next_id,
            account: Default::default(),
            is_reserved: false,
            damaged: Default::default(),
        }))
    }

    fn usage(&self) -> TargetUsage {
        let quota = self.target.quota();
        TargetUsage { capacity: quota.capacity(), used: quota.used(), populated: 0 }
    }

    fn arena(&self) -> Option<Arc<Arena>> {
        None
    }

    fn handle(&self) -> Box<dyn Backend> {
        Box::new(self.clone())
    }

    fn offers(&self) -> BackendOffers {
        OFFERS
    }

    fn commit_target(&self) -> Option<Arc<dyn CommitTarget>> {
        Some(Arc::clone(&self.target) as Arc<dyn CommitTarget>)
    }
}
