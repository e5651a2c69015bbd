//! The coordinator's whole state as bytes: for a file, for etcd, for the instance that takes over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use samite_placement::{ClusterMap, check_node_info};
use samite_types::{Epoch, Error, ErrorKind, NodeId, Result};
use samite_wire::control::{self, ClusterMapData, NodeInfo};
use serde::{Deserialize, Serialize};

use crate::moves::Goal;
use crate::presence::Presence;
use crate::{Coordinator, Timing};

/// Grows when older versions cannot read the state any more.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    cluster: String,
    expected: u32,
    partitions: u32,
    first_epoch: Epoch,
    next_dataset: u32,
    /// Before the cluster was founded.
    joined: Vec<NodeInfo>,
    invited: Vec<NodeId>,
    map: Option<ClusterMapData>,
    goals: Vec<Goal>,
}

impl Coordinator {
    /// Everything that has to outlive this instance. It changes exactly when [`Self::revision`] does.
    #[must_use]
    pub fn export(&self) -> Vec<u8> {
        control::encode(&State {
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

    /// Goes on from what another instance [exported](Self::export).
    ///
    /// Nobody else may decide any more: leases that were given before `now` may still run, and no later ones. So no node is called
    /// offline before such a lease would be over, and none is relied on before it was heard.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: not such a state.
    pub fn take_over(state: &[u8], timing: Timing, now: Duration) -> Result<Self> {
        let corrupt =
            |cause: &str| Error::new(ErrorKind::Corrupt, format!("coordinator's state: {cause}"));
        let state: State = control::decode(state).map_err(|error| corrupt(&error.to_string()))?;
        if state.version != VERSION {
            return Err(corrupt("of another version"));
        }
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
        let presence = Presence {
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
