//! Going through all open partitions, one after the other.

use samite_types::{DatasetId, PartitionId};

use super::{OpenPartitions, PlaceId};

impl OpenPartitions {
    /// Records that are damaged.
    pub(crate) fn damaged(&self) -> u64 {
        let replicas = self.datasets.iter().flat_map(|open| open.replicas.iter().flatten());
        replicas.map(|replica| replica.member.damaged() as u64).sum()
    }

    /// How many members of partitions whose primary is here wait for room.
    pub(crate) fn lacking_room(&self) -> usize {
        let grouped = self.datasets.iter().filter(|open| open.is_grouped);
        let replicas = grouped.flat_map(|open| open.replicas.iter().flatten());
        replicas.map(|replica| replica.member.lacking_room().count()).sum()
    }

    /// The first open partition behind `after`, of `dataset` if one is named.
    pub(crate) fn place_after(
        &self,
        after: Option<PlaceId>,
        dataset: Option<DatasetId>,
    ) -> Option<PlaceId> {
        let opened = self.datasets.iter().flat_map(|open| {
            let replicas = open.replicas.iter().zip(0..).filter(|(replica, _)| replica.is_some());
            replicas.map(|(_, partition)| (open.id, PartitionId(partition)))
        });
        let mut wanted = opened.filter(|id| dataset.is_none_or(|dataset| id.0 == dataset));
        wanted.find(|id| after.is_none_or(|after| *id > after))
    }
}
