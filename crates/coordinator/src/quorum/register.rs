//! The register: two keys with revisions, changed by compare-and-swap.

use serde::{Deserialize, Serialize};

use crate::store::election::{Observed, Seat};

/// A change of the register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Write the leader key if it still has the revision `expected`; and the state with it, if that has the revision given.
    Swap {
        /// Revision; 0: there is no key.
        expected: u64,
        /// New content of the leader key.
        seat: Seat,
        /// Revision that the state has, and the new state.
        state: Option<(u64, Vec<u8>)>,
    },
    /// Remove the leader key if it still has this revision.
    Remove(u64),
}

/// What came of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took effect, and the keys that it wrote have this revision.
    Done(u64),
    /// A key had another revision; this is the leader key.
    Lost(Observed),
}

/// The two keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Changes so far; each is the revision of what it wrote.
    changes: u64,
    leader: Option<(u64, Seat)>,
    state: Option<(u64, Vec<u8>)>,
}

impl Register {
    /// Carries out a change.
    pub fn apply(&mut self, change: &Change) -> Answer {
        let leader = self.leader.as_ref().map_or(0, |(revision, _)| *revision);
        match change {
            Change::Swap { expected, seat, state } => {
                let is_current = |(revision, _): &(u64, Vec<u8>)| *revision == self.state().0;
                if *expected != leader || !state.as_ref().is_none_or(is_current) {
                    return Answer::Lost(self.observed());
                }
                self.changes += 1;
                self.leader = Some((self.changes, seat.clone()));
                if let Some((_, state)) = state {
                    self.state = Some((self.changes, state.clone()));
                }
            }
            Change::Remove(expected) => {
                if *expected != leader {
                    return Answer::Lost(self.observed());
                }
                self.changes += 1;
                self.leader = None;
            }
        }
        Answer::Done(self.changes)
    }

    /// The leader key.
    #[must_use]
    pub fn observed(&self) -> Observed {
        match &self.leader {
            Some((revision, seat)) => Observed { revision: *revision, seat: Some(seat.clone()) },
            None => Observed { revision: 0, seat: None },
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
