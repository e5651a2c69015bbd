//! The leader key: which instance of the coordinator leads, in a store that changes the key by
//! compare-and-swap.

use samite_wire::membership::LeaderAddress;
use serde::{Deserialize, Serialize};

/// The contents of the leader key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderSeat {
    /// The instance that has it.
    pub leader: LeaderAddress,
    /// The instance, drawn when it started.
    pub instance: u64,
    /// Counts the writes of that instance.
    pub beat: u64,
}

/// The leader key at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedKey {
    /// Revision of its last change; 0 when there is no such key.
    pub revision: u64,
    /// Its contents; `None` when there is no such key, or something else.
    pub seat: Option<LeaderSeat>,
}
