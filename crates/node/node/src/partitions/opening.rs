//! Opening partitions: empty ones, those that a log has left, and those that a target remembers.

use std::collections::VecDeque;
use std::time::Duration;

use samite_backend::Backend;
use samite_mirror::MirroredPartition;
use samite_mirror::durable::PlaceId;
use samite_partition::Partition;
use samite_placement::ClusterMap;
use samite_types::{DatasetId, Error, ErrorKind, PartitionId, Result};
use samite_wire::control::{BackendSpec, DurabilityKind};

use super::{
    ClearBatch, DatasetIndex, OpenPartitions, OpenReplica, RecordKeeping, has, push_ready, view_of,
};
use crate::durable::Recovered;
use crate::targets::is_remembered;

impl OpenPartitions {
    /// A member for a partition, empty and in no group yet, for what its log has: records of other
    /// backends than that of memory are not in logs.
    pub(crate) fn new_member(&mut self, id: PlaceId) -> Result<MirroredPartition> {
        let memory = self.targets.get(&BackendSpec::default())?;
        let opened = open_partition(memory, id.0, id.1)?;
        Ok(MirroredPartition::new(opened, id.0, id.1, self.me).with_times(self.times))
    }

    /// Takes over the partitions that a restart has left. From here on partitions may have a log.
    pub(crate) fn recover(&mut self, recovered: Recovered) {
        self.recovered = Some(recovered);
    }

    /// Opens the partitions that a restart has left of the datasets in `map`.
    pub(crate) fn open_recovered(&mut self, map: &ClusterMap, now: Duration) {
        let replicas = self.recovered.iter().flat_map(|left| left.keys().copied());
        for (dataset, partition) in replicas.collect::<Vec<_>>() {
            if let Some(slot) = self.dataset(map, dataset)
                && partition.get() < map.partitions()
                && let Err(error) = self.open(slot, partition, (map, now))
            {
                tracing::error!(%dataset, %partition, ?error, "open what was recovered");
            }
        }
        if let Some(left) = &mut self.recovered {
            left.clear();
        }
    }

    /// Opens the partitions, of those that `is_mine` names, which targets have and of which this
    /// node is a member by `map`. Returns the batches that clear the others.
    pub(crate) fn open_stored(
        &mut self,
        map: &ClusterMap,
        now: Duration,
        is_mine: &dyn Fn(PartitionId) -> bool,
    ) -> Vec<ClearBatch> {
        let mut cleared = Vec::new();
        for known in map.datasets() {
            if known.spec.durability == DurabilityKind::Logged && is_remembered(&known.spec.backend)
            {
                self.dataset(map, known.id);
            }
        }
        for (threads, stored) in self.targets.take_stored() {
            for id in stored.into_iter().filter(|(_, partition)| is_mine(*partition)) {
                let (dataset, partition) = id;
                let slot = self.dataset(map, dataset).filter(|slot| {
                    let group = map.group(self.redundancy(*slot), partition);
                    group.is_some_and(|group| has(group, self.me))
                });
                let Some(slot) = slot else {
                    cleared.push(self.clearings.begin_unopened(id, 0, &threads));
                    continue;
                };
                if let Err(error) = self.open(slot, partition, (map, now)) {
                    tracing::error!(%dataset, %partition, ?error, "open what the target has");
                }
            }
        }
        cleared
    }

    /// The partition, opened if it was not; `partition` is below the map's count.
    pub(crate) fn open(
        &mut self,
        slot: DatasetIndex,
        partition: PartitionId,
        (map, now): (&ClusterMap, Duration),
    ) -> Result<&mut OpenReplica, ErrorKind> {
        if self.datasets[slot.0].replicas[partition.get() as usize].is_none() {
            let mut member = self.member(slot, partition)?;
            let open = &mut self.datasets[slot.0];
            member.set_reads_any(open.reads_any);
            let records = member.partition().record_count();
            let leaked_orphans = member.partition().leaked_orphans();
            (self.records, self.leaked_orphans) =
                (self.records + records, self.leaked_orphans + leaked_orphans);
            if let Some(group) = map.group(open.redundancy, partition) {
                member.configure(&view_of(map, group, (open.id, partition)), now);
            }
            let opened = open.replicas[partition.get() as usize].insert(Box::new(OpenReplica {
                member,
                deferred: VecDeque::new(),
                is_ready: false,
                timer: None,
            }));
            if !opened.member.is_plain() {
                push_ready(&mut self.ready, opened, (open.id, partition));
            }
        }
        // It is there, or was put there.
        let replica = &mut self.datasets[slot.0].replicas[partition.get() as usize];
        replica.as_deref_mut().ok_or(ErrorKind::Internal)
    }

    /// A member with the records and the state that a log or a target has of the partition.
    fn member(
        &mut self,
        slot: DatasetIndex,
        partition: PartitionId,
    ) -> Result<MirroredPartition, ErrorKind> {
        let open = &self.datasets[slot.0];
        let id = (open.id, partition);
        // A change that is asked for again may have been carried out before: it has not failed.
        if matches!(open.keeping, RecordKeeping::Unusable) {
            return Err(ErrorKind::Unavailable);
        }
        if self.clearings.has(id) {
            return Err(ErrorKind::Unavailable);
        }
        let left = self.recovered.as_mut().and_then(|left| left.remove(&id));
        let mut member = match left {
            Some(member) => member,
            None => {
                let target = self.targets.get(&open.backend);
                let opened = target.and_then(|target| open_partition(target, id.0, id.1));
                let opened = opened.map_err(|error| not_opened(&error))?;
                MirroredPartition::new(opened, id.0, id.1, self.me).with_times(self.times)
            }
        };
        match open.keeping {
            RecordKeeping::Log if self.recovered.is_none() => return Err(ErrorKind::Unsupported),
            RecordKeeping::Log => member.set_logs(),
            RecordKeeping::Target(_) => {
                member.recover_committed().map_err(|error| not_opened(&error))?;
                member.set_commits();
            }
            RecordKeeping::Nothing | RecordKeeping::Unusable => {}
        }
        Ok(member)
    }
}

/// What a client is told of a partition that is not open. One whose target did not answer may have
/// carried out a change that is asked for again: that must not be told to have failed.
fn not_opened(error: &Error) -> ErrorKind {
    tracing::error!(%error, "open a partition");
    match error.kind() {
        ErrorKind::Io => ErrorKind::Unavailable,
        kind => kind,
    }
}

fn open_partition(
    backend: &mut dyn Backend,
    dataset: DatasetId,
    partition: PartitionId,
) -> Result<Partition> {
    let store = backend
        .open(dataset, partition)
        .map_err(|error| error.context(format_args!("{dataset} {partition}")))?;
    Ok(Partition::new(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_does_not_answer_is_asked_again() {
        let told = |kind| not_opened(&Error::new(kind, "a read"));
        assert_eq!(told(ErrorKind::Io), ErrorKind::Unavailable);
        assert_eq!(told(ErrorKind::Corrupt), ErrorKind::Corrupt);
    }
}
