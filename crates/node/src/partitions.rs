//! The partitions of one shard, opened when they are first touched.

use samite_backend::Backend;
use samite_backend::memory::MemoryBackend;
use samite_backend::null::NullBackend;
use samite_partition::{Context, Grants, Outcome, Partition};
use samite_placement::ClusterMap;
use samite_types::{ClientId, DatasetId, Epoch, PartitionId, Result};
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
}

struct Open {
    id: DatasetId,
    backend: BackendKind,
    partitions: Vec<Option<Box<Partition>>>,
}

/// The open dataset that a request works on.
pub(crate) struct Slot(usize);

impl Partitions {
    pub(crate) const fn new(memory: MemoryBackend, null: NullBackend) -> Self {
        Self { memory, null, datasets: Vec::new(), last: 0, records: 0 }
    }

    /// Records held, all partitions together.
    pub(crate) const fn records(&self) -> u64 {
        self.records
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
                let open = Open { id: dataset, backend: known.spec.backend, partitions };
                self.datasets.insert(index, open);
                index
            }
        };
        self.last = index;
        Some(Slot(index))
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
        let before = partition.record_count();
        let outcome = partition.apply(client, context, operation, grants);
        *records = *records + partition.record_count() - before;
        *lease_epoch = (*lease_epoch).max(partition.lease_epoch());
        outcome
    }

    /// Drops the datasets that `map` has no more, with all of their records.
    pub(crate) fn retain(&mut self, map: &ClusterMap) {
        self.datasets.retain(|open| map.dataset_by_id(open.id).is_some());
        self.last = 0;
        self.records = self
            .datasets
            .iter()
            .flat_map(|open| open.partitions.iter().flatten())
            .map(|partition| partition.record_count())
            .sum();
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
