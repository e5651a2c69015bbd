//! Requests for the coordinator's state and their replies, which the store and the voters answer.

use samite_coordinator::leader_key::{LeaderSeat, ObservedKey};
use serde::{Deserialize, Serialize};

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
