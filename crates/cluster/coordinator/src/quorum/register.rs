//! The register: two keys with revisions, changed by compare-and-swap.

use serde::{Deserialize, Serialize};

use crate::leader_key::{LeaderSeat, ObservedKey};

/// A change of the register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegisterChange {
    /// Write the leader key if it still has the revision `expected`; and the state with it, if that has the revision given.
    Swap {
        /// Revision; 0: there is no key.
        expected: u64,
        /// New content of the leader key.
        seat: LeaderSeat,
        /// Revision that the state has, and the new state.
        state: Option<(u64, Vec<u8>)>,
    },
    /// Remove the leader key if it still has this revision.
    Remove(u64),
}

/// The result of a [`RegisterChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterAnswer {
    /// It took effect, and the keys that it wrote have this revision.
    Done(u64),
    /// A key had another revision; this is the leader key.
    Lost(ObservedKey),
}

/// The two keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRegister {
    /// Changes so far; each is the revision of the value that it wrote.
    changes: u64,
    leader: Option<(u64, LeaderSeat)>,
    state: Option<(u64, Vec<u8>)>,
}

impl StateRegister {
    /// Carries out a change.
    pub fn apply(&mut self, change: &RegisterChange) -> RegisterAnswer {
        let leader = self.leader.as_ref().map_or(0, |(revision, _)| *revision);
        match change {
            RegisterChange::Swap { expected, seat, state } => {
                let is_current = |(revision, _): &(u64, Vec<u8>)| *revision == self.state().0;
                if *expected != leader || !state.as_ref().is_none_or(is_current) {
                    return RegisterAnswer::Lost(self.observed());
                }
                self.changes += 1;
                self.leader = Some((self.changes, seat.clone()));
                if let Some((_, state)) = state {
                    self.state = Some((self.changes, state.clone()));
                }
            }
            RegisterChange::Remove(expected) => {
                if *expected != leader {
                    return RegisterAnswer::Lost(self.observed());
                }
                self.changes += 1;
                self.leader = None;
            }
        }
        RegisterAnswer::Done(self.changes)
    }

    /// The leader key.
    #[must_use]
    pub fn observed(&self) -> ObservedKey {
        match &self.leader {
            Some((revision, seat)) => ObservedKey { revision: *revision, seat: Some(seat.clone()) },
            None => ObservedKey { revision: 0, seat: None },
        }
    }

    /// Revision of the state, 0 when there is none, and the state.
    #[must_use]
    pub fn state(&self) -> (u64, &[u8]) {
        self.state.as_ref().map_or((0, &[]), |(revision, state)| (*revision, state))
    }

    /// Changes so far.
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.changes
    }
}
