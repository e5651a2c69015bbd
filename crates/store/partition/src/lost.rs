//! Missing records of a partition whose records died with their nodes: it cannot be known whether
//! they were there.

use std::ops::ControlFlow;

use samite_backend::ScannedRecord;
use samite_types::{ClientId, ErrorKind, Seq};
use samite_wire::op::{Action, Guard, Operation};

use crate::outcome::{ActionOutput, AppliedOutcome};
use crate::sessions::KnownOperation;
use crate::{BlockGrants, Partition, RequestContext, check};

impl Partition {
    /// Applies an operation to a partition that is lost: a record that is not there is not said to
    /// be missing, and not made; the answer is [`ErrorKind::Lost`]. Nothing takes effect then, and
    /// a change is remembered to have been refused. Any other operation is [applied](Self::apply).
    pub fn apply_lost(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        grants: &mut dyn BlockGrants,
    ) -> AppliedOutcome {
        let (kind, index) = match self.lost_at(client, context, operation) {
            Ok(None) => return leave_open(self.apply(client, context, operation, grants)),
            Ok(Some(index)) => (ErrorKind::Lost, index),
            Err(refusal) => refusal,
        };
        self.refuse_lost(client, context, operation, (kind, index));
        AppliedOutcome::Failed { kind, index, current: None }
    }

    /// Which guard or action of an operation is about a record that is not there, so that its
    /// answer would say that there was none, or make one. `None`: there is no such one, or the
    /// operation was decided before, or is refused for another reason. An action that only takes
    /// away is not asked about.
    ///
    /// # Errors
    /// The store does not tell of this one whether it is there, and why.
    fn lost_at(
        &self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
    ) -> Result<Option<u16>, (ErrorKind, u16)> {
        let is_decided = || {
            operation.is_mutation()
                && !matches!(
                    self.sessions.look_up(client, operation.seq, context.is_retry),
                    KnownOperation::New
                )
        };
        if check::check(operation).is_err()
            || context.name_space_generation < self.name_space_generation
            || is_decided()
        {
            return Ok(None);
        }
        let guards = operation.guards.iter().map(|guard| match guard {
            Guard::Exists(key) | Guard::VersionIs(key, _) | Guard::BytesAre { key, .. } => {
                self.is_missing(key)
            }
            // Beside one of these is the action that makes the record.
            Guard::Absent(_) | Guard::LenAtMost(..) | Guard::PrefixEmpty(_) => Ok(false),
        });
        let actions = operation.actions.iter().map(|action| match action {
            Action::Get { key, .. }
            | Action::Put { key, .. }
            | Action::Write { key, .. }
            | Action::Append { key, .. }
            | Action::Truncate { key, .. }
            | Action::Add { key, .. }
            | Action::Advance { key, .. }
            | Action::Max { key, .. }
            | Action::Punch { key, .. }
            | Action::Hold { key, .. }
            | Action::SetHolders { key, .. } => self.is_missing(key),
            // Without a guard it is cleared away, whether it is there or not.
            Action::Delete { key } if !operation.guards.is_empty() => self.is_missing(key),
            Action::List { prefix, after, reverse, .. } => self.has_none(prefix, after, *reverse),
            Action::Extents { prefix, after, .. } => self.has_none(prefix, after, false),
            _ => Ok(false),
        });
        // At most as many as an operation may have.
        for (index, is_lost) in (0..).zip(guards.chain(actions)) {
            if is_lost.map_err(|kind| (kind, index))? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// A change was refused, for its record may have been lost. As of every other refusal is noted
    /// what a sending that is still under way must be answered: it must not take effect once the
    /// loss is acknowledged.
    fn refuse_lost(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        reason: (ErrorKind, u16),
    ) {
        if operation.is_mutation() && operation.seq != Seq(0) {
            self.sessions.hear(client, context.answered_below);
            self.note_refusal(client, context, operation.seq, reason);
        }
    }

    fn is_missing(&self, key: &[u8]) -> Result<bool, ErrorKind> {
        match self.store.meta(key) {
            Ok(meta) => Ok(meta.is_none()),
            // It is there, and damaged.
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(false),
            Err(error) => Err(error.kind()),
        }
    }

    fn has_none(&self, prefix: &[u8], after: &[u8], reverse: bool) -> Result<bool, ErrorKind> {
        let mut has_none = true;
        let scanned = self.store.scan(prefix, after, reverse, 0, &mut |_: &ScannedRecord<'_>| {
            has_none = false;
            ControlFlow::Break(())
        });
        match scanned {
            Err(error) if error.kind() != ErrorKind::Corrupt => Err(error.kind()),
            scanned => Ok(scanned.is_ok() && has_none),
        }
    }
}

/// A listing names the records that are there, and then says that there may have been more: a
/// client that asks for those is refused.
fn leave_open(mut outcome: AppliedOutcome) -> AppliedOutcome {
    if let AppliedOutcome::Done(outputs) = &mut outcome {
        for output in outputs.iter_mut() {
            if let ActionOutput::Listing { complete, count: 1.., .. } = output {
                *complete = false;
            }
        }
    }
    outcome
}
