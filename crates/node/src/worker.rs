//! The worker: control requests that have to wait for other nodes. One thread, one at a time.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_transport::client::{Link, Outgoing};
use samite_types::{Deadline, Epoch, Error, ErrorKind, Result};
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::frame::FrameKind;

use crate::control::refused;
use crate::inbox::Message;
use crate::shared::{Job, Shared, lock};

/// How long a change of the cluster map waits for nodes that do not answer. They serve by the old map meanwhile, and tell
/// clients with the new one to try again.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the coordinator's node may take for a forwarded request; more than [`SETTLE_TIMEOUT`].
const FORWARD_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(shared: &Shared, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        let (to, reply) = match job {
            Job::End => return,
            Job::Settle { epoch, reply, to } => {
                settle(shared, epoch);
                (to, reply)
            }
            Job::Forward { request, to } => {
                (to, forward(shared, &request).unwrap_or_else(|error| refused(&error)))
            }
        };
        shared.inboxes[usize::from(to.shard.get())].send(Message::Control(to, reply));
    }
}

fn settle(shared: &Shared, epoch: Epoch) {
    if !shared.wait_settled(epoch, SETTLE_TIMEOUT) {
        tracing::warn!(%epoch, "some nodes do not serve by the new cluster map yet");
    }
}

fn forward(shared: &Shared, request: &ControlRequest) -> Result<ControlReply> {
    let upstream = lock(&shared.upstream).clone().ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "the coordinator's node cannot be reached")
    })?;
    let reply = call(&upstream, request, Deadline::after(FORWARD_TIMEOUT))?;
    if let ControlReply::Map(Some(data)) = &reply {
        let map = ClusterMap::new(data.clone())?;
        let epoch = map.epoch();
        shared.publish(Arc::new(map))?;
        settle(shared, epoch);
    }
    Ok(reply)
}

/// Asks the node at the other end of `link`.
pub(crate) fn call(
    link: &Link,
    request: &ControlRequest,
    deadline: Deadline,
) -> Result<ControlReply> {
    let body = control::encode(request);
    let outgoing = Outgoing { kind: FrameKind::Control, body: &body, payload: &[] };
    link.call(outgoing, deadline, |reply| control::decode(reply.body()))?.map_err(Error::from)
}
