//! The store of the coordinator's state: two values and a compare-and-swap, as etcd has them. It
//! may be away for a while; a value that it has answered stays.

use samite_coordinator::leader_key::{LeaderSeat, ObservedKey};
use samite_wire::control;
use serde::{Deserialize, Serialize};

use crate::message::SimMessage;
use crate::net::ProcessPlace;
use crate::process::{ProcessContext, SimProcess};

/// Asks the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateRequest {
    /// Which instance has the leader key?
    Read,
    /// Write the leader key if it has this revision, and with it the state, if there is one here.
    Swap {
        /// Revision of the leader key.
        expected: u64,
        /// Its new content.
        seat: LeaderSeat,
        /// The new state.
        state: Option<Vec<u8>>,
    },
    /// The state as last written.
    Load,
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateReply {
    /// The leader key.
    Key(KeyState),
    /// Written; the key has this revision now.
    Swapped(u64),
    /// The state.
    State(Option<Vec<u8>>),
}

/// The leader key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyState {
    /// Revision of its last change; 0: there is no such key.
    pub revision: u64,
    /// The value that is stored.
    pub seat: Option<LeaderSeat>,
}

impl From<KeyState> for ObservedKey {
    fn from(key: KeyState) -> Self {
        Self { revision: key.revision, seat: key.seat }
    }
}

/// The store.
#[derive(Debug, Default)]
pub struct SimulatedEtcd {
    key: KeyState,
    changes: u64,
    state: Option<Vec<u8>>,
}

/// Where on its disk everything is.
const FILE: &str = "all";

impl SimulatedEtcd {
    fn answer(&mut self, request: StateRequest) -> StateReply {
        match request {
            StateRequest::Read => StateReply::Key(self.key.clone()),
            StateRequest::Load => StateReply::State(self.state.clone()),
            StateRequest::Swap { expected, .. } if expected != self.key.revision => {
                StateReply::Key(self.key.clone())
            }
            StateRequest::Swap { seat, state, .. } => {
                self.changes += 1;
                self.key = KeyState { revision: self.changes, seat: Some(seat) };
                if state.is_some() {
                    self.state = state;
                }
                StateReply::Swapped(self.changes)
            }
        }
    }
}

impl SimProcess for SimulatedEtcd {
    fn start(&mut self, context: &mut ProcessContext<'_>) {
        let kept = context.disk.files.get(FILE).map(|bytes| control::decode(bytes));
        if let Some(Ok((key, changes, state))) = kept {
            *self = Self { key, changes, state };
        }
    }

    fn receive(
        &mut self,
        from: ProcessPlace,
        message: SimMessage,
        context: &mut ProcessContext<'_>,
    ) {
        let SimMessage::Keeper { id, body } = message else { return };
        let Ok(request) = control::decode(&body) else { return };
        let before = self.changes;
        let reply = self.answer(request);
        if self.changes != before {
            let all = control::encode(&(&self.key, self.changes, &self.state));
            context.disk.files.insert(FILE, all);
        }
        context.send(from, SimMessage::KeeperReply { id, body: control::encode(&reply) });
    }

    fn broken(&mut self, _: ProcessPlace, _: &mut ProcessContext<'_>) {}

    fn wake(&mut self, _: &mut ProcessContext<'_>) {}
}
