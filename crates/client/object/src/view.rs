//! Objects by name, and listings.

use samite_client::drafts::{DraftKinds, DraftLinks, NameDrafts, remove_chunks};
use samite_client::listing::{RecordStream, list_sorted};
use samite_client::{ClientOperation, Dataset, OwnedOutcome, OwnedResult, key_text};
use samite_types::{Error, ErrorKind, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::header::{
    CHUNK_KIND, DRAFT_KIND, HEADER_LEN, HEADER_PREFIX, ID_AT, ObjectHeader, header_key, len_of,
};
use crate::open_object::OpenObject;

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEntry {
    /// Name.
    pub name: Vec<u8>,
    /// Length, in bytes.
    pub len: u64,
}

/// Part of a listing, in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPage {
    /// Entries. To go on, list again after the name of the last one.
    pub entries: Vec<ObjectEntry>,
    /// There is nothing after the last entry.
    pub complete: bool,
}

/// Objects in a dataset. Cheap to clone. All calls are carried out by the client's default
/// deadline.
#[derive(Clone, Debug)]
pub struct ObjectView {
    pub(crate) dataset: Dataset,
    locks: DraftLinks,
}

impl ObjectView {
    /// The view over `dataset`.
    #[must_use]
    pub fn new(dataset: Dataset) -> Self {
        Self { dataset, locks: DraftLinks::default() }
    }

    /// The dataset.
    #[must_use]
    pub const fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Makes an object.
    ///
    /// # Errors
    /// `Exists` if there is one of this name; `Invalid`, `TooLarge` for a name that cannot be; as
    /// [`Dataset::execute`].
    pub fn create(&self, name: &[u8]) -> Result<OpenObject> {
        match self.make(name)? {
            (object, true) => Ok(object),
            (_, false) => Err(Error::new(
                ErrorKind::Exists,
                format!("create object {}: there is one of this name", key_text(name)),
            )),
        }
    }

    /// Opens an object, making it if there is none.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn open_or_create(&self, name: &[u8]) -> Result<OpenObject> {
        Ok(self.make(name)?.0)
    }

    /// The object, and whether it has just been made.
    fn make(&self, name: &[u8]) -> Result<(OpenObject, bool)> {
        let key = header_key(name)?;
        let partition = self.dataset.partition_of(name);
        let fresh = ObjectHeader::fresh(self.dataset.spec().chunk_len);
        let raw = fresh.encode();
        let put = Action::Put { key: &key, data: ValueData::Inline(&raw) };
        let operation =
            Operation::new(partition, [put]).guard(Guard::Absent(&key)).reveal(HEADER_LEN as u32);
        match self.dataset.execute_one(ClientOperation::new(operation))? {
            OwnedOutcome::Done(_) => Ok((self.object(name, &fresh)?, true)),
            OwnedOutcome::Failed(failure) => match failure.current {
                Some(there) => {
                    Ok((self.object(name, &ObjectHeader::decode(&there.bytes)?)?, false))
                }
                None => Err(failure.into_error(format_args!("create object {}", key_text(name)))),
            },
        }
    }

    /// Opens an object.
    ///
    /// # Errors
    /// `NotFound` if there is none of this name; else as [`Self::create`].
    pub fn open(&self, name: &[u8]) -> Result<OpenObject> {
        match self.header(name)? {
            Some(header) => self.object(name, &header),
            None => Err(Error::new(
                ErrorKind::NotFound,
                format!("open object {}: there is none", key_text(name)),
            )),
        }
    }

    fn object(&self, name: &[u8], header: &ObjectHeader) -> Result<OpenObject> {
        OpenObject::new(self.dataset.clone(), name, header)
    }

    pub(crate) fn drafts(&self, name: &[u8]) -> NameDrafts {
        let partition = self.dataset.partition_of(name);
        let kinds = DraftKinds { draft: DRAFT_KIND, chunk: CHUNK_KIND };
        NameDrafts::new(&self.dataset, &self.locks, partition, kinds, name)
    }

    pub(crate) fn header(&self, name: &[u8]) -> Result<Option<ObjectHeader>> {
        let key = header_key(name)?;
        let operation = Operation::get(self.dataset.partition_of(name), &key);
        match self.dataset.execute_one(ClientOperation::new(operation))? {
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            OwnedOutcome::Failed(failure) => {
                Err(failure.into_error(format_args!("object {}", key_text(name))))
            }
            OwnedOutcome::Done(mut results) => match results.pop() {
                Some(OwnedResult::Value { data, .. }) => ObjectHeader::decode(&data).map(Some),
                _ => Err(ErrorKind::Corrupt.into()),
            },
        }
    }

    /// Removes an object and all of its chunks, and the rest of killed replacements of it; whether
    /// it was there. A client that still writes to it meanwhile may leave chunks behind that no
    /// client sees.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn delete(&self, name: &[u8]) -> Result<bool> {
        let key = header_key(name)?;
        self.drafts(name).sweep()?;
        loop {
            let Some(header) = self.header(name)? else { return Ok(false) };
            let partition = self.dataset.partition_of(name);
            let operation = Operation::new(partition, [Action::Delete { key: &key }])
                .guard(Guard::BytesAre { key: &key, offset: ID_AT, bytes: &header.id });
            match self.dataset.execute_one(ClientOperation::new(operation))? {
                OwnedOutcome::Done(_) => {
                    remove_chunks(&self.dataset, CHUNK_KIND, &header.id)?;
                    return Ok(true);
                }
                // Removed meanwhile, and perhaps made again.
                OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::Conflict => {}
                OwnedOutcome::Failed(failure) => {
                    return Err(
                        failure.into_error(format_args!("delete object {}", key_text(name)))
                    );
                }
            }
        }
    }

    /// At most `limit` objects whose names start with `prefix` and come after `after` (empty: from
    /// the first), in name order.
    ///
    /// # Errors
    /// As [`Dataset::execute`].
    pub fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<ObjectPage> {
        let streams =
            [RecordStream { kind_prefix: HEADER_PREFIX, value_len_max: HEADER_LEN as u32 }];
        let (found, complete) = list_sorted(&self.dataset, None, &streams, prefix, after, limit)?;
        let entries = found
            .into_iter()
            .map(|found| {
                let len = len_of(&found.value).ok_or(ErrorKind::Corrupt)?;
                Ok(ObjectEntry { name: found.key, len })
            })
            .collect::<Result<_>>()?;
        Ok(ObjectPage { entries, complete })
    }
}
