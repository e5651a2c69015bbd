//! Putting a value in place, small or large, whatever was there.

use samite_client::{ClientOperation, GuardedRecord, OwnedFailure, OwnedOutcome, OwnedResult};
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::key::KeyPlace;
use crate::manifest::ValueManifest;
use crate::view::{KvView, SmallTry, small};

/// The condition for the change to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedValue {
    Any,
    Absent,
    Version(Version),
}

/// The record to put in place.
#[derive(Clone, Copy)]
pub(crate) enum NewValue<'a> {
    /// A value that fits its record.
    Small(&'a [u8]),
    /// A manifest whose chunks have been written, its encoding, and the key of its draft when all
    /// of it is new.
    Large(&'a ValueManifest, &'a [u8], Option<&'a [u8]>),
}

impl<'a> NewValue<'a> {
    const fn draft(self) -> Option<&'a [u8]> {
        match self {
            Self::Large(_, _, draft) => draft,
            Self::Small(_) => None,
        }
    }
}

/// The value of the record of a draft that is being made.
pub(crate) const UNDER_WAY: &[u8] = &[1];

/// The draft is still there.
const fn own(key: &[u8]) -> Guard<'_> {
    Guard::BytesAre { key, offset: 0, bytes: UNDER_WAY }
}

impl KvView {
    /// Puts `new` in place, and removes the chunks that its predecessor alone had.
    pub(crate) fn commit(
        &self,
        place: &KeyPlace,
        new: NewValue<'_>,
        expect: ExpectedValue,
    ) -> Result<Version> {
        let deadline = self.dataset.client().deadline();
        loop {
            let old = match self.commit_over_small(place, new, expect)? {
                Ok(version) => return Ok(version),
                Err(old) => old,
            };
            match expect {
                ExpectedValue::Absent => return Err(exists()),
                ExpectedValue::Version(version) if version != old.version => return Err(conflict()),
                ExpectedValue::Any | ExpectedValue::Version(_) => {}
            }
            if let Some(version) = self.commit_over_large(place, new, old)? {
                return Ok(version);
            }
            if deadline.remaining().is_none() {
                return Err(Error::new(ErrorKind::Timeout, "the key keeps changing"));
            }
        }
    }

    /// For a key that has no manifest; otherwise the manifest.
    fn commit_over_small(
        &self,
        place: &KeyPlace,
        new: NewValue<'_>,
        expect: ExpectedValue,
    ) -> Result<Result<Version, GuardedRecord>> {
        let mut operation = match new {
            NewValue::Small(value) => {
                small(place, Action::Put { key: &place.value, data: ValueData::Inline(value) })
            }
            NewValue::Large(_, raw, draft) => {
                let put = Action::Put { key: &place.manifest, data: ValueData::Inline(raw) };
                let mut operation = small(place, Action::Delete { key: &place.value });
                operation.actions.extend(draft.map(|key| Action::Delete { key }));
                operation.actions.push(put);
                operation
            }
        };
        match expect {
            ExpectedValue::Any => {}
            ExpectedValue::Absent => operation.guards.push(Guard::Absent(&place.value)),
            ExpectedValue::Version(version) => {
                operation.guards.push(Guard::VersionIs(&place.value, version));
            }
        }
        let draft_guard = new.draft().map(|key| own(key));
        let draft_index = draft_guard.is_some().then_some(operation.guards.len());
        operation.guards.extend(draft_guard);
        match self.dataset.execute_one(ClientOperation::new(operation))? {
            OwnedOutcome::Done(results) => last_version(&results).map(Ok),
            OwnedOutcome::Failed(OwnedFailure { kind: ErrorKind::Conflict, index, current }) => {
                match (index, expect) {
                    (0, _) => Ok(Err(current.ok_or(ErrorKind::Internal)?)),
                    _ if draft_index == Some(usize::from(index)) => Err(swept()),
                    (_, ExpectedValue::Absent) => Err(exists()),
                    _ => Err(conflict()),
                }
            }
            OwnedOutcome::Failed(failure) => Err(failure.into_error("the value")),
        }
    }

    /// For a key whose manifest is `old`; `None` when it no longer is.
    fn commit_over_large(
        &self,
        place: &KeyPlace,
        new: NewValue<'_>,
        old: GuardedRecord,
    ) -> Result<Option<Version>> {
        let old_manifest = ValueManifest::decode(&old.bytes)?;
        let drafts = self.drafts(place);
        // Chunks of the old value that no reader needs then; no record tells of chunks that are
        // needed in part, removed below.
        let is_new = !matches!(new, NewValue::Large(_, _, None));
        let gone = is_new.then(|| drafts.key(&old_manifest.id));
        let mut actions = match new {
            NewValue::Small(_) => vec![Action::Delete { key: &place.manifest }],
            NewValue::Large(..) => {
                new.draft().map(|key| Action::Delete { key }).into_iter().collect()
            }
        };
        actions.extend(gone.as_ref().map(|key| Action::Put { key, data: ValueData::Inline(&[]) }));
        actions.push(match new {
            NewValue::Small(value) => {
                Action::Put { key: &place.value, data: ValueData::Inline(value) }
            }
            NewValue::Large(_, raw, _) => {
                Action::Put { key: &place.manifest, data: ValueData::Inline(raw) }
            }
        });
        let mut operation = Operation::new(place.partition, actions)
            .guard(Guard::VersionIs(&place.manifest, old.version));
        operation.guards.extend(new.draft().map(own));
        match self.dataset.execute_one(ClientOperation::new(operation))? {
            OwnedOutcome::Done(results) => {
                let version = last_version(&results)?;
                match new {
                    NewValue::Large(manifest, _, None) => {
                        self.remove_chunks(&old_manifest, Some(manifest))?;
                    }
                    _ => drafts.remove(&old_manifest.id)?,
                }
                Ok(Some(version))
            }
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::Conflict => {
                if failure.index == 1 { Err(swept()) } else { Ok(None) }
            }
            OwnedOutcome::Failed(failure) => Err(failure.into_error("the value")),
        }
    }

    /// Removes a large value.
    pub(crate) fn delete_large(&self, key: &[u8]) -> Result<bool> {
        let place = self.place(key)?;
        let deadline = self.dataset.client().deadline();
        let drafts = self.drafts(&place);
        drafts.sweep()?;
        loop {
            let delete = Action::Delete { key: &place.value };
            let (version, raw) = match self.try_small(&place, None, delete, None)? {
                SmallTry::Large(version, raw) => (version, raw),
                // It has been replaced by a small value, or removed, in the meantime.
                SmallTry::Done(result) => return result.existed(),
                SmallTry::Failed(failure) => return Err(failure.into_error("delete")),
            };
            let id = ValueManifest::decode(&raw)?.id;
            let gone = drafts.key(&id);
            let actions = [
                Action::Delete { key: &place.manifest },
                Action::Put { key: &gone, data: ValueData::Inline(&[]) },
            ];
            let operation = Operation::new(place.partition, actions)
                .guard(Guard::VersionIs(&place.manifest, version));
            match self.dataset.execute_one(ClientOperation::new(operation))? {
                OwnedOutcome::Done(_) => {
                    drafts.remove(&id)?;
                    return Ok(true);
                }
                OwnedOutcome::Failed(failure)
                    if failure.kind == ErrorKind::Conflict && deadline.remaining().is_some() => {}
                OwnedOutcome::Failed(failure) => return Err(failure.into_error("delete")),
            }
        }
    }
}

fn last_version(results: &[OwnedResult]) -> Result<Version> {
    Ok(results.last().ok_or(ErrorKind::Internal)?.written()?.0)
}

fn swept() -> Error {
    Error::new(ErrorKind::NotFound, "the new value was removed on its way: its lock was lost")
}

fn exists() -> Error {
    Error::new(ErrorKind::Exists, "the key has a value")
}

fn conflict() -> Error {
    Error::new(ErrorKind::Conflict, "the key has another version")
}
