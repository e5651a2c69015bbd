//! When operations are applied, and how long their replies wait.

use std::time::Duration;

use samite_types::Position;

/// When an operation is applied.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApplyTime {
    /// On a clock that never goes back; unused by a [plain](crate::MirroredPartition::is_plain)
    /// partition.
    pub now: Duration,
    /// The lease of the node runs until then.
    pub lease_until: Duration,
}

/// Before the first entry.
pub(crate) const NO_ENTRY: Position = Position(0);

/// The position that a reply has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommitPosition {
    /// Which time that this member was primary.
    pub(crate) reign_number: u32,
    /// The last entry that the reply has seen.
    pub position: Position,
}

/// The status of a [`CommitPosition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitStatus {
    /// The reply may leave.
    Committed,
    /// Not yet.
    Waiting,
    /// This member is not the primary any more: whether the operation lives nobody here knows. The
    /// answer is [`ErrorKind::StaleMap`](samite_types::ErrorKind::StaleMap).
    Lost,
}
