//! Requests as the coordinator takes them, and its decisions as answers.

use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::{ClusterTiming, Coordinator};
use samite_placement::ClusterMap;
use samite_types::{Epoch, Error, ErrorKind, Result};
use samite_wire::control::{ControlReply, ControlRequest, NodeInfo};
use samite_wire::freeze::FreezeCall;
use samite_wire::membership::{Heartbeat, NodeLease};

/// The answer once all decisions are saved.
pub(crate) enum LeaderVerdict {
    /// That.
    Reply(Box<ControlReply>),
    /// The map, to a node that has that of this epoch.
    Map(Epoch),
}

/// A coordinator that decides.
pub(crate) struct LeaderState {
    coordinator: Coordinator,
}

impl LeaderState {
    /// From the saved state, or `fresh`. The leader of before leads no more: leases that it gave
    /// may still run, and no later ones.
    pub(crate) fn new(
        fresh: Coordinator,
        timing: ClusterTiming,
        now: Duration,
        saved: Option<&[u8]>,
    ) -> Result<Self> {
        let coordinator = match saved {
            Some(state) => Coordinator::take_over(state, timing, now)?,
            None => fresh.with_timing(timing),
        };
        Ok(Self { coordinator })
    }

    /// The state to be saved.
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

    pub(crate) fn join(&mut self, now: Duration, info: NodeInfo, before: u64) -> Result<()> {
        self.coordinator.join_again(info, before, now).map(drop)
    }

    pub(crate) fn heartbeat(&mut self, now: Duration, heartbeat: &Heartbeat) -> NodeLease {
        self.coordinator.heartbeat(heartbeat, now)
    }

    pub(crate) fn decide(
        &mut self,
        now: Duration,
        request: ControlRequest,
    ) -> Result<LeaderVerdict> {
        // A node that asks for a change gets the whole map.
        let mut known = Epoch(0);
        match request {
            ControlRequest::Heartbeat(beat) => {
                return Ok(LeaderVerdict::Reply(
                    ControlReply::Lease(self.heartbeat(now, &beat)).into(),
                ));
            }
            ControlRequest::Join { info, before } => {
                self.join(now, info, before)?;
                if self.map().is_none() {
                    return Ok(LeaderVerdict::Reply(ControlReply::Map(None).into()));
                }
            }
            ControlRequest::CreateDataset(spec) => {
                samite_registry::check(&spec)?;
                self.coordinator.create_dataset(spec)?;
            }
            ControlRequest::DropDataset { name } => {
                self.coordinator.drop_dataset(&name)?;
                return Ok(LeaderVerdict::Reply(ControlReply::Ok.into()));
            }
            ControlRequest::SetAccess { name, owner, mode } => {
                self.coordinator.set_access(&name, owner, mode)?;
            }
            ControlRequest::Freeze(asked) => {
                self.coordinator.freeze(now, &asked)?;
                if asked.call != FreezeCall::Begin {
                    return Ok(LeaderVerdict::Reply(ControlReply::Ok.into()));
                }
            }
            ControlRequest::AcknowledgeLoss { by, seen } => {
                self.coordinator.acknowledge_loss(by, &seen)?;
            }
            ControlRequest::Report { node, known: by, reports } => {
                self.coordinator.report(node, &reports)?;
                known = by;
            }
            ControlRequest::Wish { node, request } => {
                self.coordinator.admin_request(node, request)?;
            }
            _ => {
                let cause = "nothing that a coordinator decides";
                return Err(Error::new(ErrorKind::Unsupported, cause));
            }
        }
        Ok(LeaderVerdict::Map(known))
    }
}
