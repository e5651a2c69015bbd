//! Early completions of clients, and the records that are locked for exclusive change meanwhile.

use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{ClientId, Clock, ErrorKind, Redundancy, SystemClock};
use samite_wire::op::Operation;

use super::delegation_holders::LeaseTerm;
use super::{DatasetIndex, OpenPartitions, PlaceId, is_grouped};

impl OpenPartitions {
    /// Applies a submission-queue entry to its partition, by the map under which it was submitted;
    /// `None`: the partition is not here, or not here alone.
    pub(crate) fn apply_submitted(
        &mut self,
        id: PlaceId,
        map: &ClusterMap,
        client: ClientId,
        operation: &Operation<'_>,
        now: Duration,
    ) -> Option<Result<(), ErrorKind>> {
        if self.replica(id).is_none() {
            // The first entry for the partition. Its dataset is known: dataset indexes in use stay
            // what they are.
            let slot =
                self.datasets.binary_search_by_key(&id.0, |open| open.id).ok().map(DatasetIndex)?;
            if id.1.get() >= map.partitions() {
                return None;
            }
            if let Err(kind) = self.open(slot, id.1, (map, SystemClock.monotonic())) {
                return Some(Err(kind));
            }
        }
        let member = &mut self.replica(id)?.member;
        if !member.is_plain() {
            return None;
        }
        let opened = member.partition_mut();
        let before = (opened.record_count(), opened.leaked_orphans());
        let outcome = opened.apply_certain(client, operation, now);
        if operation.takes_delegation() {
            let term = LeaseTerm::of(opened.delegations());
            self.delegation_holders.note(client, term, now);
        }
        self.recount(id, before);
        Some(outcome)
    }

    /// The next submission-queue entry for a partition is about the record at `key`, which is
    /// there.
    pub(crate) fn fetch(&mut self, id: PlaceId, key: &[u8]) {
        if let Some(replica) = self.replica(id) {
            replica.member.partition_mut().fetch(key);
        }
    }

    /// Knows all datasets of a map, so that clients may submit operations on any of them.
    pub(crate) fn know_all(&mut self, map: &ClusterMap) {
        for dataset in map.datasets() {
            self.dataset(map, dataset.id);
        }
    }

    /// Whether some partition of a dataset that keeps each record once has other members by this map all the same: it is about to move.
    pub(crate) fn has_moving(&self, map: &ClusterMap) -> bool {
        is_grouped(map, self.me, Redundancy(1))
    }
}
