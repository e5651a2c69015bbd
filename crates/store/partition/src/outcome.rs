//! Outcomes of operations.

use samite_backend::ValuePiece;
use samite_types::{ErrorKind, Version};
use samite_wire::op::PerAction;
use smallvec::SmallVec;

/// The outcome of an operation; it owns its parts, so a reply can be built from it at any time.
#[derive(Debug)]
pub enum AppliedOutcome {
    /// Took effect; one output for each action.
    Done(PerAction<ActionOutput>),
    /// Had no effect.
    Failed {
        /// Why; [`ErrorKind::Conflict`] when a guard was not true.
        kind: ErrorKind,
        /// Which guard (for `Conflict`) or which action, counted from 0.
        index: u16,
        /// The record that made a guard fail, if it was asked for.
        current: Option<Current>,
    },
}

/// A record as it is: its version, the whole length of its value, the value's first bytes.
pub type Current = (Version, u32, Vec<u8>);

/// Why an operation has no effect.
#[derive(Debug)]
pub(crate) struct AppliedFailure {
    pub(crate) kind: ErrorKind,
    pub(crate) index: u16,
    pub(crate) current: Option<Current>,
}

impl AppliedFailure {
    /// Of guard or action `index`. There are few of them: the index fits.
    pub(crate) const fn new(kind: ErrorKind, index: usize) -> Self {
        Self { kind, index: index as u16, current: None }
    }
}

/// The result of one action. See [`samite_wire::op::ActionResult`], its form on the wire.
#[derive(Debug)]
pub enum ActionOutput {
    /// Of a `Get`, `Locate` or `Holders`.
    Value {
        /// Version of the record.
        version: Version,
        /// Whole length of its value, in bytes.
        total_len: u32,
        /// The bytes asked for, in order.
        pieces: SmallVec<[ValuePiece; 1]>,
    },
    /// Of a `Put`, `Write`, `Append` or `Truncate`.
    Written {
        /// Version of the record after.
        version: Version,
        /// Offset at which the bytes went.
        offset: u32,
        /// Length of the value after.
        total_len: u32,
        /// The record did not exist before.
        created: bool,
    },
    /// Of a `Delete`.
    Deleted {
        /// The record existed.
        existed: bool,
    },
    /// Of an `Add`, `Max`, `DeletePrefix`, `RaiseLease` or `Lease`, and of most actions on open
    /// references.
    Number(u64),
    /// Of a `List`.
    Listing {
        /// There is nothing after the last entry.
        complete: bool,
        /// How many entries there are.
        count: u32,
        /// Entries as they travel.
        entries: Vec<u8>,
    },
}
