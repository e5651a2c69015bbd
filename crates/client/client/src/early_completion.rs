//! Early completion: changes that a client leaves in a submission queue and does not wait for
//! ([`samite_arena::submission`]).

use samite_arena::lookup::{HEAD_LEN, LookupHead, RecordId};
use samite_arena::{ArenaView, SubmittedChange, SubmittedEntry};
use samite_types::{Epoch, PartitionId, Seq};
use samite_wire::control::DurabilityKind;
use samite_wire::op::{Action, Operation, OperationRequest, RequestEncoder, RequestHeader};

use crate::Dataset;
use crate::changes::mask_of_change;
use crate::frame::{put_scratch, take_scratch};
use crate::stats::count;

impl Dataset {
    /// Completes an operation early whose outcome is certain as long as the record at `key` there
    /// is as its node publishes it to clients on its host: from here on it counts as done. `agrees`
    /// looks at the first bytes of its value. `false`: nothing was done, ask the node.
    ///
    /// It is carried out before the node's next request. It is short, and changes no record under a
    /// prefix. Delegations that it asks for are granted for as long as it says. Earlier operations
    /// of the session that were sent and not waited for may not be about the same records.
    #[must_use]
    pub fn submit_change(
        &self,
        record: (PartitionId, &[u8]),
        operation: &Operation<'_>,
        name_space: Epoch,
        agrees: impl FnOnce(&[u8], &LookupHead) -> bool,
    ) -> bool {
        self.submit_if(record, operation, |arena, id| {
            let mut shown = [0; HEAD_LEN];
            let head = arena.head(id, name_space, &mut shown);
            head.is_some_and(|head| agrees(&shown[..head.len], &head))
        })
        .is_some()
    }

    /// Completes an operation early, as [`Dataset::submit_change`] does, whose outcome is certain
    /// as long as there is no record at `key`, nor at `other`: one that is only ever made by
    /// operations whose guard is that a prefix is empty. `None`: nothing was done. An open
    /// reference that the operation takes may [end](Dataset::end_submitted_reference) before it is
    /// carried out.
    #[must_use]
    pub fn submit_new(
        &self,
        (partition, key): (PartitionId, &[u8]),
        other: &[u8],
        operation: &Operation<'_>,
        name_space: Epoch,
    ) -> Option<SubmittedEntry> {
        self.submit_if((partition, key), operation, |arena, id| {
            arena.has_none(&[*id, RecordId { key: other, ..*id }], name_space)
        })
    }

    /// Ends the open reference under `token` of an operation that was completed early in this
    /// partition, if the node has not taken it yet: then it is never taken. `false`: ask for it.
    #[must_use]
    pub fn end_submitted_reference(
        &self,
        partition: PartitionId,
        submitted: SubmittedEntry,
        token: u64,
    ) -> bool {
        let session = self.client().session();
        let Some(view) = session.view() else { return false };
        let link = view.peer_index(self.redundancy(), partition).ok();
        link.and_then(|index| view.peer_at(index).live_link())
            .and_then(|link| Some(link.arena()?.end_reference(partition, submitted, token)))
            .unwrap_or(false)
    }

    fn submit_if(
        &self,
        (partition, key): (PartitionId, &[u8]),
        operation: &Operation<'_>,
        is_certain: impl FnOnce(&ArenaView, &RecordId<'_>) -> bool,
    ) -> Option<SubmittedEntry> {
        let spec = self.spec();
        if spec.redundancy.get() > 1 || spec.durability == DurabilityKind::Logged {
            return None;
        }
        let session = self.client().session();
        let view = session.view()?;
        let known = view.map.dataset_by_id(self.id())?;
        let link = view.peer_at(view.peer_index(self.redundancy(), partition).ok()?).live_link()?;
        let token = hold_of(operation)?;
        let record = RecordId { dataset: self.id(), partition, key };
        let takes_delegation = operation.takes_delegation();
        if !link.may_submit_early(&record, view.map.epoch(), (session.id, takes_delegation)) {
            return None;
        }
        let header = RequestHeader {
            dataset: self.id(),
            map_epoch: view.map.epoch(),
            name_space_generation: Epoch(u64::MAX),
            answered_below: Seq(0),
            is_retry: false,
        };
        let mut encoder = RequestEncoder::new(take_scratch(), &header);
        // Changes are carried out once; no number is needed for that, and none may be missing.
        encoder.operation_placed(operation, Seq(operation.is_mutation().into()), &mut |_| None);
        let (body, payload) = encoder.finish();
        debug_assert!(OperationRequest::decode(&body, &payload.concat()).is_ok());
        let change = SubmittedChange {
            record,
            access: known.spec.access,
            map_epoch: view.map.epoch(),
            client: session.id,
            takes_delegation,
            token,
            body: &body,
            payload: &payload,
        };
        let changing = session.changes.begin(mask_of_change(operation));
        let submitted = link.submit_early(&change, |arena| is_certain(arena, &record));
        changing.end();
        put_scratch(body);
        count(&self.client().counters().early_completions, u64::from(submitted.is_some()));
        submitted
    }
}

/// Token of the open reference that an operation takes, 0 for none. `None`: a slot has no place for
/// what it takes.
fn hold_of(operation: &Operation<'_>) -> Option<u64> {
    let token = |action: &Action<'_>| match *action {
        Action::Hold { token, .. } => Some(token),
        _ => None,
    };
    let mut tokens = operation.actions.iter().filter_map(token);
    match (tokens.next(), tokens.next()) {
        (None, _) => Some(0),
        (Some(token @ 1..), None) => Some(token),
        _ => None,
    }
}
