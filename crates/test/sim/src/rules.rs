//! Which rules the parts play by: the right ones, or a deliberately wrong set, which a test expects the simulator to find out.

use std::fmt;

use samite_mirror::MirrorRules;
use serde::{Deserialize, Serialize};

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BrokenRule {
    /// Replies do not wait for members.
    EarlyReplies,
    /// A silent member is not waited for any more, before the map says that it missed something.
    NoRecord,
    /// The terms of messages count for nothing: old ones are taken, and new ones depose nobody.
    NoTerms,
    /// Results are not remembered: a repetition is done again.
    NoDedupe,
    /// A record that changes behind the walk of a resync is not sent again.
    NoQueue,
    /// Members that are not the primary answer reads.
    StaleReads,
    /// A node whose lease is over goes on.
    NoLease,
    /// A member that was brought up to date is not waited for until the map calls it good.
    LateAcks,
    /// An entry on its way to a log on flash counts as being there.
    EarlyFlash,
    /// The room of other members counts for nothing.
    NoRoom,
    /// A record that is not there in a partition that has lost its records is said to be missing.
    LossUntold,
    /// The coordinator takes no note of losses.
    LossForgotten,
    /// A batch on its way to a target that remembers counts as committed.
    EarlyCommit,
    /// Of a batch that is under way when the node dies, the state may be there without the records.
    StateAlone,
    /// A partition whose store has failed in the midst of a change goes on.
    TrustsStore,
    /// A voter that has lost its disk votes again under its old number.
    VotesTwice,
    /// An entry that a voter accepts is not on flash when it says so.
    ForgetsLog,
    /// The instance that has the leader key goes on without waiting for most voters.
    OldTerm,
}

/// The rules of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRules {
    /// The one that is broken, if any.
    pub wrong: Option<BrokenRule>,
}

impl BrokenRule {
    /// All there are.
    pub const ALL: [Self; 18] = [
        Self::EarlyReplies,
        Self::NoRecord,
        Self::NoTerms,
        Self::NoDedupe,
        Self::NoQueue,
        Self::StaleReads,
        Self::NoLease,
        Self::LateAcks,
        Self::EarlyFlash,
        Self::NoRoom,
        Self::LossUntold,
        Self::LossForgotten,
        Self::EarlyCommit,
        Self::StateAlone,
        Self::TrustsStore,
        Self::VotesTwice,
        Self::ForgetsLog,
        Self::OldTerm,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EarlyReplies => "early-replies",
            Self::NoRecord => "no-record",
            Self::NoTerms => "no-terms",
            Self::NoDedupe => "no-dedupe",
            Self::NoQueue => "no-queue",
            Self::StaleReads => "stale-reads",
            Self::NoLease => "no-lease",
            Self::LateAcks => "late-acks",
            Self::EarlyFlash => "early-flash",
            Self::NoRoom => "no-room",
            Self::LossUntold => "loss-untold",
            Self::LossForgotten => "loss-forgotten",
            Self::EarlyCommit => "early-commit",
            Self::StateAlone => "state-alone",
            Self::TrustsStore => "trusts-store",
            Self::VotesTwice => "votes-twice",
            Self::ForgetsLog => "forgets-log",
            Self::OldTerm => "old-term",
        }
    }
}

impl RunRules {
    /// Whether this rule is the broken one.
    #[must_use]
    pub fn breaks(&self, wrong: BrokenRule) -> bool {
        self.wrong == Some(wrong)
    }

    /// The rules of mirroring.
    #[must_use]
    pub fn mirror(&self) -> MirrorRules {
        MirrorRules {
            replies_early: self.breaks(BrokenRule::EarlyReplies),
            drops_unrecorded: self.breaks(BrokenRule::NoRecord),
            ignores_terms: self.breaks(BrokenRule::NoTerms),
            forgets_results: self.breaks(BrokenRule::NoDedupe),
            resyncs_without_queue: self.breaks(BrokenRule::NoQueue),
            reads_anywhere: self.breaks(BrokenRule::StaleReads),
            ignores_lease: self.breaks(BrokenRule::NoLease),
            requires_late: self.breaks(BrokenRule::LateAcks),
            ignores_room: self.breaks(BrokenRule::NoRoom),
            trusts_store: self.breaks(BrokenRule::TrustsStore),
            // The rules of read leases, and that of members that do not follow, are found by the
            // tests of `mirror` (`wrong_ways_of_reading`, `granted_reads.rs`, `commits.rs`).
            ..MirrorRules::default()
        }
    }
}

impl fmt::Display for BrokenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
