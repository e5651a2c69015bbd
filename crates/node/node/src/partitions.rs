//! The partitions of one shard, opened when they are first touched.

mod apply_context;
mod clearing;
mod delegation_holders;
mod early_completion;
mod keeping;
mod opening;
mod walk;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use samite_backend::ReadAhead;
pub(crate) use samite_mirror::durable::PlaceId;
use samite_mirror::{CommitPosition, GroupView, MirrorTimes, MirroredPartition};
use samite_partition::{AppliedOutcome, DelegationHolder};
use samite_placement::ClusterMap;
use samite_types::{ClientId, DatasetId, ErrorKind, PartitionId, Redundancy, TargetId};
use samite_wire::access::DatasetAccess;
use samite_wire::control::{BackendSpec, MirrorGroup, ReadsKind};
use samite_wire::op::Operation;

use crate::admission::DatasetPolicy;
use crate::commit_thread::TargetThreads;
use crate::deferred_replies::DeferredId;
use crate::durable::Recovered;
use crate::targets::ShardTargets;
pub(crate) use apply_context::{ApplyContext, Seen};
pub(crate) use clearing::ClearBatch;
use clearing::PartitionClearings;
pub(crate) use delegation_holders::HolderSet;
use delegation_holders::{DelegationHolders, LeaseTerm};
pub(crate) use keeping::RecordKeeping;

/// Open partitions of all datasets.
pub(crate) struct OpenPartitions {
    targets: ShardTargets,
    /// The target of the partitions.
    me: TargetId,
    times: MirrorTimes,
    /// Ordered by id.
    datasets: Vec<OpenDataset>,
    /// Where the last request's dataset was found.
    last: usize,
    records: u64,
    leaked_orphans: u64,
    delegation_holders: DelegationHolders,
    /// Ready list: the partitions that may have effects for the shard to carry out, each once.
    ready: Vec<PlaceId>,
    /// The times at which partitions with a timer are to be looked at.
    timers: BTreeSet<(Duration, PlaceId)>,
    /// Partitions that a restart has left, until they are opened; `None`: there is no log.
    recovered: Option<Recovered>,
    clearings: PartitionClearings,
}

struct OpenDataset {
    id: DatasetId,
    backend: BackendSpec,
    redundancy: Redundancy,
    access: DatasetAccess,
    /// Some partition of it on this node has other members, or a log.
    is_grouped: bool,
    keeping: RecordKeeping,
    /// Members that are not the primary answer reads.
    reads_any: bool,
    /// A client has frozen it: nothing changes its records.
    is_frozen: bool,
    replicas: Vec<Option<Box<OpenReplica>>>,
}

/// One open partition.
pub(crate) struct OpenReplica {
    pub(crate) member: MirroredPartition,
    /// Replies that wait for it, oldest first.
    pub(crate) deferred: VecDeque<(CommitPosition, DeferredId)>,
    /// It is on the ready list.
    is_ready: bool,
    /// Its timer.
    timer: Option<Duration>,
}

/// The open dataset that a request works on.
#[derive(Clone, Copy)]
pub(crate) struct DatasetIndex(usize);

impl OpenPartitions {
    pub(crate) fn new(targets: ShardTargets, me: TargetId, times: MirrorTimes) -> Self {
        Self {
            targets,
            me,
            times,
            datasets: Vec::new(),
            last: 0,
            records: 0,
            leaked_orphans: 0,
            delegation_holders: DelegationHolders::default(),
            ready: Vec::new(),
            timers: BTreeSet::new(),
            recovered: None,
            clearings: PartitionClearings::default(),
        }
    }

    /// Records, all partitions together.
    pub(crate) const fn records(&self) -> u64 {
        self.records
    }

    /// Records without a name to which there is no open reference any more.
    pub(crate) const fn leaked_orphans(&self) -> u64 {
        self.leaked_orphans
    }

    /// Ends the open references of a client that is gone.
    pub(crate) fn drop_client(&mut self, client: ClientId, now: Duration) {
        let mut leaked_orphans = 0;
        for open in &mut self.datasets {
            for (replica, partition) in open.replicas.iter_mut().zip(0..) {
                let Some(replica) = replica else { continue };
                replica.member.drop_client(client, now);
                leaked_orphans += replica.member.partition().leaked_orphans();
                if !replica.member.is_plain() {
                    push_ready(&mut self.ready, replica, (open.id, PartitionId(partition)));
                }
            }
        }
        self.leaked_orphans = leaked_orphans;
    }

    /// Finds or opens `dataset`, which is in `map`; `None` when it is not.
    pub(crate) fn dataset(&mut self, map: &ClusterMap, dataset: DatasetId) -> Option<DatasetIndex> {
        if self.datasets.get(self.last).is_some_and(|open| open.id == dataset) {
            return Some(DatasetIndex(self.last));
        }
        let known = map.dataset_by_id(dataset)?;
        let index = match self.datasets.binary_search_by_key(&dataset, |open| open.id) {
            Ok(index) => index,
            Err(index) => {
                let keeping = self.targets.keeping(&known.spec);
                let is_grouped = keeping.waits() || is_grouped(map, self.me, known.spec.redundancy);
                let open = OpenDataset {
                    keeping,
                    reads_any: known.spec.reads == ReadsKind::Any
                        && known.spec.redundancy.get() > 1,
                    id: dataset,
                    backend: known.spec.backend.clone(),
                    redundancy: known.spec.redundancy,
                    access: known.spec.access,
                    is_frozen: known.frozen_by != 0,
                    is_grouped,
                    replicas: (0..map.partitions()).map(|_| None).collect(),
                };
                self.datasets.insert(index, open);
                index
            }
        };
        self.last = index;
        Some(DatasetIndex(index))
    }

    /// Id of an open dataset.
    pub(crate) fn dataset_id(&self, slot: DatasetIndex) -> DatasetId {
        self.datasets[slot.0].id
    }

    /// Access rights of an open dataset.
    pub(crate) fn access(&self, slot: DatasetIndex) -> DatasetAccess {
        self.datasets[slot.0].access
    }

    /// Targets that have each record of an open dataset.
    pub(crate) fn redundancy(&self, slot: DatasetIndex) -> Redundancy {
        self.datasets[slot.0].redundancy
    }

    /// Whether some partition of it has other members, or a log, or a target that remembers.
    pub(crate) fn is_grouped(&self, slot: DatasetIndex) -> bool {
        self.datasets[slot.0].is_grouped
    }

    /// Whether its partitions have a log.
    pub(crate) fn is_logged(&self, slot: DatasetIndex) -> bool {
        matches!(self.datasets[slot.0].keeping, RecordKeeping::Log)
    }

    /// The target of its partitions, if that remembers.
    pub(crate) fn target(&self, slot: DatasetIndex) -> Option<Arc<TargetThreads>> {
        self.datasets[slot.0].keeping.threads().cloned()
    }

    /// The properties of an open dataset that admission goes by.
    pub(crate) fn policy(&self, slot: DatasetIndex) -> DatasetPolicy {
        let OpenDataset { redundancy, reads_any, is_frozen, .. } = self.datasets[slot.0];
        DatasetPolicy { redundancy, reads_any, is_frozen }
    }

    /// Applies one operation; `operation.partition` is below the map's count.
    pub(crate) fn apply(
        &mut self,
        slot: DatasetIndex,
        map: &ClusterMap,
        operation: &Operation<'_>,
        apply_context: &mut ApplyContext<'_>,
    ) -> AppliedOutcome {
        let partition = operation.partition;
        let known = self.datasets[slot.0].replicas[partition.get() as usize].is_some();
        if !known && let Err(kind) = self.open(slot, partition, (map, apply_context.at.now)) {
            return AppliedOutcome::Failed { kind, index: 0, current: None };
        }
        let open = &mut self.datasets[slot.0];
        let Some(replica) = &mut open.replicas[partition.get() as usize] else {
            return AppliedOutcome::Failed { kind: ErrorKind::Internal, index: 0, current: None };
        };
        let member = &mut replica.member;
        let before = (member.partition().record_count(), member.partition().leaked_orphans());
        let (outcome, commit_position) = member.apply(
            apply_context.client,
            apply_context.context,
            operation,
            apply_context.grants,
            apply_context.at,
        );
        let opened = member.partition();
        self.records = self.records + opened.record_count() - before.0;
        self.leaked_orphans = self.leaked_orphans + opened.leaked_orphans() - before.1;
        apply_context.name_space_generation =
            apply_context.name_space_generation.max(opened.name_space_generation());
        let now = apply_context.context.now;
        if now > Duration::ZERO && operation.takes_delegation() {
            let term = LeaseTerm::of(member.partition_mut().delegations());
            self.delegation_holders.note(apply_context.client, term, now);
        }
        if open.is_grouped || member.failed().is_some() {
            let id = (open.id, partition);
            if let Some(commit_position) = commit_position {
                match apply_context.seen.iter_mut().find(|(seen, _)| *seen == id) {
                    Some((_, last)) => *last = commit_position,
                    None => apply_context.seen.push((id, commit_position)),
                }
            }
            push_ready(&mut self.ready, replica, id);
        }
        outcome
    }

    /// An open partition.
    pub(crate) fn replica(&mut self, (dataset, partition): PlaceId) -> Option<&mut OpenReplica> {
        let index = self.datasets.binary_search_by_key(&dataset, |open| open.id).ok()?;
        self.datasets[index].replicas.get_mut(partition.get() as usize)?.as_deref_mut()
    }

    /// An open partition, and its target if that remembers.
    pub(crate) fn replica_and_target(
        &mut self,
        (dataset, partition): PlaceId,
    ) -> Option<(&mut OpenReplica, Option<&TargetThreads>)> {
        let index = self.datasets.binary_search_by_key(&dataset, |open| open.id).ok()?;
        let OpenDataset { replicas, keeping, .. } = &mut self.datasets[index];
        let replica = replicas.get_mut(partition.get() as usize)?.as_deref_mut()?;
        Some((replica, keeping.threads().map(|threads| &**threads)))
    }

    /// Work that brings what `operation` reads to where it is read without waiting for a disk.
    pub(crate) fn read_ahead(
        &self,
        slot: DatasetIndex,
        operation: &Operation<'_>,
    ) -> Option<ReadAhead> {
        let replica = self.datasets[slot.0].replicas.get(operation.partition.get() as usize)?;
        replica.as_deref()?.member.partition().read_ahead(operation)
    }

    /// A batch of a partition is committed: whether it was of one that is being cleared.
    pub(crate) fn note_cleared(&mut self, id: PlaceId) -> bool {
        self.clearings.note_committed(id)
    }

    /// An open partition, which may have effects for the shard to carry out after this call.
    pub(crate) fn mark_ready(&mut self, id: PlaceId) -> Option<&mut OpenReplica> {
        let index = self.datasets.binary_search_by_key(&id.0, |open| open.id).ok()?;
        let replicas = &mut self.datasets[index].replicas;
        let replica = replicas.get_mut(id.1.get() as usize)?.as_deref_mut()?;
        push_ready(&mut self.ready, replica, id);
        Some(replica)
    }

    /// Whether none has anything for the shard to do.
    pub(crate) const fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// Takes a partition that may have something for the shard to do.
    pub(crate) fn next_ready(&mut self) -> Option<PlaceId> {
        let id = self.ready.pop()?;
        if let Some(replica) = self.replica(id) {
            replica.is_ready = false;
        }
        Some(id)
    }

    /// Notes when a partition is to be looked at again. A timer that is earlier than need be does
    /// no damage.
    pub(crate) fn set_timer(&mut self, id: PlaceId) {
        let Some(replica) = self.replica(id) else { return };
        let Some(next) = replica.member.next_tick() else { return };
        let before = replica.timer;
        if before.is_some_and(|before| before <= next) {
            return;
        }
        replica.timer = Some(next);
        if let Some(before) = before {
            self.timers.remove(&(before, id));
        }
        self.timers.insert((next, id));
    }

    /// When the next timer expires.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes a timer whose time has come.
    pub(crate) fn take_timer(&mut self, now: Duration) -> Option<PlaceId> {
        let (at, id) = *self.timers.first()?;
        if at > now {
            return None;
        }
        self.timers.remove(&(at, id));
        if let Some(replica) = self.replica(id) {
            replica.timer = None;
        }
        Some(id)
    }

    /// Partitions whose primary is here, with members that are not up to date.
    pub(crate) fn resyncing(&self) -> Vec<(PlaceId, TargetId)> {
        let mut all = Vec::new();
        for open in self.datasets.iter().filter(|open| open.is_grouped) {
            for (replica, partition) in open.replicas.iter().zip(0..) {
                let members = replica.iter().flat_map(|replica| replica.member.resyncing());
                all.extend(members.map(|target| ((open.id, PartitionId(partition)), target)));
            }
        }
        all
    }

    /// `target` cannot be reached.
    pub(crate) fn unreachable(&mut self, target: TargetId, now: Duration) {
        for open in self.datasets.iter_mut().filter(|open| open.is_grouped) {
            for (replica, partition) in open.replicas.iter_mut().zip(0..) {
                let Some(replica) = replica else { continue };
                replica.member.unreachable(target, now);
                push_ready(&mut self.ready, replica, (open.id, PartitionId(partition)));
            }
        }
    }

    /// How many records and leaked orphans a partition has more, or less, than `before`.
    pub(crate) fn recount(&mut self, id: PlaceId, before: (u64, u64)) {
        let Some(replica) = self.replica(id) else { return };
        let partition = replica.member.partition();
        let (records, leaked_orphans) = (partition.record_count(), partition.leaked_orphans());
        self.records = self.records + records - before.0;
        self.leaked_orphans = self.leaked_orphans + leaked_orphans - before.1;
    }

    /// Whether any partition has delegations on records.
    pub(crate) const fn has_delegations(&self) -> bool {
        self.delegation_holders.are_there()
    }

    /// It is `now`.
    pub(crate) fn delegations_at(&mut self, now: Duration) {
        self.delegation_holders.at(now);
    }

    /// The sole delegation holder: the client that may change some records without being asked
    /// first.
    pub(crate) const fn free_to_change(&self) -> HolderSet {
        self.delegation_holders.free_to_change()
    }

    fn opened(
        &mut self,
        slot: DatasetIndex,
        partition: PartitionId,
    ) -> Option<&mut MirroredPartition> {
        let replica = self.datasets[slot.0].replicas.get_mut(partition.get() as usize)?;
        replica.as_deref_mut().map(|replica| &mut replica.member)
    }

    /// Until when delegations of others stand against an operation of `client`, which may be alone
    /// in its request. `visit` is told of each.
    pub(crate) fn delegations_against(
        &mut self,
        slot: DatasetIndex,
        client: ClientId,
        (operation, is_alone): (&Operation<'_>, bool),
        now: Duration,
        visit: &mut dyn FnMut(&[u8], DelegationHolder),
    ) -> Option<Duration> {
        let member = self.opened(slot, operation.partition)?;
        if let Some(until) = member.mutable_at(now) {
            // A primary before this one may have granted delegations.
            return Some(until);
        }
        let partition = member.partition_mut();
        partition.delegations().against(client, operation, now, &mut |_, _| {})?;
        // An operation that will fail changes nothing. Beside others it may be they that make its
        // guards true.
        if is_alone && !partition.would_run(operation) {
            return None;
        }
        partition.delegations().against(client, operation, now, visit)
    }

    /// `client` gives back the delegation that ends at `until`.
    pub(crate) fn release_delegation(
        &mut self,
        id: PlaceId,
        client: ClientId,
        key: &[u8],
        until: Duration,
    ) {
        if let Some(replica) = self.replica(id) {
            replica.member.partition_mut().delegations().release(client, key, until);
        }
    }

    /// Whether a request waits to change a record that `operation` changes.
    pub(crate) fn is_awaited(&mut self, slot: DatasetIndex, operation: &Operation<'_>) -> bool {
        let member = self.opened(slot, operation.partition);
        member.is_some_and(|member| member.partition_mut().delegations().is_awaited(operation))
    }

    /// Somebody waits to carry out `operation`.
    pub(crate) fn wait_for(&mut self, slot: DatasetIndex, operation: &Operation<'_>) {
        if let Some(member) = self.opened(slot, operation.partition) {
            member.partition_mut().delegations().wait_for(operation);
        }
    }

    /// No request waits any more.
    pub(crate) fn clear_waits(&mut self) {
        for replica in self.datasets.iter_mut().flat_map(|open| open.replicas.iter_mut().flatten())
        {
            replica.member.partition_mut().delegations().clear_waits();
        }
    }

    /// Tells all open partitions their part in `map`.
    pub(crate) fn configure(&mut self, map: &ClusterMap, now: Duration) {
        for open in &mut self.datasets {
            open.is_grouped = open.keeping.waits() || is_grouped(map, self.me, open.redundancy);
            for (replica, partition) in
                open.replicas.iter_mut().zip(0..).map(|(p, n)| (p, PartitionId(n)))
            {
                let Some(replica) = replica else { continue };
                let Some(group) = map.group(open.redundancy, partition) else { continue };
                let was_plain = replica.member.is_plain();
                replica.member.configure(&view_of(map, group, (open.id, partition)), now);
                if !was_plain || !replica.member.is_plain() {
                    push_ready(&mut self.ready, replica, (open.id, partition));
                }
            }
        }
    }

    /// Drops the datasets that `map` has no more, and partitions that are not this node's any more, with all of their records. Returns
    /// replies that waited for them.
    pub(crate) fn retain(&mut self, map: &ClusterMap) -> DroppedReplicas {
        let (mut lost, mut moved, mut cleared) = (Vec::new(), Vec::new(), Vec::new());
        let me = self.me;
        self.datasets.retain_mut(|open| {
            let is_known = map.dataset_by_id(open.id).is_some();
            for (replica, partition) in open.replicas.iter_mut().zip(0..) {
                let group = map.group(open.redundancy, PartitionId(partition));
                let is_mine = is_known && group.is_some_and(|group| has(group, me));
                if let Some(gone) = replica.take_if(|_| !is_mine) {
                    lost.extend(gone.deferred.iter().map(|(_, id)| *id));
                    let id = (open.id, PartitionId(partition));
                    match &open.keeping {
                        RecordKeeping::Log => moved.push(id),
                        RecordKeeping::Target(threads) => {
                            cleared.push(self.clearings.begin(id, gone.member, threads));
                        }
                        RecordKeeping::Nothing | RecordKeeping::Unusable => {}
                    }
                    if let Some(at) = gone.timer {
                        self.timers.remove(&(at, (open.id, PartitionId(partition))));
                    }
                }
            }
            is_known
        });
        self.last = 0;
        for open in &mut self.datasets {
            if let Some(known) = map.dataset_by_id(open.id) {
                open.access = known.spec.access;
                open.is_frozen = known.frozen_by != 0;
            }
        }
        let mut counts = (0, 0);
        for replica in self.datasets.iter().flat_map(|open| open.replicas.iter().flatten()) {
            counts.0 += replica.member.partition().record_count();
            counts.1 += replica.member.partition().leaked_orphans();
        }
        (self.records, self.leaked_orphans) = counts;
        DroppedReplicas { lost, moved, cleared }
    }
}

/// State that went with partitions that are not this node's any more.
pub(crate) struct DroppedReplicas {
    /// Replies that waited for them.
    pub(crate) lost: Vec<DeferredId>,
    /// The partitions that had a log.
    pub(crate) moved: Vec<PlaceId>,
    /// The batches that clear those that had a target which remembers.
    pub(crate) cleared: Vec<ClearBatch>,
}

fn push_ready(ready: &mut Vec<PlaceId>, replica: &mut OpenReplica, id: PlaceId) {
    if !std::mem::replace(&mut replica.is_ready, true) {
        ready.push(id);
    }
}

fn has(group: &samite_wire::control::MirrorGroup, target: TargetId) -> bool {
    group.members.iter().any(|member| member.target == target)
}

/// Whether `target` is in a group of this redundancy that has other members.
fn is_grouped(map: &ClusterMap, target: TargetId, redundancy: Redundancy) -> bool {
    let groups = map.table(redundancy).into_iter().flat_map(|table| &table.groups);
    groups.into_iter().any(|group| group.members.len() > 1 && has(group, target))
}

fn view_of(map: &ClusterMap, group: &MirrorGroup, (dataset, partition): PlaceId) -> GroupView {
    let view = GroupView::new(map.epoch(), group, |target| map.incarnation_of(target));
    GroupView { is_lost: map.is_lost(dataset, partition), ..view }
}
