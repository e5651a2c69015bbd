//! Outcomes of operations, owned.

use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::op::List;

/// The outcome of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedOutcome {
    /// Took effect; one result for each action.
    Done(List<OwnedResult, 2>),
    /// Had no effect.
    Failed(OwnedFailure),
}

/// The result of one action; see [`samite_wire::op::ActionResult`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedResult {
    /// Of a `Get`.
    Value {
        /// Version of the record.
        version: Version,
        /// Whole length of its value, in bytes.
        total_len: u32,
        /// Bytes read: the length of `data`, or how many landed in the operation's `dest`.
        len: usize,
        /// The bytes, unless they landed in `dest`.
        data: Vec<u8>,
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
    /// Of an `Add`, `Max`, `DeletePrefix`, `Punch`, `RaiseLease` or `Lease`.
    Number(u64),
    /// Of a `List` or `Extents`.
    Listing {
        /// There is nothing after the last entry.
        complete: bool,
        /// Entries in the order of the listing.
        entries: Vec<OwnedEntry>,
    },
}

/// One record in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedEntry {
    /// Key.
    pub key: Box<[u8]>,
    /// Version.
    pub version: Version,
    /// Whole length of the value, in bytes.
    pub total_len: u32,
    /// The first bytes of the value, as many as were asked for.
    pub value: Box<[u8]>,
}

/// Why an operation had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedFailure {
    /// The error; [`ErrorKind::Conflict`] when a guard was not true.
    pub kind: ErrorKind,
    /// Which guard or action, counted from 0 (guards and actions each from 0).
    pub index: u16,
    /// The record that made a guard fail, when the operation asked for it.
    pub current: Option<GuardedRecord>,
}

/// The record that made a guard fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedRecord {
    /// Version of the record.
    pub version: Version,
    /// Whole length of its value, in bytes.
    pub total_len: u32,
    /// The first bytes of the value, as many as were asked for.
    pub bytes: Vec<u8>,
}

impl OwnedOutcome {
    /// The results, or the failure as an error named by `what` ("put \"k\"").
    ///
    /// # Errors
    /// The kind of the failure.
    pub fn into_results(self, what: impl std::fmt::Display) -> Result<List<OwnedResult, 2>> {
        match self {
            Self::Done(results) => Ok(results),
            Self::Failed(failure) => Err(failure.into_error(what)),
        }
    }

    /// Whether it took effect.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// The failure, if it had no effect.
    #[must_use]
    pub const fn failure(&self) -> Option<&OwnedFailure> {
        match self {
            Self::Done(_) => None,
            Self::Failed(failure) => Some(failure),
        }
    }
}

impl OwnedFailure {
    /// An error of the failure's kind, named by `what`.
    #[must_use]
    pub fn into_error(self, what: impl std::fmt::Display) -> Error {
        let cause = match self.kind {
            ErrorKind::NotFound => "no such record",
            ErrorKind::Invalid => "the operation makes no sense for this record",
            ErrorKind::Corrupt => {
                "what is stored is damaged, and no other copy could help; `samite scrub` tells of all such"
            }
            kind => kind.words(),
        };
        Error::new(self.kind, format!("{what}: {cause}"))
    }
}

impl OwnedResult {
    /// Of a write: the record's version and length after, and the offset at which the bytes went.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the node answered something else.
    pub fn written(&self) -> Result<(Version, u32, u32)> {
        match *self {
            Self::Written { version, total_len, offset, .. } => Ok((version, total_len, offset)),
            _ => Err(self.unexpected("Written")),
        }
    }

    /// Of a read: the record's version and whole length, and how many bytes came.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the node answered something else.
    pub fn value(&self) -> Result<(Version, u32, usize)> {
        match *self {
            Self::Value { version, total_len, len, .. } => Ok((version, total_len, len)),
            _ => Err(self.unexpected("Value")),
        }
    }

    /// Of a number.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the node answered something else.
    pub fn number(&self) -> Result<u64> {
        match *self {
            Self::Number(value) => Ok(value),
            _ => Err(self.unexpected("Number")),
        }
    }

    /// Of a deletion: whether there was a record.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the node answered something else.
    pub fn existed(&self) -> Result<bool> {
        match *self {
            Self::Deleted { existed } => Ok(existed),
            _ => Err(self.unexpected("Deleted")),
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        let got = match self {
            Self::Value { .. } => "Value",
            Self::Written { .. } => "Written",
            Self::Deleted { .. } => "Deleted",
            Self::Number(_) => "Number",
            Self::Listing { .. } => "Listing",
        };
        Error::new(ErrorKind::Corrupt, format!("reply: expected {expected}, got {got}"))
    }
}
