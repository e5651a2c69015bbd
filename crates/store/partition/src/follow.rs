//! Following: a partition that applies the changes on which another copy of it has decided.
//!
//! A copy is given the same inputs in the same order as the one that decides: operations
//! ([`Partition::apply`]), refusals ([`Partition::refuse`]), clients that are gone
//! ([`Partition::drop_client`]) and the beginnings of terms ([`Partition::begin_term`]). The stamps
//! of the one that decides tell which of its inputs its copies must have, too.

use samite_types::{ClientId, ErrorKind, Seq, Term, Version};

use crate::Partition;

/// Counters that tell whether something has happened to a partition that its copies must know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionStamps {
    /// Grows with each change of records.
    pub version: Version,
    /// Grows with each refusal that is remembered.
    pub refusals: u64,
    /// Grows with each open reference that is taken or ended outside of changes of records.
    pub references: u64,
}

impl Partition {
    /// Its counters as they are now.
    #[must_use]
    pub const fn stamps(&self) -> PartitionStamps {
        let references = self.open_references.changes();
        PartitionStamps { version: self.version, refusals: self.refusals, references }
    }

    /// A primary of `term` makes the versions from here on.
    pub fn begin_term(&mut self, term: Term) {
        self.version = self.version.max(Version::before(term));
    }

    /// Whether it applies what another has admitted. Its records are not published then.
    pub const fn set_follows(&mut self, follows: bool) {
        self.follows = follows;
        self.shows = !follows;
    }

    /// An operation of `client` that may have been sent before is refused for good. `numbers`: its
    /// own, and the one below which all of the client's are answered; `reason`: why, and which
    /// guard or action it was.
    pub fn refuse(&mut self, client: ClientId, numbers: (Seq, Seq), reason: (ErrorKind, u16)) {
        self.refusals += 1;
        self.remember(client, numbers, Err(reason));
    }

    /// It can serve no more ([`Partition::failed`]): the store has failed, and nobody knows what is
    /// there.
    pub const fn fail(&mut self, kind: ErrorKind) {
        if !self.trusts_store {
            self.failed = Some(kind);
        }
    }

    /// Goes on when the store has failed in the midst of a change. For tests of tests.
    #[doc(hidden)]
    pub const fn set_trusts_store(&mut self, trusts: bool) {
        self.trusts_store = trusts;
    }

    /// Remembers no results, so that nothing is done once only. For tests of tests.
    #[doc(hidden)]
    pub const fn set_forgets(&mut self, forgets: bool) {
        self.forgets = forgets;
    }
}
