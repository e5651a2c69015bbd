//! The coordinator's whole state as bytes: for a file, for etcd, for the instance that takes over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use samite_placement::{ClusterMap, check_node_info};
use samite_types::{Epoch, Error, ErrorKind, NodeId, Result};
use samite_wire::WireError;
use samite_wire::control::{
    self, ClusterMapData, DatasetData, NodeInfo, NodeState, PartitionTable,
};
use serde::{Deserialize, Serialize};

use crate::moves::Goal;
use crate::presence::NodePresence;
use crate::{ClusterTiming, Coordinator};

/// Grows when older versions cannot read the state any more.
const VERSION: u32 = 2;
/// Of states whose map says nothing of losses.
const VERSION_WITHOUT_LOSSES: u32 = 1;

#[derive(Serialize, Deserialize)]
struct SavedState<Map> {
    version: u32,
    cluster: String,
    expected: u32,
    partitions: u32,
    first_epoch: Epoch,
    next_dataset: u32,
    /// Before the cluster was founded.
    joined: Vec<NodeInfo>,
    invited: Vec<NodeId>,
    map: Option<Map>,
    goals: Vec<Goal>,
}

/// A map of [`VERSION_WITHOUT_LOSSES`].
#[derive(Serialize, Deserialize)]
struct MapWithoutLosses {
    cluster: String,
    epoch: Epoch,
    nodes: Vec<NodeInfo>,
    states: Vec<NodeState>,
    tables: Vec<PartitionTable>,
    datasets: Vec<DatasetData>,
}

impl From<MapWithoutLosses> for ClusterMapData {
    fn from(before: MapWithoutLosses) -> Self {
        let MapWithoutLosses { cluster, epoch, nodes, states, tables, datasets } = before;
        Self { cluster, epoch, nodes, states, tables, datasets, losses: Vec::new() }
    }
}

impl<Map> SavedState<Map> {
    fn with_map<To: From<Map>>(self) -> SavedState<To> {
        SavedState {
            version: self.version,
            cluster: self.cluster,
            expected: self.expected,
            partitions: self.partitions,
            first_epoch: self.first_epoch,
            next_dataset: self.next_dataset,
            joined: self.joined,
            invited: self.invited,
            map: self.map.map(To::from),
            goals: self.goals,
        }
    }
}

/// Reads a state of this version or an older one.
fn decode(state: &[u8]) -> Result<SavedState<ClusterMapData>, String> {
    let words = |error: WireError| error.to_string();
    // The version comes first, in one byte.
    match state.first().map(|version| u32::from(*version)) {
        Some(VERSION) => control::decode(state).map_err(words),
        Some(VERSION_WITHOUT_LOSSES) => {
            let before: SavedState<MapWithoutLosses> = control::decode(state).map_err(words)?;
            Ok(before.with_map())
        }
        _ => Err("of another version".into()),
    }
}

impl Coordinator {
    /// The state that has to outlive this instance. It changes exactly when [`Self::revision`]
    /// does.
    #[must_use]
    pub fn export(&self) -> Vec<u8> {
        control::encode(&SavedState {
            version: VERSION,
            cluster: self.cluster.clone(),
            // At most NODES_MAX.
            expected: self.expected as u32,
            partitions: self.partitions,
            first_epoch: self.first_epoch,
            next_dataset: self.next_dataset,
            joined: self.joined.values().cloned().collect(),
            invited: self.invited.iter().copied().collect(),
            map: self.map.as_ref().map(|map| map.data().clone()),
            goals: self.goals.clone(),
        })
    }

    /// Goes on from the state that another instance [exported](Self::export).
    ///
    /// No other instance may decide any more: leases that were given before `now` may still run,
    /// and no later ones. So no node is called offline before such a lease would be over, and none
    /// is relied on before it was heard.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: not such a state.
    pub fn take_over(state: &[u8], timing: ClusterTiming, now: Duration) -> Result<Self> {
        let corrupt =
            |cause: &str| Error::new(ErrorKind::Corrupt, format!("coordinator's state: {cause}"));
        let state = decode(state).map_err(|cause| corrupt(&cause))?;
        for info in &state.joined {
            check_node_info(info).map_err(|error| corrupt(error.message()))?;
        }
        let mut coordinator = Self::new(state.cluster, state.expected as usize)?
            .with_partitions(state.partitions)?
            .with_timing(timing);
        coordinator.first_epoch = state.first_epoch;
        coordinator.next_dataset = state.next_dataset;
        coordinator.joined = state.joined.into_iter().map(|info| (info.node, info)).collect();
        coordinator.invited = state.invited.into_iter().collect::<BTreeSet<NodeId>>();
        if let Some(data) = state.map {
            let map = ClusterMap::new(data).map_err(|error| corrupt(error.message()))?;
            coordinator.resume(Arc::new(map), state.goals, now);
        }
        Ok(coordinator)
    }

    /// Takes up a map that another instance made, with nothing known of its nodes.
    fn resume(&mut self, map: Arc<ClusterMap>, goals: Vec<Goal>, heard: Duration) {
        let epoch = map.epoch();
        let presence = NodePresence {
            heard,
            is_confirmed: false,
            knows: Epoch(0),
            must_know: epoch,
            deposed: epoch,
        };
        self.presences =
            map.nodes().iter().map(|info| (info.node, presence)).collect::<BTreeMap<_, _>>();
        self.since = epoch;
        self.changed = HashMap::new();
        self.lost = HashMap::new();
        let tables = &map.data().tables;
        let fits = goals.len() == tables.len()
            && goals.iter().zip(tables).all(|(goal, table)| goal.len() == table.groups.len());
        let known =
            goals.iter().flatten().flatten().all(|target| map.node_of_target(*target).is_some());
        if fits && known {
            self.goals = goals;
            self.has_work = true;
            self.is_uneven_for_now = !self.has_all_nodes(map.data());
        } else {
            self.plan(map.data());
        }
        self.map = Some(map);
    }
}

#[cfg(test)]
mod tests {
    use samite_types::TargetId;
    use samite_wire::control::{DatasetSpec, TargetInfo};

    use super::*;

    #[test]
    fn a_state_of_before_there_were_losses_is_taken_over() {
        let target = TargetInfo { target: TargetId(0), capacity_bytes: 1 << 30, storage: 0 };
        let info = |incarnation| NodeInfo {
            node: NodeId(0),
            host: "h".into(),
            addresses: vec!["tcp://h:1".into()],
            incarnation,
            targets: vec![target.clone()],
        };
        let mut first = Coordinator::new("c", 1).unwrap().with_partitions(4).unwrap();
        first.join(info(1), Duration::ZERO).unwrap();
        let map = first.create_dataset(DatasetSpec::new("d")).unwrap().data().clone();
        let now = decode(&first.export()).unwrap();
        let before = SavedState {
            version: VERSION_WITHOUT_LOSSES,
            map: Some(MapWithoutLosses {
                cluster: map.cluster.clone(),
                epoch: map.epoch,
                nodes: map.nodes.clone(),
                states: map.states.clone(),
                tables: map.tables.clone(),
                datasets: map.datasets.clone(),
            }),
            cluster: now.cluster,
            expected: now.expected,
            partitions: now.partitions,
            first_epoch: now.first_epoch,
            next_dataset: now.next_dataset,
            joined: now.joined,
            invited: now.invited,
            goals: now.goals,
        };
        let old = control::encode(&before);
        let mut second =
            Coordinator::take_over(&old, ClusterTiming::DEFAULT, Duration::ZERO).unwrap();
        assert_eq!(second.map().unwrap().data(), &map);
        // A later loss outlives the next one.
        second.join(info(2), Duration::from_secs(9)).unwrap();
        let state = second.export();
        let third = Coordinator::take_over(&state, ClusterTiming::DEFAULT, Duration::ZERO).unwrap();
        let losses = third.map().unwrap().losses_known();
        assert_eq!((losses[0].partitions, losses[0].of), (4, 4));
    }
}
