//! Requests as the coordinator takes them, and its decisions as answers.

use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::{Coordinator, Timing};
use samite_placement::ClusterMap;
use samite_types::{Epoch, Error, ErrorKind, Result};
use samite_wire::control::{ControlReply, ControlRequest, NodeInfo};
use samite_wire::membership::{Heartbeat, Lease, Standing};

/// A coordinator that decides.
pub(crate) struct Decider {
    coordinator: Coordinator,
    timing: Timing,
}

impl Decider {
    /// From what is saved, or `fresh`.
    pub(crate) fn new(fresh: Coordinator, timing: Timing, saved: Option<&[u8]>) -> Result<Self> {
        if saved.is_some() {
            return Err(ErrorKind::Unsupported.into());
        }
        Ok(Self { coordinator: fresh, timing })
    }

    /// What is to be saved.
    pub(crate) fn state(&self) -> Vec<u8> {
        Vec::new()
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

    pub(crate) fn tick(&mut self, _now: Duration) {}

    pub(crate) fn join(&mut self, _now: Duration, info: NodeInfo) -> Result<()> {
        self.coordinator.join(info).map(drop)
    }

    pub(crate) fn heartbeat(&mut self, _now: Duration, heartbeat: &Heartbeat) -> Lease {
        let info = self.map().and_then(|map| map.node(heartbeat.node));
        let is_member = info.is_some_and(|info| info.incarnation == heartbeat.incarnation);
        let (term, standing) = match is_member {
            true => (self.timing.lease, Standing::Member),
            false => (Duration::ZERO, Standing::Stranger),
        };
        let term_us = u64::try_from(term.as_micros()).unwrap_or(u64::MAX);
        Lease { term_us, epoch: self.epoch(), standing }
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
            ControlRequest::Report { known, .. } => {
                let map = self.map().filter(|map| map.epoch() > known);
                Ok(ControlReply::Map(map.map(|map| map.data().clone())))
            }
            _ => Err(Error::new(ErrorKind::Unsupported, "nothing that a coordinator decides")),
        }
    }
}
