//! The state that the operations of one request share, and the blocks that came with it.

use std::time::Duration;

use samite_backend::ArenaExtent;
use samite_types::{Epoch, Seq};
use samite_wire::op::BlockRef;

/// The state that the operations of one request share.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext {
    /// Every mutation of this client with a smaller sequence number has been answered.
    pub answered_below: Seq,
    /// The operation may have been sent before.
    pub is_retry: bool,
    /// Name-space generation that the client relies on; `Epoch(u64::MAX)` for none.
    pub name_space_generation: Epoch,
    /// Most bytes that the operation's listings, or the record it reveals, may take in the reply's body. A listing
    /// for which nothing is left has no entries and is not complete.
    pub body_len_max: usize,
    /// The time, on a clock that never goes back; delegations are counted by it. Zero when neither
    /// this operation nor one before it has to do with them.
    pub now: Duration,
    /// Longest term of a delegation that this client may have.
    pub delegation_term_max: Duration,
    /// The client copies large values from the arena by itself: values that were found undamaged
    /// lately are not looked at again.
    pub reads_in_place: bool,
    /// The client counts on the delegations that it asks for: none is refused.
    pub grants_all_delegations: bool,
}

impl RequestContext {
    /// Of a change that counts as done: its client made sure of what it stands on, and counts on
    /// the delegations that it asks for.
    pub(crate) const fn of_certain(now: Duration) -> Self {
        Self {
            answered_below: Seq(0),
            is_retry: false,
            name_space_generation: Epoch(u64::MAX),
            body_len_max: 0,
            now,
            delegation_term_max: Duration::MAX,
            reads_in_place: false,
            grants_all_delegations: true,
        }
    }
}

/// Blocks that were granted to the connection by which an operation came.
pub trait BlockGrants {
    /// Takes the block that `block` names: it is granted, starts there and has its generation.
    fn take(&mut self, block: &BlockRef) -> Option<ArenaExtent>;
    /// Gives back a block of an operation that had no effect: it stays granted.
    fn put_back(&mut self, extent: ArenaExtent);
}

/// No blocks are granted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGrants;

impl BlockGrants for NoGrants {
    fn take(&mut self, _: &BlockRef) -> Option<ArenaExtent> {
        None
    }

    fn put_back(&mut self, _: ArenaExtent) {}
}
