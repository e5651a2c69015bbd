//! Who runs the cluster: adds nodes, drains and removes them, and takes note of what is lost, one wish after the other.

use std::collections::VecDeque;
use std::time::Duration;

use samite_types::{Epoch, ErrorKind, NodeId, RequestId};
use samite_wire::control::{self, ControlReply, ControlRequest, Lost};
use samite_wire::membership::NodeWish;

use crate::message::Message;
use crate::net::Place;
use crate::process::{Context, Process};
use crate::scenario::{Scenario, Want, Wished};

/// A wish without an answer, or one that cannot be yet, is told again after this.
const AGAIN: Duration = Duration::from_millis(200);

/// An operator process.
#[derive(Debug)]
pub struct SimOperator {
    coordinators: u32,
    wishes: VecDeque<Wished>,
    begun: Duration,
    /// When the last wish was fulfilled.
    done: Duration,
    /// What it has seen to be lost by which map, and is to be acknowledged.
    seen: Option<(Epoch, Vec<Lost>)>,
    next_request: u64,
}

impl SimOperator {
    /// An operator with the wishes of a scenario; `number` is of no other process.
    #[must_use]
    pub fn new(scenario: &Scenario, number: u64) -> Self {
        Self {
            coordinators: scenario.coordinators,
            wishes: scenario.wishes.iter().copied().collect(),
            begun: Duration::ZERO,
            done: Duration::ZERO,
            seen: None,
            next_request: number << 20,
        }
    }

    /// Whether everything it wanted is done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.wishes.is_empty()
    }

    /// What it wants, in words.
    #[must_use]
    pub fn doing(&self) -> String {
        format!("{:?}", self.wishes)
    }

    fn wants(&self) -> Option<Want> {
        self.wishes.front().map(|wished| wished.want)
    }

    fn tell(&mut self, context: &mut Context<'_>) {
        let Some(next) = self.wishes.front() else { return };
        let begins = (self.begun + next.at).max(self.done + next.after);
        if context.now < begins {
            return context.wake_at(begins);
        }
        let request = match (next.want, &self.seen) {
            (Want::Node(node, wish), _) => ControlRequest::Wish { node: NodeId(node), wish },
            (Want::Acknowledge, None) => ControlRequest::Map { known: Epoch(0) },
            (Want::Acknowledge, Some((by, seen))) => {
                context.audit.acknowledges(*by, seen);
                ControlRequest::AcknowledgeLoss { by: *by, seen: seen.clone() }
            }
        };
        // Answers to what was wanted before count for nothing.
        self.next_request += 1;
        let id = RequestId(self.next_request);
        // An earlier wish that came a second time, late, may have taken the drain back.
        let drain = match next.want {
            Want::Node(node, NodeWish::Remove { .. }) => {
                Some(ControlRequest::Wish { node: NodeId(node), wish: NodeWish::Drain })
            }
            _ => None,
        };
        for instance in (0..self.coordinators).map(Place::Coordinator) {
            if let Some(drain) = &drain {
                context.send(instance, Message::control(RequestId(0), drain));
            }
            context.send(instance, Message::control(id, &request));
        }
        context.wake_at(context.now + AGAIN);
    }
}

impl Process for SimOperator {
    fn start(&mut self, context: &mut Context<'_>) {
        self.begun = context.now;
        self.tell(context);
    }

    fn receive(&mut self, _: Place, message: Message, context: &mut Context<'_>) {
        let Message::ControlReply { id, body } = message else { return };
        if id != RequestId(self.next_request) || self.wishes.is_empty() {
            return;
        }
        let is_done = match control::decode(&body) {
            Ok(ControlReply::Map(Some(map))) => {
                let is_look = self.seen.is_none() && self.wants() == Some(Want::Acknowledge);
                if is_look && !map.losses.is_empty() {
                    self.seen = Some((map.epoch, map.losses));
                    return self.tell(context);
                }
                true
            }
            // It was removed, and nobody heard.
            Ok(ControlReply::Failed { kind, .. }) => {
                let removes = matches!(self.wants(), Some(Want::Node(_, NodeWish::Remove { .. })));
                kind == ErrorKind::NotFound.code() && removes
            }
            _ => false,
        };
        if is_done {
            let done = self.wishes.pop_front();
            self.seen = None;
            context.note(|| format!("has {done:?}"));
            self.next_request += 1;
            self.done = context.now;
            self.tell(context);
        }
    }

    fn broken(&mut self, _: Place, _: &mut Context<'_>) {}

    fn wake(&mut self, context: &mut Context<'_>) {
        self.tell(context);
    }
}
