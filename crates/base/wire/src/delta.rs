//! Map diff: the changes from one cluster map to a later one, as they travel; `samite-placement`
//! makes it and applies it.

use samite_types::{DatasetId, Epoch, NodeId, PartitionId, Redundancy};
use serde::{Deserialize, Serialize};

use crate::control::{DatasetData, LostRecords, MirrorGroup, NodeInfo, NodeState, PartitionTable};

/// The changes between two cluster maps. Entries say what is in the later map, not what was done:
/// so applying one twice, or to a map between the two, changes nothing more, and
/// [`MapDelta::digest`] tells whether it led where it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapDelta {
    /// Epoch of the earlier map.
    pub from: Epoch,
    /// Epoch of the later one.
    pub to: Epoch,
    /// Hash of the later map, as encoded.
    pub digest: u64,
    /// Ordered by node.
    pub nodes: Vec<NodeChange>,
    /// Tables that the earlier map does not have, ordered by redundancy.
    pub tables: Vec<PartitionTable>,
    /// Groups of the other tables, ordered by redundancy and partition.
    pub groups: Vec<GroupChange>,
    /// Ordered by dataset.
    pub datasets: Vec<DatasetChange>,
    /// All losses of the later map, if it has others.
    pub losses: Option<Vec<LostRecords>>,
}

/// One node of the later map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChange {
    /// The node.
    pub node: NodeId,
    /// How it stands; `None`: it is gone.
    pub state: Option<NodeState>,
    /// Its new value; `None`: the old one.
    pub info: Option<NodeInfo>,
}

/// One group of the later map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupChange {
    /// Its table.
    pub redundancy: Redundancy,
    /// Its partition.
    pub partition: PartitionId,
    /// The group.
    pub group: MirrorGroup,
}

/// One dataset of the later map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetChange {
    /// The dataset.
    pub id: DatasetId,
    /// Its new value; `None`: it is gone.
    pub data: Option<DatasetData>,
}
