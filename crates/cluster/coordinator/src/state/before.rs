//! Maps as older versions have saved them.

use samite_types::{DatasetId, Epoch, PartitionId, Redundancy};
use samite_wire::access::DatasetAccess;
use samite_wire::control::{
    BackendSpec, ClusterMapData, DatasetData, DatasetSpec, DistributionKind, DurabilityKind,
    LostRecords, MEMORY_BACKEND, NULL_BACKEND, NodeInfo, NodeState, PartitionTable, ReadsKind,
    SemanticsKind,
};
use serde::{Deserialize, Serialize};

/// A map of [`VERSION_WITH_TWO_BACKENDS`](super::VERSION_WITH_TWO_BACKENDS).
#[derive(Serialize, Deserialize)]
pub(super) struct MapWithTwoBackends {
    pub(super) map: MapWithoutLosses,
    pub(super) losses: Vec<LostRecords>,
}

/// A map of [`VERSION_WITHOUT_LOSSES`](super::VERSION_WITHOUT_LOSSES).
#[derive(Serialize, Deserialize)]
pub(super) struct MapWithoutLosses {
    pub(super) cluster: String,
    pub(super) epoch: Epoch,
    pub(super) nodes: Vec<NodeInfo>,
    pub(super) states: Vec<NodeState>,
    pub(super) tables: Vec<PartitionTable>,
    pub(super) datasets: Vec<DatasetOfTwoBackends>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct DatasetOfTwoBackends {
    pub(super) id: DatasetId,
    pub(super) spec: SpecOfTwoBackends,
    pub(super) wheel: Vec<PartitionId>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SpecOfTwoBackends {
    pub(super) name: String,
    pub(super) backend: OneOfTwoBackends,
    pub(super) distribution: DistributionKind,
    pub(super) semantics: SemanticsKind,
    pub(super) chunk_len: u32,
    pub(super) redundancy: Redundancy,
    pub(super) durability: DurabilityKind,
    pub(super) reads: ReadsKind,
    pub(super) access: DatasetAccess,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum OneOfTwoBackends {
    Memory,
    Null,
}

impl From<MapWithTwoBackends> for ClusterMapData {
    fn from(MapWithTwoBackends { map, losses }: MapWithTwoBackends) -> Self {
        Self { losses, ..map.into() }
    }
}

impl From<MapWithoutLosses> for ClusterMapData {
    fn from(before: MapWithoutLosses) -> Self {
        let MapWithoutLosses { cluster, epoch, nodes, states, tables, datasets } = before;
        let datasets = datasets.into_iter().map(DatasetData::from).collect();
        Self { cluster, epoch, nodes, states, tables, datasets, losses: Vec::new() }
    }
}

impl From<DatasetOfTwoBackends> for DatasetData {
    fn from(DatasetOfTwoBackends { id, spec, wheel }: DatasetOfTwoBackends) -> Self {
        Self { id, spec: spec.into(), wheel, frozen_by: 0 }
    }
}

impl From<SpecOfTwoBackends> for DatasetSpec {
    /// What was accepted once and never held becomes what did hold.
    fn from(before: SpecOfTwoBackends) -> Self {
        let (name, durability) = match before.backend {
            OneOfTwoBackends::Memory => (MEMORY_BACKEND, before.durability),
            OneOfTwoBackends::Null => (NULL_BACKEND, DurabilityKind::Memory),
        };
        let semantics = match before.semantics {
            SemanticsKind::Checkpoint => SemanticsKind::Posix,
            other => other,
        };
        Self {
            name: before.name,
            backend: BackendSpec::named(name),
            distribution: before.distribution,
            semantics,
            chunk_len: before.chunk_len,
            redundancy: before.redundancy,
            durability,
            reads: before.reads,
            access: before.access,
        }
    }
}
