//! Drafts: chunks that no client sees yet, of an object or a large value that is to be whole. For
//! views that keep what they show in chunks, and replace it as a whole.
//!
//! A record in the partition of the name tells of them, so that the chunks of a killed client can
//! be found:
//!
//! ```text
//! W hash(be64) id    a value of the key-value view
//! O hash(be64) id    an object
//! ```
//!
//! The hash is that of the name (of a value: of its record's key). Names that share one do not
//! disturb each other.
//!
//! The client that makes it holds a lock of that id; a record whose lock is free belongs to no
//! client. The operation that puts the chunks in place takes the record away, and leaves one with
//! an empty value for the chunks that were there before, until they are removed. The same empty
//! value says that a client is removing chunks: they cannot be put in place any more.

use std::fmt;
use std::sync::{Arc, OnceLock};

use samite_placement::hash;
use samite_types::{Entropy, Epoch, Error, ErrorKind, PartitionId, Result, SystemEntropy, Term};
use samite_wire::control::DistributionKind;
use samite_wire::lock::{
    LockAnswer, LockCall, LockHolder, LockMode, LockRange, LockRequest, LockSpace,
};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::locks::LockSession;
use crate::outcome::{OwnedOutcome, OwnedResult};
use crate::{ClientOperation, Dataset};

/// Identity of the chunks of one value or object.
pub type ChunksId = [u8; ID_LEN];
/// Key of a draft: of the record that tells of its chunks.
pub type DraftKey = [u8; KEY_LEN];

/// The first bytes of the keys that the drafts of a view have. A view shares its datasets with
/// other views, so each has bytes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftKinds {
    /// Of drafts.
    pub draft: u8,
    /// Of chunks: the id comes behind it.
    pub chunk: u8,
}

const ID_LEN: usize = 16;
const PREFIX_LEN: usize = 9;
const KEY_LEN: usize = PREFIX_LEN + ID_LEN;
/// Records that one operation removes, at most.
const REMOVED_MAX: u32 = 4096;
/// Records of one name that are looked at, at a time.
const SWEPT_MAX: u32 = 256;

/// Connections for the locks of all drafts of a view, made when they are first needed.
#[derive(Clone, Default)]
pub struct DraftLinks(Arc<OnceLock<LockSession>>);

impl fmt::Debug for DraftLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DraftLinks")
    }
}

/// The drafts of one name.
#[derive(Clone, Debug)]
pub struct NameDrafts {
    dataset: Dataset,
    partition: PartitionId,
    locks: DraftLinks,
    prefix: [u8; PREFIX_LEN],
    /// The first bytes of the keys of chunks, before the id.
    chunk_kind: u8,
}

/// The lock of a draft that is being made.
#[derive(Debug)]
pub struct DraftLock {
    locks: DraftLinks,
    request: LockRequest,
}

impl Drop for DraftLock {
    fn drop(&mut self) {
        let call = LockCall::Release { range: LockRange::WHOLE };
        if let Some(locker) = self.locks.0.get() {
            // It ends with this process, at the latest.
            let _ = locker.ask(&LockRequest { call, ..self.request });
        }
    }
}

impl NameDrafts {
    /// The drafts of `name`, whose records are in `partition`; `locks` are those of the whole view.
    #[must_use]
    pub fn new(
        dataset: &Dataset,
        locks: &DraftLinks,
        partition: PartitionId,
        kinds: DraftKinds,
        name: &[u8],
    ) -> Self {
        let mut prefix = [kinds.draft; PREFIX_LEN];
        prefix[1..].copy_from_slice(&hash(name).to_be_bytes());
        let (dataset, locks) = (dataset.clone(), locks.clone());
        Self { dataset, partition, locks, prefix, chunk_kind: kinds.chunk }
    }

    /// Key of the record of the chunks `id`.
    #[must_use]
    pub fn key(&self, id: &ChunksId) -> DraftKey {
        let mut key = [0; KEY_LEN];
        key[..PREFIX_LEN].copy_from_slice(&self.prefix);
        key[PREFIX_LEN..].copy_from_slice(id);
        key
    }

    /// Removes drafts that no client is making any more, and begins a draft with this value of its
    /// record, which is not empty.
    ///
    /// # Errors
    /// `NoSpace`, `NoLocks`; as [`Dataset::execute`].
    pub fn begin(&self, id: &ChunksId, value: &[u8]) -> Result<DraftLock> {
        self.sweep()?;
        let held = self.hold(id)?.ok_or(ErrorKind::Internal)?;
        let key = self.key(id);
        let put = Action::Put { key: &key, data: ValueData::Inline(value) };
        let outcome = self
            .dataset
            .execute_one(ClientOperation::new(Operation::new(self.partition, [put])))?;
        outcome.into_results("begin a draft")?;
        Ok(held)
    }

    /// Removes drafts that no client is making any more.
    ///
    /// # Errors
    /// As [`Dataset::execute`].
    pub fn sweep(&self) -> Result<()> {
        let list = Action::List {
            prefix: &self.prefix,
            after: &[],
            limit: SWEPT_MAX,
            reverse: false,
            value_len_max: 1,
        };
        let operation = Operation::new(self.partition, [list]);
        let mut results = self
            .dataset
            .execute_one(ClientOperation::new(operation))?
            .into_results("look for drafts")?;
        let Some(OwnedResult::Listing { entries, .. }) = results.pop() else {
            return Err(ErrorKind::Corrupt.into());
        };
        for entry in entries.iter() {
            let id = entry.key.get(PREFIX_LEN..).and_then(|id| ChunksId::try_from(id).ok());
            let id = id.ok_or(ErrorKind::Corrupt)?;
            if entry.bytes().is_empty() {
                self.remove(&id)?;
            } else if let Some(_held) = self.hold(&id)? {
                self.give_up(&id)?;
            }
        }
        Ok(())
    }

    /// Removes a draft that is not to be put in place.
    ///
    /// # Errors
    /// As [`Dataset::execute`].
    pub fn give_up(&self, id: &ChunksId) -> Result<()> {
        let key = self.key(id);
        let empty = Action::Truncate { key: &key, len: 0 };
        let operation = Operation::new(self.partition, [empty]).guard(Guard::Exists(&key));
        match self.dataset.execute_one(ClientOperation::new(operation))? {
            OwnedOutcome::Done(_) => self.remove(id),
            // It is in place, or somebody else has removed it.
            OwnedOutcome::Failed(failure)
                if matches!(failure.kind, ErrorKind::Conflict | ErrorKind::NotFound) =>
            {
                Ok(())
            }
            OwnedOutcome::Failed(failure) => Err(failure.into_error("remove a draft")),
        }
    }

    /// Removes chunks whose record is empty, and the record.
    ///
    /// # Errors
    /// As [`Dataset::execute`].
    pub fn remove(&self, id: &ChunksId) -> Result<()> {
        remove_chunks(&self.dataset, self.chunk_kind, id)?;
        let key = self.key(id);
        let operation = Operation::new(self.partition, [Action::Delete { key: &key }]);
        self.dataset
            .execute_one(ClientOperation::new(operation))?
            .into_results("remove a draft")
            .map(drop)
    }

    /// The lock of `id`; `None`: another has it.
    fn hold(&self, id: &ChunksId) -> Result<Option<DraftLock>> {
        let locker = self.locks.0.get_or_init(|| LockSession::new(self.dataset.client()));
        let holder = LockHolder { host: locker.host(), pid: std::process::id() };
        let range = LockRange::WHOLE;
        let request = LockRequest {
            dataset: self.dataset.id(),
            partition: self.partition,
            object: hash(id),
            space: LockSpace::Whole,
            // Threads exclude each other, too.
            token: SystemEntropy.next_u64(),
            term: Term(0),
            epoch: Epoch(0),
            is_note: false,
            call: LockCall::Take {
                range,
                mode: LockMode::Exclusive,
                holder,
                wait: None,
                detects_deadlock: false,
            },
        };
        match locker.ask(&request)? {
            LockAnswer::Done => Ok(Some(DraftLock { locks: self.locks.clone(), request })),
            LockAnswer::Held(_) => Ok(None),
            LockAnswer::Full => Err(Error::new(ErrorKind::NoLocks, "lock: too many locks")),
            LockAnswer::Deadlock | LockAnswer::Cancelled => {
                Err(Error::new(ErrorKind::Corrupt, "lock: the node answers another question"))
            }
        }
    }
}

/// The partitions in which the chunks `id` can be.
#[must_use]
pub fn chunk_partitions(dataset: &Dataset, id: &ChunksId) -> Vec<PartitionId> {
    match dataset.spec().distribution {
        DistributionKind::Single => vec![dataset.chunk_partition(hash(id), 0)],
        DistributionKind::RoundRobin | DistributionKind::Weighted(_) => {
            (0..dataset.partitions()).map(PartitionId).collect()
        }
    }
}

/// Removes all chunks whose keys are the byte `kind` and `id`, in requests of 4096 records for each
/// partition.
///
/// # Errors
/// As [`Dataset::execute`].
pub fn remove_chunks(dataset: &Dataset, kind: u8, id: &ChunksId) -> Result<()> {
    let mut prefix = [kind; 1 + ID_LEN];
    prefix[1..].copy_from_slice(id);
    let deadline = dataset.client().deadline();
    let mut left = chunk_partitions(dataset, id);
    while !left.is_empty() {
        let mut ops: Vec<ClientOperation<'_>> = left
            .iter()
            .map(|partition| {
                let action = Action::DeletePrefix { prefix: &prefix, limit: REMOVED_MAX };
                ClientOperation::new(Operation::new(*partition, [action]))
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
