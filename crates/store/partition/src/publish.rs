//! Publishing records to clients of the node's host ([look-up table](samite_backend::PublishRecords)): records that were
//! just made, or looked up.

use samite_backend::HEAD_LEN;
use samite_backend::{PublishRecords, RecordMeta};
use samite_types::Version;
use samite_wire::op::{Action, Guard, Operation, TouchedRecords, ValueData};

use crate::outcome::ActionOutput;

/// Reads of more bytes than this, from the start of a record, are no look-ups.
const LOOKUP_LEN_MAX: u32 = 4 * HEAD_LEN as u32;

/// Before a mutation.
pub(crate) fn expect(store: &dyn PublishRecords, operation: &Operation<'_>) {
    let first = operation.actions.iter().find_map(|action| match action.touched() {
        TouchedRecords::Key(key) | TouchedRecords::Moved(key, _) => Some(key),
        TouchedRecords::Nothing | TouchedRecords::Prefix(_) => None,
    });
    if let Some(key) = first {
        store.expect(key);
    }
}

/// After an operation that only asked.
pub(crate) fn found(
    store: &dyn PublishRecords,
    operation: &Operation<'_>,
    outputs: &[ActionOutput],
) {
    for (action, output) in operation.actions.iter().zip(outputs) {
        if let Action::Get { key, offset: 0, len: LOOKUP_LEN_MIN..=LOOKUP_LEN_MAX } = action
            && let ActionOutput::Value { version, total_len, pieces } = output
            && let Some(head) = pieces.first().and_then(|piece| piece.as_bytes())
            && head.len() >= HEAD_LEN.min(*total_len as usize)
        {
            store.publish(key, RecordMeta { version: *version, len: *total_len }, head);
        }
    }
}

const LOOKUP_LEN_MIN: u32 = HEAD_LEN as u32;

/// After a mutation, which gave the records that it changed `version`: publishes the record that it
/// made first, as it was made, unless a later action has changed it or taken it away.
pub(crate) fn made(store: &dyn PublishRecords, operation: &Operation<'_>, version: Version) {
    let [Action::Put { key, data: ValueData::Inline(value) }, later @ ..] =
        operation.actions.as_slice()
    else {
        return;
    };
    let is_new = |guard: &Guard<'_>| matches!(guard, Guard::Absent(absent) if absent == key);
    let is_other = |action: &Action<'_>| match action.touched() {
        TouchedRecords::Nothing => true,
        TouchedRecords::Key(other) => other != *key,
        TouchedRecords::Moved(from, to) => from != *key && to != *key,
        TouchedRecords::Prefix(prefix) => !key.starts_with(prefix),
    };
    if operation.guards.iter().any(is_new) && later.iter().all(is_other) {
        store.publish(key, RecordMeta { version, len: value.len() as u32 }, value);
    }
}
