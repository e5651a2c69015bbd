//! Who runs the cluster: adds nodes, drains and removes them, one wish after the other.

use std::collections::VecDeque;
use std::time::Duration;

use samite_types::{ErrorKind, NodeId, RequestId};
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::membership::NodeWish;

use crate::message::Message;
use crate::net::Place;
use crate::process::{Context, Process};
use crate::scenario::{Scenario, Wished};

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

    fn tell(&mut self, context: &mut Context<'_>) {
        let Some(next) = self.wishes.front() else { return };
        let begins = (self.begun + next.at).max(self.done + next.after);
        if context.now < begins {
            return context.wake_at(begins);
        }
        let request = ControlRequest::Wish { node: NodeId(next.node), wish: next.wish };
        // Answers to what was wanted before count for nothing.
        self.next_request += 1;
        let id = RequestId(self.next_request);
        // An earlier wish that came a second time, late, may have taken the drain back.
        let drain = ControlRequest::Wish { node: NodeId(next.node), wish: NodeWish::Drain };
        let drains = matches!(next.wish, NodeWish::Remove { .. });
        for instance in (0..self.coordinators).map(Place::Coordinator) {
            if drains {
                context.send(instance, Message::control(RequestId(0), &drain));
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
            Ok(ControlReply::Map(Some(_))) => true,
            // It was removed, and nobody heard.
            Ok(ControlReply::Failed { kind, .. }) => {
                let wish = self.wishes.front().map(|wished| wished.wish);
                kind == ErrorKind::NotFound.code() && matches!(wish, Some(NodeWish::Remove { .. }))
            }
            _ => false,
        };
        if is_done {
            let done = self.wishes.pop_front();
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
