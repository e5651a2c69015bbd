//! Keeper of the cluster map: who belongs to the cluster, which target holds which partition, which datasets there are. Pure.
//!
//! A [`Coordinator`] takes requests and returns the map that follows from them. It does no I/O and knows no time: the node that
//! embeds it carries maps to the others. Each change makes a new map with the next epoch; a request that changes nothing
//! returns the map as it is, so that every request can be repeated safely.

use std::collections::BTreeMap;
use std::sync::Arc;

use samite_placement::{
    ClusterMap, DATASETS_MAX, NODES_MAX, PARTITIONS_MAX, assign, check_dataset_spec,
    check_node_info, partitions_for, wheel,
};
use samite_types::{
    DatasetId, Epoch, Error, ErrorKind, NodeId, Redundancy, Result, TargetId, Term,
};
use samite_wire::control::{
    self, ClusterMapData, Consistency, DatasetData, DatasetSpec, DistributionKind, Group, Member,
    NodeInfo, NodeState, PartitionTable, Reachability, TargetInfo,
};
use samite_wire::limits::BODY_LEN_MAX;

pub mod store;
mod timing;

pub use timing::Timing;

/// Longest cluster map, in bytes as encoded: it travels in one frame's body.
const MAP_LEN_MAX: usize = BODY_LEN_MAX - 1024;

/// Decides on the cluster map of one cluster.
#[derive(Debug)]
pub struct Coordinator {
    cluster: String,
    /// Nodes that must have joined before there is a map.
    expected: usize,
    /// Partitions of the cluster, fixed with the first map.
    partitions: u32,
    joined: BTreeMap<NodeId, NodeInfo>,
    map: Option<Arc<ClusterMap>>,
    first_epoch: Epoch,
    /// Ids count upwards and are never used again, also not after a drop.
    next_dataset: u32,
}

impl Coordinator {
    /// A coordinator for a cluster that is complete when `expected` nodes have joined.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: no nodes expected, or over [`NODES_MAX`].
    pub fn new(cluster: impl Into<String>, expected: usize) -> Result<Self> {
        let cluster = cluster.into();
        if !(1..=NODES_MAX).contains(&expected) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("cluster {cluster}: {expected} nodes; 1 to {NODES_MAX} are possible"),
            ));
        }
        let partitions = partitions_for(expected);
        let joined = BTreeMap::new();
        let (first_epoch, next_dataset) = (Epoch(1), 1);
        Ok(Self { cluster, expected, partitions, joined, map: None, first_epoch, next_dataset })
    }

    /// The same, with epochs and dataset ids that begin at `start` in place of 1.
    ///
    /// This coordinator remembers nothing of one that went before it, while nodes and clients may. With a start above all that the
    /// other gave out (seconds since 1970 serve), its map replaces the old one everywhere, and no dataset of it is taken for an old one.
    #[must_use]
    pub fn starting_at(self, start: u32) -> Self {
        let start = start.max(1);
        Self { first_epoch: Epoch(start.into()), next_dataset: start, ..self }
    }

    /// The same, for a cluster of `partitions` partitions in place of [`partitions_for`] its nodes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: none, or over [`PARTITIONS_MAX`].
    pub fn with_partitions(self, partitions: u32) -> Result<Self> {
        if !(1..=PARTITIONS_MAX).contains(&(partitions as usize)) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "cluster {}: {partitions} partitions; 1 to {PARTITIONS_MAX} are possible",
                    self.cluster
                ),
            ));
        }
        Ok(Self { partitions, ..self })
    }

    /// The map; none until all expected nodes have joined.
    #[must_use]
    pub const fn map(&self) -> Option<&Arc<ClusterMap>> {
        self.map.as_ref()
    }

    /// The map, or words that say who is missing.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]: not all nodes have joined yet.
    pub fn ready_map(&self) -> Result<&Arc<ClusterMap>> {
        self.map.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "cluster {}: {} of {} nodes have joined",
                    self.cluster,
                    self.joined.len(),
                    self.expected
                ),
            )
        })
    }

    /// A node joins, or says where it can be reached now. Once all are there, the map.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the node's description is unlawful, one of its targets belongs to another node, or it brings
    /// other targets than before. [`ErrorKind::Exists`]: the cluster is complete without this node.
    pub fn join(&mut self, info: NodeInfo) -> Result<Option<Arc<ClusterMap>>> {
        check_node_info(&info)?;
        self.check_targets(&info)?;
        let known = self.joined.get(&info.node);
        if known.is_none() && self.joined.len() == self.expected {
            return Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "join of {}: cluster {} has its {} nodes",
                    info.node, self.cluster, self.expected
                ),
            ));
        }
        if known == Some(&info) {
            return Ok(self.map.clone());
        }
        let before = self.joined.insert(info.node, info.clone());
        match &self.map {
            Some(map) => {
                let mut data = map.data().clone();
                data.nodes = self.joined.values().cloned().collect();
                data.states = vec![ONLINE; data.nodes.len()];
                self.publish_next(data)?;
            }
            None if self.joined.len() == self.expected => {
                if let Err(error) = self.found() {
                    // A refused node leaves no trace.
                    match before {
                        Some(before) => self.joined.insert(info.node, before),
                        None => self.joined.remove(&info.node),
                    };
                    return Err(error);
                }
            }
            None => {}
        }
        Ok(self.map.clone())
    }

    /// Makes a dataset. One with the same name and the same policy exists: the map as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the policy is unlawful. [`ErrorKind::Exists`]: the name is taken by a dataset with another policy.
    /// [`ErrorKind::TooLarge`]: too many datasets, or too many weights. [`ErrorKind::Unavailable`]: there is no map yet.
    pub fn create_dataset(&mut self, spec: DatasetSpec) -> Result<Arc<ClusterMap>> {
        check_dataset_spec(&spec)?;
        let map = self.ready_map()?;
        if let Some(present) = map.dataset(&spec.name) {
            if present.spec.is_same_policy(&spec) {
                return Ok(map.clone());
            }
            return Err(Error::new(
                ErrorKind::Exists,
                format!("dataset {}: exists with another policy", spec.name),
            ));
        }
        let mut data = map.data().clone();
        if data.datasets.len() == DATASETS_MAX || self.next_dataset == u32::MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("dataset {}: there are {} already", spec.name, data.datasets.len()),
            ));
        }
        let wheel = match &spec.distribution {
            DistributionKind::Weighted(weights) => {
                wheel(weights, &primaries(&data, spec.redundancy))
                    .map_err(|error| error.context(format_args!("dataset {}", spec.name)))?
            }
            DistributionKind::RoundRobin | DistributionKind::Single => Vec::new(),
        };
        data.datasets.push(DatasetData { id: DatasetId(self.next_dataset), spec, wheel });
        let map = self.publish_next(data)?;
        self.next_dataset += 1;
        Ok(map)
    }

    /// Removes a dataset.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]: no dataset has this name. [`ErrorKind::Unavailable`]: there is no map yet.
    pub fn drop_dataset(&mut self, name: &str) -> Result<Arc<ClusterMap>> {
        let mut data = self.ready_map()?.data().clone();
        let before = data.datasets.len();
        data.datasets.retain(|dataset| dataset.spec.name != name);
        if data.datasets.len() == before {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("dataset {name}: no such dataset"),
            ));
        }
        self.publish_next(data)
    }

    /// Gives a dataset another owner or mode.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]: no dataset has this name. [`ErrorKind::Invalid`]: that is no mode. [`ErrorKind::Unavailable`]: there is no map yet.
    pub fn set_access(
        &mut self,
        name: &str,
        owner: Option<u32>,
        mode: Option<u16>,
    ) -> Result<Arc<ClusterMap>> {
        let mut data = self.ready_map()?.data().clone();
        let named = data.datasets.iter_mut().find(|dataset| dataset.spec.name == name);
        let dataset = named.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("dataset {name}: no such dataset"))
        })?;
        let access = &mut dataset.spec.access;
        access.owner = owner.unwrap_or(access.owner);
        access.mode = mode.unwrap_or(access.mode);
        check_dataset_spec(&dataset.spec)?;
        self.publish_next(data)
    }

    /// A target belongs to one node for good: partitions are placed on it.
    fn check_targets(&self, info: &NodeInfo) -> Result<()> {
        let invalid = |cause: String| {
            Err(Error::new(ErrorKind::Invalid, format!("join of {}: {cause}", info.node)))
        };
        let ids = |targets: &[TargetInfo]| -> Vec<TargetId> {
            let mut ids: Vec<_> = targets.iter().map(|target| target.target).collect();
            ids.sort_unstable();
            ids
        };
        let own = ids(&info.targets);
        if own.windows(2).any(|pair| pair[0] == pair[1]) {
            return invalid("a target is named twice".into());
        }
        for other in self.joined.values().filter(|other| other.node != info.node) {
            if let Some(taken) = other.targets.iter().find(|target| own.contains(&target.target)) {
                return invalid(format!("target {} belongs to {}", taken.target, other.node));
            }
        }
        match self.joined.get(&info.node) {
            Some(before) if self.map.is_some() && ids(&before.targets) != own => {
                invalid("its targets are not those it joined with".into())
            }
            _ => Ok(()),
        }
    }

    /// Makes the first map: every node is there.
    fn found(&mut self) -> Result<()> {
        let targets: Vec<(TargetId, u64)> = self
            .joined
            .values()
            .flat_map(|info| &info.targets)
            .map(|target| (target.target, target.capacity_bytes))
            .collect();
        self.publish(ClusterMapData {
            cluster: self.cluster.clone(),
            epoch: self.first_epoch,
            nodes: self.joined.values().cloned().collect(),
            states: vec![ONLINE; self.joined.len()],
            tables: vec![PartitionTable {
                redundancy: Redundancy(1),
                groups: assign(self.partitions, &targets)?.into_iter().map(alone).collect(),
            }],
            datasets: Vec::new(),
        })
        .map(drop)
    }

    /// Gives `data`, made from the map, the next epoch and makes it the map.
    fn publish_next(&mut self, mut data: ClusterMapData) -> Result<Arc<ClusterMap>> {
        data.epoch = Epoch(data.epoch.get() + 1);
        self.publish(data)
    }

    /// Makes `data` the map.
    fn publish(&mut self, data: ClusterMapData) -> Result<Arc<ClusterMap>> {
        let len = control::encode(&data).len();
        if len > MAP_LEN_MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("cluster map of {len} bytes; {MAP_LEN_MAX} are possible"),
            ));
        }
        let map = Arc::new(ClusterMap::new(data)?);
        self.map = Some(map.clone());
        Ok(map)
    }
}

const ONLINE: NodeState = NodeState { reachability: Reachability::Online, is_draining: false };

/// The group of a partition that is not mirrored.
fn alone(target: TargetId) -> Group {
    let members = vec![Member { target, consistency: Consistency::Good }];
    Group { term: Term(0), members }
}

/// The primary's target of each partition.
fn primaries(data: &ClusterMapData, redundancy: Redundancy) -> Vec<TargetId> {
    let table = data.tables.iter().find(|table| table.redundancy == redundancy);
    let groups = table.into_iter().flat_map(|table| &table.groups);
    groups.filter_map(|group| Some(group.members.first()?.target)).collect()
}

#[cfg(test)]
mod tests;
