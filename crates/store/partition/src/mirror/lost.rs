//! A partition that has lost its records says so, until somebody has taken note of it.

use samite_types::{ClientId, ErrorKind};
use samite_wire::op::Operation;

use super::{MirroredPartition, refused_at};
use crate::{AppliedOutcome, BlockGrants, RequestContext, lost};

impl MirroredPartition {
    /// Applies an operation. In a partition that is [lost](super::GroupView::is_lost), a record
    /// that is not there is not said to be missing, and not made: the answer is
    /// [`ErrorKind::Lost`]. Nothing takes effect then, and a change is remembered to have been
    /// refused.
    pub(super) fn apply_unless_lost(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        grants: &mut dyn BlockGrants,
    ) -> AppliedOutcome {
        if !self.is_lost {
            return self.partition.apply(client, context, operation, grants);
        }
        match self.partition.lost_at(client, context, operation) {
            Some(index) => {
                self.partition.refuse_lost(client, context, operation, index);
                refused_at(ErrorKind::Lost, index)
            }
            None => lost::leave_open(self.partition.apply(client, context, operation, grants)),
        }
    }
}
