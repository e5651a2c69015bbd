//! Reading a value that others keep changing.
//!
//! Over shared memory a large value is copied out of the arena, and the copy counts only if nobody changed the block
//! meanwhile. When that fails again and again, the same bytes are asked for in pieces small enough for the frame itself, all in one
//! operation: the node puts them there while nothing else happens in the partition.

use samite_types::{Deadline, Result};
use samite_wire::limits::{ACTIONS_MAX, RECORD_LEN_MAX};
use samite_wire::op::{Action, List, Operation, PerAction};

use crate::exec::OperationRun;
use crate::frame::INLINE_LEN_MAX;
use crate::outcome::{OwnedOutcome, OwnedResult};
use crate::{ClientOperation, Dataset};

const _: () = assert!(INLINE_LEN_MAX * ACTIONS_MAX >= RECORD_LEN_MAX);

/// Whether an operation reads one value and does nothing else.
pub(crate) fn is_plain_read(operation: &Operation<'_>) -> bool {
    matches!(operation.actions.as_slice(), [Action::Get { .. }])
}

/// Carries out a plain read in pieces that travel inside the frame.
pub(crate) fn read_in_pieces(
    dataset: &Dataset,
    op: &mut ClientOperation<'_>,
    deadline: Deadline,
) -> Result<OwnedOutcome> {
    let Some(&Action::Get { key, offset, len }) = op.operation.actions.first() else {
        return Err(samite_types::ErrorKind::Internal.into());
    };
    let len = len.min((RECORD_LEN_MAX as u32).saturating_sub(offset)) as usize;
    let mut operation = Operation {
        actions: PerAction::new(),
        guards: op.operation.guards.clone(),
        ..op.operation
    };
    let mut at = 0;
    while at < len.max(1) {
        let piece = (len - at).min(INLINE_LEN_MAX);
        operation.actions.push(Action::Get { key, offset: offset + at as u32, len: piece as u32 });
        at += piece.max(1);
    }
    let mut pieces = [ClientOperation {
        operation,
        dest: None,
        name_space_generation: op.name_space_generation,
    }];
    let mut outcomes = Vec::with_capacity(1);
    OperationRun::new(dataset, &mut pieces, deadline).finish(&mut outcomes)?;
    match outcomes.pop() {
        Some(OwnedOutcome::Done(results)) => Ok(OwnedOutcome::Done(join(results, op)?)),
        Some(failed) => Ok(failed),
        None => Err(samite_types::ErrorKind::Internal.into()),
    }
}

/// Puts the pieces together, in the operation's destination if it has one.
fn join(
    pieces: List<OwnedResult, 2>,
    op: &mut ClientOperation<'_>,
) -> Result<List<OwnedResult, 2>> {
    let mut joined = Vec::new();
    let (version, total_len, _) = match pieces.first() {
        Some(first) => first.value()?,
        None => return Err(samite_types::ErrorKind::Internal.into()),
    };
    for piece in pieces {
        if let OwnedResult::Value { data, .. } = piece {
            joined.extend_from_slice(&data);
        }
    }
    let len = joined.len();
    if let Some(room) = op.dest.as_deref_mut().and_then(|dest| dest.get_mut(..len)) {
        room.copy_from_slice(&joined);
        joined = Vec::new();
    }
    Ok(List::from_iter([OwnedResult::Value { version, total_len, len, data: joined }]))
}
