//! The part of a member in its group, and the state that goes with it.

use std::time::Duration;

use samite_types::Position;

use crate::catching_up::CatchingUpPrimary;
use crate::peers::GroupPeer;

/// This member's part in the group.
#[derive(Debug)]
pub(crate) enum MemberRole {
    /// Not a member, or not told yet, or deposed and not told by which primary.
    Out,
    /// It applies the entries that the primary sends.
    Secondary,
    /// It is to decide, and takes over first what others have.
    CatchingUp(Box<CatchingUpPrimary>),
    /// It decides on the order.
    Primary(Box<PrimaryState>),
}

/// The state that only a primary has.
#[derive(Debug, Default)]
pub(crate) struct PrimaryState {
    pub(crate) peers: Vec<GroupPeer>,
    /// The position up to which replies may tell.
    pub(crate) committed: Position,
    /// Alone, and nothing is logged.
    pub(crate) is_plain: bool,
    /// No mutations before, because of delegations that an earlier primary may have granted.
    pub(crate) quiet_until: Option<Duration>,
    /// This primary has granted delegations.
    pub(crate) grants_delegations: bool,
    /// Delegations that were granted while it was alone, and by other rules, end then.
    pub(crate) long_delegations_until: Duration,
    /// Nothing is committed before (read leases); by the [steady](crate::steady::SteadyTime) clock.
    pub(crate) fenced_until: Option<Duration>,
    /// Number of the next question about room.
    pub(crate) questions: u32,
    /// Tries to bring members up to date.
    pub(crate) attempts: u32,
    /// Bytes sent for that.
    pub(crate) resync_len: u64,
}
