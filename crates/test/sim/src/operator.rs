//! The operator that runs the cluster: adds nodes, drains and removes them, and acknowledges
//! losses, one admin request after the other.

use std::collections::VecDeque;
use std::time::Duration;

use samite_types::{Epoch, ErrorKind, NodeId, RequestId};
use samite_wire::control::{self, ControlReply, ControlRequest, LostRecords};
use samite_wire::membership::AdminRequest;

use crate::message::SimMessage;
use crate::net::ProcessPlace;
use crate::process::{ProcessContext, SimProcess};
use crate::scenario::{OperatorRequest, PlannedRequest, RunScenario};

/// An admin request without an answer, or one that cannot be carried out yet, is sent again after
/// this.
const AGAIN: Duration = Duration::from_millis(200);

/// An operator process.
#[derive(Debug)]
pub struct SimOperator {
    coordinators: u32,
    admin_requests: VecDeque<PlannedRequest>,
    begun: Duration,
    /// When the last admin request was fulfilled.
    done: Duration,
    /// The losses that it has seen by which map, and that are to be acknowledged.
    seen: Option<(Epoch, Vec<LostRecords>)>,
    next_request: u64,
}

impl SimOperator {
    /// An operator with the admin requests of a scenario; `number` is of no other process.
    #[must_use]
    pub fn new(scenario: &RunScenario, number: u64) -> Self {
        Self {
            coordinators: scenario.coordinators,
            admin_requests: scenario.admin_requests.iter().copied().collect(),
            begun: Duration::ZERO,
            done: Duration::ZERO,
            seen: None,
            next_request: number << 20,
        }
    }

    /// Whether everything it wanted is done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.admin_requests.is_empty()
    }

    /// Its request, in words.
    #[must_use]
    pub fn doing(&self) -> String {
        format!("{:?}", self.admin_requests)
    }

    fn wants(&self) -> Option<OperatorRequest> {
        self.admin_requests.front().map(|wished| wished.want)
    }

    fn tell(&mut self, context: &mut ProcessContext<'_>) {
        let Some(next) = self.admin_requests.front() else { return };
        let begins = (self.begun + next.at).max(self.done + next.after);
        if context.now < begins {
            return context.wake_at(begins);
        }
        let request = match (next.want, &self.seen) {
            (OperatorRequest::Node(node, request), _) => {
                ControlRequest::Wish { node: NodeId(node), request }
            }
            (OperatorRequest::Acknowledge, None) => ControlRequest::Map { known: Epoch(0) },
            (OperatorRequest::Acknowledge, Some((by, seen))) => {
                context.audit.acknowledges(*by, seen);
                ControlRequest::AcknowledgeLoss { by: *by, seen: seen.clone() }
            }
        };
        // Answers to earlier requests count for nothing.
        self.next_request += 1;
        let id = RequestId(self.next_request);
        // An earlier admin request that came a second time, late, may have taken the drain back.
        let drain = match next.want {
            OperatorRequest::Node(node, AdminRequest::Remove { .. }) => {
                Some(ControlRequest::Wish { node: NodeId(node), request: AdminRequest::Drain })
            }
            _ => None,
        };
        for instance in (0..self.coordinators).map(ProcessPlace::Coordinator) {
            if let Some(drain) = &drain {
                context.send(instance, SimMessage::control(RequestId(0), drain));
            }
            context.send(instance, SimMessage::control(id, &request));
        }
        context.wake_at(context.now + AGAIN);
    }
}

impl SimProcess for SimOperator {
    fn start(&mut self, context: &mut ProcessContext<'_>) {
        self.begun = context.now;
        self.tell(context);
    }

    fn receive(&mut self, _: ProcessPlace, message: SimMessage, context: &mut ProcessContext<'_>) {
        let SimMessage::ControlReply { id, body } = message else { return };
        if id != RequestId(self.next_request) || self.admin_requests.is_empty() {
            return;
        }
        let is_done = match control::decode(&body) {
            Ok(ControlReply::Map(Some(map))) => {
                let is_look =
                    self.seen.is_none() && self.wants() == Some(OperatorRequest::Acknowledge);
                if is_look && !map.losses.is_empty() {
                    self.seen = Some((map.epoch, map.losses));
                    return self.tell(context);
                }
                true
            }
            // It was removed, and nobody heard.
            Ok(ControlReply::Failed { kind, .. }) => {
                let removes = matches!(
                    self.wants(),
                    Some(OperatorRequest::Node(_, AdminRequest::Remove { .. }))
                );
                kind == ErrorKind::NotFound.code() && removes
            }
            _ => false,
        };
        if is_done {
            let done = self.admin_requests.pop_front();
            self.seen = None;
            context.note(|| format!("has {done:?}"));
            self.next_request += 1;
            self.done = context.now;
            self.tell(context);
        }
    }

    fn broken(&mut self, _: ProcessPlace, _: &mut ProcessContext<'_>) {}

    fn wake(&mut self, context: &mut ProcessContext<'_>) {
        self.tell(context);
    }
}
