//! What clients have posted, and what they are not to post meanwhile.

use samite_partition::Outcome;
use samite_placement::ClusterMap;
use samite_types::ClientId;
use samite_wire::op::{Action, Operation};

use super::{Course, Open, Partitions, PlaceId, Slot};
use crate::posts::Posts;

impl Partitions {
    /// Applies one operation as [`Partitions::apply`] does, so that what is posted meanwhile comes either before or after it.
    pub(crate) fn apply_alone(
        &mut self,
        posts: &Posts,
        (slot, map): (Slot, &ClusterMap),
        operation: &Operation<'_>,
        course: &mut Course<'_>,
    ) -> Outcome {
        if !operation.is_mutation() {
            return self.apply(slot, map, operation, course);
        }
        posts.make_way(self.datasets[slot.0].id, operation, self);
        let outcome = self.apply(slot, map, operation, course);
        if operation.actions.iter().any(|action| matches!(action, Action::RaiseLease { .. })) {
            posts.revoke();
        }
        outcome
    }

    /// Applies what was posted to a partition; `None`: it is not here, or not here alone.
    pub(crate) fn apply_posted(
        &mut self,
        id: PlaceId,
        client: ClientId,
        operation: &Operation<'_>,
    ) -> Option<Outcome> {
        let member = &mut self.place(id)?.member;
        let before = (member.partition().record_count(), member.partition().abandoned());
        let outcome =
            member.is_plain().then(|| member.partition_mut().apply_posted(client, operation));
        self.recount(id, before);
        outcome
    }

    /// Whether some partition of a dataset that keeps each record once has other members all the same: it is about to move.
    pub(crate) fn has_moving(&self) -> bool {
        let alone = |open: &&Open| open.redundancy.get() == 1 && !open.is_logged;
        self.datasets.iter().filter(alone).any(|open| open.is_grouped)
    }
}
