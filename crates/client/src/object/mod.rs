//! The object view: named byte ranges of any size over chunks.
//!
//! An object is a header record, placed by its name, and chunks of the dataset's chunk length, placed by the dataset's
//! distribution. Chunks that were never written are holes and read as zeros. Writing sends chunks only, and the header's
//! length is raised to the end of what was written (after the data, where the object grows: its length never covers bytes that are not
//! there yet). A read or a write of any size is one request per node and frame.
//!
//! Names are any bytes, 1 to 4096 of them; nothing in them has a meaning.

mod header;
mod io;
mod submit;

use samite_placement::hash;
use samite_types::{Error, ErrorKind, PartitionId, Result};
use samite_wire::control::DistributionKind;
use samite_wire::op::{Action, Data, Guard, Operation};

use crate::kv::show;
use crate::listing::{Stream, list_sorted};
use crate::outcome::{OwnedOutcome, OwnedResult};
use crate::{Dataset, Op};

use header::{HEADER_LEN, HEADER_PREFIX, Header, ID_AT, chunk_prefix, header_key, len_of};

pub use io::Object;

/// Records that one operation removes, at most.
const REMOVED_MAX: u32 = 4096;

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: Vec<u8>,
    /// Length, in bytes.
    pub len: u64,
}

/// Part of a listing, in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries. To go on, list again after the name of the last one.
    pub entries: Vec<Entry>,
    /// There is nothing after the last entry.
    pub complete: bool,
}

/// Objects in a dataset. Cheap to clone. All calls are carried out by the client's default deadline.
#[derive(Clone, Debug)]
pub struct Objects {
    dataset: Dataset,
}

impl Objects {
    /// The view over `dataset`.
    #[must_use]
    pub const fn new(dataset: Dataset) -> Self {
        Self { dataset }
    }

    /// The dataset.
    #[must_use]
    pub const fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Makes an object.
    ///
    /// # Errors
    /// `Exists` if there is one of this name; `Invalid`, `TooLarge` for a name that cannot be; as [`Dataset::execute`].
    pub fn create(&self, name: &[u8]) -> Result<Object> {
        match self.make(name)? {
            (object, true) => Ok(object),
            (_, false) => Err(Error::new(
                ErrorKind::Exists,
                format!("create object {}: there is one of this name", show(name)),
            )),
        }
    }

    /// Opens an object, making it if there is none.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn open_or_create(&self, name: &[u8]) -> Result<Object> {
        Ok(self.make(name)?.0)
    }

    /// The object, and whether it has just been made.
    fn make(&self, name: &[u8]) -> Result<(Object, bool)> {
        let key = header_key(name)?;
        let partition = self.dataset.partition_of(name);
        let fresh = Header::fresh(self.dataset.spec().chunk_len);
        let raw = fresh.encode();
        let put = Action::Put { key: &key, data: Data::Inline(&raw) };
        let operation =
            Operation::new(partition, [put]).guard(Guard::Absent(&key)).reveal(HEADER_LEN as u32);
        match self.dataset.execute_one(Op::new(operation))? {
            OwnedOutcome::Done(_) => Ok((self.object(name, &fresh)?, true)),
            OwnedOutcome::Failed(failure) => match failure.current {
                Some(there) => Ok((self.object(name, &Header::decode(&there.bytes)?)?, false)),
                None => Err(failure.into_error(format_args!("create object {}", show(name)))),
            },
        }
    }

    /// Opens an object.
    ///
    /// # Errors
    /// `NotFound` if there is none of this name; else as [`Self::create`].
    pub fn open(&self, name: &[u8]) -> Result<Object> {
        match self.header(name)? {
            Some(header) => self.object(name, &header),
            None => Err(Error::new(
                ErrorKind::NotFound,
                format!("open object {}: there is none", show(name)),
            )),
        }
    }

    fn object(&self, name: &[u8], header: &Header) -> Result<Object> {
        Object::new(self.dataset.clone(), name, header)
    }

    fn header(&self, name: &[u8]) -> Result<Option<Header>> {
        let key = header_key(name)?;
        let operation = Operation::get(self.dataset.partition_of(name), &key);
        match self.dataset.execute_one(Op::new(operation))? {
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            OwnedOutcome::Failed(failure) => {
                Err(failure.into_error(format_args!("object {}", show(name))))
            }
            OwnedOutcome::Done(mut results) => match results.pop() {
                Some(OwnedResult::Value { data, .. }) => Header::decode(&data).map(Some),
                _ => Err(ErrorKind::Corrupt.into()),
            },
        }
    }

    /// Removes an object and all of its chunks; whether it was there. Who still writes to it meanwhile may leave chunks behind that nobody sees.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn delete(&self, name: &[u8]) -> Result<bool> {
        let key = header_key(name)?;
        loop {
            let Some(header) = self.header(name)? else { return Ok(false) };
            let partition = self.dataset.partition_of(name);
            let operation = Operation::new(partition, [Action::Delete { key: &key }])
                .guard(Guard::BytesAre { key: &key, offset: ID_AT, bytes: &header.id });
            match self.dataset.execute_one(Op::new(operation))? {
                OwnedOutcome::Done(_) => {
                    remove_chunks(&self.dataset, &header.id)?;
                    return Ok(true);
                }
                // Removed meanwhile, and perhaps made again.
                OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::Conflict => {}
                OwnedOutcome::Failed(failure) => {
                    return Err(failure.into_error(format_args!("delete object {}", show(name))));
                }
            }
        }
    }

    /// At most `limit` objects whose names start with `prefix` and come after `after` (empty: from the first), in name order.
    ///
    /// # Errors
    /// As [`Dataset::execute`].
    pub fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Page> {
        let streams = [Stream { kind_prefix: HEADER_PREFIX, value_len_max: HEADER_LEN as u32 }];
        let (found, complete) = list_sorted(&self.dataset, None, &streams, prefix, after, limit)?;
        let entries = found
            .into_iter()
            .map(|found| {
                let len = len_of(&found.value).ok_or(ErrorKind::Corrupt)?;
                Ok(Entry { name: found.key, len })
            })
            .collect::<Result<_>>()?;
        Ok(Page { entries, complete })
    }
}

/// The partitions in which chunks of an object can be.
fn chunk_partitions(dataset: &Dataset, id: &header::ObjectId) -> Vec<PartitionId> {
    match dataset.spec().distribution {
        DistributionKind::Single => vec![dataset.chunk_partition(hash(id), 0)],
        DistributionKind::RoundRobin | DistributionKind::Weighted(_) => {
            (0..dataset.partitions()).map(PartitionId).collect()
        }
    }
}

fn remove_chunks(dataset: &Dataset, id: &header::ObjectId) -> Result<()> {
    let prefix = chunk_prefix(id);
    let deadline = dataset.client().deadline();
    let mut left = chunk_partitions(dataset, id);
    while !left.is_empty() {
        let mut ops: Vec<Op<'_>> = left
            .iter()
            .map(|partition| {
                let action = Action::DeletePrefix { prefix: &prefix, limit: REMOVED_MAX };
                Op::new(Operation::new(*partition, [action]))
            })
            .collect();
        let outcomes = dataset.execute(&mut ops, deadline)?;
        let mut again = Vec::new();
        for (partition, outcome) in left.iter().zip(outcomes) {
            let results = outcome.into_results("remove chunks")?;
            if results.first().ok_or(ErrorKind::Internal)?.number()? >= u64::from(REMOVED_MAX) {
                again.push(*partition);
            }
        }
        left = again;
    }
    Ok(())
}
