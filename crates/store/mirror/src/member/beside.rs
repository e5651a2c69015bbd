//! Entries of a primary that change no records: refusals, open references, and that delegations may
//! be out.

use std::time::Duration;

use samite_partition::{ActionOutput, AppliedOutcome, RequestContext};
use samite_types::{ClientId, Epoch, Seq};
use samite_wire::op::{Action, Operation};
use samite_wire::peer::EntryEvent;

use super::MirroredPartition;
use crate::digest;
use crate::role::MemberRole;

impl MirroredPartition {
    /// A refusal that is remembered for good.
    pub(super) fn write_refusal(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        outcome: &AppliedOutcome,
        now: Duration,
    ) {
        let AppliedOutcome::Failed { kind, index, .. } = outcome else { return };
        let (answered_below, seq) = (context.answered_below, operation.seq);
        let event = EntryEvent::Refused { client, answered_below, seq, kind: *kind, index: *index };
        self.record(event, 0, Vec::new(), now);
    }

    /// Open references are taken and released without a change of records: members do that alone.
    pub(super) fn write_references(
        &mut self,
        client: ClientId,
        operation: &Operation<'_>,
        outcome: &AppliedOutcome,
        now: Duration,
    ) {
        let AppliedOutcome::Done(outputs) = outcome else { return };
        let done = operation.actions.iter().zip(outputs).filter_map(|(action, output)| {
            match (action, output) {
                (Action::Hold { .. } | Action::Release { .. }, ActionOutput::Number(number)) => {
                    Some((action.clone(), ActionOutput::Number(*number)))
                }
                _ => None,
            }
        });
        let (actions, outputs): (Vec<_>, Vec<_>) = done.unzip();
        let operation = Operation::new(operation.partition, actions);
        let outcome = digest::of_outcome(&operation, &outputs);
        let event = EntryEvent::Applied {
            client,
            answered_below: Seq(0),
            is_retry: false,
            // No partition asks for more than this name-space generation.
            name_space_generation: Epoch(u64::MAX),
            operation,
        };
        self.record(event, outcome, Vec::new(), now);
    }

    /// The first delegation that is granted is written down: the next primary waits for it.
    pub(super) fn note_delegations(
        &mut self,
        operation: &Operation<'_>,
        outcome: &AppliedOutcome,
        now: Duration,
    ) {
        let AppliedOutcome::Done(outputs) = outcome else { return };
        let mut pairs = operation.actions.iter().zip(outputs);
        let grants_delegations =
            pairs.any(|pair| matches!(pair, (Action::Lease { .. }, ActionOutput::Number(1..))));
        if !grants_delegations {
            return;
        }
        if let MemberRole::Primary(primary) = &mut self.role {
            primary.grants_delegations = true;
        }
        if !self.grants_delegations {
            self.grants_delegations = true;
            self.record(EntryEvent::Lending { on: true }, 0, Vec::new(), now);
        }
    }

    /// Ends all open references of a client that is gone. Of no effect on members that are not the
    /// primary: they hear of it from there.
    pub fn drop_client(&mut self, client: ClientId, now: Duration) {
        if !self.is_primary() {
            return;
        }
        let stamps = self.partition.stamps();
        self.partition.drop_client(client);
        if self.partition.stamps() != stamps {
            self.record(EntryEvent::Gone { client }, 0, Vec::new(), now);
        }
    }
}
