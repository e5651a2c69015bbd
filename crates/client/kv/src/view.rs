//! Single keys, and listings.

use samite_client::drafts::{DraftKinds, DraftLinks, NameDrafts};
use samite_client::listing::{RecordStream, list_sorted};
use samite_client::{ClientOperation, Dataset, OwnedFailure, OwnedOutcome, OwnedResult, key_text};
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::limits::{RECORD_LEN_MAX, VALUE_LEN_MAX};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::atomic::AtomicChange;
use crate::batch::KvBatch;
use crate::commit::{ExpectedValue, NewValue};
use crate::key::{KeyPlace, KeyScope};
use crate::manifest::{CHUNK_KIND, DRAFT_KIND, HEAD_LEN, MANIFEST_LEN_MAX, total_len_of};

/// Longest value that [`KvView::set`] tries to set without a request, in bytes.
const SET_LEN_MAX: usize = 256;

/// A value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedValue {
    /// Changes with every change of the value; for [`KvView::compare_and_swap`].
    pub version: Version,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// One key of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// Key.
    pub key: Vec<u8>,
    /// Version of its value.
    pub version: Version,
    /// Length of its value, in bytes.
    pub len: u64,
}

/// Part of a listing, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPage {
    /// Entries. To go on, list again after the key of the last one.
    pub entries: Vec<KeyEntry>,
    /// There is nothing after the last entry.
    pub complete: bool,
}

/// Keys and values in a dataset. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KvView {
    pub(crate) dataset: Dataset,
    scope: KeyScope,
    locks: DraftLinks,
}

/// The result of one try at a small value.
pub(crate) enum SmallTry {
    Done(OwnedResult),
    Failed(OwnedFailure),
    /// The key has a manifest: its version and bytes, as far as they were revealed.
    Large(Version, Vec<u8>),
}

impl KvView {
    /// The view over `dataset`.
    #[must_use]
    pub fn new(dataset: Dataset) -> Self {
        Self { dataset, scope: KeyScope::ungrouped(), locks: DraftLinks::default() }
    }

    /// The dataset.
    #[must_use]
    pub const fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The group `place`: a space of keys of its own, all in one partition, so that
    /// [`Self::atomic`] can change several together.
    ///
    /// # Errors
    /// `TooLarge`: `place` has more than [`GROUP_LEN_MAX`](crate::GROUP_LEN_MAX) bytes.
    pub fn group(&self, place: &[u8]) -> Result<Self> {
        let scope = KeyScope::group(&self.dataset, place)?;
        Ok(Self { dataset: self.dataset.clone(), scope, locks: self.locks.clone() })
    }

    /// Several changes that take effect together or not at all; all keys have to be in one
    /// partition, as those of a group are.
    pub const fn atomic(&self) -> AtomicChange<'_> {
        AtomicChange::new(self)
    }

    /// Operations on any keys that travel together.
    pub const fn batch(&self) -> KvBatch<'_> {
        KvBatch::new(self)
    }

    pub(crate) fn place(&self, key: &[u8]) -> Result<KeyPlace> {
        self.scope.place(&self.dataset, key)
    }

    pub(crate) fn drafts(&self, place: &KeyPlace) -> NameDrafts {
        let kinds = DraftKinds { draft: DRAFT_KIND, chunk: CHUNK_KIND };
        NameDrafts::new(&self.dataset, &self.locks, place.partition, kinds, &place.value)
    }

    /// Removes the rest of large values of `key` whose clients died before they were in place.
    /// Putting a large value, and removing one, does so, too.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn sweep(&self, key: &[u8]) -> Result<()> {
        self.drafts(&self.place(key)?).sweep()
    }

    /// Tries `action` on the key's value, under the guard that there is no manifest, and `guard`
    /// after it.
    pub(crate) fn try_small(
        &self,
        place: &KeyPlace,
        guard: Option<Guard<'_>>,
        action: Action<'_>,
        dest: Option<&mut [u8]>,
    ) -> Result<SmallTry> {
        let mut operation = small(place, action);
        operation.guards.extend(guard);
        let op = ClientOperation { dest, ..ClientOperation::new(operation) };
        Ok(match self.dataset.execute_one(op)? {
            OwnedOutcome::Done(mut results) => {
                SmallTry::Done(results.pop().ok_or(ErrorKind::Internal)?)
            }
            OwnedOutcome::Failed(OwnedFailure { kind: ErrorKind::Conflict, index: 0, current }) => {
                let current = current.ok_or(ErrorKind::Internal)?;
                SmallTry::Large(current.version, current.bytes)
            }
            OwnedOutcome::Failed(failure) => SmallTry::Failed(failure),
        })
    }

    /// Whether a change of the key's small value could be made without a request, and has been:
    /// whoever makes a manifest also deletes the small value, and no change of this key by this
    /// session is under way whose end nobody has waited for.
    fn is_completed(&self, place: &KeyPlace, action: Action<'_>, guard: Option<Guard<'_>>) -> bool {
        let mut operation = small(place, action);
        operation.guards.extend(guard);
        self.dataset.read_stamp_of_key(&place.value).is_some()
            && self.dataset.try_complete(&mut operation.into()).is_some()
    }

    /// The value of `key`, or `None`.
    ///
    /// # Errors
    /// `Invalid`, `TooLarge` for a key that cannot be; as [`Dataset::execute`]. So for all methods.
    pub fn get(&self, key: &[u8]) -> Result<Option<VersionedValue>> {
        let place = self.place(key)?;
        let read = Action::Get { key: &place.value, offset: 0, len: u32::MAX };
        match self.try_small(&place, None, read, None)? {
            SmallTry::Done(OwnedResult::Value { version, data, .. }) => {
                Ok(Some(VersionedValue { version, bytes: data }))
            }
            SmallTry::Done(_) => Err(ErrorKind::Corrupt.into()),
            SmallTry::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            SmallTry::Failed(failure) => {
                Err(failure.into_error(format_args!("get {}", key_text(key))))
            }
            SmallTry::Large(version, manifest) => self.get_large(key, version, manifest),
        }
    }

    /// Length of the value of `key` in bytes, and its version; or `None`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn stat(&self, key: &[u8]) -> Result<Option<(u64, Version)>> {
        let place = self.place(key)?;
        let read = Action::Get { key: &place.value, offset: 0, len: 0 };
        match self.try_small(&place, None, read, None)? {
            SmallTry::Done(result) => {
                let (version, total_len, _) = result.value()?;
                Ok(Some((u64::from(total_len), version)))
            }
            SmallTry::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            SmallTry::Failed(failure) => {
                Err(failure.into_error(format_args!("stat {}", key_text(key))))
            }
            SmallTry::Large(version, manifest) => {
                Ok(Some((total_len_of(&manifest).ok_or(ErrorKind::Corrupt)?, version)))
            }
        }
    }

    /// Sets the value of `key`; its version after.
    ///
    /// # Errors
    /// `TooLarge` for more than [`VALUE_LEN_MAX`] bytes; `NoSpace`; as [`Self::get`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        self.store(key, value, ExpectedValue::Any)
    }

    /// Sets the value of `key`, as [`Self::put`] does, for a caller that needs no version: a short
    /// value takes no request where the node of the key is on this host.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let place = self.place(key)?;
        let put = || Action::Put { key: &place.value, data: ValueData::Inline(value) };
        // A record that is new is published, so that its removal takes no request either.
        let is_new = Some(Guard::Absent(&place.value));
        if value.len() <= SET_LEN_MAX
            && (self.is_completed(&place, put(), is_new) || self.is_completed(&place, put(), None))
        {
            return Ok(());
        }
        self.put(key, value).map(drop)
    }

    /// Sets the value of `key` if it has none.
    ///
    /// # Errors
    /// `Exists`; as [`Self::put`].
    pub fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        self.store(key, value, ExpectedValue::Absent)
    }

    /// Sets the value of `key` if its version is still `expected`.
    ///
    /// # Errors
    /// `Conflict`; as [`Self::put`].
    pub fn compare_and_swap(&self, key: &[u8], expected: Version, value: &[u8]) -> Result<Version> {
        self.store(key, value, ExpectedValue::Version(expected))
    }

    fn store(&self, key: &[u8], value: &[u8], expect: ExpectedValue) -> Result<Version> {
        check_value_len(value.len() as u64)?;
        let place = self.place(key)?;
        if value.len() <= RECORD_LEN_MAX {
            self.commit(&place, NewValue::Small(value), expect)
        } else {
            self.put_large(&place, value, expect)
        }
        .map_err(|error| error.context(format_args!("put {}", key_text(key))))
    }

    /// Removes `key`; whether it was there.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        let place = self.place(key)?;
        let delete = || Action::Delete { key: &place.value };
        if self.is_completed(&place, delete(), None) {
            return Ok(true);
        }
        match self.try_small(&place, None, delete(), None)? {
            SmallTry::Done(result) => result.existed(),
            SmallTry::Failed(failure) => {
                Err(failure.into_error(format_args!("delete {}", key_text(key))))
            }
            SmallTry::Large(..) => self.delete_large(key),
        }
    }

    /// Appends to the value of `key` (absent counts as empty); its length after.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn append(&self, key: &[u8], bytes: &[u8]) -> Result<u64> {
        check_value_len(bytes.len() as u64)?;
        if bytes.len() <= RECORD_LEN_MAX {
            let place = self.place(key)?;
            let data = ValueData::Inline(bytes);
            let len_max = RECORD_LEN_MAX as u32;
            let action = Action::Append { key: &place.value, data, len_max };
            match self.try_small(&place, None, action, None)? {
                SmallTry::Done(result) => return Ok(u64::from(result.written()?.1)),
                SmallTry::Failed(failure) if failure.kind != ErrorKind::TooLarge => {
                    return Err(failure.into_error(format_args!("append to {}", key_text(key))));
                }
                SmallTry::Failed(_) | SmallTry::Large(..) => {}
            }
        }
        self.splice(key, None, bytes)
            .map_err(|error| error.context(format_args!("append to {}", key_text(key))))
    }

    /// Writes at `offset` (a gap becomes zeros, absent counts as empty); the length after.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn write_range(&self, key: &[u8], offset: u64, bytes: &[u8]) -> Result<u64> {
        let end = offset.saturating_add(bytes.len() as u64);
        check_value_len(end)?;
        if end <= RECORD_LEN_MAX as u64 {
            let place = self.place(key)?;
            let data = ValueData::Inline(bytes);
            // The end fits a record, so the offset fits, too.
            let action = Action::Write { key: &place.value, offset: offset as u32, data };
            match self.try_small(&place, None, action, None)? {
                SmallTry::Done(result) => return Ok(u64::from(result.written()?.1)),
                SmallTry::Failed(failure) => {
                    return Err(failure.into_error(format_args!("write to {}", key_text(key))));
                }
                SmallTry::Large(..) => {}
            }
        }
        self.splice(key, Some(offset), bytes)
            .map_err(|error| error.context(format_args!("write to {}", key_text(key))))
    }

    /// Reads from `offset` into `dest`; how many bytes there were (fewer only at the end), or
    /// `None` without a value.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn read_range(&self, key: &[u8], offset: u64, dest: &mut [u8]) -> Result<Option<usize>> {
        let place = self.place(key)?;
        // A small value has nothing at or beyond this offset; a large one is found by its manifest.
        let small_offset = offset.min(RECORD_LEN_MAX as u64) as u32;
        let len = u32::try_from(dest.len()).unwrap_or(u32::MAX);
        let read = Action::Get { key: &place.value, offset: small_offset, len };
        match self.try_small(&place, None, read, Some(&mut *dest))? {
            SmallTry::Done(result) => Ok(Some(result.value()?.2)),
            SmallTry::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            SmallTry::Failed(failure) => {
                Err(failure.into_error(format_args!("read {}", key_text(key))))
            }
            SmallTry::Large(_, manifest) => self.read_large(key, manifest, offset, dest),
        }
    }

    /// At most `limit` keys that start with `prefix` and come after `after` (empty: from the
    /// first), over all partitions in key order. Changes meanwhile may or may not show.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<KeyPage> {
        let [values, manifests] = self.scope.prefixes();
        let streams = [
            RecordStream { kind_prefix: values, value_len_max: 0 },
            RecordStream { kind_prefix: manifests, value_len_max: HEAD_LEN as u32 },
        ];
        let partition = self.scope.partition();
        let (found, complete) =
            list_sorted(&self.dataset, partition, &streams, prefix, after, limit)?;
        let entries = found
            .into_iter()
            .map(|found| {
                let len = match found.stream {
                    0 => Some(u64::from(found.total_len)),
                    _ => total_len_of(&found.value),
                };
                let len = len.ok_or(ErrorKind::Corrupt)?;
                Ok(KeyEntry { key: found.key, version: found.version, len })
            })
            .collect::<Result<_>>()?;
        Ok(KeyPage { entries, complete })
    }
}

/// An operation on a small value: fails with the manifest if there is one.
pub(crate) fn small<'a>(place: &'a KeyPlace, action: Action<'a>) -> Operation<'a> {
    Operation::new(place.partition, [action])
        .guard(Guard::Absent(&place.manifest))
        .reveal(MANIFEST_LEN_MAX as u32)
}

pub(crate) fn check_value_len(len: u64) -> Result<()> {
    if len <= VALUE_LEN_MAX {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::TooLarge,
        format!("value of {len} bytes; the limit is {VALUE_LEN_MAX}"),
    ))
}
