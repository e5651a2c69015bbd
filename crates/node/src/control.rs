//! Control requests, on the shard that received them. What may take time goes to the worker.

use std::sync::Arc;

use samite_coordinator::Coordinator;
use samite_placement::ClusterMap;
use samite_transport::server::{ConnId, Peer, Replies};
use samite_types::{Epoch, Error, ErrorKind, NodeId, RequestId, Result};
use samite_wire::control::{self, ControlReply, ControlRequest, NodeInfo};
use samite_wire::frame::FrameKind;

use crate::access::is_trusted;
use crate::shard::Shard;
use crate::shared::{Job, ReplyTo, lock};

/// A question for the next map that has not been answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    request: RequestId,
    known: Epoch,
}

pub(crate) fn refused(error: &Error) -> ControlReply {
    ControlReply::failed(error.kind(), error.message())
}

impl Shard {
    pub(crate) fn control(
        &mut self,
        conn: ConnId,
        peer: &Peer,
        request: RequestId,
        body: &[u8],
        out: &mut Replies,
    ) {
        let to = ReplyTo { shard: self.id, conn, request };
        let asked = match control::decode::<ControlRequest>(body) {
            Ok(asked) => asked,
            Err(error) => return out.close(conn, ErrorKind::Corrupt, &format!("request: {error}")),
        };
        let reply = match asked {
            ControlRequest::Map { known } => self.map_after(known),
            ControlRequest::Status => Ok(Some(ControlReply::Status(self.shared.status()))),
            ControlRequest::Grant { count } => Ok(Some(self.grant(conn, count, out))),
            ControlRequest::Shutdown if !is_trusted(peer) => Err(Error::new(
                ErrorKind::Denied,
                format!("uid {} may not stop {}", peer.uid, self.shared.node),
            )),
            ControlRequest::Shutdown => {
                tracing::info!("asked to shut down");
                self.shared.stop.stop();
                Ok(Some(ControlReply::Ok))
            }
            ControlRequest::Watch { node, known } => self.watch(to, node, known, out),
            ControlRequest::Revocations { done } => {
                Ok(self.revocations(to, peer.client, done, out))
            }
            ControlRequest::Lock(asked) => self.lock_request(to, peer.client, &asked, out),
            ControlRequest::CancelLock { wait } => Ok(self.cancel_lock(conn, wait, out)),
            ControlRequest::LockWaits(owner) => Ok(self.lock_waits(owner)),
            ControlRequest::Join(info) => self.join(to, info, out),
            change @ (ControlRequest::CreateDataset(_)
            | ControlRequest::DropDataset { .. }
            | ControlRequest::SetAccess { .. }) => {
                self.permitted(peer, change).and_then(|change| self.change(to, change, out))
            }
            ControlRequest::Faults(asked) => self.shared.faults(peer, asked).map(Some),
            ControlRequest::Heartbeat(_)
            | ControlRequest::Report { .. }
            | ControlRequest::Wish { .. } => Err(not_here()),
        };
        match reply {
            Ok(Some(reply)) => self.send_control(to, &reply, out),
            Ok(None) => {}
            Err(error) => self.send_control(to, &refused(&error), out),
        }
    }

    pub(crate) fn send_control(&self, to: ReplyTo, reply: &ControlReply, out: &mut Replies) {
        out.send(to.conn, FrameKind::ControlReply, to.request, &control::encode(reply), []);
    }

    fn map_after(&self, known: Epoch) -> Result<Option<ControlReply>> {
        let Some(map) = &self.map else {
            let missing = match &self.shared.coordinator {
                Some(coordinator) => lock(coordinator).ready_map().err(),
                None => None,
            };
            return Err(missing.unwrap_or_else(|| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("{} has no cluster map yet", self.shared.node),
                )
            }));
        };
        let newer = (map.epoch() > known).then(|| map.data().clone());
        Ok(Some(ControlReply::Map(newer)))
    }

    fn grant(&mut self, conn: ConnId, count: u16, out: &mut Replies) -> ControlReply {
        if !out.shares_arena(conn) {
            return ControlReply::failed(
                ErrorKind::Unsupported,
                "blocks are granted over shared memory only",
            );
        }
        let held = self.grants.entry(conn).or_insert_with(|| self.granter.nothing());
        let blocks = self.granter.grant(held, usize::from(count));
        ControlReply::Granted(
            blocks.into_iter().map(|block| (block.offset, block.generation)).collect(),
        )
    }

    fn join(
        &mut self,
        to: ReplyTo,
        info: NodeInfo,
        out: &mut Replies,
    ) -> Result<Option<ControlReply>> {
        let coordinator = self.shared.coordinator.as_ref().ok_or_else(not_here)?;
        tracing::info!(node = %info.node, addresses = ?info.addresses, "joins");
        let node = info.node;
        let map = lock(coordinator).join(info)?;
        // It will watch on this connection: whoever changes the map from now on waits for it too.
        self.shared.follower_serves((self.id, to.conn), node, Epoch(0));
        let Some(map) = map else { return Ok(Some(ControlReply::Map(None))) };
        let reply = ControlReply::Map(Some(map.data().clone()));
        self.shared.publish(map)?;
        self.refresh(out);
        Ok(Some(reply))
    }

    fn watch(
        &mut self,
        to: ReplyTo,
        node: NodeId,
        known: Epoch,
        out: &mut Replies,
    ) -> Result<Option<ControlReply>> {
        if self.shared.coordinator.is_none() {
            return Err(not_here());
        }
        self.shared.follower_serves((self.id, to.conn), node, known);
        if let Some(map) = self.map.as_ref().filter(|map| map.epoch() > known) {
            return Ok(Some(ControlReply::Map(Some(map.data().clone()))));
        }
        let before = self.watches.insert(to.conn, Watch { request: to.request, known });
        if let Some(before) = before {
            let ended = ReplyTo { request: before.request, ..to };
            self.send_control(ended, &ControlReply::Map(None), out);
        }
        Ok(None)
    }

    /// Gives `map` to those that wait for it.
    pub(crate) fn answer_watches(&mut self, map: &ClusterMap, out: &mut Replies) {
        let waiting: Vec<(ConnId, Watch)> =
            self.watches.extract_if(|_, watch| watch.known < map.epoch()).collect();
        for (conn, watch) in waiting {
            let to = ReplyTo { shard: self.id, conn, request: watch.request };
            self.send_control(to, &ControlReply::Map(Some(map.data().clone())), out);
        }
    }

    /// A change of the cluster map. It is answered when every node that follows this one serves by the new map, so that
    /// whoever was told of a dataset finds it everywhere.
    fn change(
        &mut self,
        to: ReplyTo,
        request: ControlRequest,
        out: &mut Replies,
    ) -> Result<Option<ControlReply>> {
        let Some(coordinator) = &self.shared.coordinator else {
            self.shared.work(Job::Forward { request, to })?;
            return Ok(None);
        };
        let (map, reply) = decide(&mut lock(coordinator), request)?;
        let epoch = map.epoch();
        self.shared.publish(map)?;
        self.refresh(out);
        if self.shared.is_settled(epoch) {
            return Ok(Some(reply));
        }
        self.shared.work(Job::Settle { epoch, reply, to })?;
        Ok(None)
    }
}

fn decide(
    coordinator: &mut Coordinator,
    request: ControlRequest,
) -> Result<(Arc<ClusterMap>, ControlReply)> {
    Ok(match request {
        ControlRequest::CreateDataset(spec) => {
            let map = coordinator.create_dataset(spec)?;
            let reply = ControlReply::Map(Some(map.data().clone()));
            (map, reply)
        }
        ControlRequest::DropDataset { name } => {
            (coordinator.drop_dataset(&name)?, ControlReply::Ok)
        }
        ControlRequest::SetAccess { name, owner, mode } => {
            let map = coordinator.set_access(&name, owner, mode)?;
            let reply = ControlReply::Map(Some(map.data().clone()));
            (map, reply)
        }
        _ => return Err(Error::new(ErrorKind::Internal, "not a change of the cluster map")),
    })
}

fn not_here() -> Error {
    Error::new(ErrorKind::Unsupported, "this is not the coordinator's node")
}
