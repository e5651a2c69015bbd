//! Requests as the coordinator takes them, and its decisions as answers.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::{ClusterTiming, Coordinator};
use samite_placement::ClusterMap;
use samite_types::{Epoch, Error, ErrorKind, PartitionId, Redundancy, Result};
use samite_wire::control::{
    ClusterMapData, ControlReply, ControlRequest, DatasetSpec, DurabilityKind, MemberConsistency,
    NodeReachability, ReadsKind,
};

use crate::losses::{is_lost, simulated};
use crate::rules::{BrokenRule, RunRules};
use crate::scenario::{DATASET, RunScenario};

/// The answer once all decisions are saved.
pub enum SavedVerdict {
    /// That.
    Reply(Box<ControlReply>),
    /// The map, to a node that has that of this epoch.
    Map(Epoch),
}

/// A coordinator that decides.
pub struct SimulatedState {
    coordinator: Coordinator,
    spec: DatasetSpec,
    rules: RunRules,
}

impl SimulatedState {
    /// From the saved state, or a new one.
    ///
    /// # Panics
    /// If the state that another instance saved cannot be read.
    #[must_use]
    pub fn new(scenario: &RunScenario, saved: Option<&[u8]>, now: Duration) -> Self {
        let timing = ClusterTiming::DEFAULT;
        let coordinator = match saved {
            // No other instance leads any more.
            Some(saved) => Coordinator::take_over(saved, timing, now),
            None => Coordinator::new("sim", scenario.founders as usize)
                .and_then(|fresh| fresh.with_partitions(scenario.partitions))
                .map(|fresh| fresh.with_timing(timing)),
        };
        let coordinator = coordinator.expect("scenarios and saved states are lawful");
        let durability = match scenario.is_durable() {
            true => DurabilityKind::Logged,
            false => DurabilityKind::Memory,
        };
        let redundancy = Redundancy(scenario.redundancy);
        let reads = if scenario.reads_any { ReadsKind::Any } else { ReadsKind::Primary };
        let spec = DatasetSpec { redundancy, durability, reads, ..DatasetSpec::new(DATASET) };
        Self { coordinator, spec, rules: scenario.rules }
    }

    /// The state to be saved.
    #[must_use]
    pub fn state(&self) -> Vec<u8> {
        self.coordinator.export()
    }

    /// Grows with each change of the state to be saved.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.coordinator.revision()
    }

    /// The map, if there is one.
    #[must_use]
    pub fn map_data(&self) -> Option<ClusterMapData> {
        self.coordinator.map().map(|map| map.data().clone())
    }

    /// Epoch of the map; 0 before there is one.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.coordinator.map().map_or(Epoch(0), |map| map.epoch())
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Duration) {
        self.coordinator.tick(now);
        let map = self.coordinator.map();
        if map.is_some_and(|map| map.dataset(DATASET).is_none()) {
            // Not all nodes may be there; then at the next tick.
            let _ = self.coordinator.create_dataset(self.spec.clone());
        }
        self.forget_losses();
    }

    /// The map, if there is one.
    #[must_use]
    pub fn map(&self) -> Option<&Arc<ClusterMap>> {
        self.coordinator.map()
    }

    /// Decides on a request.
    pub fn decide(&mut self, now: Duration, request: ControlRequest) -> SavedVerdict {
        let refused = |error: Error| ControlReply::failed(error.kind(), error.message().to_owned());
        self.try_decide(now, request)
            .unwrap_or_else(|error| SavedVerdict::Reply(refused(error).into()))
    }

    /// As if it had never noted them, where that is the rule to be broken.
    fn forget_losses(&mut self) {
        let losses = self.coordinator.map().map(|map| (map.epoch(), map.data().losses.clone()));
        if let Some((epoch, losses)) = losses.filter(|(_, losses)| !losses.is_empty())
            && self.rules.breaks(BrokenRule::LossForgotten)
        {
            let _ = self.coordinator.acknowledge_loss(epoch, &losses);
        }
    }

    fn try_decide(&mut self, now: Duration, request: ControlRequest) -> Result<SavedVerdict> {
        match request {
            ControlRequest::Heartbeat(beat) => Ok(SavedVerdict::Reply(
                ControlReply::Lease(self.coordinator.heartbeat(&beat, now)).into(),
            )),
            ControlRequest::Join { info, before } => {
                self.coordinator.join_again(info, before, now)?;
                Ok(SavedVerdict::Map(Epoch(0)))
            }
            ControlRequest::Report { node, known, reports } => {
                self.coordinator.report(node, &reports)?;
                Ok(SavedVerdict::Map(known))
            }
            ControlRequest::Wish { node, request } => {
                self.coordinator.admin_request(node, request)?;
                Ok(SavedVerdict::Map(Epoch(0)))
            }
            ControlRequest::AcknowledgeLoss { by, seen } => {
                self.coordinator.acknowledge_loss(by, &seen)?;
                Ok(SavedVerdict::Map(Epoch(0)))
            }
            ControlRequest::Freeze(asked) => {
                self.coordinator.freeze(now, &asked)?;
                Ok(SavedVerdict::Map(Epoch(0)))
            }
            ControlRequest::Map { known } => Ok(SavedVerdict::Map(known)),
            _ => Err(Error::new(ErrorKind::Unsupported, "nothing that a coordinator decides")),
        }
    }
}

/// Nodes and mirror groups of a map, in short: `n1?` is late, `n1-` offline; members good unless
/// marked `~` (needs resync), `r` (restarted), `!` (bad). A lost partition is called so.
#[must_use]
pub fn words(map: &ClusterMapData) -> String {
    let mut words = String::new();
    for (info, state) in map.nodes.iter().zip(&map.states) {
        let mark = match state.reachability {
            NodeReachability::Online => "",
            NodeReachability::ProbablyOffline => "?",
            NodeReachability::Offline => "-",
        };
        let _ = write!(words, "{}{mark} ", info.node);
    }
    if let Some((dataset, table)) = simulated(map) {
        for (partition, group) in (0..).map(PartitionId).zip(&table.groups) {
            let lost = if is_lost(map, dataset.id, partition) { " lost" } else { "" };
            let _ = write!(words, "| p{}{lost} {}:", partition.get(), group.term);
            for member in &group.members {
                let mark = match member.consistency {
                    MemberConsistency::Good => "",
                    MemberConsistency::Restarted => "r",
                    MemberConsistency::NeedsResync => "~",
                    MemberConsistency::Bad => "!",
                };
                let _ = write!(words, " {}{mark}", member.target);
            }
            words.push(' ');
        }
    }
    words
}
