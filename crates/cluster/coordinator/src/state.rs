//! The coordinator's whole state as bytes: for a file, for etcd, for the instance that takes over.

mod before;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use samite_placement::{ClusterMap, check_node_info};
use samite_types::{Epoch, Error, ErrorKind, NodeId, Result};
use samite_wire::WireError;
use samite_wire::control::{self, ClusterMapData, NodeInfo};
use serde::{Deserialize, Serialize};

use self::before::{MapWithTwoBackends, MapWithoutFreezes, MapWithoutLosses};
use crate::moves::Goal;
use crate::presence::NodePresence;
use crate::{ClusterTiming, Coordinator};

/// Grows when older versions cannot read the state any more.
const VERSION: u32 = 4;
/// Of states whose datasets cannot be frozen.
const VERSION_WITHOUT_FREEZES: u32 = 3;
/// Of states whose datasets have one of two backends.
const VERSION_WITH_TWO_BACKENDS: u32 = 2;
/// Of states whose map says nothing of losses, besides.
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
        Some(VERSION_WITHOUT_FREEZES) => {
            let before: SavedState<MapWithoutFreezes> = control::decode(state).map_err(words)?;
            Ok(before.with_map())
        }
        Some(VERSION_WITH_TWO_BACKENDS) => {
            let before: SavedState<MapWithTwoBackends> = control::decode(state).map_err(words)?;
            Ok(before.with_map())
        }
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
mod tests;
