//! The partitions of one shard, opened when they are first touched.

use std::time::Duration;

use samite_backend::Backend;
use samite_backend::memory::MemoryBackend;
use samite_backend::null::NullBackend;
use samite_partition::{Context, Grants, Holder, Outcome, Partition};
use samite_placement::ClusterMap;
use samite_types::{ClientId, DatasetId, Epoch, PartitionId, Redundancy, Result};
use samite_wire::access::Access;
use samite_wire::control::BackendKind;
use samite_wire::op::Operation;

/// Open partitions of all datasets.
pub(crate) struct Partitions {
    memory: MemoryBackend,
    null: NullBackend,
    /// Ordered by id.
    datasets: Vec<Open>,
    /// Where the last request's dataset was found.
    last: usize,
    records: u64,
    abandoned: u64,
    /// Leases on records, or notes for them, are kept until then; zero: there are none.
    leases_until: Duration,
}

struct Open {
    id: DatasetId,
    backend: BackendKind,
    redundancy: Redundancy,
    access: Access,
    partitions: Vec<Option<Box<Partition>>>,
}

/// The open dataset that a request works on.
pub(crate) struct Slot(usize);

impl Partitions {
    pub(crate) const fn new(memory: MemoryBackend, null: NullBackend) -> Self {
        Self {
            memory,
            null,
            datasets: Vec::new(),
            last: 0,
            records: 0,
            abandoned: 0,
            leases_until: Duration::ZERO,
        }
    }

    /// Records held, all partitions together.
    pub(crate) const fn records(&self) -> u64 {
        self.records
    }

    /// Those without a name that nobody holds any more.
    pub(crate) const fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// Ends the holds of a client that is gone.
    pub(crate) fn drop_client(&mut self, client: ClientId) {
        let open = self.datasets.iter_mut().flat_map(|open| open.partitions.iter_mut().flatten());
        self.abandoned = open
            .map(|partition| {
                partition.drop_client(client);
                partition.abandoned()
            })
            .sum();
    }

    /// Finds or opens `dataset`, which is in `map`; `None` when it is not.
    pub(crate) fn dataset(&mut self, map: &ClusterMap, dataset: DatasetId) -> Option<Slot> {
        if self.datasets.get(self.last).is_some_and(|open| open.id == dataset) {
            return Some(Slot(self.last));
        }
        let known = map.dataset_by_id(dataset)?;
        let index = match self.datasets.binary_search_by_key(&dataset, |open| open.id) {
            Ok(index) => index,
            Err(index) => {
                let partitions = (0..map.partitions()).map(|_| None).collect();
                let open = Open {
                    id: dataset,
                    backend: known.spec.backend,
                    redundancy: known.spec.redundancy,
                    access: known.spec.access,
                    partitions,
                };
                self.datasets.insert(index, open);
                index
            }
        };
        self.last = index;
        Some(Slot(index))
    }

    /// Who may use an open dataset.
    pub(crate) fn access(&self, slot: &Slot) -> Access {
        self.datasets[slot.0].access
    }

    /// Targets that hold each record of an open dataset.
    pub(crate) fn redundancy(&self, slot: &Slot) -> Redundancy {
        self.datasets[slot.0].redundancy
    }

    /// Applies one operation; `operation.partition` is below the map's count. Raises `lease_epoch` to the partition's.
    pub(crate) fn apply(
        &mut self,
        slot: &Slot,
        client: ClientId,
        context: &Context,
        operation: &Operation<'_>,
        grants: &mut dyn Grants,
        lease_epoch: &mut Epoch,
    ) -> Outcome {
        let records = &mut self.records;
        let open = &mut self.datasets[slot.0];
        let place = &mut open.partitions[operation.partition.get() as usize];
        let partition = match place {
            Some(partition) => partition,
            None => {
                let backend: &mut dyn Backend = match open.backend {
                    BackendKind::Memory => &mut self.memory,
                    BackendKind::Null => &mut self.null,
                };
                match open_partition(backend, open.id, operation.partition) {
                    Ok(partition) => place.insert(partition),
                    Err(error) => {
                        let kind = error.kind();
                        tracing::error!(%error, "open a partition");
                        return Outcome::Failed { kind, index: 0, current: None };
                    }
                }
            }
        };
        let before = (partition.record_count(), partition.abandoned());
        let outcome = partition.apply(client, context, operation, grants);
        *records = *records + partition.record_count() - before.0;
        self.abandoned = self.abandoned + partition.abandoned() - before.1;
        *lease_epoch = (*lease_epoch).max(partition.lease_epoch());
        if context.now > Duration::ZERO {
            self.leases_until = self.leases_until.max(partition.leases().live_until());
        }
        outcome
    }

    /// Whether any partition keeps leases on records.
    pub(crate) fn has_leases(&self) -> bool {
        self.leases_until > Duration::ZERO
    }

    /// It is `now`.
    pub(crate) fn leases_at(&mut self, now: Duration) {
        if self.leases_until <= now {
            self.leases_until = Duration::ZERO;
        }
    }

    fn opened(&mut self, slot: &Slot, partition: PartitionId) -> Option<&mut Partition> {
        self.datasets[slot.0].partitions.get_mut(partition.get() as usize)?.as_deref_mut()
    }

    /// Until when leases of others stand against an operation of `client`, which may be alone in its request. `visit` is told of each.
    pub(crate) fn leases_against(
        &mut self,
        slot: &Slot,
        client: ClientId,
        (operation, is_alone): (&Operation<'_>, bool),
        now: Duration,
        visit: &mut dyn FnMut(&[u8], Holder),
    ) -> Option<Duration> {
        let partition = self.opened(slot, operation.partition)?;
        partition.leases().against(client, operation, now, &mut |_, _| {})?;
        // What will fail changes nothing. Beside others it may be they that make its guards hold.
        if is_alone && !partition.would_run(operation) {
            return None;
        }
        partition.leases().against(client, operation, now, visit)
    }

    /// `client` gives back the lease that ends at `until`.
    pub(crate) fn release_lease(
        &mut self,
        dataset: DatasetId,
        partition: PartitionId,
        client: ClientId,
        key: &[u8],
        until: Duration,
    ) {
        let index = self.datasets.binary_search_by_key(&dataset, |open| open.id);
        if let Some(partition) = index.ok().and_then(|at| self.opened(&Slot(at), partition)) {
            partition.leases().release(client, key, until);
        }
    }

    /// Whether somebody waits to change what `operation` changes.
    pub(crate) fn is_awaited(&mut self, slot: &Slot, operation: &Operation<'_>) -> bool {
        let partition = self.opened(slot, operation.partition);
        partition.is_some_and(|partition| partition.leases().is_awaited(operation))
    }

    /// Somebody waits to carry out `operation`.
    pub(crate) fn wait_for(&mut self, slot: &Slot, operation: &Operation<'_>) {
        if let Some(partition) = self.opened(slot, operation.partition) {
            partition.leases().wait_for(operation);
        }
    }

    /// Nobody waits any more.
    pub(crate) fn clear_waits(&mut self) {
        for open in &mut self.datasets {
            for partition in open.partitions.iter_mut().flatten() {
                partition.leases().clear_waits();
            }
        }
    }

    /// Drops the datasets that `map` has no more, with all of their records.
    pub(crate) fn retain(&mut self, map: &ClusterMap) {
        self.datasets.retain(|open| map.dataset_by_id(open.id).is_some());
        self.last = 0;
        for open in &mut self.datasets {
            if let Some(known) = map.dataset_by_id(open.id) {
                open.access = known.spec.access;
            }
        }
        let mut counts = (0, 0);
        for partition in self.datasets.iter().flat_map(|open| open.partitions.iter().flatten()) {
            counts.0 += partition.record_count();
            counts.1 += partition.abandoned();
        }
        (self.records, self.abandoned) = counts;
    }
}

fn open_partition(
    backend: &mut dyn Backend,
    dataset: DatasetId,
    partition: PartitionId,
) -> Result<Box<Partition>> {
    let store = backend
        .open(dataset, partition)
        .map_err(|error| error.context(format_args!("{dataset} {partition}")))?;
    Ok(Box::new(Partition::new(store)))
}
