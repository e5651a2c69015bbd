//! The worker: control requests that have to wait for other nodes. One thread, one at a time.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use samite_types::{Deadline, Epoch, Error, ErrorKind, Result};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::events::LOG_FILTER_LEN_MAX;

use crate::control_reply::{refusal, refused};
use crate::inbox::InboxMessage;
use crate::membership::map_watch::take_up_map;
use crate::membership::reports::ask_leader;
use crate::shared::{NodeShared, WorkerJob};
use crate::targets::{NodeTargets, is_remembered};

/// How long a change of the cluster map waits for nodes that do not answer. They serve by the old map meanwhile, and tell
/// clients with the new one to try again.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the leader may take for a forwarded request, and others for becoming leader; more than [`SETTLE_TIMEOUT`].
const FORWARD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a leader is looked for again.
const LEADER_PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn run(shared: &NodeShared, targets: &NodeTargets, jobs: &Receiver<WorkerJob>) {
    while let Ok(job) = jobs.recv() {
        let (to, reply) = match job {
            WorkerJob::End => return,
            WorkerJob::Settle { epoch, reply, to } => {
                shared.job_taken();
                settle(shared, epoch);
                (to, reply)
            }
            WorkerJob::ChangeKey { step, to } => {
                shared.job_taken();
                let reply = shared.tickets.change_key(&step).map(ControlReply::Keys);
                (to, reply.unwrap_or_else(|error| refused(&error)))
            }
            WorkerJob::Forward { request, to } => {
                shared.job_taken();
                let reply =
                    check_target(targets, &request).and_then(|()| forward(shared, &request));
                (to, reply.unwrap_or_else(|error| refused(&error)))
            }
            WorkerJob::Own { request, to } => {
                shared.job_taken();
                let reply = own_asked(shared, request);
                (to, reply.unwrap_or_else(|error| refused(&error)))
            }
        };
        shared.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
    }
}

/// Reads the log, or changes what is logged, or what the memory target holds.
fn own_asked(shared: &NodeShared, request: ControlRequest) -> Result<ControlReply> {
    if let ControlRequest::Resize { memory_bytes } = request {
        return shared.resize(memory_bytes).map(|()| ControlReply::Ok);
    }
    let none = || Error::new(ErrorKind::Unsupported, format!("{} keeps no log", shared.node));
    let logs = shared.logs.as_ref().ok_or_else(none)?;
    match request {
        ControlRequest::SetLogFilter { filter } if filter.len() > LOG_FILTER_LEN_MAX => {
            let words = format!("a log filter has at most {LOG_FILTER_LEN_MAX} bytes");
            Err(Error::new(ErrorKind::Invalid, words))
        }
        ControlRequest::SetLogFilter { filter } => {
            logs.set_filter(&filter).map(|()| ControlReply::Ok)
        }
        ControlRequest::ReadLog { from } => logs.read(from).map(ControlReply::Log),
        _ => Err(ErrorKind::Internal.into()),
    }
}

fn settle(shared: &NodeShared, epoch: Epoch) {
    if !shared.wait_settled(epoch, SETTLE_TIMEOUT) {
        tracing::warn!(%epoch, "some nodes do not serve by the new cluster map yet");
    }
}

/// A dataset is made only when its target can be opened here.
fn check_target(targets: &NodeTargets, request: &ControlRequest) -> Result<()> {
    match request {
        ControlRequest::CreateDataset(spec) if is_remembered(&spec.backend) => {
            samite_registry::check(spec)?;
            targets.check(&spec.backend)
        }
        _ => Ok(()),
    }
}

/// Asks the leader, and its successor when it is lost, until there is an answer.
fn forward(shared: &NodeShared, request: &ControlRequest) -> Result<ControlReply> {
    let deadline = Deadline::after(FORWARD_TIMEOUT);
    let mut is_repeated = false;
    loop {
        let Some(left) = deadline.remaining() else { return Err(ErrorKind::Timeout.into()) };
        let error = match ask_leader(shared, request.clone(), left) {
            Ok(reply @ ControlReply::NotLeader { .. }) => refusal(&reply),
            Ok(reply) => return taken_up(shared, request, reply, is_repeated),
            Err(error) => {
                // It may have been done all the same.
                is_repeated = true;
                error
            }
        };
        if deadline.remaining().is_none_or(|left| left < LEADER_PAUSE) || shared.stop.is_asked() {
            return Err(error);
        }
        std::thread::sleep(LEADER_PAUSE);
    }
}

/// The leader has answered `request`.
fn taken_up(
    shared: &NodeShared,
    request: &ControlRequest,
    reply: ControlReply,
    is_repeated: bool,
) -> Result<ControlReply> {
    match reply {
        ControlReply::Map(Some(data)) => {
            take_up_map(shared, data.clone())?;
            if shared.membership.leads() {
                settle(shared, shared.epoch());
            }
            Ok(ControlReply::Map(Some(data)))
        }
        ControlReply::Failed { kind, .. }
            if is_repeated
                && kind == ErrorKind::NotFound.code()
                && matches!(request, ControlRequest::DropDataset { .. }) =>
        {
            Ok(ControlReply::Ok)
        }
        reply => Ok(reply),
    }
}
