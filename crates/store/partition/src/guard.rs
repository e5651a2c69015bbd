//! Guards: conditions that must be true before anything is done.

use std::ops::ControlFlow;

use samite_backend::{ReadRecords, ScannedRecord, ValueView};
use samite_types::{ErrorKind, Result, Version};
use samite_wire::op::{Guard, Operation};

use crate::limits::REVEAL_LEN_MAX;
use crate::outcome::{AppliedFailure, Current};

/// Tries the guards in their order; the first that is not true fails the operation, and shows the
/// record that is there if it was asked for, in at most `reveal_max` bytes.
pub(crate) fn check_guards(
    store: &dyn ReadRecords,
    operation: &Operation<'_>,
    reveal_max: usize,
) -> Result<(), AppliedFailure> {
    for (index, guard) in operation.guards.iter().enumerate() {
        if holds(store, guard).map_err(|error| AppliedFailure::new(error.kind(), index))? {
            continue;
        }
        return Err(broken(store, operation, index, reveal_max));
    }
    Ok(())
}

/// Guard `index` is not true, or was not when the operation came first: shows the record that is
/// there, if it was asked for.
pub(crate) fn broken(
    store: &dyn ReadRecords,
    operation: &Operation<'_>,
    index: usize,
    reveal_max: usize,
) -> AppliedFailure {
    let most = u32::try_from(reveal_max).unwrap_or(u32::MAX).min(REVEAL_LEN_MAX);
    let len = operation.reveal_len.min(most);
    let current = match operation.guards.get(index).and_then(Guard::record) {
        Some(key) if len > 0 => match reveal(store, key, len) {
            Ok(current) => current,
            Err(error) => return AppliedFailure::new(error.kind(), index),
        },
        _ => None,
    };
    AppliedFailure { kind: ErrorKind::Conflict, index: index as u16, current }
}

fn holds(store: &dyn ReadRecords, guard: &Guard<'_>) -> Result<bool> {
    Ok(match guard {
        Guard::Exists(key) => store.meta(key)?.is_some(),
        Guard::Absent(key) => store.meta(key)?.is_none(),
        Guard::VersionIs(key, version) => {
            store.meta(key)?.is_some_and(|meta| meta.version == *version)
        }
        Guard::LenAtMost(key, len) => store.meta(key)?.is_none_or(|meta| meta.len <= *len),
        Guard::BytesAre { key, offset, bytes } => {
            let (mut rest, mut same) = (*bytes, true);
            let found = store.look(key, *offset, bytes.len() as u32, &mut |seen| {
                let (expected, after) = rest.split_at(seen.len().min(rest.len()));
                same &= match seen {
                    ValueView::Bytes(found) => found == expected,
                    ValueView::Zeros(_) => expected.iter().all(|byte| *byte == 0),
                };
                rest = after;
            })?;
            found.is_some() && same && rest.is_empty()
        }
        Guard::PrefixEmpty(prefix) => {
            let mut empty = true;
            store.scan(prefix, &[], false, 0, &mut |_: &ScannedRecord<'_>| {
                empty = false;
                ControlFlow::Break(())
            })?;
            empty
        }
    })
}

fn reveal(store: &dyn ReadRecords, key: &[u8], len: u32) -> Result<Option<Current>> {
    let mut bytes = Vec::new();
    let meta = store.look(key, 0, len, &mut |seen| seen.append_to(&mut bytes))?;
    Ok(meta.map(|meta| (Version(meta.version.get()), meta.len, bytes)))
}
