//! How a node follows the cluster map of the coordinator that leads.
//!
//! It joins, then always has one question under way: *is there a map newer than mine?* The answer comes when there is, so the
//! map arrives at once. Asking again tells the leader's node that the last map has been taken up.

use std::sync::Arc;
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_transport::client::{ConnectIdentity, NodeLink};
use samite_transport::{Address, SharedKeys};
use samite_types::{Deadline, Epoch, Error, ErrorKind, Result};
use samite_wire::control::{ClusterMapData, ControlReply, ControlRequest, NodeInfo};

use crate::control_reply::refusal;
use crate::mutex::lock;
use crate::node_calls::call;
use crate::shared::{NodeNotice, NodeShared};

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// A question that stays unanswered for so long is asked again, of the leader of that time.
const WATCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failure; doubles up to [`PAUSE_MAX`].
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long the node's own shards may take to take up a map.
const TAKE_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// The knowledge that a node needs to be part of a cluster.
#[derive(Clone)]
pub(crate) struct NodeCredentials {
    pub keys: SharedKeys,
    pub info: NodeInfo,
    /// By which storage it joined last.
    pub before: u64,
}

impl NodeCredentials {
    /// Connects, as this node.
    pub(crate) fn connect(
        &self,
        shared: &NodeShared,
        address: &Address,
        timeout: Duration,
    ) -> Result<Arc<NodeLink>> {
        let who = ConnectIdentity::node(&shared.faults);
        let keys = self.keys.load();
        NodeLink::connect_as(address, keys.current(), &who, Deadline::after(timeout)).map(Arc::new)
    }

    /// Watches the maps of a leader elsewhere, until the node stops.
    pub(crate) fn follow(&self, shared: &NodeShared) {
        let mut pause = PAUSE_MIN;
        while !shared.stop.is_asked() {
            let Some(leader) = shared.membership.leader_address(PAUSE_MAX) else { continue };
            let Err(error) = self.follow_at(&leader, shared, &mut pause);
            lock(&shared.upstream).take();
            if shared.stop.is_asked() {
                return;
            }
            if is_final(error.kind()) && shared.map().is_none() {
                return shared.notice(NodeNotice::Fatal(error));
            }
            tracing::debug!(%error, %leader, "follow the coordinator");
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Joins, and takes up maps until something fails or another leads.
    fn follow_at(
        &self,
        leader: &Address,
        shared: &NodeShared,
        pause: &mut Duration,
    ) -> Result<std::convert::Infallible> {
        let link = self.connect(shared, leader, CONNECT_TIMEOUT)?;
        let join = ControlRequest::Join { info: shared.as_it_is(&self.info), before: self.before };
        let joined = call(&link, &join, Deadline::after(JOIN_TIMEOUT))?;
        if matches!(joined, ControlReply::NotLeader { .. }) {
            shared.membership.lost(leader);
        }
        // Before the map: a node that serves can pass requests on.
        *lock(&shared.upstream) = Some(Arc::clone(&link));
        take_up(shared, joined, &link)?;
        *pause = PAUSE_MIN;
        tracing::info!(coordinator = %leader, epoch = %shared.epoch(), "joined");
        loop {
            let is_leader =
                shared.membership.leader_address(Duration::ZERO).as_ref() == Some(leader);
            if shared.stop.is_asked() || !is_leader {
                return Err(Error::new(ErrorKind::Unavailable, "it does not lead any more"));
            }
            let known = shared.epoch();
            let watch = ControlRequest::Watch { node: self.info.node, known };
            match call(&link, &watch, Deadline::after(WATCH_TIMEOUT)) {
                Ok(ControlReply::Map(None)) => {}
                Ok(reply) => {
                    take_up(shared, reply, &link)?;
                    if shared.epoch() == known {
                        // It names an earlier process of this node, whose message came late: this
                        // one joins again.
                        let lost = "the map names another process of this node";
                        return Err(Error::new(ErrorKind::Unavailable, lost));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Timeout && !link.is_dead() => {}
                Err(error) => {
                    shared.membership.lost(leader);
                    return Err(error);
                }
            }
        }
    }
}

/// Whether a refusal will be the same the next time.
pub(crate) const fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Invalid | ErrorKind::Exists | ErrorKind::WrongKey | ErrorKind::WrongVersion
    )
}

/// Makes the map in `reply`, which came over `link`, the node's own, if there is one. A change that does not fit is no help; then the
/// whole map is asked for.
pub(super) fn take_up(shared: &NodeShared, reply: ControlReply, link: &NodeLink) -> Result<()> {
    match take_up_reply(shared, reply) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            tracing::debug!(%error, "asks for the whole map");
            let whole = ControlRequest::Map { known: Epoch(0) };
            take_up_reply(shared, call(link, &whole, Deadline::after(JOIN_TIMEOUT))?)
        }
        taken => taken,
    }
}

/// Makes the map in `reply`, if there is one, the node's own, and waits until its shards serve by it.
pub(crate) fn take_up_reply(shared: &NodeShared, reply: ControlReply) -> Result<()> {
    match reply {
        ControlReply::Map(Some(data)) => take_up_map(shared, data),
        ControlReply::Map(None) => Ok(()),
        ControlReply::MapDelta(delta) => {
            let epoch = delta.to;
            shared.publish_change(delta)?;
            shared.wait_taken_up(epoch, TAKE_UP_TIMEOUT);
            Ok(())
        }
        reply => Err(refusal(&reply)),
    }
}

/// Makes `data` the node's map, if it is newer, and waits until its shards serve by it.
pub(crate) fn take_up_map(shared: &NodeShared, data: ClusterMapData) -> Result<()> {
    let map = Arc::new(ClusterMap::new(data)?);
    let epoch = map.epoch();
    shared.publish(map)?;
    shared.wait_taken_up(epoch, TAKE_UP_TIMEOUT);
    Ok(())
}
