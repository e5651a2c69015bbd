//! Reports of primaries about the members of their groups, on the way to the leader.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use samite_placement::shard_of;
use samite_types::{Deadline, Epoch, Error, ErrorKind, Result, TargetId};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::membership::{MemberChanges, MemberReport};

use super::AnswerRoute;
use super::map_watch::take_up_reply;
use crate::inbox::InboxMessage;
use crate::mutex::lock;
use crate::node_calls::call;
use crate::shared::NodeShared;

/// How long the leader may take over reports.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a report waits that a member is up to date: partitions become so one soon after the other, and each new map is saved, goes to every node, and is
/// taken up by every shard. That a member is missing is told at once.
const GATHER: Duration = Duration::from_millis(25);
/// Most members that are named in the log each time.
const TOLD_MAX: usize = 8;
/// How often the thread looks whether the node stops.
const LOOK: Duration = Duration::from_secs(1);

/// Takes reports to the leader until the node stops. Each is tried once: its result shows in the
/// map, and the primary that made it makes it again while the map says otherwise.
pub(crate) fn run(shared: &NodeShared) {
    while !shared.stop.is_asked() {
        let reports = shared.membership.reports.take(LOOK, GATHER);
        if reports.is_empty() {
            continue;
        }
        if let Err(error) = deliver(shared, reports) {
            tracing::info!(%error, "reports members in vain");
            std::thread::sleep(PAUSE);
        }
    }
}

fn deliver(shared: &NodeShared, reports: Vec<MemberReport>) -> Result<()> {
    let count = |change| reports.iter().filter(|report| report.change == change).count();
    let [missed, synced, broken] =
        [MemberChanges::Missed, MemberChanges::Synced, MemberChanges::Broken].map(count);
    let mut targets: Vec<TargetId> = reports.iter().map(|report| report.target).collect();
    targets.sort_unstable();
    targets.dedup();
    targets.truncate(TOLD_MAX);
    tracing::info!(epoch = %shared.epoch(), missed, synced, broken, ?targets, "reports members");
    let (node, known) = (shared.node, shared.epoch());
    let request = ControlRequest::Report { node, known, reports: reports.clone() };
    let reply = ask_leader(shared, request, REPORT_TIMEOUT)?;
    if let Some(by) = answered_by(&reply, known) {
        for report in reports.into_iter().filter(|report| report.change == MemberChanges::Missed) {
            let shard = shard_of(report.partition, shared.shards());
            shared.inboxes[usize::from(shard.get())].send(InboxMessage::Reported(report, by));
        }
    }
    // A change of the map that does not fit is the business of the map watch.
    take_up_reply(shared, reply)
}

/// Epoch of the leader's map, by its answer to a node that has that of `known`; `None`: it does not
/// answer as leader.
const fn answered_by(reply: &ControlReply, known: Epoch) -> Option<Epoch> {
    match reply {
        ControlReply::Map(Some(data)) => Some(data.epoch),
        ControlReply::Map(None) => Some(known),
        ControlReply::MapDelta(delta) => Some(delta.to),
        _ => None,
    }
}

/// Asks the leader, in this node or elsewhere.
pub(crate) fn ask_leader(
    shared: &NodeShared,
    request: ControlRequest,
    timeout: Duration,
) -> Result<ControlReply> {
    if shared.membership.leads() {
        let (answer, answered) = sync_channel(1);
        shared.membership.ask(request, AnswerRoute::Thread(answer))?;
        return answered.recv_timeout(timeout).map_err(|_| {
            Error::new(ErrorKind::Timeout, "the coordinator in this node does not answer in time")
        });
    }
    let upstream = lock(&shared.upstream).clone().ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "no coordinator that leads can be reached")
    })?;
    call(&upstream, &request, Deadline::after(timeout))
}
