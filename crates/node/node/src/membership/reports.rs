//! Reports of primaries about the members of their groups, on the way to the leader.

use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use samite_placement::shard_of;
use samite_types::{Deadline, Epoch, Error, ErrorKind, Result, TargetId};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::membership::{MemberChanges, MemberReport, REPORTS_MAX};

use super::AnswerRoute;
use super::map_watch::take_up_reply;
use crate::inbox::InboxMessage;
use crate::shared::{NodeShared, lock};
use crate::worker::call;

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

/// Reports that wait, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct WaitingReports {
    waiting: Mutex<Vec<MemberReport>>,
    added: Condvar,
}

impl WaitingReports {
    /// Adds a report; whether there was room. A report that waits already is not added again.
    pub(crate) fn add(&self, report: MemberReport) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.contains(&report) {
            return true;
        }
        if waiting.len() >= REPORTS_MAX {
            return false;
        }
        waiting.push(report);
        self.added.notify_one();
        true
    }

    /// Takes all; waits for some at most for `timeout`, and then for others at most for `gather` if none of them is urgent.
    fn take(&self, timeout: Duration, gather: Duration) -> Vec<MemberReport> {
        let wait = |waiting, timeout, until: fn(&mut Vec<MemberReport>) -> bool| {
            let waited = self.added.wait_timeout_while(waiting, timeout, until);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let mut waiting = wait(lock(&self.waiting), timeout, |waiting| waiting.is_empty());
        if !waiting.is_empty() {
            waiting = wait(waiting, gather, |waiting| can_wait(waiting));
        }
        std::mem::take(&mut *waiting)
    }
}

/// Whether none of these is urgent, and there is room for others.
fn can_wait(waiting: &[MemberReport]) -> bool {
    waiting.len() < REPORTS_MAX && waiting.iter().all(|report| report.news == MemberChanges::Synced)
}

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
    let count = |news| reports.iter().filter(|report| report.news == news).count();
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
        for report in reports.into_iter().filter(|report| report.news == MemberChanges::Missed) {
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

/// The text of an answer that does not fit, or is a refusal.
pub(crate) fn refusal(reply: &ControlReply) -> Error {
    match reply {
        ControlReply::Failed { kind, message } => {
            let kind = ErrorKind::from_code(*kind).unwrap_or(ErrorKind::Internal);
            Error::new(kind, message.clone())
        }
        ControlReply::NotLeader { .. } => {
            Error::new(ErrorKind::Unavailable, "this coordinator does not lead")
        }
        _ => Error::new(ErrorKind::Corrupt, "the coordinator answers another question"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_types::{PartitionId, Redundancy, Term};

    /// Longer than the test may take.
    const FOREVER: Duration = Duration::from_secs(600);

    fn report(partition: u32) -> MemberReport {
        news(partition, MemberChanges::Missed)
    }

    fn news(partition: u32, news: MemberChanges) -> MemberReport {
        MemberReport {
            redundancy: Redundancy(2),
            partition: PartitionId(partition),
            term: Term(1),
            epoch: Epoch(1),
            target: TargetId(1),
            news,
        }
    }

    #[test]
    fn that_members_are_up_to_date_is_gathered_and_bad_news_waits_for_nothing() {
        let reports = WaitingReports::default();
        reports.add(news(1, MemberChanges::Synced));
        reports.add(news(2, MemberChanges::Synced));
        assert_eq!(reports.take(FOREVER, Duration::from_millis(1)).len(), 2);
        std::thread::scope(|scope| {
            reports.add(news(1, MemberChanges::Synced));
            let taken = scope.spawn(|| reports.take(FOREVER, FOREVER));
            reports.add(news(2, MemberChanges::Synced));
            reports.add(report(3));
            let taken = taken.join().expect("it ends");
            assert!(taken.contains(&report(3)), "{taken:?}");
        });
    }

    #[test]
    fn reports_are_kept_once_in_order_and_bounded() {
        let reports = WaitingReports::default();
        for partition in (0..REPORTS_MAX as u32).chain([7]) {
            assert!(reports.add(report(partition)));
        }
        assert!(!reports.add(report(u32::MAX)));
        let taken = reports.take(Duration::ZERO, FOREVER);
        assert!(taken.into_iter().eq((0..REPORTS_MAX as u32).map(report)));
        assert!(reports.take(Duration::ZERO, FOREVER).is_empty());
    }
}
