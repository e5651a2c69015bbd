//! Requests as the coordinator takes them, and its decisions as answers.

use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::{Coordinator, Timing};
use samite_placement::ClusterMap;
use samite_types::{Epoch, Error, ErrorKind, Result};
use samite_wire::control::{ControlReply, ControlRequest, NodeInfo};
use samite_wire::membership::{Heartbeat, Lease};

/// A coordinator that decides.
pub(crate) struct Decider {
    coordinator: Coordinator,
}

impl Decider {
    /// From what is saved, or `fresh`. Whoever led before leads no more: leases that it gave may still run, and no later ones.
    pub(crate) fn new(
        fresh: Coordinator,
        timing: Timing,
        now: Duration,
        saved: Option<&[u8]>,
    ) -> Result<Self> {
        let coordinator = match saved {
            Some(state) => Coordinator::take_over(state, timing, now, Duration::ZERO)?,
            None => fresh.with_timing(timing),
        };
        Ok(Self { coordinator })
    }

    /// What is to be saved.
    pub(crate) fn state(&self) -> Vec<u8> {
        self.coordinator.export()
    }

    /// Grows whenever there is something new to be saved.
    pub(crate) const fn revision(&self) -> u64 {
        self.coordinator.revision()
    }

    pub(crate) fn map(&self) -> Option<&Arc<ClusterMap>> {
        self.coordinator.map()
    }

    pub(crate) fn ready_map(&self) -> Result<&Arc<ClusterMap>> {
        self.coordinator.ready_map()
    }

    /// Epoch of the map; 0 before there is one.
    pub(crate) fn epoch(&self) -> Epoch {
        self.map().map_or(Epoch(0), |map| map.epoch())
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        self.coordinator.tick(now);
    }

    pub(crate) fn join(&mut self, now: Duration, info: NodeInfo) -> Result<()> {
        self.coordinator.join(info, now).map(drop)
    }

    pub(crate) fn heartbeat(&mut self, now: Duration, heartbeat: &Heartbeat) -> Lease {
        self.coordinator.heartbeat(heartbeat, now)
    }

    /// Everything but heartbeats.
    pub(crate) fn decide(
        &mut self,
        now: Duration,
        request: ControlRequest,
    ) -> Result<ControlReply> {
        match request {
            ControlRequest::Join(info) => {
                self.join(now, info)?;
                Ok(ControlReply::Map(self.map().map(|map| map.data().clone())))
            }
            ControlRequest::CreateDataset(spec) => {
                let map = self.coordinator.create_dataset(spec)?;
                Ok(ControlReply::Map(Some(map.data().clone())))
            }
            ControlRequest::DropDataset { name } => {
                self.coordinator.drop_dataset(&name)?;
                Ok(ControlReply::Ok)
            }
            ControlRequest::SetAccess { name, owner, mode } => {
                let map = self.coordinator.set_access(&name, owner, mode)?;
                Ok(ControlReply::Map(Some(map.data().clone())))
            }
            ControlRequest::Report { node, known, reports } => {
                let map = self.coordinator.report(node, &reports)?;
                let newer = (map.epoch() > known).then(|| map.data().clone());
                Ok(ControlReply::Map(newer))
            }
            ControlRequest::Wish { node, wish } => {
                let map = self.coordinator.wish(node, wish)?;
                Ok(ControlReply::Map(Some(map.data().clone())))
            }
            _ => Err(Error::new(ErrorKind::Unsupported, "nothing that a coordinator decides")),
        }
    }
}
