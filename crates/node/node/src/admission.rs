//! Admission of data requests: may this node carry them out, by the newest map that it has, and may
//! its member of the group?
//!
//! Nothing here changes anything: a request that is refused has had no effect.

use samite_mirror::ApplyTime;
use samite_placement::ClusterMap;
use samite_types::{Epoch, ErrorKind, NodeId, Redundancy, TargetId};
use samite_wire::op::Operation;

/// The properties of a dataset that admission goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatasetPolicy {
    /// Targets that have each record.
    pub redundancy: Redundancy,
    /// Members that are not the primary answer reads.
    pub reads_any: bool,
    /// A client has frozen it: nothing changes its records.
    pub is_frozen: bool,
}

impl DatasetPolicy {
    /// Whether the operations have to wait until the dataset is frozen no more.
    pub(crate) fn holds_back(&self, operations: &[Operation<'_>]) -> bool {
        self.is_frozen && operations.iter().any(Operation::is_mutation)
    }
}

/// A member of a group, as far as admission goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberStanding {
    pub is_primary: bool,
    /// A primary that still takes what other members have.
    pub is_catching_up: bool,
    /// It may answer the operation at hand, which only reads, also when it is not the primary.
    pub may_read: bool,
    /// There are other members by the map.
    pub has_others: bool,
    /// One more reply to such a request can be deferred.
    pub has_room: bool,
}

/// Admission by one map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionControl<'m> {
    map: &'m ClusterMap,
    node: NodeId,
    /// The client has a newer map.
    is_behind: bool,
}

impl<'m> AdmissionControl<'m> {
    /// By `map` at `node`, for a request that was sent by the map of epoch `sent_by`.
    pub(crate) fn new(map: &'m ClusterMap, node: NodeId, sent_by: Epoch) -> Self {
        Self { map, node, is_behind: sent_by > map.epoch() }
    }

    /// The answer about a dataset that the map does not have. A client with a newer map knows
    /// better: it is to ask again when that map has come here too.
    pub(crate) const fn unknown_dataset(&self) -> ErrorKind {
        if self.is_behind { ErrorKind::Busy } else { ErrorKind::NotFound }
    }

    /// Whether operations on a dataset are this node's.
    ///
    /// # Errors
    /// `StaleMap`: another node's; `Busy`: perhaps, by a newer map, or not while the dataset is
    /// frozen; `Invalid`: there is no such partition.
    pub(crate) fn check(
        &self,
        dataset: DatasetPolicy,
        operations: &[Operation<'_>],
    ) -> Result<(), ErrorKind> {
        for operation in operations {
            match self.map.node_of(dataset.redundancy, operation.partition) {
                Some(node) if node == self.node => {}
                Some(_) if self.may_read(dataset, operation) => {}
                Some(_) if self.is_behind => return Err(ErrorKind::Busy),
                Some(_) => return Err(ErrorKind::StaleMap),
                None => return Err(ErrorKind::Invalid),
            }
        }
        if dataset.holds_back(operations) {
            return Err(ErrorKind::Busy);
        }
        Ok(())
    }

    /// Whether this node, which is not the primary, may answer an operation as a member.
    fn may_read(&self, dataset: DatasetPolicy, operation: &Operation<'_>) -> bool {
        let me = TargetId(self.node.get());
        let group = || self.map.group(dataset.redundancy, operation.partition);
        dataset.reads_any
            && operation.only_reads()
            && group().is_some_and(|group| group.members.iter().any(|one| one.target == me))
    }
}

/// Whether an operation on the partition of a member may be tried `at` this time.
///
/// # Errors
/// `Busy`: not now; `StaleMap`: another node's.
pub(crate) fn check_member(member: MemberStanding, at: ApplyTime) -> Result<(), ErrorKind> {
    if member.is_catching_up {
        return Err(ErrorKind::Busy);
    }
    if !member.is_primary && !member.may_read {
        return Err(ErrorKind::StaleMap);
    }
    let has_lease = member.may_read || !member.has_others || at.now < at.lease_until;
    if has_lease && member.has_room { Ok(()) } else { Err(ErrorKind::Busy) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use samite_types::PartitionId;
    use samite_wire::op::Action;

    use super::*;
    use crate::test_map::{PARTITIONS, three_nodes};

    fn dataset(reads_any: bool) -> DatasetPolicy {
        DatasetPolicy { redundancy: Redundancy(2), reads_any, is_frozen: false }
    }

    fn get(partition: u32) -> [Operation<'static>; 1] {
        [Operation::new(PartitionId(partition), [Action::Get { key: b"k", offset: 0, len: 1 }])]
    }

    fn delete(partition: u32) -> [Operation<'static>; 1] {
        [Operation::new(PartitionId(partition), [Action::Delete { key: b"k" }])]
    }

    #[test]
    fn a_node_serves_what_the_map_gives_it_and_reads_of_its_members() {
        let map = three_nodes();
        for (partition, node) in (0..PARTITIONS).flat_map(|p| (0..3).map(move |n| (p, NodeId(n)))) {
            let control = AdmissionControl::new(&map, node, map.epoch());
            let group = map.group(Redundancy(2), PartitionId(partition)).unwrap();
            let position = group.members.iter().position(|one| one.target.0 == node.0);
            let checked = |operations: &[Operation<'_>], reads_any| {
                control.check(dataset(reads_any), operations)
            };
            let served = if position == Some(0) { Ok(()) } else { Err(ErrorKind::StaleMap) };
            assert_eq!(checked(&delete(partition), true), served);
            assert_eq!(checked(&get(partition), false), served);
            let read = if position.is_some() { Ok(()) } else { Err(ErrorKind::StaleMap) };
            assert_eq!(checked(&get(partition), true), read);
        }
        let control = AdmissionControl::new(&map, NodeId(0), map.epoch());
        let none = control.check(dataset(true), &delete(PARTITIONS));
        assert_eq!(none, Err(ErrorKind::Invalid));
        assert_eq!(control.unknown_dataset(), ErrorKind::NotFound);
    }

    #[test]
    fn a_frozen_dataset_is_read_and_not_changed() {
        let map = three_nodes();
        let frozen = DatasetPolicy { is_frozen: true, ..dataset(false) };
        let primary = map.node_of(Redundancy(2), PartitionId(0)).unwrap();
        let control = AdmissionControl::new(&map, primary, map.epoch());
        assert_eq!(control.check(frozen, &get(0)), Ok(()));
        assert_eq!(control.check(frozen, &delete(0)), Err(ErrorKind::Busy));
        let both = [get(0), delete(0)].concat();
        assert_eq!(control.check(frozen, &both), Err(ErrorKind::Busy));
        assert_eq!(control.check(dataset(false), &both), Ok(()));
    }

    #[test]
    fn a_client_with_a_newer_map_asks_again() {
        let map = three_nodes();
        let newer = Epoch(map.epoch().get() + 1);
        let primary = map.node_of(Redundancy(2), PartitionId(0)).unwrap();
        let other = NodeId((primary.0 + 1) % 3);
        let refused = AdmissionControl::new(&map, other, newer).check(dataset(false), &delete(0));
        assert_eq!(refused, Err(ErrorKind::Busy));
        let served = AdmissionControl::new(&map, primary, newer);
        assert_eq!(served.check(dataset(false), &delete(0)), Ok(()));
        assert_eq!(served.unknown_dataset(), ErrorKind::Busy);
    }

    #[test]
    fn a_member_serves_as_primary_with_a_lease_or_as_a_reader() {
        let ms = Duration::from_millis;
        let (early, late) = (
            ApplyTime { now: ms(1), lease_until: ms(2) },
            ApplyTime { now: ms(2), lease_until: ms(2) },
        );
        let primary = MemberStanding {
            is_primary: true,
            is_catching_up: false,
            may_read: false,
            has_others: true,
            has_room: true,
        };
        assert_eq!(check_member(primary, early), Ok(()));
        assert_eq!(check_member(primary, late), Err(ErrorKind::Busy), "its lease is over");
        let alone = MemberStanding { has_others: false, ..primary };
        assert_eq!(check_member(alone, late), Ok(()));
        let full = MemberStanding { has_room: false, ..primary };
        assert_eq!(check_member(full, early), Err(ErrorKind::Busy));
        let catching_up = MemberStanding { is_catching_up: true, ..primary };
        assert_eq!(check_member(catching_up, early), Err(ErrorKind::Busy));
        let secondary = MemberStanding { is_primary: false, ..primary };
        assert_eq!(check_member(secondary, early), Err(ErrorKind::StaleMap));
        let reader = MemberStanding { may_read: true, ..secondary };
        assert_eq!(check_member(reader, late), Ok(()));
    }
}
