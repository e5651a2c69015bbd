//! The cluster map, checked: [`ClusterMapData`], the form in which it travels, gets its meaning
//! here.

use std::collections::HashMap;

use samite_types::{
    DatasetId, Epoch, Error, ErrorKind, NodeId, PartitionId, Redundancy, Result, TargetId,
};
use samite_wire::control::{
    ClusterMapData, DatasetData, MirrorGroup, NodeInfo, NodeState, PartitionTable,
};

use crate::Distribution;
use crate::check::check_map;
use crate::hash::hash;

/// A cluster map that has passed every check: each partition has targets, each target a node, each dataset a lawful policy
/// and the partition table of its redundancy.
///
/// Immutable; a new epoch is a new value.
#[derive(Clone, Debug)]
pub struct ClusterMap {
    data: ClusterMapData,
    /// For each of `data.tables`: position in `data.nodes` of the node of each partition's primary.
    primaries: Vec<Vec<u16>>,
    /// Position in `data.nodes` of the node of each target.
    nodes: HashMap<TargetId, u16>,
}

impl ClusterMap {
    /// Checks `data`, which may have come from anywhere.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] naming what is wrong with it.
    pub fn new(data: ClusterMapData) -> Result<Self> {
        check_map(&data)
            .map_err(|cause| Error::new(ErrorKind::Corrupt, format!("cluster map: {cause}")))?;
        let nodes: HashMap<TargetId, u16> = data
            .nodes
            .iter()
            .zip(0..)
            .flat_map(|(node, index)| node.targets.iter().map(move |info| (info.target, index)))
            .collect();
        let primary = |group: &MirrorGroup| nodes.get(&group.members.first()?.target).copied();
        let primaries = data
            .tables
            .iter()
            .map(|table| table.groups.iter().map(primary).collect::<Option<Vec<u16>>>())
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "cluster map: partition without node"))?;
        Ok(Self { data, primaries, nodes })
    }

    /// The map as it travels.
    #[must_use]
    pub const fn data(&self) -> &ClusterMapData {
        &self.data
    }

    /// Name of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.data.cluster
    }

    /// Version of this map.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.data.epoch
    }

    /// How many partitions there are; at least 1, fixed for the life of the cluster.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        // Checked against PARTITIONS_MAX; there is at least one table.
        self.primaries[0].len() as u32
    }

    /// The partition of a placement key.
    #[inline]
    #[must_use]
    pub fn partition_of(&self, key: &[u8]) -> PartitionId {
        self.partition_of_hash(hash(key))
    }

    /// The partition of a placement key whose [`hash`] is known.
    #[inline]
    #[must_use]
    pub fn partition_of_hash(&self, key_hash: u64) -> PartitionId {
        // The remainder is below the partition count, which fits.
        PartitionId((key_hash % self.primaries[0].len() as u64) as u32)
    }

    /// Position of the table of this redundancy among all tables; `None` when no dataset ever asked for it.
    #[inline]
    #[must_use]
    pub fn table_index(&self, redundancy: Redundancy) -> Option<usize> {
        self.data.tables.iter().position(|table| table.redundancy == redundancy)
    }

    /// The mirror groups of datasets of this redundancy.
    #[must_use]
    pub fn table(&self, redundancy: Redundancy) -> Option<&PartitionTable> {
        self.data.tables.iter().find(|table| table.redundancy == redundancy)
    }

    /// The mirror group that holds `partition` of the datasets of this redundancy.
    #[must_use]
    pub fn group(&self, redundancy: Redundancy, partition: PartitionId) -> Option<&MirrorGroup> {
        self.table(redundancy)?.groups.get(partition.get() as usize)
    }

    /// The node of the primary of `partition`, for datasets of this redundancy; `None` when there is no such partition or table.
    #[inline]
    #[must_use]
    pub fn node_of(&self, redundancy: Redundancy, partition: PartitionId) -> Option<NodeId> {
        let table = &self.primaries[self.table_index(redundancy)?];
        let primary = *table.get(partition.get() as usize)?;
        Some(self.data.nodes[usize::from(primary)].node)
    }

    /// The target of the primary of `partition`, for datasets of this redundancy; `None` when there is no such partition or table.
    #[must_use]
    pub fn target_of(&self, redundancy: Redundancy, partition: PartitionId) -> Option<TargetId> {
        Some(self.group(redundancy, partition)?.members.first()?.target)
    }

    /// The node that serves a target.
    #[must_use]
    pub fn node_of_target(&self, target: TargetId) -> Option<NodeId> {
        Some(self.data.nodes[usize::from(*self.nodes.get(&target)?)].node)
    }

    /// The process of the node that serves a target; 0 when there is no such target.
    #[must_use]
    pub fn incarnation_of(&self, target: TargetId) -> u64 {
        let node = self.nodes.get(&target).map(|index| &self.data.nodes[usize::from(*index)]);
        node.map_or(0, |node| node.incarnation)
    }

    /// The node's state, as the coordinator sees it.
    #[must_use]
    pub fn state(&self, node: NodeId) -> Option<NodeState> {
        let index = self.data.nodes.binary_search_by_key(&node, |info| info.node).ok()?;
        self.data.states.get(index).copied()
    }

    /// All nodes, ordered by id.
    #[must_use]
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.data.nodes
    }

    /// One node.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&NodeInfo> {
        let index = self.data.nodes.binary_search_by_key(&node, |info| info.node).ok()?;
        Some(&self.data.nodes[index])
    }

    /// All datasets, ordered by id.
    #[must_use]
    pub fn datasets(&self) -> &[DatasetData] {
        &self.data.datasets
    }

    /// The dataset with this name.
    #[must_use]
    pub fn dataset(&self, name: &str) -> Option<&DatasetData> {
        self.data.datasets.iter().find(|dataset| dataset.spec.name == name)
    }

    /// The dataset with this id.
    #[must_use]
    pub fn dataset_by_id(&self, id: DatasetId) -> Option<&DatasetData> {
        let index = self.data.datasets.binary_search_by_key(&id, |dataset| dataset.id).ok()?;
        Some(&self.data.datasets[index])
    }

    /// How the chunks of `dataset` spread.
    #[must_use]
    pub fn distribution(&self, dataset: &DatasetData) -> Distribution {
        Distribution::new(dataset, self.partitions())
    }

    /// Whether this map may take the place of `current`: `Ok(false)` when it is not newer.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: it is newer, but of another cluster or with another partition count.
    pub fn replaces(&self, current: &Self) -> Result<bool> {
        if self.epoch() <= current.epoch() {
            return Ok(false);
        }
        if self.cluster() != current.cluster() || self.partitions() != current.partitions() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "cluster map {}: is of {:?} with {} partitions, expected {:?} with {}",
                    self.epoch(),
                    self.cluster(),
                    self.partitions(),
                    current.cluster(),
                    current.partitions()
                ),
            ));
        }
        Ok(true)
    }
}
