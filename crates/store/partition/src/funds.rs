//! The space of changes: on which account it goes, here and on other members of a mirror group.

use crate::Partition;

/// The account for the space of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeFunds {
    /// The free space here.
    #[default]
    Own,
    /// The same, and other members have room for `bytes`; a change that takes more than
    /// `full_above` fits nowhere.
    Members {
        /// The room that the member with the least still has for this primary.
        bytes: u64,
        /// The room that the fullest member had when it was asked lately; without a limit when none
        /// was full.
        full_above: u64,
        /// Whether they have something left for changes that make room; `None`: not all have said.
        has_reserve: Option<bool>,
    },
    /// The room that is kept here for another member's decisions.
    Kept,
    /// Somebody counts on it: small records may take more than there is.
    Promised,
}

impl Partition {
    /// Where the space of the changes from here on comes from, unless another member has decided on
    /// them.
    pub const fn set_funds(&mut self, funds: ChangeFunds) {
        self.funds = funds;
    }

    /// The most that the last change takes of another member, in bytes; 0 when nobody has asked.
    pub const fn take_charge(&mut self) -> u64 {
        std::mem::replace(&mut self.charge, 0)
    }

    /// The most that a change would have taken, in bytes, which other members are not known to have
    /// room for.
    pub const fn take_short(&mut self) -> Option<u64> {
        self.short.take()
    }

    /// Keeps space for changes that another member decides on: at least `least` bytes, if they are
    /// there, and `wanted`, if the target can spare them. Returns how many bytes are kept.
    pub fn keep(&mut self, least: u64, wanted: u64) -> u64 {
        self.store.keep(least, wanted)
    }

    /// Whether the target has something left for changes that make room.
    #[must_use]
    pub fn has_reserve(&self) -> bool {
        self.store.has_reserve()
    }
}
