//! Checks of an operation that need no record: lengths, counts and combinations that make no sense.

use samite_types::ErrorKind;
use samite_wire::limits::{
    ACTIONS_MAX, ADVANCE_COUNT_MAX, HOLDERS_LEN_MAX, KEY_LEN_MAX, RECORD_LEN_MAX,
};
use samite_wire::op::{Action, Guard, Operation};

use crate::open_references::HOLDER_LEN;
use crate::outcome::AppliedFailure;

/// Refuses an operation that is over a limit or makes no sense.
pub(crate) fn check(operation: &Operation<'_>) -> Result<(), AppliedFailure> {
    let counts = [operation.guards.len(), operation.actions.len()];
    if counts.iter().any(|count| *count > ACTIONS_MAX) {
        return Err(AppliedFailure::new(ErrorKind::TooLarge, 0));
    }
    for (index, guard) in operation.guards.iter().enumerate() {
        check_guard(guard).map_err(|kind| AppliedFailure::new(kind, index))?;
    }
    for (index, action) in operation.actions.iter().enumerate() {
        check_action(action).map_err(|kind| AppliedFailure::new(kind, index))?;
    }
    Ok(())
}

fn check_guard(guard: &Guard<'_>) -> Result<(), ErrorKind> {
    if let Guard::PrefixEmpty(prefix) = guard {
        return check_prefix(prefix);
    }
    guard.record().map_or(Ok(()), check_key)
}

fn check_action(action: &Action<'_>) -> Result<(), ErrorKind> {
    match action {
        Action::Get { key, .. } | Action::Delete { key } | Action::Lease { key, .. } => {
            check_key(key)
        }
        Action::Put { key, data } | Action::Append { key, data, .. } => {
            check_key(key)?;
            check_end(0, data.len())
        }
        Action::Write { key, offset, data } => {
            check_key(key)?;
            check_end(*offset, data.len())
        }
        Action::Truncate { key, len } => {
            check_key(key)?;
            check_end(*len, 0)
        }
        Action::Add { key, offset, .. } | Action::Max { key, offset, .. } => {
            check_key(key)?;
            check_end(*offset, size_of::<u64>())
        }
        Action::Advance { key, offset, count, .. } => {
            check_key(key)?;
            if !(1..=ADVANCE_COUNT_MAX).contains(count) {
                return Err(ErrorKind::Invalid);
            }
            check_end(*offset, usize::from(*count) * size_of::<u64>())
        }
        Action::DeletePrefix { prefix, .. } => check_prefix(prefix),
        // A hole may reach beyond the value.
        Action::Punch { key, .. } => check_key(key),
        Action::List { prefix, after, .. } | Action::Extents { prefix, after, .. } => {
            check_prefix(prefix)?;
            check_prefix(after)
        }
        Action::RaiseLease { .. } | Action::Release { .. } | Action::Locate { .. } => Ok(()),
        Action::Hold { key, token } => {
            check_key(key)?;
            if *token == 0 { Err(ErrorKind::Invalid) } else { Ok(()) }
        }
        Action::Holders { key } => check_key(key),
        Action::SetHolders { key, holders } => {
            check_key(key)?;
            check_holders(holders)
        }
        Action::Detach { key, to } => {
            check_key(key)?;
            check_key(to)?;
            // So that it takes no space.
            if to.len() > key.len() { Err(ErrorKind::Invalid) } else { Ok(()) }
        }
        Action::MoveHolds { from, to } => {
            check_key(from)?;
            check_key(to)
        }
    }
}

const fn check_holders(holders: &[u8]) -> Result<(), ErrorKind> {
    if holders.len() > HOLDERS_LEN_MAX {
        Err(ErrorKind::TooLarge)
    } else if holders.len().is_multiple_of(HOLDER_LEN) {
        Ok(())
    } else {
        Err(ErrorKind::Invalid)
    }
}

/// An empty key would look like "no bound" to a listing.
const fn check_key(key: &[u8]) -> Result<(), ErrorKind> {
    if key.is_empty() { Err(ErrorKind::Invalid) } else { check_prefix(key) }
}

const fn check_prefix(prefix: &[u8]) -> Result<(), ErrorKind> {
    if prefix.len() > KEY_LEN_MAX { Err(ErrorKind::TooLarge) } else { Ok(()) }
}

const fn check_end(offset: u32, len: usize) -> Result<(), ErrorKind> {
    if len > RECORD_LEN_MAX || offset as usize > RECORD_LEN_MAX - len {
        return Err(ErrorKind::TooLarge);
    }
    Ok(())
}
