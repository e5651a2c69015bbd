//! Opening partitions, and letting go of them.

use std::collections::VecDeque;

use samite_mirror::MirroredPartition;
use samite_partition::Partition;
use samite_types::{ErrorKind, Result};
use samite_wire::control::{DatasetSpec, ReadsKind};

use super::{SimNode, SimPartition, SlotId};
use crate::process::ProcessContext;

impl SimNode {
    /// A partition is not this node's any more.
    pub(super) fn let_go(&mut self, slot_id: SlotId, is_stored: bool) {
        let gone = self.slots.remove(&slot_id);
        let is_open = gone.is_some();
        if let Some(flash) = self.flash.as_mut().filter(|_| is_open) {
            flash.discard(slot_id);
        }
        if let Some(target) = self.target.as_mut().filter(|_| is_open || is_stored) {
            let records = gone.map(|slot| slot.mirrored);
            let is_committing = records.is_some_and(|mut member| {
                let records = member.partition_mut().commits();
                records.is_some_and(|records| records.is_committing())
            });
            target.clear(slot_id, u32::from(is_committing));
        }
    }

    pub(super) fn open(&mut self, slot_id: SlotId, spec: &DatasetSpec) -> Result<SimPartition> {
        if self.target.as_ref().is_some_and(|target| target.clears(slot_id)) {
            return Err(ErrorKind::Unavailable.into());
        }
        let mut mirrored = match self.recovered.remove(&slot_id) {
            Some(member) => member,
            None => self.member(slot_id)?,
        };
        if self.flash.is_some() {
            mirrored.set_logs();
        }
        if self.target.is_some() {
            mirrored.recover_committed()?;
            mirrored.set_commits();
        }
        mirrored.set_reads_any(spec.reads == ReadsKind::Any);
        Ok(SimPartition { mirrored, redundancy: spec.redundancy, held: VecDeque::new() })
    }

    pub(super) fn member(&self, (dataset, partition): SlotId) -> Result<MirroredPartition> {
        let store = self.backend.handle().open(dataset, partition)?;
        let member = MirroredPartition::new(Partition::new(store), dataset, partition, self.me);
        Ok(member.with_rules(self.rules.mirror()))
    }

    /// Some of its calls may fail, and its disk be full, until all is well.
    pub(super) fn trouble(&self, context: &ProcessContext<'_>) {
        let now = context.world_now;
        if now >= self.well_at {
            self.failure.set(0);
        }
        context.disk.rows.set_full(self.full.iter().any(|(from, to)| now >= *from && now < *to));
    }
}
