//! How a node follows the cluster map of the coordinator's node.
//!
//! It joins, then always has one question under way: *is there a map newer than mine?* The answer comes when there is, so the
//! map arrives at once and an idle cluster exchanges next to nothing. Asking again tells the coordinator's node that the last map has
//! been taken up.

use std::sync::Arc;
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_transport::client::{Identity, Link};
use samite_transport::{Address, ClusterKey};
use samite_types::{Deadline, Error, ErrorKind, Result};
use samite_wire::control::{ControlReply, ControlRequest, NodeInfo};

use crate::shared::{Notice, Shared, lock};
use crate::worker::call;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// A question that stays unanswered for so long is asked again.
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failure; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long the node's own shards may take to take up a map.
const TAKE_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// What a follower needs to know.
pub(crate) struct Follower {
    pub coordinator: Address,
    pub key: ClusterKey,
    pub info: NodeInfo,
}

impl Follower {
    /// Follows until the node stops.
    pub(crate) fn run(&self, shared: &Shared) {
        let mut pause = PAUSE_MIN;
        while !shared.stop.is_asked() {
            let Err(error) = self.follow(shared, &mut pause);
            lock(&shared.upstream).take();
            if shared.stop.is_asked() {
                return;
            }
            let refused = matches!(
                error.kind(),
                ErrorKind::Invalid
                    | ErrorKind::Exists
                    | ErrorKind::WrongKey
                    | ErrorKind::WrongVersion
            );
            if refused && shared.map().is_none() {
                return shared.notice(Notice::Fatal(error));
            }
            tracing::debug!(%error, "follow the coordinator");
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Joins, and takes up maps until something fails.
    fn follow(&self, shared: &Shared, pause: &mut Duration) -> Result<std::convert::Infallible> {
        let who = Identity::node(&shared.faults);
        let deadline = Deadline::after(CONNECT_TIMEOUT);
        let link = Arc::new(Link::connect_as(&self.coordinator, &self.key, &who, deadline)?);
        let join = ControlRequest::Join(self.info.clone());
        let joined = call(&link, &join, Deadline::after(JOIN_TIMEOUT))?;
        // Before the map: a node that serves can pass requests on.
        *lock(&shared.upstream) = Some(Arc::clone(&link));
        take_up(shared, joined)?;
        *pause = PAUSE_MIN;
        tracing::info!(coordinator = %self.coordinator, "joined");
        loop {
            if shared.stop.is_asked() {
                return Err(Error::new(ErrorKind::Unavailable, "node is stopping"));
            }
            let watch = ControlRequest::Watch { node: self.info.node, known: shared.epoch() };
            match call(&link, &watch, Deadline::after(WATCH_TIMEOUT)) {
                Ok(reply) => take_up(shared, reply)?,
                Err(error) if error.kind() == ErrorKind::Timeout && !link.is_dead() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Makes the map in `reply`, if there is one, the node's own, and waits until its shards serve by it.
fn take_up(shared: &Shared, reply: ControlReply) -> Result<()> {
    match reply {
        ControlReply::Map(Some(data)) => {
            let map = Arc::new(ClusterMap::new(data)?);
            let epoch = map.epoch();
            shared.publish(map)?;
            shared.wait_settled(epoch, TAKE_UP_TIMEOUT);
            Ok(())
        }
        ControlReply::Map(None) | ControlReply::Ok => Ok(()),
        ControlReply::Failed { kind, message } => {
            let kind = ErrorKind::from_code(kind).unwrap_or(ErrorKind::Internal);
            Err(Error::new(kind, message))
        }
        ControlReply::Status(_)
        | ControlReply::Granted(_)
        | ControlReply::Revoked { .. }
        | ControlReply::Lock(_)
        | ControlReply::LockOwners(_)
        | ControlReply::Faults(_)
        | ControlReply::Lease(_)
        | ControlReply::NotLeader { .. } => {
            Err(Error::new(ErrorKind::Corrupt, "the coordinator's node answers another question"))
        }
    }
}
