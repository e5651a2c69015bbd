//! The context in which operations of one request are applied.

use samite_mirror::durable::PlaceId;
use samite_mirror::{ApplyTime, CommitPosition};
use samite_partition::{BlockGrants, RequestContext};
use samite_types::{ClientId, Epoch};
use smallvec::SmallVec;

/// Positions that a reply has seen and that are not committed yet.
pub(crate) type Seen = SmallVec<[(PlaceId, CommitPosition); 1]>;

/// The context that operations of one request share, and their results.
pub(crate) struct ApplyContext<'a> {
    pub(crate) client: ClientId,
    pub(crate) context: &'a RequestContext,
    pub(crate) grants: &'a mut dyn BlockGrants,
    pub(crate) at: ApplyTime,
    /// Highest of the partitions'.
    pub(crate) name_space_generation: Epoch,
    pub(crate) seen: Seen,
}

impl<'a> ApplyContext<'a> {
    pub(crate) fn new(
        client: ClientId,
        context: &'a RequestContext,
        grants: &'a mut dyn BlockGrants,
        at: ApplyTime,
    ) -> Self {
        Self { client, context, grants, at, name_space_generation: Epoch(0), seen: Seen::new() }
    }
}
